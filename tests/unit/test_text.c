/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Text: builder, parsers and what they refuse, nearest word, patterns, sizes for people.
 */
#include "tests/check.h"

#include <math.h>

#include "base/mem.h"
#include "base/text.h"

static void builder(void **state)
{
    (void)state;
    struct text t = { 0 };
    char *s;
    for (int i = 0; i < 1000; i++)
        text_add(&t, "%d,", i % 10);
    text_put(&t, "a\0b", 3);
    assert_int_equal(t.len, 2003);
    ASSERT_OK(text_take(&t, &s));
    assert_int_equal(strncmp(s, "0,1,2,", 6), 0);
    assert_int_equal(s[2002], 'b');
    assert_int_equal(s[2003], '\0');
    assert_null(t.data);
    mem_free(s);
    ASSERT_OK(text_take(&t, &s));
    assert_string_equal(s, "");
    mem_free(s);
}

static void builder_remembers_failure(void **state)
{
    (void)state;
    struct text t = { 0 };
    char *s = NULL;
    mem_fail_at(1);
    text_add(&t, "lost");
    text_add(&t, "not lost, but useless");
    SHERD_FAIL(SHERD_EIO, "something else");
    ASSERT_FAILS(text_take(&t, &s), SHERD_ENOMEM, "out of memory");
    assert_null(s);
    text_add(&t, "fresh");
    ASSERT_OK(text_take(&t, &s));
    assert_string_equal(s, "fresh");
    mem_free(s);
    text_finish(&t);
}

static void lists_are_never_cut_in_silence(void **state)
{
    (void)state;
    char buf[32] = "", whole[64] = "";
    struct text_list list = { .buf = buf, .bytes = sizeof(buf) };
    text_list_add(&list, "%s", "one");
    assert_string_equal(buf, "one");
    text_list_add(&list, "%d", 22);
    assert_string_equal(buf, "one, 22");
    text_list_add(&list, "three of them");
    assert_string_equal(buf, "one, 22 and 1 more");
    for (int i = 0; i < 99; i++)
        text_list_add(&list, "4"); /* there is room, but then nobody would know what is left out */
    assert_string_equal(buf, "one, 22 and 100 more");
    list = (struct text_list){ .buf = whole, .bytes = sizeof(whole) };
    text_list_add(&list, "%0*d", (int)sizeof(whole), 0);
    assert_string_equal(whole, "1 more");
}

static void integers(void **state)
{
    (void)state;
    static const struct {
        const char *s;
        int64_t v;
    } good[] = { { "0", 0 }, { "-0", 0 }, { "+5", 5 }, { "1000", 1000 }, { "1_000", 1000 }, { "1e4", 10000 },
        { "5e8", 500000000 }, { "5E+8", 500000000 }, { "1.5e3", 1500 }, { "2.0", 2 }, { "100e-2", 1 },
        { "-3", -3 }, { "007", 7 }, { "0e999999999", 0 }, { "9223372036854775807", INT64_MAX },
        { "-9223372036854775808", INT64_MIN }, { "9.223372036854775807e18", INT64_MAX } };
    static const char *const bad[] = { "", " 1", "1 ", "1.5", "1e-1", "e5", "1e", "1e+", ".", "-", "+-1",
        "--1", "1__0", "_1", "1_", "1_.5", "0x10", "1,000", "ten", "nan", "inf", "9223372036854775808",
        "-9223372036854775809", "1e19", "1e999999999999", "18446744073709551616", "1\n",
        "10000000000000000000000000000000000000000000000000000000000000000000" };
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        int64_t v = 77;
        if (text_int(good[i].s, &v) != SHERD_OK || v != good[i].v)
            fail_msg("'%s' gave %lld", good[i].s, (long long)v);
    }
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        int64_t v = 77;
        if (text_int(bad[i], &v) != SHERD_EINVAL || v != 77)
            fail_msg("'%s' was taken as %lld", bad[i], (long long)v);
    }
}

static void doubles(void **state)
{
    (void)state;
    static const struct {
        const char *s;
        double v;
    } good[] = { { "0", 0 }, { "0.1", 0.1 }, { "-2.5", -2.5 }, { ".5", 0.5 }, { "5.", 5 }, { "1e-8", 1e-8 },
        { "3.0e-4", 3e-4 }, { "1_000.5", 1000.5 }, { "1e308", 1e308 }, { "5e-324", 0x1p-1074 },
        { "0e-999", 0 }, { "0.1000000000000000055511151231257827", 0.1 } };
    static const char *const bad[] = { "", " 1", "1 ", "nan", "NaN", "inf", "-inf", "infinity", "1e309",
        "1e-400", "0x1p3", "1e", ".", "1,5", "1.2.3", "--1", "1f" };
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        double v = 77;
        if (text_double(good[i].s, &v) != SHERD_OK || v != good[i].v)
            fail_msg("'%s' gave %g", good[i].s, v);
    }
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        double v = 77;
        if (text_double(bad[i], &v) != SHERD_EINVAL || v != 77)
            fail_msg("'%s' was taken as %g", bad[i], v);
    }
}

static void durations(void **state)
{
    (void)state;
    static const struct {
        const char *s;
        double v;
    } good[] = { { "90", 90 }, { "90s", 90 }, { "1.5m", 90 }, { "2h", 7200 }, { "1d", 86400 },
        { "0.25s", 0.25 } };
    static const char *const bad[] = { "", "-1", "1x", "1 s", "s", "1hh", "1h30m", "inf", "1e308d" };
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        double v = 77;
        if (text_seconds(good[i].s, &v) != SHERD_OK || v != good[i].v)
            fail_msg("'%s' gave %g", good[i].s, v);
    }
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        double v = 77;
        if (text_seconds(bad[i], &v) != SHERD_EINVAL || v != 77)
            fail_msg("'%s' was taken as %g", bad[i], v);
    }
}

static void booleans(void **state)
{
    (void)state;
    static const char *const yes[] = { "true", "yes", "on", "True" }, *const no[] = { "false", "no", "off" };
    static const char *const bad[] = { "", "1", "0", "y", "t", "true ", "maybe" };
    int v;
    for (size_t i = 0; i < ARRAY_LEN(yes); i++) {
        v = -1;
        assert_true(text_bool(yes[i], &v) == SHERD_OK && v == 1);
    }
    for (size_t i = 0; i < ARRAY_LEN(no); i++) {
        v = -1;
        assert_true(text_bool(no[i], &v) == SHERD_OK && v == 0);
    }
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_int_equal(text_bool(bad[i], &v), SHERD_EINVAL);
}

static void nearest(void **state)
{
    (void)state;
    static const char *const words[] = { "shard.stage", "shard.prefetch", "run.dir", "lr" };
    static const struct {
        const char *s, *want;
    } cases[] = { { "shard.stge", "shard.stage" }, { "shard.satge", "shard.stage" },
        { "Shard.Stage", "shard.stage" }, { "shard.prefech", "shard.prefetch" }, { "run.dirs", "run.dir" },
        { "lf", "lr" } };
    static const char *const none[] = { "momentum", "", "x", "zz" };
    char big[500];
    memset(big, 'x', sizeof(big) - 1);
    big[sizeof(big) - 1] = '\0';
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const char *got = text_nearest(cases[i].s, words, ARRAY_LEN(words));
        assert_non_null(got);
        assert_string_equal(got, cases[i].want);
    }
    for (size_t i = 0; i < ARRAY_LEN(none); i++)
        assert_null(text_nearest(none[i], words, ARRAY_LEN(words)));
    assert_null(text_nearest(big, words, ARRAY_LEN(words)));
    assert_null(text_nearest("lr", words, 0));
}

static void patterns(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *s;
        int want;
    } cases[] = { { "", "", 1 }, { "", "a", 0 }, { "*", "", 1 }, { "*", "anything", 1 }, { "a*", "abc", 1 },
        { "a*", "ba", 0 }, { "*c", "abc", 1 }, { "*.weight", "h.0.weight", 1 },
        { "h.*.attn.*", "h.11.attn.w", 1 }, { "h.*.attn.*", "h.11.mlp.w", 0 }, { "a*b*c", "aXbXbXc", 1 },
        { "a**c", "ac", 1 }, { "a?c", "abc", 0 }, { "abc", "abc", 1 }, { "abc", "abcd", 0 },
        { "abcd", "abc", 0 }, { "*ab", "aab", 1 },
        { "*a*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", 0 } };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        if (text_match(cases[i].pattern, cases[i].s) != cases[i].want)
            fail_msg("'%s' against '%s'", cases[i].pattern, cases[i].s);
    assert_true(text_starts("model.norm", "model.") && !text_starts("mod", "model.") && text_starts("x", ""));
    assert_true(text_ends("a.safetensors", ".safetensors") && !text_ends("ors", ".safetensors"));
}

static void for_people(void **state)
{
    (void)state;
    char buf[32];
    assert_string_equal(text_human_bytes(0, buf), "0 B");
    assert_string_equal(text_human_bytes(999, buf), "999 B");
    assert_string_equal(text_human_bytes(1000, buf), "1.00 kB");
    assert_string_equal(text_human_bytes(1.5e9, buf), "1.50 GB");
    assert_string_equal(text_human_bytes(999.46e6, buf), "999 MB");
    assert_string_equal(text_human_bytes(999.6e6, buf), "1.00 GB");
    assert_string_equal(text_human_bytes(9.996e6, buf), "10.0 MB");
    assert_string_equal(text_human_bytes(15.26e6, buf), "15.3 MB");
    assert_string_equal(text_human_bytes(-2.5e12, buf), "-2.50 TB");
    assert_string_equal(text_commas(0, buf), "0");
    assert_string_equal(text_commas(999, buf), "999");
    assert_string_equal(text_commas(12345, buf), "12,345");
    assert_string_equal(text_commas(-1234567, buf), "-1,234,567");
    assert_string_equal(text_commas(INT64_MIN, buf), "-9,223,372,036,854,775,808");
    assert_string_equal(text_human_seconds(0.4, buf), "0s");
    assert_string_equal(text_human_seconds(12, buf), "12s");
    assert_string_equal(text_human_seconds(59.7, buf), "1m00s");
    assert_string_equal(text_human_seconds(187, buf), "3m07s");
    assert_string_equal(text_human_seconds(3720, buf), "1h02m");
    assert_string_equal(text_human_seconds(90000, buf), "1d01h");
    assert_string_equal(text_human_seconds(NAN, buf), "?");
    assert_string_equal(text_human_seconds(-1, buf), "?");
    assert_string_equal(text_took(0, buf), "under 1ms");
    assert_string_equal(text_took(0.0009, buf), "under 1ms");
    assert_string_equal(text_took(0.04, buf), "40ms");
    assert_string_equal(text_took(0.9994, buf), "999ms");
    assert_string_equal(text_took(0.9996, buf), "1.0s");
    assert_string_equal(text_took(3.26, buf), "3.3s");
    assert_string_equal(text_took(59.94, buf), "59.9s");
    assert_string_equal(text_took(59.95, buf), "1m00s");
    assert_string_equal(text_took(NAN, buf), "?");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(builder),
        cmocka_unit_test(builder_remembers_failure),
        cmocka_unit_test(lists_are_never_cut_in_silence),
        cmocka_unit_test(integers),
        cmocka_unit_test(doubles),
        cmocka_unit_test(durations),
        cmocka_unit_test(booleans),
        cmocka_unit_test(nearest),
        cmocka_unit_test(patterns),
        cmocka_unit_test(for_people),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
