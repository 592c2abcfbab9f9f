/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The rules of the loss scale, step by step.
 */
#include "tests/check.h"

#include "runtime/scale.h"

static struct sherd_config config(int64_t power, int64_t window, int64_t hysteresis, double least)
{
    struct sherd_config c;
    ASSERT_OK(sherd_config_default(&c));
    c.dtype.param = SHERD_F16;
    c.dtype.initial_scale_power = power;
    c.dtype.loss_scale_window = window;
    c.dtype.hysteresis = hysteresis;
    c.dtype.min_loss_scale = least;
    return c;
}

/* Steps that are "o"verflows, "g"ood ones, or overflows that are refused ("x"); the scale after each. */
static void expect(struct scale *s, const struct sherd_config *c, const char *steps, const double *after)
{
    for (int i = 0; steps[i]; i++) {
        if (steps[i] == 'g')
            scale_good(s, c);
        else
            assert_int_equal(scale_overflow(s, c), steps[i] == 'o');
        if (s->value != after[i])
            fail_msg("after step %d of %s the scale is %g, not %g", i + 1, steps, s->value, after[i]);
    }
}

static void only_f16_is_scaled(void **state)
{
    struct scale s;
    struct sherd_config c = config(16, 1000, 2, 1);
    (void)state;
    scale_init(&s, &c);
    assert_true(s.dynamic && s.value == 65536);
    c.dtype.loss_scale = 100;
    scale_init(&s, &c);
    assert_true(!s.dynamic && s.value == 100);
    for (int i = 0; i < 3000; i++)
        scale_good(&s, &c);
    assert_true(s.value == 100);
    c.dtype.param = SHERD_BF16;
    scale_init(&s, &c);
    assert_true(!s.dynamic && s.value == 1);
    sherd_config_free(&c);
}

/* The first overflow is borne, the next ones halve; patience comes back with a doubling, not with a step. */
static void it_falls_and_rises(void **state)
{
    struct scale s;
    struct sherd_config c = config(4, 2, 2, 1);
    (void)state;
    scale_init(&s, &c);
    expect(&s, &c, "ooogo", (double[]){ 16, 8, 4, 4, 2 });
    expect(&s, &c, "ggggg", (double[]){ 2, 2, 4, 4, 8 }); /* two good ones behind it, then again two */
    expect(&s, &c, "oo", (double[]){ 8, 4 });
    sherd_config_free(&c);
}

static void consecutive_hysteresis_is_refilled_by_any_step(void **state)
{
    struct scale s;
    struct sherd_config c = config(4, 100, 3, 1);
    (void)state;
    c.dtype.consecutive_hysteresis = 1;
    scale_init(&s, &c);
    expect(&s, &c, "oogoogooo", (double[]){ 16, 16, 16, 16, 16, 16, 16, 16, 8 });
    sherd_config_free(&c);
}

/* It stops at the smallest, whether halving meets it or not. */
static void an_overflow_at_the_smallest_is_refused(void **state)
{
    struct scale s;
    struct sherd_config c = config(4, 1, 1, 3);
    (void)state;
    scale_init(&s, &c);
    expect(&s, &c, "oooxxg", (double[]){ 8, 4, 3, 3, 3, 3 });
    expect(&s, &c, "g", (double[]){ 6 });
    sherd_config_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_f16_is_scaled),
        cmocka_unit_test(it_falls_and_rises),
        cmocka_unit_test(consecutive_hysteresis_is_refilled_by_any_step),
        cmocka_unit_test(an_overflow_at_the_smallest_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
