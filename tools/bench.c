/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Measuring collectives. Values are whole numbers so small that every sum of them is exact in the type, in
 * any order; they repeat after a prime number of elements, so that what was moved to a wrong place shows,
 * while every element of any size can be compared with a pattern in memory.
 */
#include "tools/bench.h"

#include <string.h>

#include "base/clock.h"
#include "base/text_plain.h"
#include "tools/out.h"

#define PERIOD ((int64_t)1048573)
#define EXPOSED_ALIGN 256 /* see sherd_comm_expose */
#define ROUND_BYTES 16
#define NUMBERS_BYTES 256

#define TRY(call)                                                                                            \
    do {                                                                                                     \
        int try_st_ = (call);                                                                                \
        if (try_st_ != SHERD_OK)                                                                             \
            return try_st_;                                                                                  \
    } while (0)

static size_t max(size_t a, size_t b)
{
    return a > b ? a : b;
}

struct bench_shape bench_shape(
    enum sherd_collective kind, uint64_t bytes, enum sherd_dtype type, int ranks, int expose)
{
    uint64_t each = sherd_dtype_bytes(type);
    int split = kind == SHERD_ALL_GATHER || kind == SHERD_REDUCE_SCATTER;
    uint64_t part = split ? bytes / (uint64_t)ranks / ROUND_BYTES * ROUND_BYTES : bytes / each * each;
    return (struct bench_shape){ .kind = kind,
        .count = (int64_t)(part / each),
        .part = part,
        .a = split ? part * (uint64_t)ranks : part,
        .b = part,
        .plain = !expose || part % EXPOSED_ALIGN != 0 };
}

void bench_need(struct bench_memory need[2], const struct bench_shape *shape)
{
    struct bench_memory *m = &need[shape->plain];
    m->a_bytes = max(m->a_bytes, shape->a);
    m->b_bytes = max(m->b_bytes, shape->b);
    int sums = shape->kind == SHERD_REDUCE_SCATTER || shape->kind == SHERD_ALL_REDUCE;
    m->sums |= sums;
    m->gathers |= !sums;
}

/* ---- values ---- */

static int most(enum sherd_dtype type)
{
    return type == SHERD_BF16 || type == SHERD_U8 ? 255 : type == SHERD_F16 ? 2047 : 1 << 20;
}

int bench_top(enum sherd_dtype type, int ranks, int summed)
{
    return summed ? most(type) / ranks : most(type);
}

static uint32_t mix(uint64_t i, int rank)
{
    uint32_t x = (uint32_t)i * 0x9e3779b1u + (uint32_t)(rank + 1) * 0x85ebca77u;
    x = (x ^ (x >> 15)) * 0x2c1b3c6du;
    x = (x ^ (x >> 12)) * 0x297a2d39u;
    return x ^ (x >> 15);
}

/* Exact for 0..2047. */
static uint16_t to_half(uint32_t v)
{
    int e = v ? 31 - __builtin_clz(v) : 0;
    return v ? (uint16_t)(((uint32_t)(e + 15) << 10) | ((v << (10 - e)) & 0x3ff)) : 0;
}

static void store(char *out, int64_t i, enum sherd_dtype type, uint32_t v)
{
    float f = (float)v;
    uint32_t bits;
    switch (type) {
    case SHERD_F32:
        ((float *)(void *)out)[i] = f;
        break;
    case SHERD_BF16:
        memcpy(&bits, &f, sizeof(bits));
        ((uint16_t *)(void *)out)[i] = (uint16_t)(bits >> 16);
        break;
    case SHERD_F16:
        ((uint16_t *)(void *)out)[i] = to_half(v);
        break;
    case SHERD_F64:
        ((double *)(void *)out)[i] = v;
        break;
    case SHERD_I32:
        ((int32_t *)(void *)out)[i] = (int32_t)v;
        break;
    case SHERD_I64:
        ((int64_t *)(void *)out)[i] = v;
        break;
    default:
        ((uint8_t *)out)[i] = (uint8_t)v;
        break;
    }
}

/* The values at 0..n of the ranks from..to, reduced. */
static void make_pattern(struct bench *b, int64_t n, int from, int to, int summed)
{
    uint32_t top = (uint32_t)bench_top(b->desc.type, b->ranks, summed);
    n = n < PERIOD ? n : PERIOD;
    for (int64_t i = 0; i < n; i++) {
        uint32_t all = 0;
        for (int r = from; r < to; r++) {
            uint32_t v = mix((uint64_t)i, r) % (top + 1);
            all = b->desc.reduce == SHERD_REDUCE_SUM ? all + v : v > all ? v : all;
        }
        store(b->pattern, i, b->desc.type, all);
    }
}

/* The longest run from element `at` of a buffer on that lies within one pattern. */
static int64_t run_at(int64_t at, int64_t end)
{
    int64_t left = PERIOD - at % PERIOD;
    return left < end - at ? left : end - at;
}

static int copy(struct bench *b, void *dst, const void *src, size_t bytes)
{
    return sherd_copy(b->queue, &(struct sherd_copy){ .dst = dst, .src = src, .bytes = bytes });
}

static int put(struct bench *b, char *dst, int64_t n)
{
    for (int64_t at = 0, run; at < n; at += run) {
        run = run_at(at, n);
        TRY(copy(b, dst + (size_t)at * b->each, b->pattern, (size_t)run * b->each));
    }
    return sherd_queue_sync(b->queue);
}

/* src[n] against the pattern from element `first` on. */
static int compare(struct bench *b, const char *src, int64_t first, int64_t n, double *wrong)
{
    for (int64_t at = 0, run; at < n; at += run) {
        run = run_at(first + at, first + n);
        size_t bytes = (size_t)run * b->each;
        const char *want = b->pattern + (size_t)((first + at) % PERIOD) * b->each;
        TRY(copy(b, b->piece, src + (size_t)at * b->each, bytes));
        TRY(sherd_queue_sync(b->queue));
        if (memcmp(b->piece, want, bytes) == 0)
            continue;
        for (size_t i = 0; i < bytes; i += b->each)
            *wrong += memcmp(b->piece + i, want + i, b->each) != 0;
    }
    return SHERD_OK;
}

/* ---- calls ---- */

struct call {
    char *out, *in;
    size_t out_bytes;
};

/* How many calls of this shape lie beside each other in memory. */
static int64_t turns(const struct bench *b, const struct bench_shape *s)
{
    const struct bench_memory *m = &b->at[s->plain];
    if (s->count == 0)
        return 1;
    size_t wholes = m->a_bytes / s->a, parts = m->b_bytes / s->b;
    return (int64_t)(wholes < parts ? wholes : parts);
}

static struct call place(const struct bench *b, const struct bench_shape *s, int in_place, int64_t turn)
{
    const struct bench_memory *m = &b->at[s->plain];
    char *whole = m->a ? (char *)m->a + (size_t)turn * s->a : NULL;
    char *part = m->b ? (char *)m->b + (size_t)turn * s->b : NULL;
    char *own = whole ? whole + (size_t)b->rank * s->part : NULL;
    switch (s->kind) {
    case SHERD_ALL_GATHER:
        return (struct call){ whole, in_place ? own : part, s->a };
    case SHERD_REDUCE_SCATTER:
        return (struct call){ in_place ? own : part, whole, s->b };
    default:
        return (struct call){ whole, in_place ? whole : part, s->a };
    }
}

static int call(struct bench *b, const struct bench_shape *s, const struct call *c)
{
    const struct bench_desc *d = &b->desc;
    switch (s->kind) {
    case SHERD_ALL_GATHER:
        return sherd_all_gather(d->comm, b->queue, c->out, c->in, s->count, d->type);
    case SHERD_REDUCE_SCATTER:
        return sherd_reduce_scatter(b->sums, b->queue, c->out, c->in, s->count, d->type);
    case SHERD_ALL_REDUCE:
        return sherd_all_reduce(b->sums, b->queue, c->out, c->in, s->count, d->type, d->reduce);
    default:
        return sherd_broadcast(d->comm, b->queue, c->out, c->in, s->part, d->root);
    }
}

static int verify(struct bench *b, const struct bench_shape *s, const char *out, double *wrong)
{
    int root = b->desc.root;
    switch (s->kind) {
    case SHERD_ALL_GATHER:
        for (int r = 0; r < b->ranks; r++) {
            make_pattern(b, s->count, r, r + 1, 0);
            TRY(compare(b, out + (size_t)r * s->part, 0, s->count, wrong));
        }
        return SHERD_OK;
    case SHERD_REDUCE_SCATTER:
        make_pattern(b, s->count * b->ranks, 0, b->ranks, 1);
        return compare(b, out, s->count * b->rank, s->count, wrong);
    case SHERD_ALL_REDUCE:
        make_pattern(b, s->count, 0, b->ranks, b->desc.reduce == SHERD_REDUCE_SUM);
        return compare(b, out, 0, s->count, wrong);
    default:
        make_pattern(b, s->count, root, root + 1, 0);
        return compare(b, out, 0, s->count, wrong);
    }
}

/* One more call, on known values, with what is to be written spoilt before. */
static int check(struct bench *b, const struct bench_shape *s, const struct call *c, double *wrong)
{
    int reduces = s->kind == SHERD_REDUCE_SCATTER || s->kind == SHERD_ALL_REDUCE;
    int64_t n = s->kind == SHERD_REDUCE_SCATTER ? s->count * b->ranks : s->count;
    if (s->count == 0)
        return SHERD_OK;
    TRY(sherd_fill(b->queue, &(struct sherd_fill){ .dst = c->out, .bytes = c->out_bytes, .byte = 0xff }));
    if (s->kind != SHERD_BROADCAST || b->rank == b->desc.root) {
        make_pattern(b, n, b->rank, b->rank + 1, reduces && b->desc.reduce == SHERD_REDUCE_SUM);
        TRY(put(b, c->in, n));
    }
    TRY(call(b, s, c));
    TRY(sherd_queue_sync(b->queue));
    return verify(b, s, c->out, wrong);
}

/* Each call in memory that the calls before it did not touch, while there is some: as in training, no cache
 * holds it. */
static int calls(struct bench *b, const struct bench_shape *s, int in_place, int64_t n)
{
    int64_t end = turns(b, s), turn = 0;
    for (int64_t i = 0; i < n; i++) {
        struct call c = place(b, s, in_place, turn);
        TRY(call(b, s, &c));
        turn = turn + 1 < end ? turn + 1 : 0;
    }
    return sherd_queue_sync(b->queue);
}

static int clock_calls(struct bench *b, const struct bench_shape *s, int in_place, double *seconds)
{
    TRY(calls(b, s, in_place, b->desc.warmup));
    TRY(sherd_comm_barrier(b->desc.comm));
    double start = clock_seconds();
    TRY(calls(b, s, in_place, b->desc.iters));
    *seconds = (clock_seconds() - start) / (double)b->desc.iters;
    return SHERD_OK;
}

int bench_run(struct bench *b, const struct bench_shape *s, int in_place, struct bench_figure *out)
{
    double figures[2] = { 0, 0 };
    struct call c = place(b, s, in_place, 0);
    TRY(clock_calls(b, s, in_place, &figures[0]));
    if (b->desc.check)
        TRY(check(b, s, &c, &figures[1]));
    TRY(copy(b, b->numbers, figures, sizeof(figures)));
    TRY(sherd_all_reduce(b->sums, b->queue, b->numbers, b->numbers, 2, SHERD_F64, SHERD_REDUCE_SUM));
    TRY(copy(b, figures, b->numbers, sizeof(figures)));
    TRY(sherd_queue_sync(b->queue));
    *out = (struct bench_figure){ figures[0] / b->ranks, figures[1] };
    return SHERD_OK;
}

/* ---- memory ---- */

static int check_room(const struct bench_desc *d, const struct bench_memory need[2])
{
    char want[32], have[32];
    size_t total = 0, available = 0, bytes = 0;
    for (int i = 0; i < 2; i++)
        bytes += need[i].a_bytes + need[i].b_bytes;
    TRY(sherd_device_memory(d->device, &total, &available));
    int sharing = strcmp(sherd_device_name(d->device), "cpu") == 0 ? d->local_size : 1;
    if (bytes > available / (size_t)sharing)
        return sherd_fail(SHERD_ENOMEM,
            "the largest size needs %s of device memory for each rank (input and output), and %s are free%s: "
            "give a smaller -e",
            text_human_bytes((double)bytes, want),
            text_human_bytes((double)(available / (size_t)sharing), have), sharing > 1 ? " for each" : "");
    return SHERD_OK;
}

static int alloc(struct bench *b, void **out, size_t bytes)
{
    if (bytes == 0)
        return SHERD_OK;
    TRY(sherd_device_alloc(b->desc.device, out, bytes));
    return sherd_fill(b->queue, &(struct sherd_fill){ .dst = *out, .bytes = bytes });
}

static int expose(struct bench *b, struct sherd_comm *comm)
{
    if (b->at[0].a_bytes)
        TRY(sherd_comm_expose(comm, b->at[0].a, b->at[0].a_bytes));
    return b->at[0].b_bytes ? sherd_comm_expose(comm, b->at[0].b, b->at[0].b_bytes) : SHERD_OK;
}

int bench_open(struct bench *b, const struct bench_desc *desc, const struct bench_memory need[2])
{
    *b = (struct bench){ .desc = *desc,
        .rank = sherd_comm_rank(desc->comm),
        .ranks = sherd_comm_size(desc->comm),
        .each = sherd_dtype_bytes(desc->type) };
    TRY(check_room(desc, need));
    TRY(sherd_queue_create(&b->queue, desc->device, SHERD_QUEUE_SIDE));
    for (int i = 0; i < 2; i++) {
        b->at[i].a_bytes = need[i].a_bytes;
        b->at[i].b_bytes = need[i].b_bytes;
        TRY(alloc(b, &b->at[i].a, need[i].a_bytes));
        TRY(alloc(b, &b->at[i].b, need[i].b_bytes));
    }
    TRY(alloc(b, &b->numbers, NUMBERS_BYTES));
    TRY(sherd_host_alloc(desc->device, (void **)&b->pattern, (size_t)PERIOD * b->each));
    TRY(sherd_host_alloc(desc->device, (void **)&b->piece, (size_t)PERIOD * b->each));
    TRY(sherd_queue_sync(b->queue));
    TRY(sherd_comm_barrier(desc->comm));
    TRY(sherd_comm_dup(&b->sums, desc->comm));
    if (need[0].gathers)
        TRY(expose(b, desc->comm));
    return need[0].sums ? expose(b, b->sums) : SHERD_OK;
}

void bench_close(struct bench *b)
{
    sherd_queue_destroy(b->queue);
    for (int i = 0; i < 2; i++) {
        if (i == 0 && b->sums) {
            sherd_comm_conceal(b->sums, b->at[i].a);
            sherd_comm_conceal(b->sums, b->at[i].b);
        }
        if (i == 0 && b->desc.comm) {
            sherd_comm_conceal(b->desc.comm, b->at[i].a);
            sherd_comm_conceal(b->desc.comm, b->at[i].b);
        }
        sherd_device_free(b->desc.device, b->at[i].a);
        sherd_device_free(b->desc.device, b->at[i].b);
    }
    sherd_comm_close(b->sums);
    if (b->desc.device) {
        sherd_device_free(b->desc.device, b->numbers);
        sherd_host_free(b->desc.device, b->pattern);
        sherd_host_free(b->desc.device, b->piece);
    }
}
