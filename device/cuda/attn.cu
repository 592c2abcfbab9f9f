/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * sherd's own fused attention, for types, shapes and machines that cuDNN does not serve. The score matrix is
 * never stored: a block holds one tile of queries (or keys) in shared memory and walks over the tiles of the
 * other. Backward makes two passes, one by key tiles (dk, dv) and one by query tiles (dq), so that every
 * output element is summed by one thread in a fixed order: no atomics, the same bits each time. Arithmetic is
 * in float.
 *
 * A block has 16 x 16 threads. Thread (y, x) holds rows y, y + 16, ... of a tile, and of the columns of a
 * score tile x, x + 16, ..., of the columns of a head four from 4x, 4x + 64, ... Letters: B batch, T
 * sequence, H heads, K kv heads, D head size (rows are padded to P in shared memory).
 */
#include "device/cuda/attn.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" {
#include "base/status.h"
}
#include "device/cuda/launch.h"

#define SIDE 16
#define THREADS (SIDE * SIDE)
#define LOG2E 1.44269504088896340736f

typedef __nv_bfloat16 bf16_t;
typedef __half f16_t;

/* Everything a kernel needs to know, by value. */
struct attn_shape {
    int64_t seq, heads, kv_heads, head_dim;
    float scale;
};

/* Elements from the start of qkv to one head of one batch, and from row to row. */
static __device__ int64_t qkv_row(const attn_shape &s)
{
    return (s.heads + 2 * s.kv_heads) * s.head_dim;
}

static __device__ int64_t qkv_at(const attn_shape &s, int64_t batch, int64_t head)
{
    return batch * s.seq * qkv_row(s) + head * s.head_dim;
}

static __device__ int64_t out_row(const attn_shape &s)
{
    return s.heads * s.head_dim;
}

static __device__ int64_t out_at(const attn_shape &s, int64_t batch, int64_t head)
{
    return batch * s.seq * out_row(s) + head * s.head_dim;
}

static __device__ float to_float(float x)
{
    return x;
}

static __device__ float to_float(bf16_t x)
{
    return __bfloat162float(x);
}

static __device__ float to_float(f16_t x)
{
    return __half2float(x);
}

static __device__ void from_float(float *y, float x)
{
    *y = x;
}

static __device__ void from_float(bf16_t *y, float x)
{
    *y = __float2bfloat16_rn(x);
}

static __device__ void from_float(f16_t *y, float x)
{
    *y = __float2half_rn(x);
}

/* Four neighbours at once; p is aligned to four elements. */
static __device__ float4 load4(const float *p)
{
    return *(const float4 *)p;
}

static __device__ float4 load4(const bf16_t *p)
{
    uint2 raw = *(const uint2 *)p;
    float2 lo = __bfloat1622float2(*(__nv_bfloat162 *)&raw.x),
           hi = __bfloat1622float2(*(__nv_bfloat162 *)&raw.y);
    return make_float4(lo.x, lo.y, hi.x, hi.y);
}

static __device__ float4 load4(const f16_t *p)
{
    uint2 raw = *(const uint2 *)p;
    float2 lo = __half22float2(*(__half2 *)&raw.x), hi = __half22float2(*(__half2 *)&raw.y);
    return make_float4(lo.x, lo.y, hi.x, hi.y);
}

/* tile[N][P + 4] = rows from..from+N of src; zero past the sequence and past the head. */
template <int N, int P, class T>
static __device__ void load_tile(float *tile, const T *src, int64_t row, int64_t from, const attn_shape &s)
{
    for (int i = threadIdx.x; i < N * (P / 4); i += THREADS) {
        int r = i / (P / 4), c = i % (P / 4) * 4;
        const T *at = src + (from + r) * row + c;
        float4 v = make_float4(0, 0, 0, 0);
        if (from + r < s.seq && c < s.head_dim) {
            if (s.head_dim % 4 == 0) {
                v = load4(at);
            } else {
                v.x = to_float(at[0]);
                v.y = c + 1 < s.head_dim ? to_float(at[1]) : 0;
                v.z = c + 2 < s.head_dim ? to_float(at[2]) : 0;
                v.w = c + 3 < s.head_dim ? to_float(at[3]) : 0;
            }
        }
        *(float4 *)(tile + r * (P + 4) + c) = v;
    }
}

/* The rows of this thread, times `factor[i]`, to dst. */
template <int R, int P, class T>
static __device__ void store_rows(T *dst, int64_t row, int64_t from, const attn_shape &s,
    const float (&x)[R][P / SIDE], const float (&factor)[R])
{
    int ty = threadIdx.x / SIDE, tx = threadIdx.x % SIDE;
#pragma unroll
    for (int i = 0; i < R; i++) {
        int64_t r = from + ty + SIDE * i;
        if (r >= s.seq)
            continue;
#pragma unroll
        for (int j = 0; j < P / SIDE; j++) {
            int c = 4 * tx + j / 4 * 64 + j % 4;
            if (c < s.head_dim)
                from_float(dst + r * row + c, x[i][j] * factor[i]);
        }
    }
}

/* s[i][j] = dot of row i of a and row j of b, over the head. */
template <int RA, int RB, int P>
static __device__ void dots(float (&s)[RA][RB], const float *a, const float *b)
{
    int ty = threadIdx.x / SIDE, tx = threadIdx.x % SIDE;
#pragma unroll
    for (int i = 0; i < RA; i++)
#pragma unroll
        for (int j = 0; j < RB; j++)
            s[i][j] = 0;
#pragma unroll 4
    for (int c = 0; c < P; c += 4) {
        float4 x[RA], y[RB];
#pragma unroll
        for (int i = 0; i < RA; i++)
            x[i] = *(const float4 *)(a + (ty + SIDE * i) * (P + 4) + c);
#pragma unroll
        for (int j = 0; j < RB; j++)
            y[j] = *(const float4 *)(b + (tx + SIDE * j) * (P + 4) + c);
#pragma unroll
        for (int i = 0; i < RA; i++)
#pragma unroll
            for (int j = 0; j < RB; j++)
                s[i][j] += x[i].x * y[j].x + x[i].y * y[j].y + x[i].z * y[j].z + x[i].w * y[j].w;
    }
}

/* o[i] += sum over n of w(i, n) * v[n], rows of v are heads. w is [rows][N + 4], or [N][rows + 4] if
 * `across`. */
template <int R, int N, int P, int ACROSS>
static __device__ void add_rows(float (&o)[R][P / SIDE], const float *w, const float *v)
{
    int ty = threadIdx.x / SIDE, tx = threadIdx.x % SIDE;
#pragma unroll 4
    for (int n = 0; n < N; n++) {
        float weight[R];
#pragma unroll
        for (int i = 0; i < R; i++) {
            int r = ty + SIDE * i;
            weight[i] = ACROSS ? w[n * (R * SIDE + 4) + r] : w[r * (N + 4) + n];
        }
#pragma unroll
        for (int q = 0; q < P / 64; q++) {
            float4 x = *(const float4 *)(v + n * (P + 4) + 4 * tx + 64 * q);
#pragma unroll
            for (int i = 0; i < R; i++) {
                o[i][4 * q + 0] += weight[i] * x.x;
                o[i][4 * q + 1] += weight[i] * x.y;
                o[i][4 * q + 2] += weight[i] * x.z;
                o[i][4 * q + 3] += weight[i] * x.w;
            }
        }
    }
}

/* x[rows][N + 4] = this thread's part. */
template <int RA, int RB> static __device__ void put_scores(float *x, const float (&s)[RA][RB])
{
    int ty = threadIdx.x / SIDE, tx = threadIdx.x % SIDE;
#pragma unroll
    for (int i = 0; i < RA; i++)
#pragma unroll
        for (int j = 0; j < RB; j++)
            x[(ty + SIDE * i) * (RB * SIDE + 4) + tx + SIDE * j] = s[i][j];
}

/* Over the 16 threads that share a row; all get the result, in the same order of operations. */
static __device__ float row_max(float x)
{
#pragma unroll
    for (int d = 8; d > 0; d /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, d));
    return x;
}

static __device__ float row_sum(float x)
{
#pragma unroll
    for (int d = 8; d > 0; d /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;
}

/* ---- forward: one block for M queries of one head ---- */

template <int M, int N, int P> static constexpr size_t forward_bytes()
{
    return sizeof(float) * (size_t)((M + N) * (P + 4) + M * (N + 4));
}

template <int M, int N, int P, class T>
static __global__ void __launch_bounds__(THREADS)
    forward(T *__restrict__ out, float *__restrict__ lse, const T *__restrict__ qkv, attn_shape s)
{
    constexpr int RM = M / SIDE, RN = N / SIDE;
    extern __shared__ float4 shared[];
    float *q_tile = (float *)shared, *kv_tile = q_tile + M * (P + 4), *p_tile = kv_tile + N * (P + 4);
    int ty = threadIdx.x / SIDE, tx = threadIdx.x % SIDE;
    /* The longest rows first: they bound the time. */
    int64_t q0 = (int64_t)(gridDim.x - 1 - blockIdx.x) * M, head = blockIdx.y, batch = blockIdx.z;
    int64_t kv_head = head / (s.heads / s.kv_heads);
    const T *k = qkv + qkv_at(s, batch, s.heads + kv_head);
    const T *v = qkv + qkv_at(s, batch, s.heads + s.kv_heads + kv_head);
    float o[RM][P / SIDE] = {}, max[RM], sum[RM], inverse[RM];
#pragma unroll
    for (int i = 0; i < RM; i++) {
        max[i] = -INFINITY;
        sum[i] = 0;
    }
    load_tile<M, P>(q_tile, qkv + qkv_at(s, batch, head), qkv_row(s), q0, s);
    for (int64_t k0 = 0; k0 < s.seq && k0 < q0 + M; k0 += N) {
        float x[RM][RN];
        load_tile<N, P>(kv_tile, k, qkv_row(s), k0, s);
        __syncthreads();
        dots<RM, RN, P>(x, q_tile, kv_tile);
#pragma unroll
        for (int i = 0; i < RM; i++) {
            int64_t row = q0 + ty + SIDE * i;
            float most = -INFINITY, total = 0;
#pragma unroll
            for (int j = 0; j < RN; j++) {
                int64_t col = k0 + tx + SIDE * j;
                x[i][j] = col <= row && col < s.seq ? x[i][j] * s.scale : -INFINITY;
                most = fmaxf(most, x[i][j]);
            }
            /* The first tile has column 0, which every row sees: new_max is finite from then on. */
            float new_max = fmaxf(max[i], row_max(most));
            float keep = exp2f((max[i] - new_max) * LOG2E);
#pragma unroll
            for (int j = 0; j < RN; j++) {
                x[i][j] = exp2f((x[i][j] - new_max) * LOG2E);
                total += x[i][j];
            }
            sum[i] = sum[i] * keep + row_sum(total);
            max[i] = new_max;
#pragma unroll
            for (int c = 0; c < P / SIDE; c++)
                o[i][c] *= keep;
        }
        put_scores<RM, RN>(p_tile, x);
        __syncthreads();
        load_tile<N, P>(kv_tile, v, qkv_row(s), k0, s);
        __syncthreads();
        add_rows<RM, N, P, 0>(o, p_tile, kv_tile);
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < RM; i++) {
        int64_t row = q0 + ty + SIDE * i;
        inverse[i] = 1.0f / sum[i];
        if (tx == 0 && row < s.seq)
            lse[(batch * s.heads + head) * s.seq + row] = max[i] + logf(sum[i]);
    }
    store_rows<RM, P>(out + out_at(s, batch, head), out_row(s), q0, s, o, inverse);
}

/* ---- backward ---- */

/* delta[b,h,t] = out . dout of the row: one warp a row. */
template <class T>
static __global__ void __launch_bounds__(THREADS) row_dots(float *__restrict__ delta,
    const T *__restrict__ out, const T *__restrict__ dout, attn_shape s, int64_t rows)
{
    int64_t r = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (r >= rows)
        return;
    int64_t t = r % s.seq, head = r / s.seq % s.heads, batch = r / s.seq / s.heads;
    int64_t at = out_at(s, batch, head) + t * out_row(s);
    float sum = 0;
    for (int64_t c = threadIdx.x % 32; c < s.head_dim; c += 32)
        sum += to_float(out[at + c]) * to_float(dout[at + c]);
#pragma unroll
    for (int d = 16; d > 0; d /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, d);
    if (threadIdx.x % 32 == 0)
        delta[r] = sum;
}

template <int M, int P> static constexpr size_t backward_bytes()
{
    return sizeof(float) * (size_t)(4 * M * (P + 4) + M * (M + 4));
}

/* Of the M queries from q0 and the M keys from k0, whose tiles are loaded: p, and the gradient of the scaled
 * scores. */
template <int R, int P>
static __device__ void probabilities(float (&p)[R][R], const float *q, const float *k, const float *lse,
    int64_t q0, int64_t k0, const attn_shape &s)
{
    int ty = threadIdx.x / SIDE, tx = threadIdx.x % SIDE;
    dots<R, R, P>(p, q, k);
#pragma unroll
    for (int i = 0; i < R; i++) {
        int64_t row = q0 + ty + SIDE * i;
        float l = row < s.seq ? lse[row] : 0;
#pragma unroll
        for (int j = 0; j < R; j++) {
            int64_t col = k0 + tx + SIDE * j;
            p[i][j] = col <= row && row < s.seq ? exp2f((p[i][j] * s.scale - l) * LOG2E) : 0;
        }
    }
}

template <int R, int P>
static __device__ void score_gradients(float (&ds)[R][R], const float (&p)[R][R], const float *dout,
    const float *v, const float *delta, int64_t q0, const attn_shape &s)
{
    int ty = threadIdx.x / SIDE;
    dots<R, R, P>(ds, dout, v);
#pragma unroll
    for (int i = 0; i < R; i++) {
        int64_t row = q0 + ty + SIDE * i;
        float d = row < s.seq ? delta[row] : 0;
#pragma unroll
        for (int j = 0; j < R; j++)
            ds[i][j] = p[i][j] * (ds[i][j] - d);
    }
}

template <int R> static __device__ void fill(float (&x)[R], float value)
{
#pragma unroll
    for (int i = 0; i < R; i++)
        x[i] = value;
}

/* One block for M keys of one kv head: over the q heads of the group in order, over their query tiles in
 * order. */
template <int M, int P, class T>
static __global__ void __launch_bounds__(THREADS) backward_kv(T *__restrict__ dqkv, const T *__restrict__ qkv,
    const T *__restrict__ dout, const float *__restrict__ lse, const float *__restrict__ delta, attn_shape s)
{
    constexpr int R = M / SIDE;
    extern __shared__ float4 shared[];
    float *k_tile = (float *)shared, *v_tile = k_tile + M * (P + 4), *q_tile = v_tile + M * (P + 4);
    float *do_tile = q_tile + M * (P + 4), *x_tile = do_tile + M * (P + 4);
    int64_t k0 = (int64_t)blockIdx.x * M, kv_head = blockIdx.y, batch = blockIdx.z,
            group = s.heads / s.kv_heads;
    int64_t k_at = qkv_at(s, batch, s.heads + kv_head),
            v_at = qkv_at(s, batch, s.heads + s.kv_heads + kv_head);
    float dk[R][P / SIDE] = {}, dv[R][P / SIDE] = {}, factor[R];
    load_tile<M, P>(k_tile, qkv + k_at, qkv_row(s), k0, s);
    load_tile<M, P>(v_tile, qkv + v_at, qkv_row(s), k0, s);
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++) {
        const float *row_lse = lse + (batch * s.heads + head) * s.seq;
        const float *row_delta = delta + (batch * s.heads + head) * s.seq;
        for (int64_t q0 = k0; q0 < s.seq; q0 += M) {
            float p[R][R], ds[R][R];
            load_tile<M, P>(q_tile, qkv + qkv_at(s, batch, head), qkv_row(s), q0, s);
            load_tile<M, P>(do_tile, dout + out_at(s, batch, head), out_row(s), q0, s);
            __syncthreads();
            probabilities<R, P>(p, q_tile, k_tile, row_lse, q0, k0, s);
            put_scores<R, R>(x_tile, p);
            __syncthreads();
            add_rows<R, M, P, 1>(dv, x_tile, do_tile);
            score_gradients<R, P>(ds, p, do_tile, v_tile, row_delta, q0, s);
            __syncthreads();
            put_scores<R, R>(x_tile, ds);
            __syncthreads();
            add_rows<R, M, P, 1>(dk, x_tile, q_tile);
            __syncthreads();
        }
    }
    fill(factor, s.scale);
    store_rows<R, P>(dqkv + k_at, qkv_row(s), k0, s, dk, factor);
    fill(factor, 1.0f);
    store_rows<R, P>(dqkv + v_at, qkv_row(s), k0, s, dv, factor);
}

/* One block for M queries of one head, over the key tiles in order. */
template <int M, int P, class T>
static __global__ void __launch_bounds__(THREADS) backward_q(T *__restrict__ dqkv, const T *__restrict__ qkv,
    const T *__restrict__ dout, const float *__restrict__ lse, const float *__restrict__ delta, attn_shape s)
{
    constexpr int R = M / SIDE;
    extern __shared__ float4 shared[];
    float *k_tile = (float *)shared, *v_tile = k_tile + M * (P + 4), *q_tile = v_tile + M * (P + 4);
    float *do_tile = q_tile + M * (P + 4), *x_tile = do_tile + M * (P + 4);
    int64_t q0 = (int64_t)(gridDim.x - 1 - blockIdx.x) * M, head = blockIdx.y, batch = blockIdx.z;
    int64_t kv_head = head / (s.heads / s.kv_heads), q_at = qkv_at(s, batch, head);
    const T *k = qkv + qkv_at(s, batch, s.heads + kv_head);
    const T *v = qkv + qkv_at(s, batch, s.heads + s.kv_heads + kv_head);
    const float *row_lse = lse + (batch * s.heads + head) * s.seq;
    const float *row_delta = delta + (batch * s.heads + head) * s.seq;
    float dq[R][P / SIDE] = {}, factor[R];
    load_tile<M, P>(q_tile, qkv + q_at, qkv_row(s), q0, s);
    load_tile<M, P>(do_tile, dout + out_at(s, batch, head), out_row(s), q0, s);
    for (int64_t k0 = 0; k0 <= q0; k0 += M) {
        float p[R][R], ds[R][R];
        load_tile<M, P>(k_tile, k, qkv_row(s), k0, s);
        load_tile<M, P>(v_tile, v, qkv_row(s), k0, s);
        __syncthreads();
        probabilities<R, P>(p, q_tile, k_tile, row_lse, q0, k0, s);
        score_gradients<R, P>(ds, p, do_tile, v_tile, row_delta, q0, s);
        put_scores<R, R>(x_tile, ds);
        __syncthreads();
        add_rows<R, M, P, 0>(dq, x_tile, k_tile);
        __syncthreads();
    }
    fill(factor, s.scale);
    store_rows<R, P>(dqkv + q_at, qkv_row(s), q0, s, dq, factor);
}

/* ---- launching ---- */

static attn_shape shape_of(int64_t seq, int64_t heads, int64_t kv_heads, int64_t head_dim, float scale)
{
    attn_shape s = { seq, heads, kv_heads, head_dim, scale };
    return s;
}

/* Blocks of more than 48 KiB of shared memory must be asked for. */
template <class F> static int allow(F *kernel, size_t bytes)
{
    return CUDA_CHECK(
        cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
}

static unsigned tiles(int64_t seq, int64_t each)
{
    return (unsigned)((seq + each - 1) / each);
}

/* The y and z of a grid go to 65535. */
static int check_grid(int64_t heads, int64_t batch)
{
    if (heads > 65535 || batch > 65535)
        return SHERD_FAIL(SHERD_EUNSUPPORTED, "attention: %lld heads, batch %lld: at most 65535 of each",
            (long long)heads, (long long)batch);
    return SHERD_OK;
}

template <int M, int N, int P, class T>
static int forward_launch(cudaStream_t stream, const struct sherd_attention_forward *a)
{
    constexpr size_t bytes = forward_bytes<M, N, P>();
    dim3 grid(tiles(a->seq, M), (unsigned)a->heads, (unsigned)a->batch);
    attn_shape s = shape_of(a->seq, a->heads, a->kv_heads, a->head_dim, a->scale);
    SHERD_TRY(allow(forward<M, N, P, T>, bytes));
    forward<M, N, P, T><<<grid, THREADS, bytes, stream>>>((T *)a->out, a->lse, (const T *)a->qkv, s);
    return CUDA_LAUNCHED("attention_forward");
}

template <class T> static int forward_pick(cudaStream_t stream, const struct sherd_attention_forward *a)
{
    if (a->head_dim <= 64)
        return forward_launch<64, 64, 64, T>(stream, a);
    if (a->head_dim <= 128)
        return forward_launch<64, 64, 128, T>(stream, a);
    return forward_launch<32, 32, 256, T>(stream, a);
}

template <int M, int P, class T>
static int backward_launch(cudaStream_t stream, const struct sherd_attention_backward *a)
{
    constexpr size_t bytes = backward_bytes<M, P>();
    int64_t rows = a->batch * a->heads * a->seq;
    attn_shape s = shape_of(a->seq, a->heads, a->kv_heads, a->head_dim, a->scale);
    dim3 kv_grid(tiles(a->seq, M), (unsigned)a->kv_heads, (unsigned)a->batch);
    dim3 q_grid(tiles(a->seq, M), (unsigned)a->heads, (unsigned)a->batch);
    float *delta = (float *)a->scratch;
    SHERD_TRY(allow(backward_kv<M, P, T>, bytes));
    SHERD_TRY(allow(backward_q<M, P, T>, bytes));
    row_dots<T><<<tiles(rows, THREADS / 32), THREADS, 0, stream>>>(
        delta, (const T *)a->out, (const T *)a->dout, s, rows);
    backward_kv<M, P, T><<<kv_grid, THREADS, bytes, stream>>>(
        (T *)a->dqkv, (const T *)a->qkv, (const T *)a->dout, a->lse, delta, s);
    backward_q<M, P, T><<<q_grid, THREADS, bytes, stream>>>(
        (T *)a->dqkv, (const T *)a->qkv, (const T *)a->dout, a->lse, delta, s);
    return CUDA_LAUNCHED("attention_backward");
}

template <class T> static int backward_pick(cudaStream_t stream, const struct sherd_attention_backward *a)
{
    if (a->head_dim <= 64)
        return backward_launch<64, 64, T>(stream, a);
    if (a->head_dim <= 128)
        return backward_launch<32, 128, T>(stream, a);
    return backward_launch<16, 256, T>(stream, a);
}

int attn_own_forward(cudaStream_t stream, const struct sherd_attention_forward *a)
{
    SHERD_TRY(check_grid(a->heads, a->batch));
    switch (a->type) {
    case SHERD_F32:
        return forward_pick<float>(stream, a);
    case SHERD_BF16:
        return forward_pick<bf16_t>(stream, a);
    case SHERD_F16:
        return forward_pick<f16_t>(stream, a);
    default:
        return cuda_unsupported("attention_forward", a->type);
    }
}

int attn_own_backward(cudaStream_t stream, const struct sherd_attention_backward *a)
{
    SHERD_TRY(check_grid(a->heads, a->batch));
    switch (a->type) {
    case SHERD_F32:
        return backward_pick<float>(stream, a);
    case SHERD_BF16:
        return backward_pick<bf16_t>(stream, a);
    case SHERD_F16:
        return backward_pick<f16_t>(stream, a);
    default:
        return cuda_unsupported("attention_backward", a->type);
    }
}
