/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Several sources with weights, what is held out, where documents end, and reading ahead.
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

#include "base/file.h"
#include "base/status.h"
#include "data/data.h"
#include "tests/folder.h"

#define SEQ 4
#define A_WINDOWS 20
#define B_WINDOWS 7
#define C_WINDOWS 11

static char root[FOLDER_BYTES];
static struct tokens *tokens;
static const char *const paths[] = { "a.bin", "b.bin", "c.bin" };
static const struct tokens_desc desc = {
    .what = "data.train", .paths = paths, .n_paths = 3, .format = SHERD_DATA_U16, .vocab = 65536
};

static void quiet(void *ctx, enum sherd_log_level level, const char *text)
{
    (void)ctx;
    (void)level;
    (void)text;
}

/* Token i of the stream is i. */
static int write_ids(const char *path, int first, int n)
{
    uint16_t ids[256];
    for (int i = 0; i < n; i++)
        ids[i] = (uint16_t)(first + i);
    return file_write_atomic(path, ids, (size_t)n * sizeof(*ids));
}

static int setup(void **state)
{
    (void)state;
    sherd_log_set(quiet, NULL, SHERD_LOG_ERROR);
    int a = A_WINDOWS * SEQ + 1, b = B_WINDOWS * SEQ + 3, c = C_WINDOWS * SEQ + 1;
    if (folder_make(root, "mix") || chdir(root) || write_ids("a.bin", 0, a) || write_ids("b.bin", a, b) ||
        write_ids("c.bin", a + b, c))
        return -1;
    return tokens_open(&tokens, &desc);
}

static int teardown(void **state)
{
    (void)state;
    tokens_close(tokens);
    return chdir("/") != 0 ? -1 : file_remove_tree(root);
}

/* The source and window that a sample begins with; fails if it is the first token of none. */
static void locate(const struct mix *mix, int64_t at, int *source, int64_t *window)
{
    for (int i = 0; i < mix->n; i++) {
        const struct mix_source *s = &mix->sources[i];
        if (at >= s->first && at < s->first + (s->windows + s->held) * SEQ && (at - s->first) % SEQ == 0) {
            *source = i;
            *window = (at - s->first) / SEQ;
            return;
        }
    }
    fail_msg("token %lld begins no sample", (long long)at);
}

/* Weight 1: every window once an epoch; 0.5: once in two; 3: three times; never one that is held out. */
static void weights_are_passes_of_an_epoch(void **state)
{
    (void)state;
    const double weights[] = { 1, 3, 0.5 };
    for (int split = 0; split < 2; split++) {
        struct mix mix;
        assert_int_equal(mix_init(&mix, tokens, &desc, weights, split ? 0.25 : 0, SEQ), SHERD_OK);
        int64_t n[] = { A_WINDOWS, B_WINDOWS, C_WINDOWS }, held = 0;
        for (int i = 0; i < 3; i++) {
            assert_int_equal(mix.sources[i].windows + mix.sources[i].held, n[i]);
            assert_int_equal(mix.sources[i].held, split ? n[i] / 4 : 0);
            held += mix.sources[i].held;
        }
        assert_int_equal(mix.held, held);
        for (int shuffle = 0; shuffle < 2; shuffle++) {
            int count[3][A_WINDOWS] = { { 0 } };
            struct sampler s = { mix.draws, 5, shuffle };
            for (int64_t g = 0; g < 2 * mix.draws; g++) {
                int source = -1;
                int64_t window = -1;
                locate(&mix, mix_at(&mix, &s, SEQ, g), &source, &window);
                assert_true(window < mix.sources[source].windows);
                count[source][window]++;
            }
            for (int i = 0; i < 3; i++)
                for (int64_t w = 0; w < mix.sources[i].windows; w++) {
                    int passes = (int)(2 * weights[i]); /* an odd number of windows gives one once more */
                    int odd = i == 2 && mix.sources[i].windows % 2;
                    assert_true(count[i][w] == passes || (odd && count[i][w] == passes + 1));
                }
        }
        for (int64_t i = 0; i < mix.held; i++) {
            int source = -1;
            int64_t window = -1;
            locate(&mix, mix_held_at(&mix, SEQ, i), &source, &window);
            assert_true(window >= mix.sources[source].windows);
        }
        mix_finish(&mix);
    }
}

static void a_split_alone_keeps_the_order_of_the_rest(void **state)
{
    (void)state;
    struct mix mix;
    assert_int_equal(mix_init(&mix, tokens, &desc, NULL, 0.1, SEQ), SHERD_OK);
    struct sampler s = { mix.draws, 9, 1 };
    for (int64_t g = 0; g < 2 * mix.draws; g++)
        assert_int_equal(mix_at(&mix, &s, SEQ, g), sampler_at(&s, g) * SEQ);
    assert_int_equal(mix_held_at(&mix, SEQ, 0), mix.draws * SEQ);
    mix_finish(&mix);
    assert_int_equal(
        mix_init(&mix, tokens, &desc, (double[]){ 1, 1, 1 }, 0.999, B_WINDOWS * SEQ), SHERD_ECONFIG);
    assert_non_null(strstr(sherd_error(), "b.bin: 31 tokens make 1 samples of batch.seq 28"));
}

/* Which windows of a source are held out by a seed, as 0 and 1; the others come once an epoch each. */
static void find_held(unsigned char held[3][A_WINDOWS], uint64_t seed, const double *weights)
{
    struct mix mix;
    int count[3][A_WINDOWS] = { { 0 } }, source = -1;
    int64_t window = -1;
    memset(held, 0, 3 * A_WINDOWS);
    assert_int_equal(mix_init(&mix, tokens, &desc, weights, 0.3, SEQ), SHERD_OK);
    mix.split_seed = seed;
    for (int64_t i = 0; i < mix.held; i++) {
        locate(&mix, mix_held_at(&mix, SEQ, i), &source, &window);
        assert_int_equal(held[source][window]++, 0);
    }
    struct sampler s = { mix.draws, 5, 1 };
    for (int64_t g = 0; g < 2 * mix.draws; g++) {
        locate(&mix, mix_at(&mix, &s, SEQ, g), &source, &window);
        assert_int_equal(held[source][window], 0);
        count[source][window]++;
    }
    for (int i = 0; i < mix.n; i++) {
        int64_t n = 0;
        for (int64_t w = 0; w < mix.sources[i].windows + mix.sources[i].held; w++) {
            assert_int_equal(count[i][w], held[i][w] ? 0 : 2);
            n += held[i][w];
        }
        assert_int_equal(n, mix.sources[i].held);
    }
    mix_finish(&mix);
}

static void samples_may_be_held_out_at_random(void **state)
{
    (void)state;
    static const double ones[] = { 1, 1, 1 };
    unsigned char a[3][A_WINDOWS], b[3][A_WINDOWS], end[3][A_WINDOWS];
    find_held(end, 0, ones);
    assert_int_equal(end[0][A_WINDOWS - 1], 1);
    find_held(a, 7, ones);
    find_held(b, 7, ones);
    assert_memory_equal(a, b, sizeof(a));
    assert_true(memcmp(a, end, sizeof(a)) != 0);
    find_held(b, 8, ones);
    assert_true(memcmp(a, b, sizeof(a)) != 0);
}

/* The same where all paths are one stream. */
static void one_stream_may_be_split_at_random(void **state)
{
    (void)state;
    struct mix mix;
    int64_t n = (tokens_count(tokens) - 1) / SEQ, before_end = 0;
    unsigned char seen[A_WINDOWS + B_WINDOWS + C_WINDOWS + 1] = { 0 };
    assert_int_equal(mix_init(&mix, tokens, &desc, NULL, 0.3, SEQ), SHERD_OK);
    mix.split_seed = 3;
    struct sampler s = { mix.draws, 5, 1 };
    for (int64_t g = 0; g < mix.draws; g++)
        seen[mix_at(&mix, &s, SEQ, g) / SEQ]++;
    for (int64_t i = 0; i < mix.held; i++) {
        int64_t window = mix_held_at(&mix, SEQ, i) / SEQ;
        seen[window]++;
        before_end += window < mix.draws;
    }
    for (int64_t w = 0; w < n; w++)
        assert_int_equal(seen[w], 1);
    assert_true(before_end > 0);
    mix_finish(&mix);
}

static void what_follows_an_end_is_no_target(void **state)
{
    (void)state;
    struct feed feed = { .tokens = tokens,
        .sampler = { A_WINDOWS, 1, 0 },
        .has_end = 1,
        .end = 2,
        .seq = SEQ,
        .global = 2,
        .micro = 2,
        .world = 1 };
    int32_t in[2 * SEQ], out[2 * SEQ];
    assert_int_equal(feed_fill(&feed, 0, 0, in, out), SHERD_OK);
    for (int i = 0; i < 2 * SEQ; i++) {
        assert_int_equal(in[i], i);
        assert_int_equal(out[i], i == 2 ? -1 : i + 1);
    }
}

/* Whatever is asked for, and in whatever order, it is what feed_fill gives. */
static void ahead_gives_what_is_asked_for(void **state)
{
    (void)state;
    static const int64_t cursors[] = { 0, 6, 12, 18, 6, 12, 0, 36, 42 };
    struct feed feed = { .tokens = tokens,
        .sampler = { A_WINDOWS, 1, 1 },
        .seq = SEQ,
        .total = 40,
        .global = 6,
        .micro = 1,
        .rank = 1,
        .world = 2 };
    struct ahead *ahead;
    const int32_t *rows;
    int32_t in[SEQ], out[SEQ];
    assert_int_equal(ahead_create(&ahead, &feed), SHERD_OK);
    for (size_t i = 0; i < ARRAY_LEN(cursors); i++) {
        assert_int_equal(ahead_take(ahead, cursors[i], &rows), SHERD_OK);
        if (i % 2)
            usleep(2000); /* the thread may be ahead or not */
        for (int64_t m = 0; m < feed_accum(&feed); m++) {
            assert_int_equal(feed_fill(&feed, cursors[i], m, in, out), SHERD_OK);
            assert_memory_equal(rows + 2 * m * SEQ, in, sizeof(in));
            assert_memory_equal(rows + (2 * m + 1) * SEQ, out, sizeof(out));
        }
    }
    ahead_destroy(ahead);
}

static void ahead_tells_what_cannot_be_read(void **state)
{
    (void)state;
    struct tokens *few;
    struct tokens_desc d = desc;
    struct ahead *ahead;
    const int32_t *rows;
    d.vocab = 20;
    assert_int_equal(tokens_open(&few, &d), SHERD_OK);
    struct feed feed = {
        .tokens = few, .sampler = { A_WINDOWS, 1, 0 }, .seq = SEQ, .global = 2, .micro = 2, .world = 1
    };
    assert_int_equal(ahead_create(&ahead, &feed), SHERD_OK);
    assert_int_equal(ahead_take(ahead, 0, &rows), SHERD_OK);
    assert_int_equal(ahead_take(ahead, 2, &rows), SHERD_OK);
    for (int again = 0; again < 2; again++) {
        assert_int_equal(ahead_take(ahead, 4, &rows), SHERD_EFORMAT);
        assert_non_null(strstr(sherd_error(), "a.bin: byte 40: token 20"));
    }
    assert_int_equal(ahead_take(ahead, 0, &rows), SHERD_OK);
    ahead_destroy(ahead);
    tokens_close(few);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_are_passes_of_an_epoch),
        cmocka_unit_test(a_split_alone_keeps_the_order_of_the_rest),
        cmocka_unit_test(samples_may_be_held_out_at_random),
        cmocka_unit_test(one_stream_may_be_split_at_random),
        cmocka_unit_test(what_follows_an_end_is_no_target),
        cmocka_unit_test(ahead_gives_what_is_asked_for),
        cmocka_unit_test(ahead_tells_what_cannot_be_read),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
