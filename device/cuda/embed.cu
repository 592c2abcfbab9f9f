/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Embedding. Backward is deterministic without float atomics: atomics link the rows of each token, in an
 * order that may change from run to run, and a block that puts them in order adds them.
 */
#include "base/status.h"
#include "device/cuda/util.cuh"

#define FORWARD_ROWS 2                 /* of a block */
#define BATCH(T) (12 / (int)sizeof(T)) /* rows in flight for a thread that adds rows */
#define TOKEN_BLOCKS 5 /* of THREADS, on a multiprocessor: each waits for one load after the other */
#define LINKED 32      /* rows of a token that are followed one by one */
#define LOOKS 4        /* tokens that a thread looks at at once, for more frequent ones */
#define FOUND 2048     /* rows that are found at once */

/* The token, or `vocab` for one outside [0, vocab). */
static __device__ __forceinline__ int64_t token_at(const int32_t *tokens, int64_t row, int64_t vocab)
{
    int64_t token = tokens[row];
    return token >= 0 && token < vocab ? token : vocab;
}

/* Two rows, one after the other, to a block, and both under way at once. */
template <typename T, int W>
__global__ void __launch_bounds__(THREADS)
    embed_forward_kernel(const __grid_constant__ struct sherd_embed_forward a, int64_t rows,
        unsigned blocks_each, unsigned long long *fault)
{
    int64_t first = (int64_t)(blockIdx.x / blocks_each) * FORWARD_ROWS, token[FORWARD_ROWS];
    int64_t c = ((int64_t)(blockIdx.x % blocks_each) * blockDim.x + threadIdx.x) * W;
    struct piece<T, W> v[FORWARD_ROWS], p[FORWARD_ROWS];
    int n = rows - first < FORWARD_ROWS ? (int)(rows - first) : FORWARD_ROWS;
#pragma unroll
    for (int i = 0; i < FORWARD_ROWS; i++)
        token[i] = i < n ? token_at(a.tokens, first + i, a.vocab) : a.vocab;
#pragma unroll
    for (int i = 0; i < FORWARD_ROWS; i++)
        if (i < n && token[i] == a.vocab && c == 0)
            atomicMin(fault, (unsigned long long)(first + i) << 32 | (uint32_t)a.tokens[first + i]);
    if (c >= a.width)
        return;
#pragma unroll
    for (int i = 0; i < FORWARD_ROWS; i++) {
        if (token[i] < a.vocab)
            v[i].take((const T *)a.wte + token[i] * a.width + c);
        if (a.wpe && i < n)
            p[i].take((const T *)a.wpe + (first + i) % a.seq * a.width + c);
    }
#pragma unroll
    for (int i = 0; i < FORWARD_ROWS; i++) {
        float sum[W] = { 0 };
        if (token[i] < a.vocab)
            v[i].add_to(sum);
        if (a.wpe && i < n)
            p[i].add_to(sum);
        if (i < n)
            store<W>((T *)a.y + (first + i) * a.width + c, sum, W);
    }
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
        embed_forward_kernel<T, W>
            <<<blocks_for(rows, FORWARD_ROWS) * each, threads, 0, stream>>>(*a, rows, each, fault);
    }))
    return CUDA_LAUNCHED("embed_forward");
}

/* ---- rows by token ---- */

#define NONE (-1)
#define OUTSIDE (-2)

/* Links the rows of each token, in an order that may change from run to run: head[token] is the row that came
 * last, next[row] the one before it. head is NONE for all before. */
__global__ void link_rows_kernel(int32_t *next, int32_t *head, const int32_t *tokens, int n, int64_t vocab)
{
    int row = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (row >= n)
        return;
    int64_t token = token_at(tokens, row, vocab);
    next[row] = token < vocab ? atomicExch(&head[token], row) : OUTSIDE;
}

/* The rows linked behind `row`, and itself, in order, by the block. Returns how many there are, or 0 for more
 * than LINKED. */
static __device__ __forceinline__ int linked_rows(int32_t *rows, const int32_t *next, int row)
{
    __shared__ int32_t found[LINKED];
    int own = 0, n = 0, before = 0;
    for (; row >= 0; row = next[row], n++) {
        if (n == LINKED)
            return 0;
        if (n == (int)threadIdx.x)
            found[n] = own = row;
    }
    __syncthreads();
    if ((int)threadIdx.x < n) {
        for (int i = 0; i < n; i++)
            before += found[i] < own;
        rows[before] = own;
    }
    __syncthreads();
    return n;
}

/* The rows of a token from *start on, in order, by the block, no more than FOUND; *start goes behind what has
 * been looked at. For tokens too frequent to be linked. */
static __device__ int find_rows(int32_t *rows, int *start, const int32_t *tokens, int n, int32_t token)
{
    __shared__ int found[THREADS / 32];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32, n_rows = 0;
    for (; *start < n && n_rows + (int)blockDim.x * LOOKS <= FOUND; *start += blockDim.x * LOOKS) {
        int32_t one[LOOKS];
#pragma unroll
        for (int u = 0; u < LOOKS; u++) {
            int row = *start + ((warp * LOOKS) + u) * 32 + lane;
            one[u] = row < n ? tokens[row] : -1;
        }
        int of_warp = 0, at[LOOKS];
#pragma unroll
        for (int u = 0; u < LOOKS; u++) {
            unsigned ones = __ballot_sync(0xffffffffu, one[u] == token);
            at[u] = of_warp + __popc(ones & ((1u << lane) - 1));
            of_warp += __popc(ones);
        }
        __syncthreads(); /* all have read what was found before */
        if (lane == 0)
            found[warp] = of_warp;
        __syncthreads();
        int before = n_rows;
        for (int w = 0; w < warps; w++) {
            before += w < warp ? found[w] : 0;
            n_rows += found[w];
        }
#pragma unroll
        for (int u = 0; u < LOOKS; u++)
            if (one[u] == token)
                rows[before + at[u]] = *start + ((warp * LOOKS) + u) * 32 + lane;
    }
    __syncthreads();
    return n_rows;
}

/* ---- sums ---- */

/* sum[W] += the rows of x, one after the other; BATCH of them are under way at once. */
template <int W, typename T>
static __device__ __forceinline__ void add_rows(
    float (&sum)[W], const T *x, const int32_t *rows, int n, int64_t width)
{
    for (int i = 0; i < n; i += BATCH(T))
        add_batch<BATCH(T), T>(sum, i, n, [&](int k) { return x + rows[k] * width; });
}

/* A block for each row and a piece of its columns, of which those whose row came last add all rows of the
 * token. */
template <typename T, typename G, int W>
__global__ void __launch_bounds__(THREADS, TOKEN_BLOCKS) add_tokens_kernel(
    const __grid_constant__ struct sherd_embed_backward a, const int32_t *next, const int32_t *head)
{
    __shared__ int32_t rows[FOUND];
    int row = blockIdx.x;
    int64_t token = a.tokens[row], c = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * W;
    int before = next[row];
    if (before == OUTSIDE || head[token] != row)
        return;
    bool inside = c < a.width;
    const T *dy = (const T *)a.dy + (inside ? c : 0);
    G *out = (G *)a.dwte + token * a.width + (inside ? c : 0);
    float sum[W] = { 0 }, old[W];
    if (before == NONE) {
        struct piece<T, W> only;
        only.take(dy + row * a.width);
        load<W>(old, out, W); /* under way together */
        only.add_to(sum);
    } else {
        int n = linked_rows(rows, next, row), start = 0, total = (int)(a.batch * a.seq);
        if (n > 0)
            add_rows(sum, dy, rows, n, a.width);
        else
            while (start < total) {
                n = find_rows(rows, &start, a.tokens, total, (int32_t)token);
                add_rows(sum, dy, rows, n, a.width);
                __syncthreads();
            }
        load<W>(old, out, W);
    }
    if (!inside)
        return;
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
    int64_t t = blockIdx.x / blocks_each, pitch = a.seq * a.width;
    int64_t c = ((int64_t)(blockIdx.x % blocks_each) * blockDim.x + threadIdx.x) * W;
    if (c >= a.width)
        return;
    G *out = (G *)a.dwpe + t * a.width + c;
    const T *dy = (const T *)a.dy + t * a.width + c;
    float sum[W] = { 0 }, old[W];
    load<W>(old, out, W);
    for (int64_t b = 0; b < a.batch; b += BATCH(T))
        add_batch<BATCH(T), T>(sum, b, a.batch, [&](int64_t k) { return dy + k * pitch; });
#pragma unroll
    for (int j = 0; j < W; j++)
        sum[j] += old[j];
    store<W>(out, sum, W);
}

extern "C" int cuda_embed_backward(struct sherd_queue *queue, const void *args)
{
    const struct sherd_embed_backward *a = (const struct sherd_embed_backward *)args;
    cudaStream_t stream = cuda_enter(queue);
    int64_t rows = a->batch * a->seq;
    if (rows == 0 || a->width == 0)
        return SHERD_OK;
    int32_t *head = (int32_t *)a->scratch, *next = head + a->vocab;
    int wide = a->width % WIDE == 0 && aligned16(a->dwte) && aligned16(a->dwpe) && aligned16(a->dy);
    if (a->dwte) {
        CUDA_TRY(cudaMemsetAsync(head, 0xff, (size_t)a->vocab * sizeof(*head), stream));
        link_rows_kernel<<<blocks_for(rows, THREADS), THREADS, 0, stream>>>(
            next, head, a->tokens, (int)rows, a->vocab);
    }
    WITH_TYPE("embed_backward", a->type, T, WITH_TYPE("embed_backward", a->grad_type, G, WITH_WIDTH(wide, {
        int threads = round32((a->width + W - 1) / W, THREADS);
        unsigned each = blocks_for(a->width, threads * W);
        if (a->dwte)
            add_tokens_kernel<T, G, W><<<dim3((unsigned)rows, each), threads, 0, stream>>>(*a, next, head);
        if (a->dwpe)
            add_positions_kernel<T, G, W><<<(unsigned)(a->seq * each), threads, 0, stream>>>(*a, each);
    })))
    return CUDA_LAUNCHED("embed_backward");
}
