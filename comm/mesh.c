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

/* Up to here everybody sends everything to everybody and sums it, which is one exchange and not two. */
#define SMALL_BYTES 8192

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

static int run(struct collect *collect, struct block_call *call, char *out, const char *in)
{
    struct mesh *mesh = (struct mesh *)collect;
    switch (call->kind) {
    case SHERD_ALL_GATHER:
        return gather(mesh, call, out, in);
    case SHERD_REDUCE_SCATTER:
        return scatter(mesh, call, out, in);
    case SHERD_ALL_REDUCE:
        return reduce(mesh, call, out, in);
    default:
        return cast_out(mesh, call, out, in);
    }
}

int mesh_init(struct mesh *mesh)
{
    size_t n = (size_t)mesh->size;
    mesh->collect.run = run;
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
