/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Activations and rotary positions. Where an output may be an input, every thread reads all it needs before
 * it writes, and no two threads share elements. Where a backward writes y as well it is by forward's own
 * expression, for forward's bits.
 */
#include "device/cuda/util.cuh"

#define GELU_SCALE 0.7978845608028654f /* sqrt(2 / pi) */
#define GELU_CUBE 0.044715f

/* Results of 16 bits need no more than the fast exponential and division, which take a third of the
 * instructions: with the exact ones a GPU at its power limit waits for them, not for memory. */
template <typename T> static __device__ __forceinline__ float sigmoid(float x)
{
    return sizeof(T) == 2 ? __fdividef(1.0f, 1.0f + __expf(-x)) : 1.0f / (1.0f + expf(-x));
}

/* y = gelu(x) by tanh's approximation, and its slope. x * sigmoid(2 u) is x * (1 + tanh(u)) / 2. */
template <typename T> static __device__ __forceinline__ float gelu(float x, float *slope)
{
    float u = GELU_SCALE * fmaf(GELU_CUBE * x * x, x, x);
    float inner = GELU_SCALE * (1.0f + 3.0f * GELU_CUBE * x * x);
    if (sizeof(T) == 2) {
        float s = sigmoid<T>(2.0f * u);
        *slope = s + 2.0f * x * (s * (1.0f - s)) * inner;
        return x * s;
    }
    float t = tanhf(u);
    *slope = 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * inner;
    return 0.5f * x * (1.0f + t);
}

template <typename T, int W> __global__ void gelu_forward_kernel(T *y, const T *x, int64_t n)
{
    int64_t i;
    int k = my_span<W>(n, &i);
    if (k == 0)
        return;
    float v[W], slope;
    load<W>(v, x + i, k);
#pragma unroll
    for (int j = 0; j < W; j++)
        v[j] = gelu<T>(v[j], &slope);
    store<W>(y + i, v, k);
}

template <typename T, int W>
__global__ void gelu_backward_kernel(T *dx, T *y, const T *dy, const T *x, int64_t n)
{
    with_span<W>(n, [&](int64_t i, auto k) {
        float v[W], g[W];
        load<W>(v, x + i, k);
        load<W>(g, dy + i, k);
#pragma unroll
        for (int j = 0; j < W; j++) {
            float slope;
            v[j] = gelu<T>(v[j], &slope);
            g[j] *= slope;
        }
        store<W>(dx + i, g, k);
        if (y)
            store<W>(y + i, v, k);
    });
}

extern "C" int cuda_gelu_forward(struct sherd_queue *queue, const void *args)
{
    const struct sherd_gelu_forward *a = (const struct sherd_gelu_forward *)args;
    cudaStream_t stream = cuda_enter(queue);
    if (a->n == 0)
        return SHERD_OK;
    WITH_TYPE("gelu_forward", a->type, T, WITH_WIDTH(aligned16(a->y) && aligned16(a->x), {
        gelu_forward_kernel<T, W>
            <<<blocks_for(a->n, THREADS * W), THREADS, 0, stream>>>((T *)a->y, (const T *)a->x, a->n);
    }))
    return CUDA_LAUNCHED("gelu_forward");
}

extern "C" int cuda_gelu_backward(struct sherd_queue *queue, const void *args)
{
    const struct sherd_gelu_backward *a = (const struct sherd_gelu_backward *)args;
    cudaStream_t stream = cuda_enter(queue);
    if (a->n == 0)
        return SHERD_OK;
    int wide = aligned16(a->dx) && aligned16(a->y) && aligned16(a->dy) && aligned16(a->x);
    WITH_TYPE("gelu_backward", a->type, T, WITH_WIDTH(wide, {
        gelu_backward_kernel<T, W><<<blocks_for(a->n, THREADS * W), THREADS, 0, stream>>>(
            (T *)a->dx, (T *)a->y, (const T *)a->dy, (const T *)a->x, a->n);
    }))
    return CUDA_LAUNCHED("gelu_backward");
}

/* ---- swiglu: blocks_each blocks for a row, so that one division a block finds the place ---- */

template <int W>
static __device__ __forceinline__ bool my_column(int64_t cols, unsigned blocks_each, int64_t *row, int64_t *c)
{
    *row = blockIdx.x / blocks_each;
    *c = ((int64_t)(blockIdx.x % blocks_each) * blockDim.x + threadIdx.x) * W;
    return *c < cols;
}

template <typename T, int W>
__global__ void swiglu_forward_kernel(T *y, const T *x, int64_t cols, unsigned blocks_each)
{
    int64_t row, c;
    if (!my_column<W>(cols, blocks_each, &row, &c))
        return;
    float gate[W], up[W];
    load<W>(gate, x + row * 2 * cols + c, W);
    load<W>(up, x + row * 2 * cols + cols + c, W);
#pragma unroll
    for (int j = 0; j < W; j++)
        up[j] *= gate[j] * sigmoid<T>(gate[j]);
    store<W>(y + row * cols + c, up, W);
}

template <typename T, int W>
__global__ void swiglu_backward_kernel(
    T *dx, T *y, const T *dy, const T *x, int64_t cols, unsigned blocks_each)
{
    int64_t row, c;
    if (!my_column<W>(cols, blocks_each, &row, &c))
        return;
    float gate[W], up[W], d[W];
    load<W>(gate, x + row * 2 * cols + c, W);
    load<W>(up, x + row * 2 * cols + cols + c, W);
    load<W>(d, dy + row * cols + c, W);
#pragma unroll
    for (int j = 0; j < W; j++) {
        float g = gate[j], u = up[j], s = sigmoid<T>(g);
        gate[j] = d[j] * u * s * (1.0f + g * (1.0f - s));
        up[j] = d[j] * g * s;
        d[j] = u * (g * s);
    }
    store<W>(dx + row * 2 * cols + c, gate, W);
    store<W>(dx + row * 2 * cols + cols + c, up, W);
    if (y)
        store<W>(y + row * cols + c, d, W);
}

extern "C" int cuda_swiglu_forward(struct sherd_queue *queue, const void *args)
{
    const struct sherd_swiglu_forward *a = (const struct sherd_swiglu_forward *)args;
    cudaStream_t stream = cuda_enter(queue);
    if (a->rows == 0 || a->cols == 0)
        return SHERD_OK;
    WITH_TYPE(
        "swiglu_forward", a->type, T, WITH_WIDTH(a->cols % WIDE == 0 && aligned16(a->y) && aligned16(a->x), {
            unsigned each = blocks_for(a->cols, THREADS * W);
            swiglu_forward_kernel<T, W><<<(unsigned)(a->rows * each), THREADS, 0, stream>>>(
                (T *)a->y, (const T *)a->x, a->cols, each);
        }))
    return CUDA_LAUNCHED("swiglu_forward");
}

extern "C" int cuda_swiglu_backward(struct sherd_queue *queue, const void *args)
{
    const struct sherd_swiglu_backward *a = (const struct sherd_swiglu_backward *)args;
    cudaStream_t stream = cuda_enter(queue);
    if (a->rows == 0 || a->cols == 0)
        return SHERD_OK;
    int wide =
        a->cols % WIDE == 0 && aligned16(a->dx) && aligned16(a->y) && aligned16(a->dy) && aligned16(a->x);
    WITH_TYPE("swiglu_backward", a->type, T, WITH_WIDTH(wide, {
        unsigned each = blocks_for(a->cols, THREADS * W);
        swiglu_backward_kernel<T, W><<<(unsigned)(a->rows * each), THREADS, 0, stream>>>(
            (T *)a->dx, (T *)a->y, (const T *)a->dy, (const T *)a->x, a->cols, each);
    }))
    return CUDA_LAUNCHED("swiglu_backward");
}

/* ---- rope: a block for a row; its angles once, for all heads ---- */

template <typename T, int W> __global__ void rope_kernel(const __grid_constant__ struct sherd_rope a)
{
    __shared__ float cosine[SHERD_MAX_HEAD_DIM / 2], sine[SHERD_MAX_HEAD_DIM / 2];
    int half = (int)a.head_dim / 2, each = half / W;
    int64_t row = blockIdx.x;
    double position = (double)(row % a.seq);
    for (int i = threadIdx.x; i < half; i += blockDim.x) {
        double s, c;
        sincos(position * (double)a.inv_freq[i], &s, &c); /* a float angle is off by 1e-4 at position 4000 */
        cosine[i] = (float)c;
        sine[i] = (float)(a.inverse ? -s : s);
    }
    __syncthreads();
    T *x = (T *)a.x + row * a.heads * a.head_dim;
    for (int64_t p = threadIdx.x; p < a.rotated * each; p += blockDim.x) {
        int i = (int)(p % each) * W;
        T *low = x + p / each * a.head_dim + i, *high = low + half;
        float u[W], v[W];
        load<W>(u, low, W);
        load<W>(v, high, W);
#pragma unroll
        for (int j = 0; j < W; j++) {
            float t = u[j] * cosine[i + j] - v[j] * sine[i + j];
            v[j] = v[j] * cosine[i + j] + u[j] * sine[i + j];
            u[j] = t;
        }
        store<W>(low, u, W);
        store<W>(high, v, W);
    }
}

extern "C" int cuda_rope(struct sherd_queue *queue, const void *args)
{
    const struct sherd_rope *a = (const struct sherd_rope *)args;
    cudaStream_t stream = cuda_enter(queue);
    int64_t rows = a->batch * a->seq;
    if (rows == 0 || a->rotated == 0)
        return SHERD_OK;
    WITH_TYPE("rope", a->type, T, WITH_WIDTH(a->head_dim % (2 * WIDE) == 0 && aligned16(a->x), {
        int threads = round32(a->rotated * (a->head_dim / 2 / W), THREADS);
        rope_kernel<T, W><<<(unsigned)rows, threads, 0, stream>>>(*a);
    }))
    return CUDA_LAUNCHED("rope");
}
