/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Where a value that is infinite or not a number came from. The step before has changed nothing, so it is run
 * once more with a look at everything that layers read and write; steps that are sound pay nothing.
 */
#ifndef SHERD_RUNTIME_FINITE_H
#define SHERD_RUNTIME_FINITE_H

#include <sherd/engine.h>

#include "shard/program.h"

struct finder;

/* Collective. Runs the micro-batches of the step again, without its update, and writes what went wrong first
 * to buf: tensor, layer, rank and micro-batch, the same on every rank. */
int finite_find(
    struct sherd_engine *engine, const struct sherd_batch *micro, int n_micro, char *buf, size_t bytes);

/* For step.c, around every layer while finder is not NULL: looks at what it will read, and at what it wrote.
 */
int finite_before(struct sherd_engine *engine, struct finder *finder, const struct program_instr *instr,
    const struct sherd_run *run, int micro);
int finite_after(struct sherd_engine *engine, struct finder *finder, const struct program_instr *instr,
    const struct sherd_run *run, int micro);

#endif
