/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * LayerNorm and RMSNorm forward, a row to a block; a short one to a warp. Rows up to HELD columns stay in
 * registers between the sums and the output; longer or unaligned ones are read again.
 */
#include "device/cuda/norm.cuh"

#define WARPS 4                                           /* rows of a block, where a warp has a row */
#define WARP_BLOCKS(V) ((V) <= 3 ? 10 : (V) == 4 ? 8 : 5) /* of a multiprocessor: what registers allow */

template <typename T, int V>
__global__ void __launch_bounds__(MAX_THREADS)
    norm_forward_held(const __grid_constant__ struct sherd_norm_forward a)
{
    constexpr int W = WIDE;
    int64_t row = blockIdx.x;
    int64_t at = row_start(row, a.cols, a.run, a.pitch);
    const T *x = (const T *)a.x + at;
    T *y = (T *)a.y + at;
    float v[V][W], sum = 0, mean = 0;
#pragma unroll
    for (int i = 0; i < V; i++) {
        int c = (i * blockDim.x + threadIdx.x) * W;
        load<W>(v[i], x + c, c < a.cols ? W : 0);
#pragma unroll
        for (int j = 0; j < W; j++)
            sum += v[i][j];
    }
    if (a.kind == SHERD_LAYER_NORM)
        mean = block_sum(sum) / (float)a.cols;
    sum = 0;
#pragma unroll
    for (int i = 0; i < V; i++) {
        int c = (i * blockDim.x + threadIdx.x) * W;
        if (c < a.cols)
#pragma unroll
            for (int j = 0; j < W; j++) {
                v[i][j] -= mean;
                sum += v[i][j] * v[i][j];
            }
    }
    float rstd = 1.0f / sqrtf(block_sum(sum) / (float)a.cols + a.eps);
#pragma unroll
    for (int i = 0; i < V; i++) {
        int c = (i * blockDim.x + threadIdx.x) * W;
        if (c >= a.cols)
            continue;
        float w[W], b[W];
        load<W>(w, (const T *)a.w + c, W);
        load<W>(b, (const T *)a.b + c, a.b ? W : 0);
#pragma unroll
        for (int j = 0; j < W; j++)
            v[i][j] = normed(v[i][j] * rstd, w[j], b[j]);
        store<W>(y + c, v[i], W);
    }
    if (threadIdx.x == 0) {
        a.rstd[row] = rstd;
        if (a.kind == SHERD_LAYER_NORM)
            a.mean[row] = mean;
    }
}

/* A row to a warp: no waiting for other warps, and V loads of each thread under way at once. */
template <typename T, int V, bool LAYER>
__global__ void __launch_bounds__(WARPS * 32, WARP_BLOCKS(V))
    norm_forward_warp(const __grid_constant__ struct sherd_norm_forward a)
{
    int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (row >= a.rows)
        return;
    int lane = threadIdx.x % 32, cols = (int)a.cols;
    int64_t at = row_start(row, a.cols, a.run, a.pitch);
    const T *x = (const T *)a.x + at;
    T *y = (T *)a.y + at;
    struct pack<T> raw[V];
    float v[V][WIDE], sum = 0, mean = 0;
#pragma unroll
    for (int i = 0; i < V; i++) {
        int c = (i * 32 + lane) * WIDE;
        clear(&raw[i]);
        if (c < cols)
            fetch<true>(&raw[i], x + c);
    }
#pragma unroll
    for (int i = 0; i < V; i++) {
        unpack(v[i], raw[i]);
#pragma unroll
        for (int j = 0; j < WIDE; j++)
            sum += v[i][j];
    }
    if (LAYER)
        mean = warp_sum(sum) / (float)cols;
    sum = 0;
#pragma unroll
    for (int i = 0; i < V; i++) {
        float from = (i * 32 + lane) * WIDE < cols ? mean : 0.0f;
#pragma unroll
        for (int j = 0; j < WIDE; j++) {
            v[i][j] -= from;
            sum += v[i][j] * v[i][j];
        }
    }
    float rstd = 1.0f / sqrtf(warp_sum(sum) / (float)cols + a.eps);
#pragma unroll
    for (int i = 0; i < V; i++) {
        int c = (i * 32 + lane) * WIDE;
        if (c >= cols)
            continue;
        float w[WIDE], b[WIDE];
        load<WIDE>(w, (const T *)a.w + c, WIDE);
        load<WIDE>(b, (const T *)a.b + c, a.b ? WIDE : 0);
#pragma unroll
        for (int j = 0; j < WIDE; j++)
            v[i][j] = normed(v[i][j] * rstd, w[j], b[j]);
        store<WIDE>(y + c, v[i], WIDE);
    }
    if (lane == 0) {
        a.rstd[row] = rstd;
        if (LAYER)
            a.mean[row] = mean;
    }
}

template <typename T> __global__ void norm_forward_any(const __grid_constant__ struct sherd_norm_forward a)
{
    int64_t row = blockIdx.x;
    int64_t at = row_start(row, a.cols, a.run, a.pitch);
    const T *x = (const T *)a.x + at, *w = (const T *)a.w, *b = (const T *)a.b;
    T *y = (T *)a.y + at;
    float sum = 0, mean = 0;
    if (a.kind == SHERD_LAYER_NORM) {
        for (int64_t c = threadIdx.x; c < a.cols; c += blockDim.x)
            sum += to_float(x[c]);
        mean = block_sum(sum) / (float)a.cols;
    }
    sum = 0;
    for (int64_t c = threadIdx.x; c < a.cols; c += blockDim.x) {
        float v = to_float(x[c]) - mean;
        sum += v * v;
    }
    float rstd = 1.0f / sqrtf(block_sum(sum) / (float)a.cols + a.eps);
    for (int64_t c = threadIdx.x; c < a.cols; c += blockDim.x)
        from_float(&y[c], normed((to_float(x[c]) - mean) * rstd, to_float(w[c]), b ? to_float(b[c]) : 0.0f));
    if (threadIdx.x == 0) {
        a.rstd[row] = rstd;
        if (a.kind == SHERD_LAYER_NORM)
            a.mean[row] = mean;
    }
}

/* For rows that are aligned and no longer than HELD. */
template <typename T, bool LAYER>
static void launch_forward(cudaStream_t stream, const struct sherd_norm_forward *a)
{
    unsigned rows = (unsigned)a->rows, blocks = blocks_for(a->rows, WARPS);
    if (a->cols <= PER_WARP)
        norm_forward_warp<T, 1, LAYER><<<blocks, WARPS * 32, 0, stream>>>(*a);
    else if (a->cols <= 3 * PER_WARP)
        norm_forward_warp<T, 3, LAYER><<<blocks, WARPS * 32, 0, stream>>>(*a);
    else if (a->cols <= 4 * PER_WARP)
        norm_forward_warp<T, 4, LAYER><<<blocks, WARPS * 32, 0, stream>>>(*a);
    else if (a->cols <= 8 * PER_WARP)
        norm_forward_warp<T, 8, LAYER><<<blocks, WARPS * 32, 0, stream>>>(*a);
    else if (a->cols <= HELD / 2)
        norm_forward_held<T, 1><<<rows, round32(a->cols / WIDE, MAX_THREADS), 0, stream>>>(*a);
    else
        norm_forward_held<T, 2><<<rows, MAX_THREADS, 0, stream>>>(*a);
}

extern "C" int cuda_norm_forward(struct sherd_queue *queue, const void *args)
{
    struct sherd_norm_forward a = *(const struct sherd_norm_forward *)args;
    cudaStream_t stream = cuda_enter(queue);
    if (a.rows == 0 || a.cols == 0)
        return SHERD_OK;
    if (a.kind == SHERD_RMS_NORM)
        a.b = NULL;
    int held = a.cols % WIDE == 0 && a.pitch % WIDE == 0 && a.cols <= HELD && aligned16(a.y) &&
               aligned16(a.x) && aligned16(a.w) && aligned16(a.b);
    WITH_TYPE("norm_forward", a.type, T, {
        if (!held)
            norm_forward_any<T><<<(unsigned)a.rows, round32(a.cols, THREADS), 0, stream>>>(a);
        else if (a.kind == SHERD_LAYER_NORM)
            launch_forward<T, true>(stream, &a);
        else
            launch_forward<T, false>(stream, &a);
    })
    return CUDA_LAUNCHED("norm_forward");
}
