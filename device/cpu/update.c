/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Optimizer updates and what stands before them: square sums, the clip factor, sums of ranks in order. The
 * updates stream once over their operands: they are as fast as the memory is.
 */
#include <math.h>

#include "base/rng.h"
#include "base/status.h"
#include "device/cpu/cpu.h"
#include "device/cpu/vec.h"
#include "device/scratch.h"

/* A weight as float: its master, or joined from its halves. */
VEC_INLINE float *weight_load(
    float *master, const void *param, const int16_t *low, int64_t at, int64_t n, float *buf)
{
    if (!low)
        return master + at;
    const bf16 *h = (const bf16 *)param + at;
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        buf[i] = bf16_join(h[i], low[at + i]);
    return buf;
}

VEC_INLINE void weight_store(
    void *param, enum sherd_dtype type, int16_t *low, int64_t at, int64_t n, const float *w)
{
    int16_t unused[VEC_BLOCK], *rest = low ? low + at : unused;
    if (!param)
        return;
    if (type == SHERD_F32) {
        memcpy((float *)param + at, w, (size_t)n * sizeof(*w));
        return;
    }
    if (type == SHERD_F16) {
        vec_store(param, at, n, type, w);
        return;
    }
    bf16 *h = (bf16 *)param + at;
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        h[i] = bf16_split(w[i], &rest[i]);
}

/* Where the bits for rounding at random come from. */
struct draws {
    uint64_t seed, stream, block;
    int64_t first;
};

/* A step has 2^32 blocks of four words, one word for an element. */
VEC_INLINE struct draws draws_of(uint64_t seed, uint64_t stream, int64_t step, int64_t first)
{
    return (struct draws){ seed, stream, (uint64_t)step << 32, first };
}

/* The words of elements [at, at + n); none are drawn for float. */
VEC_INLINE void draw(uint32_t *word, const struct draws *d, int64_t at, int64_t n, enum sherd_dtype type)
{
    if (type == SHERD_BF16)
        rng_words(word, n, d->seed, d->stream, d->block, d->first + at);
}

/* State of type BF16 from floats; `shift` says which half of a word decides. */
VEC_INLINE void state_store(void *state, int64_t at, int64_t n, enum sherd_dtype type, const float *from,
    const uint32_t *word, int shift)
{
    if (type == SHERD_F32)
        return;
    bf16 *h = (bf16 *)state + at;
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        h[i] = bf16_from_float_at_random(from[i], word[i] >> shift & 0xffffu);
}

/* AdamW with what does not depend on the element computed once. */
struct adamw {
    const struct sherd_adamw *a;
    float factor, rise1, rise2; /* rise: 1 - beta */
    float rate;                 /* lr / c1 */
    float root;                 /* 1 / sqrt(c2) */
    float keep;                 /* 1 - lr * weight_decay */
};

CLONES static void adamw_task(const void *ctx, int64_t task, void *panel)
{
    const struct adamw *s = ctx;
    const struct sherd_adamw *a = s->a;
    int64_t at = task * CPU_TASK_ELEMS, end = MIN(at + CPU_TASK_ELEMS, a->n);
    const float factor = s->factor, beta1 = a->beta1, beta2 = a->beta2, rise1 = s->rise1, rise2 = s->rise2;
    const float rate = s->rate, root = s->root, keep = s->keep, eps = a->eps;
    const struct draws draws = draws_of(a->seed, a->stream, a->rates ? a->rates->step : a->step, a->first);
    float from[VEC_BLOCK], w_buf[VEC_BLOCK], m_buf[VEC_BLOCK], v_buf[VEC_BLOCK];
    uint32_t word[VEC_BLOCK];
    (void)panel;
    for (; at < end; at += VEC_BLOCK) {
        int64_t n = MIN(VEC_BLOCK, end - at);
        const float *grad = vec_load(a->grad, at, n, a->grad_type, from);
        float *restrict w = weight_load(a->master, a->param, a->low, at, n, w_buf);
        float *restrict m = vec_place(a->m, at, a->state_type, m_buf);
        float *restrict v = vec_place(a->v, at, a->state_type, v_buf);
        vec_load(a->m, at, n, a->state_type, m_buf);
        vec_load(a->v, at, n, a->state_type, v_buf);
        draw(word, &draws, at, n, a->state_type);
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            float g = grad[i] * factor;
            float m1 = beta1 * m[i] + rise1 * g;
            float v1 = beta2 * v[i] + rise2 * (g * g);
            m[i] = m1;
            v[i] = v1;
            w[i] = keep * w[i] - rate * m1 / (sqrtf(v1) * root + eps);
        }
        state_store(a->m, at, n, a->state_type, m, word, 0);
        state_store(a->v, at, n, a->state_type, v, word, 16);
        weight_store(a->param, a->param_type, a->low, at, n, w);
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

CLONES static void sgd_task(const void *ctx, int64_t task, void *panel)
{
    const struct sherd_sgd *a = ctx;
    int64_t at = task * CPU_TASK_ELEMS, end = MIN(at + CPU_TASK_ELEMS, a->n);
    const float factor = *a->factor, decay = a->weight_decay, lr = a->rates ? a->rates->lr : a->lr;
    const float momentum = a->step == 1 ? 0.0f : a->momentum;
    const struct draws draws = draws_of(a->seed, a->stream, a->rates ? a->rates->step : a->step, a->first);
    float from[VEC_BLOCK], w_buf[VEC_BLOCK], m_buf[VEC_BLOCK];
    uint32_t word[VEC_BLOCK];
    (void)panel;
    for (; at < end; at += VEC_BLOCK) {
        int64_t n = MIN(VEC_BLOCK, end - at);
        const float *grad = vec_load(a->grad, at, n, a->grad_type, from);
        float *w = weight_load(a->master, a->param, a->low, at, n, w_buf);
        float *m = a->m ? vec_place(a->m, at, a->state_type, m_buf) : m_buf;
        if (momentum != 0) {
            vec_load(a->m, at, n, a->state_type, m_buf);
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
        if (a->m) {
            draw(word, &draws, at, n, a->state_type);
            state_store(a->m, at, n, a->state_type, m, word, 0);
        }
        weight_store(a->param, a->param_type, a->low, at, n, w);
    }
}

int cpu_sgd(struct cpu_lane *lane, const void *args)
{
    const struct sherd_sgd *a = args;
    if (a->n == 0 || isnan(*a->factor))
        return SHERD_OK;
    return cpu_parallel(lane, sgd_task, a, cpu_tasks(a->n, CPU_TASK_ELEMS), 0);
}

/* ---- a float as two halves ---- */

CLONES static void split_task(const void *ctx, int64_t task, void *panel)
{
    const struct sherd_split *a = ctx;
    int64_t at = task * CPU_TASK_ELEMS, end = MIN(at + CPU_TASK_ELEMS, a->n);
    (void)panel;
    for (; at < end; at += VEC_BLOCK)
        weight_store(a->param, SHERD_BF16, a->low, at, MIN(VEC_BLOCK, end - at), a->master + at);
}

int cpu_split(struct cpu_lane *lane, const void *args)
{
    const struct sherd_split *a = args;
    return cpu_parallel(lane, split_task, a, cpu_tasks(a->n, CPU_TASK_ELEMS), 0);
}

CLONES static void join_task(const void *ctx, int64_t task, void *panel)
{
    const struct sherd_join *a = ctx;
    int64_t at = task * CPU_TASK_ELEMS, end = MIN(at + CPU_TASK_ELEMS, a->n);
    const bf16 *h = a->param;
    (void)panel;
#pragma omp simd
    for (int64_t i = at; i < end; i++)
        a->master[i] = bf16_join(h[i], a->low ? a->low[i] : 0);
}

int cpu_join(struct cpu_lane *lane, const void *args)
{
    const struct sherd_join *a = args;
    return cpu_parallel(lane, join_task, a, cpu_tasks(a->n, CPU_TASK_ELEMS), 0);
}

/* ---- sums ---- */

CLONES static void square_task(const void *ctx, int64_t task, void *panel)
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
    double scale = a->scale ? *a->scale : 1.0, norm = sqrt(*a->square_sum) / scale, factor = 1.0;
    *a->norm = norm;
    if (!isfinite(norm) || (a->loss && !isfinite(*a->loss)))
        factor = (double)NAN;
    else if (a->max_norm > 0)
        factor = fmin(1.0, (double)a->max_norm / (norm + 1e-6));
    *a->factor = (float)(factor / scale);
    return SHERD_OK;
}
