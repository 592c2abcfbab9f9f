/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * bf16 and f16 to float and back, rounding to nearest even; NaN stays NaN. Inline, so that loops vectorize.
 */
#ifndef SHERD_BASE_HALF_H
#define SHERD_BASE_HALF_H

#include <stdint.h>
#include <string.h>

typedef uint16_t bf16; /* the upper half of a float */

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

/* IEEE binary16; values out of range become infinity. */
float f16_to_float(uint16_t h);
uint16_t f16_from_float(float f);

#endif
