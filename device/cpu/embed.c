/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Embeddings. Backward lists the rows of each token first; then a task has some columns of all tokens, sums
 * the rows of a token in order in float, and rounds once.
 */
#include "base/status.h"
#include "device/cpu/cpu.h"
#include "device/cpu/vec.h"

#define TASK_COLS 64

static int check_tokens(const char *op, const int32_t *tokens, int64_t batch, int64_t seq, int64_t vocab)
{
    for (int64_t i = 0; i < batch * seq; i++)
        if (tokens[i] < 0 || tokens[i] >= vocab)
            return SHERD_FAIL(SHERD_EINVAL,
                "%s: token %d at sequence %lld, position %lld is outside the vocabulary of %lld: check that "
                "the data was made with this model's tokenizer",
                op, (int)tokens[i], (long long)(i / seq), (long long)(i % seq), (long long)vocab);
    return SHERD_OK;
}

CLONES static void embed_forward_task(const void *ctx, int64_t task, void *panel)
{
    const struct sherd_embed_forward *a = ctx;
    int64_t rows = cpu_task_rows(a->width), first = task * rows, last = MIN(first + rows, a->batch * a->seq);
    float token_buf[VEC_BLOCK], place_buf[VEC_BLOCK];
    (void)panel;
    for (int64_t row = first; row < last; row++) {
        for (int64_t at = 0; at < a->width; at += VEC_BLOCK) {
            int64_t n = MIN(VEC_BLOCK, a->width - at), y_at = row * a->width + at;
            const float *x = vec_load(a->wte, a->tokens[row] * a->width + at, n, a->type, token_buf);
            float *y = vec_place(a->y, y_at, a->type, token_buf);
            if (a->wpe) {
                const float *p = vec_load(a->wpe, row % a->seq * a->width + at, n, a->type, place_buf);
#pragma omp simd
                for (int64_t i = 0; i < n; i++)
                    y[i] = x[i] + p[i];
            } else if (y != x) {
                memcpy(y, x, (size_t)n * sizeof(*y));
            }
            vec_store(a->y, y_at, n, a->type, y);
        }
    }
}

int cpu_embed_forward(struct cpu_lane *lane, const void *args)
{
    const struct sherd_embed_forward *a = args;
    if (a->width == 0)
        return SHERD_OK;
    SHERD_TRY(check_tokens("embed_forward", a->tokens, a->batch, a->seq, a->vocab));
    return cpu_parallel(
        lane, embed_forward_task, a, cpu_tasks(a->batch * a->seq, cpu_task_rows(a->width)), 0);
}

/* ---- backward ---- */

/* Columns [at, at + n) of row `to` of table += sum. */
VEC_INLINE void add_row(
    const struct sherd_embed_backward *a, void *table, int64_t to, int64_t at, int64_t n, const float *sum)
{
    float old[TASK_COLS];
    const float *from = vec_load(table, to * a->width + at, n, a->grad_type, old);
    float *out = vec_place(table, to * a->width + at, a->grad_type, old);
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        out[i] = from[i] + sum[i];
    vec_store(table, to * a->width + at, n, a->grad_type, out);
}

VEC_INLINE void sum_row(const struct sherd_embed_backward *a, int64_t row, int64_t at, int64_t n, float *sum)
{
    float buf[TASK_COLS];
    const float *dy = vec_load(a->dy, row * a->width + at, n, a->type, buf);
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        sum[i] += dy[i];
}

CLONES static void embed_token_task(const void *ctx, int64_t task, void *panel)
{
    const struct sherd_embed_backward *a = ctx;
    const int32_t *head = a->scratch, *next = head + a->vocab;
    int64_t at = task * TASK_COLS, n = MIN(TASK_COLS, a->width - at);
    (void)panel;
    for (int64_t token = 0; token < a->vocab; token++) {
        if (head[token] < 0)
            continue;
        float sum[TASK_COLS] = { 0 };
        for (int64_t row = head[token]; row >= 0; row = next[row])
            sum_row(a, row, at, n, sum);
        add_row(a, a->dwte, token, at, n, sum);
    }
}

CLONES static void embed_place_task(const void *ctx, int64_t task, void *panel)
{
    const struct sherd_embed_backward *a = ctx;
    (void)panel;
    for (int64_t at = 0; at < a->width; at += TASK_COLS) {
        int64_t n = MIN(TASK_COLS, a->width - at);
        float sum[TASK_COLS] = { 0 };
        for (int64_t b = 0; b < a->batch; b++)
            sum_row(a, b * a->seq + task, at, n, sum);
        add_row(a, a->dwpe, task, at, n, sum);
    }
}

int cpu_embed_backward(struct cpu_lane *lane, const void *args)
{
    const struct sherd_embed_backward *a = args;
    int64_t rows = a->batch * a->seq;
    if (rows == 0 || a->width == 0)
        return SHERD_OK;
    SHERD_TRY(check_tokens("embed_backward", a->tokens, a->batch, a->seq, a->vocab));
    if (a->dwte) {
        int32_t *head = a->scratch, *next = head + a->vocab;
        memset(head, 0xff, (size_t)a->vocab * sizeof(*head));
        for (int64_t row = rows - 1; row >= 0; row--) {
            next[row] = head[a->tokens[row]];
            head[a->tokens[row]] = (int32_t)row;
        }
        SHERD_TRY(cpu_parallel(lane, embed_token_task, a, cpu_tasks(a->width, TASK_COLS), 0));
    }
    return a->dwpe ? cpu_parallel(lane, embed_place_task, a, a->seq, 0) : SHERD_OK;
}
