/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Dense layers, norms and attention over the device operations.
 */
#include "model/layers.h"

#include <assert.h>
#include <math.h>

#include "device/ops.h"

#define CUT_ALIGN 256

struct sherd_layer_plan run_plan(const struct sherd_run *run)
{
    return (struct sherd_layer_plan){ .in = run->in,
        .type = run->type,
        .recompute = run->recompute,
        .device = sherd_queue_device(run->queue)->ops->kind };
}

void *cut(struct cutter *c, size_t bytes)
{
    void *at = c->base ? c->base + c->used : NULL;
    c->used += (size_t)round_up((int64_t)bytes, CUT_ALIGN);
    return at;
}

void *cut_elems(struct cutter *c, int64_t elems, enum sherd_dtype type)
{
    return cut(c, (size_t)elems * sherd_dtype_bytes(type));
}

static const void *weight(const struct sherd_run *run, int index)
{
    return index < 0 ? NULL : run->w[index];
}

static void *gradient(const struct sherd_run *run, int index)
{
    return index < 0 ? NULL : run->dw[index];
}

/* Whether dw[index] holds nothing yet. The caller then overwrites it. */
static int take_fresh(const struct sherd_run *run, int index)
{
    if (!gradient(run, index) || !run->fresh || !run->fresh[index])
        return 0;
    run->fresh[index] = 0;
    return 1;
}

int settle_fresh(const struct sherd_run *run, int index, int64_t elems)
{
    if (!take_fresh(run, index))
        return SHERD_OK;
    return sherd_fill(run->queue, &(struct sherd_fill){ .dst = run->dw[index],
                                      .bytes = (size_t)elems * sherd_dtype_bytes(run->grad_type) });
}

/* ---- dense layers ---- */

int linear_forward(
    const struct sherd_run *run, const struct linear *l, void *y, const void *x, const void *add)
{
    return sherd_matmul(run->queue, &(struct sherd_matmul){
                                        .c = y,
                                        .a = x,
                                        .b = weight(run, l->w),
                                        .bias = weight(run, l->bias),
                                        .add = add,
                                        .m = run_rows(run),
                                        .n = l->out,
                                        .k = l->in,
                                        .c_pitch = l->pitch,
                                        .trans_b = l->out_first,
                                        .type = run->type,
                                        .c_type = run->type,
                                    });
}

/* dw = or += x' dy, or dy' x where the weight is stored [out,in]. */
static int weight_backward(
    const struct sherd_run *run, const struct linear *l, void *dw, const void *dy, const void *x)
{
    return sherd_matmul(run->queue, &(struct sherd_matmul){
                                        .c = dw,
                                        .a = l->out_first ? dy : x,
                                        .b = l->out_first ? x : dy,
                                        .add = take_fresh(run, l->w) ? NULL : dw,
                                        .m = l->out_first ? l->out : l->in,
                                        .n = l->out_first ? l->in : l->out,
                                        .k = run_rows(run),
                                        .a_pitch = l->pitch,
                                        .trans_a = 1,
                                        .type = run->type,
                                        .c_type = run->grad_type,
                                    });
}

int linear_backward_weight(
    const struct sherd_run *run, const struct linear *l, const void *dy, const void *x, void *scratch)
{
    void *dw = gradient(run, l->w), *db = gradient(run, l->bias);
    assert(l->pitch == 0 || (l->out_first && l->bias < 0));
    if (dw)
        SHERD_TRY(weight_backward(run, l, dw, dy, x));
    if (!db)
        return SHERD_OK;
    return sherd_bias_backward(run->queue, &(struct sherd_bias_backward){
                                               .db = db,
                                               .dy = dy,
                                               .rows = run_rows(run),
                                               .cols = l->out,
                                               .type = run->type,
                                               .grad_type = run->grad_type,
                                               .overwrite = take_fresh(run, l->bias),
                                               .scratch = scratch,
                                           });
}

int linear_backward_input(const struct sherd_run *run, const struct linear *l, void *dx, const void *dy)
{
    return sherd_matmul(run->queue, &(struct sherd_matmul){
                                        .c = dx,
                                        .a = dy,
                                        .b = weight(run, l->w),
                                        .m = run_rows(run),
                                        .n = l->in,
                                        .k = l->out,
                                        .a_pitch = l->pitch,
                                        .trans_b = !l->out_first,
                                        .type = run->type,
                                        .c_type = run->type,
                                    });
}

size_t linear_scratch(const struct linear *l, int64_t rows, enum sherd_dtype type)
{
    if (l->bias < 0)
        return 0;
    return sherd_bias_backward_scratch(
        &(struct sherd_bias_backward){ .rows = rows, .cols = l->out, .type = type, .grad_type = SHERD_F32 });
}

/* ---- norms ---- */

int norm_forward(
    const struct sherd_run *run, const struct norm *n, void *y, float *mean, float *rstd, const void *x)
{
    return sherd_norm_forward(run->queue, &(struct sherd_norm_forward){
                                              .y = y,
                                              .mean = n->kind == SHERD_LAYER_NORM ? mean : NULL,
                                              .rstd = rstd,
                                              .x = x,
                                              .w = weight(run, n->w),
                                              .b = weight(run, n->b),
                                              .rows = run_rows(run),
                                              .cols = n->cols,
                                              .eps = n->eps,
                                              .kind = n->kind,
                                              .type = run->type,
                                          });
}

int norm_backward(const struct sherd_run *run, const struct norm *n, void *dx, void *y, const void *dy,
    const void *x, const float *mean, const float *rstd, const void *add, void *scratch)
{
    return sherd_norm_backward(run->queue, &(struct sherd_norm_backward){
                                               .dx = dx,
                                               .dw = gradient(run, n->w),
                                               .db = gradient(run, n->b),
                                               .y = y,
                                               .dy = dy,
                                               .x = x,
                                               .w = weight(run, n->w),
                                               .b = weight(run, n->b),
                                               .add = add,
                                               .mean = n->kind == SHERD_LAYER_NORM ? mean : NULL,
                                               .rstd = rstd,
                                               .rows = run_rows(run),
                                               .cols = n->cols,
                                               .kind = n->kind,
                                               .type = run->type,
                                               .grad_type = run->grad_type,
                                               .overwrite_dw = take_fresh(run, n->w),
                                               .overwrite_db = take_fresh(run, n->b),
                                               .scratch = scratch,
                                           });
}

size_t norm_scratch(const struct norm *n, int64_t rows, enum sherd_dtype type)
{
    return sherd_norm_backward_scratch(&(struct sherd_norm_backward){
        .rows = rows, .cols = n->cols, .kind = n->kind, .type = type, .grad_type = SHERD_F32 });
}

int head_norm_forward(const struct sherd_run *run, const struct norm *n, int64_t heads, int64_t pitch,
    void *y, float *rstd, const void *x)
{
    return sherd_norm_forward(run->queue, &(struct sherd_norm_forward){
                                              .y = y,
                                              .rstd = rstd,
                                              .x = x,
                                              .w = weight(run, n->w),
                                              .rows = run_rows(run) * heads,
                                              .cols = n->cols,
                                              .run = heads,
                                              .pitch = pitch,
                                              .eps = n->eps,
                                              .kind = n->kind,
                                              .type = run->type,
                                          });
}

int head_norm_backward(const struct sherd_run *run, const struct norm *n, int64_t heads, int64_t pitch,
    void *dx, const void *x, const float *rstd, void *scratch)
{
    return sherd_norm_backward(run->queue, &(struct sherd_norm_backward){
                                               .dx = dx,
                                               .dw = gradient(run, n->w),
                                               .dy = dx,
                                               .x = x,
                                               .w = weight(run, n->w),
                                               .rstd = rstd,
                                               .rows = run_rows(run) * heads,
                                               .cols = n->cols,
                                               .run = heads,
                                               .pitch = pitch,
                                               .kind = n->kind,
                                               .type = run->type,
                                               .grad_type = run->grad_type,
                                               .overwrite_dw = take_fresh(run, n->w),
                                               .scratch = scratch,
                                           });
}

/* ---- attention ---- */

static float attend_scale(const struct transformer *t)
{
    return 1.0f / sqrtf((float)t->head_dim);
}

int attend_forward(const struct sherd_run *run, const struct transformer *t, void *out, float *lse,
    const void *qkv, void *scratch)
{
    return sherd_attention_forward(run->queue, &(struct sherd_attention_forward){
                                                   .out = out,
                                                   .lse = lse,
                                                   .qkv = qkv,
                                                   .batch = run->in.batch,
                                                   .seq = run->in.seq,
                                                   .heads = t->heads,
                                                   .kv_heads = t->kv_heads,
                                                   .head_dim = t->head_dim,
                                                   .scale = attend_scale(t),
                                                   .type = run->type,
                                                   .scratch = scratch,
                                               });
}

int attend_backward(const struct sherd_run *run, const struct transformer *t, void *dqkv, const void *dout,
    const void *out, const void *qkv, const float *lse, void *scratch)
{
    return sherd_attention_backward(run->queue, &(struct sherd_attention_backward){
                                                    .dqkv = dqkv,
                                                    .dout = dout,
                                                    .out = out,
                                                    .qkv = qkv,
                                                    .lse = lse,
                                                    .batch = run->in.batch,
                                                    .seq = run->in.seq,
                                                    .heads = t->heads,
                                                    .kv_heads = t->kv_heads,
                                                    .head_dim = t->head_dim,
                                                    .scale = attend_scale(t),
                                                    .type = run->type,
                                                    .any_order = t->any_order,
                                                    .scratch = scratch,
                                                });
}

size_t attend_scratch(const struct transformer *t, const struct sherd_layer_plan *plan)
{
    size_t forward =
        sherd_attention_forward_scratch(&(struct sherd_attention_forward){ .batch = plan->in.batch,
            .seq = plan->in.seq,
            .heads = t->heads,
            .kv_heads = t->kv_heads,
            .head_dim = t->head_dim,
            .type = plan->type });
    struct sherd_attention_backward back = { .batch = plan->in.batch,
        .seq = plan->in.seq,
        .heads = t->heads,
        .kv_heads = t->kv_heads,
        .head_dim = t->head_dim,
        .type = plan->type,
        .any_order = t->any_order };
    return MAX(forward, sherd_attention_backward_scratch(&back, plan->device));
}
