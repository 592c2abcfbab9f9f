/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What all kernels share: packed loads and stores, sums over a warp and a block, and the choice of element
 * type and width. Arithmetic is float; W elements a thread, 8 where every pointer is aligned to 16 bytes,
 * else 1.
 */
#ifndef SHERD_DEVICE_CUDA_UTIL_CUH
#define SHERD_DEVICE_CUDA_UTIL_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_pipeline_primitives.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "device/cuda/launch.h"

typedef __nv_bfloat16 bf16;
typedef __half f16;

#define WIDE 8
#define THREADS 256

static __device__ __forceinline__ float to_float(float x)
{
    return x;
}

static __device__ __forceinline__ float to_float(bf16 x)
{
    return __bfloat162float(x);
}

static __device__ __forceinline__ float to_float(f16 x)
{
    return __half2float(x);
}

static __device__ __forceinline__ void from_float(float *y, float x)
{
    *y = x;
}

static __device__ __forceinline__ void from_float(bf16 *y, float x)
{
    *y = __float2bfloat16_rn(x);
}

static __device__ __forceinline__ void from_float(f16 *y, float x)
{
    *y = __float2half_rn(x);
}

/* 16 bytes to global memory at once: what compilers know for pairs of halves, they would store as four. */
static __device__ __forceinline__ void store16(void *p, uint4 raw)
{
    asm volatile(
        "st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(raw.x), "r"(raw.y), "r"(raw.z), "r"(raw.w)
        : "memory");
}

template <int W, typename T> static __device__ __forceinline__ void store(T *p, const float (&v)[W], int k)
{
    constexpr int lanes = 16 / sizeof(T);
    if (W == WIDE && k == W) {
#pragma unroll
        for (int i = 0; i < W; i += lanes) {
            uint4 raw;
            T *x = reinterpret_cast<T *>(&raw);
#pragma unroll
            for (int j = 0; j < lanes && j < W; j++)
                from_float(&x[j], v[(i + j) % W]);
            store16(p + i, raw);
        }
        return;
    }
#pragma unroll
    for (int j = 0; j < W; j++)
        if (j < k)
            from_float(&p[j], v[j]);
}

/* WIDE elements as they lie in memory: on their way they take fewer registers than floats would. */
template <typename T> struct pack {
    uint4 raw[WIDE * sizeof(T) / 16];
};

/* ONCE: nobody reads it again soon, so caches need not keep it. */
template <bool ONCE, typename T> static __device__ __forceinline__ void fetch(struct pack<T> *p, const T *at)
{
#pragma unroll
    for (int i = 0; i < (int)(WIDE * sizeof(T) / 16); i++)
        p->raw[i] =
            ONCE ? __ldcs(reinterpret_cast<const uint4 *>(at) + i) : reinterpret_cast<const uint4 *>(at)[i];
}

template <typename T> static __device__ __forceinline__ void clear(struct pack<T> *p)
{
#pragma unroll
    for (int i = 0; i < (int)(WIDE * sizeof(T) / 16); i++)
        p->raw[i] = make_uint4(0, 0, 0, 0);
}

/* Two elements of a word; of bf16 by one instruction each. */
static __device__ __forceinline__ float2 halves_of(uint32_t raw, bf16)
{
    return make_float2(__uint_as_float(raw << 16), __uint_as_float(raw & 0xffff0000u));
}

static __device__ __forceinline__ float2 halves_of(uint32_t raw, f16)
{
    return __half22float2(*reinterpret_cast<const __half2 *>(&raw));
}

template <typename T> static __device__ __forceinline__ void unpack(float (&v)[WIDE], const struct pack<T> &p)
{
#pragma unroll
    for (int i = 0; i < (int)(WIDE * sizeof(T) / 16); i++) {
        const uint32_t raw[4] = { p.raw[i].x, p.raw[i].y, p.raw[i].z, p.raw[i].w };
#pragma unroll
        for (int j = 0; j < 4; j++)
            if constexpr (sizeof(T) == 4) {
                v[i * 4 + j] = __uint_as_float(raw[j]);
            } else {
                float2 two = halves_of(raw[j], T());
                v[2 * j] = two.x;
                v[2 * j + 1] = two.y;
            }
    }
}

/* v[W] = p[0..k), zeros behind; k = W takes 16 bytes at a time. */
template <int W, typename T> static __device__ __forceinline__ void load(float (&v)[W], const T *p, int k)
{
    if constexpr (W == WIDE)
        if (k == W) {
            struct pack<T> raw;
            fetch<false>(&raw, p);
            unpack(v, raw);
            return;
        }
#pragma unroll
    for (int j = 0; j < W; j++)
        v[j] = j < k ? to_float(p[j]) : 0.0f;
}

/* From here on compilers take p for new, and unpack it again in place of keeping the floats. */
template <typename T> static __device__ __forceinline__ void renew(struct pack<T> *p)
{
#pragma unroll
    for (int i = 0; i < (int)(WIDE * sizeof(T) / 16); i++)
        asm volatile("" : "+r"(p->raw[i].x), "+r"(p->raw[i].y), "+r"(p->raw[i].z), "+r"(p->raw[i].w));
}

/* WIDE elements to shared memory by themselves, while the thread goes on: it waits for its own copies alone,
 * by __pipeline_wait_prior, and reads no others'. */
template <typename T> static __device__ __forceinline__ void fetch_aside(struct pack<T> *shared, const T *at)
{
#pragma unroll
    for (int i = 0; i < (int)(WIDE * sizeof(T) / 16); i++)
        __pipeline_memcpy_async(&shared->raw[i], reinterpret_cast<const uint4 *>(at) + i, 16);
}

/* Elements on their way. */
template <typename T, int W> struct piece {
    struct pack<T> p;
    __device__ __forceinline__ void take(const T *at)
    {
        fetch<false>(&p, at);
    }
    __device__ __forceinline__ void add_to(float (&sum)[W]) const
    {
        float v[W];
        unpack(v, p);
#pragma unroll
        for (int j = 0; j < W; j++)
            sum[j] += v[j];
    }
};

template <typename T> struct piece<T, 1> {
    T x;
    __device__ __forceinline__ void take(const T *at)
    {
        x = *at;
    }
    __device__ __forceinline__ void add_to(float (&sum)[1]) const
    {
        sum[0] += to_float(x);
    }
};

/* sum[W] += what lies at(i), at(i + 1), ... at(n - 1), in order, but no more than N; all is under way at
 * once. */
template <int N, typename T, int W, typename I, typename F>
static __device__ __forceinline__ void add_batch(float (&sum)[W], I i, I n, F at)
{
    struct piece<T, W> p[N];
#pragma unroll
    for (int u = 0; u < N; u++)
        if (i + u < n)
            p[u].take(at(i + u));
#pragma unroll
    for (int u = 0; u < N; u++)
        if (i + u < n)
            p[u].add_to(sum);
}

/* As load, of what nobody reads again soon. */
template <int W, typename T>
static __device__ __forceinline__ void load_once(float (&v)[W], const T *p, int k)
{
    if constexpr (W == WIDE)
        if (k == W) {
            struct pack<T> raw;
            fetch<true>(&raw, p);
            unpack(v, raw);
            return;
        }
    load<W>(v, p, k);
}

/* This thread's first element of n, and how many of its W there are (0: nothing to do). */
template <int W> static __device__ __forceinline__ int my_span(int64_t n, int64_t *first)
{
    *first = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * W;
    int64_t left = n - *first;
    return left <= 0 ? 0 : left < W ? (int)left : W;
}

template <int K> struct whole {
    __device__ constexpr operator int() const
    {
        return K;
    }
};

/* body(first, k) for this thread's k elements of n; k is a constant where it has all W: loads that each ask
 * for k would wait for one another. */
template <int W, typename F> static __device__ __forceinline__ void with_span(int64_t n, F body)
{
    int64_t first;
    int k = my_span<W>(n, &first);
    if (k == W)
        body(first, whole<W>());
    else if (k > 0)
        body(first, k);
}

template <typename N> static __device__ __forceinline__ N warp_sum(N x)
{
#pragma unroll
    for (int lane = 16; lane > 0; lane >>= 1)
        x += __shfl_xor_sync(0xffffffffu, x, lane);
    return x;
}

/* The same sum in every thread of the block, in a fixed order. All threads call it; blockDim.x is a multiple
 * of 32. */
template <typename N> static __device__ __forceinline__ N block_sum(N x)
{
    __shared__ N part[32];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    x = warp_sum(x);
    if (lane == 0)
        part[warp] = x;
    __syncthreads();
    x = warp_sum(lane < warps ? part[lane] : (N)0);
    __syncthreads(); /* part is free for the next sum */
    return x;
}

/* Two sums at once, for one wait instead of two. */
static __device__ __forceinline__ void block_sum2(float *x, float *y)
{
    __shared__ float part[2][32];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    *x = warp_sum(*x);
    *y = warp_sum(*y);
    if (lane == 0) {
        part[0][warp] = *x;
        part[1][warp] = *y;
    }
    __syncthreads();
    *x = warp_sum(lane < warps ? part[0][lane] : 0.0f);
    *y = warp_sum(lane < warps ? part[1][lane] : 0.0f);
    __syncthreads();
}

/* First in a kernel that launch_behind starts, in every thread and before any memory is read or written: from
 * here on all that is before it in the queue is done. */
static __device__ __forceinline__ void wait_for_kernel_before(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* ---- on the host ---- */

/* A small kernel that takes up what the one before it in the queue has left: it is set up while that one
 * ends, where the GPU can do that. Before it touches memory it calls wait_for_kernel_before. */
template <typename... P, typename... A>
static inline void launch_behind(
    const struct sherd_queue *queue, void (*kernel)(P...), dim3 grid, dim3 block, A... args)
{
    cudaLaunchAttribute early = {};
    cudaLaunchConfig_t config = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = grid;
    config.blockDim = block;
    config.stream = cuda_queue(queue)->stream;
    config.attrs = &early;
    config.numAttrs = cuda_early(queue) ? 1 : 0;
    (void)cudaLaunchKernelEx(&config, kernel, args...); /* CUDA_LAUNCHED sees its error */
}

static inline int aligned16(const void *p)
{
    return ((uintptr_t)p & 15) == 0; /* so is NULL */
}

static inline unsigned blocks_for(int64_t n, int64_t each)
{
    return (unsigned)((n + each - 1) / each);
}

static inline int round32(int64_t n, int max)
{
    int64_t r = (n + 31) / 32 * 32;
    return r < 32 ? 32 : r > max ? max : (int)r;
}

#define CASE_OF(name, own, T, ...)                                                                           \
    case name: {                                                                                             \
        typedef own T;                                                                                       \
        __VA_ARGS__                                                                                          \
    } break;

/* Runs the statements with T as the element type; an operation returns EUNSUPPORTED for other types. */
#define WITH_TYPE(op, type, T, ...)                                                                          \
    switch (type) {                                                                                          \
        CASE_OF(SHERD_F32, float, T, __VA_ARGS__)                                                            \
        CASE_OF(SHERD_BF16, bf16, T, __VA_ARGS__)                                                            \
        CASE_OF(SHERD_F16, f16, T, __VA_ARGS__)                                                              \
    default:                                                                                                 \
        return cuda_unsupported(op, type);                                                                   \
    }

/* The same for states of optimizers. */
#define WITH_STATE(op, type, T, ...)                                                                         \
    switch (type) {                                                                                          \
        CASE_OF(SHERD_F32, float, T, __VA_ARGS__)                                                            \
        CASE_OF(SHERD_BF16, bf16, T, __VA_ARGS__)                                                            \
    default:                                                                                                 \
        return cuda_unsupported(op, type);                                                                   \
    }

/* ... with W as the elements a thread takes. */
#define WITH_WIDTH(wide, ...)                                                                                \
    if (wide) {                                                                                              \
        constexpr int W = WIDE;                                                                              \
        __VA_ARGS__                                                                                          \
    } else {                                                                                                 \
        constexpr int W = 1;                                                                                 \
        __VA_ARGS__                                                                                          \
    }

#endif
