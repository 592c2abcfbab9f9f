/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * binary16 by integer arithmetic on the bits: 1 sign, 5 exponent (bias 15), 10 mantissa.
 */
#include "base/half.h"

float f16_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = (h >> 10) & 0x1fu, mantissa = h & 0x3ffu;
    uint32_t u;
    if (exponent == 0x1f) {
        u = sign | 0x7f800000u | mantissa << 13;
    } else if (exponent != 0) {
        u = sign | (exponent + 112) << 23 | mantissa << 13;
    } else { /* zero or subnormal: mantissa * 2^-24 is exact in float */
        float f = (float)mantissa * 0x1p-24f;
        memcpy(&u, &f, sizeof(u));
        u |= sign;
    }
    float out;
    memcpy(&out, &u, sizeof(out));
    return out;
}

uint16_t f16_from_float(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof(u));
    uint16_t sign = (uint16_t)((u >> 16) & 0x8000u);
    u &= 0x7fffffffu;
    if (u > 0x7f800000u) /* NaN: quiet, upper payload kept */
        return (uint16_t)(sign | 0x7e00u | ((u >> 13) & 0x3ffu));
    if (u >= 0x477ff000u) /* 65520 and up round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (u >= 0x38800000u) { /* normal; a carry out of the mantissa raises the exponent */
        uint32_t rounded = u + 0xfffu + ((u >> 13) & 1u);
        return (uint16_t)(sign | ((rounded - 0x38000000u) >> 13));
    }
    if (u < 0x33000000u) /* below half of the smallest subnormal */
        return sign;
    uint32_t shift = 126 - (u >> 23); /* 14 to 24 */
    uint32_t mantissa = (u & 0x7fffffu) | 0x800000u;
    uint32_t kept = mantissa >> shift, rest = mantissa & ((1u << shift) - 1), half = 1u << (shift - 1);
    kept += rest > half || (rest == half && (kept & 1u));
    return (uint16_t)(sign | kept);
}
