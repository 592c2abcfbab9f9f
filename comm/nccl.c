/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Ranks on GPUs, through NCCL; built into the GPU plugin. The collectives: nothing but NCCL's own call where
 * all ranks have made one like it before; but large sums between GPUs of a host, where landing memory was
 * given: copy engines bring the parts of all ranks there, and one kernel adds them up. NCCL's own sums would
 * take processors from the mathematics beside them for as long as they last.
 *
 * What moves is blocking (see nccl_join.c). A blocking call holds the host up only while it sets something up
 * that all ranks must come for, the first time; so ranks meet on the side before it. And so few calls are
 * left under way that the GPU's queue never fills up.
 */
#include "comm/nccl.h"

#include "base/status.h"
#include "device/ops.h"

#define UNDER_WAY 128 /* calls between two marks; at most three times as many are under way */

/* A collective. */
struct call {
    enum sherd_collective kind;
    void *out;
    const void *in;
    size_t elems;
    ncclDataType_t type;
    int detail;    /* ncclRedOp_t, or the root */
    void *landing; /* reduce-scatter: the parts of all ranks are to be brought there, no more */
};

static const char *const names[] = {
    [SHERD_ALL_GATHER] = "all-gather",
    [SHERD_REDUCE_SCATTER] = "reduce-scatter",
    [SHERD_ALL_REDUCE] = "all-reduce",
    [SHERD_BROADCAST] = "broadcast",
};

static int map_type(ncclDataType_t *out, enum sherd_dtype type)
{
    static const struct {
        enum sherd_dtype type;
        ncclDataType_t nccl;
    } map[] = {
        { SHERD_F32, ncclFloat32 },
        { SHERD_BF16, ncclBfloat16 },
        { SHERD_F16, ncclFloat16 },
        { SHERD_F64, ncclFloat64 },
        { SHERD_I32, ncclInt32 },
        { SHERD_I64, ncclInt64 },
        { SHERD_U8, ncclUint8 },
    };
    for (size_t i = 0; i < ARRAY_LEN(map); i++) {
        if (map[i].type == type) {
            *out = map[i].nccl;
            return SHERD_OK;
        }
    }
    return SHERD_FAIL(SHERD_EUNSUPPORTED, "NCCL has no type for %s", sherd_dtype_name(type));
}

/* What in[rank * elems ..] is on each rank, in rank order, into the landing memory. Only where nccl_landing
 * found that NCCL can. It copies the own part as well, which the sum could read from `in`: this call has no
 * form without it, and gathers to one rank after the other, which have, would use one rank's links at a time.
 */
static ncclResult_t exchange(ncclComm_t comm, const struct call *c, cudaStream_t stream)
{
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
    return ncclAlltoAll(c->in, c->landing, c->elems, c->type, comm, stream);
#else
    (void)comm, (void)c, (void)stream;
    return ncclInvalidUsage;
#endif
}

/* In place where the addresses say so: NCCL has the same rule as comm/ops.h. */
static ncclResult_t enqueue(ncclComm_t comm, const struct call *c, cudaStream_t stream)
{
    switch (c->kind) {
    case SHERD_ALL_GATHER:
        return ncclAllGather(c->in, c->out, c->elems, c->type, comm, stream);
    case SHERD_REDUCE_SCATTER:
        if (c->landing)
            return exchange(comm, c, stream);
        return ncclReduceScatter(c->in, c->out, c->elems, c->type, (ncclRedOp_t)c->detail, comm, stream);
    case SHERD_ALL_REDUCE:
        return ncclAllReduce(c->in, c->out, c->elems, c->type, (ncclRedOp_t)c->detail, comm, stream);
    default:
        return ncclBroadcast(c->in, c->out, c->elems, c->type, c->detail, comm, stream);
    }
}

/* Before a call unlike those made so far, as all ranks see it: what NCCL sets up may depend on all of this.
 */
static int meet(struct nccl *n, const struct call *c, int *first)
{
    const uint64_t key[] = { c->elems, (uint64_t)c->kind, (uint64_t)c->type, (uint64_t)c->detail,
        (uint64_t)n->exposed, c->landing != NULL };
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < ARRAY_LEN(key); i++)
        hash = (hash ^ key[i] ^ (hash >> 29)) * 1099511628211u;
    size_t at = (hash >> 40) % NCCL_MET;
    for (int i = 0; i < NCCL_MET && n->met[at] != hash && n->met[at] != 0; i++)
        at = (at + 1) % NCCL_MET;
    *first = n->met[at] != hash;
    if (!*first)
        return SHERD_OK;
    SHERD_TRY(nccl_come_together(n));
    n->met[at] = hash; /* where none is free, another kind is forgotten */
    return SHERD_OK;
}

/* A call that finds the GPU's queue full holds the host up until there is room, which may be never. */
static int leave_room(struct nccl *n, cudaStream_t stream)
{
    if (n->calls % UNDER_WAY || cuda_device(n->owner->dev)->capture)
        return SHERD_OK;
    cudaEvent_t mark = n->marks[n->calls / UNDER_WAY % ARRAY_LEN(n->marks)];
    SHERD_TRY(cuda_wait_event(cuda_device(n->owner->dev), mark));
    return CUDA_CHECK(cudaEventRecord(mark, stream));
}

/* NCCL makes its GPU current itself, and afterwards what was before: that must be a GPU of this rank, but
 * need not be set each time. */
static cudaStream_t enter(const struct sherd_queue *queue)
{
    int now;
    if (cudaGetDevice(&now) == cudaSuccess && now == cuda_device(queue->dev)->index)
        return cuda_queue(queue)->stream;
    return cuda_enter(queue);
}

static int run(struct sherd_comm *comm, struct sherd_queue *queue, const struct call *call, size_t size)
{
    struct nccl *n = comm->impl;
    if (call->elems == 0)
        return SHERD_OK;
    SHERD_TRY(nccl_check_exposed(n, names[call->kind], call->out, call->in, call->elems * size));
    cudaStream_t stream = enter(queue);
    int first, st = meet(n, call, &first);
    if (st == SHERD_OK)
        st = leave_room(n, stream);
    if (st != SHERD_OK)
        return nccl_give_up(n, st);
    if (comm->delay_us)
        cuda_idle(stream, comm->delay_us);
    size_t before = first ? cuda_room(comm->dev) : 0;
    pthread_mutex_lock(&n->lock);
    ncclResult_t r = n->comm ? enqueue(n->comm, call, stream) : NCCL_GONE;
    pthread_mutex_unlock(&n->lock);
    if (first)
        cuda_took(comm->dev, before);
    n->last = names[call->kind];
    n->calls++;
    if (r == ncclSuccess)
        return SHERD_OK;
    return r == NCCL_GONE ? nccl_ended(n) : nccl_give_up(n, nccl_failed(r, n->last));
}

static int nccl_all_gather(struct sherd_comm *comm, struct sherd_queue *queue, void *out, const void *in,
    int64_t elems, enum sherd_dtype type)
{
    struct call c = { SHERD_ALL_GATHER, out, in, (size_t)elems, ncclFloat32, 0, NULL };
    SHERD_TRY(map_type(&c.type, type));
    return run(comm, queue, &c, sherd_dtype_bytes(type));
}

static int nccl_reduce_scatter(struct sherd_comm *comm, struct sherd_queue *queue, void *out, void *in,
    int64_t elems, enum sherd_dtype type)
{
    const struct nccl *n = comm->impl;
    size_t size = sherd_dtype_bytes(type);
    struct call c = { SHERD_REDUCE_SCATTER, out, in, (size_t)elems, ncclFloat32, ncclSum, NULL };
    SHERD_TRY(map_type(&c.type, type));
    if (nccl_lands(comm, elems, type) && nccl_is_exposed(n, in, size * c.elems * (size_t)comm->world.size))
        c.landing = n->landing;
    SHERD_TRY(run(comm, queue, &c, size));
    return c.landing ? cuda_sum_parts(queue, out, c.landing, elems, comm->world.size, type) : SHERD_OK;
}

static int nccl_all_reduce(struct sherd_comm *comm, struct sherd_queue *queue, void *out, const void *in,
    int64_t elems, enum sherd_dtype type, enum sherd_reduce reduce)
{
    struct call c = { SHERD_ALL_REDUCE, out, in, (size_t)elems, ncclFloat32,
        reduce == SHERD_REDUCE_MAX ? ncclMax : ncclSum, NULL };
    SHERD_TRY(map_type(&c.type, type));
    return run(comm, queue, &c, sherd_dtype_bytes(type));
}

static int nccl_broadcast(
    struct sherd_comm *comm, struct sherd_queue *queue, void *out, const void *in, size_t bytes, int root)
{
    struct call c = { SHERD_BROADCAST, out, in, bytes, ncclUint8, root, NULL };
    return run(comm, queue, &c, 1);
}

const struct comm_ops comm_nccl = {
    .kind = "nccl",
    .built = COMM_BUILT,
    .all_gather = nccl_all_gather,
    .reduce_scatter = nccl_reduce_scatter,
    .all_reduce = nccl_all_reduce,
    .broadcast = nccl_broadcast,
    .dup = nccl_dup,
    .abort = nccl_abort,
    .close = nccl_close,
    .make_id = nccl_make_id,
    .open = nccl_open,
    .expose = nccl_expose,
    .conceal = nccl_conceal,
    .landing = nccl_landing,
    .lands = nccl_lands,
};
