/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Rates of the CPU's operations: what streams beside a plain copy by the same threads, products beside
 * OpenBLAS with its own threads. Usage: cpu_ops [THREADS]. The best of some runs is shown.
 */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cblas.h>
#include <sherd/ops.h>

#include "bench/check.h"
#include "base/clock.h"
#include "base/rng.h"
#include "base/status.h"
#include "device/cpu/cpu.h"

#define RUNS 11
#define STREAM_ELEMS (INT64_C(24) << 20)

struct bench {
    struct sherd_device *dev;
    struct sherd_queue *queue;
    int threads;
    char *dst, *src; /* of the plain copy */
};

static void *take(struct bench *b, int64_t elems, size_t bytes)
{
    void *p = NULL;
    check(sherd_device_alloc(b->dev, &p, (size_t)elems * bytes));
    check(sherd_fill(b->queue, &(struct sherd_fill){ .dst = p, .bytes = (size_t)elems * bytes }));
    return p;
}

static float *take_random(struct bench *b, int64_t n)
{
    float *p = take(b, n, sizeof(float));
    rng_normal(p, n, 1, 1, 0, 1.0f);
    return p;
}

/* Seconds of the fastest run. */
static double best(struct bench *b, int (*run)(struct sherd_queue *queue, const void *args), const void *args)
{
    double least = INFINITY;
    for (int i = 0; i < RUNS; i++) {
        double start = clock_seconds();
        check(run(b->queue, args));
        check(sherd_queue_sync(b->queue));
        least = fmin(least, clock_seconds() - start);
    }
    return least;
}

#define XX(name)                                                                                             \
    static inline int run_##name(struct sherd_queue *queue, const void *args)                                \
    {                                                                                                        \
        return sherd_##name(queue, args);                                                                    \
    }
SHERD_OPS(XX)
#undef XX

/* ---- streams ---- */

/* A copy by threads of its own, each one piece: what the memory can do. */
struct piece {
    char *dst;
    const char *src;
    size_t bytes;
};

static void *copy_piece(void *arg)
{
    const struct piece *p = arg;
    memcpy(p->dst, p->src, p->bytes);
    return NULL;
}

static double plain_copy(const struct bench *b)
{
    enum { MAX = 256 };
    pthread_t threads[MAX];
    struct piece pieces[MAX];
    int n = b->threads < MAX ? b->threads : MAX;
    size_t bytes = (size_t)STREAM_ELEMS * 4 / (size_t)n;
    double start = clock_seconds();
    for (int i = 0; i < n; i++) {
        pieces[i] = (struct piece){ b->dst + bytes * (size_t)i, b->src + bytes * (size_t)i, bytes };
        if (pthread_create(&threads[i], NULL, copy_piece, &pieces[i]) != 0)
            exit(1);
    }
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    return clock_seconds() - start;
}

/* The operation and the plain copy in turns, so that both see the same machine. */
static void stream(struct bench *b, const char *name, double elem_bytes,
    int (*run)(struct sherd_queue *queue, const void *args), const void *args)
{
    double least = INFINITY, copy = INFINITY, bytes = elem_bytes * (double)STREAM_ELEMS;
    for (int i = 0; i < RUNS; i++) {
        double start = clock_seconds();
        check(run(b->queue, args));
        check(sherd_queue_sync(b->queue));
        least = fmin(least, clock_seconds() - start);
        copy = fmin(copy, plain_copy(b));
    }
    double rate = bytes / least, copy_rate = 8.0 * (double)STREAM_ELEMS / copy;
    printf("%-36s %8.2f ms %8.2f GB/s %6.0f %% of a plain copy (%.2f GB/s)\n", name, 1e3 * least, 1e-9 * rate,
        100 * rate / copy_rate, 1e-9 * copy_rate);
}

static void streams(struct bench *b)
{
    const int64_t n = STREAM_ELEMS;
    float *w = take_random(b, n), *m = take_random(b, n), *v = take(b, n, 4), *g = take_random(b, n);
    void *half = take(b, n, 2), *half_grad = take(b, n, 2), *scratch = take(b, n / 1024, 8);
    float *factor = take(b, 1, 4);
    double *sum = take(b, 1, 8);
    *factor = 1;
    b->dst = take(b, n, 4);
    b->src = take(b, n, 4);
    stream(b, "copy", 8, run_copy, &(struct sherd_copy){ .dst = m, .src = g, .bytes = (size_t)n * 4 });
    struct sherd_adamw a = { .master = w,
        .m = m,
        .v = v,
        .grad = g,
        .factor = factor,
        .n = n,
        .step = 10,
        .lr = 1e-3f,
        .beta1 = 0.9f,
        .beta2 = 0.95f,
        .eps = 1e-8f,
        .weight_decay = 0.1f,
        .grad_type = SHERD_F32,
        .state_type = SHERD_F32 };
    stream(b, "adamw f32", 28, run_adamw, &a);
    a.param = half;
    a.param_type = SHERD_BF16;
    stream(b, "adamw f32, bf16 param", 30, run_adamw, &a);
    a.grad = half_grad;
    a.grad_type = SHERD_BF16;
    stream(b, "adamw bf16 grad and param", 28, run_adamw, &a);
    stream(b, "square_sum f32", 4, run_square_sum,
        &(struct sherd_square_sum){ .sum = sum, .x = g, .n = n, .type = SHERD_F32, .scratch = scratch });
    stream(b, "accumulate bf16", 10, run_accumulate,
        &(struct sherd_accumulate){ .dst = m, .src = half_grad, .n = n, .src_type = SHERD_BF16 });
    stream(
        b, "add f32", 12, run_add, &(struct sherd_add){ .y = w, .a = m, .b = g, .n = n, .type = SHERD_F32 });
    stream(b, "cast f32 to bf16", 6, run_cast,
        &(struct sherd_cast){ .y = half, .x = g, .n = n, .y_type = SHERD_BF16, .x_type = SHERD_F32 });
    void *all[] = { w, m, v, g, half, half_grad, scratch, factor, sum, b->dst, b->src };
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        sherd_device_free(b->dev, all[i]);
}

/* ---- products ---- */

static double blas_seconds(const struct bench *b, const struct sherd_matmul *a)
{
    double least = INFINITY;
    openblas_set_num_threads(b->threads);
    for (int i = 0; i < RUNS; i++) {
        double start = clock_seconds();
        cblas_sgemm(CblasRowMajor, a->trans_a ? CblasTrans : CblasNoTrans,
            a->trans_b ? CblasTrans : CblasNoTrans, (blasint)a->m, (blasint)a->n, (blasint)a->k, 1.0f, a->a,
            (blasint)(a->trans_a ? a->m : a->k), a->b, (blasint)(a->trans_b ? a->k : a->n), 0.0f, a->c,
            (blasint)a->n);
        least = fmin(least, clock_seconds() - start);
    }
    openblas_set_num_threads(1);
    return least;
}

static void product(
    struct bench *b, const char *name, int64_t m, int64_t n, int64_t k, int trans_a, int trans_b)
{
    float *x = take_random(b, m * k), *y = take_random(b, n * k), *z = take(b, m * n, 4);
    struct sherd_matmul a = { .c = z,
        .a = x,
        .b = y,
        .m = m,
        .n = n,
        .k = k,
        .trans_a = trans_a,
        .trans_b = trans_b,
        .type = SHERD_F32,
        .c_type = SHERD_F32 };
    double flops = 2.0 * (double)m * (double)n * (double)k;
    double blas = blas_seconds(b, &a), ours = best(b, run_matmul, &a);
    a.type = a.c_type = SHERD_BF16;
    memset(x, 0, (size_t)(m * k) * 4);
    memset(y, 0, (size_t)(n * k) * 4);
    double half = best(b, run_matmul, &a);
    printf("%-14s %5lld %5lld %5lld %s%s  OpenBLAS %7.1f  f32 %7.1f (%3.0f %%)  bf16 %7.1f GFLOP/s\n", name,
        (long long)m, (long long)n, (long long)k, trans_a ? "T" : "N", trans_b ? "T" : "N",
        1e-9 * flops / blas, 1e-9 * flops / ours, 100 * blas / ours, 1e-9 * flops / half);
    sherd_device_free(b->dev, x);
    sherd_device_free(b->dev, y);
    sherd_device_free(b->dev, z);
}

static void products(struct bench *b)
{
    product(b, "square", 1024, 1024, 1024, 0, 1);
    product(b, "linear", 1024, 3072, 768, 0, 1);
    product(b, "its dx", 1024, 768, 3072, 0, 0);
    product(b, "its dw", 3072, 768, 1024, 1, 0);
    product(b, "small dw", 256, 64, 8192, 1, 0);
    product(b, "logits", 256, 50257, 768, 0, 1);
    product(b, "tall", 16384, 64, 64, 0, 1);
    product(b, "one row", 1, 3072, 768, 0, 1);
}

/* ---- the rest ---- */

static void time_row(const char *name, double elems, double flops, double seconds)
{
    printf("%-36s %8.2f ms %8.2f G elements/s", name, 1e3 * seconds, 1e-9 * elems / seconds);
    if (flops > 0)
        printf(" %8.1f GFLOP/s", 1e-9 * flops / seconds);
    printf("\n");
}

static void attention(struct bench *b, enum sherd_dtype type, int64_t seq, int64_t dim)
{
    const int64_t heads = 12, n = seq * heads * dim;
    size_t bytes = sherd_dtype_bytes(type);
    void *qkv = take(b, 3 * n, bytes), *dqkv = take(b, 3 * n, bytes), *out = take(b, n, bytes),
         *dout = take(b, n, bytes);
    float *lse = take(b, seq * heads, 4);
    struct sherd_attention_forward f = { .out = out,
        .lse = lse,
        .qkv = qkv,
        .batch = 1,
        .seq = seq,
        .heads = heads,
        .kv_heads = heads,
        .head_dim = dim,
        .scale = 0.125f,
        .type = type };
    struct sherd_attention_backward g = { .dqkv = dqkv,
        .dout = dout,
        .out = out,
        .qkv = qkv,
        .lse = lse,
        .batch = 1,
        .seq = seq,
        .heads = heads,
        .kv_heads = heads,
        .head_dim = dim,
        .scale = 0.125f,
        .type = type };
    f.scratch = take(b, (int64_t)sherd_attention_forward_scratch(&f), 1);
    g.scratch = take(b, (int64_t)sherd_attention_backward_scratch(&g, "cpu"), 1);
    char name[64];
    snprintf(name, sizeof(name), "attention forward %s T%lld D%lld", sherd_dtype_name(type), (long long)seq,
        (long long)dim);
    time_row(name, (double)n, op_flops(OP_attention_forward, &f), best(b, run_attention_forward, &f));
    snprintf(name, sizeof(name), "attention backward %s T%lld D%lld", sherd_dtype_name(type), (long long)seq,
        (long long)dim);
    time_row(name, (double)n, op_flops(OP_attention_backward, &g), best(b, run_attention_backward, &g));
    void *all[] = { qkv, dqkv, out, dout, lse, f.scratch, g.scratch };
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        sherd_device_free(b->dev, all[i]);
}

static void layers(struct bench *b, enum sherd_dtype type)
{
    const int64_t rows = 1024, cols = 768, n = rows * cols, vocab = 50257, vocab_rows = 256;
    void *x = take(b, 4 * n, 4), *y = take(b, 4 * n, 4), *w = take(b, cols, 4), *dw = take(b, cols, 4);
    void *scratch = take(b, 1 << 20, 8), *logits = take(b, vocab_rows * vocab, 4);
    float *mean = take(b, rows, 4), *rstd = take(b, rows, 4);
    double *sum = take(b, 1, 8), *count = take(b, 1, 8);
    int32_t *targets = take(b, vocab_rows, 4);
    const char *t = sherd_dtype_name(type);
    char name[64];
    *count = 256;
    struct sherd_norm_forward f = { .y = y,
        .mean = mean,
        .rstd = rstd,
        .x = x,
        .w = w,
        .b = w,
        .rows = rows,
        .cols = cols,
        .eps = 1e-5f,
        .type = type };
    struct sherd_norm_backward g = { .dx = y,
        .dw = dw,
        .db = dw,
        .dy = x,
        .x = x,
        .w = w,
        .mean = mean,
        .rstd = rstd,
        .rows = rows,
        .cols = cols,
        .type = type,
        .grad_type = SHERD_F32,
        .scratch = scratch };
    struct sherd_gelu_forward act = { .y = y, .x = x, .n = 4 * n, .type = type };
    struct sherd_gelu_backward dact = { .dx = y, .dy = x, .x = x, .n = 4 * n, .type = type };
    struct sherd_swiglu_forward glu = { .y = y, .x = x, .rows = rows, .cols = 2 * cols, .type = type };
    struct sherd_loss loss = { .logits = logits,
        .sum = sum,
        .count = count,
        .targets = targets,
        .rows = vocab_rows,
        .vocab = vocab,
        .backward = 1,
        .type = type,
        .scratch = scratch };
    snprintf(name, sizeof(name), "norm forward %s", t);
    time_row(name, (double)n, 0, best(b, run_norm_forward, &f));
    snprintf(name, sizeof(name), "norm backward %s", t);
    time_row(name, (double)n, 0, best(b, run_norm_backward, &g));
    snprintf(name, sizeof(name), "gelu forward %s", t);
    time_row(name, (double)(4 * n), 0, best(b, run_gelu_forward, &act));
    snprintf(name, sizeof(name), "gelu backward %s", t);
    time_row(name, (double)(4 * n), 0, best(b, run_gelu_backward, &dact));
    snprintf(name, sizeof(name), "swiglu forward %s", t);
    time_row(name, (double)(2 * n), 0, best(b, run_swiglu_forward, &glu));
    snprintf(name, sizeof(name), "loss and gradient %s", t);
    time_row(name, (double)(vocab_rows * vocab), 0, best(b, run_loss, &loss));
    void *all[] = { x, y, w, dw, scratch, logits, mean, rstd, sum, count, targets };
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        sherd_device_free(b->dev, all[i]);
}

int main(int argc, char **argv)
{
    struct bench b = { .threads = argc > 1 ? atoi(argv[1]) : 0 };
    check(sherd_device_open(&b.dev, &(struct sherd_device_desc){ .name = "cpu", .threads = b.threads }));
    check(sherd_queue_create(&b.queue, b.dev, SHERD_QUEUE_COMPUTE));
    b.threads = cpu_pool_threads(((struct cpu *)b.dev->impl)->pool);
    printf("%d threads, best of %d\n", b.threads, RUNS);
    streams(&b);
    products(&b);
    for (int half = 0; half < 2; half++) {
        enum sherd_dtype type = half ? SHERD_BF16 : SHERD_F32;
        attention(&b, type, 1024, 64);
        attention(&b, type, 128, 64);
        layers(&b, type);
    }
    sherd_queue_destroy(b.queue);
    sherd_device_close(b.dev);
    return 0;
}
