/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * LayerNorm and RMSNorm backward: with h = (x - mean) * rstd and g = dy * w,
 *     dx = rstd * (g - mean(g) - h * mean(g * h)), without mean(g) for RMS.
 * A row to a block, a short one to a team of warps. Gradients of the weights: every block adds its rows in a
 * fixed order into its part of the scratch, and the parts are added in order. Blocks take rows in turn, so
 * that all of them read what lies close together.
 */
#include "device/cuda/norm.cuh"
#include "device/scratch.h"

#define MULTIPROCESSORS 132 /* for which blocks that stay are counted, whatever the device has */

/* The teams of G warps in a block, and the blocks of a multiprocessor: 24 warps where a thread has one pack
 * of a row, 16 where it has two (V). */
#define TEAMS(G) ((G) <= 3 ? 6 / (G) : 8 / (G))
#define TEAM_BLOCKS(V, G) (((V) == 1 ? 24 : 16) / (TEAMS(G) * (G)))
#define ROW_BLOCKS(LAYER) ((LAYER) ? 3 : 4) /* blocks of a multiprocessor, of one row at a time */

/* A thread's part of a row, as it lies in memory; zeros where there is none. */
template <typename T> struct part_of_row {
    struct pack<T> x, dy, add;
};

template <typename T, int V> struct row_of {
    struct part_of_row<T> part[V];
    float mean, rstd;
    uint32_t row;
};

template <typename T, bool LAYER, int V, int SIZE>
static __device__ __forceinline__ void fetch_row(
    struct row_of<T, V> *p, const struct sherd_norm_backward *a, uint32_t row, bool there)
{
    int64_t at = row_start(row, a->cols, a->run, a->pitch);
    p->row = row;
#pragma unroll
    for (int i = 0; i < V; i++) {
        int c = (i * SIZE + (int)threadIdx.x) * WIDE;
        clear(&p->part[i].x);
        clear(&p->part[i].dy);
        clear(&p->part[i].add);
        if (!there || c >= (int)a->cols)
            continue;
        fetch<false>(&p->part[i].x, (const T *)a->x + at + c);
        fetch<false>(&p->part[i].dy, (const T *)a->dy + at + c);
        if (a->add)
            fetch<false>(&p->part[i].add, (const T *)a->add + at + c);
    }
    p->mean = LAYER && there ? a->mean[row] : 0.0f;
    p->rstd = there ? a->rstd[row] : 0.0f;
}

/* h, by one instruction where results have 16 bits. */
template <typename T, bool LAYER, int V>
static __device__ __forceinline__ void center(float (&h)[WIDE], const struct row_of<T, V> &own, int i)
{
    float shift = -own.mean * own.rstd;
    unpack(h, own.part[i].x);
#pragma unroll
    for (int j = 0; j < WIDE; j++)
        h[j] = LAYER && sizeof(T) == 2 ? fmaf(h[j], own.rstd, shift) : (h[j] - own.mean) * own.rstd;
}

/* What forward made of the row, with the same bits. */
template <typename T, bool LAYER, int V>
static __device__ __forceinline__ void write_y(const struct sherd_norm_backward *a,
    const struct row_of<T, V> &own, int i, int64_t at, int c, const struct pack<T> &weight)
{
    float h[WIDE], w[WIDE], b[WIDE];
    unpack(h, own.part[i].x);
    unpack(w, weight);
    load<WIDE>(b, (const T *)a->b + c, LAYER && a->b ? WIDE : 0);
#pragma unroll
    for (int j = 0; j < WIDE; j++)
        h[j] = normed((h[j] - own.mean) * own.rstd, w[j], b[j]);
    store<WIDE>((T *)a->y + at + c, h, WIDE);
}

/* The sums of x, for LAYER, and y over the warps of a team, in order, by one wait of the block: `share` has
 * one for each of the team's warps, and is another one at the next call. Of two sums each half of a warp ends
 * with one. */
template <bool LAYER, int G>
static __device__ __forceinline__ float2 team_sum2(float x, float y, float2 *share)
{
    int lane = threadIdx.x % 32, half = LAYER ? lane / 16 : 1;
    if (LAYER)
        y = (half ? y : x) + __shfl_xor_sync(0xffffffffu, half ? x : y, 16);
    else
        y += __shfl_xor_sync(0xffffffffu, y, 16);
#pragma unroll
    for (int i = 8; i > 0; i >>= 1)
        y += __shfl_xor_sync(0xffffffffu, y, i);
    if (G == 1)
        return make_float2(LAYER ? __shfl_sync(0xffffffffu, y, 0) : 0.0f, __shfl_sync(0xffffffffu, y, 16));
    if (lane == 16 || (LAYER && lane == 0))
        reinterpret_cast<float *>(&share[threadIdx.x / 32])[half] = y;
    __syncthreads();
    float2 sum = share[0];
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
 * on its way while this one waits for its sums, for there are few blocks for the sake of dw and db. Of longer
 * rows h and dy * w are made a second time behind the sums, for the sake of registers. */
template <typename T, bool LAYER, int V, int G>
__global__ void __launch_bounds__(TEAMS(G) * G * 32, sizeof(T) == 4 ? 1 : TEAM_BLOCKS(V, G))
    norm_backward_teams(const __grid_constant__ struct sherd_norm_backward a)
{
    constexpr int SIZE = G * 32, N = TEAMS(G);
    constexpr bool KEEP = V * G <= 4;
    __shared__ float2 share[2][N][G];
    float dw[V][WIDE] = { 0 }, db[LAYER ? V : 1][WIDE] = { 0 };
    uint32_t first = blockIdx.x * N, rows = (uint32_t)a.rows;
    int turn = 0;
    struct pack<T> weight[V];
    struct row_of<T, V> even, odd;
#pragma unroll
    for (int i = 0; i < V; i++) {
        int c = (i * SIZE + (int)threadIdx.x) * WIDE;
        clear(&weight[i]);
        if (c < a.cols)
            fetch<false>(&weight[i], (const T *)a.w + c);
    }
    float each = 1.0f / (float)a.cols;
    fetch_row<T, LAYER, V, SIZE>(&even, &a, first + threadIdx.y, first + threadIdx.y < rows);
    auto step = [&](struct row_of<T, V> &own, struct row_of<T, V> &next) {
        float h[V][WIDE], g[V][WIDE], w[WIDE], add[WIDE], sum_g = 0, sum_gh = 0;
        first += N * gridDim.x;
        fetch_row<T, LAYER, V, SIZE>(&next, &a, first + threadIdx.y, first + threadIdx.y < rows);
#pragma unroll
        for (int i = 0; i < V; i++) {
            unpack(w, weight[i]);
            unpack(g[i], own.part[i].dy);
            center<T, LAYER, V>(h[i], own, i);
#pragma unroll
            for (int j = 0; j < WIDE; j++) {
                dw[i][j] += g[i][j] * h[i][j];
                if (LAYER)
                    db[LAYER ? i : 0][j] += g[i][j];
                g[i][j] *= w[j];
                if (LAYER)
                    sum_g += g[i][j];
                sum_gh += g[i][j] * h[i][j];
            }
        }
        float2 sum = team_sum2<LAYER, G>(sum_g, sum_gh, share[turn][threadIdx.y]);
        float mean_g = LAYER ? sum.x * each : 0.0f, mean_gh = sum.y * each;
        turn ^= 1;
        int64_t at = row_start(own.row, a.cols, a.run, a.pitch);
#pragma unroll
        for (int i = 0; i < V; i++) {
            int c = (i * SIZE + (int)threadIdx.x) * WIDE;
            if (c >= (int)a.cols || own.row >= rows)
                continue;
            if (!KEEP) {
                renew(&weight[i]);
                renew(&own.part[i].x);
                renew(&own.part[i].dy);
                unpack(w, weight[i]);
                unpack(g[i], own.part[i].dy);
                center<T, LAYER, V>(h[i], own, i);
            }
            unpack(add, own.part[i].add);
#pragma unroll
            for (int j = 0; j < WIDE; j++) {
                float scaled = KEEP ? g[i][j] - mean_g : g[i][j] * w[j] - mean_g;
                add[j] += own.rstd * (scaled - h[i][j] * mean_gh);
            }
            store<WIDE>((T *)a.dx + at + c, add, WIDE);
            if (a.y)
                write_y<T, LAYER, V>(&a, own, i, at, c, weight[i]);
        }
    };
    while (first < rows) { /* also by the teams that have no row in the last turn */
        step(even, odd);
        if (!KEEP) {
            even = odd;
            continue;
        }
        if (first >= rows) /* by break: `if (first < rows) step()` costs registers */
            break;
        step(odd, even);
    }
    add_teams<LAYER, V, SIZE>(&a, dw, db);
}

/* Two packs of a row to a thread. */
template <typename T, bool LAYER>
__global__ void __launch_bounds__(MAX_THREADS)
    norm_backward_held(const __grid_constant__ struct sherd_norm_backward a)
{
    constexpr int W = WIDE, V = 2;
    float dw[V][W] = { 0 }, db[LAYER ? V : 1][W] = { 0 };
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        int64_t at = row_start(row, a.cols, a.run, a.pitch);
        float mean = LAYER ? a.mean[row] : 0.0f, rstd = a.rstd[row];
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
                if (LAYER)
                    db[LAYER ? i : 0][j] += g[i][j];
                g[i][j] *= w[j];
                sum_g += g[i][j];
                sum_gh += g[i][j] * h[i][j];
            }
        }
        block_sum2(&sum_g, &sum_gh);
        float mean_g = LAYER ? sum_g / (float)a.cols : 0.0f, mean_gh = sum_gh / (float)a.cols;
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
        if (LAYER && a.db)
            store<W>(parts + gridDim.x * a.cols + c, db[LAYER ? i : 0], W);
    }
}

/* A thread owns its columns through all rows, so it adds into the scratch without asking anybody. */
template <typename T> __global__ void norm_backward_any(const __grid_constant__ struct sherd_norm_backward a)
{
    float *dw = a.dw ? (float *)a.scratch + blockIdx.x * a.cols : NULL;
    float *db = a.db ? (float *)a.scratch + (gridDim.x + (int64_t)blockIdx.x) * a.cols : NULL;
    const T *w = (const T *)a.w, *b = (const T *)a.b, *add = (const T *)a.add;
    T *dx = (T *)a.dx, *y = (T *)a.y;
    bool layer = a.kind == SHERD_LAYER_NORM;
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        int64_t at = row_start(row, a.cols, a.run, a.pitch);
        const T *x = (const T *)a.x + at, *dy = (const T *)a.dy + at;
        float mean = layer ? a.mean[row] : 0.0f, rstd = a.rstd[row], sum_g = 0, sum_gh = 0;
        for (int64_t c = threadIdx.x; c < a.cols; c += blockDim.x) {
            float h = (to_float(x[c]) - mean) * rstd, d = to_float(dy[c]), g = d * to_float(w[c]);
            sum_g += g;
            sum_gh += g * h;
            if (dw)
                dw[c] = (row == blockIdx.x ? 0.0f : dw[c]) + d * h;
            if (db)
                db[c] = (row == blockIdx.x ? 0.0f : db[c]) + d;
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

/* How many blocks share the rows, `each` for a multiprocessor at the most; every one has a row. */
static unsigned blocks_of(const struct sherd_norm_backward *a, int each)
{
    return (unsigned)MIN((int64_t)each * MULTIPROCESSORS, scratch_row_blocks(a->rows));
}

/* These return their blocks. */
template <typename T, bool LAYER, int V, int G>
static unsigned launch_teams(cudaStream_t stream, const struct sherd_norm_backward *a)
{
    unsigned blocks = blocks_of(a, TEAM_BLOCKS(V, G));
    norm_backward_teams<T, LAYER, V, G><<<blocks, dim3(G * 32, TEAMS(G)), 0, stream>>>(*a);
    return blocks;
}

template <typename T, bool LAYER>
static unsigned launch_backward(cudaStream_t stream, const struct sherd_norm_backward *a, int held)
{
    unsigned blocks = blocks_of(a, ROW_BLOCKS(LAYER));
    if (!held)
        norm_backward_any<T><<<blocks, round32(a->cols, THREADS), 0, stream>>>(*a);
    else if (a->cols <= PER_WARP)
        return launch_teams<T, LAYER, 1, 1>(stream, a);
    else if (a->cols <= 2 * PER_WARP)
        return launch_teams<T, LAYER, 1, 2>(stream, a);
    else if (a->cols <= 3 * PER_WARP)
        return launch_teams<T, LAYER, 1, 3>(stream, a);
    else if (a->cols <= 4 * PER_WARP)
        return launch_teams<T, LAYER, 1, 4>(stream, a);
    else if (a->cols <= 8 * PER_WARP)
        return launch_teams<T, LAYER, 1, 8>(stream, a);
    else if (a->cols <= 16 * PER_WARP)
        return launch_teams<T, LAYER, 2, 8>(stream, a);
    else
        norm_backward_held<T, LAYER><<<blocks, MAX_THREADS, 0, stream>>>(*a);
    return blocks;
}

extern "C" int cuda_norm_backward(struct sherd_queue *queue, const void *args)
{
    struct sherd_norm_backward a = *(const struct sherd_norm_backward *)args;
    cudaStream_t stream = cuda_enter(queue);
    unsigned blocks = 0;
    if (a.rows == 0 || a.cols == 0)
        return SHERD_OK;
    if (a.grad_type != SHERD_F32 && a.grad_type != SHERD_BF16 && a.grad_type != SHERD_F16)
        return cuda_unsupported("norm_backward", a.grad_type);
    if (a.kind == SHERD_RMS_NORM)
        a.b = a.db = NULL;
    int held = a.cols % WIDE == 0 && a.pitch % WIDE == 0 && a.cols <= HELD && aligned16(a.dx) &&
               aligned16(a.y) && aligned16(a.dy) && aligned16(a.x) && aligned16(a.w) && aligned16(a.b) &&
               aligned16(a.add) && aligned16(a.scratch);
    WITH_TYPE("norm_backward", a.type, T, {
        blocks = a.kind == SHERD_LAYER_NORM ? launch_backward<T, true>(stream, &a, held)
                                            : launch_backward<T, false>(stream, &a, held);
    })
    const float *parts = (const float *)a.scratch;
    struct cuda_parts dw = { a.dw, parts, a.overwrite_dw };
    struct cuda_parts db = { a.db, parts + blocks * a.cols, a.overwrite_db };
    cuda_reduce_parts(queue, dw, db, a.grad_type, blocks, a.cols);
    return CUDA_LAUNCHED("norm_backward");
}
