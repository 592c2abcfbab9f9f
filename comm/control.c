/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Control values of the hosts of all ranks, blocking: gathered, broadcast, agreed upon. They go through a
 * channel, a queue and a staging buffer of their own, so they never wait for work of a step. Kinds that have
 * a side use the side's.
 */
#include "comm/control.h"

#include <stdio.h>

#include <sherd/ops.h>

#include "base/mem.h"
#include "base/status.h"

#define CONTROL_BYTES ((size_t)64 << 10) /* of the staging buffer, at least */
#define CONTROL_RANK_BYTES ((size_t)2 << 10)
#define AGREE_TEXT_BYTES 1532

/* What a rank brings to comm_agree. */
struct verdict {
    int32_t status;
    char text[AGREE_TEXT_BYTES];
};

void control_destroy(struct comm_control *control)
{
    if (!control)
        return;
    if (control->twin.impl)
        control->twin.ops->close(&control->twin);
    sherd_queue_destroy(control->queue);
    sherd_device_free(control->twin.dev, control->staging);
    mem_free(control->verdicts);
    mem_free(control);
}

int control_make(struct sherd_comm *comm)
{
    if (comm->control || comm->side)
        return SHERD_OK;
    int st = SHERD_OK;
    struct comm_control *control = mem_zalloc(1, sizeof(*control));
    if (!control)
        return SHERD_ENOMEM;
    control->twin = (struct sherd_comm){
        .ops = comm->ops, .dev = comm->dev, .world = comm->world, .timeout = comm->timeout
    };
    control->bytes = MAX(CONTROL_BYTES, CONTROL_RANK_BYTES * (size_t)comm->world.size);
    control->verdicts = mem_zalloc((size_t)comm->world.size, sizeof(*control->verdicts));
    if (!control->verdicts)
        st = SHERD_ENOMEM;
    SHERD_TRY_OUT(st);
    SHERD_TRY_OUT(sherd_queue_create(&control->queue, comm->dev, SHERD_QUEUE_COMPUTE));
    st = sherd_device_alloc(comm->dev, &control->staging, control->bytes);
    SHERD_TRY_OUT(status_context(st, "memory for control values of ranks"));
    SHERD_TRY_OUT(comm->ops->control(comm, &control->twin));
    comm->control = control;
out:
    if (st != SHERD_OK)
        control_destroy(control);
    return st;
}

static int move(const struct comm_control *control, void *dst, const void *src, size_t bytes)
{
    return sherd_copy(control->queue, &(struct sherd_copy){ .dst = dst, .src = src, .bytes = bytes });
}

/* Rank r's piece of all lies at all + r * stride. */
static int gather_piece(
    struct comm_control *control, char *all, size_t stride, const char *mine, size_t bytes)
{
    struct sherd_comm *twin = &control->twin;
    char *staging = control->staging, *place = staging + (size_t)twin->world.rank * bytes;
    SHERD_TRY(move(control, place, mine, bytes));
    SHERD_TRY(sherd_all_gather(twin, control->queue, staging, place, (int64_t)bytes, SHERD_U8));
    for (int r = 0; r < twin->world.size; r++)
        SHERD_TRY(move(control, all + (size_t)r * stride, staging + (size_t)r * bytes, bytes));
    return sherd_queue_sync(control->queue);
}

int comm_host_gather(struct sherd_comm *comm, void *all, const void *mine, size_t bytes)
{
    comm = comm->side ? comm->side : comm;
    SHERD_TRY(control_make(comm));
    size_t most = comm->control->bytes / (size_t)comm->world.size;
    for (size_t at = 0; at < bytes; at += most)
        SHERD_TRY(gather_piece(
            comm->control, (char *)all + at, bytes, (const char *)mine + at, MIN(most, bytes - at)));
    return SHERD_OK;
}

int comm_host_broadcast(struct sherd_comm *comm, void *buf, size_t bytes, int root)
{
    comm = comm->side ? comm->side : comm;
    SHERD_TRY(control_make(comm));
    struct comm_control *control = comm->control;
    for (size_t at = 0; at < bytes; at += control->bytes) {
        size_t piece = MIN(control->bytes, bytes - at);
        char *here = (char *)buf + at;
        if (comm->world.rank == root)
            SHERD_TRY(move(control, control->staging, here, piece));
        SHERD_TRY(
            sherd_broadcast(&control->twin, control->queue, control->staging, control->staging, piece, root));
        if (comm->world.rank != root)
            SHERD_TRY(move(control, here, control->staging, piece));
        SHERD_TRY(sherd_queue_sync(control->queue));
    }
    return SHERD_OK;
}

int sherd_comm_barrier(struct sherd_comm *comm)
{
    if (!comm)
        return SHERD_FAIL(SHERD_EINVAL, "sherd_comm_barrier: comm is NULL");
    int32_t one = 1;
    comm = comm->side ? comm->side : comm;
    SHERD_TRY(control_make(comm));
    struct comm_control *control = comm->control;
    SHERD_TRY(move(control, control->staging, &one, sizeof(one)));
    SHERD_TRY(sherd_all_reduce(
        &control->twin, control->queue, control->staging, control->staging, 1, SHERD_I32, SHERD_REDUCE_MAX));
    return sherd_queue_sync(control->queue);
}

/* The failure to show: the first that is not itself about another rank. */
static int first_failure(const struct verdict *all, int size)
{
    int found = -1;
    for (int r = 0; r < size; r++) {
        if (all[r].status == SHERD_OK)
            continue;
        if (all[r].status != SHERD_EPEER)
            return r;
        if (found < 0)
            found = r;
    }
    return found;
}

int comm_agree(struct sherd_comm *comm, int status)
{
    int why;
    return comm_agree_why(comm, status, &why);
}

int comm_agree_why(struct sherd_comm *comm, int status, int *why)
{
    struct verdict mine = { .status = status };
    if (status != SHERD_OK)
        snprintf(mine.text, sizeof(mine.text), "%s", sherd_error());
    comm = comm->side ? comm->side : comm;
    *why = SHERD_OK;
    SHERD_TRY(control_make(comm));
    struct verdict *all = comm->control->verdicts;
    int st = comm_host_gather(comm, all, &mine, sizeof(mine));
    int r = st == SHERD_OK ? first_failure(all, comm->world.size) : -1;
    *why = r >= 0 ? all[r].status : st;
    if (status != SHERD_OK)
        st = status_adopt(status, mine.text);
    else if (r >= 0)
        st = SHERD_FAIL(SHERD_EPEER, "rank %d: %s", r, all[r].text);
    return st;
}
