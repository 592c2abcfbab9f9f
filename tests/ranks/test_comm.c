/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What every communicator must do: each collective, over worlds, types and lengths, bit for bit as a loop
 * over the ranks does it; two communicators at once; host helpers; counters.
 */
#include "tests/t.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "base/half.h"
#include "base/mem.h"
#include "comm/block.h"
#include "comm/ops.h"

/* What a rank has repeats after so many elements, a number that no piece or part is a multiple of: an element
 * that went astray still shows, and most of a long array need not be computed but copied. */
#define PERIOD INT64_C(4093)

#define GUARD 64
#define GUARD_BYTE 0xa5

static const enum sherd_dtype types[] = { SHERD_F32, SHERD_BF16, SHERD_F64, SHERD_I32, SHERD_I64 };

/* One rank's place in a test. */
struct place {
    int rank, size;
    struct sherd_comm *comm;
    struct sherd_queue *queue;
};

/* ---- the loop that is compared with ---- */

/* Very large and very small together, so that the order of a sum shows. */
static double value(int rank, int64_t i, uint64_t salt)
{
    uint64_t seed = salt * 64 + (uint64_t)rank;
    uint64_t bits = t_bits(seed, (uint64_t)i);
    int64_t high = (int64_t)(bits >> 40) - (1 << 23);
    return (double)high * (bits & 1 ? 1.0 : 1.0 / 4096) * (bits & 2 ? 1.0 : 1.0 / 65536);
}

static void put(void *out, int64_t at, enum sherd_dtype type, int rank, int64_t i, uint64_t salt)
{
    uint64_t seed = salt * 64 + (uint64_t)rank;
    switch (type) {
    case SHERD_F32:
        ((float *)out)[at] = (float)value(rank, i, salt);
        break;
    case SHERD_BF16:
        ((bf16 *)out)[at] = bf16_from_float((float)value(rank, i, salt));
        break;
    case SHERD_F64:
        ((double *)out)[at] = value(rank, i, salt);
        break;
    case SHERD_I32:
        ((int32_t *)out)[at] = (int32_t)t_bits(seed, (uint64_t)i);
        break;
    case SHERD_I64:
        ((int64_t *)out)[at] = (int64_t)t_bits(seed, (uint64_t)i);
        break;
    default:
        ((uint8_t *)out)[at] = (uint8_t)t_bits(seed, (uint64_t)i);
        break;
    }
}

/* Fills [PERIOD, n) from the elements before. */
static void repeat(char *p, int64_t n, size_t each)
{
    for (int64_t at = PERIOD; at < n; at += PERIOD)
        memcpy(p + (size_t)at * each, p, (size_t)MIN(PERIOD, n - at) * each);
}

/* What a rank has at 0..n-1. */
static void put_all(char *out, int64_t n, enum sherd_dtype type, int rank, uint64_t salt)
{
    for (int64_t i = 0; i < MIN(n, PERIOD); i++)
        put(out, i, type, rank, i, salt);
    repeat(out, n, sherd_dtype_bytes(type));
}

/* x = x op (what rank has at i), for one element at place 0 of x; half types are held in float. */
union number {
    float f32;
    double f64;
    int32_t i32;
    int64_t i64;
};

static void take_in(union number *x, int first, enum sherd_dtype type, int rank, int64_t i, uint64_t salt,
    enum sherd_reduce how)
{
    union number y;
    if (type == SHERD_BF16) {
        bf16 h;
        put(&h, 0, type, rank, i, salt);
        y.f32 = bf16_to_float(h);
    } else {
        put(&y, 0, type, rank, i, salt);
    }
    if (first)
        *x = y;
    else if (type == SHERD_F32 || type == SHERD_BF16)
        x->f32 = how == SHERD_REDUCE_MAX ? fmaxf(x->f32, y.f32) : x->f32 + y.f32;
    else if (type == SHERD_F64)
        x->f64 = how == SHERD_REDUCE_MAX ? fmax(x->f64, y.f64) : x->f64 + y.f64;
    else if (type == SHERD_I32)
        x->i32 = how == SHERD_REDUCE_MAX ? MAX(x->i32, y.i32) : (int32_t)((uint32_t)x->i32 + (uint32_t)y.i32);
    else
        x->i64 = how == SHERD_REDUCE_MAX ? MAX(x->i64, y.i64) : (int64_t)((uint64_t)x->i64 + (uint64_t)y.i64);
}

/* out[0..n) = reduction over all ranks of their elements from.. */
static void reduce_loop(
    void *out, enum sherd_dtype type, int size, int64_t from, int64_t n, uint64_t salt, enum sherd_reduce how)
{
    size_t each = sherd_dtype_bytes(type);
    for (int64_t i = 0; i < MIN(n, PERIOD); i++) {
        union number x;
        for (int r = 0; r < size; r++)
            take_in(&x, r == 0, type, r, (from + i) % PERIOD, salt, how);
        bf16 h = type == SHERD_BF16 ? bf16_from_float(x.f32) : 0;
        memcpy((char *)out + (size_t)i * each, type == SHERD_BF16 ? (void *)&h : (void *)&x, each);
    }
    repeat(out, n, each);
}

/* ---- buffers with guards ---- */

static char *buffer(int64_t elems, enum sherd_dtype type)
{
    size_t bytes = (size_t)elems * sherd_dtype_bytes(type);
    char *p = malloc(bytes + 2 * GUARD);
    memset(p, GUARD_BYTE, bytes + 2 * GUARD);
    return p + GUARD;
}

/* Nothing was written outside. */
static void release(char *p, int64_t elems, enum sherd_dtype type)
{
    size_t bytes = (size_t)elems * sherd_dtype_bytes(type);
    unsigned char guard[GUARD];
    memset(guard, GUARD_BYTE, GUARD);
    T_BITS(p - GUARD, guard, GUARD);
    T_BITS(p + bytes, guard, GUARD);
    free(p - GUARD);
}

static char *filled(int64_t elems, enum sherd_dtype type, int rank, uint64_t salt)
{
    char *p = buffer(elems, type);
    put_all(p, elems, type, rank, salt);
    return p;
}

/* ---- each collective once ---- */

static void try_gather(struct place *at, int64_t n, enum sherd_dtype type, int in_place, uint64_t salt)
{
    size_t bytes = (size_t)n * sherd_dtype_bytes(type);
    char *out = buffer(n * at->size, type), *want = buffer(n * at->size, type);
    char *mine = filled(n, type, at->rank, salt), *place = out + (size_t)at->rank * bytes;
    if (in_place)
        memcpy(place, mine, bytes);
    T_OK(sherd_all_gather(at->comm, at->queue, out, in_place ? place : mine, n, type));
    T_OK(sherd_queue_sync(at->queue));
    for (int r = 0; r < at->size; r++)
        put_all(want + (size_t)r * bytes, n, type, r, salt);
    T_BITS(out, want, bytes * (size_t)at->size);
    release(out, n * at->size, type);
    release(want, n * at->size, type);
    release(mine, n, type);
}

static void try_scatter(struct place *at, int64_t n, enum sherd_dtype type, int in_place, uint64_t salt)
{
    size_t bytes = (size_t)n * sherd_dtype_bytes(type);
    char *in = filled(n * at->size, type, at->rank, salt), *out = buffer(n, type), *want = buffer(n, type);
    char *place = in + (size_t)at->rank * bytes;
    T_OK(sherd_reduce_scatter(at->comm, at->queue, in_place ? place : out, in, n, type));
    T_OK(sherd_queue_sync(at->queue));
    reduce_loop(want, type, at->size, at->rank * n, n, salt, SHERD_REDUCE_SUM);
    T_BITS(in_place ? place : out, want, bytes);
    release(in, n * at->size, type);
    release(out, n, type);
    release(want, n, type);
}

static void try_reduce(
    struct place *at, int64_t n, enum sherd_dtype type, enum sherd_reduce how, uint64_t salt)
{
    char *buf = filled(n, type, at->rank, salt), *want = buffer(n, type);
    T_OK(sherd_all_reduce(at->comm, at->queue, buf, buf, n, type, how));
    T_OK(sherd_queue_sync(at->queue));
    reduce_loop(want, type, at->size, 0, n, salt, how);
    T_BITS(buf, want, (size_t)n * sherd_dtype_bytes(type));
    char *in = filled(n, type, at->rank, salt), *kept = filled(n, type, at->rank, salt);
    T_OK(sherd_all_reduce(at->comm, at->queue, buf, in, n, type, (enum sherd_reduce)how));
    T_OK(sherd_queue_sync(at->queue));
    T_BITS(buf, want, (size_t)n * sherd_dtype_bytes(type));
    T_BITS(in, kept, (size_t)n * sherd_dtype_bytes(type));
    release(in, n, type);
    release(kept, n, type);
    release(buf, n, type);
    release(want, n, type);
}

static void try_broadcast(struct place *at, int64_t bytes, int root, uint64_t salt)
{
    char *buf = filled(bytes, SHERD_U8, at->rank, salt), *want = filled(bytes, SHERD_U8, root, salt);
    T_OK(sherd_broadcast(at->comm, at->queue, buf, buf, (size_t)bytes, root));
    T_OK(sherd_queue_sync(at->queue));
    T_BITS(buf, want, (size_t)bytes);
    char *in = filled(bytes, SHERD_U8, at->rank, salt);
    memset(buf, 0, (size_t)bytes);
    T_OK(sherd_broadcast(at->comm, at->queue, buf, at->rank == root ? in : NULL, (size_t)bytes, root));
    T_OK(sherd_queue_sync(at->queue));
    T_BITS(buf, want, (size_t)bytes);
    release(in, bytes, SHERD_U8);
    release(buf, bytes, SHERD_U8);
    release(want, bytes, SHERD_U8);
}

/* Lengths around the pieces that a collective goes through in: `piece` in bytes. */
static void lengths(int64_t out[8], size_t piece, enum sherd_dtype type)
{
    int64_t n = (int64_t)(piece / sherd_dtype_bytes(type));
    int64_t all[8] = { 0, 1, 7, 1000, n - 1, n, n + 1, 3 * n + 5 };
    memcpy(out, all, sizeof(all));
}

/* Short ones are always tried; of long ones every form meets every length and type, over the worlds. */
static int is_turn(int64_t n, int turn, int form)
{
    return n <= 1000 || turn % 3 == form;
}

/* ctx: how many of the types are tried with long arrays. */
static void all_collectives(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    struct place at = { rank, sherd_comm_size(comm), comm, NULL };
    size_t n_long = *(const size_t *)ctx;
    T_EQ(sherd_comm_rank(comm), rank);
    T_OK(sherd_queue_create(&at.queue, dev, SHERD_QUEUE_SIDE));
    uint64_t salt = 1;
    for (size_t k = 0; k < ARRAY_LEN(types); k++) {
        int64_t n[8];
        size_t piece = BLOCK_HALF_BYTES / (size_t)at.size / 64 * 64;
        int n_lengths = k < n_long ? 8 : 4;
        lengths(n, piece, types[k]);
        for (int i = 0; i < n_lengths; i++) {
            if (is_turn(n[i], i + (int)k + at.size, 0))
                try_scatter(&at, n[i], types[k], 0, salt++);
            if (is_turn(n[i], i + (int)k + at.size, 1))
                try_scatter(&at, n[i], types[k], 1, salt++);
        }
        lengths(n, BLOCK_HALF_BYTES, types[k]);
        for (int i = 0; i < n_lengths; i++) {
            int turn = i + (int)k + at.size;
            if (is_turn(n[i], turn, 0)) {
                try_gather(&at, n[i], types[k], 0, salt++);
                try_reduce(&at, n[i], types[k], SHERD_REDUCE_SUM, salt++);
            }
            if (is_turn(n[i], turn, 1))
                try_gather(&at, n[i], types[k], 1, salt++);
            if (is_turn(n[i], turn, 2))
                try_reduce(&at, n[i], types[k], SHERD_REDUCE_MAX, salt++);
        }
    }
    int64_t n[8];
    lengths(n, BLOCK_HALF_BYTES, SHERD_U8);
    for (int i = 0; i < 8; i++)
        try_broadcast(&at, n[i], i % at.size, salt++);
    sherd_queue_destroy(at.queue);
}

static void test_collectives_threads(void **state)
{
    (void)state;
    static const int worlds[] = { 1, 2, 3, 4, 5, 8 };
    size_t n_long = ARRAY_LEN(types);
    for (size_t i = 0; i < ARRAY_LEN(worlds); i++)
        t_ranks(worlds[i], T_THREADS | (i % 2 ? T_ASYNC : 0), all_collectives, &n_long);
}

static void test_collectives_processes(void **state)
{
    (void)state;
    static const int worlds[] = { 1, 2, 3, 4, 5, 8 };
    size_t n_long = 2;
    for (size_t i = 0; i < ARRAY_LEN(worlds); i++)
        t_ranks(worlds[i], T_PROCESSES | (i % 2 ? 0 : T_ASYNC), all_collectives, &n_long);
}

/* ---- many small ones, ranks out of step ---- */

static void many_small(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    (void)ctx;
    struct sherd_queue *queue;
    int size = sherd_comm_size(comm);
    T_OK(sherd_queue_create(&queue, dev, SHERD_QUEUE_SIDE));
    for (int i = 0; i < 1000; i++) {
        int32_t x = rank + i, all[8];
        if (t_bits((uint64_t)rank, (uint64_t)i) % 64 == 0)
            nanosleep(&(struct timespec){ .tv_nsec = 300000 }, NULL);
        T_OK(sherd_all_reduce(comm, queue, &x, &x, 1, SHERD_I32, SHERD_REDUCE_SUM));
        T_OK(sherd_queue_sync(queue));
        T_EQ(x, size * i + size * (size - 1) / 2);
        T_OK(sherd_all_gather(comm, queue, all, &x, 1, SHERD_I32));
        T_OK(sherd_queue_sync(queue));
        for (int r = 0; r < size; r++)
            T_EQ(all[r], x);
    }
    sherd_queue_destroy(queue);
}

static void test_many_small(void **state)
{
    (void)state;
    t_ranks(2, T_THREADS, many_small, NULL);
    t_ranks(5, T_THREADS | T_ASYNC, many_small, NULL);
    t_ranks(8, T_PROCESSES, many_small, NULL);
}

/* ---- two communicators ---- */

#define TWINS_STEPS 50

/* Even ranks have all work of the first queue before they bring any to the second; odd ones the other way
 * round. Were the two one, they would wait for each other for ever. */
static void twins(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    (void)ctx;
    int size = sherd_comm_size(comm);
    struct sherd_comm *comms[2] = { comm, NULL };
    struct sherd_queue *queues[2];
    int64_t n = (int64_t)(BLOCK_HALF_BYTES / sizeof(float)) + 3;
    float *x[2];
    T_OK(sherd_comm_dup(&comms[1], comm));
    for (int k = 0; k < 2; k++) {
        T_OK(sherd_queue_create(&queues[k], dev, SHERD_QUEUE_SIDE));
        x[k] = malloc((size_t)n * sizeof(float));
        for (int64_t i = 0; i < n; i++)
            x[k][i] = rank == k ? (float)(i % 7) : 0.0f;
    }
    for (int k = 0; k < 2; k++) {
        int which = (k + rank) % 2;
        for (int i = 0; i < TWINS_STEPS; i++)
            T_OK(sherd_all_reduce(comms[which], queues[which], x[which], x[which], n, SHERD_F32,
                i % 2 ? SHERD_REDUCE_MAX : SHERD_REDUCE_SUM));
        if (rank % 2 == 0)
            nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
    }
    for (int k = 0; k < 2; k++) {
        T_OK(sherd_queue_sync(queues[k]));
        for (int64_t i = 0; i < n; i++)
            T_NEAR(x[k][i] / powf((float)size, TWINS_STEPS / 2 - 1), (float)(i % 7), 1e-3);
        sherd_queue_destroy(queues[k]);
        free(x[k]);
    }
    sherd_comm_close(comms[1]);
}

static void test_twins(void **state)
{
    (void)state;
    t_ranks(2, T_THREADS | T_ASYNC, twins, NULL);
    t_ranks(3, T_PROCESSES | T_ASYNC, twins, NULL);
}

/* Closed communicators make room for new ones; too many are refused on all ranks. */
static void many_twins(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    (void)ctx, (void)dev;
    struct sherd_comm *twins_of[BLOCK_CHANNELS / 2];
    for (int round = 0; round < 3; round++) {
        int most = BLOCK_CHANNELS / 2 - 1;
        for (int i = 0; i < most; i++) {
            int32_t x = rank, all[8];
            T_OK(sherd_comm_dup(&twins_of[i], i ? twins_of[i - 1] : comm));
            T_OK(comm_host_gather(twins_of[i], all, &x, sizeof(x)));
            for (int r = 0; r < sherd_comm_size(comm); r++)
                T_EQ(all[r], r);
        }
        struct sherd_comm *more = NULL;
        T_FAILS(sherd_comm_dup(&more, comm), SHERD_EUNSUPPORTED, "communicators");
        for (int i = 0; i < most; i++)
            sherd_comm_close(twins_of[i]);
        T_OK(sherd_comm_barrier(comm));
    }
    for (int i = 0; i < BLOCK_CHANNELS; i++) { /* without a word of the hosts in between */
        T_OK(sherd_comm_dup(&twins_of[0], comm));
        sherd_comm_close(twins_of[0]);
    }
}

static void test_many_twins(void **state)
{
    (void)state;
    t_ranks(3, T_THREADS, many_twins, NULL);
    t_ranks(2, T_PROCESSES, many_twins, NULL);
}

/* ---- host helpers ---- */

static void helpers(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    (void)dev, (void)ctx;
    static const int64_t sizes[] = { 0, 1, 1000, 65536, 300001 };
    int size = sherd_comm_size(comm);
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        int64_t n = sizes[i];
        char *mine = filled(n, SHERD_U8, rank, i), *all = buffer(n * size, SHERD_U8);
        T_OK(comm_host_gather(comm, all, mine, (size_t)n));
        for (int r = 0; r < size; r++) {
            char *theirs = filled(n, SHERD_U8, r, i);
            T_BITS(all + (size_t)r * (size_t)n, theirs, (size_t)n);
            release(theirs, n, SHERD_U8);
        }
        int root = (int)i % size;
        char *want = filled(n, SHERD_U8, root, i);
        T_OK(comm_host_broadcast(comm, mine, (size_t)n, root));
        T_BITS(mine, want, (size_t)n);
        T_OK(sherd_comm_barrier(comm));
        release(want, n, SHERD_U8);
        release(mine, n, SHERD_U8);
        release(all, n * size, SHERD_U8);
    }
    T_OK(comm_agree(comm, SHERD_OK));
    if (rank == size - 1)
        T_FAILS(
            comm_agree(comm, SHERD_FAIL(SHERD_EIO, "disk of rank %d is full", rank)), SHERD_EIO, "is full");
    else
        T_FAILS(comm_agree(comm, SHERD_OK), SHERD_EPEER, "disk of rank");
    /* A failure that is only about another rank does not hide the one that counts. */
    int st = rank == 0 ? SHERD_FAIL(SHERD_EPEER, "secondary") : SHERD_OK;
    if (rank == size - 1 && size > 1)
        st = SHERD_FAIL(SHERD_ENOMEM, "primary");
    T_TRUE(comm_agree(comm, st) == (st ? st : SHERD_EPEER));
    if (rank > 0 && rank < size - 1)
        T_HAS(sherd_error(), "primary");
}

static void test_helpers(void **state)
{
    (void)state;
    t_ranks(1, T_THREADS, helpers, NULL);
    t_ranks(3, T_THREADS | T_ASYNC, helpers, NULL);
    t_ranks(4, T_PROCESSES, helpers, NULL);
}

/* ---- counters and refusals ---- */

static void counters(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    (void)ctx;
    struct sherd_queue *queue;
    struct sherd_comm_counters c;
    uint64_t size = (uint64_t)sherd_comm_size(comm);
    char buf[4096] = { 0 };
    T_OK(sherd_queue_create(&queue, dev, SHERD_QUEUE_SIDE));
    T_OK(sherd_all_gather(comm, queue, buf, buf + rank * 40, 10, SHERD_F32));
    T_OK(sherd_reduce_scatter(comm, queue, buf + rank * 20, buf, 10, SHERD_BF16));
    T_OK(sherd_all_reduce(comm, queue, buf, buf, 30, SHERD_F64, SHERD_REDUCE_SUM));
    T_OK(sherd_broadcast(comm, queue, buf, buf, 99, 0));
    T_OK(sherd_queue_sync(queue));
    T_OK(sherd_comm_barrier(comm));
    sherd_comm_read(comm, &c);
    for (int k = 0; k < SHERD_COLLECTIVES; k++)
        T_EQ(c.calls[k], 1);
    T_EQ(c.bytes[SHERD_ALL_GATHER], 40 * (size - 1));
    T_EQ(c.bytes[SHERD_REDUCE_SCATTER], 20 * (size - 1));
    T_EQ(c.bytes[SHERD_ALL_REDUCE], 2 * 240 * (size - 1) / size);
    T_EQ(c.bytes[SHERD_BROADCAST], rank == 0 && size > 1 ? 99 : 0);
    sherd_queue_destroy(queue);
}

static void refusals(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    (void)ctx;
    struct sherd_queue *queue;
    float x[64] = { 0 };
    T_OK(sherd_queue_create(&queue, dev, SHERD_QUEUE_SIDE));
    T_FAILS(sherd_all_gather(comm, NULL, x, x, 1, SHERD_F32), SHERD_EINVAL, "all-gather: no queue");
    T_FAILS(sherd_all_gather(NULL, queue, x, x, 1, SHERD_F32), SHERD_EINVAL, "no communicator");
    T_FAILS(sherd_all_gather(comm, queue, x, x + rank * 4 + 1, 4, SHERD_F32), SHERD_EINVAL, "overlaps");
    T_FAILS(sherd_all_gather(comm, queue, NULL, x, 4, SHERD_F32), SHERD_EINVAL, "NULL");
    T_FAILS(sherd_reduce_scatter(comm, queue, x + 1, x, 8, SHERD_F32), SHERD_EINVAL, "reduce-scatter");
    T_FAILS(
        sherd_all_reduce(comm, queue, x, x, -1, SHERD_F32, SHERD_REDUCE_SUM), SHERD_EINVAL, "-1 elements");
    T_FAILS(sherd_all_reduce(comm, queue, x, x, INT64_MAX / 2, SHERD_F32, SHERD_REDUCE_SUM), SHERD_EINVAL,
        "elements");
    T_FAILS(sherd_all_reduce(comm, queue, x, x, 1, (enum sherd_dtype)99, SHERD_REDUCE_SUM), SHERD_EINVAL,
        "type 99");
    T_FAILS(sherd_broadcast(comm, queue, x, x, 1, sherd_comm_size(comm)), SHERD_EINVAL, "root");
    T_FAILS(sherd_broadcast(comm, queue, x, x, 1, -1), SHERD_EINVAL, "root -1");
    T_FAILS(sherd_all_reduce(comm, queue, x, x, 1, SHERD_F32, (enum sherd_reduce)7), SHERD_EINVAL,
        "7 is neither");
    T_FAILS(sherd_all_reduce(comm, queue, x + 1, x, 2, SHERD_F32, SHERD_REDUCE_SUM), SHERD_EINVAL, "overlap");
    T_FAILS(sherd_all_reduce(comm, queue, NULL, x, 2, SHERD_F32, SHERD_REDUCE_SUM), SHERD_EINVAL, "NULL");
    sherd_queue_destroy(queue);
}

static void test_counters(void **state)
{
    (void)state;
    t_ranks(1, T_THREADS, counters, NULL);
    t_ranks(3, T_THREADS, counters, NULL);
    t_ranks(4, T_PROCESSES, counters, NULL);
}

static void test_refusals(void **state)
{
    (void)state;
    t_ranks(1, T_THREADS, refusals, NULL);
    t_ranks(2, T_THREADS, refusals, NULL);
}

/* Over sockets; the pieces there are shorter. */
static void test_collectives_tcp(void **state)
{
    (void)state;
    static const int worlds[] = { 2, 3, 5 };
    size_t n_long = 2;
    if (t_mpi())
        return;
    t_kind("tcp");
    for (size_t i = 0; i < ARRAY_LEN(worlds); i++)
        t_ranks(worlds[i], T_PROCESSES | (i % 2 ? 0 : T_ASYNC), all_collectives, &n_long);
    t_ranks(4, T_PROCESSES, many_small, NULL);
    t_ranks(3, T_PROCESSES | T_ASYNC, twins, NULL);
    t_ranks(2, T_PROCESSES, many_twins, NULL);
    t_ranks(4, T_PROCESSES, helpers, NULL);
    t_ranks(4, T_PROCESSES, counters, NULL);
    t_kind(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_collectives_threads),
        cmocka_unit_test(test_collectives_processes),
        cmocka_unit_test(test_many_small),
        cmocka_unit_test(test_twins),
        cmocka_unit_test(test_many_twins),
        cmocka_unit_test(test_helpers),
        cmocka_unit_test(test_counters),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_collectives_tcp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
