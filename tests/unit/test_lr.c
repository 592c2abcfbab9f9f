/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Learning rates: sherd's own curves at their corners, DeepSpeed's three schedulers step by step against
 * their formulas written out here, and what is told of a curve that is another one than before.
 */
#include "tests/check.h"

#include <math.h>

#include "optim/optim.h"
#include "runtime/resume.h"

static void expect(double got, double want, int64_t step)
{
    if (!(fabs(got - want) <= 1e-12 * fmax(fabs(want), 1e-3)))
        fail_msg("step %lld: %.17g, wanted %.17g", (long long)step, got, want);
}

static void own_curves(void **state)
{
    (void)state;
    struct sherd_config c = { .optim.lr = 2, .schedule = { SHERD_LR_LINEAR, .warmup = 4, .min_lr = 0.5 } };
    expect(lr_at(&c, 1, 12), 0.5, 1);
    expect(lr_at(&c, 4, 12), 2, 4);
    expect(lr_at(&c, 8, 12), 1.5, 8);
    expect(lr_at(&c, 12, 12), 1, 12);
    c.schedule.warmup_from = 0.5;
    expect(lr_at(&c, 1, 12), 1.25, 1);
    c.schedule.warmup_from = 0;
    c.schedule.warmup_shape = SHERD_WARMUP_LOG;
    expect(lr_at(&c, 1, 12), 2 * log(2) / log(5), 1);
    expect(lr_at(&c, 4, 12), 2, 4);
    c.schedule.steps = 20; /* goes on past the run */
    expect(lr_at(&c, 12, 12), 1.5, 12);
    c.schedule = (typeof(c.schedule)){ SHERD_LR_COSINE, .warmup = 2, .min_lr = 0.1 };
    expect(lr_at(&c, 6, 10), 2 * (0.1 + 0.9 * 0.5), 6);
    expect(lr_at(&c, 10, 10), 0.2, 10);
    c.schedule.kind = SHERD_LR_CONSTANT;
    expect(lr_at(&c, 9, 10), 2, 9);
}

static void fractions(void **state)
{
    (void)state;
    assert_int_equal(lr_steps(0.05, 200), 10);
    assert_int_equal(lr_steps(0.05, 5), 0);
    assert_int_equal(lr_steps(0.0367, 19073), 700);
    assert_int_equal(lr_steps(10, 5), 10);
    struct sherd_config a = { .optim.lr = 1, .schedule = { SHERD_LR_WSD, .warmup = 10, .decay = 40 } }, b = a;
    b.schedule.warmup = 0.1;
    b.schedule.decay = 0.4;
    for (int64_t s = 1; s <= 100; s++)
        assert_true(lr_at(&a, s, 100) == lr_at(&b, s, 100));
}

/* The rate of optimizer step k: its schedulers move after a step, and their first move only sets t to 0. */
static double theirs(enum sherd_schedule kind, int logarithmic, int64_t k, int64_t given, int64_t total,
    double low, double high, double end)
{
    double t = k < 2 ? 0 : (double)(k - 2), n = given < 2 ? 2 : (double)given, rise, p;
    rise = logarithmic ? log(t + 1) / log(n) : t / n;
    if (t < n)
        return low + rise * (high - low);
    if (kind == SHERD_LR_CONSTANT)
        return high;
    if (kind == SHERD_LR_LINEAR) {
        p = fmax(0, ((double)total - t) / fmax(1, (double)total - n));
        return p * high;
    }
    p = fmin(1, (t - n + 1) / fmax(1, (double)total - n));
    return high * (end + (1 - end) * (1 + cos(M_PI * p)) / 2);
}

static void deepspeeds_curves(void **state)
{
    (void)state;
    static const enum sherd_schedule kinds[] = { SHERD_LR_CONSTANT, SHERD_LR_LINEAR, SHERD_LR_COSINE };
    for (int kind = 0; kind < 3; kind++)
        for (int logarithmic = 0; logarithmic < 2; logarithmic++)
            for (int64_t warmup = 0; warmup < 12; warmup += 3) {
                double end = kind == 2 ? 1e-4 : 0;
                struct sherd_config c = { .optim.lr = 3e-4,
                    .schedule = { kinds[kind], (double)warmup,
                        logarithmic ? SHERD_WARMUP_LOG : SHERD_WARMUP_LINEAR, .warmup_from = 0.1,
                        .min_lr = end, .steps = 30, .count = SHERD_COUNT_DEEPSPEED } };
                for (int64_t k = 1; k <= 40; k++)
                    expect(lr_at(&c, k, 1000),
                        theirs(kinds[kind], logarithmic, k, warmup, 30, 3e-5, 3e-4, end), k);
            }
}

static void expect_line(const struct sherd_config *before, const struct sherd_config *now, int64_t done,
    int64_t skipped, const char *want)
{
    struct text line = { 0 };
    resume_rate(&line, before, now, done, skipped);
    assert_int_equal(want != NULL, line.data != NULL);
    if (want)
        assert_string_equal(line.data, want);
    text_finish(&line);
}

/* A run that goes on to more steps has another curve: that is told, unless nothing changes by it. */
static void another_curve(void **state)
{
    (void)state;
    struct sherd_config before = {
        .optim.lr = 1, .schedule = { SHERD_LR_LINEAR, .min_lr = 0.5 }, .train.steps = 10
    };
    struct sherd_config now = before;
    expect_line(&before, &now, 10, 0, NULL);
    now.train.steps = 20;
    expect_line(&before, &now, 10, 0,
        "learning rate: its curve goes over 20 steps now, not 10: 7.25e-01 at step 11, where it was to be "
        "5.00e-01; schedule.steps=10 keeps the old curve");
    expect_line(&before, &now, 6, 2,
        "learning rate: its curve goes over 20 steps now, not 10: 8.75e-01 at step 7, where it was to be "
        "7.50e-01; schedule.steps=10 keeps the old curve");
    /* Rates that are alike at first sight. */
    before.train.steps = 200;
    now.train.steps = 201;
    expect_line(&before, &now, 199, 0,
        "learning rate: its curve goes over 201 steps now, not 200: 5.02487540e-01 at step 200, where it was to be "
        "5.00000000e-01; schedule.steps=200 keeps the old curve");
    before.train.steps = 10;
    now.train.steps = 20;
    now.schedule.steps = 10;
    expect_line(&before, &now, 10, 0, NULL);
    now.optim.lr = 2;
    expect_line(&before, &now, 10, 0,
        "learning rate: optim.lr or schedule.* are not what they were: 1.00e+00 at step 11, where it was to be "
        "5.00e-01");
    before.schedule.kind = now.schedule.kind = SHERD_LR_CONSTANT;
    now.optim.lr = 1;
    now.schedule.steps = 0;
    expect_line(&before, &now, 10, 0, NULL);
    /* The same rate for some steps yet, and then another. */
    before.schedule.kind = now.schedule.kind = SHERD_LR_WSD;
    before.schedule.decay = now.schedule.decay = 4;
    expect_line(&before, &now, 3, 0,
        "learning rate: its curve goes over 20 steps now, not 10: 1.00e+00 at step 7, where it was to be "
        "8.75e-01; schedule.steps=10 keeps the old curve");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(own_curves),
        cmocka_unit_test(fractions),
        cmocka_unit_test(deepspeeds_curves),
        cmocka_unit_test(another_curve),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
