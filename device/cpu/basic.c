/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Moving, converting and adding elements, and sums over rows.
 */
#include "base/status.h"
#include "device/cpu/cpu.h"
#include "device/cpu/vec.h"
#include "device/scratch.h"

#define COPY_BYTES ((size_t)256 << 10) /* of one task */

static void copy_task(const void *ctx, int64_t task, void *panel)
{
    const struct sherd_copy *a = ctx;
    size_t at = (size_t)task * COPY_BYTES;
    (void)panel;
    memcpy((char *)a->dst + at, (const char *)a->src + at, MIN(COPY_BYTES, a->bytes - at));
}

static int64_t pieces_of_task(const struct sherd_copy *a)
{
    return (int64_t)MAX(COPY_BYTES / a->bytes, 1);
}

static void copy_pieces_task(const void *ctx, int64_t task, void *panel)
{
    const struct sherd_copy *a = ctx;
    int64_t each = pieces_of_task(a), first = task * each, last = MIN(first + each, a->rows);
    (void)panel;
    for (int64_t row = first; row < last; row++)
        memcpy(
            (char *)a->dst + (size_t)row * a->pitch, (const char *)a->src + (size_t)row * a->pitch, a->bytes);
}

int cpu_copy(struct cpu_lane *lane, const void *args)
{
    const struct sherd_copy *a = args;
    if (a->dst == a->src || a->bytes == 0)
        return SHERD_OK;
    if (a->rows > 1)
        return cpu_parallel(lane, copy_pieces_task, a, cpu_tasks(a->rows, pieces_of_task(a)), 0);
    return cpu_parallel(lane, copy_task, a, (int64_t)((a->bytes + COPY_BYTES - 1) / COPY_BYTES), 0);
}

static void fill_task(const void *ctx, int64_t task, void *panel)
{
    const struct sherd_fill *a = ctx;
    size_t at = (size_t)task * COPY_BYTES;
    (void)panel;
    memset((char *)a->dst + at, a->byte, MIN(COPY_BYTES, a->bytes - at));
}

int cpu_fill(struct cpu_lane *lane, const void *args)
{
    const struct sherd_fill *a = args;
    return cpu_parallel(lane, fill_task, a, (int64_t)((a->bytes + COPY_BYTES - 1) / COPY_BYTES), 0);
}

CLONES static void cast_task(const void *ctx, int64_t task, void *panel)
{
    const struct sherd_cast *a = ctx;
    int64_t at = task * CPU_TASK_ELEMS, end = MIN(at + CPU_TASK_ELEMS, a->n);
    float from[VEC_BLOCK];
    (void)panel;
    for (; at < end; at += VEC_BLOCK) {
        int64_t n = MIN(VEC_BLOCK, end - at);
        const float *x = vec_load(a->x, at, n, a->x_type, from);
        if (a->y_type == SHERD_F32)
            memcpy((float *)a->y + at, x, (size_t)n * sizeof(*x));
        else
            vec_store(a->y, at, n, a->y_type, x);
    }
}

int cpu_cast(struct cpu_lane *lane, const void *args)
{
    const struct sherd_cast *a = args;
    return cpu_parallel(lane, cast_task, a, cpu_tasks(a->n, CPU_TASK_ELEMS), 0);
}

CLONES static void add_task(const void *ctx, int64_t task, void *panel)
{
    const struct sherd_add *args = ctx;
    int64_t at = task * CPU_TASK_ELEMS, end = MIN(at + CPU_TASK_ELEMS, args->n);
    float from_a[VEC_BLOCK], from_b[VEC_BLOCK];
    (void)panel;
    for (; at < end; at += VEC_BLOCK) {
        int64_t n = MIN(VEC_BLOCK, end - at);
        const float *a = vec_load(args->a, at, n, args->type, from_a);
        const float *b = vec_load(args->b, at, n, args->type, from_b);
        float *y = vec_place(args->y, at, args->type, from_a);
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            y[i] = a[i] + b[i];
        vec_store(args->y, at, n, args->type, y);
    }
}

int cpu_add(struct cpu_lane *lane, const void *args)
{
    const struct sherd_add *a = args;
    return cpu_parallel(lane, add_task, a, cpu_tasks(a->n, CPU_TASK_ELEMS), 0);
}

CLONES static void accumulate_task(const void *ctx, int64_t task, void *panel)
{
    const struct sherd_accumulate *a = ctx;
    int64_t at = task * CPU_TASK_ELEMS, end = MIN(at + CPU_TASK_ELEMS, a->n);
    float from[VEC_BLOCK];
    (void)panel;
    for (; at < end; at += VEC_BLOCK) {
        int64_t n = MIN(VEC_BLOCK, end - at);
        const float *src = vec_load(a->src, at, n, a->src_type, from);
        float *dst = a->dst + at;
        if (a->overwrite) {
            memcpy(dst, src, (size_t)n * sizeof(*dst));
            continue;
        }
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            dst[i] += src[i];
    }
}

int cpu_accumulate(struct cpu_lane *lane, const void *args)
{
    const struct sherd_accumulate *a = args;
    return cpu_parallel(lane, accumulate_task, a, cpu_tasks(a->n, CPU_TASK_ELEMS), 0);
}

/* ---- sums over rows ---- */

struct partials {
    void *out;
    enum sherd_dtype type;
    const float *partial;
    int64_t blocks, stride, cols;
    int overwrite;
};

CLONES static void partials_task(const void *ctx, int64_t task, void *panel)
{
    const struct partials *p = ctx;
    int64_t at = task * VEC_BLOCK, n = MIN(VEC_BLOCK, p->cols - at);
    float sum[VEC_BLOCK] = { 0 }, old[VEC_BLOCK];
    (void)panel;
    for (int64_t block = 0; block < p->blocks; block++) {
        const float *partial = p->partial + block * p->stride + at;
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            sum[i] += partial[i];
    }
    if (!p->overwrite) {
        const float *from = vec_load(p->out, at, n, p->type, old);
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            sum[i] += from[i];
    }
    float *to = vec_place(p->out, at, p->type, old);
    memcpy(to, sum, (size_t)n * sizeof(*to));
    vec_store(p->out, at, n, p->type, to);
}

int cpu_add_partials(struct cpu_lane *lane, void *out, enum sherd_dtype type, const float *partial,
    int64_t blocks, int64_t stride, int64_t cols, int overwrite)
{
    struct partials p = { out, type, partial, blocks, stride, cols, overwrite };
    return cpu_parallel(lane, partials_task, &p, cpu_tasks(cols, VEC_BLOCK), 0);
}

CLONES static void bias_task(const void *ctx, int64_t task, void *panel)
{
    const struct sherd_bias_backward *a = ctx;
    int64_t block = scratch_block_rows(a->rows);
    int64_t first = task * block, end = MIN(first + block, a->rows);
    float *sum = (float *)a->scratch + task * a->cols;
    memset(sum, 0, (size_t)a->cols * sizeof(*sum));
    for (int64_t row = first; row < end; row++) {
        const float *dy = vec_load(a->dy, row * a->cols, a->cols, a->type, panel);
#pragma omp simd
        for (int64_t i = 0; i < a->cols; i++)
            sum[i] += dy[i];
    }
}

int cpu_bias_backward(struct cpu_lane *lane, const void *args)
{
    const struct sherd_bias_backward *a = args;
    int64_t blocks = scratch_row_blocks(a->rows);
    size_t panel = a->type == SHERD_F32 ? 0 : (size_t)a->cols * sizeof(float);
    if (a->rows == 0 || a->cols == 0)
        return SHERD_OK;
    SHERD_TRY(cpu_parallel(lane, bias_task, a, blocks, panel));
    return cpu_add_partials(lane, a->db, a->grad_type, a->scratch, blocks, a->cols, a->cols, a->overwrite);
}
