/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Collectives over shared memory (see comm/block.h for the rounds): a rank puts what others need into its
 * staging half, and takes what it needs out of theirs. Arrays of any length go through in pieces; a piece of
 * the next round is written while others still read this one. Sums are in rank order, so their bits depend
 * neither on the pieces nor on who came first.
 */
#include "comm/shm.h"

#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/status.h"
#include "comm/block.h"
#include "comm/collect.h"
#include "comm/meet.h"
#include "comm/reduce.h"
#include "device/ops.h"

/* Below this, one round in which every rank sums everything beats two rounds that share the work. */
#define SMALL_BYTES 8192

struct shm {
    struct collect collect; /* first, see comm/collect.h */
    struct block_channel channel;
    int control; /* it is a control channel, or its own was taken */
};

static void copy(void *dst, const void *src, size_t bytes)
{
    if (dst != src && bytes > 0)
        memcpy(dst, src, bytes);
}

static int gather(struct block_channel *channel, const struct block_call *call, char *out, const char *in)
{
    size_t whole = (size_t)call->elems * sherd_dtype_bytes((enum sherd_dtype)call->type), at = 0;
    do {
        size_t bytes = MIN(whole - at, BLOCK_HALF_BYTES);
        uint32_t round = channel->round;
        copy(block_half(channel, channel->rank, round), in + at, bytes);
        copy(out + (size_t)channel->rank * whole + at, in + at, bytes);
        SHERD_TRY(block_round(channel, call));
        for (int i = 1; i < channel->size; i++) {
            /* Each begins with its neighbour, so that they do not all read the same. */
            int r = (channel->rank + i) % channel->size;
            copy(out + (size_t)r * whole + at, block_half(channel, r, round), bytes);
        }
        at += bytes;
    } while (at < whole);
    return SHERD_OK;
}

/* The staging half holds one piece for every rank, `bytes` each. */
static int scatter(
    struct block_channel *channel, const struct block_call *call, char *out, const char *in, const void **src)
{
    enum sherd_dtype type = (enum sherd_dtype)call->type;
    size_t each = sherd_dtype_bytes(type), whole = (size_t)call->elems * each, at = 0;
    size_t most = BLOCK_HALF_BYTES / (size_t)channel->size / 64 * 64;
    do {
        size_t bytes = MIN(whole - at, most);
        uint32_t round = channel->round;
        char *half = block_half(channel, channel->rank, round);
        for (int r = 0; r < channel->size; r++) {
            if (r != channel->rank)
                copy(half + (size_t)r * bytes, in + (size_t)r * whole + at, bytes);
        }
        SHERD_TRY(block_round(channel, call));
        for (int r = 0; r < channel->size; r++)
            src[r] = (char *)block_half(channel, r, round) + (size_t)channel->rank * bytes;
        src[channel->rank] = in + (size_t)channel->rank * whole + at;
        reduce_ranks(out + at, src, channel->size, (int64_t)(bytes / each), type, SHERD_REDUCE_SUM);
        at += bytes;
    } while (at < whole);
    return SHERD_OK;
}

/* out[n] is the sum: every rank sums its share of the elements, then all collect the shares. */
static int reduce_shared(struct block_channel *channel, const struct block_call *call, char *out,
    const char *in, int64_t n, const void **src)
{
    enum sherd_dtype type = (enum sherd_dtype)call->type;
    size_t each = sherd_dtype_bytes(type);
    int64_t share = round_up((n + channel->size - 1) / channel->size, 64);
    uint32_t round = channel->round;
    copy(block_half(channel, channel->rank, round), in, (size_t)n * each);
    SHERD_TRY(block_round(channel, call));

    int64_t from = MIN(n, share * channel->rank), own = MIN(n, from + share) - from;
    for (int r = 0; r < channel->size; r++)
        src[r] = (char *)block_half(channel, r, round) + (size_t)from * each;
    reduce_ranks(block_half(channel, channel->rank, round + 1), src, channel->size, own, type,
        (enum sherd_reduce)call->detail);
    SHERD_TRY(block_round(channel, call));
    for (int r = 0; r < channel->size; r++) {
        from = MIN(n, share * r);
        own = MIN(n, from + share) - from;
        copy(out + (size_t)from * each, block_half(channel, r, round + 1), (size_t)own * each);
    }
    return SHERD_OK;
}

static int reduce_small(struct block_channel *channel, const struct block_call *call, char *out,
    const char *in, int64_t n, const void **src)
{
    enum sherd_dtype type = (enum sherd_dtype)call->type;
    uint32_t round = channel->round;
    copy(block_half(channel, channel->rank, round), in, (size_t)n * sherd_dtype_bytes(type));
    SHERD_TRY(block_round(channel, call));
    for (int r = 0; r < channel->size; r++)
        src[r] = block_half(channel, r, round);
    reduce_ranks(out, src, channel->size, n, type, (enum sherd_reduce)call->detail);
    return SHERD_OK;
}

static int reduce(
    struct block_channel *channel, const struct block_call *call, char *out, const char *in, const void **src)
{
    size_t each = sherd_dtype_bytes((enum sherd_dtype)call->type);
    int64_t most = (int64_t)(BLOCK_HALF_BYTES / each), at = 0;
    do {
        int64_t n = MIN(call->elems - at, most);
        size_t from = (size_t)at * each;
        if ((size_t)n * each <= SMALL_BYTES)
            SHERD_TRY(reduce_small(channel, call, out + from, in + from, n, src));
        else
            SHERD_TRY(reduce_shared(channel, call, out + from, in + from, n, src));
        at += n;
    } while (at < call->elems);
    return SHERD_OK;
}

static int cast_out(struct block_channel *channel, const struct block_call *call, char *out, const char *in)
{
    size_t whole = (size_t)call->elems, at = 0;
    int root = (int)call->detail;
    do {
        size_t bytes = MIN(whole - at, BLOCK_HALF_BYTES);
        void *half = block_half(channel, root, channel->round);
        if (channel->rank == root)
            copy(half, in + at, bytes);
        SHERD_TRY(block_round(channel, call));
        copy(out + at, channel->rank == root ? in + at : half, bytes);
        at += bytes;
    } while (at < whole);
    return SHERD_OK;
}

static int run(struct collect *collect, struct block_call *call, char *out, const char *in)
{
    struct block_channel *channel = &((struct shm *)collect)->channel;
    const void *src[BLOCK_RANKS];
    SHERD_TRY(block_check(channel));
    switch (call->kind) {
    case SHERD_ALL_GATHER:
        return gather(channel, call, out, in);
    case SHERD_REDUCE_SCATTER:
        return scatter(channel, call, out, in, src);
    case SHERD_ALL_REDUCE:
        return reduce(channel, call, out, in, src);
    default:
        return cast_out(channel, call, out, in);
    }
}

/* One end of a channel for comm; the block gets one more user. */
static int join(struct sherd_comm *comm, struct block *block, int channel)
{
    struct shm *shm = mem_zalloc(1, sizeof(*shm));
    if (!shm)
        return SHERD_ENOMEM;
    shm->collect.run = run;
    block_open(&shm->channel, block_hold(block), channel, comm->world.rank, comm->timeout);
    comm->impl = shm;
    return SHERD_OK;
}

static int shm_control(struct sherd_comm *comm, struct sherd_comm *twin)
{
    struct shm *shm = comm->impl;
    SHERD_TRY(join(twin, shm->channel.block, shm->channel.index + 1));
    shm->control = ((struct shm *)twin->impl)->control = 1;
    return SHERD_OK;
}

static int shm_dup(struct sherd_comm *comm, struct sherd_comm *twin)
{
    struct shm *shm = comm->impl;
    struct block *block = shm->channel.block;
    int32_t index = comm->world.rank == 0 ? block_reserve(block) : 0;
    SHERD_TRY(collect_tell(&shm->collect, &index, sizeof(index), 0));
    if (index < 0)
        return SHERD_FAIL(SHERD_EUNSUPPORTED, "no more than %d communicators over the same ranks; close one",
            BLOCK_CHANNELS / 2);
    return join(twin, block, index);
}

static void shm_abort(struct sherd_comm *comm, const char *reason)
{
    block_abort(((struct shm *)comm->impl)->channel.block, comm->world.rank, reason);
}

static int shm_check(struct sherd_comm *comm)
{
    return block_check_alive(&((struct shm *)comm->impl)->channel);
}

static int shm_heard(struct sherd_comm *comm)
{
    return block_check(&((struct shm *)comm->impl)->channel);
}

static struct board *shm_board(struct sherd_comm *comm)
{
    return block_board(((struct shm *)comm->impl)->channel.block);
}

static uint64_t shm_pulse(struct sherd_comm *comm)
{
    return board_pulse(shm_board(comm), comm->world.rank);
}

static const char *shm_tell(struct sherd_comm *comm, char *buf, size_t bytes)
{
    return board_tell_all(shm_board(comm), buf, bytes);
}

static void shm_close(struct sherd_comm *comm)
{
    struct shm *shm = comm->impl;
    if (!shm->control) { /* which would be kept for good: channels are given out and taken back in pairs */
        struct block_channel control;
        block_open(&control, shm->channel.block, shm->channel.index + 1, comm->world.rank, comm->timeout);
        block_close(&control);
    }
    block_close(&shm->channel);
    block_drop(shm->channel.block);
    mem_free(shm);
}

const struct comm_ops comm_shm = {
    .kind = "shm",
    .ordered = 1,
    .all_gather = collect_all_gather,
    .reduce_scatter = collect_reduce_scatter,
    .all_reduce = collect_all_reduce,
    .broadcast = collect_broadcast,
    .control = shm_control,
    .dup = shm_dup,
    .abort = shm_abort,
    .close = shm_close,
    .check = shm_check,
    .heard = shm_heard,
    .board = shm_board,
    .pulse = shm_pulse,
    .tell = shm_tell,
};

static int check_size(int size)
{
    if (size > BLOCK_RANKS)
        return SHERD_FAIL(SHERD_EUNSUPPORTED, "%d CPU ranks on one host, %d are allowed", size, BLOCK_RANKS);
    return SHERD_OK;
}

static int enter(struct meet *meet)
{
    struct block **block = meet->ctx;
    SHERD_TRY(block_attach(block, meet->fd, meet->size));
    block_enter(*block, meet->fd, meet->rank);
    meet->fd = -1; /* the block's now */
    return SHERD_OK;
}

int shm_open_ranks(struct sherd_comm *comm)
{
    const struct sherd_world *world = &comm->world;
    struct block *block = NULL;
    struct meet meet = { .job = world->job,
        .rank = world->rank,
        .size = world->size,
        .timeout = comm->timeout,
        .fd = -1,
        .enter = enter,
        .ctx = &block };
    SHERD_TRY(check_size(world->size));
    if (world->local_size < world->size)
        return SHERD_FAIL(SHERD_EUNSUPPORTED, "%d of %d ranks are on this host: not all can share its memory",
            world->local_size, world->size);
    if (world->rank == 0) {
        SHERD_TRY(block_create(&block, &meet.fd, world->size));
        block_enter(block, meet.fd, 0); /* first: who enters can then see that rank 0 has died */
    }
    int st = meet_host(&meet);
    if (st == SHERD_OK)
        st = join(comm, block, 0);
    if (st != SHERD_OK && block)
        block_abort(block, world->rank, sherd_error());
    if (world->rank != 0 && meet.fd >= 0)
        close(meet.fd);
    block_drop(block);
    return st;
}

int shm_open_threads(struct sherd_comm *const *comms, int size)
{
    struct block *block = NULL;
    int st = SHERD_OK, r = 0;
    SHERD_TRY(check_size(size));
    SHERD_TRY(block_create(&block, NULL, size));
    for (; r < size && st == SHERD_OK; r++)
        st = join(comms[r], block, 0);
    block_drop(block);
    return st;
}
