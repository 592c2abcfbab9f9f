/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Element by element: cast, add, accumulate, sums of the parts of ranks; sums of columns; and the plain
 * matrix product.
 */
#include "device/cuda/util.cuh"
#include "device/scratch.h"

template <typename Y, typename X, int W> __global__ void cast_kernel(Y *y, const X *x, int64_t n)
{
    int64_t i;
    int k = my_span<W>(n, &i);
    if (k == 0)
        return;
    float v[W];
    load<W>(v, x + i, k);
    store<W>(y + i, v, k);
}

extern "C" cudaError_t cuda_probe(int *arch)
{
    struct cudaFuncAttributes about = {};
    cudaError_t err = cudaFuncGetAttributes(&about, (const void *)cast_kernel<float, float, 1>);
    *arch = about.ptxVersion * 10;
    return err;
}

__global__ void idle_kernel(unsigned long long nanoseconds)
{
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - start < nanoseconds);
}

extern "C" void cuda_idle(cudaStream_t stream, unsigned microseconds)
{
    idle_kernel<<<1, 1, 0, stream>>>(1000ull * microseconds);
}

extern "C" int cuda_cast(struct sherd_queue *queue, const void *args)
{
    const struct sherd_cast *a = (const struct sherd_cast *)args;
    cudaStream_t stream = cuda_enter(queue);
    if (a->n == 0)
        return SHERD_OK;
    WITH_TYPE(
        "cast", a->y_type, Y, WITH_TYPE("cast", a->x_type, X, WITH_WIDTH(aligned16(a->y) && aligned16(a->x), {
            cast_kernel<Y, X, W>
                <<<blocks_for(a->n, THREADS * W), THREADS, 0, stream>>>((Y *)a->y, (const X *)a->x, a->n);
        })))
    return CUDA_LAUNCHED("cast");
}

template <typename T, int W> __global__ void add_kernel(T *y, const T *a, const T *b, int64_t n)
{
    with_span<W>(n, [&](int64_t i, auto k) {
        float u[W], v[W];
        load<W>(u, a + i, k);
        load<W>(v, b + i, k);
#pragma unroll
        for (int j = 0; j < W; j++)
            v[j] += u[j];
        store<W>(y + i, v, k);
    });
}

extern "C" int cuda_add(struct sherd_queue *queue, const void *args)
{
    const struct sherd_add *a = (const struct sherd_add *)args;
    cudaStream_t stream = cuda_enter(queue);
    if (a->n == 0)
        return SHERD_OK;
    WITH_TYPE("add", a->type, T, WITH_WIDTH(aligned16(a->y) && aligned16(a->a) && aligned16(a->b), {
        add_kernel<T, W><<<blocks_for(a->n, THREADS * W), THREADS, 0, stream>>>(
            (T *)a->y, (const T *)a->a, (const T *)a->b, a->n);
    }))
    return CUDA_LAUNCHED("add");
}

template <typename T, int W>
__global__ void accumulate_kernel(float *dst, const T *src, int64_t n, int overwrite)
{
    with_span<W>(n, [&](int64_t i, auto k) {
        float u[W], v[W];
        load<W>(v, src + i, k);
        if (!overwrite) {
            load<W>(u, dst + i, k);
#pragma unroll
            for (int j = 0; j < W; j++)
                v[j] += u[j];
        }
        store<W>(dst + i, v, k);
    });
}

extern "C" int cuda_accumulate(struct sherd_queue *queue, const void *args)
{
    const struct sherd_accumulate *a = (const struct sherd_accumulate *)args;
    cudaStream_t stream = cuda_enter(queue);
    if (a->n == 0)
        return SHERD_OK;
    WITH_TYPE("accumulate", a->src_type, T, WITH_WIDTH(aligned16(a->dst) && aligned16(a->src), {
        accumulate_kernel<T, W><<<blocks_for(a->n, THREADS * W), THREADS, 0, stream>>>(
            a->dst, (const T *)a->src, a->n, a->overwrite);
    }))
    return CUDA_LAUNCHED("accumulate");
}

/* What is read once and never again is not to push out of the caches what the work beside reads. PARTS is
 * their number if that is known here, so that all of a thread's loads are under way at once; 0: it is not. */
template <typename T, int W, int PARTS>
__global__ void sum_parts_kernel(T *out, const T *parts, int64_t n, int n_parts)
{
    with_span<W>(n, [&](int64_t i, auto k) {
        float v[PARTS ? PARTS : 1][W];
        if (PARTS) {
#pragma unroll
            for (int p = 0; p < PARTS; p++)
                load_once<W>(v[p], parts + p * n + i, k);
#pragma unroll
            for (int p = 1; p < PARTS; p++)
#pragma unroll
                for (int j = 0; j < W; j++)
                    v[0][j] += v[p][j];
        } else {
            load_once<W>(v[0], parts + i, k);
            for (int p = 1; p < n_parts; p++) {
                float u[W];
                load_once<W>(u, parts + p * n + i, k);
#pragma unroll
                for (int j = 0; j < W; j++)
                    v[0][j] += u[j];
            }
        }
        store<W>(out + i, v[0], k);
    });
}

extern "C" int cuda_sum_parts(
    struct sherd_queue *queue, void *out, const void *parts, int64_t n, int n_parts, enum sherd_dtype type)
{
    cudaStream_t stream = cuda_enter(queue);
    WITH_TYPE("reduce-scatter", type, T, WITH_WIDTH(n % WIDE == 0 && aligned16(out) && aligned16(parts), {
        auto kernel = n_parts == 2   ? sum_parts_kernel<T, W, 2>
                      : n_parts == 4 ? sum_parts_kernel<T, W, 4>
                      : n_parts == 8 ? sum_parts_kernel<T, W, 8>
                                     : sum_parts_kernel<T, W, 0>;
        kernel<<<blocks_for(n, THREADS * W), THREADS, 0, stream>>>((T *)out, (const T *)parts, n, n_parts);
    }))
    return CUDA_LAUNCHED("reduce-scatter");
}

/* ---- sums of columns: every part takes a fixed range of rows, then the parts are added in order ---- */

#define SUM_LANES 32   /* threads along columns */
#define SUM_ROWS 8     /* threads along rows */
#define SUM_BATCH 8    /* rows in flight for a thread */
#define SUM_BLOCKS 528 /* all of them are on the GPU at once: four for each of 132 multiprocessors */
/* Along parts, which are few and far apart: their loads should be under way at once. */
#define PART_ROWS 32
#define PART_BATCH 20

template <typename T, int W>
__global__ void __launch_bounds__(SUM_LANES *SUM_ROWS)
    bias_parts_kernel(float *parts, const T *dy, int64_t rows, int64_t cols, int64_t rows_each)
{
    __shared__ __align__(16) float share[SUM_ROWS][SUM_LANES * W];
    int64_t c = ((int64_t)blockIdx.x * SUM_LANES + threadIdx.x) * W;
    int64_t first = blockIdx.y * rows_each;
    int64_t last = first + rows_each < rows ? first + rows_each : rows;
    float sum[W] = { 0 };
    const T *at = dy + (first + threadIdx.y) * cols + c;
    int n = c < cols ? (int)((last - first - threadIdx.y + SUM_ROWS - 1) / SUM_ROWS) : 0;
    for (; n > 0; n -= SUM_BATCH, at += SUM_BATCH * SUM_ROWS * cols)
        add_batch<SUM_BATCH, T>(sum, 0, n, [&](int u) { return at + u * SUM_ROWS * cols; });
#pragma unroll
    for (int j = 0; j < W; j++)
        share[threadIdx.y][threadIdx.x * W + j] = sum[j];
    __syncthreads();
    int64_t left = cols - (int64_t)blockIdx.x * SUM_LANES * W;
    parts += blockIdx.y * cols + (int64_t)blockIdx.x * SUM_LANES * W;
    for (int i = threadIdx.y * SUM_LANES + threadIdx.x; i < SUM_LANES * W && i < left;
         i += SUM_LANES * SUM_ROWS) {
        float s = 0;
#pragma unroll
        for (int r = 0; r < SUM_ROWS; r++)
            s += share[r][i];
        parts[i] = s;
    }
}

template <typename G>
__global__ void __launch_bounds__(SUM_LANES *PART_ROWS)
    reduce_parts_kernel(struct cuda_parts a, struct cuda_parts b, int64_t n_parts, int64_t cols)
{
    __shared__ float share[PART_ROWS][SUM_LANES + 1];
    wait_for_kernel_before();
    struct cuda_parts s = blockIdx.y ? b : a;
    int64_t c = (int64_t)blockIdx.x * SUM_LANES + threadIdx.x;
    int64_t each = (n_parts + PART_ROWS - 1) / PART_ROWS;
    int64_t first = threadIdx.y * each;
    int64_t last = first + each < n_parts ? first + each : n_parts;
    const float *at = s.parts + first * cols + c;
    float sum = 0;
    if (c < cols)
        for (int n = (int)(last - first); n > 0; n -= PART_BATCH) {
            float v[PART_BATCH];
#pragma unroll
            for (int u = 0; u < PART_BATCH; u++, at += cols)
                if (u < n)
                    v[u] = *at;
#pragma unroll
            for (int u = 0; u < PART_BATCH; u++)
                if (u < n)
                    sum += v[u];
        }
    share[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || c >= cols)
        return;
    sum = 0;
#pragma unroll
    for (int i = 0; i < PART_ROWS; i++)
        sum += share[i][threadIdx.x];
    G *out = (G *)s.out + c;
    from_float(out, (s.overwrite ? 0.0f : to_float(*out)) + sum);
}

extern "C" void cuda_reduce_parts(const struct sherd_queue *queue, struct cuda_parts a, struct cuda_parts b,
    enum sherd_dtype type, int64_t n_parts, int64_t cols)
{
    if (!a.out && !b.out)
        return;
    dim3 block(SUM_LANES, PART_ROWS), grid(blocks_for(cols, SUM_LANES), a.out && b.out ? 2 : 1);
    if (!a.out)
        a = b;
    if (type == SHERD_F32)
        launch_behind(queue, reduce_parts_kernel<float>, grid, block, a, b, n_parts, cols);
    else if (type == SHERD_BF16)
        launch_behind(queue, reduce_parts_kernel<bf16>, grid, block, a, b, n_parts, cols);
    else
        launch_behind(queue, reduce_parts_kernel<f16>, grid, block, a, b, n_parts, cols);
}

extern "C" int cuda_bias_backward(struct sherd_queue *queue, const void *args)
{
    const struct sherd_bias_backward *a = (const struct sherd_bias_backward *)args;
    cudaStream_t stream = cuda_enter(queue);
    int64_t parts = 1;
    dim3 block(SUM_LANES, SUM_ROWS);
    if (a->rows == 0 || a->cols == 0)
        return SHERD_OK;
    if (a->grad_type != SHERD_F32 && a->grad_type != SHERD_BF16 && a->grad_type != SHERD_F16)
        return cuda_unsupported("bias_backward", a->grad_type);
    WITH_TYPE("bias_backward", a->type, T, WITH_WIDTH(a->cols % WIDE == 0 && aligned16(a->dy), {
        unsigned wide = blocks_for(a->cols, SUM_LANES * W);
        /* as many as there is room for, but each of whole batches, which may leave fewer */
        parts = MIN(MAX(SUM_BLOCKS / wide, 1), scratch_row_blocks(a->rows));
        int64_t each = round_up((a->rows + parts - 1) / parts, SUM_BATCH * SUM_ROWS);
        parts = (a->rows + each - 1) / each;
        bias_parts_kernel<T, W><<<dim3(wide, (unsigned)parts), block, 0, stream>>>(
            (float *)a->scratch, (const T *)a->dy, a->rows, a->cols, each);
    }))
    struct cuda_parts db = { a->db, (const float *)a->scratch, a->overwrite }, none = { NULL, NULL, 0 };
    cuda_reduce_parts(queue, db, none, a->grad_type, parts, a->cols);
    return CUDA_LAUNCHED("bias_backward");
}

/* ---- the matrix product without a library, for what the library refuses ---- */

#define TILE 16

template <typename T, typename Y> __global__ void matmul_plain_kernel(struct sherd_matmul a)
{
    __shared__ float sa[TILE][TILE + 1], sb[TILE][TILE + 1];
    int64_t tiles_n = (a.n + TILE - 1) / TILE;
    int64_t row = blockIdx.x / tiles_n * TILE + threadIdx.y;
    int64_t col = blockIdx.x % tiles_n * TILE + threadIdx.x;
    int64_t lda = a.a_pitch ? a.a_pitch : a.trans_a ? a.m : a.k, ldc = a.c_pitch ? a.c_pitch : a.n;
    const T *pa = (const T *)a.a, *pb = (const T *)a.b;
    float sum = 0;
    for (int64_t k0 = 0; k0 < a.k; k0 += TILE) {
        int64_t ka = k0 + threadIdx.x, kb = k0 + threadIdx.y;
        sa[threadIdx.y][threadIdx.x] =
            row < a.m && ka < a.k ? to_float(pa[a.trans_a ? ka * lda + row : row * lda + ka]) : 0.0f;
        sb[threadIdx.y][threadIdx.x] =
            col < a.n && kb < a.k ? to_float(pb[a.trans_b ? col * a.k + kb : kb * a.n + col]) : 0.0f;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < TILE; i++)
            sum += sa[threadIdx.y][i] * sb[i][threadIdx.x];
        __syncthreads();
    }
    if (row >= a.m || col >= a.n)
        return;
    if (a.bias)
        sum += to_float(((const T *)a.bias)[col]);
    if (a.add)
        sum += to_float(((const Y *)a.add)[row * ldc + col]);
    from_float(&((Y *)a.c)[row * ldc + col], sum);
}

extern "C" int cuda_matmul_plain(cudaStream_t stream, const struct sherd_matmul *a)
{
    dim3 block(TILE, TILE);
    unsigned blocks = (unsigned)(((a->m + TILE - 1) / TILE) * ((a->n + TILE - 1) / TILE));
    WITH_TYPE("matmul", a->type, T,
        WITH_TYPE("matmul", a->c_type, Y, { matmul_plain_kernel<T, Y><<<blocks, block, 0, stream>>>(*a); }))
    return CUDA_LAUNCHED("matmul");
}

template <typename T, typename Y>
__global__ void add_bias_kernel(Y *c, const T *bias, int64_t rows, int64_t cols, int64_t pitch)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < rows * cols)
        from_float(&c[i / cols * pitch + i % cols],
            to_float(c[i / cols * pitch + i % cols]) + to_float(bias[i % cols]));
}

extern "C" int cuda_add_bias(cudaStream_t stream, const struct sherd_matmul *a)
{
    WITH_TYPE("matmul", a->type, T, WITH_TYPE("matmul", a->c_type, Y, {
        add_bias_kernel<T, Y><<<blocks_for(a->m * a->n, THREADS), THREADS, 0, stream>>>(
            (Y *)a->c, (const T *)a->bias, a->m, a->n, a->c_pitch ? a->c_pitch : a->n);
    }))
    return CUDA_LAUNCHED("matmul");
}
