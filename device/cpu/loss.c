/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Softmax cross entropy: a task is one row of logits. Exponentials are computed once and kept in the panel.
 */
#include <math.h>

#include "base/status.h"
#include "device/cpu/cpu.h"
#include "device/cpu/vec.h"

/* x[i] = e^(x[i] - max); returns their sum, in double over blocks summed in float. */
VEC_INLINE double exponentials(float *e, const float *x, float max, int64_t n)
{
    double total = 0;
    for (int64_t at = 0; at < n; at += VEC_BLOCK) {
        int64_t end = MIN(at + VEC_BLOCK, n);
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = at; i < end; i++) {
            float v = vec_exp(x[i] - max);
            e[i] = v;
            sum += v;
        }
        total += (double)sum;
    }
    return total;
}

CLONES static void loss_row_task(const void *ctx, int64_t row, void *panel)
{
    const struct sherd_loss *a = ctx;
    int64_t n = a->vocab, at = row * (a->pitch ? a->pitch : n), target = a->targets[row];
    double *losses = a->scratch;
    float *e = panel;
    losses[row] = 0;
    if (target < 0) {
        if (a->backward)
            memset((char *)a->logits + (size_t)at * sherd_dtype_bytes(a->type), 0,
                (size_t)n * sherd_dtype_bytes(a->type));
        return;
    }
    const float *x = vec_load(a->logits, at, n, a->type, e);
    float max = vec_max(x, n), x_target = x[target];
    double sum = exponentials(e, x, max, n);
    losses[row] = log(sum) + (double)max - (double)x_target;
    if (!a->backward)
        return;
    float scale = (float)(1.0 / (sum * *a->count));
    float *dx = vec_place(a->logits, at, a->type, e);
    float d_target = (float)(((double)e[target] / sum - 1.0) / *a->count);
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        dx[i] = e[i] * scale;
    dx[target] = d_target;
    vec_store(a->logits, at, n, a->type, dx);
}

static int check_targets(const struct sherd_loss *a)
{
    for (int64_t row = 0; row < a->rows; row++)
        if (a->targets[row] >= a->vocab)
            return SHERD_FAIL(SHERD_EINVAL,
                "loss: target %d at row %lld is outside the vocabulary of %lld: check that the data was made "
                "with this model's tokenizer",
                (int)a->targets[row], (long long)row, (long long)a->vocab);
    return SHERD_OK;
}

int cpu_loss(struct cpu_lane *lane, const void *args)
{
    const struct sherd_loss *a = args;
    SHERD_TRY(check_targets(a));
    SHERD_TRY(cpu_parallel(lane, loss_row_task, a, a->rows, (size_t)a->vocab * sizeof(float)));
    const double *losses = a->scratch;
    double sum = *a->sum;
    for (int64_t row = 0; row < a->rows; row++)
        if (a->targets[row] >= 0)
            sum += losses[row];
    *a->sum = sum;
    return SHERD_OK;
}
