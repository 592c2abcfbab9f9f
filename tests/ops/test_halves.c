/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Weights cut into two halves, and optimizer states that are rounded at random: nothing is lost by the cut;
 * rounding is unbiased, and the same however the elements are dealt out.
 */
#include "tests/ops/checkop.h"

#include <math.h>
#include <string.h>

#include "base/half.h"

#define LR 1e-2f
#define BETA1 0.9f
#define BETA2 0.95f

static const int64_t lengths[] = { 1, 7, 101, 513, CHECK_MANY(70001, 33001) };

/* What rounding must not stumble over: values half-way between two bf16, the ends of the range, zeros. */
static double *hard_values(struct op_test *t, int64_t n)
{
    static const double hard[] = { 0, -0.0, 1, 0x1.01p0, 0x1.03p0, -0x1.01p0, -0x1.03p0, 0x1.008001p0,
        0x1p-149, -0x1.8p-140, 0x1.fffffep127, -0x1.fffffep127, (double)INFINITY, 0x1.00ffffp0, 0x1.00fffep0,
        0x1p-126 };
    struct op_buf *random = op_random(t, n, SHERD_F32, 1, 0);
    for (int64_t i = 0; i < n; i++)
        if (i < (int64_t)ARRAY_LEN(hard))
            random->host[i] = hard[i];
    return random->host;
}

static void cut_case(struct op_test *t, const void *arg)
{
    int64_t n = *(const int64_t *)arg;
    struct op_buf *w = op_input(t, hard_values(t, n), n, SHERD_F32), *back = op_output(t, n, SHERD_F32);
    struct op_buf *param = op_output(t, n, SHERD_BF16), *low = op_output(t, n, SHERD_BF16);
    struct op_buf *rounded = op_output(t, n, SHERD_BF16), *plain = op_output(t, n, SHERD_F32);
    low->output = 0; /* bits, no numbers */
    OP_RUN(t, sherd_split(t->queue, &(struct sherd_split){ param->dev, low->dev, w->dev, n }));
    OP_RUN(t, sherd_split(t->queue, &(struct sherd_split){ rounded->dev, NULL, w->dev, n }));
    OP_RUN(t, sherd_join(t->queue, &(struct sherd_join){ back->dev, param->dev, low->dev, n }));
    OP_RUN(t, sherd_join(t->queue, &(struct sherd_join){ plain->dev, param->dev, NULL, n }));
    op_read(t, back);
    op_read(t, param);
    op_read(t, rounded);
    op_read(t, plain);
    for (int64_t i = 0; i < n; i++) {
        double x = w->host[i], near = op_round(x, SHERD_BF16), gap = fabs(near - x);
        assert_true(back->host[i] == x && signbit(back->host[i]) == signbit(x));
        assert_true(rounded->host[i] == param->host[i] && plain->host[i] == param->host[i]);
        /* as near as the nearest even, and not nearer to zero */
        if (isfinite(near))
            assert_true(fabs(param->host[i] - x) == gap && fabs(param->host[i]) >= fabs(near));
    }
}

static void nothing_is_lost_by_the_cut(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(lengths); i++)
        op_run(cut_case, &lengths[i]);
}

struct shape {
    int64_t n;
    int sgd;
    enum sherd_dtype grad_type, state_type;
};

struct weights {
    struct op_buf *w, *param, *low, *m, *v; /* w or low is NULL */
};

/* As an optimizer leaves them in device memory. */
static const struct sherd_rates *rates(struct op_test *t, int64_t step)
{
    const double at[] = { LR, (double)LR / (1 - pow((double)BETA1, (double)step)),
        1 / sqrt(1 - pow((double)BETA2, (double)step)),
        (double)step * 0x1p-149 /* the bits of an integer */ };
    return op_input(t, at, 4, SHERD_F32)->dev;
}

/* One step over elements [from, to). */
static void step_part(struct op_test *t, const struct shape *s, const struct weights *u, struct op_buf *grad,
    struct op_buf *factor, const struct sherd_rates *rates, int64_t step, int64_t from, int64_t to,
    uint64_t seed)
{
    size_t size = sherd_dtype_bytes(s->state_type) * (size_t)from;
    void *param = (uint16_t *)u->param->dev + from, *m = (char *)u->m->dev + size,
         *v = (char *)u->v->dev + size;
    float *master = u->w ? (float *)u->w->dev + from : NULL;
    int16_t *low = u->low ? (int16_t *)u->low->dev + from : NULL;
    const void *g = (char *)grad->dev + sherd_dtype_bytes(s->grad_type) * (size_t)from;
    struct sherd_adamw a = { .param = param,
        .master = master,
        .low = low,
        .m = m,
        .v = v,
        .grad = g,
        .factor = factor->dev,
        .rates = rates,
        .n = to - from,
        .step = rates ? 1000 : step,
        .lr = LR,
        .beta1 = BETA1,
        .beta2 = BETA2,
        .eps = 1e-8f,
        .weight_decay = 0.1f,
        .param_type = SHERD_BF16,
        .grad_type = s->grad_type,
        .state_type = s->state_type,
        .seed = seed,
        .stream = 77,
        .first = from };
    struct sherd_sgd b = { .param = param,
        .master = master,
        .low = low,
        .m = m,
        .grad = g,
        .factor = factor->dev,
        .n = to - from,
        .step = step,
        .lr = LR,
        .momentum = 0.9f,
        .weight_decay = 0.1f,
        .param_type = SHERD_BF16,
        .grad_type = s->grad_type,
        .state_type = s->state_type,
        .seed = seed,
        .stream = 77,
        .first = from };
    OP_RUN(t, s->sgd ? sherd_sgd(t->queue, &b) : sherd_adamw(t->queue, &a));
}

static struct weights make(struct op_test *t, const struct shape *s, struct op_buf *w, int split)
{
    double *zero = op_doubles(t, s->n);
    struct weights u = { .w = split ? NULL : op_inout(op_input(t, w->host, s->n, SHERD_F32)),
        .param = op_output(t, s->n, SHERD_BF16),
        .low = split ? op_output(t, s->n, SHERD_BF16) : NULL,
        .m = op_inout(op_input(t, zero, s->n, s->state_type)),
        .v = op_inout(op_input(t, zero, s->n, s->state_type)) };
    if (split) {
        u.low->output = 0;
        OP_RUN(t, sherd_split(t->queue, &(struct sherd_split){ u.param->dev, u.low->dev, w->dev, s->n }));
    }
    return u;
}

/* Ten steps from a master and from halves. */
static void split_case(struct op_test *t, const void *arg)
{
    const struct shape *s = arg;
    struct op_buf *w = op_random(t, s->n, SHERD_F32, 1, 0),
                  *factor = op_input(t, &(double){ 0.75 }, 1, SHERD_F32);
    struct weights whole = make(t, s, w, 0), split = make(t, s, w, 1);
    for (int64_t step = 1; step <= 10; step++) {
        struct op_buf *grad = op_random(t, s->n, s->grad_type, 1, 0);
        step_part(t, s, &whole, grad, factor, NULL, step, 0, s->n, 5);
        step_part(t, s, &split, grad, factor, NULL, step, 0, s->n, 5);
    }
    struct op_buf *joined = op_output(t, s->n, SHERD_F32);
    OP_RUN(
        t, sherd_join(t->queue, &(struct sherd_join){ joined->dev, split.param->dev, split.low->dev, s->n }));
    op_expect(t, "joined", joined, op_read(t, whole.w), 0);
    op_expect(t, "param", split.param, op_read(t, whole.param), 0);
    op_expect(t, "m", split.m, op_read(t, whole.m), 0);
    op_expect(t, "v", split.v, op_read(t, whole.v), 0);
}

static void halves_are_updated_as_the_whole(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(lengths); i++)
        for (int k = 0; k < 8; k++)
            op_run(split_case, &(struct shape){ lengths[i], k & 1, op_types[k >> 1 & 1], op_types[k >> 2] });
}

/* The mean over n values, each rounded at random, is the value within five deviations; each is one of its two
 * neighbours. */
static void expect_unbiased(struct op_test *t, const char *name, struct op_buf *buf, double value)
{
    double sum = 0, ulp = ldexp(1, ilogb(value) - 7);
    op_read(t, buf);
    for (int64_t i = 0; i < buf->n; i++) {
        sum += buf->host[i] - value;
        if (!(fabs(buf->host[i] - value) < ulp))
            fail_msg("%s[%lld] is %.9g, no neighbour of %.9g", name, (long long)i, buf->host[i], value);
    }
    double mean = sum / (double)buf->n, bound = 5 * ulp / 2 / sqrt((double)buf->n);
    if (!(fabs(mean) <= bound))
        fail_msg("%s: %.9g is %.3g too large in the mean; %.3g is allowed", name, value, mean, bound);
}

static void unbiased_case(struct op_test *t, const void *arg)
{
    const struct shape *s = arg;
    double *same = op_doubles(t, s->n), one = 1;
    for (int64_t i = 0; i < s->n; i++)
        same[i] = 0.7351234;
    struct op_buf *grad = op_input(t, same, s->n, SHERD_F32), *factor = op_input(t, &one, 1, SHERD_F32);
    struct weights u = make(t, s, op_input(t, op_doubles(t, s->n), s->n, SHERD_F32), 0);
    step_part(t, s, &u, grad, factor, NULL, 1, 0, s->n, 5);
    double g = grad->host[0];
    expect_unbiased(t, "m", u.m, s->sgd ? g : (double)((float)(1 - (double)0.9f) * (float)g));
    if (!s->sgd)
        expect_unbiased(t, "v", u.v, (double)((float)(1 - (double)0.95f) * (float)(g * g)));
}

static void rounding_at_random_is_unbiased(void **state)
{
    (void)state;
    op_run(unbiased_case, &(struct shape){ 200001, 0, SHERD_F32, SHERD_BF16 });
    op_run(unbiased_case, &(struct shape){ 200001, 1, SHERD_F32, SHERD_BF16 });
}

/* Whole, and in uneven parts as ranks have them: the same bits; another seed: others. */
static void parts_case(struct op_test *t, const void *arg)
{
    const struct shape *s = arg;
    static const int64_t cut[] = { 0, 1, 6, 1003, 40000, 70001 };
    struct op_buf *w = op_random(t, s->n, SHERD_F32, 1, 0),
                  *factor = op_input(t, &(double){ 1 }, 1, SHERD_F32);
    struct weights whole = make(t, s, w, 0), parts = make(t, s, w, 0), other = make(t, s, w, 0);
    for (int64_t step = 1; step <= 3; step++) {
        struct op_buf *grad = op_random(t, s->n, s->grad_type, 1, 0);
        step_part(t, s, &whole, grad, factor, NULL, step, 0, s->n, 5);
        step_part(t, s, &other, grad, factor, NULL, step, 0, s->n, 6);
        for (size_t i = 0; i + 1 < ARRAY_LEN(cut); i++)
            step_part(t, s, &parts, grad, factor, i % 2 ? rates(t, step) : NULL, step, cut[i], cut[i + 1], 5);
    }
    op_expect(t, "m", parts.m, op_read(t, whole.m), 0);
    op_expect(t, "w", parts.w, op_read(t, whole.w), 0);
    assert_memory_not_equal(op_read(t, other.m), whole.m->host, (size_t)s->n * sizeof(double));
    if (!s->sgd)
        op_expect(t, "v", parts.v, op_read(t, whole.v), 0);
}

static void parts_are_rounded_as_the_whole(void **state)
{
    (void)state;
    for (int sgd = 0; sgd < 2; sgd++)
        op_run(parts_case, &(struct shape){ 70001, sgd, SHERD_BF16, SHERD_BF16 });
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_lost_by_the_cut),
        cmocka_unit_test(halves_are_updated_as_the_whole),
        cmocka_unit_test(rounding_at_random_is_unbiased),
        cmocka_unit_test(parts_are_rounded_as_the_whole),
    };
    return op_main(argc, argv, tests, ARRAY_LEN(tests));
}
