/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What an optimizer needs: one pass over parameters and states, square sums in a fixed order, the clip
 * factor. Compiled without contraction (meson.build): how a compiler fuses a product and a sum differs from
 * one width to another, and an element's bits must not depend on where its slice begins.
 */
#include <math.h>

#include "device/cuda/util.cuh"
#include "device/scratch.h"

#define SUM_THREADS 1024
#define UPDATE_BLOCKS 4 /* of THREADS, on a multiprocessor: what one computes, others load */

/* ---- floats as two halves, as base/half.h has them ---- */

/* Eight or one int16 as floats' rest. */
template <int W> static __device__ __forceinline__ void load_low(int (&v)[W], const int16_t *p, int k)
{
    if (W == WIDE && k == W) {
        uint4 raw = *reinterpret_cast<const uint4 *>(p);
        const int16_t *x = reinterpret_cast<const int16_t *>(&raw);
#pragma unroll
        for (int j = 0; j < W; j++)
            v[j] = x[j % WIDE];
        return;
    }
#pragma unroll
    for (int j = 0; j < W; j++)
        v[j] = j < k ? p[j] : 0;
}

/* The upper halves of u[W], or the lower ones. */
template <int W, bool LOWER = false>
static __device__ __forceinline__ void store_upper(void *p, const uint32_t (&u)[WIDE], int k)
{
    constexpr unsigned pick = LOWER ? 0x5410 : 0x7632;
    if (W == WIDE && k == W) {
        store16(p, make_uint4(__byte_perm(u[0], u[1], pick), __byte_perm(u[2], u[3], pick),
                       __byte_perm(u[4], u[5], pick), __byte_perm(u[6], u[7], pick)));
        return;
    }
#pragma unroll
    for (int j = 0; j < W; j++)
        if (j < k)
            reinterpret_cast<uint16_t *>(p)[j] = (uint16_t)(LOWER ? u[j] : u[j] >> 16);
}

/* w[W] to the halves: the rounded one to param, the rest to low, which may be NULL. */
template <int W>
static __device__ __forceinline__ void store_halves(bf16 *param, int16_t *low, const float (&w)[W], int k)
{
    uint32_t u[WIDE], high[WIDE];
#pragma unroll
    for (int j = 0; j < W; j++) {
        u[j] = __float_as_uint(w[j]);
        if (isnan(w[j]))
            u[j] = (u[j] & 0x80000000u) | 0x7fc00000u;
        high[j] = u[j] + 0x8000u;
    }
    store_upper<W>(param, high, k);
    if (low)
        store_upper<W, true>(low, u, k);
}

template <int W>
static __device__ __forceinline__ void store_param(float *param, int16_t *, const float (&w)[W], int k)
{
    store<W>(param, w, k);
}

template <int W>
static __device__ __forceinline__ void store_param(f16 *param, int16_t *, const float (&w)[W], int k)
{
    store<W>(param, w, k);
}

template <int W>
static __device__ __forceinline__ void store_param(bf16 *param, int16_t *low, const float (&w)[W], int k)
{
    store_halves<W>(param, low, w, k);
}

static __device__ __forceinline__ float join_halves(float high, int rest)
{
    return __uint_as_float(__float_as_uint(high) + (uint32_t)rest);
}

/* The float weights: master, or param, of 16 bits then, and low. */
template <int W, typename P>
static __device__ __forceinline__ void load_weight(
    float (&w)[W], const P *param, const float *master, const int16_t *low, int k)
{
    if (sizeof(P) == 2 && W == WIDE && k == W) { /* 32 bytes either way, so that no load is behind a branch */
        uint4 raw[2] = { *reinterpret_cast<const uint4 *>(low ? (const void *)param : master),
            *reinterpret_cast<const uint4 *>(low ? (const void *)low : master + 4) };
        const float *floats = reinterpret_cast<const float *>(raw);
        const P *high = reinterpret_cast<const P *>(raw);
        const int16_t *rest = reinterpret_cast<const int16_t *>(&raw[1]);
#pragma unroll
        for (int j = 0; j < W; j++)
            w[j] = low ? join_halves(to_float(high[j % WIDE]), rest[j % WIDE]) : floats[j % WIDE];
        return;
    }
    if (sizeof(P) == 4 || !low) {
        load<W>(w, master, k);
        return;
    }
    int rest[W];
    load<W>(w, param, k);
    load_low<W>(rest, low, k);
#pragma unroll
    for (int j = 0; j < W; j++)
        w[j] = join_halves(w[j], rest[j]);
}

/* ---- rounding at random: Philox 4x32-10, as base/rng.c has it ---- */

struct draws {
    uint64_t seed, stream, block;
    int64_t first;
};

/* A step has 2^32 blocks of four words, one word for an element. */
static __host__ __device__ uint64_t block_of(int64_t step)
{
    return (uint64_t)step << 32;
}

static struct draws draws_of(uint64_t seed, uint64_t stream, int64_t step, int64_t first)
{
    struct draws d = { seed, stream, block_of(step), first };
    return d;
}

static __device__ __forceinline__ uint4 philox(uint64_t seed, uint64_t stream, uint64_t counter)
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    uint4 c =
        make_uint4((uint32_t)counter, (uint32_t)(counter >> 32), (uint32_t)stream, (uint32_t)(stream >> 32));
#pragma unroll
    for (int i = 0; i < 10; i++) {
        uint32_t h0 = __umulhi(0xD2511F53u, c.x), l0 = 0xD2511F53u * c.x;
        uint32_t h1 = __umulhi(0xCD9E8D57u, c.z), l1 = 0xCD9E8D57u * c.z;
        c = make_uint4(h1 ^ c.y ^ k0, l1, h0 ^ c.w ^ k1, l0);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c;
}

/* One word for each of the elements [i, i + W). */
template <int W>
static __device__ __forceinline__ void draw(uint32_t (&word)[W], const struct draws &d, int64_t i)
{
    uint4 c = make_uint4(0, 0, 0, 0);
    if (W == WIDE && d.first % 4 == 0) { /* as below, in fewer branches */
#pragma unroll
        for (int j = 0; j < W; j += 4) {
            c = philox(d.seed, d.stream, d.block + (uint64_t)((d.first + i + j) >> 2));
            word[j] = c.x;
            word[(j + 1) % W] = c.y;
            word[(j + 2) % W] = c.z;
            word[(j + 3) % W] = c.w;
        }
        return;
    }
#pragma unroll
    for (int j = 0; j < W; j++) {
        int64_t at = d.first + i + j;
        int lane = (int)(at & 3);
        if (j == 0 || lane == 0)
            c = philox(d.seed, d.stream, d.block + (uint64_t)(at >> 2));
        word[j] = lane == 0 ? c.x : lane == 1 ? c.y : lane == 2 ? c.z : c.w;
    }
}

/* An element rounded at random: the result is its upper half. */
static __device__ __forceinline__ uint32_t round_at_random(float v, uint32_t random)
{
    uint32_t u = __float_as_uint(v);
    if (fabsf(v) < INFINITY)
        u += random;
    if (isnan(v))
        u |= 0x400000u;
    return u;
}

template <int SHIFT, int W>
static __device__ __forceinline__ void store_state(
    float *p, const float (&v)[W], const uint32_t (&)[W], int k)
{
    store<W>(p, v, k);
}

/* SHIFT says which half of a word decides. */
template <int SHIFT, int W>
static __device__ __forceinline__ void store_state(
    bf16 *p, const float (&v)[W], const uint32_t (&word)[W], int k)
{
    uint32_t rounded[WIDE];
#pragma unroll
    for (int j = 0; j < W; j++)
        rounded[j] = round_at_random(v[j], word[j] >> SHIFT & 0xffffu);
    store_upper<W>(p, rounded, k);
}

static __device__ __forceinline__ int is_float(const float *)
{
    return 1;
}

static __device__ __forceinline__ int is_float(const bf16 *)
{
    return 0;
}

/* ---- updates ---- */

/* What does not depend on the element, as the CPU has it. */
struct adamw_step {
    float beta1, beta2, rise1, rise2; /* rise: 1 - beta */
    float rate;                       /* lr / c1 */
    float root;                       /* 1 / sqrt(c2) */
    float keep;                       /* 1 - lr * weight_decay */
    float eps, weight_decay;
};

template <typename P, typename G, typename S, int W>
__global__ void __launch_bounds__(THREADS, UPDATE_BLOCKS)
    adamw_kernel(P *param, float *master, int16_t *low, S *m, S *v, const G *grad, const float *factor,
        const struct sherd_rates *rates, int64_t n, struct adamw_step s, struct draws draws)
{
    float f = *factor;
    if (rates) {
        draws.block = block_of(rates->step);
        s.rate = rates->rate;
        s.root = rates->root;
        s.keep = (float)(1.0 - (double)rates->lr * (double)s.weight_decay);
    }
    with_span<W>(n, [&](int64_t i, auto k) {
        float g[W], w[W], a[W], b[W];
        uint32_t word[W] = {};
        load<W>(g, grad + i, k);
        load<W>(a, m + i, k);
        load<W>(b, v + i, k);
        load_weight<W>(w, param + i, master + i, low ? low + i : NULL, k);
        if (!is_float(m)) /* while the loads are under way */
            draw<W>(word, draws, i);
        if (isnan(f)) /* behind the loads, so that they do not wait for it */
            return;
#pragma unroll
        for (int j = 0; j < W; j++) {
            g[j] *= f;
            a[j] = s.beta1 * a[j] + s.rise1 * g[j];
            b[j] = s.beta2 * b[j] + s.rise2 * (g[j] * g[j]);
            w[j] = s.keep * w[j] - s.rate * a[j] / (sqrtf(b[j]) * s.root + s.eps);
        }
        if (!low)
            store<W>(master + i, w, k);
        store_state<0, W>(m + i, a, word, k);
        store_state<16, W>(v + i, b, word, k);
        if (param)
            store_param<W>(param + i, low ? low + i : NULL, w, k);
    });
}

extern "C" int cuda_adamw(struct sherd_queue *queue, const void *args)
{
    const struct sherd_adamw *a = (const struct sherd_adamw *)args;
    cudaStream_t stream = cuda_enter(queue);
    enum sherd_dtype param_type = a->param ? a->param_type : SHERD_F32;
    double step = (double)a->step, beta1 = (double)a->beta1, beta2 = (double)a->beta2;
    struct adamw_step s;
    if (a->n == 0)
        return SHERD_OK;
    s.beta1 = a->beta1;
    s.beta2 = a->beta2;
    s.rise1 = (float)(1.0 - beta1);
    s.rise2 = (float)(1.0 - beta2);
    s.rate = (float)((double)a->lr / (1.0 - pow(beta1, step)));
    s.root = (float)(1.0 / sqrt(1.0 - pow(beta2, step)));
    s.keep = (float)(1.0 - (double)a->lr * (double)a->weight_decay);
    s.eps = a->eps;
    s.weight_decay = a->weight_decay;
    struct draws draws = draws_of(a->seed, a->stream, a->step, a->first);
    int wide = aligned16(a->param) && aligned16(a->master) && aligned16(a->low) && aligned16(a->m) &&
               aligned16(a->v) && aligned16(a->grad);
    WITH_TYPE("adamw", param_type, P,
        WITH_TYPE("adamw", a->grad_type, G, WITH_STATE("adamw", a->state_type, S, WITH_WIDTH(wide, {
            adamw_kernel<P, G, S, W><<<blocks_for(a->n, THREADS * W), THREADS, 0, stream>>>((P *)a->param,
                a->master, a->low, (S *)a->m, (S *)a->v, (const G *)a->grad, a->factor, a->rates, a->n, s,
                draws);
        }))))
    return CUDA_LAUNCHED("adamw");
}

template <typename P, typename G, typename S, int W>
__global__ void __launch_bounds__(THREADS, UPDATE_BLOCKS) sgd_kernel(P *param, float *master, int16_t *low,
    S *m, const G *grad, const float *factor, const struct sherd_rates *rates, int64_t n, float lr,
    float momentum, float weight_decay, struct draws draws)
{
    float f = *factor;
    if (rates) {
        draws.block = block_of(rates->step);
        lr = rates->lr;
    }
    with_span<W>(n, [&](int64_t i, auto k) {
        float g[W], w[W], a[W];
        uint32_t word[W] = {};
        load<W>(g, grad + i, k);
        load_weight<W>(w, param + i, master + i, low ? low + i : NULL, k);
        load<W>(a, m + i, momentum != 0 ? (int)k : 0);
        if (m && !is_float(m))
            draw<W>(word, draws, i);
        if (isnan(f))
            return;
#pragma unroll
        for (int j = 0; j < W; j++) {
            a[j] = momentum * a[j] + (g[j] * f + weight_decay * w[j]);
            w[j] -= lr * a[j];
        }
        if (!low)
            store<W>(master + i, w, k);
        if (m)
            store_state<0, W>(m + i, a, word, k);
        if (param)
            store_param<W>(param + i, low ? low + i : NULL, w, k);
    });
}

extern "C" int cuda_sgd(struct sherd_queue *queue, const void *args)
{
    const struct sherd_sgd *a = (const struct sherd_sgd *)args;
    cudaStream_t stream = cuda_enter(queue);
    enum sherd_dtype param_type = a->param ? a->param_type : SHERD_F32;
    float momentum = a->step == 1 ? 0.0f : a->momentum; /* momentum 0: m is not read */
    if (a->n == 0)
        return SHERD_OK;
    struct draws draws = draws_of(a->seed, a->stream, a->step, a->first);
    int wide = aligned16(a->param) && aligned16(a->master) && aligned16(a->low) && aligned16(a->m) &&
               aligned16(a->grad);
    WITH_TYPE("sgd", param_type, P,
        WITH_TYPE("sgd", a->grad_type, G, WITH_STATE("sgd", a->state_type, S, WITH_WIDTH(wide, {
            sgd_kernel<P, G, S, W><<<blocks_for(a->n, THREADS * W), THREADS, 0, stream>>>((P *)a->param,
                a->master, a->low, (S *)a->m, (const G *)a->grad, a->factor, a->rates, a->n, a->lr, momentum,
                a->weight_decay, draws);
        }))))
    return CUDA_LAUNCHED("sgd");
}

template <int W> __global__ void split_kernel(bf16 *param, int16_t *low, const float *master, int64_t n)
{
    int64_t i;
    int k = my_span<W>(n, &i);
    float w[W];
    if (k == 0)
        return;
    load<W>(w, master + i, k);
    store_halves<W>(param + i, low ? low + i : NULL, w, k);
}

extern "C" int cuda_split(struct sherd_queue *queue, const void *args)
{
    const struct sherd_split *a = (const struct sherd_split *)args;
    cudaStream_t stream = cuda_enter(queue);
    if (a->n == 0)
        return SHERD_OK;
    WITH_WIDTH(aligned16(a->param) && aligned16(a->low) && aligned16(a->master), {
        split_kernel<W><<<blocks_for(a->n, THREADS * W), THREADS, 0, stream>>>(
            (bf16 *)a->param, a->low, a->master, a->n);
    })
    return CUDA_LAUNCHED("split");
}

template <int W> __global__ void join_kernel(float *master, const bf16 *param, const int16_t *low, int64_t n)
{
    int64_t i;
    int k = my_span<W>(n, &i);
    float w[W];
    if (k == 0)
        return;
    load<W>(w, param + i, k);
    if (low)
        load_weight<W>(w, param + i, NULL, low + i, k);
    store<W>(master + i, w, k);
}

extern "C" int cuda_join(struct sherd_queue *queue, const void *args)
{
    const struct sherd_join *a = (const struct sherd_join *)args;
    cudaStream_t stream = cuda_enter(queue);
    if (a->n == 0)
        return SHERD_OK;
    WITH_WIDTH(aligned16(a->param) && aligned16(a->low) && aligned16(a->master), {
        join_kernel<W><<<blocks_for(a->n, THREADS * W), THREADS, 0, stream>>>(
            a->master, (const bf16 *)a->param, a->low, a->n);
    })
    return CUDA_LAUNCHED("join");
}

/* ---- sums in double ---- */

/* parts[block] = the square sum of the block's SCRATCH_SUM_ELEMS elements. */
template <typename T, int W>
__global__ void __launch_bounds__(SUM_THREADS) square_parts_kernel(double *parts, const T *x, int64_t n)
{
    int64_t first = (int64_t)blockIdx.x * SCRATCH_SUM_ELEMS;
    int64_t last = first + SCRATCH_SUM_ELEMS < n ? first + SCRATCH_SUM_ELEMS : n;
    double sum = 0;
    for (int64_t i = first + (int64_t)threadIdx.x * W; i < last; i += SUM_THREADS * W) {
        float v[W];
        load<W>(v, x + i, last - i < W ? (int)(last - i) : W);
#pragma unroll
        for (int j = 0; j < W; j++)
            sum = fma((double)v[j], (double)v[j], sum); /* as written: the square of a float is exact */
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        parts[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(SUM_THREADS) add_parts_kernel(double *sum, const double *parts, int64_t n)
{
    double s = 0;
    for (int64_t i = threadIdx.x; i < n; i += SUM_THREADS)
        s += parts[i];
    s = block_sum(s);
    if (threadIdx.x == 0)
        *sum += s;
}

extern "C" int cuda_square_sum(struct sherd_queue *queue, const void *args)
{
    const struct sherd_square_sum *a = (const struct sherd_square_sum *)args;
    cudaStream_t stream = cuda_enter(queue);
    int64_t parts = scratch_sum_blocks(a->n);
    if (a->n == 0)
        return SHERD_OK;
    WITH_TYPE("square_sum", a->type, T, WITH_WIDTH(aligned16(a->x), {
        square_parts_kernel<T, W>
            <<<(unsigned)parts, SUM_THREADS, 0, stream>>>((double *)a->scratch, (const T *)a->x, a->n);
    }))
    add_parts_kernel<<<1, SUM_THREADS, 0, stream>>>(a->sum, (const double *)a->scratch, parts);
    return CUDA_LAUNCHED("square_sum");
}

__global__ void ordered_sum_kernel(double *out, const double *in, int64_t n, int64_t stride, int64_t cols)
{
    int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= cols)
        return;
    double s = 0;
    for (int64_t i = 0; i < n; i++)
        s += in[i * stride + c];
    out[c] = s;
}

extern "C" int cuda_ordered_sum(struct sherd_queue *queue, const void *args)
{
    const struct sherd_ordered_sum *a = (const struct sherd_ordered_sum *)args;
    cudaStream_t stream = cuda_enter(queue);
    if (a->cols == 0)
        return SHERD_OK;
    ordered_sum_kernel<<<blocks_for(a->cols, THREADS), THREADS, 0, stream>>>(
        a->out, a->in, a->n, a->stride, a->cols);
    return CUDA_LAUNCHED("ordered_sum");
}

__global__ void clip_factor_kernel(float *factor, double *norm, const double *square_sum, const double *loss,
    const double *scale, float max_norm)
{
    double s = scale ? *scale : 1.0, n = sqrt(*square_sum) / s, f = 1.0;
    *norm = n;
    if (!isfinite(n) || (loss && !isfinite(*loss)))
        f = NAN;
    else if (max_norm > 0 && (double)max_norm / (n + 1e-6) < 1.0)
        f = (double)max_norm / (n + 1e-6);
    *factor = (float)(f / s);
}

extern "C" int cuda_clip_factor(struct sherd_queue *queue, const void *args)
{
    const struct sherd_clip_factor *a = (const struct sherd_clip_factor *)args;
    cudaStream_t stream = cuda_enter(queue);
    clip_factor_kernel<<<1, 1, 0, stream>>>(
        a->factor, a->norm, a->square_sum, a->loss, a->scale, a->max_norm);
    return CUDA_LAUNCHED("clip_factor");
}
