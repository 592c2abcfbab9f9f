/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Status names, the error text and its rules.
 */
#include "tests/check.h"

#include <pthread.h>

static void names_and_texts(void **state)
{
    (void)state;
    assert_string_equal(sherd_status_name(SHERD_OK), "OK");
    assert_string_equal(sherd_status_name(SHERD_ENOMEM), "ENOMEM");
    assert_string_equal(sherd_status_name(SHERD_ESTOPPED), "ESTOPPED");
    assert_string_equal(sherd_status_name(SHERD_EDIVERGED), "EDIVERGED");
    assert_string_equal(sherd_status_name(-99), "?");
    assert_string_equal(sherd_status_name(1), "?");
    assert_string_equal(sherd_status_text(SHERD_ETIMEOUT), "timed out");
    assert_string_equal(sherd_status_text(-99), "unknown status");
}

static void version_is_the_project_s(void **state)
{
    (void)state;
    assert_string_equal(sherd_version(), PROJECT_VERSION);
}

static void element_types(void **state)
{
    (void)state;
    assert_int_equal(sherd_dtype_bytes(SHERD_BF16), 2);
    assert_int_equal(sherd_dtype_bytes(SHERD_F64), 8);
    assert_int_equal(sherd_dtype_bytes(SHERD_DTYPE_NONE), 0);
    assert_int_equal(sherd_dtype_bytes((enum sherd_dtype)77), 0);
    assert_string_equal(sherd_dtype_name(SHERD_BF16), "bf16");
    assert_string_equal(sherd_dtype_name((enum sherd_dtype)77), "?");
}

static void fail_writes_the_text_and_gives_the_status(void **state)
{
    (void)state;
    assert_int_equal(SHERD_FAIL(SHERD_EIO, "disk %d of '%s'", 3, "raid"), SHERD_EIO);
    assert_string_equal(sherd_error(), "disk 3 of 'raid'");
    assert_int_equal(sherd_fail(SHERD_EINVAL, "width %d", 7), SHERD_EINVAL);
    assert_string_equal(sherd_error(), "width 7");
    assert_int_equal(SHERD_BUG("impossible"), SHERD_EINTERNAL);
    assert_string_equal(sherd_error(), "impossible");
}

static void text_may_quote_the_text_before(void **state)
{
    (void)state;
    SHERD_FAIL(SHERD_EIO, "inner");
    SHERD_FAIL(SHERD_EIO, "outer (%s)", sherd_error());
    assert_string_equal(sherd_error(), "outer (inner)");
    assert_int_equal(status_adopt(SHERD_EPEER, sherd_error() + 6), SHERD_EPEER);
    assert_string_equal(sherd_error(), "(inner)");
}

static void context_goes_in_front(void **state)
{
    (void)state;
    SHERD_FAIL(SHERD_EFORMAT, "bad magic");
    assert_int_equal(status_context(SHERD_EFORMAT, "loading %s", "x.bin"), SHERD_EFORMAT);
    assert_int_equal(status_context(SHERD_EFORMAT, "resume"), SHERD_EFORMAT);
    assert_string_equal(sherd_error(), "resume: loading x.bin: bad magic");
    assert_int_equal(status_context(SHERD_OK, "nothing"), SHERD_OK);
    assert_string_equal(sherd_error(), "resume: loading x.bin: bad magic");
}

static void long_texts_are_cut(void **state)
{
    (void)state;
    char big[10000];
    memset(big, 'x', sizeof(big) - 1);
    big[sizeof(big) - 1] = '\0';
    SHERD_FAIL(SHERD_EIO, "%s", big);
    assert_int_equal(strlen(sherd_error()), 4095);
    status_context(SHERD_EIO, "%s", big);
    assert_int_equal(strlen(sherd_error()), 4095);
    status_adopt(SHERD_EIO, big);
    assert_int_equal(strlen(sherd_error()), 4095);
    status_context(SHERD_EIO, "front");
    assert_int_equal(strncmp(sherd_error(), "front: xxx", 10), 0);
}

static void *other_thread(void *arg)
{
    *(int *)arg = sherd_error()[0] == '\0';
    SHERD_FAIL(SHERD_EIO, "theirs");
    return NULL;
}

static void threads_have_their_own_text(void **state)
{
    (void)state;
    int empty = 0;
    pthread_t thread;
    SHERD_FAIL(SHERD_EIO, "ours");
    assert_int_equal(pthread_create(&thread, NULL, other_thread, &empty), 0);
    pthread_join(thread, NULL);
    assert_int_equal(empty, 1);
    assert_string_equal(sherd_error(), "ours");
}

static int fails(int status, int *calls)
{
    ++*calls;
    return status;
}

static int two_tries(int first, int second, int *calls)
{
    SHERD_TRY(fails(first, calls));
    SHERD_TRY(fails(second, calls));
    return SHERD_OK;
}

static int keeps_and_leaves(int *calls)
{
    int st = SHERD_OK;
    SHERD_KEEP(st, fails(SHERD_OK, calls));
    SHERD_KEEP(st, fails(SHERD_EIO, calls));
    SHERD_KEEP(st, fails(SHERD_ENOMEM, calls));
    assert_int_equal(st, SHERD_EIO);
    SHERD_TRY_OUT(fails(SHERD_EEXISTS, calls));
    fails(SHERD_OK, calls);
out:
    return st;
}

static void three_forms(void **state)
{
    (void)state;
    int calls = 0;
    assert_int_equal(two_tries(SHERD_EIO, SHERD_OK, &calls), SHERD_EIO);
    assert_int_equal(calls, 1);
    assert_int_equal(two_tries(SHERD_OK, SHERD_OK, &calls), SHERD_OK);
    assert_int_equal(calls, 3);
    assert_int_equal(keeps_and_leaves(&calls), SHERD_EEXISTS);
    assert_int_equal(calls, 7);
    assert_int_equal(round_up(0, 8), 0);
    assert_int_equal(round_up(9, 8), 16);
    assert_int_equal(round_up(16, 8), 16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_texts),
        cmocka_unit_test(version_is_the_project_s),
        cmocka_unit_test(element_types),
        cmocka_unit_test(fail_writes_the_text_and_gives_the_status),
        cmocka_unit_test(text_may_quote_the_text_before),
        cmocka_unit_test(context_goes_in_front),
        cmocka_unit_test(long_texts_are_cut),
        cmocka_unit_test(threads_have_their_own_text),
        cmocka_unit_test(three_forms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
