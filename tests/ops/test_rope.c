/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Rotary positions: the turn, heads that are left alone, and the inverse as the gradient.
 */
#include "tests/ops/checkop.h"

#include <math.h>

struct shape {
    int64_t batch, seq, heads, rotated, dim;
    enum sherd_dtype type;
    int inverse;
};

static void turn(const struct shape *s, const float *freq, double *x, int inverse)
{
    int64_t half = s->dim / 2;
    for (int64_t row = 0; row < s->batch * s->seq; row++)
        for (int64_t h = 0; h < s->rotated; h++)
            for (int64_t i = 0; i < half; i++) {
                double *low = x + (row * s->heads + h) * s->dim + i, l = *low, u = low[half];
                double angle = (double)(row % s->seq) * (double)freq[i] * (inverse ? -1 : 1);
                low[0] = l * cos(angle) - u * sin(angle);
                low[half] = u * cos(angle) + l * sin(angle);
            }
}

static void rope_case(struct op_test *t, const void *arg)
{
    const struct shape *s = arg;
    int64_t n = s->batch * s->seq * s->heads * s->dim;
    struct op_buf *x = op_inout(op_random(t, n, s->type, 1, 0));
    struct sherd_rope a = { .x = x->dev,
        .batch = s->batch,
        .seq = s->seq,
        .heads = s->heads,
        .rotated = s->rotated,
        .head_dim = s->dim,
        .inverse = s->inverse,
        .type = s->type };
    double *want = op_doubles(t, n);
    for (int64_t i = 0; i < s->dim / 2; i++)
        a.inv_freq[i] = (float)pow(10000, -2.0 * (double)i / (double)s->dim);
    memcpy(want, x->host, (size_t)n * sizeof(*want));
    OP_RUN(t, sherd_rope(t->queue, &a));
    if (t->repeat)
        return;
    turn(s, a.inv_freq, want, s->inverse);
    op_expect(t, "x", x, want, OP_BOUND(s->type));
}

/* <turn(x), y> = <x, inverse turn(y)>: the inverse is the gradient. */
static void gradient_case(struct op_test *t, const void *arg)
{
    const struct shape *s = arg;
    int64_t n = s->batch * s->seq * s->heads * s->dim;
    struct op_buf *x = op_random(t, n, SHERD_F32, 1, 0), *y = op_random(t, n, SHERD_F32, 1, 0);
    double *x0 = op_doubles(t, n), *y0 = op_doubles(t, n);
    struct sherd_rope a = { .batch = s->batch,
        .seq = s->seq,
        .heads = s->heads,
        .rotated = s->rotated,
        .head_dim = s->dim,
        .type = SHERD_F32 };
    for (int64_t i = 0; i < s->dim / 2; i++)
        a.inv_freq[i] = 1.0f / (float)(i + 1);
    memcpy(x0, x->host, (size_t)n * sizeof(*x0));
    memcpy(y0, y->host, (size_t)n * sizeof(*y0));
    a.x = op_inout(x)->dev;
    OP_RUN(t, sherd_rope(t->queue, &a));
    a.x = op_inout(y)->dev;
    a.inverse = 1;
    OP_RUN(t, sherd_rope(t->queue, &a));
    double left = op_dot(op_read(t, x), y0, n), right = op_dot(x0, op_read(t, y), n);
    assert_true(fabs(left - right) < 1e-5 * sqrt((double)n));
}

static void turns(void **state)
{
    static const struct shape shapes[] = { { 1, 1, 1, 1, 2 }, { 2, 3, 3, 2, 6 }, { 1, 101, 7, 4, 24 },
        { 3, 24, 4, 4, 64 }, { 1, 2000, 1, 1, 8 }, { 1, 5, 3, 0, 4 }, { 1, 7, 2, 1, 256 } };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
        for (int v = 0; v < 2 * OP_TYPES; v++) {
            struct shape s = shapes[i];
            s.type = op_types[v % OP_TYPES];
            s.inverse = v / OP_TYPES;
            op_run(rope_case, &s);
        }
}

static void inverse_is_the_gradient(void **state)
{
    (void)state;
    op_run(gradient_case, &(struct shape){ 2, 24, 3, 2, 10 });
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(turns),
        cmocka_unit_test(inverse_is_the_gradient),
    };
    return op_main(argc, argv, tests, ARRAY_LEN(tests));
}
