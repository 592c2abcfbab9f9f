/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Reductions tile by tile: a tile of every source is taken in before the tile of `out` is written, so that
 * out may be a source. The order of the sum does not depend on the tile.
 */
#include "comm/reduce.h"

#include <string.h>

#include "base/half.h"
#include "base/status.h"

#define TILE 1024

/* acc[n] op= x[n] in the type the sum is done in. */
#define FOLD(name, type, add)                                                                                \
    static void fold_##name(type *acc, const type *x, int n, enum sherd_reduce reduce)                       \
    {                                                                                                        \
        if (reduce == SHERD_REDUCE_MAX) {                                                                    \
            for (int i = 0; i < n; i++)                                                                      \
                acc[i] = x[i] > acc[i] || x[i] != x[i] ? x[i] : acc[i];                                      \
        } else {                                                                                             \
            for (int i = 0; i < n; i++)                                                                      \
                acc[i] = add(acc[i], x[i]);                                                                  \
        }                                                                                                    \
    }
#define ADD(a, b) ((a) + (b))
/* Signed overflow has no meaning in C; wrapping has. */
#define ADD_I32(a, b) ((int32_t)((uint32_t)(a) + (uint32_t)(b)))
#define ADD_I64(a, b) ((int64_t)((uint64_t)(a) + (uint64_t)(b)))
#define ADD_U8(a, b) ((uint8_t)((a) + (b)))
FOLD(f32, float, ADD)
FOLD(f64, double, ADD)
FOLD(i32, int32_t, ADD_I32)
FOLD(i64, int64_t, ADD_I64)
FOLD(u8, uint8_t, ADD_U8)

static void load_half(float *out, const uint16_t *x, int n, enum sherd_dtype type)
{
    if (type == SHERD_BF16) {
        for (int i = 0; i < n; i++)
            out[i] = bf16_to_float(x[i]);
    } else {
        for (int i = 0; i < n; i++)
            out[i] = f16_to_float(x[i]);
    }
}

static void store_half(uint16_t *out, const float *x, int n, enum sherd_dtype type)
{
    if (type == SHERD_BF16) {
        for (int i = 0; i < n; i++)
            out[i] = bf16_from_float(x[i]);
    } else {
        for (int i = 0; i < n; i++)
            out[i] = f16_from_float(x[i]);
    }
}

static void tile_half(void *out, const void *const *src, int ranks, int64_t from, int n,
    enum sherd_dtype type, enum sherd_reduce reduce)
{
    float acc[TILE], x[TILE];
    load_half(acc, (const uint16_t *)src[0] + from, n, type);
    for (int r = 1; r < ranks; r++) {
        load_half(x, (const uint16_t *)src[r] + from, n, type);
        fold_f32(acc, x, n, reduce);
    }
    store_half((uint16_t *)out + from, acc, n, type);
}

static void tile_whole(void *out, const void *const *src, int ranks, int64_t from, int n,
    enum sherd_dtype type, enum sherd_reduce reduce)
{
    union {
        float f32[TILE];
        double f64[TILE];
        int32_t i32[TILE];
        int64_t i64[TILE];
        uint8_t u8[TILE];
    } acc;
    size_t each = sherd_dtype_bytes(type), at = (size_t)from * each, bytes = (size_t)n * each;
    memcpy(&acc, (const char *)src[0] + at, bytes);
    for (int r = 1; r < ranks; r++) {
        const void *x = (const char *)src[r] + at;
        switch (type) {
        case SHERD_F32:
            fold_f32(acc.f32, x, n, reduce);
            break;
        case SHERD_F64:
            fold_f64(acc.f64, x, n, reduce);
            break;
        case SHERD_I32:
            fold_i32(acc.i32, x, n, reduce);
            break;
        case SHERD_I64:
            fold_i64(acc.i64, x, n, reduce);
            break;
        default:
            fold_u8(acc.u8, x, n, reduce);
            break;
        }
    }
    memcpy((char *)out + at, &acc, bytes);
}

void reduce_ranks(
    void *out, const void *const *src, int ranks, int64_t n, enum sherd_dtype type, enum sherd_reduce reduce)
{
    int half = type == SHERD_BF16 || type == SHERD_F16;
    for (int64_t from = 0; from < n; from += TILE) {
        int tile = (int)MIN(TILE, n - from);
        if (half)
            tile_half(out, src, ranks, from, tile, type, reduce);
        else
            tile_whole(out, src, ranks, from, tile, type, reduce);
    }
}
