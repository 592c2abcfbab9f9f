/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * bf16 and f16 to float and back, rounding to nearest even; NaN stays NaN. Inline and without branches, so
 * that loops vectorize.
 */
#ifndef SHERD_BASE_HALF_H
#define SHERD_BASE_HALF_H

#include <stdint.h>
#include <string.h>

typedef uint16_t bf16; /* the upper half of a float */
typedef uint16_t f16;  /* IEEE binary16: 1 sign, 5 exponent (bias 15), 10 mantissa */

static inline float bf16_to_float(bf16 h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof(f));
    return f;
}

static inline bf16 bf16_from_float(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof(u));
    uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    uint32_t nan = (u >> 16) | 0x40u;
    return (bf16)((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

/* The nearest bf16, of two as near the one farther from zero, and what is left: the bits of f are those of
 * the result and 16 zeros, plus *low. Of a NaN only the sign is kept. */
static inline bf16 bf16_split(float f, int16_t *low)
{
    uint32_t u;
    memcpy(&u, &f, sizeof(u));
    u = (u & 0x7fffffffu) > 0x7f800000u ? (u & 0x80000000u) | 0x7fc00000u : u;
    *low = (int16_t)(uint16_t)u;
    return (bf16)((u + 0x8000u) >> 16);
}

static inline float bf16_join(bf16 h, int16_t low)
{
    uint32_t u = ((uint32_t)h << 16) + (uint32_t)(int32_t)low;
    float f;
    memcpy(&f, &u, sizeof(f));
    return f;
}

/* Up or down in proportion, if `random` is uniform in 0..65535; values that need no rounding stay. */
static inline bf16 bf16_from_float_at_random(float f, uint32_t random)
{
    uint32_t u;
    memcpy(&u, &f, sizeof(u));
    uint32_t special = (u >> 16) | ((u & 0x7fffffffu) > 0x7f800000u ? 0x40u : 0u);
    return (bf16)((u & 0x7f800000u) == 0x7f800000u ? special : (u + random) >> 16);
}

static inline float f16_to_float(f16 h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = h & 0x7fffu;
    uint32_t small =
        0x3f000000u + rest; /* subnormals count 2^-24, as the last bit of a float from 0.5 does */
    float f;
    memcpy(&f, &small, sizeof(f));
    f -= 0.5f;
    memcpy(&small, &f, sizeof(small));
    uint32_t normal = (rest << 13) + (rest >= 0x7c00u ? 0x70000000u : 0x38000000u);
    uint32_t u = sign | (rest < 0x400u ? small : normal);
    memcpy(&f, &u, sizeof(f));
    return f;
}

/* Values out of range become infinity. */
static inline f16 f16_from_float(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof(u));
    uint32_t sign = (u >> 16) & 0x8000u;
    u &= 0x7fffffffu;
    float size;
    memcpy(&size, &u, sizeof(size));
    size += 0.5f; /* rounds to multiples of 2^-24: what is below 2^-14 is subnormal */
    uint32_t small, nan = 0x7e00u | ((u >> 13) & 0x3ffu);
    memcpy(&small, &size, sizeof(small));
    small -= 0x3f000000u;
    uint32_t normal = (u - 0x38000000u + 0xfffu + ((u >> 13) & 1u)) >> 13; /* a carry raises the exponent */
    uint32_t h = u < 0x38800000u ? small : normal;
    h = u >= 0x477ff000u ? 0x7c00u : h; /* 65520 and up */
    return (f16)(sign | (u > 0x7f800000u ? nan : h));
}

#endif
