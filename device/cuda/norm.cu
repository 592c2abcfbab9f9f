/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * LayerNorm and RMSNorm, a row to a block; a short one to a warp forward, to a team of warps backward. Rows
 * up to HELD columns stay in registers between the sums and the output; longer or unaligned ones are read
 * again. Gradients of the weights: every block of rows adds its rows in a fixed order into its part of the
 * scratch, and the parts are added in order.
 */
#include "device/cuda/util.cuh"
#include "device/scratch.h"

#define MAX_THREADS 512
#define HELD (MAX_THREADS * WIDE * 2)                     /* columns: two packs a thread */
#define WARPS 4                                           /* rows of a block, where a warp has a row */
#define PER_WARP (32 * WIDE)                              /* columns: one pack a thread */
#define WARP_BLOCKS(V) ((V) <= 3 ? 10 : (V) == 4 ? 8 : 5) /* of a multiprocessor: what registers allow */
#define MULTIPROCESSORS 132 /* for which blocks that stay are counted, whatever the device has */

/* Backward: the teams of WARPS warps in a block, where a thread has V packs of a row, and the blocks of a
 * multiprocessor for rows of so many columns. */
#define TEAMS(V, WARPS) (((V) == 1 ? 12 : 8) / (WARPS))
#define TEAM_BLOCKS(COLS) ((COLS) > 4 * PER_WARP && (COLS) <= 8 * PER_WARP ? 3 : 2)

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

template <typename T, int V> struct row_of {
    struct part_of_row<T> part[V];
    float mean, rstd;
};

template <typename T, bool LAYER, int V, int SIZE>
static __device__ __forceinline__ void fetch_row(
    struct row_of<T, V> *p, const struct sherd_norm_backward *a, int64_t row, bool wanted)
{
    int64_t at = row_start(row, a->cols, a->run, a->pitch);
#pragma unroll
    for (int i = 0; i < V; i++) {
        int c = (i * SIZE + (int)threadIdx.x) * WIDE;
        clear(&p->part[i].x);
        clear(&p->part[i].dy);
        clear(&p->part[i].add);
        if (!wanted || c >= a->cols)
            continue;
        fetch<false>(&p->part[i].x, (const T *)a->x + at + c);
        fetch<false>(&p->part[i].dy, (const T *)a->dy + at + c);
        if (a->add)
            fetch<false>(&p->part[i].add, (const T *)a->add + at + c);
    }
    p->mean = LAYER && wanted ? a->mean[row] : 0.0f;
    p->rstd = wanted ? a->rstd[row] : 0.0f;
}

/* The sums of x, for LAYER, and y over the warps of a team, in order, by one wait of the block: `share` has
 * one for each of the team's warps, and is another one at the next call. */
template <bool LAYER, int G>
static __device__ __forceinline__ float2 team_sum2(float x, float y, float2 *share)
{
    float2 sum = make_float2(LAYER ? warp_sum(x) : 0.0f, warp_sum(y));
    if (G == 1)
        return sum;
    if (threadIdx.x % 32 == 0)
        share[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = share[0];
#pragma unroll
    for (int i = 1; i < G; i++) {
        sum.x += share[i].x;
        sum.y += share[i].y;
    }
    return sum;
}

/* Adds dw and db of the teams of a block, one after the other, into the block's part of the scratch. */
template <bool LAYER, int V, int SIZE>
static __device__ __forceinline__ void add_teams(
    const struct sherd_norm_backward *a, const float (&dw)[V][WIDE], const float (&db)[LAYER ? V : 1][WIDE])
{
    __shared__ float total[LAYER ? 2 : 1][V * SIZE * WIDE];
#pragma unroll 1
    for (int t = 0; t < (int)blockDim.y; t++) {
        __syncthreads();
        if ((int)threadIdx.y != t)
            continue;
#pragma unroll
        for (int i = 0; i < V; i++)
#pragma unroll
            for (int j = 0; j < WIDE; j++) {
                int c = (i * SIZE + (int)threadIdx.x) * WIDE + j;
                total[0][c] = (t ? total[0][c] : 0.0f) + dw[i][j];
                if (LAYER)
                    total[LAYER][c] = (t ? total[LAYER][c] : 0.0f) + db[LAYER ? i : 0][j];
            }
    }
    __syncthreads();
    float *parts = (float *)a->scratch + blockIdx.x * a->cols;
    for (int c = threadIdx.y * SIZE + threadIdx.x; c < a->cols; c += SIZE * blockDim.y) {
        if (a->dw)
            parts[c] = total[0][c];
        if (LAYER && a->db)
            parts[gridDim.x * a->cols + c] = total[LAYER][c];
    }
}

/* A row to a team of G warps, V packs of it to a thread: threadIdx.x in the team threadIdx.y. The next row is
 * on its way while this one waits for its sums, for there are few blocks for the sake of dw and db. Rows are
 * kept packed, and are unpacked a second time behind the sums, for the sake of registers. */
template <typename T, bool LAYER, int V, int G>
__global__ void __launch_bounds__(TEAMS(V, G) * G * 32, sizeof(T) == 4 ? 1 : TEAM_BLOCKS(V * G * PER_WARP))
    norm_backward_teams(const __grid_constant__ struct sherd_norm_backward a, int block_rows)
{
    constexpr int SIZE = G * 32, N = TEAMS(V, G);
    __shared__ float2 share[2][N][G];
    float dw[V][WIDE] = { 0 }, db[LAYER ? V : 1][WIDE] = { 0 };
    int64_t first = (int64_t)blockIdx.x * block_rows;
    int64_t last = first + block_rows < a.rows ? first + block_rows : a.rows;
    int turn = 0;
    struct pack<T> weight[V];
    struct row_of<T, V> own, next;
#pragma unroll
    for (int i = 0; i < V; i++) {
        int c = (i * SIZE + (int)threadIdx.x) * WIDE;
        clear(&weight[i]);
        if (c < a.cols)
            fetch<false>(&weight[i], (const T *)a.w + c);
    }
    float each = 1.0f / (float)a.cols;
    fetch_row<T, LAYER, V, SIZE>(&next, &a, first + threadIdx.y, first + threadIdx.y < last);
    for (; first < last; first += N) { /* also by the teams that have no row in the last turn */
        int64_t row = first + threadIdx.y;
        own = next;
        fetch_row<T, LAYER, V, SIZE>(&next, &a, row + N, row + N < last);
        float sum_g = 0, sum_gh = 0;
#pragma unroll
        for (int i = 0; i < V; i++) {
            float h[WIDE], g[WIDE], w[WIDE];
            unpack(w, weight[i]);
            unpack(h, own.part[i].x);
            unpack(g, own.part[i].dy);
#pragma unroll
            for (int j = 0; j < WIDE; j++) {
                h[j] = (h[j] - own.mean) * own.rstd;
                dw[i][j] += g[j] * h[j];
                if (LAYER)
                    db[LAYER ? i : 0][j] += g[j];
                g[j] *= w[j];
                if (LAYER)
                    sum_g += g[j];
                sum_gh += g[j] * h[j];
            }
        }
        float2 sum = team_sum2<LAYER, G>(sum_g, sum_gh, share[turn][threadIdx.y]);
        float mean_g = LAYER ? sum.x * each : 0.0f, mean_gh = sum.y * each;
        int64_t at = row_start(row, a.cols, a.run, a.pitch);
        turn ^= 1;
#pragma unroll
        for (int i = 0; i < V; i++) {
            int c = (i * SIZE + (int)threadIdx.x) * WIDE;
            if (c >= a.cols || row >= last)
                continue;
            renew(&weight[i]);
            renew(&own.part[i].x);
            renew(&own.part[i].dy);
            finish_row<T, LAYER>(&a, at + c, c, own.part[i], weight[i], own.mean, own.rstd, mean_g, mean_gh);
        }
    }
    add_teams<LAYER, V, SIZE>(&a, dw, db);
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

/* How many blocks of rows there are: two for each multiprocessor where teams add them, more where a block has
 * one row at a time: LayerNorm three, for its registers. */
static int64_t block_rows_of(const struct sherd_norm_backward *a, int teams)
{
    int64_t each = teams ? TEAM_BLOCKS(a->cols) : a->kind == SHERD_LAYER_NORM ? 3 : 4;
    int64_t blocks = MIN(each * MULTIPROCESSORS, SCRATCH_MAX_ROW_BLOCKS);
    return MAX((a->rows + blocks - 1) / blocks, SCRATCH_MIN_ROWS);
}

/* For rows that are aligned and no longer than HELD / 2. */
template <typename T, bool LAYER>
static void launch_teams(
    cudaStream_t stream, const struct sherd_norm_backward *a, int64_t each, unsigned blocks)
{
#define WITH_TEAMS(V, G)                                                                                     \
    if (a->cols <= (V) * (G)*PER_WARP) {                                                                     \
        norm_backward_teams<T, LAYER, V, G>                                                                  \
            <<<blocks, dim3((G)*32, TEAMS(V, G)), 0, stream>>>(*a, (int)each);                               \
        return;                                                                                              \
    }
    WITH_TEAMS(1, 1)
    WITH_TEAMS(1, 2)
    WITH_TEAMS(1, 3)
    WITH_TEAMS(1, 4)
    WITH_TEAMS(1, 8)
    WITH_TEAMS(2, 8)
#undef WITH_TEAMS
}

template <typename T, int KIND>
static void launch_backward(
    cudaStream_t stream, const struct sherd_norm_backward *a, int64_t each, unsigned blocks, int held)
{
    if (!held)
        norm_backward_any<T><<<blocks, round32(a->cols, THREADS), 0, stream>>>(*a, each);
    else if (a->cols <= HELD / 2)
        launch_teams<T, KIND == SHERD_LAYER_NORM>(stream, a, each, blocks);
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
    int held = a.cols % WIDE == 0 && a.pitch % WIDE == 0 && a.cols <= HELD && aligned16(a.dx) &&
               aligned16(a.y) && aligned16(a.dy) && aligned16(a.x) && aligned16(a.w) && aligned16(a.b) &&
               aligned16(a.add) && aligned16(a.scratch);
    int64_t each = block_rows_of(&a, held && a.cols <= HELD / 2);
    unsigned blocks = blocks_for(a.rows, each);
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
