/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Rotary positions: a task is one position of all sequences, so that its sines are computed once.
 */
#include <math.h>

#include "base/status.h"
#include "device/cpu/cpu.h"
#include "device/cpu/vec.h"

#define MAX_PAIRS (SHERD_MAX_HEAD_DIM / 2)

CLONES static void turn(
    void *x, int64_t at, int64_t pairs, const float *cosine, const float *sine, enum sherd_dtype type)
{
    float low_buf[MAX_PAIRS], high_buf[MAX_PAIRS];
    const float *low = vec_load(x, at, pairs, type, low_buf);
    const float *high = vec_load(x, at + pairs, pairs, type, high_buf);
    float *to_low = vec_place(x, at, type, low_buf), *to_high = vec_place(x, at + pairs, type, high_buf);
#pragma omp simd
    for (int64_t i = 0; i < pairs; i++) {
        float l = low[i], h = high[i];
        to_low[i] = l * cosine[i] - h * sine[i];
        to_high[i] = h * cosine[i] + l * sine[i];
    }
    vec_store(x, at, pairs, type, to_low);
    vec_store(x, at + pairs, pairs, type, to_high);
}

static void rope_task(const void *ctx, int64_t position, void *panel)
{
    const struct sherd_rope *a = ctx;
    int64_t pairs = a->head_dim / 2;
    float cosine[MAX_PAIRS], sine[MAX_PAIRS];
    (void)panel;
    for (int64_t i = 0; i < pairs; i++) {
        double angle = (double)position * (double)a->inv_freq[i];
        cosine[i] = (float)cos(angle);
        sine[i] = (float)(a->inverse ? -sin(angle) : sin(angle));
    }
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t head = 0; head < a->rotated; head++)
            turn(a->x, ((b * a->seq + position) * a->heads + head) * a->head_dim, pairs, cosine, sine,
                a->type);
}

int cpu_rope(struct cpu_lane *lane, const void *args)
{
    const struct sherd_rope *a = args;
    if (a->batch == 0 || a->rotated == 0)
        return SHERD_OK;
    return cpu_parallel(lane, rope_task, a, a->seq, 0);
}
