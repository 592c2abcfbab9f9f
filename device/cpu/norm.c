/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * LayerNorm and RMSNorm. Rows are independent; dw and db are summed over fixed blocks of rows, then over the
 * blocks.
 */
#include <math.h>

#include "base/status.h"
#include "device/cpu/cpu.h"
#include "device/cpu/vec.h"
#include "device/scratch.h"

VEC_INLINE float square_deviation(const float *x, float mean, int64_t n)
{
    float total = 0;
    for (int64_t at = 0; at < n; at += VEC_BLOCK) {
        int64_t end = MIN(at + VEC_BLOCK, n);
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = at; i < end; i++)
            sum += (x[i] - mean) * (x[i] - mean);
        total += sum;
    }
    return total;
}

/* Elements before a row. */
VEC_INLINE int64_t row_start(int64_t row, int64_t cols, int64_t run, int64_t pitch)
{
    return run ? row / run * pitch + row % run * cols : row * cols;
}

/* One row; y may be x. */
VEC_INLINE void normed_row(
    float *y, const float *x, const float *w, const float *b, float mean, float rstd, int64_t n)
{
    if (b) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            y[i] = (x[i] - mean) * rstd * w[i] + b[i];
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            y[i] = (x[i] - mean) * rstd * w[i];
    }
}

CLONES static void norm_forward_task(const void *ctx, int64_t task, void *panel)
{
    const struct sherd_norm_forward *a = ctx;
    int64_t n = a->cols, rows = cpu_task_rows(n);
    int64_t first = task * rows, last = MIN(first + rows, a->rows);
    float *x_buf = panel, *w_buf = x_buf + n, *b_buf = w_buf + n;
    const float *w = vec_load(a->w, 0, n, a->type, w_buf);
    const float *b = a->b && a->kind == SHERD_LAYER_NORM ? vec_load(a->b, 0, n, a->type, b_buf) : NULL;
    for (int64_t row = first; row < last; row++) {
        int64_t at = row_start(row, n, a->run, a->pitch);
        const float *x = vec_load(a->x, at, n, a->type, x_buf);
        float *y = vec_place(a->y, at, a->type, x_buf);
        float mean = a->kind == SHERD_LAYER_NORM ? vec_sum(x, n) / (float)n : 0.0f;
        float rstd = 1.0f / sqrtf(square_deviation(x, mean, n) / (float)n + a->eps);
        normed_row(y, x, w, b, mean, rstd, n);
        vec_store(a->y, at, n, a->type, y);
        if (a->kind == SHERD_LAYER_NORM)
            a->mean[row] = mean;
        a->rstd[row] = rstd;
    }
}

int cpu_norm_forward(struct cpu_lane *lane, const void *args)
{
    const struct sherd_norm_forward *a = args;
    if (a->rows == 0 || a->cols == 0)
        return SHERD_OK;
    size_t panel = a->type == SHERD_F32 ? 0 : 3 * (size_t)a->cols * sizeof(float);
    return cpu_parallel(lane, norm_forward_task, a, cpu_tasks(a->rows, cpu_task_rows(a->cols)), panel);
}

/* One row. With g = dy w and xhat = (x - mean) rstd: dx = rstd (g - mean(g) - xhat mean(g xhat)) + add, where
 * RMSNorm has no mean(g). dw += dy xhat, db += dy where they are not NULL. */
VEC_INLINE void backward_row(const struct sherd_norm_backward *a, const float *dy, const float *x,
    const float *w, const float *add, float *dx, float mean, float rstd, float *dw, float *db)
{
    int64_t n = a->cols;
    float sum = 0, dot = 0;
#pragma omp simd reduction(+ : sum, dot)
    for (int64_t i = 0; i < n; i++) {
        float g = dy[i] * w[i];
        sum += g;
        dot += g * ((x[i] - mean) * rstd);
    }
    float c1 = a->kind == SHERD_LAYER_NORM ? sum / (float)n : 0.0f, c2 = dot / (float)n;
    if (dw) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            dw[i] += dy[i] * ((x[i] - mean) * rstd);
    }
    if (db) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            db[i] += dy[i];
    }
    if (add) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            dx[i] = rstd * (dy[i] * w[i] - c1 - (x[i] - mean) * rstd * c2) + add[i];
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            dx[i] = rstd * (dy[i] * w[i] - c1 - (x[i] - mean) * rstd * c2);
    }
}

CLONES static void norm_backward_task(const void *ctx, int64_t task, void *panel)
{
    const struct sherd_norm_backward *a = ctx;
    int64_t n = a->cols, block = scratch_block_rows(a->rows);
    int64_t first = task * block, last = MIN(first + block, a->rows);
    float *dy_buf = panel, *x_buf = dy_buf + n, *w_buf = x_buf + n, *add_buf = w_buf + n,
          *b_buf = add_buf + n;
    float *partial = a->dw || a->db ? (float *)a->scratch + 2 * task * n : NULL;
    if (partial)
        memset(partial, 0, 2 * (size_t)n * sizeof(float));
    float *dw = a->dw ? partial : NULL, *db = a->db ? partial + n : NULL;
    const float *w = vec_load(a->w, 0, n, a->type, w_buf);
    const float *b = a->b && a->kind == SHERD_LAYER_NORM ? vec_load(a->b, 0, n, a->type, b_buf) : NULL;
    for (int64_t row = first; row < last; row++) {
        int64_t at = row_start(row, n, a->run, a->pitch);
        const float *dy = vec_load(a->dy, at, n, a->type, dy_buf);
        const float *x = vec_load(a->x, at, n, a->type, x_buf);
        const float *add = a->add ? vec_load(a->add, at, n, a->type, add_buf) : NULL;
        float *dx = vec_place(a->dx, at, a->type, dy_buf);
        float mean = a->kind == SHERD_LAYER_NORM ? a->mean[row] : 0.0f, rstd = a->rstd[row];
        backward_row(a, dy, x, w, add, dx, mean, rstd, dw, db);
        vec_store(a->dx, at, n, a->type, dx);
        if (!a->y)
            continue;
        float *y = vec_place(a->y, at, a->type, x_buf); /* may be dy, which has been read */
        normed_row(y, x, w, b, mean, rstd, n);
        vec_store(a->y, at, n, a->type, y);
    }
}

int cpu_norm_backward(struct cpu_lane *lane, const void *args)
{
    const struct sherd_norm_backward *a = args;
    if (a->rows == 0 || a->cols == 0)
        return SHERD_OK;
    int64_t blocks = scratch_row_blocks(a->rows), n = a->cols;
    size_t panel = a->type == SHERD_F32 ? 0 : 5 * (size_t)n * sizeof(float);
    SHERD_TRY(cpu_parallel(lane, norm_backward_task, a, blocks, panel));
    const float *partial = a->scratch;
    if (a->dw)
        SHERD_TRY(cpu_add_partials(lane, a->dw, a->grad_type, partial, blocks, 2 * n, n, a->overwrite_dw));
    if (a->db)
        SHERD_TRY(
            cpu_add_partials(lane, a->db, a->grad_type, partial + n, blocks, 2 * n, n, a->overwrite_db));
    return SHERD_OK;
}
