/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What every communicator must do, by two ranks on two GPUs: each collective against a loop over the ranks,
 * with and without exposed memory, and landing memory; two communicators at once; host helpers. Values are
 * small integers, so that sums are exact in every type and order. Skips without two GPUs.
 */
#include "tests/t.h"

#include <stdio.h>
#include <stdlib.h>

#include <sherd/ops.h>

#include "base/half.h"
#include "comm/ops.h"
#include "tests/gpu/gpus.h"
#include "tests/gpu/place.h"

static const enum sherd_dtype types[] = { SHERD_F32, SHERD_BF16, SHERD_F64, SHERD_I32, SHERD_I64 };
static const int64_t lengths[] = { 0, 1, 7, 1000, 4096, 100003 };

/* ---- values, and what becomes of them ---- */

static int value(int rank, int64_t i, uint64_t salt)
{
    return (int)(t_bits(salt * 64 + (uint64_t)rank, (uint64_t)i) % 33) - 16;
}

static void put(char *out, int64_t at, enum sherd_dtype type, int x)
{
    switch (type) {
    case SHERD_F32:
        ((float *)(void *)out)[at] = (float)x;
        break;
    case SHERD_BF16:
        ((bf16 *)(void *)out)[at] = bf16_from_float((float)x);
        break;
    case SHERD_F64:
        ((double *)(void *)out)[at] = x;
        break;
    case SHERD_I32:
        ((int32_t *)(void *)out)[at] = x;
        break;
    default:
        ((int64_t *)(void *)out)[at] = x;
        break;
    }
}

/* Host memory with elements from..from + n of one rank, or of the reduction of all (rank -1: sum, -2: max).
 */
static char *expected(int rank, int64_t from, int64_t n, enum sherd_dtype type, uint64_t salt)
{
    char *out = malloc((size_t)n * sherd_dtype_bytes(type) + 1);
    for (int64_t i = 0; i < n; i++) {
        int a = value(0, from + i, salt), b = value(1, from + i, salt);
        put(out, i, type, rank == -1 ? a + b : rank == -2 ? MAX(a, b) : rank == 0 ? a : b);
    }
    return out;
}

static void send_up(struct place *at, char *dst, const char *src, size_t bytes)
{
    if (bytes > 0)
        T_OK(sherd_copy(at->queue, &(struct sherd_copy){ .dst = dst, .src = src, .bytes = bytes }));
    T_OK(sherd_queue_sync(at->queue));
}

static void compare(struct place *at, const char *device, const char *want, size_t bytes)
{
    char *got = malloc(bytes + 1);
    send_up(at, got, device, bytes);
    T_BITS(got, want, bytes);
    free(got);
}

/* ---- each collective ---- */

static void try_gather(struct place *at, int64_t n, enum sherd_dtype type, int in_place, uint64_t salt)
{
    size_t bytes = (size_t)n * sherd_dtype_bytes(type);
    char *mine = expected(at->rank, 0, n, type, salt);
    char *in = in_place ? at->buf + (size_t)at->rank * bytes : at->other;
    send_up(at, in, mine, bytes);
    T_OK(sherd_all_gather(at->comm, at->queue, at->buf, in, n, type));
    T_OK(sherd_queue_sync(at->queue));
    for (int r = 0; r < RANKS; r++) {
        char *want = expected(r, 0, n, type, salt);
        compare(at, at->buf + (size_t)r * bytes, want, bytes);
        free(want);
    }
    free(mine);
}

static void try_scatter(struct place *at, int64_t n, enum sherd_dtype type, int in_place, uint64_t salt)
{
    size_t bytes = (size_t)n * sherd_dtype_bytes(type);
    char *whole = expected(at->rank, 0, n * RANKS, type, salt);
    char *want = expected(-1, at->rank * n, n, type, salt);
    char *out = in_place ? at->buf + (size_t)at->rank * bytes : at->other;
    send_up(at, at->buf, whole, bytes * RANKS);
    T_OK(sherd_reduce_scatter(at->comm, at->queue, out, at->buf, n, type));
    compare(at, out, want, bytes);
    free(whole);
    free(want);
}

static void try_reduce(
    struct place *at, int64_t n, enum sherd_dtype type, enum sherd_reduce how, uint64_t salt)
{
    size_t bytes = (size_t)n * sherd_dtype_bytes(type);
    char *mine = expected(at->rank, 0, n, type, salt);
    char *want = expected(how == SHERD_REDUCE_SUM ? -1 : -2, 0, n, type, salt);
    send_up(at, at->buf, mine, bytes);
    T_OK(sherd_all_reduce(at->comm, at->queue, at->buf, at->buf, n, type, how));
    compare(at, at->buf, want, bytes);
    free(mine);
    free(want);
}

static void try_broadcast(struct place *at, int64_t n, int root, uint64_t salt)
{
    size_t bytes = (size_t)n * sizeof(int32_t);
    char *mine = expected(at->rank, 0, n, SHERD_I32, salt), *want = expected(root, 0, n, SHERD_I32, salt);
    send_up(at, at->buf, mine, bytes);
    T_OK(sherd_broadcast(at->comm, at->queue, at->buf, at->buf, bytes, root));
    compare(at, at->buf, want, bytes);
    free(mine);
    free(want);
}

static void try_all(struct place *at)
{
    uint64_t salt = 1;
    for (size_t k = 0; k < ARRAY_LEN(types); k++) {
        for (size_t i = 0; i < ARRAY_LEN(lengths); i++) {
            for (int in_place = 0; in_place < 2; in_place++) {
                try_gather(at, lengths[i], types[k], in_place, salt++);
                try_scatter(at, lengths[i], types[k], in_place, salt++);
            }
            try_reduce(at, lengths[i], types[k], SHERD_REDUCE_SUM, salt++);
            try_reduce(at, lengths[i], types[k], SHERD_REDUCE_MAX, salt++);
        }
    }
    for (size_t i = 0; i < ARRAY_LEN(lengths); i++)
        try_broadcast(at, lengths[i], (int)i % RANKS, salt++);
}

/* What exposed memory takes; and that it refuses the rest. */
static void try_aligned(struct place *at)
{
    static const int64_t units[] = { 1, 2, 3, 40, 977 };
    uint64_t salt = 2000;
    for (size_t k = 0; k < ARRAY_LEN(types); k++) {
        for (size_t i = 0; i < ARRAY_LEN(units); i++) {
            int64_t n = units[i] * COMM_EXPOSED_ALIGN / (int64_t)sherd_dtype_bytes(types[k]);
            for (int in_place = 0; in_place < 2; in_place++) {
                try_gather(at, n, types[k], in_place, salt++);
                try_scatter(at, n, types[k], in_place, salt++);
            }
            try_reduce(at, n, types[k], SHERD_REDUCE_SUM, salt++);
            try_reduce(at, n, types[k], SHERD_REDUCE_MAX, salt++);
        }
    }
    T_FAILS(sherd_all_reduce(at->comm, at->queue, at->buf, at->buf, 7, SHERD_BF16, SHERD_REDUCE_SUM),
        SHERD_EINVAL, "multiples of 256");
}

static void collectives(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    (void)ctx;
    struct place at;
    struct sherd_comm_counters before, after;
    enter(&at, rank, comm, dev);
    try_all(&at);
    sherd_comm_read(comm, &before);
    T_OK(sherd_all_gather(comm, at.queue, at.buf, at.buf + rank * 4000, 1000, SHERD_F32));
    sherd_comm_read(comm, &after);
    T_EQ(after.calls[SHERD_ALL_GATHER] - before.calls[SHERD_ALL_GATHER], 1);
    T_EQ(after.bytes[SHERD_ALL_GATHER] - before.bytes[SHERD_ALL_GATHER], 4000);
    T_OK(sherd_queue_sync(at.queue));
    leave(&at);
}

static void test_collectives(void **state)
{
    (void)state;
    t_ranks(RANKS, T_PROCESSES, collectives, NULL);
}

/* The same with memory that NCCL knows beforehand, by the opened communicator and by a twin. */
static void exposed(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    (void)ctx;
    struct place at;
    struct sherd_comm *comms[2] = { comm, NULL };
    enter(&at, rank, comm, dev);
    T_OK(sherd_comm_dup(&comms[1], comm));
    for (int k = 0; k < 2; k++) {
        at.comm = comms[k];
        T_OK(sherd_comm_expose(at.comm, at.buf, MOST_BYTES));
        T_OK(sherd_comm_expose(at.comm, at.other, MOST_BYTES));
        try_aligned(&at);
        try_gather(&at, (int64_t)MOST_BYTES / RANKS / 4, SHERD_F32, 1, 1000);
        try_scatter(&at, (int64_t)MOST_BYTES / RANKS / 4, SHERD_F32, 1, 1001);
    }
    for (int k = 0; k < 2; k++) {
        sherd_comm_conceal(comms[k], at.buf);
        sherd_comm_conceal(comms[k], at.other);
    }
    sherd_comm_close(comms[1]);
    leave(&at);
}

static void test_exposed(void **state)
{
    (void)state;
    t_ranks(RANKS, T_PROCESSES, exposed, NULL);
}

/* ---- memory where the parts of other ranks land ---- */

static float read_as(const void *x, int64_t i, enum sherd_dtype type)
{
    if (type == SHERD_F32)
        return ((const float *)x)[i];
    return type == SHERD_BF16 ? bf16_to_float(((const bf16 *)x)[i]) : f16_to_float(((const f16 *)x)[i]);
}

static void write_as(void *x, int64_t i, enum sherd_dtype type, float value)
{
    if (type == SHERD_F32)
        ((float *)x)[i] = value;
    else if (type == SHERD_BF16)
        ((bf16 *)x)[i] = bf16_from_float(value);
    else
        ((f16 *)x)[i] = f16_from_float(value);
}

/* Any values of one rank, n of each part. */
static char *any_of(int rank, int64_t n, enum sherd_dtype type, uint64_t salt)
{
    char *x = malloc((size_t)n * RANKS * sherd_dtype_bytes(type));
    for (int64_t i = 0; i < n * RANKS; i++)
        write_as(x, i, type, t_float(salt * RANKS + (uint64_t)rank, (uint64_t)i));
    return x;
}

/* The part of `rank`, of all ranks in rank order, in float and rounded once. */
static char *sum_of_any(int rank, int64_t n, enum sherd_dtype type, uint64_t salt)
{
    char *out = malloc((size_t)n * sherd_dtype_bytes(type)), *x[RANKS];
    for (int r = 0; r < RANKS; r++)
        x[r] = any_of(r, n, type, salt);
    for (int64_t i = 0; i < n; i++) {
        float sum = 0;
        for (int r = 0; r < RANKS; r++)
            sum += read_as(x[r], rank * n + i, type);
        write_as(out, i, type, sum);
    }
    for (int r = 0; r < RANKS; r++)
        free(x[r]);
    return out;
}

static void try_any(struct place *at, char *out, char *in, int64_t n, enum sherd_dtype type, uint64_t salt)
{
    size_t bytes = (size_t)n * sherd_dtype_bytes(type);
    char *mine = any_of(at->rank, n, type, salt), *want = sum_of_any(at->rank, n, type, salt);
    send_up(at, in, mine, bytes * RANKS);
    T_OK(sherd_reduce_scatter(at->comm, at->queue, out, in, n, type));
    compare(at, out, want, bytes);
    free(mine);
    free(want);
}

/* One after another before the host looks: the next part may land only when the sum of the last was taken. */
static void try_one_after_another(struct place *at)
{
    enum { TIMES = 4 };
    int64_t n = COMM_LANDING_LEAST / (int64_t)sizeof(float);
    size_t bytes = (size_t)COMM_LANDING_LEAST;
    for (int i = 0; i < TIMES; i++) {
        char *mine = any_of(at->rank, n, SHERD_F32, 700 + (uint64_t)i);
        send_up(at, at->buf + (size_t)(i * RANKS) * bytes, mine, bytes * RANKS);
        free(mine);
    }
    at->comm->delay_us = at->rank ? 0 : 300;
    for (int again = 0; again < 5; again++)
        for (int i = 0; i < TIMES; i++)
            T_OK(sherd_reduce_scatter(at->comm, at->queue, at->other + (size_t)i * bytes,
                at->buf + (size_t)(i * RANKS) * bytes, n, SHERD_F32));
    at->comm->delay_us = 0;
    for (int i = 0; i < TIMES; i++) {
        char *want = sum_of_any(at->rank, n, SHERD_F32, 700 + (uint64_t)i);
        compare(at, at->other + (size_t)i * bytes, want, bytes);
        free(want);
    }
}

static void landing(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    static const enum sherd_dtype summed[] = { SHERD_F32, SHERD_BF16, SHERD_F16 };
    struct place at;
    void *land = NULL;
    uint64_t salt = 500;
    (void)ctx;
    enter(&at, rank, comm, dev);
    T_OK(sherd_comm_dup(&at.comm, comm));
    T_OK(sherd_device_alloc(dev, &land, MOST_BYTES));
    T_OK(sherd_comm_expose(at.comm, at.buf, MOST_BYTES));
    T_TRUE(!comm_lands(at.comm, (int64_t)1 << 20, SHERD_F32));
    T_OK(sherd_comm_landing(at.comm, land, MOST_BYTES));
    int lands = comm_lands(at.comm, (int64_t)1 << 20, SHERD_F32);
    if (!lands && rank == 0)
        fprintf(stderr, "copy engines are not used here: the same is tried without them\n");
    for (size_t k = 0; k < ARRAY_LEN(summed); k++) {
        int64_t size = (int64_t)sherd_dtype_bytes(summed[k]), least = COMM_LANDING_LEAST / size;
        int64_t step = COMM_EXPOSED_ALIGN / size, most = (int64_t)MOST_BYTES / RANKS / size;
        const int64_t n[] = { least - step, least, least + 5 * step, most };
        for (size_t i = 0; i < ARRAY_LEN(n); i++) {
            T_EQ(comm_lands(at.comm, n[i], summed[k]), lands && i > 0);
            try_any(&at, at.other, at.buf, n[i], summed[k], salt++);
            try_any(&at, at.buf + (size_t)(rank * n[i] * size), at.buf, n[i], summed[k], salt++);
        }
        try_any(&at, at.other + size, at.buf, least, summed[k], salt++); /* not where 16 bytes begin */
        try_any(&at, at.other + MOST_BYTES / 2, at.other, least + 1, summed[k], salt++); /* not exposed */
        T_EQ(comm_lands(at.comm, most + step, summed[k]), 0);
    }
    T_EQ(comm_lands(at.comm, (int64_t)1 << 18, SHERD_I64), 0);
    try_scatter(&at, (int64_t)1 << 18, SHERD_I64, 0, salt++);
    try_one_after_another(&at);
    sherd_comm_conceal(at.comm, land);
    T_TRUE(!comm_lands(at.comm, (int64_t)1 << 20, SHERD_F32));
    try_any(&at, at.other, at.buf, (int64_t)1 << 20, SHERD_F32, salt++);
    sherd_comm_conceal(at.comm, at.buf);
    sherd_comm_close(at.comm);
    sherd_device_free(dev, land);
    leave(&at);
}

static void test_landing(void **state)
{
    (void)state;
    t_ranks(RANKS, T_PROCESSES, landing, NULL);
}

/* ---- two communicators, each on its queue ---- */

#define TWINS_STEPS 50

static void twins(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    (void)ctx;
    struct place at;
    struct sherd_comm *twin = NULL;
    struct sherd_queue *queue;
    int64_t n = 500000;
    enter(&at, rank, comm, dev);
    T_OK(sherd_comm_dup(&twin, comm));
    T_OK(sherd_queue_create(&queue, dev, SHERD_QUEUE_SIDE));
    char *one = expected(rank, 0, n, SHERD_F32, 7), *zero = calloc((size_t)n, sizeof(float));
    send_up(&at, at.buf, one, (size_t)n * 4);
    send_up(&at, at.other, rank == 1 ? one : zero, (size_t)n * 4);
    for (int i = 0; i < TWINS_STEPS; i++) {
        /* Both at once; a max of equal values changes nothing after the first. */
        T_OK(sherd_all_reduce(comm, at.queue, at.buf, at.buf, n, SHERD_F32, SHERD_REDUCE_MAX));
        T_OK(sherd_all_reduce(
            twin, queue, at.other, at.other, n, SHERD_F32, i ? SHERD_REDUCE_MAX : SHERD_REDUCE_SUM));
    }
    T_OK(sherd_queue_sync(queue));
    T_OK(sherd_queue_sync(at.queue));
    char *most = expected(-2, 0, n, SHERD_F32, 7), *second = expected(1, 0, n, SHERD_F32, 7);
    compare(&at, at.buf, most, (size_t)n * 4);
    compare(&at, at.other, second, (size_t)n * 4);
    free(most);
    free(second);
    free(one);
    free(zero);
    sherd_queue_destroy(queue);
    sherd_comm_close(twin);
    leave(&at);
}

static void test_twins(void **state)
{
    (void)state;
    t_ranks(RANKS, T_PROCESSES, twins, NULL);
}

/* Sums of any floats, again and again: the same bits. */
static void repeatable(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    (void)ctx;
    struct place at;
    int64_t n = 200000;
    size_t bytes = (size_t)n * sizeof(float);
    float *x = malloc(bytes), *first = malloc(bytes), *again = malloc(bytes);
    enter(&at, rank, comm, dev);
    for (int64_t i = 0; i < n; i++)
        x[i] = t_float((uint64_t)rank, (uint64_t)i);
    for (int i = 0; i < 5; i++) {
        send_up(&at, at.buf, (char *)x, bytes);
        T_OK(sherd_all_reduce(comm, at.queue, at.buf, at.buf, n, SHERD_F32, SHERD_REDUCE_SUM));
        send_up(&at, (char *)(i ? again : first), at.buf, bytes);
        if (i)
            T_BITS(first, again, bytes);
    }
    free(x);
    free(first);
    free(again);
    leave(&at);
}

static void test_repeatable(void **state)
{
    (void)state;
    t_ranks(RANKS, T_PROCESSES, repeatable, NULL);
}

/* More calls than are let under way at once, one after another on the same data. */
static void many(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    (void)ctx;
    struct place at;
    int64_t n = 1000;
    enter(&at, rank, comm, dev);
    char *mine = expected(rank, 0, n, SHERD_F32, 9), *most = expected(-2, 0, n, SHERD_F32, 9);
    send_up(&at, at.buf, mine, (size_t)n * 4);
    for (int i = 0; i < 1000; i++)
        T_OK(sherd_all_reduce(comm, at.queue, at.buf, at.buf, n, SHERD_F32, SHERD_REDUCE_MAX));
    compare(&at, at.buf, most, (size_t)n * 4);
    free(mine);
    free(most);
    leave(&at);
}

static void test_many(void **state)
{
    (void)state;
    t_ranks(RANKS, T_PROCESSES, many, NULL);
}

/* ---- host helpers ---- */

static void helpers(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    (void)dev, (void)ctx;
    int32_t mine = 10 + rank, all[RANKS], sent = rank == 1 ? 77 : 0;
    T_OK(comm_host_gather(comm, all, &mine, sizeof(mine)));
    T_EQ(all[0], 10);
    T_EQ(all[1], 11);
    T_OK(comm_host_broadcast(comm, &sent, sizeof(sent), 1));
    T_EQ(sent, 77);
    T_OK(sherd_comm_barrier(comm));
    T_OK(comm_agree(comm, SHERD_OK));
    if (rank == 1)
        T_FAILS(comm_agree(comm, SHERD_FAIL(SHERD_EIO, "the disk is full")), SHERD_EIO, "is full");
    else
        T_FAILS(comm_agree(comm, SHERD_OK), SHERD_EPEER, "rank 1: the disk is full");
}

static void test_helpers(void **state)
{
    (void)state;
    t_ranks(RANKS, T_PROCESSES, helpers, NULL);
}

/* ---- */

/* Asked in a process of its own, as CUDA does not survive a fork. */
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_collectives),
        cmocka_unit_test(test_exposed),
        cmocka_unit_test(test_landing),
        cmocka_unit_test(test_twins),
        cmocka_unit_test(test_repeatable),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_helpers),
    };
    if (!gpus_two())
        return 77;
    t_device("cuda");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
