/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * bf16 and f16 against rounding in double, over all upper halves and the places where rounding turns.
 */
#include "tests/check.h"

#include <math.h>

#include "base/half.h"

static float float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof(f));
    return f;
}

/* f rounded to `bits` of mantissa (without the hidden one), smallest exponent `low`, infinity from 2^high. */
static double rounded(float f, int bits, int low, int high)
{
    if (f == 0 || isinf(f))
        return f;
    double unit = ldexp(1, (int)fmax(ilogb(f), low) - bits);
    double r = nearbyint(f / unit) * unit; /* dividing by a power of two is exact */
    return fabs(r) >= ldexp(1, high) ? copysign(INFINITY, f) : r;
}

/* Low halves around the turning points of both types. */
static const uint32_t low_halves[] = { 0x0000, 0x0001, 0x0fff, 0x1000, 0x1001, 0x1fff, 0x2000, 0x3000, 0x5000,
    0x7000, 0x7fff, 0x8000, 0x8001, 0x9000, 0xb000, 0xf000, 0xffff };

static void bf16_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t high = 0; high < 65536; high++)
        for (size_t i = 0; i < ARRAY_LEN(low_halves); i++) {
            float f = float_of(high << 16 | low_halves[i]);
            float got = bf16_to_float(bf16_from_float(f));
            if (isnan(f)) {
                assert_true(isnan(got));
                continue;
            }
            double want = rounded(f, 7, -126, 128);
            if ((double)got != want || signbit(got) != signbit(f))
                fail_msg("%a became %a, not %a", (double)f, (double)got, want);
        }
}

static void f16_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t high = 0; high < 65536; high++)
        for (size_t i = 0; i < ARRAY_LEN(low_halves); i++) {
            float f = float_of(high << 16 | low_halves[i]);
            float got = f16_to_float(f16_from_float(f));
            if (isnan(f)) {
                assert_true(isnan(got));
                continue;
            }
            double want = rounded(f, 10, -14, 16);
            if ((double)got != want || signbit(got) != signbit(f))
                fail_msg("%a became %a, not %a", (double)f, (double)got, want);
        }
}

static void every_pattern_survives(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float b = bf16_to_float((bf16)h), f = f16_to_float((uint16_t)h);
        assert_true(isnan(b) || bf16_from_float(b) == h);
        assert_true(isnan(f) || f16_from_float(f) == h);
    }
}

static void f16_values_are_those_of_the_standard(void **state)
{
    (void)state;
    for (int sign = 0; sign < 2; sign++)
        for (int e = 0; e < 31; e++)
            for (int m = 0; m < 1024; m++) {
                double want = e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
                float got = f16_to_float((uint16_t)(sign << 15 | e << 10 | m));
                assert_true((double)got == (sign ? -want : want));
            }
    assert_true(isinf(f16_to_float(0x7c00)) && isinf(f16_to_float(0xfc00)) && isnan(f16_to_float(0x7c01)));
    assert_int_equal(f16_from_float(65504), 0x7bff);
    assert_int_equal(f16_from_float(65519.99f), 0x7bff);
    assert_int_equal(f16_from_float(65520), 0x7c00);
    assert_int_equal(f16_from_float(0x1p-25f), 0);
    assert_int_equal(f16_from_float(0x1.000002p-25f), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bf16_rounds_to_nearest_even),
        cmocka_unit_test(f16_rounds_to_nearest_even),
        cmocka_unit_test(every_pattern_survives),
        cmocka_unit_test(f16_values_are_those_of_the_standard),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
