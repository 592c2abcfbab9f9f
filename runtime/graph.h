/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The whole step as one piece of work that the device keeps: recorded once, after some ordinary steps, then
 * launched once a step. So that updates still run beside the forward pass, it begins with the updates of the
 * step before, which are therefore pending when a step returns.
 */
#ifndef SHERD_RUNTIME_GRAPH_H
#define SHERD_RUNTIME_GRAPH_H

#include <sherd/engine.h>

#include "comm/ops.h"

struct engine_graph {
    enum sherd_graph mode; /* AUTO became ON or OFF */
    int must;              /* asked for by name: a failure to record it is an error */
    int warm;              /* ordinary steps taken so far */
    int capturing;
    void *kept;  /* the device's; NULL: not recorded yet */
    void *timed; /* the last one that was recorded for one timed step */
    int n_micro; /* it was recorded for */
    int pending; /* the updates of the last step are still to be made; they belong to step */
    int64_t step;
    int64_t launches;   /* so far */
    int stamps;         /* that every launch leaves, see runtime/exposed.h */
    int32_t *host;      /* pinned: tokens and targets of every micro-batch */
    unsigned char *all; /* of every rank: it could launch */
    struct sherd_event *fork, *join[3];
    /* what one launch adds to the counters of the device and of the two communicators */
    uint64_t ops;
    double flops;
    struct sherd_comm_counters sent[2];
};

/* Settles the mode: ECONFIG where the device cannot keep work and `config` insists. */
int graph_init(struct sherd_engine *engine, const struct sherd_config *config);
void graph_finish(struct sherd_engine *engine);

/* Collective. Whether this step is to be launched: all ranks can, and long enough have steps been ordinary.
 */
int graph_takes(struct sherd_engine *engine, const struct sherd_batch *micro, int n_micro, int *yes);
/* Records if need be, and launches; a step that is `timed` is recorded for itself. *taken 0: it could not be
 * recorded, and need not be. */
int graph_step(
    struct sherd_engine *engine, const struct sherd_batch *micro, int n_micro, int timed, int *taken);
/* Makes the updates that are pending. */
int graph_flush(struct sherd_engine *engine);
/* Where the tokens of a micro-batch stand, then its targets; NULL when nothing is being recorded. */
int32_t *graph_tokens(struct sherd_engine *engine, int index);

#endif
