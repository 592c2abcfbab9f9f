/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The exponential of the CPU kind against libm's in double, and the largest of some floats.
 */
#include "tests/ops/checkop.h"

#include <math.h>

#include "device/cpu/vec.h"

/* Distance in units of the last place of the float nearest to want. */
static double ulps(float got, double want)
{
    float nearest = (float)want;
    double unit = fabs((double)nextafterf(nearest, INFINITY) - (double)nearest);
    return fabs((double)got - want) / unit;
}

static void exp_is_accurate(void **state)
{
    double worst = 0;
    (void)state;
    for (double x = -103.9; x < 88.72; x += 1.0 / 1024 + 1e-5) {
        float f = (float)x;
        worst = fmax(worst, ulps(vec_exp(f), exp((double)f)));
    }
    for (int e = -40; e < 6; e++)
        for (int sign = -1; sign <= 1; sign += 2) {
            float f = ldexpf((float)sign * 1.37f, e);
            worst = fmax(worst, ulps(vec_exp(f), exp((double)f)));
        }
    if (worst > 1.5)
        fail_msg("exp is off by %g units in the last place", worst);
}

static void exp_at_its_ends(void **state)
{
    (void)state;
    assert_true(vec_exp(0.0f) == 1.0f);
    assert_true(vec_exp(-0.0f) == 1.0f);
    assert_true(vec_exp(-INFINITY) == 0.0f);
    assert_true(vec_exp(-1e30f) == 0.0f);
    assert_true(vec_exp(-105.0f) == 0.0f);
    assert_true(isinf(vec_exp(INFINITY)));
    assert_true(isinf(vec_exp(88.73f)));
    assert_true(isinf(vec_exp(1e30f)));
    assert_true(isnan(vec_exp(NAN)));
    assert_true(isnan(vec_exp(-NAN)));
}

static void max_of_any_length(void **state)
{
    float x[70];
    (void)state;
    for (int n = 1; n <= 70; n++)
        for (int at = 0; at < n; at++) {
            for (int i = 0; i < n; i++)
                x[i] = -5.0f - (float)i;
            x[at] = -1.0f;
            assert_true(vec_max(x, n) == -1.0f);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_accurate),
        cmocka_unit_test(exp_at_its_ends),
        cmocka_unit_test(max_of_any_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
