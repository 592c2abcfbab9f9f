/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Softmax cross entropy, a row to a block: one pass for the maximum and the sum of exponentials together, one
 * for the gradient in place, of a row that stays in shared memory where two of its length have room there.
 * Rows of an odd vocabulary start anywhere, so the elements before the first 16-byte boundary and behind the
 * last are taken one by one.
 */
#include <math.h>

#include "base/status.h"
#include "device/cuda/util.cuh"

#define HELD_THREADS 512 /* where the row is held in shared memory: two blocks, or more */
#define READ_THREADS 1024
#define SUM_THREADS 1024

struct online {
    float max, sum; /* sum of exp(x - max); max -inf: of nothing yet */
};

/* x - base(max) is never NaN where x is -inf. */
static __device__ __forceinline__ float base(float max)
{
    return max == -INFINITY ? 0.0f : max;
}

/* exp(x), x <= 0; the fast one where results have 16 bits. */
template <typename T> static __device__ __forceinline__ float power(float x)
{
    return sizeof(T) == 2 ? __expf(x) : expf(x);
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
};

template <typename T> static __device__ void clear_row(T *x, int64_t n)
{
    for (int64_t c = threadIdx.x; c < n; c += blockDim.x)
        from_float(&x[c], 0.0f);
}

/* A thread's share of a row's packs, several of them under way at once; kept in `held` where there is one. */
template <typename T, bool HELD>
static __device__ __forceinline__ struct online sum_packs(struct pack<T> *held, const T *x, int packs)
{
    constexpr int BATCH = 8 / sizeof(T);
    struct online o = { -INFINITY, 0 };
    for (int p = threadIdx.x; p < packs; p += BATCH * blockDim.x) {
        struct pack<T> raw[BATCH];
        float v[WIDE], max = o.max;
#pragma unroll
        for (int u = 0; u < BATCH; u++)
            if (p + u * (int)blockDim.x < packs)
                fetch<HELD>(&raw[u], x + (int64_t)(p + u * (int)blockDim.x) * WIDE);
#pragma unroll
        for (int u = 0; u < BATCH; u++) {
            if (p + u * (int)blockDim.x >= packs)
                break;
            if (HELD)
                held[p + u * (int)blockDim.x] = raw[u];
            unpack(v, raw[u]);
#pragma unroll
            for (int j = 0; j < WIDE; j++)
                max = fmaxf(max, v[j]);
        }
        o.sum *= expf(o.max - base(max));
#pragma unroll
        for (int u = 0; u < BATCH; u++) {
            if (p + u * (int)blockDim.x >= packs)
                break;
            unpack(v, raw[u]);
#pragma unroll
            for (int j = 0; j < WIDE; j++)
                o.sum += power<T>(v[j] - base(max));
        }
        o.max = max;
    }
    return o;
}

/* One more element. */
static __device__ __forceinline__ void take(struct online *o, float x)
{
    float max = fmaxf(o->max, x);
    o->sum = o->sum * expf(o->max - base(max)) + expf(x - base(max));
    o->max = max;
}

template <typename T>
static __device__ __forceinline__ void write_pack(T *x, const struct pack<T> &raw, const struct slope *s)
{
    float v[WIDE];
    unpack(v, raw);
#pragma unroll
    for (int j = 0; j < WIDE; j++)
        v[j] = power<T>(v[j] - s->max) * s->scale;
    store<WIDE>(x, v, WIDE);
}

template <typename T, bool HELD>
__global__ void __launch_bounds__(HELD ? HELD_THREADS : READ_THREADS, HELD ? 3 : 2)
    loss_kernel(const __grid_constant__ struct sherd_loss a, unsigned long long *fault)
{
    extern __shared__ uint4 shared[];
    struct pack<T> *held = reinterpret_cast<struct pack<T> *>(shared);
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
    int packs = (int)cut.packs;
    int64_t single = n - cut.packs * WIDE, skip = cut.packs * WIDE; /* what lies between single elements */
    float at_target = to_float(x[target]); /* before anybody writes: block_max and block_sum stand between */
    struct online o = sum_packs<T, HELD>(held, x + cut.head, packs);
    for (int64_t c = threadIdx.x; c < single; c += blockDim.x)
        take(&o, to_float(x[c < cut.head ? c : c + skip]));
    float max = block_max(o.max);
    float sum = block_sum(o.sum * expf(o.max - base(max)));
    if (threadIdx.x == 0)
        losses[row] = log((double)sum) + (double)max - (double)at_target;
    if (!a.backward)
        return;
    struct slope s = { max, (float)(1.0 / ((double)sum * *a.count)),
        (float)(((double)expf(at_target - max) / (double)sum - 1.0) / *a.count) };
    if (HELD)
        for (int p = threadIdx.x; p < packs; p += blockDim.x)
            write_pack(x + cut.head + (int64_t)p * WIDE, held[p], &s);
    else /* backwards: what was read last is still in the cache */
        for (int p = packs - 1 - (int)threadIdx.x; p >= 0; p -= (int)blockDim.x) {
            struct pack<T> raw;
            fetch<true>(&raw, (const T *)x + cut.head + (int64_t)p * WIDE);
            write_pack(x + cut.head + (int64_t)p * WIDE, raw, &s);
        }
    for (int64_t c = threadIdx.x; c < single; c += blockDim.x) {
        int64_t at = c < cut.head ? c : c + skip;
        from_float(&x[at], power<T>(to_float(x[at]) - s.max) * s.scale);
    }
    __syncthreads();
    if (threadIdx.x == 0)
        from_float(&x[target], s.at_target); /* over what its pack had */
}

/* Bytes of shared memory that a block may have where a multiprocessor is to have two. */
static size_t half_of_shared(void)
{
    int device = 0, all = 0, block = 0, own = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&all, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
    cudaDeviceGetAttribute(&block, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    cudaDeviceGetAttribute(&own, cudaDevAttrReservedSharedMemoryPerBlock, device);
    int half = MIN(all / 2 - own, block) - 1024; /* some is for the sums */
    return half > 0 ? (size_t)half : 0;
}

template <typename T>
static int launch_loss(cudaStream_t stream, const struct sherd_loss *a, unsigned long long *fault)
{
    size_t row = (size_t)a->vocab * sizeof(T);
    int packs = round32(a->vocab / WIDE, READ_THREADS);
    if (row > half_of_shared()) {
        loss_kernel<T, false><<<(unsigned)a->rows, packs, 0, stream>>>(*a, fault);
        return SHERD_OK;
    }
    CUDA_TRY(cudaFuncSetAttribute(
        loss_kernel<T, true>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)half_of_shared()));
    loss_kernel<T, true><<<(unsigned)a->rows, MIN(packs, HELD_THREADS), row, stream>>>(*a, fault);
    return SHERD_OK;
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
    WITH_TYPE("loss", a->type, T, { SHERD_TRY(launch_loss<T>(stream, a, fault)); })
    sum_losses_kernel<<<1, SUM_THREADS, 0, stream>>>(a->sum, (const double *)a->scratch, a->rows);
    return CUDA_LAUNCHED("loss");
}
