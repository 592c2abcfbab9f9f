/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * One pass of a model over what it is evaluated on, piece by piece: the same in training (train.c) and apart
 * from it (evaluate.c), so that both print the same bits.
 */
#ifndef SHERD_RUNTIME_EVALUATION_H
#define SHERD_RUNTIME_EVALUATION_H

#include "data/data.h"
#include "runtime/engine.h"

/* Micro-batches of a rank that are in memory; after them it looks whether to stop. */
#define EVALUATION_PIECE 20

struct evaluation {
    const struct feed *feed;                       /* borrowed */
    int64_t limit;                                 /* windows over all ranks; 0 = all */
    struct sherd_batch *batches;                   /* of one piece, */
    int32_t *rows;                                 /* and their tokens and targets */
    int (*stop)(void *ctx);                        /* asked between pieces; NULL = never stops */
    void (*progress)(void *ctx, const char *line); /* as in sherd_evaluate_desc */
    void *ctx;
};

struct evaluation_result {
    double loss; /* mean over the valid targets of all ranks, NAN where there are none */
    int64_t tokens;
    int stopped; /* it was left, and the two say nothing */
};

/* Not collective. The batch of the config is derived. The caller sets stop, progress and ctx. */
int evaluation_init(
    struct evaluation *evaluation, const struct sherd_config *config, const struct feed *feed);
void evaluation_finish(struct evaluation *evaluation);
/* Collective. */
int evaluation_run(struct evaluation *evaluation, struct sherd_engine *engine, struct evaluation_result *out);

#endif
