/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Collectives as work of a queue.
 */
#include "comm/collect.h"

#include "base/status.h"
#include "device/ops.h"

/* A collective in a queue. */
struct job {
    struct collect *collect;
    struct block_call call; /* numbered when it runs */
    char *out;
    const char *in;
};

static int run_job(void *args)
{
    const struct job *job = args;
    struct collect *c = job->collect;
    struct block_call call = job->call;
    if (atomic_exchange(&c->busy, 1))
        return SHERD_FAIL(
            SHERD_EINVAL, "one communicator is used from two queues at once; give each queue its own");
    call.seq = ++c->seq;
    int st = c->run(c, &call, job->out, job->in);
    atomic_store(&c->busy, 0);
    return st;
}

static int submit(struct sherd_queue *queue, const struct sherd_comm *comm, const struct block_call *call,
    void *out, const void *in)
{
    struct job job = { .collect = comm->impl, .call = *call, .out = out, .in = in };
    job.call.place = comm->here;
    return queue->dev->ops->submit(queue, run_job, &job, sizeof(job));
}

int collect_all_gather(struct sherd_comm *comm, struct sherd_queue *queue, void *out, const void *in,
    int64_t elems, enum sherd_dtype type)
{
    return submit(
        queue, comm, &(struct block_call){ .kind = SHERD_ALL_GATHER, .type = type, .elems = elems }, out, in);
}

int collect_reduce_scatter(struct sherd_comm *comm, struct sherd_queue *queue, void *out, void *in,
    int64_t elems, enum sherd_dtype type)
{
    return submit(queue, comm,
        &(struct block_call){
            .kind = SHERD_REDUCE_SCATTER, .type = type, .detail = SHERD_REDUCE_SUM, .elems = elems },
        out, in);
}

int collect_all_reduce(struct sherd_comm *comm, struct sherd_queue *queue, void *out, const void *in,
    int64_t elems, enum sherd_dtype type, enum sherd_reduce how)
{
    return submit(queue, comm,
        &(struct block_call){ .kind = SHERD_ALL_REDUCE, .type = type, .detail = how, .elems = elems }, out,
        in);
}

static struct block_call cast(size_t bytes, int root)
{
    return (struct block_call){
        .kind = SHERD_BROADCAST, .type = SHERD_U8, .detail = (uint32_t)root, .elems = (int64_t)bytes
    };
}

int collect_broadcast(
    struct sherd_comm *comm, struct sherd_queue *queue, void *out, const void *in, size_t bytes, int root)
{
    struct block_call call = cast(bytes, root);
    return submit(queue, comm, &call, out, in);
}

int collect_tell(struct collect *collect, void *buf, size_t bytes, int root)
{
    return run_job(&(struct job){ .collect = collect, .call = cast(bytes, root), .out = buf, .in = buf });
}
