/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Softmax cross entropy, a row to a block: one pass for the maximum and the sum of exponentials together, one
 * for the gradient in place, of a row that comes to shared memory by itself where two of its length have room
 * there. Rows of an odd vocabulary start anywhere, so the elements before the first 16-byte boundary and
 * behind the last are taken one by one.
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

/* The gradient of a row is exp(x - max) * scale but at the target; scale = 1 / (sum * count) = 2^shift. */
struct slope {
    float max, sum, count, scale, shift;
    float at_target; /* the target's x */
};

template <typename T> static __device__ __forceinline__ float slope_at(const struct slope *s, float x)
{
    return sizeof(T) == 2 ? two_to(fmaf(x - s->max, LOG2_E, s->shift)) : expf(x - s->max) * s->scale;
}

static __device__ __forceinline__ float target_slope(const struct slope *s)
{
    return (expf(s->at_target - s->max) / s->sum - 1.0f) / s->count;
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

/* A thread's share of a row's packs, BATCH of them between two looks at the maximum. */
template <typename T>
static __device__ __forceinline__ struct online sum_packs(const struct pack<T> *x, int packs)
{
    constexpr int BATCH = 8 / sizeof(T);
    struct online o = { -INFINITY, 0 };
    for (int p = threadIdx.x; p < packs; p += BATCH * blockDim.x) {
        struct pack<T> raw[BATCH];
        float v[WIDE], max = o.max;
        bool all = p + (BATCH - 1) * (int)blockDim.x < packs; /* one question in place of BATCH */
#pragma unroll
        for (int u = 0; u < BATCH; u++)
            raw[u] = x[all || p + u * (int)blockDim.x < packs ? p + u * (int)blockDim.x : p];
#pragma unroll
        for (int u = 0; u < BATCH; u++)
            max = fmaxf(max, largest(raw[u]));
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

/* The sum of all threads' shares, for all of them, by one wait; `turn` is another one for the next row. */
template <typename T> static __device__ __forceinline__ struct online row_sum(struct online o, int turn)
{
    __shared__ float shares[2][2][32];
    float *maxes = shares[turn][0], *sums = shares[turn][1];
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

/* A row of the logits: `head` single elements, `packs` of WIDE, and the rest single again. All zeros for one
 * that there is not. */
template <typename T> struct row_of {
    T *x;
    int head, packs;
    int64_t target;
};

template <typename T>
static __device__ __forceinline__ void find_row(struct row_of<T> *r, const struct sherd_loss *a, int64_t row)
{
    *r = {};
    if (row >= a->rows)
        return;
    r->x = (T *)a->logits + row * (a->pitch ? a->pitch : a->vocab);
    int64_t head = (int64_t)((16 - ((uintptr_t)r->x & 15)) & 15) / (int64_t)sizeof(T);
    r->head = (int)(head < a->vocab ? head : a->vocab);
    r->packs = (int)((a->vocab - r->head) / WIDE);
    r->target = a->targets[row];
}

/* The gradient over a thread's packs of its own row, if it is wanted. Where they are HELD, those of the next
 * row come into the places of what has been used. */
template <typename T, bool HELD>
static __device__ __forceinline__ void write_row(const struct row_of<T> *own, const struct row_of<T> *next,
    struct pack<T> *held, const struct slope *s, bool wanted)
{
    T *packs = own->x + own->head;
    int most = HELD && next->packs > own->packs ? next->packs : own->packs;
    int target_pack = wanted && own->target >= own->head ? (int)(own->target - own->head) / WIDE : -1;
    for (int q = threadIdx.x; q < most; q += blockDim.x) {
        int p = HELD ? q : own->packs - 1 - q; /* backwards: what was read last is still in the cache */
        if (wanted && p < own->packs) {
            struct pack<T> raw;
            if (HELD)
                raw = held[p];
            else
                fetch<true>(&raw, (const T *)packs + p * WIDE);
            write_pack(packs + p * WIDE, raw, s);
            if (p == target_pack) /* over what its pack had */
                from_float(&own->x[own->target], target_slope(s));
        }
        if (HELD && p < next->packs)
            fetch_aside(&held[p], (const T *)next->x + next->head + p * WIDE);
    }
    if (HELD)
        __pipeline_commit();
}

/* Blocks that stay take row after row, HELD in shared memory, or read twice. */
template <typename T, bool HELD>
__global__ void __launch_bounds__(HELD ? HELD_THREADS : READ_THREADS, HELD ? 3 : 2)
    loss_kernel(const __grid_constant__ struct sherd_loss a, unsigned long long *fault)
{
    extern __shared__ uint4 shared[];
    int turn = 0, tid = threadIdx.x;
    double *losses = (double *)a.scratch;
    struct pack<T> *held = reinterpret_cast<struct pack<T> *>(shared);
    struct row_of<T> own = {}, next;
    struct slope s = {};
    s.count = a.backward ? (float)*a.count : 1.0f;
    find_row(&next, &a, blockIdx.x);
    if (HELD)
        write_row<T, HELD>(&own, &next, held, &s, false);
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        own = next;
        find_row(&next, &a, row + gridDim.x);
        if (!HELD)
            held = reinterpret_cast<struct pack<T> *>(own.x + own.head);
        bool known = own.target >= 0 && own.target < a.vocab, wanted = known && a.backward;
        int skip = own.packs * WIDE, single = (int)a.vocab - skip; /* fewer than a warp */
        int at = tid < own.head ? tid : tid + skip;
        /* before anybody writes: row_sum stands between */
        float alone = tid < single ? to_float(own.x[at]) : -INFINITY;
        s.at_target = to_float(own.x[known ? own.target : 0]);
        if (HELD)
            __pipeline_wait_prior(0);
        if (known) { /* the same for all threads */
            struct online o = sum_packs(held, own.packs);
            take<T>(&o, alone);
            o = row_sum<T>(o, turn);
            turn ^= 1;
            if (tid == 0)
                losses[row] = (double)logf(o.sum) + (double)o.max - (double)s.at_target;
            s.max = o.max;
            s.sum = o.sum;
            s.scale = 1.0f / (s.sum * s.count);
            s.shift = log2f(s.scale);
        } else {
            if (tid == 0)
                losses[row] = 0;
            if (tid == 0 && own.target >= a.vocab)
                atomicMin(fault, (unsigned long long)row << 32 | (uint32_t)own.target);
            if (a.backward)
                clear_row(own.x, a.vocab);
        }
        write_row<T, HELD>(&own, &next, held, &s, wanted);
        if (wanted && tid < single)
            from_float(&own.x[at], at == own.target ? target_slope(&s) : slope_at<T>(&s, alone));
    }
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

template <typename T, bool HELD>
static int launch_with(cudaStream_t stream, const struct sherd_loss *a, unsigned long long *fault)
{
    auto kernel = loss_kernel<T, HELD>;
    size_t shared = HELD ? (size_t)(a->vocab / WIDE) * sizeof(struct pack<T>) : 0;
    int size = round32(a->vocab / WIDE, HELD ? HELD_THREADS : READ_THREADS), device = 0, processors = 0,
        each = 0;
    int64_t blocks = a->rows;
    if (HELD) {
        CUDA_TRY(cudaGetDevice(&device));
        CUDA_TRY(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
        CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
        CUDA_TRY(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, size, shared));
        blocks = MIN(blocks, (int64_t)processors * each);
    }
    kernel<<<(unsigned)blocks, size, shared, stream>>>(*a, fault);
    return SHERD_OK;
}

template <typename T>
static int launch_loss(cudaStream_t stream, const struct sherd_loss *a, unsigned long long *fault)
{
    size_t row = (size_t)a->vocab * sizeof(T);
    if (row > half_of_shared())
        return launch_with<T, false>(stream, a, fault);
    return launch_with<T, true>(stream, a, fault);
}

/* *sum += losses[rows], in an order that depends on rows alone. */
__global__ void __launch_bounds__(SUM_THREADS)
    sum_losses_kernel(double *sum, const double *losses, int64_t rows)
{
    double s = 0;
    wait_for_kernel_before();
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
    launch_behind(queue, sum_losses_kernel, 1, SUM_THREADS, a->sum, (const double *)a->scratch, a->rows);
    return CUDA_LAUNCHED("loss");
}
