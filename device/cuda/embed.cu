/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Embedding. Backward is deterministic without float atomics: the rows are sorted by token (a stable radix
 * sort in one block; scratch holds two arrays of row numbers), then the rows of each token are added in
 * order.
 */
#include "device/cuda/util.cuh"

#define BATCH 8 /* rows in flight for a thread that adds rows */

/* The token, or `vocab` for one outside [0, vocab). */
static __device__ __forceinline__ int64_t token_at(const int32_t *tokens, int64_t row, int64_t vocab)
{
    int64_t token = tokens[row];
    return token >= 0 && token < vocab ? token : vocab;
}

template <typename T, int W>
__global__ void embed_forward_kernel(
    const __grid_constant__ struct sherd_embed_forward a, unsigned blocks_each, unsigned long long *fault)
{
    int64_t row = blockIdx.x / blocks_each;
    int64_t c = ((int64_t)(blockIdx.x % blocks_each) * blockDim.x + threadIdx.x) * W;
    int64_t token = token_at(a.tokens, row, a.vocab);
    if (token == a.vocab && c == 0)
        atomicMin(fault, (unsigned long long)row << 32 | (uint32_t)a.tokens[row]);
    if (c >= a.width)
        return;
    float v[W], p[W];
    load<W>(v, (const T *)a.wte + token * a.width + c, token < a.vocab ? W : 0);
    load<W>(p, (const T *)a.wpe + row % a.seq * a.width + c, a.wpe ? W : 0);
#pragma unroll
    for (int j = 0; j < W; j++)
        v[j] += p[j];
    store<W>((T *)a.y + row * a.width + c, v, W);
}

extern "C" int cuda_embed_forward(struct sherd_queue *queue, const void *args)
{
    const struct sherd_embed_forward *a = (const struct sherd_embed_forward *)args;
    cudaStream_t stream = cuda_enter(queue);
    int64_t rows = a->batch * a->seq;
    if (rows == 0 || a->width == 0)
        return SHERD_OK;
    unsigned long long *fault = cuda_fault_word(queue, CUDA_FAULT_TOKEN, a->vocab, a->seq);
    int wide = a->width % WIDE == 0 && aligned16(a->y) && aligned16(a->wte) && aligned16(a->wpe);
    WITH_TYPE("embed_forward", a->type, T, WITH_WIDTH(wide, {
        int threads = round32((a->width + W - 1) / W, THREADS);
        unsigned each = blocks_for(a->width, threads * W);
        embed_forward_kernel<T, W><<<(unsigned)(rows * each), threads, 0, stream>>>(*a, each, fault);
    }))
    return CUDA_LAUNCHED("embed_forward");
}

/* ---- sort ---- */

#define SORT_THREADS 1024
#define SORT_WARPS (SORT_THREADS / 32)
#define DIGIT_BITS 8
#define DIGITS (1 << DIGIT_BITS)

/* first[d] = the number of keys with a digit below d, from first[d] = the number of keys with digit d. */
static __device__ void exclusive_scan(int *first)
{
    int d = threadIdx.x, own = d < DIGITS ? first[d] : 0;
    for (int step = 1; step < DIGITS; step *= 2) {
        int x = d < DIGITS && d >= step ? first[d - step] : 0;
        __syncthreads();
        if (d < DIGITS)
            first[d] += x;
        __syncthreads();
    }
    if (d < DIGITS)
        first[d] -= own;
    __syncthreads();
}

/* order[n] = the rows by token, equal tokens by row; keys[n] = their tokens, `vocab` for those outside. */
__global__ void __launch_bounds__(SORT_THREADS)
    sort_kernel(int32_t *order, int32_t *keys, const int32_t *tokens, int n, int64_t vocab, int passes)
{
    __shared__ int count[SORT_WARPS][DIGITS], first[DIGITS];
    int tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
    int32_t *from = passes % 2 ? keys : order,
            *to = passes % 2 ? order : keys; /* so that the last is order */
    for (int pass = 0; pass < passes; pass++) {
        int shift = pass * DIGIT_BITS;
        if (tid < DIGITS)
            first[tid] = 0;
        __syncthreads();
        for (int i = tid; i < n; i += SORT_THREADS)
            atomicAdd(&first[token_at(tokens, i, vocab) >> shift & (DIGITS - 1)], 1);
        __syncthreads();
        exclusive_scan(first);
        for (int start = 0; start < n; start += SORT_THREADS) {
            int i = start + tid, digit = DIGITS, row = 0;
            if (i < n) {
                row = pass == 0 ? i : from[i];
                digit = (int)(token_at(tokens, row, vocab) >> shift & (DIGITS - 1));
            }
            for (int k = tid; k < SORT_WARPS * DIGITS; k += SORT_THREADS)
                count[k / DIGITS][k % DIGITS] = 0;
            __syncthreads();
            unsigned same = __match_any_sync(0xffffffffu, digit);
            int rank = __popc(same & ((1u << lane) - 1));
            if (i < n && rank == 0)
                count[warp][digit] = __popc(same);
            __syncthreads();
            if (tid < DIGITS) {
                int at = first[tid];
#pragma unroll
                for (int w = 0; w < SORT_WARPS; w++) {
                    int c = count[w][tid];
                    count[w][tid] = at;
                    at += c;
                }
                first[tid] = at;
            }
            __syncthreads();
            if (i < n)
                to[count[warp][digit] + rank] = row;
            __syncthreads();
        }
        int32_t *other = from;
        from = to;
        to = other;
    }
    for (int i = tid; i < n; i += SORT_THREADS)
        keys[i] = (int32_t)token_at(tokens, order[i], vocab);
}

/* ---- sums ---- */

/* A block for each place in the order; the first of a token adds all rows of the token. */
template <typename T, typename G, int W>
__global__ void add_tokens_kernel(const __grid_constant__ struct sherd_embed_backward a, const int32_t *order,
    const int32_t *keys, int n, unsigned blocks_each)
{
    int i = (int)(blockIdx.x / blocks_each);
    int64_t c = ((int64_t)(blockIdx.x % blocks_each) * blockDim.x + threadIdx.x) * W;
    int key = keys[i];
    if (key == a.vocab || (i > 0 && keys[i - 1] == key) || c >= a.width)
        return;
    G *out = (G *)a.dwte + key * a.width + c;
    float sum[W] = { 0 };
    for (bool more = true; more; i += BATCH) {
        float v[BATCH][W];
#pragma unroll
        for (int u = 0; u < BATCH; u++) {
            more = i + u < n && keys[i + u] == key;
            load<W>(v[u], (const T *)a.dy + (more ? order[i + u] : 0) * a.width + c, more ? W : 0);
        }
#pragma unroll
        for (int u = 0; u < BATCH; u++)
#pragma unroll
            for (int j = 0; j < W; j++)
                sum[j] += v[u][j];
    }
    float old[W];
    load<W>(old, out, W);
#pragma unroll
    for (int j = 0; j < W; j++)
        sum[j] += old[j];
    store<W>(out, sum, W);
}

/* A block for each position: the rows of all sequences at that position. */
template <typename T, typename G, int W>
__global__ void add_positions_kernel(
    const __grid_constant__ struct sherd_embed_backward a, unsigned blocks_each)
{
    int64_t t = blockIdx.x / blocks_each;
    int64_t c = ((int64_t)(blockIdx.x % blocks_each) * blockDim.x + threadIdx.x) * W;
    if (c >= a.width)
        return;
    G *out = (G *)a.dwpe + t * a.width + c;
    float sum[W] = { 0 }, v[W];
#pragma unroll 4
    for (int64_t b = 0; b < a.batch; b++) {
        load<W>(v, (const T *)a.dy + (b * a.seq + t) * a.width + c, W);
#pragma unroll
        for (int j = 0; j < W; j++)
            sum[j] += v[j];
    }
    load<W>(v, out, W);
#pragma unroll
    for (int j = 0; j < W; j++)
        sum[j] += v[j];
    store<W>(out, sum, W);
}

/* Passes of the sort for keys 0 to vocab. */
static int passes_for(int64_t vocab)
{
    int passes = 1;
    while (vocab >> (passes * DIGIT_BITS))
        passes++;
    return passes;
}

extern "C" int cuda_embed_backward(struct sherd_queue *queue, const void *args)
{
    const struct sherd_embed_backward *a = (const struct sherd_embed_backward *)args;
    cudaStream_t stream = cuda_enter(queue);
    int64_t rows = a->batch * a->seq;
    if (rows == 0 || a->width == 0)
        return SHERD_OK;
    int32_t *order = (int32_t *)a->scratch, *keys = order + rows;
    int wide = a->width % WIDE == 0 && aligned16(a->dwte) && aligned16(a->dwpe) && aligned16(a->dy);
    if (a->dwte)
        sort_kernel<<<1, SORT_THREADS, 0, stream>>>(
            order, keys, a->tokens, (int)rows, a->vocab, passes_for(a->vocab));
    WITH_TYPE("embed_backward", a->type, T, WITH_TYPE("embed_backward", a->grad_type, G, WITH_WIDTH(wide, {
        int threads = round32((a->width + W - 1) / W, THREADS);
        unsigned each = blocks_for(a->width, threads * W);
        if (a->dwte)
            add_tokens_kernel<T, G, W>
                <<<(unsigned)(rows * each), threads, 0, stream>>>(*a, order, keys, (int)rows, each);
        if (a->dwpe)
            add_positions_kernel<T, G, W><<<(unsigned)(a->seq * each), threads, 0, stream>>>(*a, each);
    })))
    return CUDA_LAUNCHED("embed_backward");
}
