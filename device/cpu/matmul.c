/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Matrix products: c is cut into tiles by its sizes alone, each tile is the work of one thread and of
 * OpenBLAS with one thread. 16-bit operands are converted a panel at a time.
 */
#include "base/status.h"
#include "device/cpu/cpu.h"
#include "device/cpu/vec.h"

#define TILE_M 256
#define TILE_N 512
#define MIN_TILE 32
#define PANEL_K 512     /* of the inner dimension, where operands are converted */
#define WANTED_TILES 24 /* so that many threads have work of about the same size */
#define SMALL_FLOPS 4e6 /* of a tile that is not worth cutting */

struct tiling {
    const struct sherd_matmul *a;
    int64_t lda, ldc;
    int64_t m, n; /* of a tile */
    int64_t cols; /* tiles beside each other */
    int64_t k;    /* of a panel: all of it where nothing is converted */
    int64_t a_floats, b_floats, c_floats;
};

/* Tiles of about equal size, at most `most` long. */
static int64_t even(int64_t length, int64_t most)
{
    int64_t n = cpu_tasks(length, most);
    return MIN(round_up(cpu_tasks(length, n), 16), length);
}

static struct tiling cut(const struct sherd_matmul *a)
{
    int64_t m = TILE_M, n = TILE_N;
    while (cpu_tasks(a->m, m) * cpu_tasks(a->n, n) < WANTED_TILES &&
           2.0 * (double)MIN(m, a->m) * (double)MIN(n, a->n) * (double)a->k > SMALL_FLOPS) {
        int64_t *longer = MIN(m, a->m) > MIN(n, a->n) ? &m : &n;
        if (*longer <= MIN_TILE)
            break;
        *longer /= 2;
    }
    struct tiling t = { .a = a,
        .lda = a->a_pitch   ? a->a_pitch
               : a->trans_a ? a->m
                            : a->k,
        .ldc = a->c_pitch ? a->c_pitch : a->n,
        .m = even(a->m, m),
        .n = even(a->n, n) };
    int converts = a->type != SHERD_F32;
    t.cols = cpu_tasks(a->n, t.n);
    t.k = converts ? MIN(PANEL_K, a->k) : a->k;
    t.a_floats = converts ? round_up(t.m * t.k, 16) : 0;
    t.b_floats = converts ? round_up(t.k * t.n, 16) : 0;
    t.c_floats = a->c_type != SHERD_F32 ? t.m * t.n : 0;
    return t;
}

/* An operand's tile as the BLAS library takes it. */
struct operand {
    const float *data;
    int64_t ld;
};

/* Rows and columns as stored; converted into panel if need be. */
CLONES static struct operand operand(const void *p, int64_t row, int64_t col, int64_t rows, int64_t cols,
    int64_t ld, enum sherd_dtype type, float *panel)
{
    if (type == SHERD_F32)
        return (struct operand){ (const float *)p + row * ld + col, ld };
    for (int64_t i = 0; i < rows; i++)
        vec_load(p, (row + i) * ld + col, cols, type, panel + i * cols);
    return (struct operand){ panel, cols };
}

/* What the product is added to: c = bias + add. Returns the beta of the product: 0 if there is neither. */
CLONES static float begin(
    const struct tiling *t, int64_t row, int64_t col, int64_t m, int64_t n, float *c, int64_t ldc)
{
    const struct sherd_matmul *a = t->a;
    float from[VEC_BLOCK];
    if (!a->add && !a->bias)
        return 0.0f;
    for (int64_t i = 0; i < m; i++) {
        for (int64_t at = 0; at < n; at += VEC_BLOCK) {
            int64_t len = MIN(VEC_BLOCK, n - at);
            float *to = c + i * ldc + at;
            if (a->add) {
                const float *add = vec_load(a->add, (row + i) * t->ldc + col + at, len, a->c_type, from);
                if (to != add)
                    memcpy(to, add, (size_t)len * sizeof(*to));
            }
            if (!a->bias)
                continue;
            const float *bias = vec_load(a->bias, col + at, len, a->type, from);
            if (!a->add)
                memcpy(to, bias, (size_t)len * sizeof(*to));
            else
#pragma omp simd
                for (int64_t j = 0; j < len; j++)
                    to[j] += bias[j];
        }
    }
    return 1.0f;
}

CLONES static void end(
    const struct tiling *t, int64_t row, int64_t col, int64_t m, int64_t n, const float *c, int64_t ldc)
{
    const struct sherd_matmul *a = t->a;
    for (int64_t i = 0; a->c_type != SHERD_F32 && i < m; i++)
        vec_store(a->c, (row + i) * t->ldc + col, n, a->c_type, c + i * ldc);
}

static void tile_task(const void *ctx, int64_t task, void *panel)
{
    const struct tiling *t = ctx;
    const struct sherd_matmul *a = t->a;
    int64_t row = task / t->cols * t->m, col = task % t->cols * t->n;
    int64_t m = MIN(t->m, a->m - row), n = MIN(t->n, a->n - col);
    float *a_panel = panel, *b_panel = a_panel + t->a_floats, *c_panel = b_panel + t->b_floats;
    int direct = a->c_type == SHERD_F32;
    float *c = direct ? (float *)a->c + row * t->ldc + col : c_panel;
    int64_t ldc = direct ? t->ldc : n;
    float beta = begin(t, row, col, m, n, c, ldc);
    for (int64_t at = 0; at < a->k; at += t->k) {
        int64_t k = MIN(t->k, a->k - at);
        struct operand x = a->trans_a ? operand(a->a, at, row, k, m, t->lda, a->type, a_panel)
                                      : operand(a->a, row, at, m, k, t->lda, a->type, a_panel);
        struct operand y = a->trans_b ? operand(a->b, col, at, n, k, a->k, a->type, b_panel)
                                      : operand(a->b, at, col, k, n, a->n, a->type, b_panel);
        cpu_sgemm(a->trans_a, a->trans_b, m, n, k, 1.0f, x.data, x.ld, y.data, y.ld, beta, c, ldc);
        beta = 1.0f;
    }
    end(t, row, col, m, n, c, ldc);
}

int cpu_matmul(struct cpu_lane *lane, const void *args)
{
    const struct sherd_matmul *a = args;
    if (a->m == 0 || a->n == 0)
        return SHERD_OK;
    SHERD_TRY(cpu_blas_join(lane));
    struct tiling t = cut(a);
    size_t panel = (size_t)(t.a_floats + t.b_floats + t.c_floats) * sizeof(float);
    return cpu_parallel(lane, tile_task, &t, cpu_tasks(a->m, t.m) * t.cols, panel);
}
