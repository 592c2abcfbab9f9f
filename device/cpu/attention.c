/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Causal attention in tiles (FlashAttention, arXiv 2205.14135): a tile of query rows meets one tile of keys
 * after the other, with a running maximum and sum, so the T x T scores never exist. Backward computes scores
 * anew from lse. A task of forward is one tile of queries of one head; of backward one kv head with all its
 * query heads, so that dk and dv are summed in a fixed order.
 */
#include <math.h>

#include "base/status.h"
#include "device/cpu/cpu.h"
#include "device/cpu/vec.h"

#define TILE 128 /* rows of queries, and of keys */

/* Some rows of one head in a [B,T,heads,D] tensor, as floats with a leading dimension. */
struct rows {
    const float *data;
    int64_t ld;
};

struct heads {
    const void *base;
    int64_t seq, count, dim; /* count of heads in a row */
    enum sherd_dtype type;
};

VEC_INLINE int64_t place_of(const struct heads *h, int64_t batch, int64_t row, int64_t head)
{
    return ((batch * h->seq + row) * h->count + head) * h->dim;
}

/* Rows [row, row + n) of a head; converted into buf (n * dim floats) unless they are floats already. */
CLONES static struct rows rows_of(
    const struct heads *h, int64_t batch, int64_t row, int64_t n, int64_t head, float *buf)
{
    if (h->type == SHERD_F32)
        return (struct rows){ (const float *)h->base + place_of(h, batch, row, head), h->count * h->dim };
    for (int64_t i = 0; i < n; i++)
        vec_load(h->base, place_of(h, batch, row + i, head), h->dim, h->type, buf + i * h->dim);
    return (struct rows){ buf, h->dim };
}

/* Writes n rows of floats, dense, to a head. */
CLONES static void put_rows(
    void *base, const struct heads *h, int64_t batch, int64_t row, int64_t n, int64_t head, const float *from)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t at = place_of(h, batch, row + i, head);
        if (h->type == SHERD_F32)
            memcpy((float *)base + at, from + i * h->dim, (size_t)h->dim * sizeof(*from));
        else
            vec_store(base, at, h->dim, h->type, from + i * h->dim);
    }
}

/* Takes n floats from the panel, 64 bytes at least apart. */
VEC_INLINE float *take(float **panel, int64_t n)
{
    float *p = *panel;
    *panel += round_up(n, 16);
    return p;
}

/* ---- forward ---- */

struct forward {
    const struct sherd_attention_forward *a;
    struct heads qkv, out;
    int64_t tile, tiles; /* rows of a tile, tiles of a sequence */
};

static size_t forward_floats(const struct forward *f)
{
    int64_t d = f->out.dim;
    return (
        size_t)(4 * round_up(f->tile * d, 16) + round_up(f->tile * f->tile, 16) + 2 * round_up(f->tile, 16));
}

/* Scores of one row become e^(s - max), those of later keys 0; out and sum of earlier tiles are scaled to the
 * new maximum. */
VEC_INLINE void softmax_row(
    float *s, int64_t valid, int64_t n, float *max, float *sum, float *out, int64_t dim)
{
    if (valid < n)
        memset(s + MAX(valid, 0), 0, (size_t)(n - MAX(valid, 0)) * sizeof(*s));
    if (valid <= 0)
        return;
    float tile_max = vec_max(s, valid), new_max = tile_max > *max ? tile_max : *max;
    float scale = vec_exp(*max - new_max), add = 0;
#pragma omp simd reduction(+ : add)
    for (int64_t j = 0; j < valid; j++) {
        float e = vec_exp(s[j] - new_max);
        s[j] = e;
        add += e;
    }
#pragma omp simd
    for (int64_t i = 0; i < dim; i++)
        out[i] *= scale;
    *max = new_max;
    *sum = *sum * scale + add;
}

CLONES static void softmax_tile(
    float *s, int64_t m, int64_t n, int64_t ahead, float *max, float *sum, float *out, int64_t dim)
{
    for (int64_t i = 0; i < m; i++) {
        int64_t valid = i + ahead + 1;
        softmax_row(s + i * n, MIN(valid, n), n, &max[i], &sum[i], out + i * dim, dim);
    }
}

CLONES static void divide_rows(float *out, const float *sum, int64_t m, int64_t dim)
{
    for (int64_t i = 0; i < m; i++) {
        float scale = 1.0f / sum[i];
#pragma omp simd
        for (int64_t j = 0; j < dim; j++)
            out[i * dim + j] *= scale;
    }
}

static void forward_task(const void *ctx, int64_t task, void *panel)
{
    const struct forward *f = ctx;
    const struct sherd_attention_forward *a = f->a;
    int64_t d = a->head_dim, head = task / f->tiles % a->heads, batch = task / f->tiles / a->heads;
    int64_t row = (f->tiles - 1 - task % f->tiles) * f->tile; /* the longest first */
    int64_t m = MIN(f->tile, a->seq - row), kv = head / (a->heads / a->kv_heads);
    float *p = panel, *q_buf = take(&p, f->tile * d), *k_buf = take(&p, f->tile * d);
    float *v_buf = take(&p, f->tile * d), *out = take(&p, f->tile * d), *s = take(&p, f->tile * f->tile);
    float *max = take(&p, f->tile), *sum = take(&p, f->tile);
    struct rows q = rows_of(&f->qkv, batch, row, m, head, q_buf);
    memset(out, 0, (size_t)(m * d) * sizeof(*out));
    for (int64_t i = 0; i < m; i++) {
        max[i] = -INFINITY;
        sum[i] = 0;
    }
    for (int64_t at = 0; at < row + m; at += f->tile) {
        int64_t n = MIN(f->tile, row + m - at);
        struct rows k = rows_of(&f->qkv, batch, at, n, a->heads + kv, k_buf);
        struct rows v = rows_of(&f->qkv, batch, at, n, a->heads + a->kv_heads + kv, v_buf);
        cpu_sgemm(0, 1, m, n, d, a->scale, q.data, q.ld, k.data, k.ld, 0.0f, s, n);
        softmax_tile(s, m, n, row - at, max, sum, out, d);
        cpu_sgemm(0, 0, m, d, n, 1.0f, s, n, v.data, v.ld, 1.0f, out, d);
    }
    divide_rows(out, sum, m, d);
    put_rows(a->out, &f->out, batch, row, m, head, out);
    for (int64_t i = 0; i < m; i++)
        a->lse[(batch * a->heads + head) * a->seq + row + i] = max[i] + logf(sum[i]);
}

int cpu_attention_forward(struct cpu_lane *lane, const void *args)
{
    const struct sherd_attention_forward *a = args;
    if (a->batch == 0 || a->seq == 0)
        return SHERD_OK;
    SHERD_TRY(cpu_blas_join(lane));
    struct forward f = { .a = a,
        .qkv = { a->qkv, a->seq, a->heads + 2 * a->kv_heads, a->head_dim, a->type },
        .out = { a->out, a->seq, a->heads, a->head_dim, a->type },
        .tile = MIN(TILE, a->seq) };
    f.tiles = cpu_tasks(a->seq, f.tile);
    return cpu_parallel(
        lane, forward_task, &f, a->batch * a->heads * f.tiles, forward_floats(&f) * sizeof(float));
}

/* ---- backward ---- */

struct backward {
    const struct sherd_attention_backward *a;
    struct heads qkv, out, dout;
    int64_t tile;
};

/* The panel of one task. */
struct work {
    float *q, *k, *v, *out, *dout; /* a tile each, used where storage is not float */
    float *s, *ds;                 /* tile x tile */
    float *dq;                     /* a tile */
    float *delta;                  /* a row of a tile: the dot product of out and dout */
    float *dk, *dv;                /* all rows */
};

static size_t backward_floats(const struct backward *b)
{
    int64_t d = b->out.dim;
    return (size_t)(6 * round_up(b->tile * d, 16) + 2 * round_up(b->tile * b->tile, 16) +
                    round_up(b->tile, 16) + 2 * round_up(b->out.seq * d, 16));
}

static void cut(struct work *w, const struct backward *b, float *panel)
{
    int64_t d = b->out.dim, tile = b->tile * d;
    float *p = panel;
    w->q = take(&p, tile);
    w->k = take(&p, tile);
    w->v = take(&p, tile);
    w->out = take(&p, tile);
    w->dout = take(&p, tile);
    w->s = take(&p, b->tile * b->tile);
    w->ds = take(&p, b->tile * b->tile);
    w->dq = take(&p, tile);
    w->delta = take(&p, b->tile);
    w->dk = take(&p, b->out.seq * d);
    w->dv = take(&p, b->out.seq * d);
}

/* From scores s and dp = dout v': p = e^(s - lse) into s, ds = p (dp - delta) scale into dp; 0 for later
 * keys.
 */
CLONES static void backward_tile(float *s, float *dp, int64_t m, int64_t n, int64_t ahead, const float *lse,
    const float *delta, float scale)
{
    for (int64_t i = 0; i < m; i++) {
        int64_t valid = MAX(MIN(i + ahead + 1, n), 0);
        float *si = s + i * n, *di = dp + i * n;
        float top = lse[i], less = delta[i];
#pragma omp simd
        for (int64_t j = 0; j < valid; j++) {
            float p = vec_exp(si[j] - top);
            si[j] = p;
            di[j] = p * (di[j] - less) * scale;
        }
        memset(si + valid, 0, (size_t)(n - valid) * sizeof(*si));
        memset(di + valid, 0, (size_t)(n - valid) * sizeof(*di));
    }
}

CLONES static void dot_rows(float *delta, struct rows x, struct rows y, int64_t m, int64_t dim)
{
    for (int64_t i = 0; i < m; i++)
        delta[i] = vec_dot(x.data + i * x.ld, y.data + i * y.ld, dim);
}

/* One tile of queries of one head against all keys up to it. */
static void backward_head(
    const struct backward *b, const struct work *w, int64_t batch, int64_t head, int64_t kv, int64_t row)
{
    const struct sherd_attention_backward *a = b->a;
    int64_t d = a->head_dim, m = MIN(b->tile, a->seq - row);
    const float *lse = a->lse + (batch * a->heads + head) * a->seq + row;
    struct rows q = rows_of(&b->qkv, batch, row, m, head, w->q);
    struct rows dout = rows_of(&b->dout, batch, row, m, head, w->dout);
    dot_rows(w->delta, rows_of(&b->out, batch, row, m, head, w->out), dout, m, d);
    for (int64_t at = 0; at < row + m; at += b->tile) {
        int64_t n = MIN(b->tile, row + m - at);
        struct rows k = rows_of(&b->qkv, batch, at, n, a->heads + kv, w->k);
        struct rows v = rows_of(&b->qkv, batch, at, n, a->heads + a->kv_heads + kv, w->v);
        cpu_sgemm(0, 1, m, n, d, a->scale, q.data, q.ld, k.data, k.ld, 0.0f, w->s, n);
        cpu_sgemm(0, 1, m, n, d, 1.0f, dout.data, dout.ld, v.data, v.ld, 0.0f, w->ds, n);
        backward_tile(w->s, w->ds, m, n, row - at, lse, w->delta, a->scale);
        cpu_sgemm(1, 0, n, d, m, 1.0f, w->s, n, dout.data, dout.ld, 1.0f, w->dv + at * d, d);
        cpu_sgemm(1, 0, n, d, m, 1.0f, w->ds, n, q.data, q.ld, 1.0f, w->dk + at * d, d);
        cpu_sgemm(0, 0, m, d, n, 1.0f, w->ds, n, k.data, k.ld, at == 0 ? 0.0f : 1.0f, w->dq, d);
    }
    put_rows(a->dqkv, &b->qkv, batch, row, m, head, w->dq);
}

static void backward_task(const void *ctx, int64_t task, void *panel)
{
    const struct backward *b = ctx;
    const struct sherd_attention_backward *a = b->a;
    int64_t batch = task / a->kv_heads, kv = task % a->kv_heads, group = a->heads / a->kv_heads;
    struct work w;
    cut(&w, b, panel);
    memset(w.dk, 0, (size_t)(a->seq * a->head_dim) * sizeof(float));
    memset(w.dv, 0, (size_t)(a->seq * a->head_dim) * sizeof(float));
    for (int64_t head = kv * group; head < (kv + 1) * group; head++)
        for (int64_t row = 0; row < a->seq; row += b->tile)
            backward_head(b, &w, batch, head, kv, row);
    put_rows(a->dqkv, &b->qkv, batch, 0, a->seq, a->heads + kv, w.dk);
    put_rows(a->dqkv, &b->qkv, batch, 0, a->seq, a->heads + a->kv_heads + kv, w.dv);
}

int cpu_attention_backward(struct cpu_lane *lane, const void *args)
{
    const struct sherd_attention_backward *a = args;
    if (a->batch == 0 || a->seq == 0)
        return SHERD_OK;
    SHERD_TRY(cpu_blas_join(lane));
    struct backward b = { .a = a,
        .qkv = { a->qkv, a->seq, a->heads + 2 * a->kv_heads, a->head_dim, a->type },
        .out = { a->out, a->seq, a->heads, a->head_dim, a->type },
        .dout = { a->dout, a->seq, a->heads, a->head_dim, a->type },
        .tile = MIN(TILE, a->seq) };
    return cpu_parallel(lane, backward_task, &b, a->batch * a->kv_heads, backward_floats(&b) * sizeof(float));
}
