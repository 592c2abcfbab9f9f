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

#include <sherd/ops.h>

#include "bench/check.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"
#include "device/ops.h"

#define MAX_TURNS 99
#define MAX_SETS 64
#define SMALL ((size_t)64 << 20) /* bytes of the random block, and of what is not spread */

union args {
#define XX(name) struct sherd_##name name;
    SHERD_OPS(XX)
#undef XX
};

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

/* What a model has a GPU do in one step. */
struct shape {
    const char *name;
    int64_t rows, seq, width, mlp, heads, kv_heads, head_dim, vocab, vocab_pitch, loss_rows;
    int64_t params; /* of a block: what is updated at once */
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
    char *memory, *block;   /* what the calls go through; random values */
    char *small, *heat_mem; /* not spread: weights, sums, tokens; the product's */
    size_t bytes;           /* of memory */
    struct sherd_matmul heat;
    int heats; /* products between two measurements */
};

/* Operands of one call, in memory from base on; some are filled, unless they are only to be counted. */
struct place {
    struct bench *b;
    char *base;
    size_t at;
    int fill;
};

struct work {
    const char *note;
    enum op_index op;
    void (*place)(struct place *p, const struct shape *s, union args *a);
};

/* ---- operands ---- */

static void *take(struct place *p, int64_t elems, size_t each)
{
    char *at = p->base + p->at;
    p->at += (size_t)round_up(elems * (int64_t)each, 4096);
    return at;
}

static void *halves(struct place *p, int64_t elems)
{
    return take(p, elems, 2);
}

/* Floats of 0.0115, for what is never below 0. */
static void *above_zero(struct place *p, int64_t elems, size_t each)
{
    void *at = take(p, elems, each);
    if (p->fill)
        check(sherd_fill(
            p->b->queue, &(struct sherd_fill){ .dst = at, .bytes = (size_t)elems * each, .byte = 0x3c }));
    return at;
}

/* Parts of `small`: 1.0f; 1.0; sums; a vector of weights and their gradients; whole numbers below 32000;
 * scratch. */
enum {
    ONE_FLOAT = 0,
    ONE = 256,
    SUM = 512,
    WEIGHT = 4096,
    GRAD = 1 << 20,
    TOKENS = 2 << 20,
    SCRATCH = 8 << 20
};
#define SMALL_TOKENS ((SCRATCH - TOKENS) / 4)

static void *small(const struct place *p, int part)
{
    return p->b->small + part;
}

static void norm_forward_of(struct place *p, const struct shape *s, union args *a, enum sherd_norm_kind kind)
{
    a->norm_forward = (struct sherd_norm_forward){ .y = halves(p, s->rows * s->width),
        .x = halves(p, s->rows * s->width),
        .w = small(p, WEIGHT),
        .b = kind == SHERD_LAYER_NORM ? small(p, WEIGHT) : NULL,
        .mean = kind == SHERD_LAYER_NORM ? take(p, s->rows, 4) : NULL,
        .rstd = take(p, s->rows, 4),
        .rows = s->rows,
        .cols = s->width,
        .eps = 1e-5f,
        .kind = kind,
        .type = SHERD_BF16 };
}

static void rms_forward(struct place *p, const struct shape *s, union args *a)
{
    norm_forward_of(p, s, a, SHERD_RMS_NORM);
}

static void layer_norm_forward(struct place *p, const struct shape *s, union args *a)
{
    norm_forward_of(p, s, a, SHERD_LAYER_NORM);
}

static void norm_backward_of(
    struct place *p, const struct shape *s, union args *a, enum sherd_norm_kind kind, int with_y)
{
    void *dy = halves(p, s->rows * s->width), *add = halves(p, s->rows * s->width);
    int layer = kind == SHERD_LAYER_NORM;
    a->norm_backward = (struct sherd_norm_backward){ .dx = add,
        .dw = small(p, GRAD),
        .db = layer ? (char *)small(p, GRAD) + (GRAD / 2) : NULL,
        .y = with_y ? dy : NULL,
        .dy = dy,
        .x = halves(p, s->rows * s->width),
        .w = small(p, WEIGHT),
        .b = layer ? small(p, WEIGHT) : NULL,
        .add = add,
        .mean = layer ? take(p, s->rows, 4) : NULL,
        .rstd = above_zero(p, s->rows, 4),
        .rows = s->rows,
        .cols = s->width,
        .kind = kind,
        .type = SHERD_BF16,
        .grad_type = SHERD_F32,
        .overwrite_dw = 1,
        .overwrite_db = 1,
        .scratch = small(p, SCRATCH) };
}

static void rms_backward(struct place *p, const struct shape *s, union args *a)
{
    norm_backward_of(p, s, a, SHERD_RMS_NORM, 0);
}

static void rms_backward_y(struct place *p, const struct shape *s, union args *a)
{
    norm_backward_of(p, s, a, SHERD_RMS_NORM, 1);
}

static void layer_norm_backward(struct place *p, const struct shape *s, union args *a)
{
    norm_backward_of(p, s, a, SHERD_LAYER_NORM, 0);
}

static void layer_norm_backward_y(struct place *p, const struct shape *s, union args *a)
{
    norm_backward_of(p, s, a, SHERD_LAYER_NORM, 1);
}

static void swiglu_forward(struct place *p, const struct shape *s, union args *a)
{
    a->swiglu_forward = (struct sherd_swiglu_forward){ .y = halves(p, s->rows * s->mlp),
        .x = halves(p, 2 * s->rows * s->mlp),
        .rows = s->rows,
        .cols = s->mlp,
        .type = SHERD_BF16 };
}

static void swiglu_backward(struct place *p, const struct shape *s, union args *a)
{
    void *x = halves(p, 2 * s->rows * s->mlp);
    a->swiglu_backward = (struct sherd_swiglu_backward){ .dx = x,
        .dy = halves(p, s->rows * s->mlp),
        .x = x,
        .rows = s->rows,
        .cols = s->mlp,
        .type = SHERD_BF16 };
}

static void swiglu_backward_y(struct place *p, const struct shape *s, union args *a)
{
    swiglu_backward(p, s, a);
    a->swiglu_backward.y = (void *)(uintptr_t)a->swiglu_backward.dy;
}

static void gelu_forward(struct place *p, const struct shape *s, union args *a)
{
    a->gelu_forward = (struct sherd_gelu_forward){ .y = halves(p, s->rows * s->mlp),
        .x = halves(p, s->rows * s->mlp),
        .n = s->rows * s->mlp,
        .type = SHERD_BF16 };
}

static void gelu_backward(struct place *p, const struct shape *s, union args *a)
{
    void *x = halves(p, s->rows * s->mlp);
    a->gelu_backward = (struct sherd_gelu_backward){
        .dx = x, .dy = halves(p, s->rows * s->mlp), .x = x, .n = s->rows * s->mlp, .type = SHERD_BF16
    };
}

static void rope(struct place *p, const struct shape *s, union args *a)
{
    a->rope = (struct sherd_rope){ .x = halves(p, s->rows * (s->heads + 2 * s->kv_heads) * s->head_dim),
        .batch = s->rows / s->seq,
        .seq = s->seq,
        .heads = s->heads + 2 * s->kv_heads,
        .rotated = s->heads + s->kv_heads,
        .head_dim = s->head_dim,
        .type = SHERD_BF16 };
    for (int64_t i = 0; i < s->head_dim / 2; i++)
        a->rope.inv_freq[i] = powf(10000.0f, -2.0f * (float)i / (float)s->head_dim);
}

static void bias_backward_of(struct place *p, const struct shape *s, union args *a, int64_t cols)
{
    a->bias_backward = (struct sherd_bias_backward){ .db = small(p, GRAD),
        .dy = halves(p, s->rows * cols),
        .rows = s->rows,
        .cols = cols,
        .type = SHERD_BF16,
        .grad_type = SHERD_F32,
        .overwrite = 1,
        .scratch = small(p, SCRATCH) };
}

static void bias_backward(struct place *p, const struct shape *s, union args *a)
{
    bias_backward_of(p, s, a, s->width);
}

static void wide_bias_backward(struct place *p, const struct shape *s, union args *a)
{
    bias_backward_of(p, s, a, s->mlp);
}

static void loss(struct place *p, const struct shape *s, union args *a)
{
    a->loss = (struct sherd_loss){ .logits = halves(p, s->loss_rows * s->vocab_pitch),
        .sum = small(p, SUM),
        .count = small(p, ONE),
        .targets = small(p, TOKENS),
        .rows = s->loss_rows,
        .vocab = s->vocab,
        .pitch = s->vocab_pitch,
        .backward = 1,
        .type = SHERD_BF16,
        .scratch = small(p, SCRATCH) };
}

static void embed_forward(struct place *p, const struct shape *s, union args *a)
{
    a->embed_forward = (struct sherd_embed_forward){ .y = halves(p, s->rows * s->width),
        .wte = halves(p, s->vocab * s->width),
        .tokens = small(p, TOKENS),
        .batch = s->rows / s->seq,
        .seq = s->seq,
        .width = s->width,
        .vocab = s->vocab,
        .type = SHERD_BF16 };
}

static void embed_backward(struct place *p, const struct shape *s, union args *a)
{
    a->embed_backward = (struct sherd_embed_backward){ .dwte = take(p, s->vocab * s->width, 4),
        .dy = halves(p, s->rows * s->width),
        .tokens = small(p, TOKENS),
        .batch = s->rows / s->seq,
        .seq = s->seq,
        .width = s->width,
        .vocab = s->vocab,
        .type = SHERD_BF16,
        .grad_type = SHERD_F32,
        .scratch = small(p, SCRATCH) };
}

static void adamw(struct place *p, const struct shape *s, union args *a)
{
    a->adamw = (struct sherd_adamw){ .param = halves(p, s->params),
        .master = take(p, s->params, 4),
        .m = take(p, s->params, 4),
        .v = above_zero(p, s->params, 4),
        .grad = take(p, s->params, 4),
        .factor = small(p, ONE_FLOAT),
        .n = s->params,
        .step = 10,
        .lr = 1e-3f,
        .beta1 = 0.9f,
        .beta2 = 0.95f,
        .eps = 1e-8f,
        .weight_decay = 0.1f,
        .param_type = SHERD_BF16,
        .grad_type = SHERD_F32,
        .state_type = SHERD_F32 };
}

static void adamw_small(struct place *p, const struct shape *s, union args *a)
{
    adamw(p, s, a);
    a->adamw.m = halves(p, s->params);
    a->adamw.v = above_zero(p, s->params, 2);
    a->adamw.low = halves(p, s->params);
    a->adamw.master = NULL;
    a->adamw.state_type = SHERD_BF16;
}

static void accumulate(struct place *p, const struct shape *s, union args *a)
{
    a->accumulate = (struct sherd_accumulate){
        .dst = take(p, s->params, 4), .src = take(p, s->params, 4), .n = s->params, .src_type = SHERD_F32
    };
}

static void square_sum(struct place *p, const struct shape *s, union args *a)
{
    a->square_sum = (struct sherd_square_sum){ .sum = small(p, SUM),
        .x = take(p, s->params, 4),
        .n = s->params,
        .type = SHERD_F32,
        .scratch = small(p, SCRATCH) };
}

static void cast(struct place *p, const struct shape *s, union args *a)
{
    a->cast = (struct sherd_cast){ .y = halves(p, s->params),
        .x = take(p, s->params, 4),
        .n = s->params,
        .y_type = SHERD_BF16,
        .x_type = SHERD_F32 };
}

static void add(struct place *p, const struct shape *s, union args *a)
{
    int64_t n = s->rows * s->width;
    a->add = (struct sherd_add){
        .y = halves(p, n), .a = halves(p, n), .b = halves(p, n), .n = n, .type = SHERD_BF16
    };
}

static const struct work llama_work[] = {
    { "", OP_norm_forward, rms_forward },
    { "", OP_norm_backward, rms_backward },
    { "and y", OP_norm_backward, rms_backward_y },
    { "", OP_swiglu_forward, swiglu_forward },
    { "", OP_swiglu_backward, swiglu_backward },
    { "and y", OP_swiglu_backward, swiglu_backward_y },
    { "", OP_rope, rope },
    { "", OP_loss, loss },
    { "", OP_embed_forward, embed_forward },
    { "", OP_embed_backward, embed_backward },
    { "f32 states", OP_adamw, adamw },
    { "split, bf16", OP_adamw, adamw_small },
    { "f32", OP_accumulate, accumulate },
    { "f32", OP_square_sum, square_sum },
    { "f32 to bf16", OP_cast, cast },
    { "", OP_add, add },
};

static const struct work gpt2_work[] = {
    { "", OP_norm_forward, layer_norm_forward },
    { "", OP_norm_backward, layer_norm_backward },
    { "and y", OP_norm_backward, layer_norm_backward_y },
    { "", OP_gelu_forward, gelu_forward },
    { "", OP_gelu_backward, gelu_backward },
    { "", OP_bias_backward, bias_backward },
    { "", OP_bias_backward, wide_bias_backward },
    { "", OP_loss, loss },
    { "", OP_embed_backward, embed_backward },
    { "f32 states", OP_adamw, adamw },
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

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof(*v), ascending);
    return v[n / 2];
}

static size_t set_bytes(struct bench *b, const struct work *w, const struct shape *s)
{
    struct place p = { .b = b, .base = b->small };
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
            struct place p = { .b = b, .base = b->memory + each * (size_t)i, .fill = 1 };
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
    const double one = 1000;
    to_device(b, b->small + ONE_FLOAT, &one_float, sizeof(one_float));
    to_device(b, b->small + ONE, &one, sizeof(one));
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

/* The shape for fewer rows. */
static struct shape scaled(struct shape s, int64_t rows)
{
    if (rows == 0 || rows == s.rows)
        return s;
    s.loss_rows = MAX(1, s.loss_rows * rows / s.rows);
    s.params = MAX(1024, s.params / 1024 * rows / s.rows * 1024);
    s.seq = MIN(s.seq, rows);
    s.rows = rows / s.seq * s.seq;
    return s;
}

struct list {
    struct shape shape;
    const struct work *work;
    int n;
};

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

static int wanted(const struct bench *b, const struct list *l, const struct work *w)
{
    return (!b->o.model || strcmp(b->o.model, l->shape.name) == 0) && has_word(op_names[w->op], b->o.only);
}

static void run(struct bench *b, const struct list *lists, int n_lists)
{
    for (int i = 0; i < n_lists; i++)
        for (int j = 0; j < lists[i].n; j++) {
            size_t each = set_bytes(b, &lists[i].work[j], &lists[i].shape);
            if (wanted(b, &lists[i], &lists[i].work[j]))
                b->bytes = MAX(b->bytes, each * (size_t)sets_of(b, each));
        }
    if (b->bytes == 0) {
        fprintf(stderr, "kernels: no operation has one of \"%s\" in its name\n", b->o.only);
        exit(2);
    }
    b->memory = device_take(b, b->bytes);
    printf("%-48s %8s %9s %8s %9s %7s\n", "operation", "MB", "us", "GB/s", "copy, us", "of it %");
    for (int i = 0; i < n_lists; i++) {
        if (!b->o.model || strcmp(b->o.model, lists[i].shape.name) == 0)
            printf("%s, %lld rows\n", lists[i].shape.name, (long long)lists[i].shape.rows);
        for (int j = 0; j < lists[i].n; j++)
            if (wanted(b, &lists[i], &lists[i].work[j]))
                measure(b, &lists[i].work[j], &lists[i].shape);
    }
}

int main(int argc, char **argv)
{
    struct bench b = { .o = read_options(argc, argv) };
    const struct shape llama = { "llama", 16384, 2048, 2048, 5632, 32, 4, 64, 32000, 32000, 5462, 44044288 };
    const struct shape gpt2 = { "gpt2", 32768, 1024, 768, 3072, 12, 12, 64, 50257, 50304, 3277, 7087872 };
    const struct list lists[] = {
        { scaled(llama, b.o.rows), llama_work, (int)ARRAY_LEN(llama_work) },
        { scaled(gpt2, 2 * b.o.rows), gpt2_work, (int)ARRAY_LEN(gpt2_work) },
    };
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
    run(&b, lists, (int)ARRAY_LEN(lists));
    void *all[] = { b.memory, b.block, b.small, b.heat_mem };
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        sherd_device_free(b.dev, all[i]);
    sherd_event_destroy(b.from);
    sherd_event_destroy(b.to);
    sherd_queue_destroy(b.queue);
    sherd_device_close(b.dev);
    return 0;
}
