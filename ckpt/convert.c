/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The floating-point types that tensors have in files: from one to another, and whether values are finite.
 * See ckpt/safetensors.h.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "base/status.h"
#include "ckpt/safetensors.h"

#define LARGE 65504.0f /* the largest f16 */
#define BLOCK 1024

int st_convertible(enum sherd_dtype type)
{
    return type == SHERD_F32 || type == SHERD_BF16 || type == SHERD_F16;
}

/* Loops run over whole blocks, of which n elements count: a number that is known becomes vectors. */
static void to_float(float y[BLOCK], const void *x, enum sherd_dtype type, int64_t n)
{
    uint16_t half[BLOCK];
    if (type == SHERD_F32) {
        memcpy(y, x, (size_t)n * sizeof(*y));
        return;
    }
    memcpy(half, x, (size_t)n * sizeof(*half));
    memset(half + n, 0, (size_t)(BLOCK - n) * sizeof(*half));
    for (int i = 0; type == SHERD_F16 && i < n; i++)
        y[i] = f16_to_float(half[i]);
    if (type == SHERD_F16)
        return;
    for (int i = 0; i < BLOCK; i++)
        y[i] = bf16_to_float(half[i]);
}

static void from_float(void *y, enum sherd_dtype type, const float x[BLOCK], int64_t n, int as_updates)
{
    uint16_t half[BLOCK];
    int16_t low[BLOCK];
    if (type == SHERD_F32) {
        memcpy(y, x, (size_t)n * sizeof(*x));
        return;
    }
    if (type == SHERD_BF16 && as_updates) {
        for (int i = 0; i < BLOCK; i++)
            half[i] = bf16_split(x[i], &low[i]);
    } else if (type == SHERD_BF16) {
        for (int i = 0; i < BLOCK; i++)
            half[i] = bf16_from_float(x[i]);
    } else {
        for (int i = 0; i < n; i++)
            half[i] = f16_from_float(x[i]);
    }
    memcpy(y, half, (size_t)n * sizeof(*half));
}

/* Index of the first finite x whose y is not; -1 for none. Only a large x can be one. */
static int64_t first_overflow(const void *y, enum sherd_dtype type, const float x[BLOCK], int64_t n)
{
    float back[BLOCK];
    int large = 0;
    for (int i = 0; i < BLOCK; i++)
        large |= fabsf(x[i]) >= LARGE;
    if (!large)
        return -1;
    to_float(back, y, type, n);
    for (int64_t i = 0; i < n; i++) {
        if (isfinite(x[i]) && !isfinite(back[i]))
            return i;
    }
    return -1;
}

static void convert(void *y, enum sherd_dtype y_type, const void *x, enum sherd_dtype x_type, int64_t n,
    int64_t *overflow, int as_updates)
{
    float block[BLOCK] = { 0 };
    assert(st_convertible(y_type) && st_convertible(x_type));
    if (overflow)
        *overflow = -1;
    if (y_type == x_type) {
        memmove(y, x, (size_t)n * sherd_dtype_bytes(y_type));
        return;
    }
    size_t y_bytes = sherd_dtype_bytes(y_type), x_bytes = sherd_dtype_bytes(x_type);
    for (int64_t at = 0; at < n; at += BLOCK) {
        int64_t m = MIN(n - at, BLOCK);
        char *to = (char *)y + (size_t)at * y_bytes;
        to_float(block, (const char *)x + (size_t)at * x_bytes, x_type, m);
        from_float(to, y_type, block, m, as_updates);
        if (overflow && *overflow < 0) {
            int64_t i = first_overflow(to, y_type, block, m);
            *overflow = i < 0 ? -1 : at + i;
        }
    }
}

void st_convert(
    void *y, enum sherd_dtype y_type, const void *x, enum sherd_dtype x_type, int64_t n, int64_t *overflow)
{
    convert(y, y_type, x, x_type, n, overflow, 0);
}

void st_convert_weights(
    void *y, enum sherd_dtype y_type, const void *x, enum sherd_dtype x_type, int64_t n, int64_t *overflow)
{
    convert(y, y_type, x, x_type, n, overflow, 1);
}

/* A value is infinite or no number if all bits of its exponent are set: then, and only then, one more at
 * their end carries into the place of the sign. Whole words, as compilers like them. */
int st_finite(const void *data, size_t bytes, enum sherd_dtype type)
{
    static const struct {
        uint64_t exponents, ones;
    } of[] = { [SHERD_F32] = { 0x7f8000007f800000, 0x0080000000800000 },
        [SHERD_BF16] = { 0x7f807f807f807f80, 0x0080008000800080 },
        [SHERD_F16] = { 0x7c007c007c007c00, 0x0400040004000400 } };
    const uint64_t mask = of[type].exponents, one = of[type].ones;
    const uint64_t signs = type == SHERD_F32 ? 0x8000000080000000 : 0x8000800080008000;
    uint64_t words[8], bad[8] = { 0 }, any = 0;
    size_t at = 0;
    for (; bytes - at >= sizeof(words); at += sizeof(words)) {
        memcpy(words, (const char *)data + at, sizeof(words));
        for (int k = 0; k < 8; k++)
            bad[k] |= (words[k] & mask) + one;
    }
    memset(words, 0, sizeof(words));
    memcpy(words, (const char *)data + at, bytes - at);
    for (int k = 0; k < 8; k++)
        any |= bad[k] | ((words[k] & mask) + one);
    return !(any & signs);
}
