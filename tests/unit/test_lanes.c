/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Tasks shared out among threads: each is done once, by one lane at a time.
 */
#include "tests/check.h"

#include <stdatomic.h>

#include "base/lanes.h"

#define TASKS 1000

struct seen {
    int lanes;
    _Atomic int times[TASKS], busy[LANES_MOST];
    _Atomic int wrong;
};

static void look(void *ctx, int64_t task, int lane)
{
    struct seen *s = ctx;
    if (lane < 0 || lane >= s->lanes || atomic_fetch_add(&s->busy[lane], 1) != 0)
        atomic_store(&s->wrong, 1);
    atomic_fetch_add(&s->times[task], 1);
    atomic_fetch_sub(&s->busy[lane], 1);
}

static void every_task_once(void **state)
{
    (void)state;
    for (int lanes = 1; lanes <= 9; lanes += 4) {
        for (int64_t n = 0; n <= TASKS; n = n * 10 + 1) {
            static struct seen s;
            memset(&s, 0, sizeof(s));
            s.lanes = lanes;
            lanes_run(lanes, n, look, &s);
            assert_int_equal(s.wrong, 0);
            for (int64_t i = 0; i < TASKS; i++)
                assert_int_equal(s.times[i], i < n);
        }
    }
}

static void there_are_cores(void **state)
{
    (void)state;
    assert_true(lanes_cores() >= 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_task_once),
        cmocka_unit_test(there_are_cores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
