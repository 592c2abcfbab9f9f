/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The board: the last places stay, texts name who is missed and where the others are.
 */
#include "tests/check.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "comm/board.h"

#define SIZE 6

static struct board *make(void **memory)
{
    *memory = mem_aligned(64, board_bytes(SIZE));
    assert_non_null(*memory);
    memset(*memory, 0, board_bytes(SIZE));
    return board_at(*memory, SIZE);
}

static void pin(struct board *board, int rank, int64_t step, int64_t done, const char *text)
{
    struct board_place place = { .step = step, .done = done };
    snprintf(place.text, sizeof(place.text), "%s", text);
    board_pin(board, rank, &place);
}

static void test_the_last_places_stay(void **state)
{
    (void)state;
    void *memory;
    struct board *board = make(&memory);
    struct board_note note;
    uint64_t pulse = board_pulse(board, 1);
    assert_false(board_read(board, 0, 0, &note));
    for (int i = 1; i <= 100; i++)
        pin(board, 0, 7, i, "a");
    assert_int_equal(board_pinned(board, 0), 100);
    for (int k = 0; k < BOARD_TRAIL; k++) {
        assert_true(board_read(board, 0, k, &note));
        assert_int_equal(note.place.done, 100 - k);
    }
    assert_false(board_read(board, 0, BOARD_TRAIL, &note));
    assert_true(board_pulse(board, 1) != pulse);
    assert_int_equal(board_pulse(board, 0), 0); /* its own does not count */
    pulse = board_pulse(board, 1);
    board_beat(board, 3);
    assert_true(board_pulse(board, 1) != pulse);
    board_close(board);
    pin(board, 0, 8, 1, "too late");
    assert_true(board_read(board, 0, 0, &note));
    assert_int_equal(note.place.done, 100);
    assert_true(board_claim(board));
    assert_false(board_claim(board));
    mem_free(memory);
}

static void test_ranks_are_listed(void **state)
{
    (void)state;
    char text[64];
    const uint8_t one[] = { 0, 1, 0 }, run[] = { 1, 1, 1, 0, 0, 1 }, two[] = { 1, 1, 0, 1 };
    assert_string_equal(board_ranks(one, 3, text, sizeof(text)), "rank 1");
    assert_string_equal(board_ranks(run, 6, text, sizeof(text)), "ranks 0-2, 5");
    assert_string_equal(board_ranks(two, 4, text, sizeof(text)), "ranks 0, 1, 3");
    char small[48];
    const uint8_t many[] = { 1, 0, 1, 0, 1, 0, 1 };
    assert_string_equal(board_ranks(many, 7, small, sizeof(small)), "ranks 0, 2 and more");
}

static void test_the_missed_are_named(void **state)
{
    (void)state;
    void *memory;
    struct board *board = make(&memory);
    char text[512];
    const uint64_t seq[SIZE] = { 0, 0, 0, 0, 40, 0 };
    const uint8_t absent[SIZE] = { 0, 0, 1, 0, 1, 0 };
    for (int r = 0; r < SIZE; r++)
        if (r != 4)
            pin(board, r, 7, r == 2 ? 17 : 18,
                r == 2   ? "last:17 reduce b1"
                : r == 5 ? "save"
                         : "last:18 gather b0");
    board_tell(board, absent, seq, text, sizeof(text));
    ASSERT_CONTAINS(text, "rank 2 last seen at step 7, last:17 reduce b1, ");
    ASSERT_CONTAINS(text,
        " ago, rank 4 last seen at #40; ranks 0, 1, 3 wait at step 7, last:18 gather b0; rank 5 waits at step 7, save");
    /* Nobody says who is missed: those behind, and who is gone. */
    board_tell_all(board, text, sizeof(text));
    ASSERT_CONTAINS(text, "rank 2 last seen at step 7, last:17");
    board_lose(board, 5);
    board_tell_all(board, text, sizeof(text));
    ASSERT_CONTAINS(text, "rank 5 last seen at step 7, save");
    mem_free(memory);
}

static void test_figures_are_shown(void **state)
{
    (void)state;
    void *memory;
    struct board *board = make(&memory);
    double in[BOARD_FIGURES] = { 1.5, 2, 3 }, out[BOARD_FIGURES];
    assert_int_equal(board_look(board, 2, out), 0);
    board_show(board, 2, 12, in);
    assert_int_equal(board_look(board, 2, out), 12);
    assert_memory_equal(in, out, sizeof(in));
    mem_free(memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_last_places_stay),
        cmocka_unit_test(test_ranks_are_listed),
        cmocka_unit_test(test_the_missed_are_named),
        cmocka_unit_test(test_figures_are_shown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
