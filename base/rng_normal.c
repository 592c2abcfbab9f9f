/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Normal numbers, many at a time. In double, so that the tail reaches 6.6 deviations and the float result is
 * rounded once. Only additions, products, quotients and square roots, each rounded for itself (compiled
 * without fused ones), so the bits depend neither on the machine nor on its C library.
 */
#include "base/rng.h"

#include <math.h>
#include <string.h>

#include "base/clones.h"
#include "base/philox.h"

#define INLINE static inline __attribute__((always_inline))
#define LANES 64 /* blocks of four at a time */

INLINE double from_bits(uint64_t u)
{
    double d;
    memcpy(&d, &u, sizeof(d));
    return d;
}

INLINE uint64_t to_bits(double d)
{
    uint64_t u;
    memcpy(&u, &d, sizeof(u));
    return u;
}

/* Exactly n, which is below 2^52: the bits of 2^52 + n. Vectorizes where conversions do not. */
INLINE double from_int(uint64_t n)
{
    return from_bits(0x4330000000000000u | n) - 0x1p52;
}

/* log u of a u from 2^-32 to 1: u = m / 2^k with m between the roots of 1/2 and 2, and log m = 2 atanh s, s =
 * (m - 1) / (m + 1), as its series: |s| <= 0.172, so what is left out is below 1e-17 of it. */
INLINE double log_of(double u)
{
    const uint64_t root = 0x3fe6a09e667f3bcdu; /* of 1/2 */
    uint64_t k = (root + ((uint64_t)1 << 52) - 1 - to_bits(u)) >> 52;
    double m = from_bits(to_bits(u) + (k << 52));
    double s = (m - 1) / (m + 1), z = s * s, p = 1.0 / 19;
    p = p * z + 1.0 / 17;
    p = p * z + 1.0 / 15;
    p = p * z + 1.0 / 13;
    p = p * z + 1.0 / 11;
    p = p * z + 1.0 / 9;
    p = p * z + 1.0 / 7;
    p = p * z + 1.0 / 5;
    p = p * z + 1.0 / 3;
    return 2 * (s + s * z * p) - from_int(k) * 0.693147180559945309417;
}

/* Sine and cosine of 2 pi word / 2^32: of what is left beside the nearest quarter turn by Taylor's series, at
 * most pi / 4, so what is left out is below 1e-16; the quarter says which is which and its sign. */
INLINE void turn(uint32_t word, double *sine, double *cosine)
{
    uint32_t quarter = (word + 0x20000000u) >> 30;
    double x = (double)(int32_t)(word - (quarter << 30)) * (6.28318530717958647692 * 0x1p-32), z = x * x;
    double s = 1.0 / 1307674368000, c = 1.0 / 20922789888000;
    s = 1.0 / 6227020800 - z * s;
    c = 1.0 / 87178291200 - z * c;
    s = 1.0 / 39916800 - z * s;
    c = 1.0 / 479001600 - z * c;
    s = 1.0 / 362880 - z * s;
    c = 1.0 / 3628800 - z * c;
    s = 1.0 / 5040 - z * s;
    c = 1.0 / 40320 - z * c;
    s = 1.0 / 120 - z * s;
    c = 1.0 / 720 - z * c;
    s = 1.0 / 6 - z * s;
    c = 1.0 / 24 - z * c;
    s = x - x * z * s;
    c = 1 - z * (0.5 - z * c);
    double a = quarter & 1 ? c : s, b = quarter & 1 ? s : c;
    *sine = quarter & 2 ? -a : a;
    *cosine = (quarter + 1) & 2 ? -b : b;
}

/* 4 LANES numbers, those of blocks from `block` on. */
CLONES static void draw_lanes(float *out, uint64_t seed, uint64_t stream, uint64_t block, double std)
{
    uint32_t words[4][LANES];
    float made[4][LANES];
#pragma omp simd
    for (int i = 0; i < LANES; i++) {
        uint32_t word[4];
        philox(word, seed, stream, block + (uint64_t)i);
        words[0][i] = word[0];
        words[1][i] = word[1];
        words[2][i] = word[2];
        words[3][i] = word[3];
    }
    for (int k = 0; k < 4; k += 2) {
#pragma omp simd
        for (int i = 0; i < LANES; i++) {
            double u = (from_int(words[k][i]) + 1) * 0x1p-32; /* (0, 1] */
            double radius = std * sqrt(-2 * log_of(u)), sine, cosine;
            turn(words[k + 1][i], &sine, &cosine);
            made[k][i] = (float)(radius * cosine);
            made[k + 1][i] = (float)(radius * sine);
        }
    }
    for (int i = 0; i < LANES; i++)
        for (int k = 0; k < 4; k++)
            out[4 * i + k] = made[k][i];
}

void rng_normal(float *out, int64_t n, uint64_t seed, uint64_t stream, uint64_t first, float std)
{
    float made[4 * LANES];
    for (int64_t i = 0; i < n;) {
        uint64_t at = first + (uint64_t)i;
        int64_t skip = (int64_t)(at % 4), take = 4 * LANES - skip < n - i ? 4 * LANES - skip : n - i;
        if (take == 4 * LANES) {
            draw_lanes(out + i, seed, stream, at / 4, (double)std);
        } else {
            draw_lanes(made, seed, stream, at / 4, (double)std);
            memcpy(out + i, made + skip, (size_t)take * sizeof(*out));
        }
        i += take;
    }
}
