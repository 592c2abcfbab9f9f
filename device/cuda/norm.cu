/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * LayerNorm and RMSNorm, a row to a block, forward a short row to a warp. Rows up to HELD columns stay in
 * registers between the sums and the output; longer or unaligned ones are read again. Gradients of the
 * weights: every block of rows adds its rows in order into its part of the scratch, and the parts are added
 * in order.
 */
#include "device/cuda/util.cuh"
#include "device/scratch.h"

#define MAX_THREADS 512
#define HELD (MAX_THREADS * WIDE * 2) /* columns: two packs a thread */
#define WARPS 4                       /* rows of a block, where a warp has a row */
#define PER_WARP (32 * WIDE)          /* columns: one pack a thread */

/* Elements before a row: see struct sherd_norm_forward. */
__device__ static inline int64_t row_start(int64_t row, int64_t cols, int64_t run, int64_t pitch)
{
    return run ? row / run * pitch + row % run * cols : row * cols;
}

/* An output from h = (x - mean) * rstd: one form for forward and for backward's y, so that the bits are the
 * same. */
__device__ static inline float normed(float h, float w, float b)
{
    return fmaf(h, w, b);
}

/* ---- forward ---- */

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
template <typename T, int V>
__global__ void __launch_bounds__(WARPS * 32)
    norm_forward_warp(const __grid_constant__ struct sherd_norm_forward a)
{
    constexpr int W = WIDE;
    int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (row >= a.rows)
        return;
    int lane = threadIdx.x % 32;
    int64_t at = row_start(row, a.cols, a.run, a.pitch);
    const T *x = (const T *)a.x + at;
    T *y = (T *)a.y + at;
    float v[V][W], sum = 0, mean = 0;
#pragma unroll
    for (int i = 0; i < V; i++) {
        int c = (i * 32 + lane) * W;
        load<W>(v[i], x + c, c < a.cols ? W : 0);
    }
    if (a.kind == SHERD_LAYER_NORM) {
#pragma unroll
        for (int i = 0; i < V; i++)
#pragma unroll
            for (int j = 0; j < W; j++)
                sum += v[i][j];
        mean = warp_sum(sum) / (float)a.cols;
    }
    sum = 0;
#pragma unroll
    for (int i = 0; i < V; i++)
        if ((i * 32 + lane) * W < a.cols)
#pragma unroll
            for (int j = 0; j < W; j++) {
                v[i][j] -= mean;
                sum += v[i][j] * v[i][j];
            }
    float rstd = 1.0f / sqrtf(warp_sum(sum) / (float)a.cols + a.eps);
#pragma unroll
    for (int i = 0; i < V; i++) {
        int c = (i * 32 + lane) * W;
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
    if (lane == 0) {
        a.rstd[row] = rstd;
        if (a.kind == SHERD_LAYER_NORM)
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

extern "C" int cuda_norm_forward(struct sherd_queue *queue, const void *args)
{
    const struct sherd_norm_forward *a = (const struct sherd_norm_forward *)args;
    cudaStream_t stream = cuda_enter(queue);
    if (a->rows == 0 || a->cols == 0)
        return SHERD_OK;
    unsigned rows = (unsigned)a->rows;
    int held = a->cols % WIDE == 0 && a->pitch % WIDE == 0 && a->cols <= HELD && aligned16(a->y) &&
               aligned16(a->x) && aligned16(a->w) && aligned16(a->b);
    WITH_TYPE("norm_forward", a->type, T, {
        if (!held)
            norm_forward_any<T><<<rows, round32(a->cols, THREADS), 0, stream>>>(*a);
        else if (a->cols <= PER_WARP)
            norm_forward_warp<T, 1><<<blocks_for(a->rows, WARPS), WARPS * 32, 0, stream>>>(*a);
        else if (a->cols <= 4 * PER_WARP)
            norm_forward_warp<T, 4><<<blocks_for(a->rows, WARPS), WARPS * 32, 0, stream>>>(*a);
        else if (a->cols <= 8 * PER_WARP)
            norm_forward_warp<T, 8><<<blocks_for(a->rows, WARPS), WARPS * 32, 0, stream>>>(*a);
        else if (a->cols <= HELD / 2)
            norm_forward_held<T, 1><<<rows, round32(a->cols / WIDE, MAX_THREADS), 0, stream>>>(*a);
        else
            norm_forward_held<T, 2><<<rows, MAX_THREADS, 0, stream>>>(*a);
    })
    return CUDA_LAUNCHED("norm_forward");
}

/* ---- backward ----
 * With h = (x - mean) * rstd and g = dy * w:
 *     dx = rstd * (g - mean(g) - h * mean(g * h)), without mean(g) for RMS. */

/* A thread's part of a row of x and dy. */
template <typename T, int V>
static __device__ __forceinline__ void load_row(
    float (&x)[V][WIDE], float (&dy)[V][WIDE], const struct sherd_norm_backward *a, int64_t row)
{
    int64_t at = row_start(row, a->cols, a->run, a->pitch);
#pragma unroll
    for (int i = 0; i < V; i++) {
        int c = (i * blockDim.x + threadIdx.x) * WIDE;
        int k = c < a->cols ? WIDE : 0;
        load<WIDE>(x[i], (const T *)a->x + at + c, k);
        load<WIDE>(dy[i], (const T *)a->dy + at + c, k);
    }
}

/* KIND is a constant so that RMSNorm holds no registers for db. Where there are registers for it, the next
 * row is on its way while this one waits for its sums: there are few blocks, for the sake of dw and db. */
template <typename T, int V, int KIND>
__global__ void __launch_bounds__(MAX_THREADS)
    norm_backward_held(const __grid_constant__ struct sherd_norm_backward a, int64_t block_rows)
{
    constexpr int W = WIDE;
    constexpr bool layer = KIND == SHERD_LAYER_NORM, ahead = V == 1;
    float dw[V][W] = { 0 }, db[layer ? V : 1][W] = { 0 };
    int64_t first = blockIdx.x * block_rows;
    int64_t last = first + block_rows < a.rows ? first + block_rows : a.rows;
    float next_x[V][W], next_dy[V][W];
    if (ahead && first < last)
        load_row<T, V>(next_x, next_dy, &a, first);
    for (int64_t row = first; row < last; row++) {
        int64_t at = row_start(row, a.cols, a.run, a.pitch);
        float mean = layer ? a.mean[row] : 0.0f, rstd = a.rstd[row];
        float h[V][W], g[V][W], sum_g = 0, sum_gh = 0;
        if (!ahead)
            load_row<T, V>(next_x, next_dy, &a, row);
#pragma unroll
        for (int i = 0; i < V; i++)
#pragma unroll
            for (int j = 0; j < W; j++) {
                h[i][j] = next_x[i][j];
                g[i][j] = next_dy[i][j];
            }
        if (ahead && row + 1 < last)
            load_row<T, V>(next_x, next_dy, &a, row + 1);
#pragma unroll
        for (int i = 0; i < V; i++) {
            int c = (i * blockDim.x + threadIdx.x) * W;
            int k = c < a.cols ? W : 0;
            float w[W];
            load<W>(w, (const T *)a.w + c, k);
#pragma unroll
            for (int j = 0; j < W; j++) {
                h[i][j] = (h[i][j] - mean) * rstd;
                dw[i][j] += g[i][j] * h[i][j];
                if (layer)
                    db[layer ? i : 0][j] += g[i][j];
                g[i][j] *= w[j];
                sum_g += g[i][j];
                sum_gh += g[i][j] * h[i][j];
            }
        }
        block_sum2(&sum_g, &sum_gh);
        float mean_g = layer ? sum_g / (float)a.cols : 0.0f, mean_gh = sum_gh / (float)a.cols;
#pragma unroll
        for (int i = 0; i < V; i++) {
            int c = (i * blockDim.x + threadIdx.x) * W;
            if (c >= a.cols)
                continue;
            float add[W];
            load<W>(add, (const T *)a.add + at + c, a.add ? W : 0);
#pragma unroll
            for (int j = 0; j < W; j++)
                add[j] += rstd * (g[i][j] - mean_g - h[i][j] * mean_gh);
            store<W>((T *)a.dx + at + c, add, W);
            if (!a.y)
                continue;
            float w[W], b[W]; /* w again from the cache: no registers are held for it through the sums */
            load<W>(w, (const T *)a.w + c, W);
            load<W>(b, (const T *)a.b + c, a.b ? W : 0);
#pragma unroll
            for (int j = 0; j < W; j++)
                h[i][j] = normed(h[i][j], w[j], b[j]);
            store<W>((T *)a.y + at + c, h[i], W);
        }
    }
    float *parts = (float *)a.scratch + blockIdx.x * a.cols;
#pragma unroll
    for (int i = 0; i < V; i++) {
        int c = (i * blockDim.x + threadIdx.x) * W;
        if (c >= a.cols)
            continue;
        if (a.dw)
            store<W>(parts + c, dw[i], W);
        if (layer && a.db)
            store<W>(parts + gridDim.x * a.cols + c, db[layer ? i : 0], W);
    }
}

/* A thread owns its columns through all rows, so it adds into the scratch without asking anybody. */
template <typename T>
__global__ void norm_backward_any(const __grid_constant__ struct sherd_norm_backward a, int64_t block_rows)
{
    int64_t first = blockIdx.x * block_rows;
    int64_t last = first + block_rows < a.rows ? first + block_rows : a.rows;
    float *dw = a.dw ? (float *)a.scratch + blockIdx.x * a.cols : NULL;
    float *db = a.db ? (float *)a.scratch + (gridDim.x + (int64_t)blockIdx.x) * a.cols : NULL;
    const T *w = (const T *)a.w, *b = (const T *)a.b, *add = (const T *)a.add;
    T *dx = (T *)a.dx, *y = (T *)a.y;
    bool layer = a.kind == SHERD_LAYER_NORM;
    for (int64_t row = first; row < last; row++) {
        int64_t at = row_start(row, a.cols, a.run, a.pitch);
        const T *x = (const T *)a.x + at, *dy = (const T *)a.dy + at;
        float mean = layer ? a.mean[row] : 0.0f, rstd = a.rstd[row], sum_g = 0, sum_gh = 0;
        for (int64_t c = threadIdx.x; c < a.cols; c += blockDim.x) {
            float h = (to_float(x[c]) - mean) * rstd, d = to_float(dy[c]), g = d * to_float(w[c]);
            sum_g += g;
            sum_gh += g * h;
            if (dw)
                dw[c] = (row == first ? 0.0f : dw[c]) + d * h;
            if (db)
                db[c] = (row == first ? 0.0f : db[c]) + d;
        }
        block_sum2(&sum_g, &sum_gh);
        float mean_g = layer ? sum_g / (float)a.cols : 0.0f, mean_gh = sum_gh / (float)a.cols;
        for (int64_t c = threadIdx.x; c < a.cols; c += blockDim.x) {
            float h = (to_float(x[c]) - mean) * rstd, g = to_float(dy[c]) * to_float(w[c]);
            float past = add ? to_float(add[at + c]) : 0.0f;
            from_float(&dx[at + c], past + rstd * (g - mean_g - h * mean_gh));
            if (y)
                from_float(&y[at + c], normed(h, to_float(w[c]), b ? to_float(b[c]) : 0.0f));
        }
    }
}

template <typename T, int KIND>
static void launch_backward(
    cudaStream_t stream, const struct sherd_norm_backward *a, unsigned blocks, int held)
{
    int64_t each = scratch_block_rows(a->rows);
    if (!held)
        norm_backward_any<T><<<blocks, round32(a->cols, THREADS), 0, stream>>>(*a, each);
    else if (a->cols <= HELD / 2)
        norm_backward_held<T, 1, KIND><<<blocks, round32(a->cols / WIDE, MAX_THREADS), 0, stream>>>(*a, each);
    else
        norm_backward_held<T, 2, KIND><<<blocks, MAX_THREADS, 0, stream>>>(*a, each);
}

extern "C" int cuda_norm_backward(struct sherd_queue *queue, const void *args)
{
    struct sherd_norm_backward a = *(const struct sherd_norm_backward *)args;
    cudaStream_t stream = cuda_enter(queue);
    if (a.rows == 0 || a.cols == 0)
        return SHERD_OK;
    if (a.grad_type != SHERD_F32 && a.grad_type != SHERD_BF16 && a.grad_type != SHERD_F16)
        return cuda_unsupported("norm_backward", a.grad_type);
    if (a.kind == SHERD_RMS_NORM)
        a.db = NULL;
    unsigned blocks = (unsigned)scratch_row_blocks(a.rows);
    int held = a.cols % WIDE == 0 && a.pitch % WIDE == 0 && a.cols <= HELD && aligned16(a.dx) &&
               aligned16(a.y) && aligned16(a.dy) && aligned16(a.x) && aligned16(a.w) && aligned16(a.b) &&
               aligned16(a.add) && aligned16(a.scratch);
    WITH_TYPE("norm_backward", a.type, T, {
        if (a.kind == SHERD_LAYER_NORM)
            launch_backward<T, SHERD_LAYER_NORM>(stream, &a, blocks, held);
        else
            launch_backward<T, SHERD_RMS_NORM>(stream, &a, blocks, held);
    })
    const float *parts = (const float *)a.scratch;
    struct cuda_parts dw = { a.dw, parts, a.overwrite_dw };
    struct cuda_parts db = { a.db, parts + blocks * a.cols, a.overwrite_db };
    cuda_reduce_parts(stream, dw, db, a.grad_type, blocks, a.cols);
    return CUDA_LAUNCHED("norm_backward");
}
