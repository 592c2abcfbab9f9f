/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Activations. 0.5 (1 + tanh u) is the sigmoid of 2u, so GELU needs one exponential and no tanh. Where a
 * backward writes y as well it is by forward's own expression, for forward's bits.
 */
#include "base/status.h"
#include "device/cpu/cpu.h"
#include "device/cpu/vec.h"

#define GELU_A 1.5957691216057308f  /* 2 sqrt(2/pi) */
#define GELU_B 0.07135481282636855f /* 0.044715 times that */

/* gelu(x) / x */
VEC_INLINE float gelu_part(float x)
{
    return vec_sigmoid(x * (GELU_A + GELU_B * x * x));
}

CLONES static void gelu_forward_task(const void *ctx, int64_t task, void *panel)
{
    const struct sherd_gelu_forward *a = ctx;
    int64_t at = task * CPU_TASK_ELEMS, end = MIN(at + CPU_TASK_ELEMS, a->n);
    float buf[VEC_BLOCK];
    (void)panel;
    for (; at < end; at += VEC_BLOCK) {
        int64_t n = MIN(VEC_BLOCK, end - at);
        const float *x = vec_load(a->x, at, n, a->type, buf);
        float *y = vec_place(a->y, at, a->type, buf);
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            y[i] = x[i] * gelu_part(x[i]);
        vec_store(a->y, at, n, a->type, y);
    }
}

int cpu_gelu_forward(struct cpu_lane *lane, const void *args)
{
    const struct sherd_gelu_forward *a = args;
    return cpu_parallel(lane, gelu_forward_task, a, cpu_tasks(a->n, CPU_TASK_ELEMS), 0);
}

CLONES static void gelu_backward_task(const void *ctx, int64_t task, void *panel)
{
    const struct sherd_gelu_backward *a = ctx;
    int64_t at = task * CPU_TASK_ELEMS, end = MIN(at + CPU_TASK_ELEMS, a->n);
    float buf[VEC_BLOCK], dbuf[VEC_BLOCK];
    (void)panel;
    for (; at < end; at += VEC_BLOCK) {
        int64_t n = MIN(VEC_BLOCK, end - at);
        const float *x = vec_load(a->x, at, n, a->type, buf);
        const float *dy = vec_load(a->dy, at, n, a->type, dbuf);
        float *dx = vec_place(a->dx, at, a->type, dbuf);
        float *y = a->y ? vec_place(a->y, at, a->type, buf) : buf;
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            float v = x[i], d = dy[i], s = gelu_part(v);
            dx[i] = d * (s + v * s * (1.0f - s) * (GELU_A + 3.0f * GELU_B * v * v));
            y[i] = v * s;
        }
        vec_store(a->dx, at, n, a->type, dx);
        if (a->y)
            vec_store(a->y, at, n, a->type, y);
    }
}

int cpu_gelu_backward(struct cpu_lane *lane, const void *args)
{
    const struct sherd_gelu_backward *a = args;
    return cpu_parallel(lane, gelu_backward_task, a, cpu_tasks(a->n, CPU_TASK_ELEMS), 0);
}

CLONES static void swiglu_forward_task(const void *ctx, int64_t task, void *panel)
{
    const struct sherd_swiglu_forward *a = ctx;
    int64_t rows = cpu_task_rows(a->cols), first = task * rows, last = MIN(first + rows, a->rows);
    float gate_buf[VEC_BLOCK], up_buf[VEC_BLOCK];
    (void)panel;
    for (int64_t row = first; row < last; row++) {
        for (int64_t at = 0; at < a->cols; at += VEC_BLOCK) {
            int64_t n = MIN(VEC_BLOCK, a->cols - at);
            const float *gate = vec_load(a->x, 2 * row * a->cols + at, n, a->type, gate_buf);
            const float *up = vec_load(a->x, (2 * row + 1) * a->cols + at, n, a->type, up_buf);
            float *y = vec_place(a->y, row * a->cols + at, a->type, gate_buf);
#pragma omp simd
            for (int64_t i = 0; i < n; i++)
                y[i] = gate[i] * vec_sigmoid(gate[i]) * up[i];
            vec_store(a->y, row * a->cols + at, n, a->type, y);
        }
    }
}

int cpu_swiglu_forward(struct cpu_lane *lane, const void *args)
{
    const struct sherd_swiglu_forward *a = args;
    if (a->rows == 0 || a->cols == 0)
        return SHERD_OK;
    return cpu_parallel(lane, swiglu_forward_task, a, cpu_tasks(a->rows, cpu_task_rows(a->cols)), 0);
}

/* d silu(g) / dg = s (1 + g (1 - s)) with s = sigmoid(g). */
CLONES static void swiglu_backward_task(const void *ctx, int64_t task, void *panel)
{
    const struct sherd_swiglu_backward *a = ctx;
    int64_t rows = cpu_task_rows(a->cols), first = task * rows, last = MIN(first + rows, a->rows);
    float gate_buf[VEC_BLOCK], up_buf[VEC_BLOCK], dy_buf[VEC_BLOCK];
    (void)panel;
    for (int64_t row = first; row < last; row++) {
        for (int64_t at = 0; at < a->cols; at += VEC_BLOCK) {
            int64_t n = MIN(VEC_BLOCK, a->cols - at);
            int64_t gate_at = 2 * row * a->cols + at, up_at = gate_at + a->cols;
            const float *gate = vec_load(a->x, gate_at, n, a->type, gate_buf);
            const float *up = vec_load(a->x, up_at, n, a->type, up_buf);
            const float *dy = vec_load(a->dy, row * a->cols + at, n, a->type, dy_buf);
            float *dgate = vec_place(a->dx, gate_at, a->type, gate_buf);
            float *dup = vec_place(a->dx, up_at, a->type, up_buf);
            float *y = a->y ? vec_place(a->y, row * a->cols + at, a->type, dy_buf) : dy_buf;
#pragma omp simd
            for (int64_t i = 0; i < n; i++) {
                float g = gate[i], u = up[i], d = dy[i], s = vec_sigmoid(g);
                dgate[i] = d * u * s * (1.0f + g * (1.0f - s));
                dup[i] = d * g * s;
                y[i] = g * s * u;
            }
            vec_store(a->dx, gate_at, n, a->type, dgate);
            vec_store(a->dx, up_at, n, a->type, dup);
            if (a->y)
                vec_store(a->y, row * a->cols + at, n, a->type, y);
        }
    }
}

int cpu_swiglu_backward(struct cpu_lane *lane, const void *args)
{
    const struct sherd_swiglu_backward *a = args;
    if (a->rows == 0 || a->cols == 0)
        return SHERD_OK;
    return cpu_parallel(lane, swiglu_backward_task, a, cpu_tasks(a->rows, cpu_task_rows(a->cols)), 0);
}
