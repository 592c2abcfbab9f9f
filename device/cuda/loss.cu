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
#define LOG2_E 1.4426950408889634f

struct online {
    float max, sum; /* sum of exp(x - max); max -inf: of nothing yet */
};

/* x - base(max) is never NaN where x is -inf. */
static __device__ __forceinline__ float base(float max)
{
    return max == -INFINITY ? 0.0f : max;
}

static __device__ __forceinline__ float two_to(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* exp(x), x <= 0; the fast one where results have 16 bits. */
template <typename T> static __device__ __forceinline__ float power(float x)
{
    return sizeof(T) == 2 ? two_to(x * LOG2_E) : expf(x);
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

/* The gradient of a row is exp(x - max) * scale but at the target; scale = 2^shift. */
struct slope {
    float max, scale, shift;
};

template <typename T> static __device__ __forceinline__ float slope_at(const struct slope *s, float x)
{
    return sizeof(T) == 2 ? two_to(fmaf(x - s->max, LOG2_E, s->shift)) : expf(x - s->max) * s->scale;
}

template <typename T> static __device__ void clear_row(T *x, int64_t n)
{
    for (int64_t c = threadIdx.x; c < n; c += blockDim.x)
        from_float(&x[c], 0.0f);
}

static __device__ __forceinline__ float largest(const struct pack<float> &p)
{
    float v[WIDE];
    unpack(v, p);
    float m = v[0];
#pragma unroll
    for (int j = 1; j < WIDE; j++)
        m = fmaxf(m, v[j]);
    return m;
}

template <typename T2, typename T>
static __device__ __forceinline__ float largest_of_pairs(const struct pack<T> &p)
{
    const T2 *x = reinterpret_cast<const T2 *>(p.raw);
    T2 m = __hmax2(__hmax2(x[0], x[1]), __hmax2(x[2], x[3]));
    return fmaxf(to_float(m.x), to_float(m.y));
}

static __device__ __forceinline__ float largest(const struct pack<bf16> &p)
{
    return largest_of_pairs<__nv_bfloat162>(p);
}

static __device__ __forceinline__ float largest(const struct pack<f16> &p)
{
    return largest_of_pairs<__half2>(p);
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
        bool all = p + (BATCH - 1) * (int)blockDim.x < packs; /* one question in place of BATCH */
#pragma unroll
        for (int u = 0; u < BATCH; u++)
            if (all || p + u * (int)blockDim.x < packs)
                fetch<HELD>(&raw[u], x + (int64_t)(p + u * (int)blockDim.x) * WIDE);
            else
                raw[u] = raw[0]; /* changes no maximum */
#pragma unroll
        for (int u = 0; u < BATCH; u++) {
            if (HELD && (all || p + u * (int)blockDim.x < packs))
                held[p + u * (int)blockDim.x] = raw[u];
            max = fmaxf(max, largest(raw[u]));
        }
        o.sum *= power<T>(o.max - base(max));
#pragma unroll
        for (int u = 0; u < BATCH; u++) {
            if (!all && p + u * (int)blockDim.x >= packs)
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
template <typename T> static __device__ __forceinline__ void take(struct online *o, float x)
{
    float max = fmaxf(o->max, x);
    o->sum = o->sum * power<T>(o->max - base(max)) + power<T>(x - base(max));
    o->max = max;
}

/* The sum of all threads' shares, for all of them, by one wait; once a kernel. */
template <typename T> static __device__ __forceinline__ struct online row_sum(struct online o)
{
    __shared__ float maxes[32], sums[32];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    float max = o.max;
#pragma unroll
    for (int i = 16; i > 0; i >>= 1)
        max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, i));
    float sum = warp_sum(o.sum * power<T>(o.max - base(max)));
    if (lane == 0) {
        maxes[warp] = max;
        sums[warp] = sum;
    }
    __syncthreads();
    max = o.max = lane < warps ? maxes[lane] : -INFINITY;
    o.sum = lane < warps ? sums[lane] : 0.0f;
#pragma unroll
    for (int i = 16; i > 0; i >>= 1)
        max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, i));
    o.sum = warp_sum(o.sum * power<T>(o.max - base(max)));
    o.max = max;
    return o;
}

template <typename T>
static __device__ __forceinline__ void write_pack(T *x, const struct pack<T> &raw, const struct slope *s)
{
    float v[WIDE];
    unpack(v, raw);
#pragma unroll
    for (int j = 0; j < WIDE; j++)
        v[j] = slope_at<T>(s, v[j]);
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
    float at_target = to_float(x[target]); /* before anybody writes: row_sum stands between */
    struct online o = sum_packs<T, HELD>(held, x + cut.head, packs);
    for (int64_t c = threadIdx.x; c < single; c += blockDim.x)
        take<T>(&o, to_float(x[c < cut.head ? c : c + skip]));
    o = row_sum<T>(o);
    if (threadIdx.x == 0)
        losses[row] = log((double)o.sum) + (double)o.max - (double)at_target;
    if (!a.backward)
        return;
    float scale = 1.0f / (o.sum * (float)*a.count);
    struct slope s = { o.max, scale, log2f(scale) };
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
        from_float(&x[at], slope_at<T>(&s, to_float(x[at])));
    }
    __syncthreads();
    if (threadIdx.x == 0) /* over what its pack had */
        from_float(&x[target], (float)(((double)expf(at_target - o.max) / (double)o.sum - 1.0) / *a.count));
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
