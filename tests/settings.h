/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What tests of the engine vary, brought from a struct of their own into a configuration: each has these
 * fields under these names, beside what only it needs.
 */
#ifndef SHERD_TESTS_SETTINGS_H
#define SHERD_TESTS_SETTINGS_H

#include <sherd/config.h>

#define SETTINGS_TAKE(c, t, world)                                                                           \
    do {                                                                                                     \
        (c)->shard.stage = (t)->stage;                                                                       \
        (c)->shard.prefetch = (t)->prefetch;                                                                 \
        (c)->shard.overlap = (t)->overlap;                                                                   \
        (c)->shard.poison = (t)->poison;                                                                     \
        (c)->run.graph = (t)->graph ? SHERD_GRAPH_ON : SHERD_GRAPH_OFF;                                      \
        (c)->dtype.param = (t)->param;                                                                       \
        (c)->dtype.reduce = (t)->reduce;                                                                     \
        (c)->dtype.state = (t)->state;                                                                       \
        (c)->dtype.master = (t)->master;                                                                     \
        (c)->train.recompute = (t)->recompute;                                                               \
        (c)->batch.micro = (t)->micro;                                                                       \
        (c)->batch.accum = (t)->accum;                                                                       \
        (c)->batch.global = (t)->micro * (t)->accum * (world);                                               \
        (c)->batch.seq = (t)->seq;                                                                           \
    } while (0)

#endif
