/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * GELU and SwiGLU, forward and backward, in place where that is allowed, with the output once more from
 * backward, and at extreme inputs.
 */
#include "tests/ops/checkop.h"

#include <math.h>

/* Where an output of backward goes. */
enum place { NOWHERE, APART, OVER_DY, OVER_X };

struct shape {
    int64_t rows, cols;
    enum sherd_dtype type;
    enum place dx, y;
};

/* The ways in which outputs of backward may lie; the last two are GELU's alone. */
static const enum place places[][2] = { { APART, NOWHERE }, { OVER_X, NOWHERE }, { APART, APART },
    { APART, OVER_DY }, { OVER_X, APART }, { OVER_X, OVER_DY }, { OVER_DY, NOWHERE }, { OVER_DY, APART } };
#define SWIGLU_PLACES 6

/* n elements there; NULL for NOWHERE. */
static struct op_buf *output_at(
    struct op_test *t, enum place place, int64_t n, struct op_buf *dy, struct op_buf *x)
{
    if (place == NOWHERE)
        return NULL;
    return place == APART ? op_output(t, n, x->type) : op_inout(place == OVER_X ? x : dy);
}

static double gelu(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double silu(double g)
{
    return g / (1 + exp(-g));
}

/* sum(dy * f(x)) */
struct objective {
    const double *x, *dy;
    int64_t rows, cols;
};

static double gelu_objective(void *ctx)
{
    const struct objective *o = ctx;
    double sum = 0;
    for (int64_t i = 0; i < o->rows; i++)
        sum += o->dy[i] * gelu(o->x[i]);
    return sum;
}

static double swiglu_objective(void *ctx)
{
    const struct objective *o = ctx;
    double sum = 0;
    for (int64_t r = 0; r < o->rows; r++)
        for (int64_t j = 0; j < o->cols; j++)
            sum += o->dy[r * o->cols + j] * silu(o->x[2 * r * o->cols + j]) * o->x[(2 * r + 1) * o->cols + j];
    return sum;
}

static void gelu_case(struct op_test *t, const void *arg)
{
    const struct shape *s = arg;
    int64_t n = s->rows;
    struct op_buf *x = op_random(t, n, s->type, 2, 0), *dy = op_random(t, n, s->type, 1, 0);
    struct op_buf *y = op_output(t, n, s->type);
    struct op_buf *dx = output_at(t, s->dx, n, dy, x), *again = output_at(t, s->y, n, dy, x);
    double *weights = op_doubles(t, n), *in = op_doubles(t, n), *want = op_doubles(t, n);
    double *dwant = op_doubles(t, n);
    memcpy(weights, dy->host, (size_t)n * sizeof(*weights));
    memcpy(in, x->host, (size_t)n * sizeof(*in));
    OP_RUN(t, sherd_gelu_forward(t->queue,
                  &(struct sherd_gelu_forward){ .y = y->dev, .x = x->dev, .n = n, .type = s->type }));
    OP_RUN(t, sherd_gelu_backward(t->queue, &(struct sherd_gelu_backward){ .dx = dx->dev,
                                                .y = again ? again->dev : NULL,
                                                .dy = dy->dev,
                                                .x = x->dev,
                                                .n = n,
                                                .type = s->type }));
    if (t->repeat)
        return;
    if (again)
        op_same_bits(t, "y from backward", again, y);
    for (int64_t i = 0; i < n; i++) {
        double v = in[i], c = sqrt(2 / M_PI), u = tanh(c * (v + 0.044715 * v * v * v));
        want[i] = gelu(v);
        dwant[i] = weights[i] * (0.5 * (1 + u) + 0.5 * v * (1 - u * u) * c * (1 + 3 * 0.044715 * v * v));
    }
    op_expect(t, "y", y, want, OP_BOUND(s->type));
    op_expect(t, "dx", dx, dwant, OP_BOUND(s->type));
    double *grad = op_doubles(t, n);
    memcpy(grad, dx->host, (size_t)n * sizeof(*grad));
    struct objective o = { in, weights, n, 1 };
    op_slope(t, "gelu", gelu_objective, &o, in, grad, n, OP_BOUND(s->type) + 1e-6);
}

static void swiglu_case(struct op_test *t, const void *arg)
{
    const struct shape *s = arg;
    int64_t n = s->rows * s->cols;
    struct op_buf *x = op_random(t, 2 * n, s->type, 2, 0), *dy = op_random(t, n, s->type, 1, 0);
    struct op_buf *y = op_output(t, n, s->type);
    struct op_buf *dx = output_at(t, s->dx, 2 * n, dy, x), *again = output_at(t, s->y, n, dy, x);
    double *in = op_doubles(t, 2 * n), *want = op_doubles(t, n), *dwant = op_doubles(t, 2 * n);
    double *weights = op_doubles(t, n);
    memcpy(in, x->host, (size_t)(2 * n) * sizeof(*in));
    memcpy(weights, dy->host, (size_t)n * sizeof(*weights));
    OP_RUN(t, sherd_swiglu_forward(t->queue,
                  &(struct sherd_swiglu_forward){
                      .y = y->dev, .x = x->dev, .rows = s->rows, .cols = s->cols, .type = s->type }));
    OP_RUN(t, sherd_swiglu_backward(t->queue, &(struct sherd_swiglu_backward){ .dx = dx->dev,
                                                  .y = again ? again->dev : NULL,
                                                  .dy = dy->dev,
                                                  .x = x->dev,
                                                  .rows = s->rows,
                                                  .cols = s->cols,
                                                  .type = s->type }));
    if (t->repeat)
        return;
    if (again)
        op_same_bits(t, "y from backward", again, y);
    for (int64_t i = 0; i < n; i++) {
        int64_t gate = i / s->cols * 2 * s->cols + i % s->cols, up = gate + s->cols;
        double g = in[gate], sigmoid = 1 / (1 + exp(-g));
        want[i] = silu(g) * in[up];
        dwant[gate] = weights[i] * in[up] * sigmoid * (1 + g * (1 - sigmoid));
        dwant[up] = weights[i] * silu(g);
    }
    op_expect(t, "y", y, want, OP_BOUND(s->type));
    op_expect(t, "dx", dx, dwant, OP_BOUND(s->type));
    double *grad = op_doubles(t, 2 * n);
    memcpy(grad, dx->host, (size_t)(2 * n) * sizeof(*grad));
    struct objective o = { in, weights, s->rows, s->cols };
    op_slope(t, "swiglu", swiglu_objective, &o, in, grad, 2 * n, OP_BOUND(s->type) + 1e-6);
}

static void gelu_sizes(void **state)
{
    static const int64_t sizes[] = { 0, 1, 3, 7, 24, 101, 513, CHECK_MANY(70001, 33001) };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
        for (int v = 0; v < (int)ARRAY_LEN(places) * OP_TYPES; v++)
            op_run(gelu_case, &(struct shape){ .rows = sizes[i],
                                  .type = op_types[v % OP_TYPES],
                                  .dx = places[v / OP_TYPES][0],
                                  .y = places[v / OP_TYPES][1] });
}

static void swiglu_sizes(void **state)
{
    static const int64_t sizes[][2] = { { 1, 1 }, { 3, 7 }, { 24, 101 }, { 101, 257 }, { 24, 256 },
        { 2, 1030 }, { 0, 5 } };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
        for (int v = 0; v < SWIGLU_PLACES * OP_TYPES; v++)
            op_run(swiglu_case, &(struct shape){ sizes[i][0], sizes[i][1], op_types[v % OP_TYPES],
                                    places[v / OP_TYPES][0], places[v / OP_TYPES][1] });
}

static void extreme_case(struct op_test *t, const void *arg)
{
    static const double values[] = { 0, -0.0, 1e-30, -1e-30, 50, -50, 1e4, -1e4, 1e15, -1e15, NAN };
    int64_t n = ARRAY_LEN(values);
    struct op_buf *x = op_input(t, values, n, SHERD_F32), *y = op_output(t, n, SHERD_F32);
    (void)arg;
    OP_RUN(t, sherd_gelu_forward(t->queue,
                  &(struct sherd_gelu_forward){ .y = y->dev, .x = x->dev, .n = n, .type = SHERD_F32 }));
    op_read(t, y);
    for (int64_t i = 0; i < n - 1; i++) {
        double want = gelu(x->host[i]);
        assert_true(fabs(y->host[i] - want) <= 1e-6 * fabs(want) + 1e-37);
    }
    assert_true(isnan(y->host[n - 1]));
}

static void extreme_inputs(void **state)
{
    (void)state;
    op_run(extreme_case, NULL);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gelu_sizes),
        cmocka_unit_test(swiglu_sizes),
        cmocka_unit_test(extreme_inputs),
    };
    return op_main(argc, argv, tests, ARRAY_LEN(tests));
}
