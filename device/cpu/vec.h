/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * For the inner loops of the CPU kind: an exponential that vectorizes, and elements as floats whatever their
 * storage.
 */
#ifndef SHERD_DEVICE_CPU_VEC_H
#define SHERD_DEVICE_CPU_VEC_H

#include <stdint.h>
#include <string.h>

#include <sherd/base.h>
#include "base/clones.h"
#include "base/half.h"

/* `omp simd` is compiled with -fopenmp-simd in this folder; elsewhere it may be passed over. */
#pragma GCC diagnostic ignored "-Wunknown-pragmas"

#define VEC_INLINE static inline __attribute__((always_inline))

/* Elements that are worked on at a time where storage is not float: their float copies stay in the cache. */
#define VEC_BLOCK 512

VEC_INLINE float vec_from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof(f));
    return f;
}

VEC_INLINE uint32_t vec_to_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof(u));
    return u;
}

/* e^x within 1.5 units in the last place: x = k ln 2 + r, then a polynomial in r (near-minimax on |r| <= ln 2
 * / 2, relative error 1e-8) times 2^k in two factors, so that results go down to subnormals and 0 and up to
 * infinity as they should. NaN stays NaN. */
VEC_INLINE float vec_exp(float x)
{
    const float round = 12582912.0f; /* 1.5 * 2^23: adding it leaves the nearest integer in the low bits */
    x = x < -110.0f ? -110.0f : x;
    x = x > 90.0f ? 90.0f : x;
    float t = x * 1.44269504f + round;
    int32_t k = (int32_t)(vec_to_bits(t) - vec_to_bits(round));
    float n = t - round;
    float r = x - n * 0.693115234f - n * 3.19461833e-5f;
    float p = 0.00139265507f;
    p = p * r + 0.0083634723f;
    p = p * r + 0.0416665524f;
    p = p * r + 0.166665748f;
    p = p * r + 0.5f;
    p = p * r * r + r + 1.0f;
    int32_t half = k >> 1;
    return p * vec_from_bits((uint32_t)(half + 127) << 23) * vec_from_bits((uint32_t)(k - half + 127) << 23);
}

/* 1 / (1 + e^-x) */
VEC_INLINE float vec_sigmoid(float x)
{
    return 1.0f / (1.0f + vec_exp(-x));
}

/* Elements [at, at + n) of p as floats: in place if they are floats, else converted into buf. */
VEC_INLINE const float *vec_load(const void *p, int64_t at, int64_t n, enum sherd_dtype type, float *buf)
{
    if (type == SHERD_F32)
        return (const float *)p + at;
    const uint16_t *h = (const uint16_t *)p + at;
    if (type == SHERD_BF16) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            buf[i] = bf16_to_float(h[i]);
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            buf[i] = f16_to_float(h[i]);
    }
    return buf;
}

/* Where to write elements [at, ...) of p as floats: in place, or buf; vec_store then brings buf to its place.
 */
VEC_INLINE float *vec_place(void *p, int64_t at, enum sherd_dtype type, float *buf)
{
    return type == SHERD_F32 ? (float *)p + at : buf;
}

VEC_INLINE void vec_store(void *p, int64_t at, int64_t n, enum sherd_dtype type, const float *buf)
{
    if (type == SHERD_F32)
        return;
    uint16_t *h = (uint16_t *)p + at;
    if (type == SHERD_BF16) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            h[i] = bf16_from_float(buf[i]);
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            h[i] = f16_from_float(buf[i]);
    }
}

/* Largest of n floats, n >= 1; NaN is passed over. */
VEC_INLINE float vec_max(const float *x, int64_t n)
{
    float lane[16];
    int64_t i = 0;
    for (int l = 0; l < 16; l++)
        lane[l] = x[0];
    for (; i + 16 <= n; i += 16)
        for (int l = 0; l < 16; l++)
            lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
    float max = lane[0];
    for (int l = 1; l < 16; l++)
        max = lane[l] > max ? lane[l] : max;
    for (; i < n; i++)
        max = x[i] > max ? x[i] : max;
    return max;
}

/* Sums are taken in blocks: long rows lose less to rounding. */
VEC_INLINE float vec_sum(const float *x, int64_t n)
{
    float total = 0;
    for (int64_t at = 0; at < n; at += VEC_BLOCK) {
        int64_t end = at + VEC_BLOCK < n ? at + VEC_BLOCK : n;
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = at; i < end; i++)
            sum += x[i];
        total += sum;
    }
    return total;
}

VEC_INLINE float vec_dot(const float *x, const float *y, int64_t n)
{
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

#endif
