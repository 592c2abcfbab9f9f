/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * XXH3 known answers; pieces give the sum of the whole.
 */
#include "tests/check.h"

#include "base/mem.h"
#include "base/sum.h"

static void sum_of(const void *data, size_t bytes, size_t piece, char text[SUM_TEXT_BYTES])
{
    struct sum *sum;
    ASSERT_OK(sum_create(&sum));
    for (size_t at = 0; at < bytes; at += piece)
        sum_add(sum, (const char *)data + at, MIN(piece, bytes - at));
    sum_text(sum, text);
    sum_destroy(sum);
}

static void known_answers(void **state)
{
    (void)state;
    char text[SUM_TEXT_BYTES];
    sum_of("", 0, 1, text);
    assert_string_equal(text, "99aa06d3014798d86001c324468d497f");
    sum_of("abc", 3, 3, text);
    assert_string_equal(text, "06b05ab6733a618578af5f94892f3950");
    assert_true(sum_hash64("", 0, 0) == 0x2d06800538d394c2u);
    assert_true(sum_hash64("", 0, 1) != sum_hash64("", 0, 0));
}

static void pieces_are_the_whole(void **state)
{
    (void)state;
    static unsigned char data[5000];
    char whole[SUM_TEXT_BYTES], text[SUM_TEXT_BYTES];
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (unsigned char)(i * i >> 3);
    sum_of(data, sizeof(data), sizeof(data), whole);
    static const size_t pieces[] = { 1, 3, 64, 255, 256, 257, 1024, 4999 };
    for (size_t i = 0; i < ARRAY_LEN(pieces); i++) {
        sum_of(data, sizeof(data), pieces[i], text);
        assert_string_equal(text, whole);
    }
    data[2500] ^= 1;
    sum_of(data, sizeof(data), 64, text);
    assert_string_not_equal(text, whole);
}

static void text_does_not_end_the_sum(void **state)
{
    (void)state;
    struct sum *sum;
    char text[SUM_TEXT_BYTES];
    ASSERT_OK(sum_create(&sum));
    sum_add(sum, "a", 1);
    sum_text(sum, text);
    sum_add(sum, "bc", 2);
    sum_add(sum, NULL, 0);
    sum_text(sum, text);
    assert_string_equal(text, "06b05ab6733a618578af5f94892f3950");
    sum_destroy(sum);
    sum_destroy(NULL);
}

static void no_memory(void **state)
{
    (void)state;
    struct sum *sum;
    mem_fail_at(1);
    ASSERT_FAILS(sum_create(&sum), SHERD_ENOMEM, "out of memory");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_answers),
        cmocka_unit_test(pieces_are_the_whole),
        cmocka_unit_test(text_does_not_end_the_sum),
        cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
