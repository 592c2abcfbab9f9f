/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Optimizer updates and what stands before them: square sums, the clip factor, sums of ranks in order. The
 * updates stream once over their operands: they are as fast as the memory is.
 */
#include <math.h>

#include "base/status.h"
#include "device/cpu/cpu.h"
#include "device/cpu/vec.h"
#include "device/scratch.h"

/* AdamW with what does not depend on the element computed once. */
struct adamw {
    const struct sherd_adamw *a;
    float factor, rise1, rise2; /* rise: 1 - beta */
    float rate;                 /* lr / c1 */
    float root;                 /* 1 / sqrt(c2) */
    float keep;                 /* 1 - lr * weight_decay */
};

VEC_CLONES static void adamw_task(const void *ctx, int64_t task, void *panel)
{
    const struct adamw *s = ctx;
    const struct sherd_adamw *a = s->a;
    int64_t at = task * CPU_TASK_ELEMS, end = MIN(at + CPU_TASK_ELEMS, a->n);
    const float factor = s->factor, beta1 = a->beta1, beta2 = a->beta2, rise1 = s->rise1, rise2 = s->rise2;
    const float rate = s->rate, root = s->root, keep = s->keep, eps = a->eps;
    float from[VEC_BLOCK];
    (void)panel;
    for (; at < end; at += VEC_BLOCK) {
        int64_t n = MIN(VEC_BLOCK, end - at);
        const float *grad = vec_load(a->grad, at, n, a->grad_type, from);
        float *restrict w = a->master + at, *restrict m = a->m + at, *restrict v = a->v + at;
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            float g = grad[i] * factor;
            float m1 = beta1 * m[i] + rise1 * g;
            float v1 = beta2 * v[i] + rise2 * (g * g);
            m[i] = m1;
            v[i] = v1;
            w[i] = keep * w[i] - rate * m1 / (sqrtf(v1) * root + eps);
        }
        if (!a->param)
            continue;
        if (a->param_type == SHERD_F32)
            memcpy((float *)a->param + at, w, (size_t)n * sizeof(*w));
        else
            vec_store(a->param, at, n, a->param_type, w);
    }
}

int cpu_adamw(struct cpu_lane *lane, const void *args)
{
    const struct sherd_adamw *a = args;
    if (a->n == 0 || isnan(*a->factor))
        return SHERD_OK;
    double step = (double)a->step, beta1 = (double)a->beta1, beta2 = (double)a->beta2;
    struct adamw s = { .a = a, .factor = *a->factor };
    s.rise1 = (float)(1.0 - beta1);
    s.rise2 = (float)(1.0 - beta2);
    s.rate = (float)((double)a->lr / (1.0 - pow(beta1, step)));
    s.root = (float)(1.0 / sqrt(1.0 - pow(beta2, step)));
    s.keep = (float)(1.0 - (double)(a->rates ? a->rates->lr : a->lr) * (double)a->weight_decay);
    if (a->rates) {
        s.rate = a->rates->rate;
        s.root = a->rates->root;
    }
    return cpu_parallel(lane, adamw_task, &s, cpu_tasks(a->n, CPU_TASK_ELEMS), 0);
}

VEC_CLONES static void sgd_task(const void *ctx, int64_t task, void *panel)
{
    const struct sherd_sgd *a = ctx;
    int64_t at = task * CPU_TASK_ELEMS, end = MIN(at + CPU_TASK_ELEMS, a->n);
    const float factor = *a->factor, decay = a->weight_decay, lr = a->rates ? a->rates->lr : a->lr;
    const float momentum = a->step == 1 ? 0.0f : a->momentum;
    float from[VEC_BLOCK], move[VEC_BLOCK];
    (void)panel;
    for (; at < end; at += VEC_BLOCK) {
        int64_t n = MIN(VEC_BLOCK, end - at);
        const float *grad = vec_load(a->grad, at, n, a->grad_type, from);
        float *w = a->master + at, *m = a->m ? a->m + at : move;
        if (momentum != 0) {
#pragma omp simd
            for (int64_t i = 0; i < n; i++)
                m[i] = momentum * m[i] + (grad[i] * factor + decay * w[i]);
        } else {
#pragma omp simd
            for (int64_t i = 0; i < n; i++)
                m[i] = grad[i] * factor + decay * w[i];
        }
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            w[i] -= lr * m[i];
        if (!a->param)
            continue;
        if (a->param_type == SHERD_F32)
            memcpy((float *)a->param + at, w, (size_t)n * sizeof(*w));
        else
            vec_store(a->param, at, n, a->param_type, w);
    }
}

int cpu_sgd(struct cpu_lane *lane, const void *args)
{
    const struct sherd_sgd *a = args;
    if (a->n == 0 || isnan(*a->factor))
        return SHERD_OK;
    return cpu_parallel(lane, sgd_task, a, cpu_tasks(a->n, CPU_TASK_ELEMS), 0);
}

/* ---- sums ---- */

VEC_CLONES static void square_task(const void *ctx, int64_t task, void *panel)
{
    const struct sherd_square_sum *a = ctx;
    int64_t at = task * SCRATCH_SUM_ELEMS, end = MIN(at + SCRATCH_SUM_ELEMS, a->n);
    float buf[VEC_BLOCK];
    double sum = 0;
    (void)panel;
    for (; at < end; at += VEC_BLOCK) {
        int64_t n = MIN(VEC_BLOCK, end - at);
        const float *x = vec_load(a->x, at, n, a->type, buf);
        double part = 0;
#pragma omp simd reduction(+ : part)
        for (int64_t i = 0; i < n; i++)
            part += (double)x[i] * (double)x[i];
        sum += part;
    }
    ((double *)a->scratch)[task] = sum;
}

int cpu_square_sum(struct cpu_lane *lane, const void *args)
{
    const struct sherd_square_sum *a = args;
    int64_t blocks = scratch_sum_blocks(a->n);
    SHERD_TRY(cpu_parallel(lane, square_task, a, blocks, 0));
    const double *part = a->scratch;
    double sum = 0;
    for (int64_t i = 0; i < blocks; i++)
        sum += part[i];
    *a->sum += sum;
    return SHERD_OK;
}

int cpu_ordered_sum(struct cpu_lane *lane, const void *args)
{
    const struct sherd_ordered_sum *a = args;
    (void)lane;
    for (int64_t j = 0; j < a->cols; j++) {
        double sum = 0;
        for (int64_t i = 0; i < a->n; i++)
            sum += a->in[i * a->stride + j];
        a->out[j] = sum;
    }
    return SHERD_OK;
}

int cpu_clip_factor(struct cpu_lane *lane, const void *args)
{
    const struct sherd_clip_factor *a = args;
    (void)lane;
    double norm = sqrt(*a->square_sum);
    *a->norm = norm;
    if (!isfinite(norm))
        *a->factor = NAN;
    else if (a->max_norm > 0)
        *a->factor = (float)fmin(1.0, (double)a->max_norm / (norm + 1e-6));
    else
        *a->factor = 1.0f;
    return SHERD_OK;
}
