/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Philox known answers, slices of streams, moments, permutations.
 */
#include "tests/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"

/* The known answers that the authors of Philox publish for 4x32-10. */
static void known_answers(void **state)
{
    (void)state;
    static const struct {
        uint64_t seed, stream, counter;
        uint32_t out[4];
    } known[] = {
        { 0, 0, 0, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
        { UINT64_MAX, UINT64_MAX, UINT64_MAX, { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
        { 0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88,
            { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
    };
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        uint32_t out[4];
        rng_block(out, known[i].seed, known[i].stream, known[i].counter);
        assert_memory_equal(out, known[i].out, sizeof(out));
    }
}

static void stream_names(void **state)
{
    (void)state;
    assert_true(rng_stream("") == 0xcbf29ce484222325u);
    assert_true(rng_stream("a") == 0xaf63dc4c8601ec8cu);
    assert_true(rng_stream("foobar") == 0x85944171f73967e8u);
}

#define WHOLE 1000

static void slices_are_the_whole(void **state)
{
    (void)state;
    const uint64_t base = (uint64_t)1 << 33; /* beyond 32-bit counters too */
    float normal[WHOLE], uniform[WHOLE], part[WHOLE];
    rng_normal(normal, WHOLE, 7, 9, base, 0.02f);
    rng_uniform(uniform, WHOLE, 7, 9, base);
    for (int first = 0; first < 40; first++)
        for (int n = 0; n < 40; n++) {
            rng_normal(part, n, 7, 9, base + (uint64_t)first, 0.02f);
            assert_memory_equal(part, normal + first, (size_t)n * sizeof(float));
            rng_uniform(part, n, 7, 9, base + (uint64_t)first);
            assert_memory_equal(part, uniform + first, (size_t)n * sizeof(float));
        }
    for (int world = 1; world < 20; world++)
        for (int r = 0; r < world; r++) {
            int from = WHOLE * r / world, to = WHOLE * (r + 1) / world;
            rng_normal(part, to - from, 7, 9, base + (uint64_t)from, 0.02f);
            assert_memory_equal(part, normal + from, (size_t)(to - from) * sizeof(float));
        }
}

static void streams_and_seeds_differ(void **state)
{
    (void)state;
    float a[8], b[8], c[8];
    rng_uniform(a, 8, 1, 2, 0);
    rng_uniform(b, 8, 1, 3, 0);
    rng_uniform(c, 8, 2, 2, 0);
    for (int i = 0; i < 8; i++)
        assert_true(a[i] != b[i] && a[i] != c[i] && b[i] != c[i]);
}

#define MANY 1000000

/* Box-Muller by the C library's functions. */
static double normal_of(uint64_t i)
{
    uint32_t word[4];
    rng_block(word, 42, 5, i / 4);
    const uint32_t *pair = word + (i & 2);
    double radius = sqrt(-2 * log(((double)pair[0] + 1) * 0x1p-32));
    double angle = 6.28318530717958647692 * 0x1p-32 * (double)pair[1];
    return i & 1 ? radius * sin(angle) : radius * cos(angle);
}

/* Normals are what their formula says, to the last bit but where a double falls between two floats; and the
 * same bits on every machine. */
static void normals_are_exact(void **state)
{
    (void)state;
    float *x = malloc(MANY * sizeof(*x));
    assert_non_null(x);
    rng_normal(x, MANY, 42, 5, 0, 1);
    int apart = 0;
    uint64_t hash = 0xcbf29ce484222325u;
    for (int i = 0; i < MANY; i++) {
        float wanted = (float)normal_of((uint64_t)i);
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof(bits));
        hash = (hash ^ bits) * 0x100000001b3u;
        if (x[i] == wanted)
            continue;
        apart++;
        assert_true(x[i] == nextafterf(wanted, x[i]));
    }
    assert_true(apart < 5);
    assert_true(hash == 0x599af63a4a02cef0u);
    free(x);
}

static void moments(void **state)
{
    (void)state;
    float *x = malloc(MANY * sizeof(*x));
    assert_non_null(x);
    double sum[5] = { 0 }, pairs = 0, top = 0;
    rng_normal(x, MANY, 42, rng_stream("moments"), 0, 1);
    for (int i = 0; i < MANY; i++) {
        double v = (double)x[i];
        assert_true(isfinite(v));
        for (int k = 1; k < 5; k++)
            sum[k] += pow(v, k) / MANY;
        pairs += i % 2 ? (double)x[i - 1] * v / (MANY / 2) : 0;
        top = fmax(top, fabs(v));
    }
    assert_true(fabs(sum[1]) < 0.005);
    assert_true(fabs(sum[2] - 1) < 0.01);
    assert_true(fabs(sum[3]) < 0.015);
    assert_true(fabs(sum[4] - 3) < 0.05);
    assert_true(fabs(pairs) < 0.007); /* both of a Box-Muller pair are independent */
    assert_true(top > 4 && top < 7);

    int bins[16] = { 0 };
    rng_uniform(x, MANY, 42, rng_stream("uniform"), 0);
    for (int i = 0; i < MANY; i++) {
        assert_true(x[i] >= 0 && x[i] < 1);
        bins[(int)(x[i] * 16)]++;
    }
    for (int i = 0; i < 16; i++)
        assert_true(abs(bins[i] - MANY / 16) < 1500);
    free(x);
}

static void permutation_meets_each_once(uint64_t n, uint64_t seed)
{
    unsigned char *seen = calloc(n, 1);
    assert_non_null(seen);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t j = rng_permute(i, n, seed, 5);
        assert_true(j < n);
        assert_int_equal(seen[j]++, 0);
    }
    free(seen);
}

static void permutations(void **state)
{
    (void)state;
    for (uint64_t n = 1; n <= 200; n++)
        for (uint64_t seed = 0; seed < 5; seed++)
            permutation_meets_each_once(n, seed);
    permutation_meets_each_once(65536, 1);
    permutation_meets_each_once(65537, 1);
    permutation_meets_each_once(300007, 1);
    /* Too large to list: inside the range, and different indexes stay different. */
    static const uint64_t large[] = { (uint64_t)1 << 40, ((uint64_t)1 << 63) + 12345, UINT64_MAX };
    for (size_t k = 0; k < ARRAY_LEN(large); k++) {
        uint64_t got[64];
        for (uint64_t i = 0; i < 64; i++) {
            got[i] = rng_permute(i < 32 ? i : large[k] - i, large[k], 3, 4);
            assert_true(got[i] < large[k]);
            for (uint64_t j = 0; j < i; j++)
                assert_true(got[j] != got[i]);
        }
    }
}

static void permutation_is_fair(void **state)
{
    (void)state;
    int first[6] = { 0 }, fixed = 0;
    for (uint64_t seed = 0; seed < 60000; seed++)
        first[rng_permute(0, 6, seed, 1)]++;
    for (int i = 0; i < 6; i++)
        assert_true(abs(first[i] - 10000) < 500);
    for (uint64_t i = 0; i < 100000; i++)
        fixed += rng_permute(i, 100000, 11, 12) == i;
    assert_true(fixed < 12); /* one is expected */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_answers),
        cmocka_unit_test(stream_names),
        cmocka_unit_test(slices_are_the_whole),
        cmocka_unit_test(streams_and_seeds_differ),
        cmocka_unit_test(normals_are_exact),
        cmocka_unit_test(moments),
        cmocka_unit_test(permutations),
        cmocka_unit_test(permutation_is_fair),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
