/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The operations that are timed, and the operands of a call at the shape of a model.
 */
#include "bench/kernels.h"

#include <math.h>

#include "base/status.h"
#include "bench/check.h"

static void *take(struct place *p, int64_t elems, size_t each)
{
    char *at = p->base + p->at;
    p->at += (size_t)round_up(elems * (int64_t)each, 4096);
    return at;
}

static void *halves(struct place *p, int64_t elems)
{
    return take(p, elems, 2);
}

/* Floats of 0.0115, for what is never below 0. */
static void *above_zero(struct place *p, int64_t elems, size_t each)
{
    void *at = take(p, elems, each);
    if (p->fill)
        check(sherd_fill(
            p->queue, &(struct sherd_fill){ .dst = at, .bytes = (size_t)elems * each, .byte = 0x3c }));
    return at;
}

static void *small(const struct place *p, int part)
{
    return p->small + part;
}

static void norm_forward_of(struct place *p, const struct shape *s, union args *a, enum sherd_norm_kind kind)
{
    a->norm_forward = (struct sherd_norm_forward){ .y = halves(p, s->rows * s->width),
        .x = halves(p, s->rows * s->width),
        .w = small(p, WEIGHT),
        .b = kind == SHERD_LAYER_NORM ? small(p, WEIGHT) : NULL,
        .mean = kind == SHERD_LAYER_NORM ? take(p, s->rows, 4) : NULL,
        .rstd = take(p, s->rows, 4),
        .rows = s->rows,
        .cols = s->width,
        .eps = 1e-5f,
        .kind = kind,
        .type = SHERD_BF16 };
}

static void rms_forward(struct place *p, const struct shape *s, union args *a)
{
    norm_forward_of(p, s, a, SHERD_RMS_NORM);
}

static void layer_norm_forward(struct place *p, const struct shape *s, union args *a)
{
    norm_forward_of(p, s, a, SHERD_LAYER_NORM);
}

static void norm_backward_of(
    struct place *p, const struct shape *s, union args *a, enum sherd_norm_kind kind, int with_y)
{
    void *dy = halves(p, s->rows * s->width), *add = halves(p, s->rows * s->width);
    int layer = kind == SHERD_LAYER_NORM;
    a->norm_backward = (struct sherd_norm_backward){ .dx = add,
        .dw = small(p, GRAD),
        .db = layer ? (char *)small(p, GRAD) + (GRAD / 2) : NULL,
        .y = with_y ? dy : NULL,
        .dy = dy,
        .x = halves(p, s->rows * s->width),
        .w = small(p, WEIGHT),
        .b = layer ? small(p, WEIGHT) : NULL,
        .add = add,
        .mean = layer ? take(p, s->rows, 4) : NULL,
        .rstd = above_zero(p, s->rows, 4),
        .rows = s->rows,
        .cols = s->width,
        .kind = kind,
        .type = SHERD_BF16,
        .grad_type = SHERD_F32,
        .overwrite_dw = 1,
        .overwrite_db = 1,
        .scratch = small(p, SCRATCH) };
}

static void rms_backward(struct place *p, const struct shape *s, union args *a)
{
    norm_backward_of(p, s, a, SHERD_RMS_NORM, 0);
}

static void rms_backward_y(struct place *p, const struct shape *s, union args *a)
{
    norm_backward_of(p, s, a, SHERD_RMS_NORM, 1);
}

static void layer_norm_backward(struct place *p, const struct shape *s, union args *a)
{
    norm_backward_of(p, s, a, SHERD_LAYER_NORM, 0);
}

static void layer_norm_backward_y(struct place *p, const struct shape *s, union args *a)
{
    norm_backward_of(p, s, a, SHERD_LAYER_NORM, 1);
}

static void swiglu_forward(struct place *p, const struct shape *s, union args *a)
{
    a->swiglu_forward = (struct sherd_swiglu_forward){ .y = halves(p, s->rows * s->mlp),
        .x = halves(p, 2 * s->rows * s->mlp),
        .rows = s->rows,
        .cols = s->mlp,
        .type = SHERD_BF16 };
}

static void swiglu_backward(struct place *p, const struct shape *s, union args *a)
{
    void *x = halves(p, 2 * s->rows * s->mlp);
    a->swiglu_backward = (struct sherd_swiglu_backward){ .dx = x,
        .dy = halves(p, s->rows * s->mlp),
        .x = x,
        .rows = s->rows,
        .cols = s->mlp,
        .type = SHERD_BF16 };
}

static void swiglu_backward_y(struct place *p, const struct shape *s, union args *a)
{
    swiglu_backward(p, s, a);
    a->swiglu_backward.y = (void *)(uintptr_t)a->swiglu_backward.dy;
}

static void gelu_forward(struct place *p, const struct shape *s, union args *a)
{
    a->gelu_forward = (struct sherd_gelu_forward){ .y = halves(p, s->rows * s->mlp),
        .x = halves(p, s->rows * s->mlp),
        .n = s->rows * s->mlp,
        .type = SHERD_BF16 };
}

static void gelu_backward(struct place *p, const struct shape *s, union args *a)
{
    void *x = halves(p, s->rows * s->mlp);
    a->gelu_backward = (struct sherd_gelu_backward){
        .dx = x, .dy = halves(p, s->rows * s->mlp), .x = x, .n = s->rows * s->mlp, .type = SHERD_BF16
    };
}

static void rope(struct place *p, const struct shape *s, union args *a)
{
    a->rope = (struct sherd_rope){ .x = halves(p, s->rows * (s->heads + 2 * s->kv_heads) * s->head_dim),
        .batch = s->rows / s->seq,
        .seq = s->seq,
        .heads = s->heads + 2 * s->kv_heads,
        .rotated = s->heads + s->kv_heads,
        .head_dim = s->head_dim,
        .type = SHERD_BF16 };
    for (int64_t i = 0; i < s->head_dim / 2; i++)
        a->rope.inv_freq[i] = powf(10000.0f, -2.0f * (float)i / (float)s->head_dim);
}

static void bias_backward_of(struct place *p, const struct shape *s, union args *a, int64_t cols)
{
    a->bias_backward = (struct sherd_bias_backward){ .db = small(p, GRAD),
        .dy = halves(p, s->rows * cols),
        .rows = s->rows,
        .cols = cols,
        .type = SHERD_BF16,
        .grad_type = SHERD_F32,
        .overwrite = 1,
        .scratch = small(p, SCRATCH) };
}

static void bias_backward(struct place *p, const struct shape *s, union args *a)
{
    bias_backward_of(p, s, a, s->width);
}

static void wide_bias_backward(struct place *p, const struct shape *s, union args *a)
{
    bias_backward_of(p, s, a, s->mlp);
}

static void loss(struct place *p, const struct shape *s, union args *a)
{
    a->loss = (struct sherd_loss){ .logits = halves(p, s->loss_rows * s->vocab_pitch),
        .sum = small(p, SUM),
        .count = small(p, COUNT),
        .targets = small(p, TOKENS),
        .rows = s->loss_rows,
        .vocab = s->vocab,
        .pitch = s->vocab_pitch,
        .backward = 1,
        .type = SHERD_BF16,
        .scratch = small(p, SCRATCH) };
}

static void embed_forward(struct place *p, const struct shape *s, union args *a)
{
    a->embed_forward = (struct sherd_embed_forward){ .y = halves(p, s->rows * s->width),
        .wte = halves(p, s->vocab * s->width),
        .tokens = small(p, TOKENS),
        .batch = s->rows / s->seq,
        .seq = s->seq,
        .width = s->width,
        .vocab = s->vocab,
        .type = SHERD_BF16 };
}

static void embed_backward(struct place *p, const struct shape *s, union args *a)
{
    a->embed_backward = (struct sherd_embed_backward){ .dwte = take(p, s->vocab * s->width, 4),
        .dy = halves(p, s->rows * s->width),
        .tokens = small(p, TOKENS),
        .batch = s->rows / s->seq,
        .seq = s->seq,
        .width = s->width,
        .vocab = s->vocab,
        .type = SHERD_BF16,
        .grad_type = SHERD_F32,
        .scratch = small(p, SCRATCH) };
}

static void adamw(struct place *p, const struct shape *s, union args *a)
{
    a->adamw = (struct sherd_adamw){ .param = halves(p, s->params),
        .master = take(p, s->params, 4),
        .m = take(p, s->params, 4),
        .v = above_zero(p, s->params, 4),
        .grad = take(p, s->params, 4),
        .factor = small(p, ONE_FLOAT),
        .n = s->params,
        .step = 10,
        .lr = 1e-3f,
        .beta1 = 0.9f,
        .beta2 = 0.95f,
        .eps = 1e-8f,
        .weight_decay = 0.1f,
        .param_type = SHERD_BF16,
        .grad_type = SHERD_F32,
        .state_type = SHERD_F32 };
}

static void adamw_small(struct place *p, const struct shape *s, union args *a)
{
    adamw(p, s, a);
    a->adamw.m = halves(p, s->params);
    a->adamw.v = above_zero(p, s->params, 2);
    a->adamw.low = halves(p, s->params);
    a->adamw.master = NULL;
    a->adamw.state_type = SHERD_BF16;
}

static void accumulate(struct place *p, const struct shape *s, union args *a)
{
    a->accumulate = (struct sherd_accumulate){
        .dst = take(p, s->params, 4), .src = take(p, s->params, 4), .n = s->params, .src_type = SHERD_F32
    };
}

static void square_sum(struct place *p, const struct shape *s, union args *a)
{
    a->square_sum = (struct sherd_square_sum){ .sum = small(p, SUM),
        .x = take(p, s->params, 4),
        .n = s->params,
        .type = SHERD_F32,
        .scratch = small(p, SCRATCH) };
}

static void cast(struct place *p, const struct shape *s, union args *a)
{
    a->cast = (struct sherd_cast){ .y = halves(p, s->params),
        .x = take(p, s->params, 4),
        .n = s->params,
        .y_type = SHERD_BF16,
        .x_type = SHERD_F32 };
}

static void add(struct place *p, const struct shape *s, union args *a)
{
    int64_t n = s->rows * s->width;
    a->add = (struct sherd_add){
        .y = halves(p, n), .a = halves(p, n), .b = halves(p, n), .n = n, .type = SHERD_BF16
    };
}

static const struct work llama_work[] = {
    { "", OP_norm_forward, rms_forward },
    { "", OP_norm_backward, rms_backward },
    { "and y", OP_norm_backward, rms_backward_y },
    { "", OP_swiglu_forward, swiglu_forward },
    { "", OP_swiglu_backward, swiglu_backward },
    { "and y", OP_swiglu_backward, swiglu_backward_y },
    { "", OP_rope, rope },
    { "", OP_loss, loss },
    { "", OP_embed_forward, embed_forward },
    { "", OP_embed_backward, embed_backward },
    { "f32 states", OP_adamw, adamw },
    { "split, bf16", OP_adamw, adamw_small },
    { "f32", OP_accumulate, accumulate },
    { "f32", OP_square_sum, square_sum },
    { "f32 to bf16", OP_cast, cast },
    { "", OP_add, add },
};

static const struct work gpt2_work[] = {
    { "", OP_norm_forward, layer_norm_forward },
    { "", OP_norm_backward, layer_norm_backward },
    { "and y", OP_norm_backward, layer_norm_backward_y },
    { "", OP_gelu_forward, gelu_forward },
    { "", OP_gelu_backward, gelu_backward },
    { "", OP_bias_backward, bias_backward },
    { "", OP_bias_backward, wide_bias_backward },
    { "", OP_loss, loss },
    { "", OP_embed_backward, embed_backward },
    { "f32 states", OP_adamw, adamw },
};

const struct timed_model timed_models[TIMED_MODELS] = {
    { { "llama", 16384, 2048, 2048, 5632, 32, 4, 64, 32000, 32000, 5462, 44044288 }, llama_work,
        (int)ARRAY_LEN(llama_work) },
    { { "gpt2", 32768, 1024, 768, 3072, 12, 12, 64, 50257, 50304, 3277, 7087872 }, gpt2_work,
        (int)ARRAY_LEN(gpt2_work) },
};
