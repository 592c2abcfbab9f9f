/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * A world of one: what is gathered, summed or sent is what one has; copies in queue order, on any device.
 */
#include <stddef.h>

#include <sherd/ops.h>

#include "base/status.h"
#include "comm/ops.h"

static int self_copy(
    struct sherd_queue *queue, void *out, const void *in, int64_t elems, enum sherd_dtype type)
{
    if (out == in || elems == 0)
        return SHERD_OK;
    return sherd_copy(queue,
        &(struct sherd_copy){ .dst = out, .src = in, .bytes = (size_t)elems * sherd_dtype_bytes(type) });
}

static int self_all_gather(struct sherd_comm *comm, struct sherd_queue *queue, void *out, const void *in,
    int64_t elems, enum sherd_dtype type)
{
    (void)comm;
    return self_copy(queue, out, in, elems, type);
}

static int self_reduce_scatter(struct sherd_comm *comm, struct sherd_queue *queue, void *out, void *in,
    int64_t elems, enum sherd_dtype type)
{
    (void)comm;
    return self_copy(queue, out, in, elems, type);
}

static int self_all_reduce(struct sherd_comm *comm, struct sherd_queue *queue, void *out, const void *in,
    int64_t elems, enum sherd_dtype type, enum sherd_reduce reduce)
{
    (void)comm, (void)reduce;
    return self_copy(queue, out, in, elems, type);
}

static int self_broadcast(
    struct sherd_comm *comm, struct sherd_queue *queue, void *out, const void *in, size_t bytes, int root)
{
    (void)comm, (void)root;
    return self_copy(queue, out, in, (int64_t)bytes, SHERD_U8);
}

static int self_twin(struct sherd_comm *comm, struct sherd_comm *twin)
{
    (void)comm, (void)twin;
    return SHERD_OK;
}

/* Nobody waits here. */
static void self_abort(struct sherd_comm *comm, const char *reason)
{
    (void)comm, (void)reason;
}

static void self_close(struct sherd_comm *comm)
{
    (void)comm;
}

const struct comm_ops comm_self = {
    .kind = "self",
    .ordered = 1,
    .all_gather = self_all_gather,
    .reduce_scatter = self_reduce_scatter,
    .all_reduce = self_all_reduce,
    .broadcast = self_broadcast,
    .control = self_twin,
    .dup = self_twin,
    .abort = self_abort,
    .close = self_close,
};
