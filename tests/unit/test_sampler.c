/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The order of samples and who reads them: epochs are permutations, the world does not matter, the last step
 * may be partial, and a run that stops anywhere goes on with the same samples.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"
#include "data/data.h"

#define SEQ 4
#define WINDOWS 53
#define EPOCHS 3
#define GLOBAL 24
#define TOTAL (WINDOWS * EPOCHS)

static char path[64];
static struct tokens *tokens;

static void quiet(void *ctx, enum sherd_log_level level, const char *text)
{
    (void)ctx;
    (void)level;
    (void)text;
}

/* Token i of the stream is i, so that a row tells where it comes from. */
static int setup(void **state)
{
    (void)state;
    sherd_log_set(quiet, NULL, SHERD_LOG_ERROR);
    snprintf(path, sizeof(path), "/tmp/sherd-sampler-XXXXXX");
    int fd = mkstemp(path);
    uint16_t ids[WINDOWS * SEQ + 3];
    for (size_t i = 0; i < ARRAY_LEN(ids); i++)
        ids[i] = (uint16_t)i;
    if (fd < 0 || write(fd, ids, sizeof(ids)) != (ssize_t)sizeof(ids) || close(fd) != 0)
        return -1;
    const char *paths[] = { path };
    return tokens_open(&tokens,
        &(struct tokens_desc){
            .what = "data.train", .paths = paths, .n_paths = 1, .format = SHERD_DATA_U16, .vocab = 1 << 16 });
}

static int teardown(void **state)
{
    (void)state;
    tokens_close(tokens);
    return unlink(path);
}

static struct feed make_feed(int64_t micro, int rank, int world)
{
    struct feed feed = { .tokens = tokens,
        .sampler = { .seed = 7, .shuffle = 1 },
        .seq = SEQ,
        .total = TOTAL,
        .global = GLOBAL,
        .micro = micro,
        .rank = rank,
        .world = world };
    assert_int_equal(tokens_windows(tokens, SEQ, &feed.sampler.windows), SHERD_OK);
    assert_int_equal(feed.sampler.windows, WINDOWS);
    assert_int_equal(feed_check(&feed), SHERD_OK);
    return feed;
}

/* The window a filled row came from; -1 for an empty row. Checks the whole row. */
static int row_window(const int32_t *in, const int32_t *target)
{
    if (target[0] < 0) {
        for (int t = 0; t < SEQ; t++) {
            assert_int_equal(in[t], 0);
            assert_int_equal(target[t], -1);
        }
        return -1;
    }
    assert_int_equal(in[0] % SEQ, 0);
    for (int t = 0; t < SEQ; t++) {
        assert_int_equal(in[t], in[0] + t);
        assert_int_equal(target[t], in[0] + t + 1);
    }
    return in[0] / SEQ;
}

/* The windows of the step at `cursor`, in the order of its samples, read by all ranks of a world. */
static void read_step(int64_t cursor, int64_t micro, int world, int out[GLOBAL])
{
    int32_t in[GLOBAL * SEQ], target[GLOBAL * SEQ];
    for (int r = 0; r < world; r++) {
        struct feed feed = make_feed(micro, r, world);
        int64_t accum = feed_accum(&feed);
        assert_int_equal(accum * micro * world, GLOBAL);
        for (int64_t m = 0; m < accum; m++) {
            assert_int_equal(feed_fill(&feed, cursor, m, in, target), SHERD_OK);
            for (int64_t i = 0; i < micro; i++)
                out[(m * world + r) * micro + i] = row_window(in + i * SEQ, target + i * SEQ);
        }
    }
}

static void epochs_are_permutations(void **state)
{
    (void)state;
    struct sampler s = { .windows = 101, .seed = 3, .shuffle = 1 };
    int64_t same = 0, sorted = 0;
    for (int64_t e = 0; e < 5; e++) {
        int seen[101] = { 0 };
        for (int64_t i = 0; i < 101; i++) {
            int64_t w = sampler_at(&s, e * 101 + i);
            assert_in_range(w, 0, 100);
            assert_int_equal(seen[w]++, 0);
            same += w == sampler_at(&s, i);
            sorted += w == i;
        }
    }
    assert_true(same < 101 + 40);
    assert_true(sorted < 40);
    struct sampler other = s;
    other.seed = 4;
    int64_t equal = 0;
    for (int64_t i = 0; i < 101; i++)
        equal += sampler_at(&s, i) == sampler_at(&other, i);
    assert_true(equal < 20);
    s.shuffle = 0;
    for (int64_t g = 0; g < 303; g++)
        assert_int_equal(sampler_at(&s, g), g % 101);
    s.shuffle = 1;
    s.windows = 1;
    assert_int_equal(sampler_at(&s, 12345), 0);
}

static void world_does_not_matter(void **state)
{
    (void)state;
    static const struct {
        int64_t micro;
        int world;
    } cases[] = { { 24, 1 }, { 6, 1 }, { 12, 2 }, { 3, 2 }, { 8, 3 }, { 2, 3 }, { 6, 4 }, { 1, 4 }, { 3, 8 },
        { 1, 8 } };
    for (size_t c = 0; c < ARRAY_LEN(cases); c++)
        for (int64_t cursor = 0; cursor < TOTAL; cursor += GLOBAL) {
            int got[GLOBAL];
            read_step(cursor, cases[c].micro, cases[c].world, got);
            struct sampler s = { .windows = WINDOWS, .seed = 7, .shuffle = 1 };
            for (int j = 0; j < GLOBAL; j++)
                assert_int_equal(got[j], cursor + j < TOTAL ? sampler_at(&s, cursor + j) : -1);
        }
}

static void every_sample_once_and_last_step_partial(void **state)
{
    (void)state;
    struct feed feed = make_feed(3, 0, 2);
    int64_t steps = feed_steps(&feed);
    assert_int_equal(steps, (TOTAL + GLOBAL - 1) / GLOBAL);
    int seen[WINDOWS] = { 0 }, empty = 0;
    for (int64_t s = 0; s < steps; s++) {
        int got[GLOBAL];
        read_step(s * GLOBAL, 3, 2, got);
        for (int j = 0; j < GLOBAL; j++) {
            if (got[j] < 0) {
                assert_int_equal(s, steps - 1);
                empty++;
            } else {
                seen[got[j]]++;
            }
        }
    }
    assert_int_equal(empty, steps * GLOBAL - TOTAL);
    for (int w = 0; w < WINDOWS; w++)
        assert_int_equal(seen[w], EPOCHS);
    feed.total = 2 * GLOBAL;
    assert_int_equal(feed_steps(&feed), 2);
    feed.total++;
    assert_int_equal(feed_steps(&feed), 3);
}

/* A run of 2 ranks stops inside the second epoch; 4 ranks go on from the number of samples it had consumed.
 */
static void resume_equals_uninterrupted(void **state)
{
    (void)state;
    int64_t cursor = 3 * GLOBAL;
    assert_true(cursor > WINDOWS && cursor % WINDOWS != 0);
    for (; cursor < TOTAL; cursor += GLOBAL) {
        int before[GLOBAL], after[GLOBAL];
        read_step(cursor, 12, 2, before);
        read_step(cursor, 2, 4, after);
        assert_memory_equal(before, after, sizeof(before));
    }
}

static void no_end_without_total(void **state)
{
    (void)state;
    int32_t in[GLOBAL * SEQ], target[GLOBAL * SEQ];
    struct feed feed = make_feed(24, 0, 1);
    feed.total = 0;
    assert_int_equal(feed_fill(&feed, 1000 * GLOBAL, 0, in, target), SHERD_OK);
    for (int i = 0; i < GLOBAL; i++)
        assert_int_equal(
            row_window(in + i * SEQ, target + i * SEQ), sampler_at(&feed.sampler, 1000 * GLOBAL + i));
}

static void evaluation_sees_each_window_once(void **state)
{
    (void)state;
    int32_t in[GLOBAL * SEQ], target[GLOBAL * SEQ];
    for (int64_t limit = 0; limit <= WINDOWS + 1; limit += 9)
        for (int world = 1; world <= 8; world++)
            for (int64_t micro = 1; micro <= 5; micro += 2) {
                int seen[WINDOWS] = { 0 };
                for (int r = 0; r < world; r++) {
                    struct feed feed = make_feed(1, 0, 1);
                    feed.micro = micro;
                    feed.rank = r;
                    feed.world = world;
                    for (int64_t k = 0; k < eval_count(&feed, limit); k++) {
                        int64_t rows;
                        assert_int_equal(eval_fill(&feed, limit, k, in, target, &rows), SHERD_OK);
                        assert_in_range(rows, 1, micro);
                        for (int64_t i = 0; i < rows; i++)
                            seen[row_window(in + i * SEQ, target + i * SEQ)]++;
                    }
                }
                for (int w = 0; w < WINDOWS; w++)
                    assert_int_equal(seen[w], limit == 0 || w < limit);
            }
}

static void numbers_that_do_not_fit(void **state)
{
    (void)state;
    struct feed feed = make_feed(6, 0, 2);
    feed.micro = 5;
    assert_int_equal(feed_check(&feed), SHERD_ECONFIG);
    assert_non_null(strstr(sherd_error(), "global 24 is not a multiple of micro 5 x 2 ranks"));
    feed.micro = 0;
    assert_int_equal(feed_check(&feed), SHERD_ECONFIG);
    feed.micro = 6;
    feed.rank = 2;
    assert_int_equal(feed_check(&feed), SHERD_ECONFIG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(epochs_are_permutations),
        cmocka_unit_test(world_does_not_matter),
        cmocka_unit_test(every_sample_once_and_last_step_partial),
        cmocka_unit_test(resume_equals_uninterrupted),
        cmocka_unit_test(no_end_without_total),
        cmocka_unit_test(evaluation_sees_each_window_once),
        cmocka_unit_test(numbers_that_do_not_fit),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
