/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Softmax cross entropy, a row to a block: one pass for the maximum and the sum of exponentials together, one
 * for the gradient in place. Rows of an odd vocabulary start anywhere, so the elements before the first
 * 16-byte boundary and behind the last are taken one by one.
 */
#include <math.h>

#include "device/cuda/util.cuh"

#define LOSS_THREADS 512
#define SUM_THREADS 1024

struct online {
    float max, sum; /* sum of exp(x - max); max -inf: of nothing yet */
};

/* x - base(max) is never NaN where x is -inf. */
static __device__ __forceinline__ float base(float max)
{
    return max == -INFINITY ? 0.0f : max;
}

template <int W> static __device__ __forceinline__ void take(struct online *o, const float (&v)[W])
{
    float max = o->max;
#pragma unroll
    for (int j = 0; j < W; j++)
        max = fmaxf(max, v[j]);
    o->sum *= expf(o->max - base(max));
#pragma unroll
    for (int j = 0; j < W; j++)
        o->sum += expf(v[j] - base(max));
    o->max = max;
}

static __device__ __forceinline__ float block_max(float x)
{
    __shared__ float part[32];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
#pragma unroll
    for (int i = 16; i > 0; i >>= 1)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, i));
    if (lane == 0)
        part[warp] = x;
    __syncthreads();
    x = lane < warps ? part[lane] : -INFINITY;
#pragma unroll
    for (int i = 16; i > 0; i >>= 1)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, i));
    __syncthreads();
    return x;
}

/* A row: `head` single elements, `packs` of WIDE, and the rest single again. */
struct cut {
    int64_t head, packs;
};

template <typename T> static __device__ __forceinline__ struct cut cut_row(const T *x, int64_t n)
{
    int64_t head = (int64_t)((16 - ((uintptr_t)x & 15)) & 15) / (int64_t)sizeof(T);
    struct cut cut;
    cut.head = head < n ? head : n;
    cut.packs = (n - cut.head) / WIDE;
    return cut;
}

/* What the gradient of a row is made of: exp(x - max) * scale, but `at_target` at the target. */
struct slope {
    float max, scale, at_target;
    int64_t target;
};

template <typename T, int W>
static __device__ __forceinline__ void write_gradient(T *x, int64_t c, const struct slope *s)
{
    float v[W];
    load<W>(v, x + c, W);
#pragma unroll
    for (int j = 0; j < W; j++)
        v[j] = c + j == s->target ? s->at_target : expf(v[j] - s->max) * s->scale;
    store<W>(x + c, v, W);
}

template <typename T> static __device__ void clear_row(T *x, int64_t n)
{
    for (int64_t c = threadIdx.x; c < n; c += blockDim.x)
        from_float(&x[c], 0.0f);
}

template <typename T>
__global__ void __launch_bounds__(LOSS_THREADS)
    loss_kernel(const __grid_constant__ struct sherd_loss a, unsigned long long *fault)
{
    int64_t row = blockIdx.x, n = a.vocab, target = a.targets[row];
    T *x = (T *)a.logits + row * (a.pitch ? a.pitch : n);
    double *losses = (double *)a.scratch;
    if (target < 0 || target >= n) {
        if (threadIdx.x == 0) {
            losses[row] = 0;
            if (target >= n)
                atomicMin(fault, (unsigned long long)row << 32 | (uint32_t)target);
        }
        if (a.backward)
            clear_row(x, n);
        return;
    }
    struct cut cut = cut_row(x, n);
    int64_t body = cut.head + cut.packs * WIDE;
    struct online o = { -INFINITY, 0 };
    float at_target = to_float(x[target]); /* before anybody writes: block_max and block_sum stand between */
    float one[1], pack[WIDE];
    for (int64_t p = threadIdx.x; p < cut.packs; p += blockDim.x) {
        load<WIDE>(pack, x + cut.head + p * WIDE, WIDE);
        take<WIDE>(&o, pack);
    }
    for (int64_t c = threadIdx.x; c < n - cut.packs * WIDE; c += blockDim.x) {
        one[0] = to_float(x[c < cut.head ? c : c - cut.head + body]);
        take<1>(&o, one);
    }
    float max = block_max(o.max);
    float sum = block_sum(o.sum * expf(o.max - base(max)));
    if (threadIdx.x == 0)
        losses[row] = log((double)sum) + (double)max - (double)at_target;
    if (!a.backward)
        return;
    struct slope s = { max, (float)(1.0 / ((double)sum * *a.count)),
        (float)(((double)expf(at_target - max) / (double)sum - 1.0) / *a.count), target };
    /* Backwards: what was read last is still in the cache. */
    for (int64_t p = cut.packs - 1 - threadIdx.x; p >= 0; p -= blockDim.x)
        write_gradient<T, WIDE>(x, cut.head + p * WIDE, &s);
    for (int64_t c = threadIdx.x; c < n - cut.packs * WIDE; c += blockDim.x)
        write_gradient<T, 1>(x, c < cut.head ? c : c - cut.head + body, &s);
}

/* *sum += losses[rows], in an order that depends on rows alone. */
__global__ void __launch_bounds__(SUM_THREADS)
    sum_losses_kernel(double *sum, const double *losses, int64_t rows)
{
    double s = 0;
    for (int64_t r = threadIdx.x; r < rows; r += SUM_THREADS)
        s += losses[r];
    s = block_sum(s);
    if (threadIdx.x == 0)
        *sum += s;
}

extern "C" int cuda_loss(struct sherd_queue *queue, const void *args)
{
    const struct sherd_loss *a = (const struct sherd_loss *)args;
    cudaStream_t stream = cuda_enter(queue);
    if (a->rows == 0)
        return SHERD_OK;
    unsigned long long *fault = cuda_fault_word(queue, CUDA_FAULT_TARGET, a->vocab, 0);
    int threads = round32(a->vocab / WIDE, LOSS_THREADS);
    WITH_TYPE("loss", a->type, T, { loss_kernel<T><<<(unsigned)a->rows, threads, 0, stream>>>(*a, fault); })
    sum_losses_kernel<<<1, SUM_THREADS, 0, stream>>>(a->sum, (const double *)a->scratch, a->rows);
    return CUDA_LAUNCHED("loss");
}
