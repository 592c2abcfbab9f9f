/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The block that all families share, in the form that each describes in struct block: attention and an MLP,
 * each behind a norm and beside a residual stream.
 *
 *     r = x + o(attention(rope(qk_norm(qkv(norm1(x))))))          y = r + down(act(up(norm2(r))))
 *
 * Letters: B batch, T sequence, N = B * T rows, C width, H heads, K kv heads, D head size, F mlp width.
 */
#include "model/layers.h"

#include <string.h>

static int64_t qkv_width(const struct transformer *t)
{
    return (t->heads + 2 * t->kv_heads) * t->head_dim;
}

/* Columns that `up` makes: gate and up, or one of them. */
static int64_t up_width(const struct transformer *t)
{
    return t->block.mlp == MLP_SWIGLU ? 2 * t->mlp_width : t->mlp_width;
}

static int has_qk_norm(const struct transformer *t)
{
    return t->block.q_norm.w >= 0;
}

/* ---- memory ---- */

/* Kept from forward to backward. q and k lie in qkv as attention takes them: normed and rotated. */
struct saved {
    void *n1, *qkv, *att, *r, *n2, *up, *act;
    float *mean1, *rstd1, *lse, *mean2, *rstd2; /* means: LayerNorm only */
    void *raw;                                  /* qkv before the norms of q and k; with these only */
    float *rstd_q, *rstd_k;
};

static float *cut_floats(struct cutter *c, int64_t n)
{
    return cut_elems(c, n, SHERD_F32);
}

static size_t place_saved(struct saved *s, const struct transformer *t, const struct sherd_shape *in,
    enum sherd_dtype type, void *base)
{
    struct cutter c = { base, 0 };
    int64_t N = in->batch * in->seq, C = t->width, F = t->mlp_width;
    int64_t means = t->norm == SHERD_LAYER_NORM ? N : 0, raw = has_qk_norm(t) ? N : 0;
    s->n1 = cut_elems(&c, N * C, type);
    s->mean1 = cut_floats(&c, means);
    s->rstd1 = cut_floats(&c, N);
    s->qkv = cut_elems(&c, N * qkv_width(t), type);
    s->raw = cut_elems(&c, raw * qkv_width(t), type);
    s->rstd_q = cut_floats(&c, raw * t->heads);
    s->rstd_k = cut_floats(&c, raw * t->kv_heads);
    s->att = cut_elems(&c, N * t->heads * t->head_dim, type);
    s->lse = cut_floats(&c, N * t->heads);
    s->r = cut_elems(&c, N * C, type);
    s->n2 = cut_elems(&c, N * C, type);
    s->mean2 = cut_floats(&c, means);
    s->rstd2 = cut_floats(&c, N);
    s->up = cut_elems(&c, N * up_width(t), type);
    s->act = cut_elems(&c, N * F, type);
    return c.used;
}

/* Work space of backward; op also serves forward. */
struct work {
    void *wide;   /* [N,max(F or 2F,(H+2K)D)]: gradient of up, then of qkv */
    void *medium; /* [N,max(F with SwiGLU,HD,C)]: gradient of act, then n2, then att, then n1 */
    void *dr;     /* [N,C] */
    void *op;     /* of one operation at a time */
};

static size_t op_scratch(const struct transformer *t, const struct sherd_shape *in, enum sherd_dtype type)
{
    const struct block *b = &t->block;
    int64_t N = in->batch * in->seq;
    size_t op = MAX(attend_scratch(t, in, type), norm_scratch(&b->norm1, N, type));
    op = MAX(op, MAX(linear_scratch(&b->qkv, N, type), linear_scratch(&b->o, N, type)));
    op = MAX(op, MAX(linear_scratch(&b->up, N, type), linear_scratch(&b->down, N, type)));
    if (has_qk_norm(t))
        op = MAX(op, norm_scratch(&b->q_norm, N * t->heads, type));
    return op;
}

static size_t place_work(struct work *w, const struct transformer *t, const struct sherd_shape *in,
    enum sherd_dtype type, void *base)
{
    struct cutter c = { base, 0 };
    int64_t N = in->batch * in->seq, C = t->width;
    int64_t medium = MAX(C, t->heads * t->head_dim);
    if (t->block.mlp == MLP_SWIGLU)
        medium = MAX(medium, t->mlp_width);
    w->wide = cut_elems(&c, N * MAX(up_width(t), qkv_width(t)), type);
    w->medium = cut_elems(&c, N * medium, type);
    w->dr = cut_elems(&c, N * C, type);
    w->op = cut(&c, op_scratch(t, in, type));
    return c.used;
}

static int block_sizes(
    const void *arg, const struct sherd_shape *in, enum sherd_dtype type, struct sherd_layer_sizes *out)
{
    const struct transformer *t = arg;
    struct saved s;
    struct work w;
    *out = (struct sherd_layer_sizes){ .out_width = t->width,
        .saved_bytes = place_saved(&s, t, in, type, NULL),
        .scratch_bytes = place_work(&w, t, in, type, NULL) };
    return SHERD_OK;
}

/* ---- positions, and the norms of q and k ---- */

static int rotate(const struct sherd_run *run, const struct transformer *t, void *qkv, int inverse)
{
    if (!t->block.rope)
        return SHERD_OK;
    struct sherd_rope rope = {
        .x = qkv,
        .batch = run->in.batch,
        .seq = run->in.seq,
        .heads = t->heads + 2 * t->kv_heads,
        .rotated = t->heads + t->kv_heads,
        .head_dim = t->head_dim,
        .inverse = inverse,
        .type = run->type,
    };
    memcpy(rope.inv_freq, t->inv_freq, sizeof(rope.inv_freq));
    return sherd_rope(run->queue, &rope);
}

/* The k heads of qkv. */
static void *k_heads(const struct sherd_run *run, const struct transformer *t, void *qkv)
{
    return (char *)qkv + (size_t)(t->heads * t->head_dim) * sherd_dtype_bytes(run->type);
}

static int qk_norm_forward(const struct sherd_run *run, const struct transformer *t, const struct saved *s)
{
    if (!has_qk_norm(t))
        return SHERD_OK;
    size_t bytes = (size_t)(run_rows(run) * qkv_width(t)) * sherd_dtype_bytes(run->type);
    SHERD_TRY(sherd_copy(run->queue, &(struct sherd_copy){ s->raw, s->qkv, bytes }));
    SHERD_TRY(head_norm_forward(run, &t->block.q_norm, t->heads, qkv_width(t), s->qkv, s->rstd_q, s->raw));
    return head_norm_forward(run, &t->block.k_norm, t->kv_heads, qkv_width(t), k_heads(run, t, s->qkv),
        s->rstd_k, k_heads(run, t, s->raw));
}

/* Turns the gradient of q and k after their norms into that before, in place. */
static int qk_norm_backward(
    const struct sherd_run *run, const struct transformer *t, const struct saved *s, void *dqkv, void *op)
{
    if (!has_qk_norm(t))
        return SHERD_OK;
    SHERD_TRY(head_norm_backward(run, &t->block.q_norm, t->heads, qkv_width(t), dqkv, s->raw, s->rstd_q, op));
    return head_norm_backward(run, &t->block.k_norm, t->kv_heads, qkv_width(t), k_heads(run, t, dqkv),
        k_heads(run, t, s->raw), s->rstd_k, op);
}

/* ---- the activation ---- */

static int act_forward(const struct sherd_run *run, const struct transformer *t, void *y, const void *x)
{
    int64_t N = run_rows(run), F = t->mlp_width;
    if (t->block.mlp == MLP_SWIGLU)
        return sherd_swiglu_forward(run->queue,
            &(struct sherd_swiglu_forward){ .y = y, .x = x, .rows = N, .cols = F, .type = run->type });
    return sherd_gelu_forward(
        run->queue, &(struct sherd_gelu_forward){ .y = y, .x = x, .n = N * F, .type = run->type });
}

/* Where the gradient of act goes: GELU's backward works in place. */
static void *act_gradient(const struct transformer *t, const struct work *w)
{
    return t->block.mlp == MLP_SWIGLU ? w->medium : w->wide;
}

static int act_backward(
    const struct sherd_run *run, const struct transformer *t, void *dx, const void *dy, const void *x)
{
    int64_t N = run_rows(run), F = t->mlp_width;
    if (t->block.mlp == MLP_SWIGLU)
        return sherd_swiglu_backward(
            run->queue, &(struct sherd_swiglu_backward){
                            .dx = dx, .dy = dy, .x = x, .rows = N, .cols = F, .type = run->type });
    return sherd_gelu_backward(run->queue,
        &(struct sherd_gelu_backward){ .dx = dx, .dy = dy, .x = x, .n = N * F, .type = run->type });
}

/* ---- the block ---- */

static int block_forward(struct sherd_run *run)
{
    if (run_is_empty(run))
        return SHERD_OK;
    const struct transformer *t = run->arg;
    const struct block *b = &t->block;
    struct saved s;
    struct work w;
    place_saved(&s, t, &run->in, run->type, run->saved);
    place_work(&w, t, &run->in, run->type, run->scratch);

    SHERD_TRY(norm_forward(run, &b->norm1, s.n1, s.mean1, s.rstd1, run->x));
    SHERD_TRY(linear_forward(run, &b->qkv, s.qkv, s.n1, NULL));
    SHERD_TRY(qk_norm_forward(run, t, &s));
    SHERD_TRY(rotate(run, t, s.qkv, 0));
    SHERD_TRY(attend_forward(run, t, s.att, s.lse, s.qkv, w.op));
    SHERD_TRY(linear_forward(run, &b->o, s.r, s.att, run->x));
    SHERD_TRY(norm_forward(run, &b->norm2, s.n2, s.mean2, s.rstd2, s.r));
    SHERD_TRY(linear_forward(run, &b->up, s.up, s.n2, NULL));
    SHERD_TRY(act_forward(run, t, s.act, s.up));
    return linear_forward(run, &b->down, run->y, s.act, s.r);
}

static int block_backward(struct sherd_run *run)
{
    if (run_is_empty(run))
        return SHERD_OK;
    const struct transformer *t = run->arg;
    const struct block *b = &t->block;
    struct saved s;
    struct work w;
    place_saved(&s, t, &run->in, run->type, run->saved);
    place_work(&w, t, &run->in, run->type, run->scratch);
    void *dact = act_gradient(t, &w);

    SHERD_TRY(linear_backward(run, &b->down, dact, run->dy, s.act, w.op));
    SHERD_TRY(act_backward(run, t, w.wide, dact, s.up));
    SHERD_TRY(linear_backward(run, &b->up, w.medium, w.wide, s.n2, w.op));
    SHERD_TRY(norm_backward(run, &b->norm2, w.dr, w.medium, s.r, s.mean2, s.rstd2, run->dy, w.op));
    SHERD_TRY(linear_backward(run, &b->o, w.medium, w.dr, s.att, w.op));
    SHERD_TRY(attend_backward(run, t, w.wide, w.medium, s.att, s.qkv, s.lse, w.op));
    SHERD_TRY(rotate(run, t, w.wide, 1));
    SHERD_TRY(qk_norm_backward(run, t, &s, w.wide, w.op));
    SHERD_TRY(linear_backward(run, &b->qkv, w.medium, w.wide, s.n1, w.op));
    return norm_backward(
        run, &b->norm1, run->dx ? run->dx : w.dr, w.medium, run->x, s.mean1, s.rstd1, w.dr, w.op);
}

const struct sherd_layer_ops model_block = { "block", block_sizes, block_forward, block_backward, 1 };
