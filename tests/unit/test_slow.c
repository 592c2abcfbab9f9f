/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The slow rank: named when it holds the others up for long, and only then.
 */
#include "tests/check.h"

#include <stdio.h>

#include "base/mem.h"
#include "runtime/slow.h"
#include "runtime/watch.h"

#define WORLD 4

/* Ranks that take `usual` seconds for a step, but for what a test adds. */
struct run {
    struct slow slow;
    void *memory;
    struct board *board;
    int64_t step;
    double seconds[WORLD][BOARD_FIGURES];
    int lines;
    char last[200];
};

static void begin(struct run *run, int64_t step)
{
    *run = (struct run){ .step = step };
    ASSERT_OK(slow_init(&run->slow, WORLD));
    run->memory = mem_aligned(64, board_bytes(WORLD));
    assert_non_null(run->memory);
    memset(run->memory, 0, board_bytes(WORLD));
    run->board = board_at(run->memory, WORLD);
}

static void end(struct run *run)
{
    slow_finish(&run->slow);
    mem_free(run->memory);
}

/* One step: forward takes all ranks `usual`, and `rank` takes `more` in `phase`, for which the others wait.
 */
static void step(struct run *run, double usual, int rank, enum watch_phase phase, double more)
{
    run->step++;
    for (int r = 0; r < WORLD; r++) {
        run->seconds[r][WATCH_FORWARD] += usual;
        run->seconds[r][r == rank ? phase : WATCH_WAIT] += more;
        board_show(run->board, r, run->step, run->seconds[r]);
    }
}

static void look(struct run *run)
{
    struct text line = { 0 };
    char *text;
    slow_look(&run->slow, run->board, &line);
    if (!line.data)
        return;
    ASSERT_OK(text_take(&line, &text));
    run->lines++;
    snprintf(run->last, sizeof(run->last), "%s", text);
    mem_free(text);
}

/* `steps` steps, with a look after every `every` of them. */
static void steps(
    struct run *run, int n, int every, double usual, int rank, enum watch_phase phase, double more)
{
    for (int i = 1; i <= n; i++) {
        step(run, usual, rank, phase, more);
        if (i % every == 0)
            look(run);
    }
}

static void a_rank_that_is_slow_for_long_is_named(void **state)
{
    (void)state;
    struct run run;
    begin(&run, 0);
    steps(&run, 39, 10, 0.1, 2, WATCH_DATA, 0.05);
    assert_int_equal(run.lines, 0);
    steps(&run, 1, 1, 0.1, 2, WATCH_DATA, 0.05);
    assert_int_equal(run.lines, 1);
    assert_string_equal(
        run.last, "rank 2 is slow: data 50 ms a step, others 0 ms (a step takes 150 ms), over 30 steps");
    /* Again once there is as much new evidence; of another rank and phase too. */
    steps(&run, 60, 10, 0.1, 2, WATCH_DATA, 0.05);
    assert_int_equal(run.lines, 3);
    steps(&run, 30, 10, 0.1, 0, WATCH_FORWARD, 0.05);
    assert_int_equal(run.lines, 4);
    assert_string_equal(run.last,
        "rank 0 is slow: forward 150 ms a step, others 100 ms (a step takes 150 ms), over 30 steps");
    end(&run);
}

/* Steps before the run, and what is done before the first look, are no evidence. */
static void a_run_that_resumed_begins_anew(void **state)
{
    (void)state;
    struct run run;
    begin(&run, 1000);
    steps(&run, 1, 1, 0.1, 1, WATCH_DATA, 500);
    steps(&run, 9, 1, 0.1, 1, WATCH_DATA, 0.2);
    assert_int_equal(run.lines, 0);
    steps(&run, 1, 1, 0.1, 1, WATCH_DATA, 0.2);
    assert_int_equal(run.lines, 1);
    ASSERT_CONTAINS(run.last, "rank 1 is slow: data 200 ms a step");
    ASSERT_CONTAINS(run.last, "over 10 steps");
    end(&run);
}

static void too_little_is_not_told(void **state)
{
    (void)state;
    struct run run;
    /* less than a fifth of the step */
    begin(&run, 0);
    steps(&run, 500, 10, 1, 1, WATCH_BACKWARD, 0.2);
    assert_int_equal(run.lines, 0);
    end(&run);
    /* a short run of short steps: twice as slow, but not a second in all */
    begin(&run, 0);
    steps(&run, 90, 10, 0.01, 1, WATCH_BACKWARD, 0.01);
    assert_int_equal(run.lines, 0);
    end(&run);
    /* a second and more, but in a few steps */
    begin(&run, 0);
    steps(&run, 10, 1, 1, 1, WATCH_BACKWARD, 1);
    assert_int_equal(run.lines, 0);
    end(&run);
}

static void what_passes_is_not_told(void **state)
{
    (void)state;
    struct run run;
    begin(&run, 0);
    /* one step of many took ten seconds; so do others now and then, on every rank */
    for (int i = 0; i < 40; i++) {
        steps(&run, 10, 10, 0.1, 0, WATCH_FORWARD, 0);
        step(&run, 0.1, i % WORLD, WATCH_FORWARD, 10);
    }
    assert_int_equal(run.lines, 0);
    /* two looks in three */
    for (int i = 0; i < 40; i++) {
        steps(&run, 20, 10, 0.1, 3, WATCH_DATA, 0.1);
        steps(&run, 10, 10, 0.1, 3, WATCH_DATA, 0);
    }
    assert_int_equal(run.lines, 0);
    /* the same rank, in turns in one phase and in another */
    for (int i = 0; i < 40; i++)
        steps(&run, 10, 10, 0.1, 3, i % 2 ? WATCH_DATA : WATCH_UPDATE, 0.1);
    assert_int_equal(run.lines, 0);
    end(&run);
}

/* A rank that shows its figures after the look is looked at the next time; nothing is lost by then. */
static void one_that_has_shown_nothing_is_awaited(void **state)
{
    (void)state;
    struct run run;
    begin(&run, 0);
    steps(&run, 1, 1, 0.1, 0, WATCH_DATA, 0.2);
    for (int i = 0; i <= 10; i++) {
        assert_int_equal(run.lines, 0);
        run.step++;
        for (int r = 0; r < WORLD; r++) {
            run.seconds[r][r == 1 ? WATCH_DATA : WATCH_WAIT] += 0.2;
            if (r == WORLD - 1)
                look(&run);
            board_show(run.board, r, run.step, run.seconds[r]);
        }
    }
    assert_int_equal(run.lines, 1);
    ASSERT_CONTAINS(run.last, "rank 1 is slow: data 200 ms a step, others 0 ms");
    end(&run);
}

/* Nobody is slow who is alone, and all ranks waiting for the same are not. */
static void all_alike_are_not_slow(void **state)
{
    (void)state;
    struct run run;
    begin(&run, 0);
    steps(&run, 500, 10, 1, 1, WATCH_WAIT, 3);
    assert_int_equal(run.lines, 0);
    end(&run);
    struct slow slow;
    struct text line = { 0 };
    double seconds[BOARD_FIGURES] = { 0 };
    begin(&run, 0);
    ASSERT_OK(slow_init(&slow, 1));
    for (int i = 1; i <= 100; i++) {
        seconds[WATCH_DATA] += 1;
        board_show(run.board, 0, i, seconds);
        slow_look(&slow, run.board, &line);
    }
    assert_null(line.data);
    slow_finish(&slow);
    end(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_that_is_slow_for_long_is_named),
        cmocka_unit_test(a_run_that_resumed_begins_anew),
        cmocka_unit_test(too_little_is_not_told),
        cmocka_unit_test(what_passes_is_not_told),
        cmocka_unit_test(one_that_has_shown_nothing_is_awaited),
        cmocka_unit_test(all_alike_are_not_slow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
