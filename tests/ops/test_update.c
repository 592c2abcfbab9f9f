/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Optimizer updates over ten steps, steps that are not taken, norms, the clip factor, sums in order.
 */
#include "tests/ops/checkop.h"

#include <math.h>

#include "base/half.h"

#define STEPS 10
#define LR 1e-2
#define DECAY 0.1
#define BETA1 0.9
#define BETA2 0.95
#define EPS 1e-8

struct shape {
    int64_t n;
    enum sherd_dtype param_type, grad_type;
    int param; /* there is a rounded copy */
    double momentum, decay;
};

struct model {
    struct op_buf *w, *m, *v, *param, *grad, *factor;
    double *ref_w, *ref_m, *ref_v;
};

static double *keep(struct op_test *t, const struct op_buf *buf)
{
    double *copy = op_doubles(t, buf->n);
    memcpy(copy, buf->host, (size_t)buf->n * sizeof(*copy));
    return copy;
}

static struct model make(struct op_test *t, const struct shape *s, double factor)
{
    double *zero = op_doubles(t, s->n);
    struct model u = { .w = op_inout(op_random(t, s->n, SHERD_F32, 1, 0)),
        .m = op_inout(op_input(t, zero, s->n, SHERD_F32)),
        .v = op_inout(op_input(t, zero, s->n, SHERD_F32)),
        .param = s->param ? op_output(t, s->n, s->param_type) : NULL,
        .grad = op_random(t, s->n, s->grad_type, 1, 0),
        .factor = op_input(t, &factor, 1, SHERD_F32) };
    u.ref_w = keep(t, u.w);
    u.ref_m = keep(t, u.m);
    u.ref_v = keep(t, u.v);
    return u;
}

/* As an optimizer leaves them in device memory. */
static const struct sherd_rates *rates(struct op_test *t, int64_t step)
{
    double b1 = (double)(float)BETA1, b2 = (double)(float)BETA2;
    const double at[] = { (float)LR, (float)LR / (1 - pow(b1, (double)step)),
        1 / sqrt(1 - pow(b2, (double)step)), 0 };
    return op_input(t, at, 4, SHERD_F32)->dev;
}

/* Every other step takes its rates from memory, and must not look at lr and step then. */
static void adamw(struct op_test *t, const struct shape *s, const struct model *u, int64_t step)
{
    int kept = step % 2 == 0;
    OP_RUN(t, sherd_adamw(t->queue, &(struct sherd_adamw){ .param = u->param ? u->param->dev : NULL,
                                        .master = u->w->dev,
                                        .m = u->m->dev,
                                        .v = u->v->dev,
                                        .grad = u->grad->dev,
                                        .factor = u->factor->dev,
                                        .rates = kept ? rates(t, step) : NULL,
                                        .n = s->n,
                                        .step = kept ? 1000 : step,
                                        .lr = kept ? 1.0f : (float)LR,
                                        .beta1 = (float)BETA1,
                                        .beta2 = (float)BETA2,
                                        .eps = (float)EPS,
                                        .weight_decay = (float)DECAY,
                                        .param_type = s->param_type,
                                        .grad_type = s->grad_type,
                                        .state_type = SHERD_F32 }));
}

static void adamw_reference(const struct shape *s, struct model *u, int64_t step)
{
    const double b1 = (double)(float)BETA1, b2 = (double)(float)BETA2;
    for (int64_t i = 0; i < s->n; i++) {
        double g = u->grad->host[i] * u->factor->host[0];
        u->ref_m[i] = b1 * u->ref_m[i] + (1 - b1) * g;
        u->ref_v[i] = b2 * u->ref_v[i] + (1 - b2) * g * g;
        double m = u->ref_m[i] / (1 - pow(b1, (double)step)), v = u->ref_v[i] / (1 - pow(b2, (double)step));
        u->ref_w[i] -= LR * (m / (sqrt(v) + EPS) + DECAY * u->ref_w[i]);
    }
}

static void expect(struct op_test *t, const struct shape *s, const struct model *u)
{
    op_expect(t, "w", u->w, u->ref_w, 2e-6);
    if (u->param) {
        int16_t low;
        double *want = op_doubles(t, s->n);
        for (int64_t i = 0; i < s->n; i++)
            want[i] = s->param_type == SHERD_BF16
                          ? (double)bf16_to_float(bf16_split((float)u->w->host[i], &low))
                          : op_round(u->w->host[i], s->param_type);
        op_expect(t, "param", u->param, want, 0);
    }
}

static void adamw_case(struct op_test *t, const void *arg)
{
    const struct shape *s = arg;
    struct model u = make(t, s, 0.75);
    for (int64_t step = 1; step <= STEPS; step++) {
        adamw(t, s, &u, step);
        adamw_reference(s, &u, step);
    }
    if (t->repeat)
        return;
    op_expect(t, "m", u.m, u.ref_m, 2e-6);
    op_expect(t, "v", u.v, u.ref_v, 2e-6);
    expect(t, s, &u);
}

static void sgd(struct op_test *t, const struct shape *s, const struct model *u, int64_t step)
{
    OP_RUN(t, sherd_sgd(t->queue, &(struct sherd_sgd){ .param = u->param ? u->param->dev : NULL,
                                      .master = u->w->dev,
                                      .m = s->momentum != 0 ? u->m->dev : NULL,
                                      .grad = u->grad->dev,
                                      .factor = u->factor->dev,
                                      .rates = step % 2 == 0 ? rates(t, step) : NULL,
                                      .n = s->n,
                                      .step = step,
                                      .lr = step % 2 == 0 ? 1.0f : (float)LR,
                                      .momentum = (float)s->momentum,
                                      .weight_decay = (float)s->decay,
                                      .param_type = s->param_type,
                                      .grad_type = s->grad_type,
                                      .state_type = SHERD_F32 }));
}

static void sgd_case(struct op_test *t, const void *arg)
{
    const struct shape *s = arg;
    struct model u = make(t, s, 0.5);
    double *unset = op_doubles(t, s->n);
    for (int64_t i = 0; i < s->n; i++)
        unset[i] = NAN; /* step 1 must not read it */
    struct op_buf *m = op_input(t, unset, s->n, SHERD_F32);
    if (s->momentum != 0)
        u.m = op_inout(m);
    for (int64_t step = 1; step <= STEPS; step++) {
        sgd(t, s, &u, step);
        for (int64_t i = 0; i < s->n; i++) {
            double g = u.grad->host[i] * 0.5 + s->decay * u.ref_w[i];
            u.ref_m[i] = step == 1 ? g : s->momentum * u.ref_m[i] + g;
            u.ref_w[i] -= LR * u.ref_m[i];
        }
    }
    if (!t->repeat)
        expect(t, s, &u);
}

static const int64_t lengths[] = { 0, 1, 3, 7, 24, 101, 257, 513, CHECK_MANY(70001, 33001) };

static void ten_steps_of_adamw(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(lengths); i++)
        for (int v = 0; v < OP_TYPES * OP_TYPES; v++)
            op_run(adamw_case, &(struct shape){ .n = lengths[i],
                                   .param_type = op_types[v / OP_TYPES],
                                   .grad_type = op_types[v % OP_TYPES],
                                   .param = v != 1 });
}

static void ten_steps_of_sgd(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(lengths); i++)
        for (int v = 0; v < OP_TYPES * OP_TYPES; v++)
            op_run(sgd_case, &(struct shape){ lengths[i], op_types[v / OP_TYPES], op_types[v % OP_TYPES],
                                 v != 1, v % 4 % 3 ? 0.9 : 0, v % 4 % 3 == 1 ? 0.1 : 0 });
}

/* A factor that is NaN: all bits stay. */
static void skip_case(struct op_test *t, const void *arg)
{
    const struct shape *s = arg;
    struct model u = make(t, s, NAN);
    struct op_buf *param = op_inout(op_random(t, s->n, s->param_type, 1, 0));
    double *before = keep(t, param);
    u.param = param;
    adamw(t, s, &u, 3);
    sgd(t, s, &u, 3);
    op_expect(t, "w", u.w, u.ref_w, 0);
    op_expect(t, "m", u.m, u.ref_m, 0);
    op_expect(t, "v", u.v, u.ref_v, 0);
    op_expect(t, "param", param, before, 0);
}

static void nan_factor_changes_nothing(void **state)
{
    (void)state;
    op_run(skip_case,
        &(struct shape){ .n = 1000, .param_type = SHERD_BF16, .grad_type = SHERD_F32, .momentum = 0.9 });
    op_run(skip_case,
        &(struct shape){ .n = 1000, .param_type = SHERD_F32, .grad_type = SHERD_BF16, .momentum = 0.9 });
    op_run(skip_case,
        &(struct shape){ .n = 1000, .param_type = SHERD_F16, .grad_type = SHERD_F16, .momentum = 0.9 });
}

/* ---- sums ---- */

static void square_sum_case(struct op_test *t, const void *arg)
{
    const struct shape *s = arg;
    struct op_buf *x = op_random(t, s->n, s->grad_type, 1, 0);
    struct op_buf *sum = op_inout(op_input(t, &(double){ 3 }, 1, SHERD_F64));
    struct sherd_square_sum a = { .sum = sum->dev, .x = x->dev, .n = s->n, .type = s->grad_type };
    a.scratch = op_scratch(t, sherd_square_sum_scratch(&a));
    OP_RUN(t, sherd_square_sum(t->queue, &a));
    double want = 3 + op_dot(x->host, x->host, s->n);
    if (!t->repeat)
        op_expect(t, "sum", sum, &want, 1e-12);
}

static void square_sums(void **state)
{
    static const int64_t n[] = { 0, 1, 7, 257, 65536, 65537, 200001 };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(n); i++)
        for (int v = 0; v < OP_TYPES; v++)
            op_run(square_sum_case, &(struct shape){ .n = n[i], .grad_type = op_types[v] });
}

/* The order shows in the bits: 1e16 + 1 - 1e16 is 0 from left to right. */
static void ordered_case(struct op_test *t, const void *arg)
{
    struct op_buf *in = op_input(t, (double[]){ 1e16, 1, -5, 1, 2, -5, -1e16, 3 }, 8, SHERD_F64);
    struct op_buf *out = op_output(t, 2, SHERD_F64);
    (void)arg;
    OP_RUN(t,
        sherd_ordered_sum(t->queue,
            &(struct sherd_ordered_sum){ .out = out->dev, .in = in->dev, .n = 3, .stride = 3, .cols = 2 }));
    op_expect(t, "out", out, (double[]){ 0, 6 }, 0);
}

static void sums_in_order(void **state)
{
    (void)state;
    op_run(ordered_case, NULL);
}

struct clip {
    double square_sum, max_norm, norm, factor, loss;
    int has_loss;
    double scale; /* 0: none is given */
};

static void clip_case(struct op_test *t, const void *arg)
{
    const struct clip *c = arg;
    struct op_buf *sum = op_input(t, &c->square_sum, 1, SHERD_F64);
    struct op_buf *factor = op_output(t, 1, SHERD_F32), *norm = op_output(t, 1, SHERD_F64);
    struct op_buf *loss = c->has_loss ? op_input(t, &c->loss, 1, SHERD_F64) : NULL;
    struct op_buf *scale = c->scale > 0 ? op_input(t, &c->scale, 1, SHERD_F64) : NULL;
    OP_RUN(t, sherd_clip_factor(t->queue, &(struct sherd_clip_factor){ .factor = factor->dev,
                                              .norm = norm->dev,
                                              .square_sum = sum->dev,
                                              .loss = loss ? loss->dev : NULL,
                                              .scale = scale ? scale->dev : NULL,
                                              .max_norm = (float)c->max_norm }));
    double got = op_read(t, factor)[0], got_norm = op_read(t, norm)[0];
    assert_true(isnan(c->factor) ? isnan(got) : fabs(got - c->factor) <= 1e-6 * c->factor);
    assert_true(isfinite(c->norm) ? fabs(got_norm - c->norm) <= 1e-12 * c->norm : !isfinite(got_norm));
}

static void clip_factors(void **state)
{
    static const struct clip clips[] = { { 16, 1, 4, 1 / (4 + 1e-6) }, { 0.25, 1, 0.5, 1 }, { 16, 0, 4, 1 },
        { 0, 1, 0, 1 }, { INFINITY, 1, INFINITY, NAN }, { NAN, 1, NAN, NAN }, { NAN, 0, NAN, NAN },
        { 16, 1, 4, 1 / (4 + 1e-6), 7, 1 }, { 0.25, 1, 0.5, NAN, INFINITY, 1 }, { 16, 0, 4, NAN, NAN, 1 },
        { 0.25, 1, 0.5, NAN, -INFINITY, 1 }, { 16, 0, 0.5, 0.125, .scale = 8 },
        { 16 * 64, 1, 4, 0.125 / (4 + 1e-6), .scale = 8 }, { 1, 1, 0x1p-16, 0x1p-16, .scale = 65536 },
        { INFINITY, 1, INFINITY, NAN, .scale = 65536 }, { 1, 1, 0x1p-16, NAN, INFINITY, 1, 65536 } };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(clips); i++)
        op_run(clip_case, &clips[i]);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ten_steps_of_adamw),
        cmocka_unit_test(ten_steps_of_sgd),
        cmocka_unit_test(nan_factor_changes_nothing),
        cmocka_unit_test(square_sums),
        cmocka_unit_test(sums_in_order),
        cmocka_unit_test(clip_factors),
    };
    return op_main(argc, argv, tests, ARRAY_LEN(tests));
}
