/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What a call of an operation must at least do: floating-point operations, and bytes of memory read and
 * written, each operand once. A profiler divides them by the time that was taken, and a forecast by what a
 * machine can. The switches have no default, so that the compiler names an operation that is missing.
 */
#include <stdio.h>

#include "device/ops.h"

/* Attention counts the causal half only. Its backward counts four products; the scores that it computes
 * anew are not progress, so not counted. */
double op_flops(enum op_index op, const void *args)
{
    if (op == OP_matmul) {
        const struct sherd_matmul *a = args;
        return 2.0 * (double)a->m * (double)a->n * (double)a->k;
    }
    if (op == OP_attention_forward) {
        const struct sherd_attention_forward *a = args;
        return 2.0 * (double)a->batch * (double)a->heads * (double)a->head_dim * (double)a->seq *
               (double)(a->seq + 1);
    }
    if (op == OP_attention_backward) {
        const struct sherd_attention_backward *a = args;
        return 4.0 * (double)a->batch * (double)a->heads * (double)a->head_dim * (double)a->seq *
               (double)(a->seq + 1);
    }
    return 0;
}

/* `elems` elements of a type. */
static double of(enum sherd_dtype type, int64_t elems)
{
    return (double)sherd_dtype_bytes(type) * (double)elems;
}

static int64_t copied(const struct sherd_copy *a)
{
    return (int64_t)a->bytes * (a->rows ? a->rows : 1);
}

static double matmul_bytes(const struct sherd_matmul *a)
{
    return of(a->type, a->m * a->k + a->k * a->n) + of(a->c_type, a->m * a->n) * (a->add ? 2 : 1);
}

/* Elements of qkv, and of what the q heads alone have. */
static double attention_bytes(enum sherd_dtype type, int64_t rows, int64_t heads, int64_t kv_heads,
    int64_t head_dim, int qkvs, int outs)
{
    int64_t qkv = rows * (heads + 2 * kv_heads) * head_dim, out = rows * heads * head_dim;
    return of(type, qkvs * qkv + outs * out) + of(SHERD_F32, rows * heads);
}

static double norm_backward_bytes(const struct sherd_norm_backward *a)
{
    return of(a->type, a->rows * a->cols) * ((a->add ? 4 : 3) + (a->y ? 1 : 0)) +
           of(SHERD_F32, a->rows) * (a->kind == SHERD_LAYER_NORM ? 2 : 1);
}

/* Of an update: float masters are read and written, and the rounded copy is written; or both halves are. */
static double weight_bytes(int64_t n, int param, enum sherd_dtype type, int low)
{
    return (low ? of(type, n) + 4.0 * (double)n : of(SHERD_F32, 2 * n)) + (param ? of(type, n) : 0);
}

double op_bytes(enum op_index op, const void *args)
{
    switch (op) {
#define CASE(name, expression)                                                                               \
    case OP_##name: {                                                                                        \
        const struct sherd_##name *a = args;                                                                 \
        return expression;                                                                                   \
    }
        CASE(copy, 2.0 * (double)copied(a))
        CASE(fill, (double)a->bytes)
        CASE(cast, of(a->y_type, a->n) + of(a->x_type, a->n))
        CASE(add, of(a->type, 3 * a->n))
        CASE(accumulate, of(a->src_type, a->n) + of(SHERD_F32, a->n) * (a->overwrite ? 1 : 2))
        CASE(matmul, matmul_bytes(a))
        CASE(bias_backward, of(a->type, a->rows * a->cols))
        CASE(norm_forward, of(a->type, 2 * a->rows * a->cols))
        CASE(norm_backward, norm_backward_bytes(a))
        CASE(gelu_forward, of(a->type, 2 * a->n))
        CASE(gelu_backward, of(a->type, (a->y ? 4 : 3) * a->n))
        CASE(swiglu_forward, of(a->type, 3 * a->rows * a->cols))
        CASE(swiglu_backward, of(a->type, (a->y ? 6 : 5) * a->rows * a->cols))
        CASE(rope, of(a->type, 2 * a->batch * a->seq * a->rotated * a->head_dim))
        CASE(attention_forward,
            attention_bytes(a->type, a->batch * a->seq, a->heads, a->kv_heads, a->head_dim, 1, 1))
        CASE(attention_backward,
            attention_bytes(a->type, a->batch * a->seq, a->heads, a->kv_heads, a->head_dim, 2, 2))
        CASE(embed_forward, of(a->type, (a->wpe ? 3 : 2) * a->batch * a->seq * a->width))
        CASE(embed_backward,
            of(a->type, a->batch * a->seq * a->width) + of(a->grad_type, 2 * a->batch * a->seq * a->width))
        CASE(loss, of(a->type, a->rows * a->vocab) * (a->backward ? 2 : 1))
        CASE(adamw, weight_bytes(a->n, a->param != NULL, a->param_type, a->low != NULL) +
                        of(a->grad_type, a->n) + of(a->state_type, 4 * a->n))
        CASE(sgd, weight_bytes(a->n, a->param != NULL, a->param_type, a->low != NULL) +
                      of(a->grad_type, a->n) + (a->m ? of(a->state_type, 2 * a->n) : 0))
        CASE(split, of(SHERD_F32, a->n) + of(SHERD_BF16, (a->low ? 2 : 1) * a->n))
        CASE(join, of(SHERD_F32, a->n) + of(SHERD_BF16, (a->low ? 2 : 1) * a->n))
        CASE(square_sum, of(a->type, a->n))
        CASE(ordered_sum, of(SHERD_F64, (a->n + 1) * a->cols))
        CASE(clip_factor, of(SHERD_F32, 1) + of(SHERD_F64, 2 + (a->loss != NULL) + (a->scale != NULL)))
#undef CASE
    case OP_COUNT:
        break;
    }
    return 0;
}

void op_shape(enum op_index op, const void *args, char out[48])
{
    out[0] = 0;
    switch (op) {
#define CASE(name, ...)                                                                                      \
    case OP_##name: {                                                                                        \
        const struct sherd_##name *a = args;                                                                 \
        snprintf(out, 48, __VA_ARGS__);                                                                      \
        return;                                                                                              \
    }
#define N(x) ((long long)(x))
        CASE(matmul, "%lldx%lldx%lld %c%c%s %s>%s", N(a->m), N(a->n), N(a->k), a->trans_a ? 't' : 'n',
            a->trans_b ? 't' : 'n', a->add ? (a->add == a->c ? "+=" : "+") : "", sherd_dtype_name(a->type),
            sherd_dtype_name(a->c_type))
        CASE(copy, "%lld B", N(copied(a)))
        CASE(fill, "%lld B", N(a->bytes))
        CASE(cast, "%lld", N(a->n))
        CASE(add, "%lld", N(a->n))
        CASE(accumulate, "%lld", N(a->n))
        CASE(bias_backward, "%lldx%lld", N(a->rows), N(a->cols))
        CASE(norm_forward, "%lldx%lld", N(a->rows), N(a->cols))
        CASE(norm_backward, "%lldx%lld", N(a->rows), N(a->cols))
        CASE(gelu_forward, "%lld", N(a->n))
        CASE(gelu_backward, "%lld", N(a->n))
        CASE(swiglu_forward, "%lldx%lld", N(a->rows), N(a->cols))
        CASE(swiglu_backward, "%lldx%lld", N(a->rows), N(a->cols))
        CASE(rope, "%lldx%lldx%lldx%lld", N(a->batch), N(a->seq), N(a->rotated), N(a->head_dim))
        CASE(attention_forward, "%lldx%lld %lld/%lldx%lld", N(a->batch), N(a->seq), N(a->heads),
            N(a->kv_heads), N(a->head_dim))
        CASE(attention_backward, "%lldx%lld %lld/%lldx%lld", N(a->batch), N(a->seq), N(a->heads),
            N(a->kv_heads), N(a->head_dim))
        CASE(embed_forward, "%lldx%lldx%lld", N(a->batch), N(a->seq), N(a->width))
        CASE(embed_backward, "%lldx%lldx%lld", N(a->batch), N(a->seq), N(a->width))
        CASE(loss, "%lldx%lld", N(a->rows), N(a->vocab))
        CASE(adamw, "%lld", N(a->n))
        CASE(sgd, "%lld", N(a->n))
        CASE(split, "%lld", N(a->n))
        CASE(join, "%lld", N(a->n))
        CASE(square_sum, "%lld", N(a->n))
        CASE(ordered_sum, "%lldx%lld", N(a->n), N(a->cols))
#undef N
#undef CASE
    case OP_clip_factor: /* of scalars */
    case OP_COUNT:
        break;
    }
}
