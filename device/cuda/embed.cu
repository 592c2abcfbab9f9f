/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Embedding. Backward is deterministic without float atomics: the rows of each token get places beside each
 * other by counting, in an order that atomics may change from run to run, and a block that sorts them by row
 * adds them.
 */
#include "base/status.h"
#include "device/cuda/util.cuh"

#define BATCH 8     /* rows in flight for a thread that adds rows */
#define SORTED 1024 /* rows of a token that are sorted in shared memory */

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

/* ---- rows by token ---- */

/* rank[row]: how many rows of its token came before it, in whatever order. count is zeros before. */
__global__ void count_tokens_kernel(
    int32_t *rank, int32_t *count, const int32_t *tokens, int n, int64_t vocab)
{
    int row = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (row >= n)
        return;
    int64_t token = token_at(tokens, row, vocab);
    rank[row] = token < vocab ? atomicAdd(&count[token], 1) : 0;
}

/* A place in the order for each token: its count becomes the first one. The row of rank 0 stands for all of
 * the token, and has -length for its rank from here on. */
__global__ void place_tokens_kernel(
    int32_t *rank, int32_t *count, int32_t *used, const int32_t *tokens, int n, int64_t vocab)
{
    int row = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (row >= n || rank[row] != 0)
        return;
    int64_t token = token_at(tokens, row, vocab);
    if (token == vocab)
        return;
    int length = count[token];
    count[token] = atomicAdd(used, length);
    rank[row] = -length;
}

__global__ void order_tokens_kernel(
    int32_t *order, const int32_t *rank, const int32_t *first, const int32_t *tokens, int n, int64_t vocab)
{
    int row = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    int64_t token = row < n ? token_at(tokens, row, vocab) : vocab;
    if (token < vocab)
        order[first[token] + (rank[row] < 0 ? 0 : rank[row])] = row;
}

/* Sorts rows[n] by a bitonic network of the block whose pairs all ascend, so that those beyond n are left
 * out. */
static __device__ void sort_rows(int32_t *rows, int n)
{
    for (int size = 2; size / 2 < n; size *= 2)
        for (int step = size / 2; step > 0; step /= 2) {
            __syncthreads();
            for (int i = threadIdx.x; i < n; i += blockDim.x) {
                int other = step == size / 2 ? i ^ (size - 1) : i ^ step;
                if (other > i && other < n && rows[other] < rows[i]) {
                    int32_t row = rows[i];
                    rows[i] = rows[other];
                    rows[other] = row;
                }
            }
        }
    __syncthreads();
}

/* The rows of a token, in order, by the block: for those too many to be sorted. */
static __device__ void find_rows(int32_t *rows, const int32_t *tokens, int n, int32_t token)
{
    __shared__ int found[THREADS / 32];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32, before = 0;
    for (int start = 0; start < n; start += blockDim.x) {
        int row = start + threadIdx.x;
        bool one = row < n && tokens[row] == token;
        unsigned ones = __ballot_sync(0xffffffffu, one);
        if (lane == 0)
            found[warp] = __popc(ones);
        __syncthreads();
        int at = before;
        for (int w = 0; w < warps; w++) {
            at += w < warp ? found[w] : 0;
            before += found[w];
        }
        if (one)
            rows[at + __popc(ones & ((1u << lane) - 1))] = row;
        __syncthreads();
    }
}

/* ---- sums ---- */

/* A block for each row, of which those that stand for a token add all rows of it. */
template <typename T, typename G, int W>
__global__ void __launch_bounds__(THREADS)
    add_tokens_kernel(const __grid_constant__ struct sherd_embed_backward a, int32_t *order,
        const int32_t *rank, const int32_t *first)
{
    __shared__ int32_t sorted[SORTED];
    int length = -rank[blockIdx.x];
    if (length <= 0)
        return;
    int64_t token = a.tokens[blockIdx.x];
    int32_t *rows = order + first[token];
    if (length > SORTED) {
        find_rows(rows, a.tokens, (int)(a.batch * a.seq), (int32_t)token);
    } else if (length > 1) {
        for (int i = threadIdx.x; i < length; i += blockDim.x)
            sorted[i] = rows[i];
        rows = sorted;
        sort_rows(rows, length);
    }
    for (int64_t c = (int64_t)threadIdx.x * W; c < a.width; c += (int64_t)blockDim.x * W) {
        G *out = (G *)a.dwte + token * a.width + c;
        float sum[W] = { 0 }, old[W];
        load<W>(old, out, W);
        if (length == 1)
            load<W>(sum, (const T *)a.dy + (int64_t)blockIdx.x * a.width + c, W);
        for (int i = 0; length > 1 && i < length; i += BATCH) {
            float v[BATCH][W];
#pragma unroll
            for (int u = 0; u < BATCH; u++)
                load<W>(v[u], (const T *)a.dy + (int64_t)(i + u < length ? rows[i + u] : 0) * a.width + c,
                    i + u < length ? W : 0);
#pragma unroll
            for (int u = 0; u < BATCH; u++)
#pragma unroll
                for (int j = 0; j < W; j++)
                    sum[j] += v[u][j];
        }
#pragma unroll
        for (int j = 0; j < W; j++)
            sum[j] += old[j];
        store<W>(out, sum, W);
    }
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

static int order_rows(
    cudaStream_t stream, const struct sherd_embed_backward *a, int32_t *order, int32_t *rank, int32_t *first)
{
    int n = (int)(a->batch * a->seq);
    unsigned blocks = blocks_for(n, THREADS);
    int32_t *used = first + a->vocab;
    CUDA_TRY(cudaMemsetAsync(first, 0, (size_t)(a->vocab + 1) * sizeof(*first), stream));
    count_tokens_kernel<<<blocks, THREADS, 0, stream>>>(rank, first, a->tokens, n, a->vocab);
    place_tokens_kernel<<<blocks, THREADS, 0, stream>>>(rank, first, used, a->tokens, n, a->vocab);
    order_tokens_kernel<<<blocks, THREADS, 0, stream>>>(order, rank, first, a->tokens, n, a->vocab);
    return SHERD_OK;
}

extern "C" int cuda_embed_backward(struct sherd_queue *queue, const void *args)
{
    const struct sherd_embed_backward *a = (const struct sherd_embed_backward *)args;
    cudaStream_t stream = cuda_enter(queue);
    int64_t rows = a->batch * a->seq;
    if (rows == 0 || a->width == 0)
        return SHERD_OK;
    int32_t *order = (int32_t *)a->scratch, *rank = order + rows, *first = rank + rows;
    int wide = a->width % WIDE == 0 && aligned16(a->dwte) && aligned16(a->dwpe) && aligned16(a->dy);
    if (a->dwte)
        SHERD_TRY(order_rows(stream, a, order, rank, first));
    WITH_TYPE("embed_backward", a->type, T, WITH_TYPE("embed_backward", a->grad_type, G, WITH_WIDTH(wide, {
        int threads = round32((a->width + W - 1) / W, THREADS);
        unsigned each = blocks_for(a->width, threads * W);
        if (a->dwte)
            add_tokens_kernel<T, G, W><<<(unsigned)rows, threads, 0, stream>>>(*a, order, rank, first);
        if (a->dwpe)
            add_positions_kernel<T, G, W><<<(unsigned)(a->seq * each), threads, 0, stream>>>(*a, each);
    })))
    return CUDA_LAUNCHED("embed_backward");
}
