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

/* A row to a warp: no waiting for other warps, and V loads of each thread under way at once. LAYER, or RMS.
 */
template <typename T, int V, bool LAYER>
__global__ void __launch_bounds__(WARPS * 32)
    norm_forward_warp(const __grid_constant__ struct sherd_norm_forward a)
{
    int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (row >= a.rows)
        return;
    int lane = threadIdx.x % 32;
    int64_t at = row_start(row, a.cols, a.run, a.pitch);
    const T *x = (const T *)a.x + at;
    T *y = (T *)a.y + at;
    struct pack<T> held[V];
    float v[WIDE], sum = 0, mean = 0;
#pragma unroll
    for (int i = 0; i < V; i++) {
        int c = (i * 32 + lane) * WIDE;
        if (c < a.cols)
            fetch<true>(&held[i], x + c);
        else
            clear(&held[i]);
    }
    if (LAYER) {
#pragma unroll
        for (int i = 0; i < V; i++) {
            unpack(v, held[i]);
#pragma unroll
            for (int j = 0; j < WIDE; j++)
                sum += v[j];
        }
        mean = warp_sum(sum) / (float)a.cols;
    }
    sum = 0;
#pragma unroll
    for (int i = 0; i < V; i++) {
        unpack(v, held[i]);
        if (!LAYER || (i * 32 + lane) * WIDE < a.cols)
#pragma unroll
            for (int j = 0; j < WIDE; j++)
                sum += (v[j] - mean) * (v[j] - mean);
    }
    float rstd = 1.0f / sqrtf(warp_sum(sum) / (float)a.cols + a.eps);
#pragma unroll
    for (int i = 0; i < V; i++) {
        int c = (i * 32 + lane) * WIDE;
        if (c >= a.cols)
            continue;
        float w[WIDE], b[WIDE];
        load<WIDE>(w, (const T *)a.w + c, WIDE);
        load<WIDE>(b, (const T *)a.b + c, a.b ? WIDE : 0);
        unpack(v, held[i]);
#pragma unroll
        for (int j = 0; j < WIDE; j++)
            v[j] = normed((v[j] - mean) * rstd, w[j], b[j]);
        store<WIDE>(y + c, v, WIDE);
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
    const struct sherd_norm_forward *a = (const struct sherd_norm_forward *)args;
    cudaStream_t stream = cuda_enter(queue);
    if (a->rows == 0 || a->cols == 0)
        return SHERD_OK;
    int held = a->cols % WIDE == 0 && a->pitch % WIDE == 0 && a->cols <= HELD && aligned16(a->y) &&
               aligned16(a->x) && aligned16(a->w) && aligned16(a->b);
    WITH_TYPE("norm_forward", a->type, T, {
        if (!held)
            norm_forward_any<T><<<(unsigned)a->rows, round32(a->cols, THREADS), 0, stream>>>(*a);
        else if (a->kind == SHERD_LAYER_NORM)
            launch_forward<T, true>(stream, a);
        else
            launch_forward<T, false>(stream, a);
    })
    return CUDA_LAUNCHED("norm_forward");
}

/* ---- backward ----
 * With h = (x - mean) * rstd and g = dy * w:
 *     dx = rstd * (g - mean(g) - h * mean(g * h)), without mean(g) for RMS. */

/* A thread's part of a row, as it lies in memory; zeros where there is none. */
template <typename T> struct part_of_row {
    struct pack<T> x, dy, add;
};

/* LayerNorm's rows are the shorter ones, of which nothing need stay in the caches. */
template <typename T, bool LAYER>
static __device__ __forceinline__ void fetch_row(
    struct part_of_row<T> *p, const struct sherd_norm_backward *a, int64_t row, int c, bool wanted)
{
    int64_t at = row_start(row, a->cols, a->run, a->pitch) + c;
    clear(&p->x);
    clear(&p->dy);
    clear(&p->add);
    if (!wanted || c >= a->cols)
        return;
    fetch<LAYER>(&p->x, (const T *)a->x + at);
    fetch<LAYER>(&p->dy, (const T *)a->dy + at);
    if (a->add)
        fetch<LAYER>(&p->add, (const T *)a->add + at);
}

/* What is left to do for a row when its sums are there: dx, and y if it is wanted. */
template <typename T, bool LAYER>
static __device__ __forceinline__ void finish_row(const struct sherd_norm_backward *a, int64_t at, int c,
    const struct part_of_row<T> &p, const struct pack<T> &weight, float mean, float rstd, float mean_g,
    float mean_gh)
{
    float h[WIDE], g[WIDE], dx[WIDE], w[WIDE], b[WIDE];
    unpack(h, p.x);
    unpack(g, p.dy);
    unpack(dx, p.add);
    unpack(w, weight);
#pragma unroll
    for (int j = 0; j < WIDE; j++) {
        h[j] = (h[j] - mean) * rstd;
        dx[j] += rstd * (g[j] * w[j] - mean_g - h[j] * mean_gh);
    }
    store<WIDE>((T *)a->dx + at, dx, WIDE);
    if (!a->y)
        return;
    load<WIDE>(b, (const T *)a->b + c, LAYER && a->b ? WIDE : 0);
#pragma unroll
    for (int j = 0; j < WIDE; j++)
        h[j] = normed(h[j], w[j], b[j]);
    store<WIDE>((T *)a->y + at, h, WIDE);
}

/* One pack of a row to a thread; the next row is on its way while this one waits for its sums, for there are
 * few blocks for the sake of dw and db. Rows are kept packed, and are unpacked a second time behind the sums,
 * so that RMSNorm has four blocks of 256 threads on a multiprocessor. */
template <typename T, bool LAYER>
__global__ void __launch_bounds__(MAX_THREADS, LAYER || sizeof(T) == 4 ? 1 : 2)
    norm_backward_ahead(const __grid_constant__ struct sherd_norm_backward a, int block_rows)
{
    float dw[WIDE] = { 0 }, db[LAYER ? WIDE : 1] = { 0 }, h[WIDE], g[WIDE], w[WIDE];
    int64_t row = (int64_t)blockIdx.x * block_rows;
    int64_t last = row + block_rows < a.rows ? row + block_rows : a.rows;
    int c = threadIdx.x * WIDE;
    struct pack<T> weight;
    struct part_of_row<T> own, next;
    clear(&weight);
    if (c < a.cols)
        fetch<false>(&weight, (const T *)a.w + c);
    fetch_row<T, LAYER>(&next, &a, row, c, row < last);
    for (; row < last; row++) {
        float mean = LAYER ? a.mean[row] : 0.0f, rstd = a.rstd[row], sum_g = 0, sum_gh = 0;
        own = next;
        fetch_row<T, LAYER>(&next, &a, row + 1, c, row + 1 < last);
        unpack(w, weight);
        unpack(h, own.x);
        unpack(g, own.dy);
#pragma unroll
        for (int j = 0; j < WIDE; j++) {
            h[j] = (h[j] - mean) * rstd;
            dw[j] += g[j] * h[j];
            if (LAYER)
                db[LAYER ? j : 0] += g[j];
            g[j] *= w[j];
            sum_g += g[j];
            sum_gh += g[j] * h[j];
        }
        if (LAYER)
            block_sum2(&sum_g, &sum_gh);
        else
            sum_gh = block_sum(sum_gh);
        float mean_g = LAYER ? sum_g / (float)a.cols : 0.0f, mean_gh = sum_gh / (float)a.cols;
        if (c < a.cols)
            finish_row<T, LAYER>(
                &a, row_start(row, a.cols, a.run, a.pitch) + c, c, own, weight, mean, rstd, mean_g, mean_gh);
    }
    float *parts = (float *)a.scratch + blockIdx.x * a.cols + c;
    if (c < a.cols && a.dw)
        store<WIDE>(parts, dw, WIDE);
    if constexpr (LAYER)
        if (c < a.cols && a.db)
            store<WIDE>(parts + gridDim.x * a.cols, db, WIDE);
}

/* Two packs of a row to a thread. KIND is a constant so that RMSNorm holds no registers for db. */
template <typename T, int KIND>
__global__ void __launch_bounds__(MAX_THREADS)
    norm_backward_held(const __grid_constant__ struct sherd_norm_backward a, int64_t block_rows)
{
    constexpr int W = WIDE, V = 2;
    constexpr bool layer = KIND == SHERD_LAYER_NORM;
    float dw[V][W] = { 0 }, db[layer ? V : 1][W] = { 0 };
    int64_t first = blockIdx.x * block_rows;
    int64_t last = first + block_rows < a.rows ? first + block_rows : a.rows;
    for (int64_t row = first; row < last; row++) {
        int64_t at = row_start(row, a.cols, a.run, a.pitch);
        float mean = layer ? a.mean[row] : 0.0f, rstd = a.rstd[row];
        float h[V][W], g[V][W], sum_g = 0, sum_gh = 0;
#pragma unroll
        for (int i = 0; i < V; i++) {
            int c = (i * blockDim.x + threadIdx.x) * W;
            int k = c < a.cols ? W : 0;
            load<W>(h[i], (const T *)a.x + at + c, k);
            load<W>(g[i], (const T *)a.dy + at + c, k);
        }
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

/* How many blocks of rows there are: LayerNorm has three for a multiprocessor, for its registers. */
static int64_t block_rows_of(const struct sherd_norm_backward *a)
{
    int64_t blocks = a->kind == SHERD_LAYER_NORM ? SCRATCH_MAX_ROW_BLOCKS * 3 / 4 : SCRATCH_MAX_ROW_BLOCKS;
    return MAX((a->rows + blocks - 1) / blocks, SCRATCH_MIN_ROWS);
}

template <typename T, int KIND>
static void launch_backward(
    cudaStream_t stream, const struct sherd_norm_backward *a, int64_t each, unsigned blocks, int held)
{
    if (!held)
        norm_backward_any<T><<<blocks, round32(a->cols, THREADS), 0, stream>>>(*a, each);
    else if (a->cols <= HELD / 2)
        norm_backward_ahead<T, KIND == SHERD_LAYER_NORM>
            <<<blocks, round32(a->cols / WIDE, MAX_THREADS), 0, stream>>>(*a, (int)each);
    else
        norm_backward_held<T, KIND><<<blocks, MAX_THREADS, 0, stream>>>(*a, each);
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
    int64_t each = block_rows_of(&a);
    unsigned blocks = blocks_for(a.rows, each);
    int held = a.cols % WIDE == 0 && a.pitch % WIDE == 0 && a.cols <= HELD && aligned16(a.dx) &&
               aligned16(a.y) && aligned16(a.dy) && aligned16(a.x) && aligned16(a.w) && aligned16(a.b) &&
               aligned16(a.add) && aligned16(a.scratch);
    WITH_TYPE("norm_backward", a.type, T, {
        if (a.kind == SHERD_LAYER_NORM)
            launch_backward<T, SHERD_LAYER_NORM>(stream, &a, each, blocks, held);
        else
            launch_backward<T, SHERD_RMS_NORM>(stream, &a, each, blocks, held);
    })
    const float *parts = (const float *)a.scratch;
    struct cuda_parts dw = { a.dw, parts, a.overwrite_dw };
    struct cuda_parts db = { a.db, parts + blocks * a.cols, a.overwrite_db };
    cuda_reduce_parts(stream, dw, db, a.grad_type, blocks, a.cols);
    return CUDA_LAUNCHED("norm_backward");
}
