/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * How long the compute queue of a step waited for other queues, or communicated itself: two time stamps
 * around each such place, read once the step is over anyway. Only in steps that somebody will read of, and
 * with no allocation once a step has shown how many places there are.
 */
#ifndef SHERD_RUNTIME_EXPOSED_H
#define SHERD_RUNTIME_EXPOSED_H

#include <sherd/config.h>

#include "device/ops.h"

struct exposed {
    struct device_probe probe; /* first: the device calls with it */
    struct sherd_queue *queue; /* the compute queue; borrowed */
    int due;                   /* this step is measured */
    int depth;                 /* spans open on the queue */
    int n;                     /* stamps of this step, a begin and an end in turn */
    struct sherd_event **stamps;
    int n_stamps, cap;
};

void exposed_init(struct exposed *exposed, struct sherd_queue *queue);
void exposed_finish(struct exposed *exposed); /* the queue is idle, or gone */

/* Whether the run tells a line after `step` (from 1). */
int exposed_line(const struct sherd_config *config, int64_t step);
/* Before a step: settles whether it is measured. All that have a line are, and the first of all. */
void exposed_step(struct exposed *exposed, const struct sherd_config *config, int64_t step);

/* Around the work of a step, when it is submitted or recorded. */
void exposed_begin(struct exposed *exposed);
void exposed_end(struct exposed *exposed);
/* Seconds, once the queue has been synchronized; -1 where the step was not measured. */
int exposed_read(const struct exposed *exposed, double *seconds);

#endif
