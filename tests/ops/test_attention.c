/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Causal attention with grouped queries against whole softmax matrices in double, forward and backward.
 */
#include "tests/ops/checkop.h"

#include <math.h>

struct shape {
    int64_t batch, seq, heads, kv, dim;
    double std; /* of q, k and v; scores are its square */
    enum sherd_dtype type;
};

struct reference {
    const struct shape *s;
    double *qkv, *dout, *out, *lse, *p; /* p: [B,H,T,T] */
};

static const double *row_of(const struct shape *s, const double *qkv, int64_t b, int64_t t, int64_t head)
{
    return qkv + ((b * s->seq + t) * (s->heads + 2 * s->kv) + head) * s->dim;
}

static double scale_of(const struct shape *s)
{
    return (double)(float)(1 / sqrt((double)s->dim));
}

static void forward_row(struct reference *f, int64_t b, int64_t h, int64_t t)
{
    const struct shape *s = f->s;
    int64_t kv = h / (s->heads / s->kv);
    double *p = f->p + ((b * s->heads + h) * s->seq + t) * s->seq, max = -INFINITY, sum = 0;
    double *out = f->out + ((b * s->seq + t) * s->heads + h) * s->dim;
    for (int64_t j = 0; j <= t; j++) {
        p[j] =
            scale_of(s) * op_dot(row_of(s, f->qkv, b, t, h), row_of(s, f->qkv, b, j, s->heads + kv), s->dim);
        max = fmax(max, p[j]);
    }
    for (int64_t j = 0; j <= t; j++)
        sum += exp(p[j] - max);
    f->lse[(b * s->heads + h) * s->seq + t] = max + log(sum);
    memset(out, 0, (size_t)s->dim * sizeof(*out));
    for (int64_t j = 0; j <= t; j++) {
        p[j] = exp(p[j] - max) / sum;
        for (int64_t i = 0; i < s->dim; i++)
            out[i] += p[j] * row_of(s, f->qkv, b, j, s->heads + s->kv + kv)[i];
    }
}

static void forward(struct reference *f)
{
    for (int64_t b = 0; b < f->s->batch; b++)
        for (int64_t h = 0; h < f->s->heads; h++)
            for (int64_t t = 0; t < f->s->seq; t++)
                forward_row(f, b, h, t);
}

static double objective(void *ctx)
{
    struct reference *f = ctx;
    forward(f);
    return op_dot(f->out, f->dout, f->s->batch * f->s->seq * f->s->heads * f->s->dim);
}

static void backward_row(const struct reference *f, double *dqkv, int64_t b, int64_t h, int64_t t)
{
    const struct shape *s = f->s;
    int64_t kv = h / (s->heads / s->kv), width = (s->heads + 2 * s->kv) * s->dim;
    const double *p = f->p + ((b * s->heads + h) * s->seq + t) * s->seq;
    const double *dout = f->dout + ((b * s->seq + t) * s->heads + h) * s->dim;
    const double *out = f->out + ((b * s->seq + t) * s->heads + h) * s->dim;
    double delta = op_dot(dout, out, s->dim), *dq = dqkv + (b * s->seq + t) * width + h * s->dim;
    for (int64_t j = 0; j <= t; j++) {
        double *dk = dqkv + (b * s->seq + j) * width + (s->heads + kv) * s->dim, *dv = dk + s->kv * s->dim;
        const double *q = row_of(s, f->qkv, b, t, h), *k = row_of(s, f->qkv, b, j, s->heads + kv);
        double dp = op_dot(dout, row_of(s, f->qkv, b, j, s->heads + s->kv + kv), s->dim);
        double ds = p[j] * (dp - delta) * scale_of(s);
        for (int64_t i = 0; i < s->dim; i++) {
            dv[i] += p[j] * dout[i];
            dk[i] += ds * q[i];
            dq[i] += ds * k[i];
        }
    }
}

static void check(struct op_test *t, const struct shape *s, struct reference *f, struct op_buf *out,
    struct op_buf *lse, struct op_buf *dqkv)
{
    int64_t rows = s->batch * s->seq;
    f->p = op_doubles(t, rows * s->heads * s->seq);
    f->out = op_doubles(t, rows * s->heads * s->dim);
    f->lse = op_doubles(t, rows * s->heads);
    double *want = op_doubles(t, dqkv->n);
    forward(f);
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t h = 0; h < s->heads; h++)
            for (int64_t i = 0; i < s->seq; i++)
                backward_row(f, want, b, h, i);
    double bound = OP_BOUND(s->type) + 1e-6 * s->std * s->std; /* rounding of scores */
    op_expect(t, "out", out, f->out, bound);
    op_expect(t, "lse", lse, f->lse, 1e-6);
    op_expect(t, "dqkv", dqkv, want, 3 * bound);
    if (rows * s->seq < 20000)
        op_slope(t, "qkv", objective, f, f->qkv, dqkv->host, dqkv->n, 3 * bound + 1e-6);
}

static void attention_case(struct op_test *t, const void *arg)
{
    const struct shape *s = arg;
    int64_t rows = s->batch * s->seq, width = (s->heads + 2 * s->kv) * s->dim;
    struct op_buf *qkv = op_random(t, rows * width, s->type, s->std, 0);
    struct op_buf *dout = op_random(t, rows * s->heads * s->dim, s->type, 1, 0);
    struct op_buf *out = op_output(t, rows * s->heads * s->dim, s->type);
    struct op_buf *lse = op_output(t, rows * s->heads, SHERD_F32), *dqkv = op_output(t, qkv->n, s->type);
    struct sherd_attention_forward a = { .out = out->dev,
        .lse = lse->dev,
        .qkv = qkv->dev,
        .batch = s->batch,
        .seq = s->seq,
        .heads = s->heads,
        .kv_heads = s->kv,
        .head_dim = s->dim,
        .scale = (float)scale_of(s),
        .type = s->type };
    a.scratch = op_scratch(t, sherd_attention_forward_scratch(&a));
    OP_RUN(t, sherd_attention_forward(t->queue, &a));
    struct sherd_attention_backward b = { .dqkv = dqkv->dev,
        .dout = dout->dev,
        .out = out->dev,
        .qkv = qkv->dev,
        .lse = lse->dev,
        .batch = s->batch,
        .seq = s->seq,
        .heads = s->heads,
        .kv_heads = s->kv,
        .head_dim = s->dim,
        .scale = (float)scale_of(s),
        .type = s->type };
    b.scratch = op_scratch(t, sherd_attention_backward_scratch(&b, op_on_cpu() ? "cpu" : "cuda"));
    OP_RUN(t, sherd_attention_backward(t->queue, &b));
    struct reference f = { .s = s, .qkv = qkv->host, .dout = dout->host };
    if (!t->repeat)
        check(t, s, &f, out, lse, dqkv);
}

static void all_types(const struct shape *shapes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (int v = 0; v < OP_TYPES; v++) {
            struct shape s = shapes[i];
            s.type = op_types[v];
            op_run(attention_case, &s);
        }
}

static void small_sizes(void **state)
{
    static const struct shape shapes[] = { { 1, 1, 1, 1, 1, 1 }, { 2, 3, 2, 1, 7, 1 }, { 1, 7, 3, 3, 24, 1 },
        { 3, 24, 4, 2, 16, 1 }, { 1, 101, 6, 2, 3, 1 }, { 1, 24, 2, 1, 256, 1 } };
    (void)state;
    all_types(shapes, ARRAY_LEN(shapes));
}

static void several_tiles(void **state)
{
    static const struct shape shapes[] = { { 1, 128, 2, 1, 24, 1 }, { 1, 129, 1, 1, 64, 1 },
        { 2, 257, 2, 2, 24, 1 }, { 1, 400, 3, 1, 8, 1 } };
    (void)state;
    all_types(shapes, ARRAY_LEN(shapes));
}

/* Scores of some hundreds: the maximum moves from tile to tile and exponentials underflow. */
static void large_scores(void **state)
{
    static const struct shape shapes[] = { { 1, 300, 2, 1, 16, 8 } };
    (void)state;
    all_types(shapes, ARRAY_LEN(shapes));
}

/* Room is asked for by kind of device: what cuDNN wants is not planned on a CPU. */
static void scratch_is_that_of_the_device(void **state)
{
    (void)state;
    struct sherd_attention_backward b = {
        .batch = 8, .seq = 2048, .heads = 32, .kv_heads = 4, .head_dim = 64, .type = SHERD_BF16
    };
    size_t rows = 8 * 2048 * 32, cpu = sherd_attention_backward_scratch(&b, "cpu");
    assert_int_equal(cpu, rows * sizeof(float) + rows * 64 * sizeof(float));
    assert_true(sherd_attention_backward_scratch(&b, "cuda") > cpu);
    assert_int_equal(
        sherd_attention_backward_scratch(&b, NULL), sherd_attention_backward_scratch(&b, "cuda"));
    assert_true(sherd_attention_backward_scratch(&b, NULL) < (size_t)600 << 20);
    b.type = SHERD_F32;
    assert_int_equal(sherd_attention_backward_scratch(&b, "cpu"), rows * sizeof(float));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_sizes),
        cmocka_unit_test(several_tiles),
        cmocka_unit_test(large_scores),
        cmocka_unit_test(scratch_is_that_of_the_device),
    };
    return op_main(argc, argv, tests, ARRAY_LEN(tests));
}
