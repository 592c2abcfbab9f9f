/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Philox 4x32-10 and what is drawn from it. Key = seed; counter = (block number, stream).
 */
#include "base/rng.h"

#include <assert.h>
#include <math.h>

#define PHILOX_ROUNDS 10
#define PERMUTE_ROUNDS 8 /* of two keys a block */
#define TAU 6.28318530717958647692

void rng_block(uint32_t out[4], uint64_t seed, uint64_t stream, uint64_t counter)
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32);
    uint32_t c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
    for (int i = 0; i < PHILOX_ROUNDS; i++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

void rng_words(uint32_t *out, int64_t n, uint64_t seed, uint64_t stream, uint64_t first_block, int64_t first)
{
    uint32_t word[4];
    for (int64_t i = first; i < first + n; i++) {
        if (i == first || i % 4 == 0)
            rng_block(word, seed, stream, first_block + (uint64_t)(i / 4));
        out[i - first] = word[i % 4];
    }
}

uint64_t rng_stream(const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
    return hash;
}

/* In double, so that the tail reaches 6.6 deviations and the float result is rounded once. */
static void normal_block(float out[4], const uint32_t word[4], double std)
{
    for (int i = 0; i < 4; i += 2) {
        double u = ((double)word[i] + 1) * 0x1p-32; /* (0, 1] */
        double radius = std * sqrt(-2 * log(u)), angle = TAU * 0x1p-32 * (double)word[i + 1];
        out[i] = (float)(radius * cos(angle));
        out[i + 1] = (float)(radius * sin(angle));
    }
}

static void uniform_block(float out[4], const uint32_t word[4], double unused)
{
    (void)unused;
    for (int i = 0; i < 4; i++)
        out[i] = (float)(word[i] >> 8) * 0x1p-24f;
}

/* Elements [first, first + n) of a stream of which every block makes four. */
static void draw(float *out, int64_t n, uint64_t seed, uint64_t stream, uint64_t first,
    void (*make)(float out[4], const uint32_t word[4], double arg), double arg)
{
    for (int64_t i = 0; i < n;) {
        uint64_t at = first + (uint64_t)i;
        uint32_t word[4];
        float made[4];
        rng_block(word, seed, stream, at / 4);
        make(made, word, arg);
        for (uint64_t j = at % 4; j < 4 && i < n; j++)
            out[i++] = made[j];
    }
}

void rng_normal(float *out, int64_t n, uint64_t seed, uint64_t stream, uint64_t first, float std)
{
    draw(out, n, seed, stream, first, normal_block, (double)std);
}

void rng_uniform(float *out, int64_t n, uint64_t seed, uint64_t stream, uint64_t first)
{
    draw(out, n, seed, stream, first, uniform_block, 0);
}

/* A mixer of 64 bits in which every input bit reaches every output bit. */
static uint64_t mix(uint64_t x)
{
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    x ^= x >> 32;
    return x;
}

uint64_t rng_permute(uint64_t i, uint64_t n, uint64_t seed, uint64_t stream)
{
    assert(i < n);
    if (n < 2)
        return 0;
    /* The network permutes numbers of 2 * half bits, fewer than 4 n of them; those outside are walked over.
     */
    int half = (64 - __builtin_clzll(n - 1) + 1) / 2;
    uint64_t mask = ((uint64_t)1 << half) - 1, key[PERMUTE_ROUNDS];
    for (int r = 0; r < PERMUTE_ROUNDS; r += 2) {
        uint32_t word[4];
        rng_block(word, seed, stream, (uint64_t)r / 2);
        key[r] = (uint64_t)word[1] << 32 | word[0];
        key[r + 1] = (uint64_t)word[3] << 32 | word[2];
    }
    do {
        uint64_t left = i >> half, right = i & mask;
        for (int r = 0; r < PERMUTE_ROUNDS; r++) {
            uint64_t next = left ^ (mix(right ^ key[r]) & mask);
            left = right;
            right = next;
        }
        i = left << half | right;
    } while (i >= n);
    return i;
}
