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

/* All that a block needs; what is kept from forward to backward comes first. */
struct memory {
    void *raw, *att, *r, *up;                   /* raw: q, k, v as the product makes them */
    float *mean1, *rstd1, *lse, *mean2, *rstd2; /* means: LayerNorm only */
    float *rstd_q, *rstd_k;
    /* Kept too; or in work space (SHERD_RECOMPUTE_CHEAP): the backward of a norm and of the activation writes
     * its output once more, over the gradient of that output. */
    void *n1, *n2, *act;
    void *qkv; /* as attention takes it, q and k normed and rotated; is raw, rotated, without norms of q and k
                */
    /* work space */
    void *medium; /* [N,max(F,HD,C)]: gradient of act, then n2, then att, then n1 */
    void *dr;     /* [N,C] */
    void *dqkv;   /* over up, if it fits; that of up is there too, until then */
    void *op;     /* of one operation at a time; also serves forward */
    size_t saved_bytes, scratch_bytes;
};

static float *cut_floats(struct cutter *c, int64_t n)
{
    return cut_elems(c, n, SHERD_F32);
}

static size_t op_scratch(const struct transformer *t, const struct sherd_layer_plan *plan)
{
    const struct block *b = &t->block;
    enum sherd_dtype type = plan->type;
    int64_t N = plan->in.batch * plan->in.seq;
    size_t op = MAX(attend_scratch(t, plan), norm_scratch(&b->norm1, N, type));
    op = MAX(op, MAX(linear_scratch(&b->qkv, N, type), linear_scratch(&b->o, N, type)));
    op = MAX(op, MAX(linear_scratch(&b->up, N, type), linear_scratch(&b->down, N, type)));
    if (has_qk_norm(t))
        op = MAX(op, norm_scratch(&b->q_norm, N * t->heads, type));
    return op;
}

static void place_kept(
    struct memory *m, struct cutter *c, const struct transformer *t, const struct sherd_layer_plan *plan)
{
    enum sherd_dtype type = plan->type;
    int64_t N = plan->in.batch * plan->in.seq, C = t->width;
    int64_t means = t->norm == SHERD_LAYER_NORM ? N : 0, heads = has_qk_norm(t) ? N : 0;
    m->raw = cut_elems(c, N * qkv_width(t), type);
    m->att = cut_elems(c, N * t->heads * t->head_dim, type);
    m->r = cut_elems(c, N * C, type);
    m->up = cut_elems(c, N * up_width(t), type);
    m->mean1 = cut_floats(c, means);
    m->rstd1 = cut_floats(c, N);
    m->lse = cut_floats(c, N * t->heads);
    m->mean2 = cut_floats(c, means);
    m->rstd2 = cut_floats(c, N);
    m->rstd_q = cut_floats(c, heads * t->heads);
    m->rstd_k = cut_floats(c, heads * t->kv_heads);
}

static void place_work(
    struct memory *m, struct cutter *c, const struct transformer *t, const struct sherd_layer_plan *plan)
{
    enum sherd_dtype type = plan->type;
    int64_t N = plan->in.batch * plan->in.seq, C = t->width, F = t->mlp_width;
    m->medium = cut_elems(c, N * MAX(MAX(C, t->heads * t->head_dim), F), type);
    m->dr = cut_elems(c, N * C, type);
    m->dqkv = up_width(t) >= qkv_width(t) ? m->up : cut_elems(c, N * qkv_width(t), type);
}

/* With NULL for both regions only the sizes are right. */
static struct memory place(
    const struct transformer *t, const struct sherd_layer_plan *plan, void *saved, void *scratch)
{
    struct memory m;
    struct cutter keep = { saved, 0 }, work = { scratch, 0 };
    int64_t N = plan->in.batch * plan->in.seq, C = t->width;
    int cheap = plan->recompute == SHERD_RECOMPUTE_CHEAP;
    place_kept(&m, &keep, t, plan);
    place_work(&m, &work, t, plan);
    m.n1 = cheap ? m.medium : cut_elems(&keep, N * C, plan->type);
    m.n2 = cheap ? m.medium : cut_elems(&keep, N * C, plan->type);
    m.act = cheap ? m.medium : cut_elems(&keep, N * t->mlp_width, plan->type);
    m.qkv = has_qk_norm(t) ? cut_elems(cheap ? &work : &keep, N * qkv_width(t), plan->type) : m.raw;
    m.op = cut(&work, op_scratch(t, plan));
    m.saved_bytes = keep.used;
    m.scratch_bytes = work.used;
    return m;
}

static struct memory memory_of(const struct sherd_run *run)
{
    struct sherd_layer_plan plan = run_plan(run);
    return place(run->arg, &plan, run->saved, run->scratch);
}

size_t block_scratch(const struct transformer *t, const struct sherd_layer_plan *plan)
{
    struct sherd_layer_plan all = *plan;
    all.recompute = SHERD_RECOMPUTE_NONE;
    return place(t, &all, NULL, NULL).scratch_bytes;
}

static int block_sizes(const void *arg, const struct sherd_layer_plan *plan, struct sherd_layer_sizes *out)
{
    const struct transformer *t = arg;
    struct memory m = place(t, plan, NULL, NULL);
    *out = (struct sherd_layer_sizes){
        .out_width = t->width, .saved_bytes = m.saved_bytes, .scratch_bytes = m.scratch_bytes
    };
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

/* Where head i of the first row of qkv is. */
static void *head(const struct sherd_run *run, const struct transformer *t, void *qkv, int64_t i)
{
    return (char *)qkv + (size_t)(i * t->head_dim) * sherd_dtype_bytes(run->type);
}

/* From raw to qkv: the heads of v. */
static int copy_v(const struct sherd_run *run, const struct transformer *t, const struct memory *m)
{
    size_t elem = sherd_dtype_bytes(run->type);
    int64_t first = t->heads + t->kv_heads;
    return sherd_copy(run->queue, &(struct sherd_copy){ .dst = head(run, t, m->qkv, first),
                                      .src = head(run, t, m->raw, first),
                                      .bytes = (size_t)(t->kv_heads * t->head_dim) * elem,
                                      .rows = run_rows(run),
                                      .pitch = (size_t)qkv_width(t) * elem });
}

/* raw to qkv: the norms of q and k if there are any, and the rotation. */
static int finish_qkv(const struct sherd_run *run, const struct transformer *t, const struct memory *m)
{
    int64_t width = qkv_width(t), k = t->heads;
    if (has_qk_norm(t)) {
        SHERD_TRY(head_norm_forward(run, &t->block.q_norm, t->heads, width, m->qkv, m->rstd_q, m->raw));
        SHERD_TRY(head_norm_forward(run, &t->block.k_norm, t->kv_heads, width, head(run, t, m->qkv, k),
            m->rstd_k, head(run, t, m->raw, k)));
        SHERD_TRY(copy_v(run, t, m));
    }
    return rotate(run, t, m->qkv, 0);
}

/* Turns the gradient of qkv into that of raw, in place. */
static int unfinish_dqkv(const struct sherd_run *run, const struct transformer *t, const struct memory *m)
{
    int64_t width = qkv_width(t), k = t->heads;
    SHERD_TRY(rotate(run, t, m->dqkv, 1));
    if (!has_qk_norm(t))
        return SHERD_OK;
    SHERD_TRY(head_norm_backward(run, &t->block.q_norm, t->heads, width, m->dqkv, m->raw, m->rstd_q, m->op));
    return head_norm_backward(run, &t->block.k_norm, t->kv_heads, width, head(run, t, m->dqkv, k),
        head(run, t, m->raw, k), m->rstd_k, m->op);
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

static int act_backward(const struct sherd_run *run, const struct transformer *t, void *dx, void *y,
    const void *dy, const void *x)
{
    int64_t N = run_rows(run), F = t->mlp_width;
    if (t->block.mlp == MLP_SWIGLU)
        return sherd_swiglu_backward(
            run->queue, &(struct sherd_swiglu_backward){
                            .dx = dx, .y = y, .dy = dy, .x = x, .rows = N, .cols = F, .type = run->type });
    return sherd_gelu_backward(run->queue,
        &(struct sherd_gelu_backward){ .dx = dx, .y = y, .dy = dy, .x = x, .n = N * F, .type = run->type });
}

/* ---- the block ---- */

static int block_forward(struct sherd_run *run)
{
    if (run_is_empty(run))
        return SHERD_OK;
    const struct transformer *t = run->arg;
    const struct block *b = &t->block;
    struct memory m = memory_of(run);

    SHERD_TRY(norm_forward(run, &b->norm1, m.n1, m.mean1, m.rstd1, run->x));
    SHERD_TRY(linear_forward(run, &b->qkv, m.raw, m.n1, NULL));
    SHERD_TRY(finish_qkv(run, t, &m));
    SHERD_TRY(attend_forward(run, t, m.att, m.lse, m.qkv, m.op));
    SHERD_TRY(linear_forward(run, &b->o, m.r, m.att, run->x));
    SHERD_TRY(norm_forward(run, &b->norm2, m.n2, m.mean2, m.rstd2, m.r));
    SHERD_TRY(linear_forward(run, &b->up, m.up, m.n2, NULL));
    SHERD_TRY(act_forward(run, t, m.act, m.up));
    return run->again ? SHERD_OK : linear_forward(run, &b->down, run->y, m.act, m.r);
}

/* Before the gradient of a dense layer's weight comes that of its input, and the backward of what made the
 * input: where that was not kept it is written once more, in the place of its own gradient, which has been
 * read by then. This is where to, NULL if it was kept, or if nobody will ask since the weight is frozen. */
static void *once_more(const struct sherd_run *run, const struct linear *l, void *input)
{
    return run->recompute == SHERD_RECOMPUTE_CHEAP && run->dw[l->w] ? input : NULL;
}

static int mlp_backward(const struct sherd_run *run, const struct transformer *t, const struct memory *m)
{
    const struct block *b = &t->block;
    void *act = once_more(run, &b->down, m->act), *n2 = once_more(run, &b->up, m->n2);
    SHERD_TRY(linear_backward_input(run, &b->down, m->medium, run->dy));
    SHERD_TRY(act_backward(run, t, m->up, act, m->medium, m->up));
    SHERD_TRY(linear_backward_weight(run, &b->down, run->dy, m->act, m->op));
    SHERD_TRY(linear_backward_input(run, &b->up, m->medium, m->up));
    SHERD_TRY(norm_backward(run, &b->norm2, m->dr, n2, m->medium, m->r, m->mean2, m->rstd2, run->dy, m->op));
    return linear_backward_weight(run, &b->up, m->up, m->n2, m->op);
}

static int attention_backward(
    const struct sherd_run *run, const struct transformer *t, const struct memory *m)
{
    const struct block *b = &t->block;
    void *dx = run->dx ? run->dx : m->dr, *n1 = once_more(run, &b->qkv, m->n1);
    SHERD_TRY(linear_backward_input(run, &b->o, m->medium, m->dr));
    SHERD_TRY(linear_backward_weight(run, &b->o, m->dr, m->att, m->op));
    if (run->recompute == SHERD_RECOMPUTE_CHEAP && has_qk_norm(t))
        SHERD_TRY(finish_qkv(run, t, m));
    SHERD_TRY(attend_backward(run, t, m->dqkv, m->medium, m->att, m->qkv, m->lse, m->op));
    SHERD_TRY(unfinish_dqkv(run, t, m));
    SHERD_TRY(linear_backward_input(run, &b->qkv, m->medium, m->dqkv));
    SHERD_TRY(norm_backward(run, &b->norm1, dx, n1, m->medium, run->x, m->mean1, m->rstd1, m->dr, m->op));
    return linear_backward_weight(run, &b->qkv, m->dqkv, m->n1, m->op);
}

static int block_backward(struct sherd_run *run)
{
    if (run_is_empty(run))
        return SHERD_OK;
    struct memory m = memory_of(run);
    SHERD_TRY(mlp_backward(run, run->arg, &m));
    return attention_backward(run, run->arg, &m);
}

const struct sherd_layer_ops model_block = {
    .kind = "block",
    .sizes = block_sizes,
    .forward = block_forward,
    .backward = block_backward,
    .overwrites = 1,
};
