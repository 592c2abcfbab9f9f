/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Softmax cross entropy: sums, gradients, ignored targets, huge logits, targets outside the vocabulary.
 */
#include "tests/ops/checkop.h"

#include <math.h>

struct shape {
    int64_t rows, vocab;
    double std;
    int ignore; /* 0 none, 1 some, 2 all */
    int backward;
    enum sherd_dtype type;
};

struct reference {
    const struct shape *s;
    double *x;
    const double *targets;
    double count;
};

static double row_loss(const struct reference *f, int64_t r)
{
    const double *x = f->x + r * f->s->vocab;
    double max = -INFINITY, sum = 0;
    for (int64_t i = 0; i < f->s->vocab; i++)
        max = fmax(max, x[i]);
    for (int64_t i = 0; i < f->s->vocab; i++)
        sum += exp(x[i] - max);
    return max + log(sum) - x[(int64_t)f->targets[r]];
}

static double sum_of(const struct reference *f)
{
    double sum = 0;
    for (int64_t r = 0; r < f->s->rows; r++)
        sum += f->targets[r] < 0 ? 0 : row_loss(f, r);
    return sum;
}

static double objective(void *ctx)
{
    const struct reference *f = ctx;
    return sum_of(f) / f->count;
}

static void gradient(const struct reference *f, double *dx)
{
    int64_t v = f->s->vocab;
    for (int64_t r = 0; r < f->s->rows; r++) {
        int64_t target = (int64_t)f->targets[r];
        if (target < 0)
            continue;
        double lse = row_loss(f, r) + f->x[r * v + target];
        for (int64_t i = 0; i < v; i++)
            dx[r * v + i] = (exp(f->x[r * v + i] - lse) - (i == target)) / f->count;
    }
}

static void loss_case(struct op_test *t, const void *arg)
{
    const struct shape *s = arg;
    int64_t n = s->rows * s->vocab;
    struct op_buf *logits = op_inout(op_random(t, n, s->type, s->std, 0)),
                  *draws = op_integers(t, s->rows, s->vocab);
    double *values = op_doubles(t, s->rows), *in = op_doubles(t, n), *dx = op_doubles(t, n),
           count =
               s->type == SHERD_F16 ? 1000.0 / 1024 : 1000; /* with a loss scale, or f16 would underflow */
    for (int64_t r = 0; r < s->rows; r++)
        values[r] = s->ignore == 2 || (s->ignore && r % 3 == 1) ? -100 : draws->host[r];
    struct op_buf *targets = op_input(t, values, s->rows, SHERD_I32);
    struct op_buf *sum = op_inout(op_input(t, &(double){ 2.5 }, 1, SHERD_F64));
    struct op_buf *weight = op_input(t, &count, 1, SHERD_F64);
    struct sherd_loss a = { .logits = logits->dev,
        .sum = sum->dev,
        .count = s->backward ? weight->dev : NULL,
        .targets = targets->dev,
        .rows = s->rows,
        .vocab = s->vocab,
        .backward = s->backward,
        .type = s->type };
    memcpy(in, logits->host, (size_t)n * sizeof(*in));
    a.scratch = op_scratch(t, sherd_loss_scratch(&a));
    OP_RUN(t, sherd_loss(t->queue, &a));
    if (t->repeat)
        return;
    struct reference f = { s, in, targets->host, count };
    double want = 2.5 + sum_of(&f);
    op_expect(t, "sum", sum, &want, 1e-6);
    if (s->backward)
        gradient(&f, dx);
    op_expect(t, "logits", logits, s->backward ? dx : in, s->backward ? OP_BOUND(s->type) : 0);
    if (s->backward && s->std < 10)
        op_slope(t, "logits", objective, &f, in, logits->host, n, OP_BOUND(s->type));
}

static void losses_and_gradients(void **state)
{
    static const int64_t sizes[][2] = { { 1, 1 }, { 3, 2 }, { 7, 24 }, { 24, 101 }, { 101, 257 }, { 5, 5003 },
        { 2, 60001 }, { 0, 7 } };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
        for (int v = 0; v < 6 * OP_TYPES; v++)
            op_run(loss_case, &(struct shape){ sizes[i][0], sizes[i][1], 2, v / OP_TYPES % 3,
                                  v / (3 * OP_TYPES), op_types[v % OP_TYPES] });
}

/* The same rows close to each other and apart. */
static void pitch_case(struct op_test *t, const void *arg)
{
    enum sherd_dtype type = *(const enum sherd_dtype *)arg;
    enum { ROWS = 7, VOCAB = 101, PITCH = 128 };
    double apart[ROWS * PITCH], count = 32, *close_rows, *apart_rows;
    struct op_buf *logits = op_inout(op_random(t, ROWS * VOCAB, type, 2, 0));
    for (int i = 0; i < ROWS * PITCH; i++)
        apart[i] = i % PITCH < VOCAB ? logits->host[i / PITCH * VOCAB + i % PITCH] : 77;
    struct op_buf *wide = op_inout(op_input(t, apart, ROWS * PITCH, type));
    struct op_buf *targets = op_input(t, (double[]){ 0, 100, -1, 5, 50, 99, 1 }, ROWS, SHERD_I32);
    struct op_buf *weight = op_input(t, &count, 1, SHERD_F64);
    struct sherd_loss a = { .count = weight->dev,
        .targets = targets->dev,
        .rows = ROWS,
        .vocab = VOCAB,
        .backward = 1,
        .type = type };
    double sums[2];
    a.scratch = op_scratch(t, sherd_loss_scratch(&a));
    for (int i = 0; i < 2; i++) {
        struct op_buf *sum = op_inout(op_input(t, &(double){ 0 }, 1, SHERD_F64));
        a.sum = sum->dev;
        a.logits = i ? wide->dev : logits->dev;
        a.pitch = i ? PITCH : 0;
        OP_RUN(t, sherd_loss(t->queue, &a));
        sums[i] = op_read(t, sum)[0];
    }
    close_rows = op_read(t, logits);
    apart_rows = op_read(t, wide);
    assert_true(sums[0] > 0 && fabs(sums[1] / sums[0] - 1) < 1e-6); /* another order of the sum is allowed */
    for (int i = 0; i < ROWS * PITCH; i++) {
        double want = i % PITCH < VOCAB ? close_rows[i / PITCH * VOCAB + i % PITCH] : 77;
        if (fabs(apart_rows[i] - want) > OP_BOUND(type) * fabs(want))
            fail_msg("row %d, %d: %g, close to each other %g", i / PITCH, i % PITCH, apart_rows[i], want);
    }
}

static void rows_with_a_pitch(void **state)
{
    (void)state;
    for (int i = 0; i < OP_TYPES; i++)
        op_run(pitch_case, &op_types[i]);
}

static void huge_logits(void **state)
{
    (void)state;
    for (int v = 0; v < OP_TYPES; v++) {
        op_run(loss_case, &(struct shape){ 7, 101, 1e4, 1, 1, op_types[v] });
        op_run(
            loss_case, &(struct shape){ 7, 101, op_types[v] == SHERD_F16 ? 1e4 : 1e30, 0, 1, op_types[v] });
    }
}

static void nan_case(struct op_test *t, const void *arg)
{
    double values[] = { 0, 1, NAN, 2, 0, 1, 2, 3 };
    struct op_buf *logits = op_inout(op_input(t, values, 8, SHERD_F32));
    struct op_buf *targets = op_input(t, (double[]){ 1, 3 }, 2, SHERD_I32);
    struct op_buf *sum = op_inout(op_input(t, &(double){ 0 }, 1, SHERD_F64));
    struct op_buf *count = op_input(t, &(double){ 2 }, 1, SHERD_F64);
    (void)arg;
    OP_RUN(t, sherd_loss(t->queue, &(struct sherd_loss){ .logits = logits->dev,
                                       .sum = sum->dev,
                                       .count = count->dev,
                                       .targets = targets->dev,
                                       .rows = 2,
                                       .vocab = 4,
                                       .backward = 1,
                                       .type = SHERD_F32,
                                       .scratch = op_scratch(t, 256) }));
    assert_true(isnan(op_read(t, sum)[0]));
    op_read(t, logits);
    for (int i = 0; i < 8; i++)
        assert_int_equal(isnan(logits->host[i]) != 0, i < 4);
}

static void nan_is_not_hidden(void **state)
{
    (void)state;
    op_run(nan_case, NULL);
}

static void outside_case(struct op_test *t, const void *arg)
{
    struct op_buf *logits = op_random(t, 12, SHERD_F32, 1, 0);
    struct op_buf *targets = op_input(t, (double[]){ 0, 4, -1 }, 3, SHERD_I32);
    struct op_buf *sum = op_inout(op_input(t, &(double){ 0 }, 1, SHERD_F64));
    struct sherd_loss a = { .logits = logits->dev,
        .sum = sum->dev,
        .targets = targets->dev,
        .rows = 3,
        .vocab = 4,
        .type = SHERD_F32 };
    (void)arg;
    a.scratch = op_scratch(t, sherd_loss_scratch(&a));
    ASSERT_OK(sherd_loss(t->queue, &a));
    ASSERT_FAILS(
        sherd_queue_sync(t->queue), SHERD_EINVAL, "target 4 at row 1 is outside the vocabulary of 4");
}

static void target_outside_fails_at_sync(void **state)
{
    (void)state;
    op_run(outside_case, NULL);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_and_gradients),
        cmocka_unit_test(rows_with_a_pitch),
        cmocka_unit_test(huge_logits),
        cmocka_unit_test(nan_is_not_hidden),
        cmocka_unit_test(target_outside_fails_at_sync),
    };
    return op_main(argc, argv, tests, ARRAY_LEN(tests));
}
