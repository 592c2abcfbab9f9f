/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Collectives of ranks that can only send to each other.
 */
#include "comm/mesh.h"

#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "comm/reduce.h"
#include "device/ops.h"

/* Up to here everybody sends everything to everybody and sums it, which is one exchange and not two. */
#define SMALL_BYTES 8192

/* A collective in a queue. */
struct job {
    struct mesh *mesh;
    enum sherd_collective kind;
    enum sherd_dtype type;
    uint32_t detail; /* enum sherd_reduce, or the root */
    int64_t elems;
    char *out;
    const char *in;
    struct board_place place;
};

int mesh_init(struct mesh *mesh)
{
    size_t n = (size_t)mesh->size;
    mesh->parts = mem_zalloc(n, sizeof(*mesh->parts));
    mesh->src = mem_zalloc(n, sizeof(*mesh->src));
    mesh->scratch = mem_aligned(64, n * MESH_PIECE_BYTES);
    return mesh->parts && mesh->src && mesh->scratch ? SHERD_OK : SHERD_ENOMEM;
}

void mesh_finish(struct mesh *mesh)
{
    mem_free(mesh->parts);
    mem_free(mesh->src);
    mem_free(mesh->scratch);
}

int mesh_differ(
    const struct mesh *mesh, const struct block_call *mine, int other, const struct block_call *theirs)
{
    char a[256], b[256];
    return SHERD_FAIL(SHERD_ECOMM, "ranks call different collectives: rank %d %s, rank %d %s", mesh->rank,
        block_call_text(mine, a, sizeof(a)), other, block_call_text(theirs, b, sizeof(b)));
}

static void copy(void *dst, const void *src, size_t bytes)
{
    if (dst != src && bytes > 0)
        memcpy(dst, src, bytes);
}

static int exchange(struct mesh *mesh, struct block_call *call)
{
    mesh->parts[mesh->rank] = (struct mesh_part){ 0 };
    int st = mesh->exchange(mesh, call, mesh->parts);
    call->unused++;
    return st;
}

static char *scratch_of(const struct mesh *mesh, int r)
{
    return mesh->scratch + (size_t)r * MESH_PIECE_BYTES;
}

static int gather(struct mesh *mesh, struct block_call *call, char *out, const char *in)
{
    size_t bytes = (size_t)call->elems * sherd_dtype_bytes((enum sherd_dtype)call->type);
    for (int r = 0; r < mesh->size; r++)
        mesh->parts[r] = (struct mesh_part){ in, bytes, out + (size_t)r * bytes, bytes };
    copy(out + (size_t)mesh->rank * bytes, in, bytes);
    return exchange(mesh, call);
}

/* Sums what has come to scratch with `own`, `bytes` long. */
static void add_up(
    struct mesh *mesh, const struct block_call *call, char *out, const char *own, size_t bytes, int how)
{
    enum sherd_dtype type = (enum sherd_dtype)call->type;
    for (int r = 0; r < mesh->size; r++)
        mesh->src[r] = r == mesh->rank ? own : scratch_of(mesh, r);
    reduce_ranks(
        out, mesh->src, mesh->size, (int64_t)(bytes / sherd_dtype_bytes(type)), type, (enum sherd_reduce)how);
}

static int scatter(struct mesh *mesh, struct block_call *call, char *out, const char *in)
{
    size_t whole = (size_t)call->elems * sherd_dtype_bytes((enum sherd_dtype)call->type), at = 0;
    do {
        size_t bytes = MIN(whole - at, MESH_PIECE_BYTES);
        for (int r = 0; r < mesh->size; r++)
            mesh->parts[r] =
                (struct mesh_part){ in + (size_t)r * whole + at, bytes, scratch_of(mesh, r), bytes };
        SHERD_TRY(exchange(mesh, call));
        add_up(mesh, call, out + at, in + (size_t)mesh->rank * whole + at, bytes, SHERD_REDUCE_SUM);
        at += bytes;
    } while (at < whole);
    return SHERD_OK;
}

static int reduce_small(struct mesh *mesh, struct block_call *call, char *out, const char *in, size_t bytes)
{
    for (int r = 0; r < mesh->size; r++)
        mesh->parts[r] = (struct mesh_part){ in, bytes, scratch_of(mesh, r), bytes };
    SHERD_TRY(exchange(mesh, call));
    add_up(mesh, call, out, in, bytes, (int)call->detail);
    return SHERD_OK;
}

/* Bytes [from, from + share of r) of a piece are for rank r to sum. */
static size_t share_of(size_t bytes, size_t share, int r)
{
    size_t from = MIN(bytes, share * (size_t)r);
    return MIN(bytes - from, share);
}

/* Every rank sums its share, then all collect the shares. out may be in: what is sent has left before it is
 * overwritten. */
static int reduce_shared(struct mesh *mesh, struct block_call *call, char *out, const char *in, size_t bytes)
{
    size_t share = (size_t)round_up((int64_t)((bytes + (size_t)mesh->size - 1) / (size_t)mesh->size), 64);
    size_t own = share_of(bytes, share, mesh->rank), at = MIN(bytes, share * (size_t)mesh->rank);
    for (int r = 0; r < mesh->size; r++)
        mesh->parts[r] = (struct mesh_part){ in + MIN(bytes, share * (size_t)r), share_of(bytes, share, r),
            scratch_of(mesh, r), own };
    SHERD_TRY(exchange(mesh, call));
    add_up(mesh, call, out + at, in + at, own, (int)call->detail);
    for (int r = 0; r < mesh->size; r++)
        mesh->parts[r] = (struct mesh_part){ out + at, own, out + MIN(bytes, share * (size_t)r),
            share_of(bytes, share, r) };
    return exchange(mesh, call);
}

static int reduce(struct mesh *mesh, struct block_call *call, char *out, const char *in)
{
    size_t whole = (size_t)call->elems * sherd_dtype_bytes((enum sherd_dtype)call->type), at = 0;
    do {
        size_t bytes = MIN(whole - at, MESH_PIECE_BYTES * (size_t)mesh->size);
        int small = bytes <= SMALL_BYTES;
        SHERD_TRY((small ? reduce_small : reduce_shared)(mesh, call, out + at, in + at, bytes));
        at += bytes;
    } while (at < whole);
    return SHERD_OK;
}

static int cast_out(struct mesh *mesh, struct block_call *call, char *out, const char *in)
{
    size_t bytes = (size_t)call->elems;
    int root = (int)call->detail;
    for (int r = 0; r < mesh->size; r++)
        mesh->parts[r] = (struct mesh_part){ in, mesh->rank == root ? bytes : 0, out, r == root ? bytes : 0 };
    if (mesh->rank == root)
        copy(out, in, bytes);
    return exchange(mesh, call);
}

static int run_job(void *args)
{
    const struct job *job = args;
    struct mesh *mesh = job->mesh;
    if (atomic_exchange(&mesh->busy, 1))
        return SHERD_FAIL(SHERD_EINVAL,
            "rank %d: one communicator is used from two queues at once; give each queue its own", mesh->rank);
    struct block_call call = {
        .elems = job->elems, .seq = ++mesh->seq, .kind = job->kind, .type = job->type, .detail = job->detail
    };
    int st;
    switch (job->kind) {
    case SHERD_ALL_GATHER:
        st = gather(mesh, &call, job->out, job->in);
        break;
    case SHERD_REDUCE_SCATTER:
        st = scatter(mesh, &call, job->out, job->in);
        break;
    case SHERD_ALL_REDUCE:
        st = reduce(mesh, &call, job->out, job->in);
        break;
    default:
        st = cast_out(mesh, &call, job->out, job->in);
        break;
    }
    atomic_store(&mesh->busy, 0);
    return st;
}

static int submit(struct sherd_queue *queue, const struct sherd_comm *comm, const struct job *what)
{
    struct job job = *what;
    job.mesh = comm->impl;
    job.place = comm->here;
    return queue->dev->ops->submit(queue, run_job, &job, sizeof(job));
}

int mesh_all_gather(struct sherd_comm *comm, struct sherd_queue *queue, void *out, const void *in,
    int64_t elems, enum sherd_dtype type)
{
    return submit(queue, comm,
        &(struct job){ .kind = SHERD_ALL_GATHER, .type = type, .elems = elems, .out = out, .in = in });
}

int mesh_reduce_scatter(struct sherd_comm *comm, struct sherd_queue *queue, void *out, void *in,
    int64_t elems, enum sherd_dtype type)
{
    return submit(queue, comm,
        &(struct job){ .kind = SHERD_REDUCE_SCATTER,
            .type = type,
            .detail = SHERD_REDUCE_SUM,
            .elems = elems,
            .out = out,
            .in = in });
}

int mesh_all_reduce(struct sherd_comm *comm, struct sherd_queue *queue, void *out, const void *in,
    int64_t elems, enum sherd_dtype type, enum sherd_reduce how)
{
    return submit(queue, comm,
        &(struct job){
            .kind = SHERD_ALL_REDUCE, .type = type, .detail = how, .elems = elems, .out = out, .in = in });
}

int mesh_broadcast(
    struct sherd_comm *comm, struct sherd_queue *queue, void *out, const void *in, size_t bytes, int root)
{
    return submit(queue, comm,
        &(struct job){ .kind = SHERD_BROADCAST,
            .type = SHERD_U8,
            .detail = (uint32_t)root,
            .elems = (int64_t)bytes,
            .out = out,
            .in = in });
}

int mesh_tell(struct mesh *mesh, void *buf, size_t bytes, int root)
{
    return run_job(&(struct job){ .mesh = mesh,
        .kind = SHERD_BROADCAST,
        .type = SHERD_U8,
        .detail = (uint32_t)root,
        .elems = (int64_t)bytes,
        .out = buf,
        .in = buf });
}
