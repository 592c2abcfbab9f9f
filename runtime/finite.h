/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * A step whose loss or gradient is infinite or not a number. It has changed nothing, so where that came from
 * is found by running it once more with a look at everything that layers read and write; steps that are sound
 * pay nothing.
 */
#ifndef SHERD_RUNTIME_FINITE_H
#define SHERD_RUNTIME_FINITE_H

#include <sherd/engine.h>

#include "shard/program.h"

struct finder;

/* Collective, once such a step is over. OK: it is passed over, and counted, since a loss scale fell for it or
 * train.nonfinite says so. Else ENONFINITE tells what went wrong first: tensor, layer, rank and micro-batch,
 * the same on every rank. */
int finite_end(struct sherd_engine *engine, const struct sherd_batch *micro, int n_micro);

/* For step.c, around every layer while finder is not NULL: looks at what it will read, and at what it wrote.
 */
int finite_before(struct sherd_engine *engine, struct finder *finder, const struct program_instr *instr,
    const struct sherd_run *run, int micro);
int finite_after(struct sherd_engine *engine, struct finder *finder, const struct program_instr *instr,
    const struct sherd_run *run, int micro);

#endif
