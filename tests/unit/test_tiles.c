/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Tiles by their waves: the costs of two products counted by hand, the order, and where lists end.
 */
#include "tests/check.h"

#include "device/tiles.h"

#define P 132 /* multiprocessors */

static void costs_are_waves(void **state)
{
    (void)state;
    const struct tile *tall = tile_find(23), *better = tile_find(203);
    assert_int_equal(tall->rows, 128);
    assert_int_equal(tall->cols, 256);
    assert_int_equal(better->rows, 176);
    assert_int_equal(better->cols, 256);
    /* 44 x 8 tiles are 3 waves, 32 x 8 are 2 */
    assert_int_equal(tile_cost(tall, 5632, 2048, P), 3 * (128 * 256 + 16 * 384));
    assert_int_equal(tile_cost(better, 5632, 2048, P), 2 * (176 * 256 + 16 * 432));
    assert_int_equal(tile_cost(better, 5632, 2049, P), 3 * (176 * 256 + 16 * 432));
    assert_int_equal(tile_cost(better, 1, 1, P), 176 * 256 + 16 * 432);
    assert_null(tile_find(0));
    assert_null(tile_find(15)); /* 64 x 64 */
    assert_null(tile_find(70000));
}

static void cheapest_first(void **state)
{
    (void)state;
    const struct tile *few[3], *all[200];
    const int64_t most = INT64_MAX, limit = tile_cost(tile_find(23), 5632, 2048, P);
    int n = tiles_within(most, 5632, 2048, P, all, 200);
    assert_int_equal(n, 116);
    for (int i = 0; i < n; i++) {
        assert_ptr_equal(all[i], tile_find(all[i]->id));
        assert_true(all[i]->rows >= 128 && all[i]->cols >= 128 && all[i]->rows * all[i]->cols <= 256 * 192);
    }
    for (int i = 1; i < n; i++) {
        int64_t before = tile_cost(all[i - 1], 5632, 2048, P), cost = tile_cost(all[i], 5632, 2048, P);
        assert_true(before < cost || (before == cost && all[i - 1]->id < all[i]->id));
    }
    assert_int_equal(tiles_within(most, 5632, 2048, P, few, 3), 3);
    assert_memory_equal(few, all, sizeof(few));
    assert_int_equal(few[1]->id, 203);
    n = tiles_within(limit, 5632, 2048, P, all, 200);
    assert_true(n > 3 && n < 116 && tile_cost(all[n - 1], 5632, 2048, P) <= limit);
    assert_int_equal(tiles_within(0, 5632, 2048, P, few, 3), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(costs_are_waves),
        cmocka_unit_test(cheapest_first),
    };
    return cmocka_run_group_tests_name("tiles", tests, NULL, NULL);
}
