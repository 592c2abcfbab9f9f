/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Counter-based random numbers, Philox 4x32-10 (Salmon et al., SC 2011): number i of stream s is a pure
 * function of (seed, s, i), so that any rank draws its own part and the result never depends on the world.
 */
#ifndef SHERD_BASE_RNG_H
#define SHERD_BASE_RNG_H

#include <stdint.h>

/* The four 32-bit words of block `counter`. */
void rng_block(uint32_t out[4], uint64_t seed, uint64_t stream, uint64_t counter);

/* Words [first, first + n) of a stream: word i is that of block first_block + i / 4. */
void rng_words(uint32_t *out, int64_t n, uint64_t seed, uint64_t stream, uint64_t first_block, int64_t first);

/* 64 bits from a text, to name a stream ("init/model.norm.weight"): FNV-1a. */
uint64_t rng_stream(const char *name);

/* Elements [first, first + n) of a stream of independent normals with mean 0 and the given deviation
 * (Box-Muller on pairs; element i needs only block i / 4). */
void rng_normal(float *out, int64_t n, uint64_t seed, uint64_t stream, uint64_t first, float std);
/* Elements of a stream uniform in [0, 1) with 24 bits. */
void rng_uniform(float *out, int64_t n, uint64_t seed, uint64_t stream, uint64_t first);

/* Index i of a permutation of 0..n-1 chosen by (seed, stream): a Feistel network with cycle walking, no
 * memory. 0 <= i < n. */
uint64_t rng_permute(uint64_t i, uint64_t n, uint64_t seed, uint64_t stream);

#endif
