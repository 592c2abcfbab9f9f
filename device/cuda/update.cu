/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What an optimizer needs: one pass over parameters and states, square sums in a fixed order, the clip
 * factor.
 */
#include <math.h>

#include "device/cuda/util.cuh"
#include "device/scratch.h"

#define SUM_THREADS 1024

/* What does not depend on the element, as the CPU has it. */
struct adamw_step {
    float beta1, beta2, rise1, rise2; /* rise: 1 - beta */
    float rate;                       /* lr / c1 */
    float root;                       /* 1 / sqrt(c2) */
    float keep;                       /* 1 - lr * weight_decay */
    float eps, weight_decay;
};

template <typename P, typename G, int W>
__global__ void adamw_kernel(P *param, float *master, float *m, float *v, const G *grad, const float *factor,
    const struct sherd_rates *rates, int64_t n, struct adamw_step s)
{
    int64_t i;
    int k = my_span<W>(n, &i);
    float f = *factor;
    if (k == 0 || isnan(f))
        return;
    if (rates) {
        s.rate = rates->rate;
        s.root = rates->root;
        s.keep = (float)(1.0 - (double)rates->lr * (double)s.weight_decay);
    }
    float g[W], w[W], a[W], b[W];
    load<W>(g, grad + i, k);
    load<W>(w, master + i, k);
    load<W>(a, m + i, k);
    load<W>(b, v + i, k);
#pragma unroll
    for (int j = 0; j < W; j++) {
        g[j] *= f;
        a[j] = s.beta1 * a[j] + s.rise1 * g[j];
        b[j] = s.beta2 * b[j] + s.rise2 * (g[j] * g[j]);
        w[j] = s.keep * w[j] - s.rate * a[j] / (sqrtf(b[j]) * s.root + s.eps);
    }
    store<W>(master + i, w, k);
    store<W>(m + i, a, k);
    store<W>(v + i, b, k);
    if (param)
        store<W>(param + i, w, k);
}

extern "C" int cuda_adamw(struct sherd_queue *queue, const void *args)
{
    const struct sherd_adamw *a = (const struct sherd_adamw *)args;
    cudaStream_t stream = cuda_enter(queue);
    enum sherd_dtype param_type = a->param ? a->param_type : SHERD_F32;
    double step = (double)a->step, beta1 = (double)a->beta1, beta2 = (double)a->beta2;
    struct adamw_step s;
    if (a->n == 0)
        return SHERD_OK;
    s.beta1 = a->beta1;
    s.beta2 = a->beta2;
    s.rise1 = (float)(1.0 - beta1);
    s.rise2 = (float)(1.0 - beta2);
    s.rate = (float)((double)a->lr / (1.0 - pow(beta1, step)));
    s.root = (float)(1.0 / sqrt(1.0 - pow(beta2, step)));
    s.keep = (float)(1.0 - (double)a->lr * (double)a->weight_decay);
    s.eps = a->eps;
    s.weight_decay = a->weight_decay;
    int wide = aligned16(a->param) && aligned16(a->master) && aligned16(a->m) && aligned16(a->v) &&
               aligned16(a->grad);
    WITH_TYPE("adamw", param_type, P, WITH_TYPE("adamw", a->grad_type, G, WITH_WIDTH(wide, {
        adamw_kernel<P, G, W><<<blocks_for(a->n, THREADS * W), THREADS, 0, stream>>>(
            (P *)a->param, a->master, a->m, a->v, (const G *)a->grad, a->factor, a->rates, a->n, s);
    })))
    return CUDA_LAUNCHED("adamw");
}

template <typename P, typename G, int W>
__global__ void sgd_kernel(P *param, float *master, float *m, const G *grad, const float *factor,
    const struct sherd_rates *rates, int64_t n, float lr, float momentum, float weight_decay)
{
    int64_t i;
    int k = my_span<W>(n, &i);
    float f = *factor;
    if (k == 0 || isnan(f))
        return;
    float g[W], w[W], a[W];
    load<W>(g, grad + i, k);
    load<W>(w, master + i, k);
    load<W>(a, m + i, momentum != 0 ? k : 0);
    lr = rates ? rates->lr : lr;
#pragma unroll
    for (int j = 0; j < W; j++) {
        a[j] = momentum * a[j] + (g[j] * f + weight_decay * w[j]);
        w[j] -= lr * a[j];
    }
    store<W>(master + i, w, k);
    if (m)
        store<W>(m + i, a, k);
    if (param)
        store<W>(param + i, w, k);
}

extern "C" int cuda_sgd(struct sherd_queue *queue, const void *args)
{
    const struct sherd_sgd *a = (const struct sherd_sgd *)args;
    cudaStream_t stream = cuda_enter(queue);
    enum sherd_dtype param_type = a->param ? a->param_type : SHERD_F32;
    float *m = a->m, momentum = a->step == 1 ? 0.0f : a->momentum; /* momentum 0: m is not read */
    if (a->n == 0)
        return SHERD_OK;
    int wide = aligned16(a->param) && aligned16(a->master) && aligned16(m) && aligned16(a->grad);
    WITH_TYPE("sgd", param_type, P, WITH_TYPE("sgd", a->grad_type, G, WITH_WIDTH(wide, {
        sgd_kernel<P, G, W><<<blocks_for(a->n, THREADS * W), THREADS, 0, stream>>>((P *)a->param, a->master,
            m, (const G *)a->grad, a->factor, a->rates, a->n, a->lr, momentum, a->weight_decay);
    })))
    return CUDA_LAUNCHED("sgd");
}

/* ---- sums in double ---- */

/* parts[block] = the square sum of the block's SCRATCH_SUM_ELEMS elements. */
template <typename T, int W>
__global__ void __launch_bounds__(SUM_THREADS) square_parts_kernel(double *parts, const T *x, int64_t n)
{
    int64_t first = (int64_t)blockIdx.x * SCRATCH_SUM_ELEMS;
    int64_t last = first + SCRATCH_SUM_ELEMS < n ? first + SCRATCH_SUM_ELEMS : n;
    double sum = 0;
    for (int64_t i = first + (int64_t)threadIdx.x * W; i < last; i += SUM_THREADS * W) {
        float v[W];
        load<W>(v, x + i, last - i < W ? (int)(last - i) : W);
#pragma unroll
        for (int j = 0; j < W; j++)
            sum += (double)v[j] * (double)v[j];
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        parts[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(SUM_THREADS) add_parts_kernel(double *sum, const double *parts, int64_t n)
{
    double s = 0;
    for (int64_t i = threadIdx.x; i < n; i += SUM_THREADS)
        s += parts[i];
    s = block_sum(s);
    if (threadIdx.x == 0)
        *sum += s;
}

extern "C" int cuda_square_sum(struct sherd_queue *queue, const void *args)
{
    const struct sherd_square_sum *a = (const struct sherd_square_sum *)args;
    cudaStream_t stream = cuda_enter(queue);
    int64_t parts = scratch_sum_blocks(a->n);
    if (a->n == 0)
        return SHERD_OK;
    WITH_TYPE("square_sum", a->type, T, WITH_WIDTH(aligned16(a->x), {
        square_parts_kernel<T, W>
            <<<(unsigned)parts, SUM_THREADS, 0, stream>>>((double *)a->scratch, (const T *)a->x, a->n);
    }))
    add_parts_kernel<<<1, SUM_THREADS, 0, stream>>>(a->sum, (const double *)a->scratch, parts);
    return CUDA_LAUNCHED("square_sum");
}

__global__ void ordered_sum_kernel(double *out, const double *in, int64_t n, int64_t stride, int64_t cols)
{
    int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= cols)
        return;
    double s = 0;
    for (int64_t i = 0; i < n; i++)
        s += in[i * stride + c];
    out[c] = s;
}

extern "C" int cuda_ordered_sum(struct sherd_queue *queue, const void *args)
{
    const struct sherd_ordered_sum *a = (const struct sherd_ordered_sum *)args;
    cudaStream_t stream = cuda_enter(queue);
    if (a->cols == 0)
        return SHERD_OK;
    ordered_sum_kernel<<<blocks_for(a->cols, THREADS), THREADS, 0, stream>>>(
        a->out, a->in, a->n, a->stride, a->cols);
    return CUDA_LAUNCHED("ordered_sum");
}

__global__ void clip_factor_kernel(float *factor, double *norm, const double *square_sum, float max_norm)
{
    double n = sqrt(*square_sum);
    *norm = n;
    if (!isfinite(n))
        *factor = NAN;
    else if (max_norm > 0 && (double)max_norm / (n + 1e-6) < 1.0)
        *factor = (float)((double)max_norm / (n + 1e-6));
    else
        *factor = 1.0f;
}

extern "C" int cuda_clip_factor(struct sherd_queue *queue, const void *args)
{
    const struct sherd_clip_factor *a = (const struct sherd_clip_factor *)args;
    cudaStream_t stream = cuda_enter(queue);
    clip_factor_kernel<<<1, 1, 0, stream>>>(a->factor, a->norm, a->square_sum, a->max_norm);
    return CUDA_LAUNCHED("clip_factor");
}
