/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Threads start, leave signals alone, and say what was missing when they cannot start.
 */
#include "tests/check.h"

#include <signal.h>

#include "base/mem.h"
#include "base/thread.h"
#include "tests/limit.h"

static void *look_at_signals(void *arg)
{
    sigset_t *set = arg;
    pthread_sigmask(SIG_SETMASK, NULL, set);
    return arg;
}

static void test_signals_are_left_to_the_program(void **state)
{
    (void)state;
    sigset_t theirs, before, after;
    pthread_t thread;
    void *result = NULL;
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    ASSERT_OK(thread_start(&thread, look_at_signals, &theirs, "the thread of a test"));
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_ptr_equal(result, &theirs);
    assert_true(sigismember(&theirs, SIGTERM));
    assert_true(sigismember(&theirs, SIGUSR1));
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    assert_int_equal(sigismember(&before, SIGTERM), sigismember(&after, SIGTERM));
}

/* The stacks of threads that have ended serve again: there may be some. */
static int start_without_room(void)
{
    sigset_t theirs;
    pthread_t thread;
    int st = SHERD_OK;
    for (int i = 0; i < 8 && st == SHERD_OK; i++)
        st = thread_start(&thread, look_at_signals, &theirs, "the thread of a test");
    if (st != SHERD_ENOMEM)
        return 1;
    if (!strstr(sherd_error(), "out of memory: the thread of a test cannot be started for want of "))
        return 2;
    return strstr(sherd_error(), "address space is limited to ") && strstr(sherd_error(), "(ulimit -v)") ? 0
                                                                                                         : 3;
}

static void test_a_stack_without_room_is_no_memory(void **state)
{
    (void)state;
    if (!LIMIT_WORKS)
        skip();
    assert_int_equal(limit_run(1 << 20, start_without_room), 0);
}

static int allocate_without_room(void)
{
    if (mem_zalloc(1, (size_t)64 << 20))
        return 1;
    return strstr(sherd_error(),
               "67108864 bytes of host memory could not be allocated; address space is limited to ")
               ? 0
               : 2;
}

static void test_the_limit_is_told(void **state)
{
    (void)state;
    if (!LIMIT_WORKS)
        skip();
    assert_int_equal(limit_run(1 << 20, allocate_without_room), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_signals_are_left_to_the_program),
        cmocka_unit_test(test_a_stack_without_room_is_no_memory),
        cmocka_unit_test(test_the_limit_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
