/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Measured choices: kept over processes, the first of a key wins, damage is told and nothing breaks, what an
 * earlier version chose is chosen again.
 */
#include "tests/check.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/status.h"
#include "device/choices.h"
#include "tests/folder.h"

static char folder[FOLDER_BYTES];

static int make_folder(void **state)
{
    (void)state;
    return folder_make(folder, "choices");
}

static int remove_folder(void **state)
{
    (void)state;
    return file_remove_tree(folder);
}

static void fill(struct choice *c, int key, int value)
{
    memset(c->key, key, sizeof(c->key));
    memset(c->value, value, sizeof(c->value));
}

static void kept_over_processes(void **state)
{
    (void)state;
    char deep[256];
    struct choices a, b;
    struct choice one, other, twin;
    fill(&one, 0x5a, 1);
    fill(&other, 0, 255);
    fill(&twin, 0x5a, 2);
    snprintf(deep, sizeof(deep), "%s/a/b", folder);
    ASSERT_OK(choices_open(&a, deep, "f"));
    ASSERT_OK(choices_open(&b, deep, "f"));
    assert_null(choices_find(&a, one.key));
    ASSERT_OK(choices_add(&a, one.key, one.value));
    ASSERT_OK(choices_add(&b, other.key, other.value));
    ASSERT_OK(choices_add(&b, twin.key, twin.value));
    choices_close(&a);
    choices_close(&b);
    ASSERT_OK(choices_open(&a, deep, "f"));
    assert_int_equal(a.n, 3);
    assert_memory_equal(choices_find(&a, one.key), one.value, CHOICE_VALUE_BYTES);
    assert_memory_equal(choices_find(&a, other.key), other.value, CHOICE_VALUE_BYTES);
    choices_close(&a);
}

static void in_memory_only(void **state)
{
    (void)state;
    struct choices a;
    struct choice one;
    fill(&one, 7, 9);
    ASSERT_OK(choices_open(&a, NULL, "f"));
    ASSERT_OK(choices_add(&a, one.key, one.value));
    assert_memory_equal(choices_find(&a, one.key), one.value, CHOICE_VALUE_BYTES);
    choices_close(&a);
}

static void damage_is_named(void **state)
{
    (void)state;
    char text[1024], path[256];
    struct choices a = { 0 };
    ASSERT_FAILS(choices_parse(&a, "sherd choices 1\n", 16, "p"), SHERD_EFORMAT, "p:1: ");
    snprintf(text, sizeof(text), "%s%072d %0128d\n%072d %0127dx\n", CHOICES_HEADER, 0, 0, 1, 0);
    ASSERT_FAILS(choices_parse(&a, text, strlen(text), "p"), SHERD_EFORMAT, "p:3: not a choice");
    ASSERT_FAILS(choices_parse(&a, text, strlen(CHOICES_HEADER) + 100, "p"), SHERD_EFORMAT, "p:2: ");
    choices_close(&a);
    snprintf(path, sizeof(path), "%s/damaged", folder);
    ASSERT_OK(file_write_atomic(path, text, strlen(text)));
    ASSERT_OK(choices_open(&a, folder, "damaged"));
    assert_int_equal(a.n, 0);
    struct choice one;
    fill(&one, 7, 9);
    ASSERT_OK(choices_add(&a, one.key, one.value));
    choices_close(&a);
    uint64_t bytes;
    ASSERT_OK(file_size(&bytes, path));
    assert_int_equal(bytes, strlen(text));
}

static void older_is_begun_anew(void **state)
{
    (void)state;
    char text[512], path[256];
    struct choices a;
    struct choice one;
    fill(&one, 7, 9);
    snprintf(text, sizeof(text), "sherd choices 2\n%072d %0128d\n", 0, 0);
    snprintf(path, sizeof(path), "%s/older", folder);
    ASSERT_OK(file_write_atomic(path, text, strlen(text)));
    ASSERT_OK(choices_open(&a, folder, "older"));
    assert_int_equal(a.n, 0);
    ASSERT_OK(choices_add(&a, one.key, one.value));
    choices_close(&a);
    ASSERT_OK(choices_open(&a, folder, "older"));
    assert_int_equal(a.n, 1);
    assert_memory_equal(choices_find(&a, one.key), one.value, CHOICE_VALUE_BYTES);
    choices_close(&a);
    /* one of a later version is left alone */
    text[strlen("sherd choices ")] = '4';
    ASSERT_OK(file_write_atomic(path, text, strlen(text)));
    ASSERT_OK(choices_open(&a, folder, "older"));
    ASSERT_OK(choices_add(&a, one.key, one.value));
    choices_close(&a);
    uint64_t bytes;
    ASSERT_OK(file_size(&bytes, path));
    assert_int_equal(bytes, strlen(text));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kept_over_processes),
        cmocka_unit_test(in_memory_only),
        cmocka_unit_test(damage_is_named),
        cmocka_unit_test(older_is_begun_anew),
    };
    return cmocka_run_group_tests_name("choices", tests, make_folder, remove_folder);
}
