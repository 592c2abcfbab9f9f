/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The three movements between the forms of state, and the only collectives on tensors in a step:
 *   gather   sharded -> whole, into a slot, before a layer that needs the unit   (all-gather)
 *   reduce   partial -> sharded, or whole in stage 0, after the last backward    (reduce-scatter, all-reduce)
 *   publish  sharded -> whole, in place, after the update                        (all-gather)
 * Each runs on a side queue; events order it against the compute queue and against the buffer's last user.
 * Only sums travel: the weight of the step was applied at the loss.
 */
#ifndef SHERD_SHARD_MOVE_H
#define SHERD_SHARD_MOVE_H

#include "comm/ops.h"
#include "shard/store.h"

/* The queues and communicators of a rank. Without overlap all queues are the same. */
struct shard_mover {
    struct shard_store *store;
    struct sherd_queue *compute, *gather, *reduce, *update;
    struct sherd_comm *gather_comm, *reduce_comm;
    int poison; /* fill released buffers with NaN, so that a use too late or too early shows */
};

int move_gather(struct shard_mover *m, int unit, int slot);
/* The compute queue waits until the unit is whole, and up to date. */
int move_await(struct shard_mover *m, int unit);
/* The compute queue is done with the unit's slot. */
int move_release(struct shard_mover *m, int unit);
/* Takes a partial slot (or the partial at rest, -1) for the compute queue; its contents are undefined. */
int move_take_partial(struct shard_mover *m, int unit, int partial_slot);
/* `first`: the gradient at rest is overwritten (first micro-batch), else added to. */
int move_reduce(struct shard_mover *m, int unit, int first);
/* The compute queue waits until the unit's gradient at rest is complete. */
int move_await_grad(struct shard_mover *m, int unit);
/* Marks the unit's parameters at rest as new, and its gradient as read: the update queue is done with them.
 */
int move_updated(struct shard_mover *m, int unit);
int move_publish(struct shard_mover *m, int unit);

#endif
