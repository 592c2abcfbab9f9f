/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Rates of the operations that memory bounds, at the shapes of two models, each beside a copy of as many
 * bytes (read and written) that is timed in turns with it. Calls go round through more memory than caches
 * hold. With --hot a matrix product runs between, long enough that the clock is that of a step: GPUs have
 * less of it under their power limit. `kernels --help` lists the options.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/check.h"
#include "bench/kernels.h"
#include "bench/median.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"

#define MAX_TURNS 99
#define MAX_SETS 64

#define XX(name)                                                                                             \
    static int call_##name(struct sherd_queue *queue, const void *args)                                      \
    {                                                                                                        \
        return sherd_##name(queue, args);                                                                    \
    }
SHERD_OPS(XX)
#undef XX

static op_fn const call[OP_COUNT] = {
#define XX(name) [OP_##name] = call_##name,
    SHERD_OPS(XX)
#undef XX
};

struct options {
    const char *device, *only, *model;
    int hot, turns;
    int64_t rows; /* of the first shape, 0 = its own */
};

struct bench {
    struct sherd_device *dev;
    struct sherd_queue *queue;
    struct sherd_event *from, *to;
    struct options o;
    size_t spread;          /* bytes that the calls of a measurement go through, at least */
    double burst;           /* seconds of calls that are timed at once, about */
    char *memory, *block;   /* what the calls go through; SMALL bytes of random values */
    char *small, *heat_mem; /* not spread: weights, sums, tokens; the product's */
    size_t bytes;           /* of memory */
    struct sherd_matmul heat;
    int heats; /* products between two measurements */
};

/* ---- time ---- */

/* As many bytes of `memory` as a measurement goes through have random values again. */
static void refill(struct bench *b, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += SMALL)
        check(sherd_copy(b->queue,
            &(struct sherd_copy){ .dst = b->memory + at, .src = b->block, .bytes = MIN(SMALL, bytes - at) }));
}

static void heat(struct bench *b)
{
    for (int i = 0; i < b->heats; i++)
        check(sherd_matmul(b->queue, &b->heat));
}

/* Milliseconds of a call, of `calls` that go round through the sets. */
static double burst(struct bench *b, enum op_index op, const union args *sets, int n_sets, int calls)
{
    double ms;
    heat(b);
    check(call[op](b->queue, &sets[n_sets - 1])); /* the host is ahead of the device from here on */
    check(sherd_event_record(b->from, b->queue));
    for (int i = 0; i < calls; i++)
        check(call[op](b->queue, &sets[i % n_sets]));
    check(sherd_event_record(b->to, b->queue));
    check(sherd_queue_sync(b->queue));
    check(sherd_event_elapsed(b->from, b->to, &ms));
    return ms / calls;
}

static size_t set_bytes(struct bench *b, const struct work *w, const struct shape *s)
{
    struct place p = { .queue = b->queue, .base = b->small, .small = b->small };
    union args a;
    w->place(&p, s, &a); /* what it moves depends on which operands are there, not on where */
    return MAX(p.at, (size_t)round_up((int64_t)op_bytes(w->op, &a), 8192));
}

static int sets_of(const struct bench *b, size_t bytes)
{
    size_t n = (b->spread + bytes - 1) / bytes;
    return n < 2 ? 2 : n > MAX_SETS ? MAX_SETS : (int)n;
}

static void measure(struct bench *b, const struct work *w, const struct shape *s)
{
    static union args sets[MAX_SETS], copies[MAX_SETS];
    double own[MAX_TURNS], copy[MAX_TURNS];
    char shape[48], name[80];
    size_t each = set_bytes(b, w, s);
    int n = sets_of(b, each), calls = n;
    for (int turn = -1; turn < b->o.turns; turn++) { /* the first to warm up, and for the number of calls */
        refill(b, each * (size_t)n);
        for (int i = 0; i < n; i++) {
            struct place p = {
                .queue = b->queue, .base = b->memory + each * (size_t)i, .small = b->small, .fill = 1
            };
            w->place(&p, s, &sets[i]);
            size_t half = (size_t)op_bytes(w->op, &sets[i]) / 2;
            copies[i].copy = (struct sherd_copy){ .dst = p.base, .src = p.base + each / 2, .bytes = half };
        }
        double ms = burst(b, w->op, sets, n, calls), copy_ms = burst(b, OP_copy, copies, n, calls);
        if (turn < 0)
            calls = (int)fmax(2, fmin(200, ceil(b->burst * 1e3 / ms)));
        else
            own[turn] = ms, copy[turn] = copy_ms;
    }
    double ms = median(own, b->o.turns), copy_ms = median(copy, b->o.turns);
    double bytes = op_bytes(w->op, &sets[0]);
    op_shape(w->op, &sets[0], shape);
    snprintf(name, sizeof(name), "%s %s%s%s", op_names[w->op], shape, *w->note ? ", " : "", w->note);
    printf("%-48s %8.1f %9.1f %8.0f %9.1f %7.1f\n", name, 1e-6 * bytes, 1e3 * ms, 1e-6 * bytes / ms,
        1e3 * copy_ms, 100 * copy_ms / ms);
    fflush(stdout);
}

/* ---- set-up ---- */

static void to_device(struct bench *b, void *dst, const void *src, size_t bytes)
{
    check(sherd_copy(b->queue, &(struct sherd_copy){ .dst = dst, .src = src, .bytes = bytes }));
    check(sherd_queue_sync(b->queue));
}

static void *device_take(struct bench *b, size_t bytes)
{
    void *p;
    check(sherd_device_alloc(b->dev, &p, bytes));
    return p;
}

/* The upper halves of normal numbers: as bf16 and as float alike. */
static void fill_block(struct bench *b)
{
    enum { N = 1 << 20 };
    float *from = mem_zalloc(N, sizeof(*from));
    uint16_t *to = mem_zalloc(N, sizeof(*to));
    if (!from || !to)
        check(SHERD_ENOMEM);
    rng_normal(from, N, 1, 1, 0, 1.0f);
    for (int i = 0; i < N; i++)
        memcpy(&to[i], (const char *)&from[i] + 2, 2);
    for (size_t at = 0; at < SMALL; at += N * sizeof(*to))
        to_device(b, b->block + at, to, N * sizeof(*to));
    to_device(b, b->small + WEIGHT, to, GRAD - WEIGHT);
    int32_t *tokens = (int32_t *)(void *)from;
    for (int i = 0; i < SMALL_TOKENS && i < N; i++)
        tokens[i] = (int32_t)((uint32_t)i * 2654435761u >> 8) % 32000;
    to_device(b, b->small + TOKENS, tokens, MIN(SMALL_TOKENS, N) * sizeof(*tokens));
    mem_free(from);
    mem_free(to);
    const float one_float = 1;
    const double count = 1000;
    to_device(b, b->small + ONE_FLOAT, &one_float, sizeof(one_float));
    to_device(b, b->small + COUNT, &count, sizeof(count));
}

/* Products until the GPU has the clock that its power allows, and how many of them keep it there. */
static void begin_heat(struct bench *b, int64_t n, double before, double between)
{
    size_t matrix = (size_t)(n * n) * 2;
    b->heat_mem = device_take(b, 3 * matrix);
    for (size_t at = 0; at < 3 * matrix; at += SMALL)
        check(sherd_copy(
            b->queue, &(struct sherd_copy){
                          .dst = b->heat_mem + at, .src = b->block, .bytes = MIN(SMALL, 3 * matrix - at) }));
    b->heat = (struct sherd_matmul){ .a = b->heat_mem,
        .b = b->heat_mem + matrix,
        .c = b->heat_mem + 2 * matrix,
        .m = n,
        .n = n,
        .k = n,
        .type = SHERD_BF16,
        .c_type = SHERD_BF16 };
    check(sherd_matmul(b->queue, &b->heat));
    check(sherd_queue_sync(b->queue));
    double start = clock_seconds(), taken = 0;
    int done = 0;
    while (taken < before) {
        for (int i = 0; i < 8; i++)
            check(sherd_matmul(b->queue, &b->heat));
        check(sherd_queue_sync(b->queue));
        done += 8;
        taken = clock_seconds() - start;
    }
    b->heats = (int)ceil(between * done / taken);
}

static void usage(FILE *to)
{
    fprintf(to,
        "usage: kernels [--device cpu|cuda[:N]] [--hot] [--model llama|gpt2] [--only WORDS] [--turns N] "
        "[--rows N]\n"
        "  --hot    a matrix product runs between, so that the clock is that of a step\n"
        "  --only   the operations with one of the WORDS (norm,rope) in their name\n"
        "  --turns  measurements of each, 1 to 99; their median is shown (7)\n"
        "  --rows   rows of activations of the Llama, twice as many of GPT-2; weights in proportion\n"
        "           (16384)\n");
}

static int64_t number(const char *name, const char *text, int64_t most)
{
    char *end;
    long long v = strtoll(text, &end, 10);
    if (end != text && *end == 0 && v >= 1 && v <= most)
        return v;
    fprintf(stderr, "kernels: %s %s: a number from 1 to %lld is needed\n", name, text, (long long)most);
    exit(2);
}

static struct options read_options(int argc, char **argv)
{
    struct options o = { .device = "cpu", .turns = 7 };
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(name, "--help") == 0) {
            usage(stdout);
            exit(0);
        }
        if (strcmp(name, "--hot") == 0) {
            o.hot = 1;
            continue;
        }
        i++;
        if (value && strcmp(name, "--device") == 0) {
            o.device = value;
        } else if (value && strcmp(name, "--only") == 0) {
            o.only = value;
        } else if (value && strcmp(name, "--turns") == 0) {
            o.turns = (int)number(name, value, MAX_TURNS);
        } else if (value && strcmp(name, "--rows") == 0) {
            o.rows = number(name, value, INT64_C(1) << 18);
        } else if (value && strcmp(name, "--model") == 0 &&
                   (strcmp(value, "llama") == 0 || strcmp(value, "gpt2") == 0)) {
            o.model = value;
        } else {
            fprintf(stderr, "kernels: %s %s is not understood\n", name, value ? value : "");
            usage(stderr);
            exit(2);
        }
    }
    return o;
}

/* The shape for fewer rows; `rows` are those of the first model. */
static struct shape scaled(struct shape s, int64_t rows)
{
    rows *= s.rows / timed_models[0].shape.rows;
    if (rows == 0 || rows == s.rows)
        return s;
    s.loss_rows = MAX(1, s.loss_rows * rows / s.rows);
    s.params = MAX(1024, s.params / 1024 * rows / s.rows * 1024);
    s.seq = MIN(s.seq, rows);
    s.rows = rows / s.seq * s.seq;
    return s;
}

/* Whether one of the words, separated by commas, is in the name; NULL: yes. */
static int has_word(const char *name, const char *words)
{
    char word[64];
    while (words && *words) {
        size_t n = strcspn(words, ",");
        snprintf(word, sizeof(word), "%.*s", (int)n, words);
        if (n > 0 && strstr(name, word))
            return 1;
        words += n + (words[n] == ',');
    }
    return !words;
}

static int wanted(const struct bench *b, const struct timed_model *m, const struct work *w)
{
    return (!b->o.model || strcmp(b->o.model, m->shape.name) == 0) && has_word(op_names[w->op], b->o.only);
}

static void run(struct bench *b, const struct timed_model models[TIMED_MODELS])
{
    for (int i = 0; i < TIMED_MODELS; i++)
        for (int j = 0; j < models[i].n; j++) {
            size_t each = set_bytes(b, &models[i].work[j], &models[i].shape);
            if (wanted(b, &models[i], &models[i].work[j]))
                b->bytes = MAX(b->bytes, each * (size_t)sets_of(b, each));
        }
    if (b->bytes == 0) {
        fprintf(stderr, "kernels: no operation has one of \"%s\" in its name\n", b->o.only);
        exit(2);
    }
    b->memory = device_take(b, b->bytes);
    printf("%-48s %8s %9s %8s %9s %7s\n", "operation", "MB", "us", "GB/s", "copy, us", "of it %");
    for (int i = 0; i < TIMED_MODELS; i++) {
        if (!b->o.model || strcmp(b->o.model, models[i].shape.name) == 0)
            printf("%s, %lld rows\n", models[i].shape.name, (long long)models[i].shape.rows);
        for (int j = 0; j < models[i].n; j++)
            if (wanted(b, &models[i], &models[i].work[j]))
                measure(b, &models[i].work[j], &models[i].shape);
    }
}

int main(int argc, char **argv)
{
    struct bench b = { .o = read_options(argc, argv) };
    struct timed_model models[TIMED_MODELS];
    for (int i = 0; i < TIMED_MODELS; i++) {
        models[i] = timed_models[i];
        models[i].shape = scaled(timed_models[i].shape, b.o.rows);
    }
    check(sherd_device_open(&b.dev, &(struct sherd_device_desc){ .name = b.o.device }));
    check(sherd_queue_create(&b.queue, b.dev, SHERD_QUEUE_COMPUTE));
    check(sherd_event_create(&b.from, b.dev));
    check(sherd_event_create(&b.to, b.dev));
    int gpu = b.dev->ops->behind;
    b.spread = (size_t)(gpu ? 512 : 64) << 20;
    b.burst = gpu ? 2e-3 : 1e-2;
    b.block = device_take(&b, SMALL);
    b.small = device_take(&b, SMALL);
    fill_block(&b);
    if (b.o.hot)
        begin_heat(&b, gpu ? 8192 : 512, gpu ? 1.5 : 0.1, gpu ? 15e-3 : 1e-2);
    printf("%s%s, medians of %d\n", sherd_device_name(b.dev), b.o.hot ? ", hot" : "", b.o.turns);
    run(&b, models);
    void *all[] = { b.memory, b.block, b.small, b.heat_mem };
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        sherd_device_free(b.dev, all[i]);
    sherd_event_destroy(b.from);
    sherd_event_destroy(b.to);
    sherd_queue_destroy(b.queue);
    sherd_device_close(b.dev);
    return 0;
}
