/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Rates of a device by its own operations, and the file that keeps them.
 */
#include "tools/rates.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "tools/args.h"
#include "tools/out.h"

#define TRY(x)                                                                                               \
    do {                                                                                                     \
        int try_ = (x);                                                                                      \
        if (try_ != SHERD_OK)                                                                                \
            return try_;                                                                                     \
    } while (0)

/* Of one measurement. A GPU is measured at the clock it can hold: the products of a step draw all the power
 * there is, and in the first tenth of a second it is faster. */
#define LEAST_SECONDS 0.05
#define LEAST_SECONDS_GPU 0.3
#define WARM_SECONDS_GPU 1.5
#define PATTERN_BYTES                                                                                        \
    ((size_t)1 << 20)   /* of random values, one after the other through the memory of a trial */
#define SMALL (1 << 20) /* elements whose sum shows what an operation takes to begin and to end */
#define TINY 64         /* bytes whose copy shows what a call costs */

/* How large the trials are; a GPU needs more work than a CPU to be busy. */
struct sizes {
    int64_t product[4]; /* m = n = k */
    int64_t batch, seq, heads, kv_heads, head_dim;
    int64_t rows, width, mlp_width; /* more of them than a cache holds */
    enum sherd_dtype type;
};
static const struct sizes cpu_sizes = { { 64, 128, 256, 512 }, 1, 128, 4, 2, 64, 2048, 256, 704, SHERD_F32 };
static const struct sizes gpu_sizes = { { 1024, 2048, 4096, 8192 }, 4, 2048, 32, 4, 64, 16384, 2048, 5632,
    SHERD_BF16 };

struct trial {
    struct sherd_device *device;
    struct sherd_queue *queue;
    const struct sizes *s;
    void *memory; /* of the largest trial, filled with small random values */
    size_t bytes;
    double least; /* seconds of a measurement */
};

void rates_link_add(struct rates_link *l, enum sherd_collective kind, double bus_bytes, double seconds)
{
    int n = l->n[kind];
    if (n == RATES_SIZES || !(bus_bytes > 0) || !(seconds > 0))
        return;
    l->bytes[kind][n] = bus_bytes;
    l->seconds[kind][n] = seconds;
    l->n[kind]++;
}

typedef int (*op_call)(struct sherd_queue *queue, const void *args);

/* Seconds of one call: twice as many calls until they take long enough. The first is to warm up. */
static int clock_op(struct trial *t, op_call op, const void *args, double *out)
{
    TRY(op(t->queue, args));
    TRY(sherd_queue_sync(t->queue));
    for (int64_t n = 1;; n *= 2) {
        double start = clock_seconds();
        for (int64_t i = 0; i < n; i++)
            TRY(op(t->queue, args));
        TRY(sherd_queue_sync(t->queue));
        double seconds = clock_seconds() - start;
        *out = seconds / (double)n;
        if (seconds >= t->least)
            return SHERD_OK;
    }
}

#define OP(name)                                                                                             \
    static int call_##name(struct sherd_queue *q, const void *args)                                          \
    {                                                                                                        \
        return sherd_##name(q, args);                                                                        \
    }
OP(copy)
OP(add)
OP(matmul)
OP(attention_forward)
OP(attention_backward)
OP(swiglu_forward)
OP(swiglu_backward)
OP(norm_forward)
OP(norm_backward)
#undef OP

static struct sherd_matmul product_of(const struct trial *t, int64_t n)
{
    size_t matrix = (size_t)(n * n) * sherd_dtype_bytes(t->s->type);
    char *at = t->memory;
    return (struct sherd_matmul){ .a = at,
        .b = at + matrix,
        .c = at + 2 * matrix,
        .m = n,
        .n = n,
        .k = n,
        .type = t->s->type,
        .c_type = t->s->type };
}

static int warm_up(struct trial *t)
{
    struct sherd_matmul a = product_of(t, t->s->product[COUNT_OF(t->s->product) - 1]);
    for (double start = clock_seconds(); clock_seconds() - start < WARM_SECONDS_GPU;) {
        for (int i = 0; i < 16; i++)
            TRY(sherd_matmul(t->queue, &a));
        TRY(sherd_queue_sync(t->queue));
    }
    return SHERD_OK;
}

static int products(struct trial *t, struct sherd_machine *m)
{
    for (int i = 0; i < COUNT_OF(t->s->product); i++) {
        int64_t n = t->s->product[i];
        struct sherd_matmul a = product_of(t, n);
        double seconds, flops = 2.0 * (double)n * (double)n * (double)n;
        TRY(clock_op(t, call_matmul, &a, &seconds));
        m->matmul[i] = (struct sherd_matmul_class){ flops, flops / seconds };
    }
    m->n_matmul = COUNT_OF(t->s->product);
    return SHERD_OK;
}

static struct sherd_attention_backward attention_of(const struct sizes *s)
{
    return (struct sherd_attention_backward){ .batch = s->batch,
        .seq = s->seq,
        .heads = s->heads,
        .kv_heads = s->kv_heads,
        .head_dim = s->head_dim,
        .scale = 1.0f / sqrtf((float)s->head_dim),
        .type = s->type,
        .any_order = 1 };
}

/* Places of what attention needs, one behind the other from `base`; returns the bytes. */
static size_t place_attention(struct sherd_attention_forward *f, struct sherd_attention_backward *b,
    const struct sizes *s, const char *kind, char *base)
{
    size_t each = sherd_dtype_bytes(s->type), rows = (size_t)(s->batch * s->seq);
    size_t qkv = rows * (size_t)((s->heads + 2 * s->kv_heads) * s->head_dim) * each;
    size_t out = rows * (size_t)(s->heads * s->head_dim) * each,
           lse = rows * (size_t)s->heads * sizeof(float);
    *b = attention_of(s);
    *f = (struct sherd_attention_forward){ .batch = s->batch,
        .seq = s->seq,
        .heads = s->heads,
        .kv_heads = s->kv_heads,
        .head_dim = s->head_dim,
        .scale = b->scale,
        .type = s->type };
    size_t forward = sherd_attention_forward_scratch(f), backward = sherd_attention_backward_scratch(b, kind);
    size_t total = 2 * qkv + 2 * out + lse;
    if (base) {
        f->qkv = b->qkv = base;
        b->dqkv = base + qkv;
        f->out = base + 2 * qkv;
        b->out = f->out;
        b->dout = base + 2 * qkv + out;
        f->lse = (float *)(void *)(base + 2 * qkv + 2 * out);
        b->lse = f->lse;
        f->scratch = b->scratch = base + total;
    }
    return total + (forward > backward ? forward : backward);
}

static int attention(struct trial *t, struct sherd_machine *m)
{
    struct sherd_attention_forward f;
    struct sherd_attention_backward b;
    double seconds;
    place_attention(&f, &b, t->s, m->kind, t->memory);
    double half = (double)(f.batch * f.heads * f.head_dim) * (double)f.seq * (double)(f.seq + 1);
    TRY(clock_op(t, call_attention_forward, &f, &seconds));
    m->attention_forward = 2 * half / seconds;
    TRY(clock_op(t, call_attention_backward, &b, &seconds));
    m->attention_backward = 4 * half / seconds;
    return SHERD_OK;
}

/* What a block does besides products and attention, one kind of operation after the other: none of them
 * reaches the rate of a plain copy. */
static int memory(struct trial *t, struct sherd_machine *m)
{
    const struct sizes *s = t->s;
    size_t each = sherd_dtype_bytes(s->type), row = (size_t)s->rows * each;
    char *at = t->memory, *apart = at + 3 * row * (size_t)s->mlp_width;
    float *rstd = (float *)(void *)(apart + 2 * row * (size_t)s->mlp_width);
    struct sherd_swiglu_forward sf = {
        .y = apart, .x = at, .rows = s->rows, .cols = s->mlp_width, .type = s->type
    };
    struct sherd_swiglu_backward sb = { .dx = apart,
        .dy = at + 2 * row * (size_t)s->mlp_width,
        .x = at,
        .rows = s->rows,
        .cols = s->mlp_width,
        .type = s->type };
    struct sherd_norm_forward nf = { .y = apart,
        .rstd = rstd,
        .x = at,
        .w = at,
        .rows = s->rows,
        .cols = s->width,
        .eps = 1e-5f,
        .kind = SHERD_RMS_NORM,
        .type = s->type };
    struct sherd_norm_backward nb = { .dx = apart,
        .dy = at + row * (size_t)s->width,
        .x = at,
        .w = at,
        .rstd = rstd,
        .rows = s->rows,
        .cols = s->width,
        .kind = SHERD_RMS_NORM,
        .type = s->type,
        .grad_type = SHERD_F32 };
    nb.scratch = (char *)(void *)rstd + (size_t)s->rows * sizeof(float);
    const struct {
        op_call call;
        const void *args;
        double bytes;
    } mix[] = {
        { call_swiglu_forward, &sf, 3.0 * (double)row * (double)s->mlp_width },
        { call_swiglu_backward, &sb, 5.0 * (double)row * (double)s->mlp_width },
        { call_norm_forward, &nf, 2.0 * (double)row * (double)s->width },
        { call_norm_backward, &nb, 3.0 * (double)row * (double)s->width },
    };
    double seconds, bytes = 0, sum = 0;
    for (int i = 0; i < COUNT_OF(mix); i++) {
        TRY(clock_op(t, mix[i].call, mix[i].args, &seconds));
        bytes += mix[i].bytes;
        sum += seconds;
    }
    m->memory_rate = bytes / sum;
    return SHERD_OK;
}

/* What an operation takes besides what it moves. */
static int launch(struct trial *t, struct sherd_machine *m)
{
    size_t bytes = SMALL * sherd_dtype_bytes(t->s->type);
    char *at = t->memory;
    struct sherd_copy c = { .dst = at, .src = at + TINY, .bytes = TINY };
    struct sherd_add a = { .y = at, .a = at + bytes, .b = at + 2 * bytes, .n = SMALL, .type = t->s->type };
    double seconds;
    TRY(clock_op(t, call_copy, &c, &m->launch));
    TRY(clock_op(t, call_add, &a, &seconds));
    seconds -= 3.0 * (double)bytes / m->memory_rate;
    m->launch = seconds > m->launch ? seconds : m->launch;
    return SHERD_OK;
}

static size_t need(const struct sizes *s, const char *kind)
{
    struct sherd_attention_forward f;
    struct sherd_attention_backward b;
    size_t each = sherd_dtype_bytes(s->type), n = (size_t)s->product[COUNT_OF(s->product) - 1];
    size_t most = 3 * n * n * each, rows = (size_t)s->rows;
    struct sherd_norm_backward norm = {
        .rows = s->rows, .cols = s->width, .kind = SHERD_RMS_NORM, .type = s->type
    };
    size_t vectors =
        5 * rows * (size_t)s->mlp_width * each + rows * sizeof(float) + sherd_norm_backward_scratch(&norm);
    size_t att = place_attention(&f, &b, s, kind, NULL);
    most = vectors > most ? vectors : most;
    return att > most ? att : most;
}

/* Values of 2^-8 to 2^-4 of both signs, in bf16 and so, with what is below, in float: a product of zeros, or
 * of the same number over and over, takes less power, and with it less time, than one of a training step. */
static int fill_memory(struct trial *t)
{
    uint16_t *pattern;
    uint64_t state = 88172645463325252u; /* any but 0 (Marsaglia, Xorshift RNGs, 2003) */
    TRY(sherd_host_alloc(t->device, (void **)&pattern, PATTERN_BYTES));
    for (size_t i = 0; i < PATTERN_BYTES / sizeof(*pattern); i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        unsigned bits = (unsigned)(state >> 32);
        pattern[i] = (uint16_t)((bits & 0x8000u) | ((119 + (bits >> 8) % 4) << 7) | (bits & 0x7fu));
    }
    int st = SHERD_OK;
    for (size_t at = 0; at < t->bytes && st == SHERD_OK; at += PATTERN_BYTES) {
        size_t bytes = t->bytes - at < PATTERN_BYTES ? t->bytes - at : PATTERN_BYTES;
        st = sherd_copy(
            t->queue, &(struct sherd_copy){ .dst = (char *)t->memory + at, .src = pattern, .bytes = bytes });
    }
    int synced = sherd_queue_sync(t->queue);
    sherd_host_free(t->device, pattern);
    return st == SHERD_OK ? synced : st;
}

static int run_trials(struct trial *t, struct sherd_machine *m)
{
    TRY(sherd_queue_create(&t->queue, t->device, SHERD_QUEUE_COMPUTE));
    TRY(sherd_device_alloc(t->device, &t->memory, t->bytes));
    TRY(fill_memory(t));
    if (strcmp(m->kind, "cpu") != 0)
        TRY(warm_up(t));
    TRY(products(t, m));
    TRY(attention(t, m));
    TRY(memory(t, m));
    return launch(t, m);
}

int rates_measure(struct sherd_machine *m, struct sherd_device *device)
{
    size_t total = 0, available = 0;
    const char *name = sherd_device_name(device);
    snprintf(m->kind, sizeof(m->kind), "%.*s", (int)strcspn(name, ":"), name);
    TRY(sherd_device_describe(device, m->name, sizeof(m->name)));
    TRY(sherd_device_memory(device, &total, &available));
    struct trial t = { .device = device, .s = strcmp(m->kind, "cpu") == 0 ? &cpu_sizes : &gpu_sizes };
    t.bytes = need(t.s, m->kind);
    t.least = strcmp(m->kind, "cpu") == 0 ? LEAST_SECONDS : LEAST_SECONDS_GPU;
    m->memory = total;
    int st = run_trials(&t, m);
    sherd_device_free(device, t.memory);
    sherd_queue_destroy(t.queue);
    return st;
}

/* ---- the file ---- */

static int link_json(json_t **out, const struct rates_link *l, const double beside[3])
{
    static const char *const kinds[] = { "all_gather", "reduce_scatter", "all_reduce" };
    *out = json_object();
    for (int k = 0; k < COUNT_OF(kinds); k++) {
        struct sherd_link_fit fit;
        TRY(sherd_link_fit(&fit, l->bytes[k], l->seconds[k], l->n[k]));
        json_object_set_new(*out, kinds[k],
            json_pack("{s:f, s:f, s:f, s:f}", "start", fit.start, "step", fit.step, "rate", fit.rate,
                "beside", beside[k]));
    }
    return SHERD_OK;
}

static int machine_json(json_t **out, const struct sherd_machine *m, const struct rates_link *link,
    const struct sherd_world *world)
{
    int gpu = strcmp(m->kind, "cpu") != 0;
    char source[160];
    json_t *matmul = json_array(), *links = NULL;
    for (int i = 0; i < m->n_matmul; i++)
        json_array_append_new(
            matmul, json_pack("{s:f, s:f}", "flops", m->matmul[i].flops, "rate", m->matmul[i].rate));
    snprintf(source, sizeof(source),
        "sherd bench --save, sherd %s, %d ranks, %d of them on this host; beside_update and beside are assumed",
        sherd_version(), world->size, world->local_size);
    *out = json_pack("{s:i, s:s, s:s, s:s, s:I, s:I, s:i, s:o, s:f, s:f, s:f, s:f, s:f}", "sherd_device", 1,
        "name", m->name, "kind", m->kind, "source", source, "memory", (json_int_t)m->memory, "library_bytes",
        (json_int_t)m->library_bytes, "gpus", world->local_size, "matmul", matmul, "attention_forward",
        m->attention_forward, "attention_backward", m->attention_backward, "memory_rate", m->memory_rate,
        "launch", m->launch, "beside_update", gpu ? 0.8 : 1.0);
    if (!*out)
        return sherd_fail(SHERD_ENOMEM, "the device file: out of memory");
    if (world->size == 1)
        return SHERD_OK;
    int far = world->size > world->local_size;
    const double beside = gpu ? 0.1 : 1.0; /* NCCL's sums within a node take more: bench/notes.md */
    int st = link_json(&links, link, (double[]){ beside, gpu && !far ? 0.5 : beside, beside });
    json_object_set_new(*out, far ? "network" : "node", links);
    return st;
}

int rates_save(
    const char *path, struct sherd_machine *m, const struct rates_link *link, const struct sherd_world *world)
{
    json_t *root = NULL;
    int st = machine_json(&root, m, link, world);
    FILE *file = st == SHERD_OK ? fopen(path, "w") : NULL;
    if (file) {
        int failed = json_dumpf(root, file, JSON_INDENT(2) | JSON_REAL_PRECISION(6)) != 0;
        failed |= fputc('\n', file) == EOF;
        failed |= fclose(file) != 0;
        if (failed)
            st = sherd_fail(SHERD_EIO, "--save: %s could not be written: %s", path, strerror(errno));
    } else if (st == SHERD_OK) {
        st = sherd_fail(SHERD_EIO, "--save: %s could not be opened: %s", path, strerror(errno));
    }
    json_decref(root);
    return st;
}
