/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Exposed communication as a step tells it: with nothing to hide behind it is at least the time that
 * communication was slowed by, and it is told of the steps that have a line, whatever way they are run.
 */
#include "tests/check.h"

#include <stdio.h>

#include "base/file.h"
#include "tests/folder.h"
#include "tests/ranks/job.h"

#define DELAY_US 3000

static struct job make(int stage, int delay)
{
    struct job j = job_default();
    j.stage = stage;
    j.world = 2;
    j.steps = 5;
    j.prefetch = 0;
    j.delay_us = delay;
    return j;
}

static void check_times(const struct job *j, double least, double most)
{
    for (int i = 0; i < j->steps; i++) {
        double exposed = j->stats[i].exposed;
        if (exposed < least || exposed > most || exposed > j->stats[i].seconds)
            fail_msg("stage %d, step %d: %g s exposed of %g, expected %g to %g", j->stage, i + 1, exposed,
                j->stats[i].seconds, least, most);
    }
}

/* The counts and the norm are sums over the ranks that nothing else runs beside, in every stage; in stage 3
 * without prefetch each of the gathers of two blocks, forward and backward, is waited for as well. */
static void delays_are_exposed(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++)
        for (int graph = 0; graph <= 1; graph++) {
            struct job quick = make(stage, 0), slow = make(stage, DELAY_US);
            quick.graph = slow.graph = graph;
            job_pass(&quick);
            job_pass(&slow);
            job_same_bits(&quick, &slow);
            check_times(&quick, 0, 1e9);
            check_times(&slow, (stage == 3 ? 6 : 2) * 1e-6 * DELAY_US, 1e9);
            assert_int_equal(slow.launches, graph ? 3 : 0);
            job_free(&quick);
            job_free(&slow);
        }
}

/* On one queue the collectives themselves are what is exposed. */
static void one_queue_exposes_collectives(void **state)
{
    (void)state;
    struct job j = make(3, 0);
    j.overlap = 0;
    job_pass(&j);
    check_times(&j, 1e-9, 1e9);
    job_free(&j);
}

static void steps_with_a_line_tell(void **state)
{
    (void)state;
    struct job j = make(2, 0);
    j.steps = 8;
    j.lines = 3;
    job_pass(&j);
    for (int i = 1; i <= j.steps; i++)
        if (i == 1 || i % 3 == 0)
            assert_true(j.stats[i - 1].exposed >= 0);
        else
            assert_true(j.stats[i - 1].exposed == -1);
    assert_int_equal(j.step_allocs, 0);
    job_free(&j);
}

/* Also where it has no line of its own, as after a resume. */
static void the_first_step_of_an_engine_tells(void **state)
{
    (void)state;
    char dir[FOLDER_BYTES], step[FOLDER_BYTES + 32];
    assert_int_equal(folder_make(dir, "exposed"), 0);
    snprintf(step, sizeof(step), "%s/step-00000004", dir);
    struct job first = make(1, 0), second = make(1, 0);
    first.steps = 4;
    first.save = dir;
    job_pass(&first);
    second.steps = 3;
    second.lines = 1000;
    second.load = step;
    job_pass(&second);
    assert_true(second.stats[4].exposed >= 0);
    assert_true(second.stats[5].exposed == -1);
    assert_int_equal(second.step_allocs, 0);
    job_free(&first);
    job_free(&second);
    ASSERT_OK(file_remove_tree(dir));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(delays_are_exposed),
        cmocka_unit_test(one_queue_exposes_collectives),
        cmocka_unit_test(steps_with_a_line_tell),
        cmocka_unit_test(the_first_step_of_an_engine_tells),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
