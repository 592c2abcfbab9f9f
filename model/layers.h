/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Building pieces of layers over the device operations: dense layers, norms, attention, and the first and
 * last layer and the block between, which the families share. A piece takes its parameters by index in the
 * unit; a frozen one (dw entry NULL) costs nothing in backward. Knows no family.
 *
 * Letters: B batch, T sequence, N = B * T rows, C width, H heads, K kv heads, D head size, F mlp width.
 */
#ifndef SHERD_MODEL_LAYERS_H
#define SHERD_MODEL_LAYERS_H

#include <sherd/model.h>
#include <sherd/ops.h>
#include "base/status.h"

/* y = x W + bias, weight stored [in,out] (as GPT-2 has it) or, with out_first, [out,in]. */
struct linear {
    int w, bias; /* bias -1 = none */
    int64_t in, out;
    int out_first;
    int64_t pitch; /* elements from a row of y and dy to the next; 0: out. For out_first and no bias only */
};

struct norm {
    int w, b; /* b -1 = none */
    int64_t cols;
    float eps;
    enum sherd_norm_kind kind;
};

enum mlp_kind {
    MLP_GELU,   /* gelu(up) */
    MLP_SWIGLU, /* silu(gate) * up; the linear `up` makes both, gate first */
};

/* How the block of a family is made up. */
struct block {
    struct norm norm1, norm2;
    struct norm q_norm, k_norm; /* of each head before the rotation; w -1 = none */
    struct linear qkv, o, up, down;
    enum mlp_kind mlp;
    int rope; /* q and k are rotated */
};

/* The arg of every layer of a built-in family; lies in the model's arena. */
struct transformer {
    int64_t vocab, width, heads, kv_heads, head_dim, mlp_width, context;
    enum sherd_norm_kind norm;
    float norm_eps;
    int any_order;                          /* see struct sherd_model_config */
    float inv_freq[SHERD_MAX_HEAD_DIM / 2]; /* with block.rope */
    struct block block;
    /* parameters by index in the unit of the first and the last layer; -1 = the family has none */
    int wte, wpe;
    int final_w, final_b, head_w;
};

static inline int64_t run_rows(const struct sherd_run *run)
{
    return run->in.batch * run->in.seq;
}

/* A rank may bring fewer sequences than planned, down to none: then a layer has nothing to do. */
static inline int run_is_empty(const struct sherd_run *run)
{
    return run->in.batch == 0;
}

/* Fills dw[index] with zero where it holds nothing yet, for operations that can only add. */
int settle_fresh(const struct sherd_run *run, int index, int64_t elems);

/* What sizes() was told, at the size of this run. */
struct sherd_layer_plan run_plan(const struct sherd_run *run);

/* Cuts a region into pieces at multiples of 256 bytes. With base NULL it only adds up, so that sizes() and
 * the run itself share one description of the memory. */
struct cutter {
    char *base;
    size_t used;
};
void *cut(struct cutter *c, size_t bytes);
void *cut_elems(struct cutter *c, int64_t elems, enum sherd_dtype type);

/* y[N,out]; add [N,out] is a residual, or NULL. */
int linear_forward(
    const struct sherd_run *run, const struct linear *l, void *y, const void *x, const void *add);
/* Writes dx[N,in]. */
int linear_backward_input(const struct sherd_run *run, const struct linear *l, void *dx, const void *dy);
/* Adds to the gradients of weight and bias. */
int linear_backward_weight(
    const struct sherd_run *run, const struct linear *l, const void *dy, const void *x, void *scratch);
size_t linear_scratch(const struct linear *l, int64_t rows, enum sherd_dtype type);

/* mean and rstd hold N floats each; mean is unused by RMSNorm. */
int norm_forward(
    const struct sherd_run *run, const struct norm *n, void *y, float *mean, float *rstd, const void *x);
/* dx = gradient through the norm + add; dx may be add. y: what forward wrote, once more, or NULL; may be dy.
 */
int norm_backward(const struct sherd_run *run, const struct norm *n, void *dx, void *y, const void *dy,
    const void *x, const float *mean, const float *rstd, const void *add, void *scratch);
size_t norm_scratch(const struct norm *n, int64_t rows, enum sherd_dtype type);

/* RMSNorm of each of `heads` heads in every row of a wider matrix: x and y point to the first head and their
 * rows are `pitch` elements apart. rstd holds N * heads floats. */
int head_norm_forward(const struct sherd_run *run, const struct norm *n, int64_t heads, int64_t pitch,
    void *y, float *rstd, const void *x);
/* Replaces the gradient of y by that of x. */
int head_norm_backward(const struct sherd_run *run, const struct norm *n, int64_t heads, int64_t pitch,
    void *dx, const void *x, const float *rstd, void *scratch);

/* Causal attention over qkv[N,(H+2K)D]. */
int attend_forward(const struct sherd_run *run, const struct transformer *t, void *out, float *lse,
    const void *qkv, void *scratch);
int attend_backward(const struct sherd_run *run, const struct transformer *t, void *dqkv, const void *dout,
    const void *out, const void *qkv, const float *lse, void *scratch);
size_t attend_scratch(const struct transformer *t, const struct sherd_layer_plan *plan);

/* Work space of a block that keeps all it can: no plan has less, whatever is recomputed. */
size_t block_scratch(const struct transformer *t, const struct sherd_layer_plan *plan);

/* The first layer (tokens to width), the block, and the last layer (final norm, head, loss); arg is a struct
 * transformer. */
extern const struct sherd_layer_ops model_embed, model_block, model_head;

#endif
