/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What is drawn from Philox, except normal numbers (rng_normal.c).
 */
#include "base/rng.h"

#include <assert.h>

#include "base/philox.h"

#define PERMUTE_ROUNDS 8 /* of two keys a block */

void rng_block(uint32_t out[4], uint64_t seed, uint64_t stream, uint64_t counter)
{
    philox(out, seed, stream, counter);
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

/* Elements of a stream of which every block makes four. */
void rng_uniform(float *out, int64_t n, uint64_t seed, uint64_t stream, uint64_t first)
{
    for (int64_t i = 0; i < n;) {
        uint64_t at = first + (uint64_t)i;
        uint32_t word[4];
        rng_block(word, seed, stream, at / 4);
        for (uint64_t j = at % 4; j < 4 && i < n; j++)
            out[i++] = (float)(word[j] >> 8) * 0x1p-24f;
    }
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
