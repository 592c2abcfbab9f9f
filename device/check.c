/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What arguments of the operations must be, checked before a device sees them. A size of zero is fine and
 * means that there is nothing to do; then pointers are not looked at. Devices rely on all of this.
 */
#include <math.h>

#include "base/status.h"
#include "device/ops.h"

#define MAX_ELEMS (INT64_C(1) << 48) /* of one tensor, so that no product of sizes overflows */
#define MAX_DIM INT32_MAX            /* of a matrix: BLAS libraries count in 32 bits */

static int need(const char *op, const char *field, const void *p)
{
    return p ? SHERD_OK : SHERD_FAIL(SHERD_EINVAL, "%s: %s is NULL", op, field);
}

static int size(const char *op, const char *field, int64_t value, int64_t min, int64_t max)
{
    if (value >= min && value <= max)
        return SHERD_OK;
    return SHERD_FAIL(SHERD_EINVAL, "%s: %s is %lld, it must be from %lld to %lld", op, field,
        (long long)value, (long long)min, (long long)max);
}

/* Rows of `row` elements each. */
static int pitch(const char *op, const char *field, int64_t value, int64_t row)
{
    return value == 0 ? SHERD_OK : size(op, field, value, row, MAX_DIM);
}

static int type_of(const char *op, const char *field, enum sherd_dtype type)
{
    if (type == SHERD_F32 || type == SHERD_BF16 || type == SHERD_F16)
        return SHERD_OK;
    if (!sherd_dtype_bytes(type))
        return SHERD_FAIL(SHERD_EINVAL, "%s: %s is %d, which is no element type", op, field, (int)type);
    return SHERD_FAIL(SHERD_EUNSUPPORTED, "%s: %s is %s, operations know f32, bf16 and f16", op, field,
        sherd_dtype_name(type));
}

static int number(const char *op, const char *field, float value)
{
    return isfinite(value)
               ? SHERD_OK
               : SHERD_FAIL(SHERD_EINVAL, "%s: %s is %g, it must be finite", op, field, (double)value);
}

static int count(const char *op, const char *field, int64_t value)
{
    return size(op, field, value, 0, MAX_ELEMS);
}

/* Two sizes of one tensor and their product. */
static int matrix(const char *op, const char *rows_field, int64_t rows, const char *cols_field, int64_t cols)
{
    SHERD_TRY(size(op, rows_field, rows, 0, MAX_DIM));
    SHERD_TRY(size(op, cols_field, cols, 0, MAX_DIM));
    if (cols && rows > MAX_ELEMS / cols)
        return SHERD_FAIL(SHERD_EINVAL, "%s: %s %lld times %s %lld is more than any tensor can have", op,
            rows_field, (long long)rows, cols_field, (long long)cols);
    return SHERD_OK;
}

/* An output that may be left out and has memory of its own, but for dy's. */
static int apart(const char *op, const void *y, const void *dx, const void *x)
{
    if (!y || (y != dx && y != x))
        return SHERD_OK;
    return SHERD_FAIL(SHERD_EINVAL, "%s: y is also %s; only dy may be y", op, y == dx ? "dx" : "x");
}

static int check_copy(const void *args)
{
    const struct sherd_copy *a = args;
    SHERD_TRY(size("copy", "rows", a->rows, 0, MAX_DIM));
    if (a->bytes == 0)
        return SHERD_OK;
    if (a->rows > 1 && a->pitch < a->bytes)
        return SHERD_FAIL(
            SHERD_EINVAL, "copy: pitch is %zu, but %zu bytes must fit in it", a->pitch, a->bytes);
    SHERD_TRY(need("copy", "dst", a->dst));
    return need("copy", "src", a->src);
}

static int check_fill(const void *args)
{
    const struct sherd_fill *a = args;
    return a->bytes ? need("fill", "dst", a->dst) : SHERD_OK;
}

static int check_cast(const void *args)
{
    const struct sherd_cast *a = args;
    SHERD_TRY(count("cast", "n", a->n));
    SHERD_TRY(type_of("cast", "y_type", a->y_type));
    SHERD_TRY(type_of("cast", "x_type", a->x_type));
    if (a->n == 0)
        return SHERD_OK;
    SHERD_TRY(need("cast", "y", a->y));
    return need("cast", "x", a->x);
}

static int check_add(const void *args)
{
    const struct sherd_add *a = args;
    SHERD_TRY(count("add", "n", a->n));
    SHERD_TRY(type_of("add", "type", a->type));
    if (a->n == 0)
        return SHERD_OK;
    SHERD_TRY(need("add", "y", a->y));
    SHERD_TRY(need("add", "a", a->a));
    return need("add", "b", a->b);
}

static int check_accumulate(const void *args)
{
    const struct sherd_accumulate *a = args;
    SHERD_TRY(count("accumulate", "n", a->n));
    SHERD_TRY(type_of("accumulate", "src_type", a->src_type));
    if (a->n == 0)
        return SHERD_OK;
    SHERD_TRY(need("accumulate", "dst", a->dst));
    return need("accumulate", "src", a->src);
}

static int check_matmul(const void *args)
{
    const struct sherd_matmul *a = args;
    SHERD_TRY(matrix("matmul", "m", a->m, "n", a->n));
    SHERD_TRY(matrix("matmul", "m", a->m, "k", a->k));
    SHERD_TRY(matrix("matmul", "n", a->n, "k", a->k));
    SHERD_TRY(type_of("matmul", "type", a->type));
    SHERD_TRY(type_of("matmul", "c_type", a->c_type));
    if (a->m == 0 || a->n == 0)
        return SHERD_OK;
    SHERD_TRY(size("matmul", "k", a->k, 1, MAX_DIM));
    SHERD_TRY(need("matmul", "c", a->c));
    SHERD_TRY(need("matmul", "a", a->a));
    SHERD_TRY(need("matmul", "b", a->b));
    SHERD_TRY(pitch("matmul", "a_pitch", a->a_pitch, a->trans_a ? a->m : a->k));
    SHERD_TRY(pitch("matmul", "c_pitch", a->c_pitch, a->n));
    if (a->c == a->a || a->c == a->b || a->c == a->bias)
        return SHERD_FAIL(SHERD_EINVAL, "matmul: c is also an input; only add may be c");
    return SHERD_OK;
}

static int check_bias_backward(const void *args)
{
    const struct sherd_bias_backward *a = args;
    SHERD_TRY(matrix("bias_backward", "rows", a->rows, "cols", a->cols));
    SHERD_TRY(type_of("bias_backward", "type", a->type));
    SHERD_TRY(type_of("bias_backward", "grad_type", a->grad_type));
    if (a->rows == 0 || a->cols == 0)
        return SHERD_OK;
    SHERD_TRY(need("bias_backward", "db", a->db));
    SHERD_TRY(need("bias_backward", "dy", a->dy));
    return need("bias_backward", "scratch", a->scratch);
}

static int norm_kind(const char *op, enum sherd_norm_kind kind)
{
    return size(op, "kind", (int64_t)kind, SHERD_LAYER_NORM, SHERD_RMS_NORM);
}

/* Runs of rows in a wider matrix. */
static int norm_runs(const char *op, int64_t rows, int64_t cols, int64_t run, int64_t pitch)
{
    if (run == 0 && pitch == 0)
        return SHERD_OK;
    if (run < 1 || rows % run)
        return SHERD_FAIL(
            SHERD_EINVAL, "%s: run is %lld, it must divide rows, %lld", op, (long long)run, (long long)rows);
    if (pitch / run < cols)
        return SHERD_FAIL(SHERD_EINVAL, "%s: pitch is %lld, but %lld rows of %lld must fit in it", op,
            (long long)pitch, (long long)run, (long long)cols);
    return SHERD_OK;
}

static int check_norm_forward(const void *args)
{
    const struct sherd_norm_forward *a = args;
    SHERD_TRY(matrix("norm_forward", "rows", a->rows, "cols", a->cols));
    SHERD_TRY(norm_runs("norm_forward", a->rows, a->cols, a->run, a->pitch));
    SHERD_TRY(norm_kind("norm_forward", a->kind));
    SHERD_TRY(type_of("norm_forward", "type", a->type));
    SHERD_TRY(number("norm_forward", "eps", a->eps));
    if (a->eps < 0)
        return SHERD_FAIL(SHERD_EINVAL, "norm_forward: eps is %g, it must not be negative", (double)a->eps);
    if (a->rows == 0 || a->cols == 0)
        return SHERD_OK;
    SHERD_TRY(need("norm_forward", "y", a->y));
    SHERD_TRY(need("norm_forward", "x", a->x));
    SHERD_TRY(need("norm_forward", "w", a->w));
    SHERD_TRY(need("norm_forward", "rstd", a->rstd));
    return a->kind == SHERD_LAYER_NORM ? need("norm_forward", "mean", a->mean) : SHERD_OK;
}

static int check_norm_backward(const void *args)
{
    const struct sherd_norm_backward *a = args;
    SHERD_TRY(matrix("norm_backward", "rows", a->rows, "cols", a->cols));
    SHERD_TRY(norm_runs("norm_backward", a->rows, a->cols, a->run, a->pitch));
    SHERD_TRY(norm_kind("norm_backward", a->kind));
    SHERD_TRY(type_of("norm_backward", "type", a->type));
    SHERD_TRY(type_of("norm_backward", "grad_type", a->grad_type));
    if (a->rows == 0 || a->cols == 0)
        return SHERD_OK;
    SHERD_TRY(need("norm_backward", "dx", a->dx));
    SHERD_TRY(need("norm_backward", "dy", a->dy));
    SHERD_TRY(need("norm_backward", "x", a->x));
    SHERD_TRY(need("norm_backward", "w", a->w));
    SHERD_TRY(need("norm_backward", "rstd", a->rstd));
    SHERD_TRY(apart("norm_backward", a->y, a->dx, a->x));
    if (a->kind == SHERD_LAYER_NORM)
        SHERD_TRY(need("norm_backward", "mean", a->mean));
    return a->dw || a->db ? need("norm_backward", "scratch", a->scratch) : SHERD_OK;
}

static int check_gelu_forward(const void *args)
{
    const struct sherd_gelu_forward *a = args;
    SHERD_TRY(count("gelu_forward", "n", a->n));
    SHERD_TRY(type_of("gelu_forward", "type", a->type));
    if (a->n == 0)
        return SHERD_OK;
    SHERD_TRY(need("gelu_forward", "y", a->y));
    return need("gelu_forward", "x", a->x);
}

static int check_gelu_backward(const void *args)
{
    const struct sherd_gelu_backward *a = args;
    SHERD_TRY(count("gelu_backward", "n", a->n));
    SHERD_TRY(type_of("gelu_backward", "type", a->type));
    if (a->n == 0)
        return SHERD_OK;
    SHERD_TRY(need("gelu_backward", "dx", a->dx));
    SHERD_TRY(need("gelu_backward", "dy", a->dy));
    SHERD_TRY(need("gelu_backward", "x", a->x));
    return apart("gelu_backward", a->y, a->dx, a->x);
}

static int check_swiglu_forward(const void *args)
{
    const struct sherd_swiglu_forward *a = args;
    SHERD_TRY(matrix("swiglu_forward", "rows", a->rows, "cols", a->cols));
    SHERD_TRY(type_of("swiglu_forward", "type", a->type));
    if (a->rows == 0 || a->cols == 0)
        return SHERD_OK;
    SHERD_TRY(need("swiglu_forward", "y", a->y));
    return need("swiglu_forward", "x", a->x);
}

static int check_swiglu_backward(const void *args)
{
    const struct sherd_swiglu_backward *a = args;
    SHERD_TRY(matrix("swiglu_backward", "rows", a->rows, "cols", a->cols));
    SHERD_TRY(type_of("swiglu_backward", "type", a->type));
    if (a->rows == 0 || a->cols == 0)
        return SHERD_OK;
    SHERD_TRY(need("swiglu_backward", "dx", a->dx));
    SHERD_TRY(need("swiglu_backward", "dy", a->dy));
    SHERD_TRY(need("swiglu_backward", "x", a->x));
    return apart("swiglu_backward", a->y, a->dx, a->x);
}

static int check_rope(const void *args)
{
    const struct sherd_rope *a = args;
    SHERD_TRY(matrix("rope", "batch", a->batch, "seq", a->seq));
    SHERD_TRY(size("rope", "heads", a->heads, 1, MAX_DIM));
    SHERD_TRY(size("rope", "rotated", a->rotated, 0, a->heads));
    SHERD_TRY(size("rope", "head_dim", a->head_dim, 2, SHERD_MAX_HEAD_DIM));
    SHERD_TRY(matrix("rope", "rows", a->batch * a->seq, "width", a->heads * a->head_dim));
    SHERD_TRY(type_of("rope", "type", a->type));
    if (a->head_dim % 2)
        return SHERD_FAIL(SHERD_EINVAL, "rope: head_dim is %lld, it must be even: positions turn pairs",
            (long long)a->head_dim);
    for (int i = 0; i < a->head_dim / 2; i++)
        if (!isfinite(a->inv_freq[i]))
            return SHERD_FAIL(
                SHERD_EINVAL, "rope: inv_freq[%d] is %g, it must be finite", i, (double)a->inv_freq[i]);
    return a->batch && a->seq && a->rotated ? need("rope", "x", a->x) : SHERD_OK;
}

static int attention_sizes(const char *op, int64_t batch, int64_t seq, int64_t heads, int64_t kv_heads,
    int64_t head_dim, float scale, enum sherd_dtype type)
{
    SHERD_TRY(matrix(op, "batch", batch, "seq", seq));
    SHERD_TRY(size(op, "heads", heads, 1, MAX_DIM));
    SHERD_TRY(size(op, "kv_heads", kv_heads, 1, heads));
    SHERD_TRY(size(op, "head_dim", head_dim, 1, SHERD_MAX_HEAD_DIM));
    SHERD_TRY(matrix(op, "rows", batch * seq, "width", (heads + 2 * kv_heads) * head_dim));
    SHERD_TRY(type_of(op, "type", type));
    SHERD_TRY(number(op, "scale", scale));
    if (heads % kv_heads)
        return SHERD_FAIL(SHERD_EINVAL, "%s: heads %lld is not a multiple of kv_heads %lld", op,
            (long long)heads, (long long)kv_heads);
    return SHERD_OK;
}

static int check_attention_forward(const void *args)
{
    const struct sherd_attention_forward *a = args;
    SHERD_TRY(attention_sizes(
        "attention_forward", a->batch, a->seq, a->heads, a->kv_heads, a->head_dim, a->scale, a->type));
    if (a->batch == 0 || a->seq == 0)
        return SHERD_OK;
    SHERD_TRY(need("attention_forward", "out", a->out));
    SHERD_TRY(need("attention_forward", "lse", a->lse));
    SHERD_TRY(need("attention_forward", "qkv", a->qkv));
    return sherd_attention_forward_scratch(a) ? need("attention_forward", "scratch", a->scratch) : SHERD_OK;
}

static int check_attention_backward(const void *args)
{
    const struct sherd_attention_backward *a = args;
    SHERD_TRY(attention_sizes(
        "attention_backward", a->batch, a->seq, a->heads, a->kv_heads, a->head_dim, a->scale, a->type));
    if (a->batch == 0 || a->seq == 0)
        return SHERD_OK;
    SHERD_TRY(need("attention_backward", "dqkv", a->dqkv));
    SHERD_TRY(need("attention_backward", "dout", a->dout));
    SHERD_TRY(need("attention_backward", "out", a->out));
    SHERD_TRY(need("attention_backward", "qkv", a->qkv));
    SHERD_TRY(need("attention_backward", "lse", a->lse));
    return need("attention_backward", "scratch", a->scratch);
}

static int check_embed_forward(const void *args)
{
    const struct sherd_embed_forward *a = args;
    SHERD_TRY(matrix("embed_forward", "batch", a->batch, "seq", a->seq));
    SHERD_TRY(matrix("embed_forward", "rows", a->batch * a->seq, "width", a->width));
    SHERD_TRY(size("embed_forward", "vocab", a->vocab, 1, MAX_DIM));
    SHERD_TRY(type_of("embed_forward", "type", a->type));
    if (a->batch == 0 || a->seq == 0 || a->width == 0)
        return SHERD_OK;
    SHERD_TRY(need("embed_forward", "y", a->y));
    SHERD_TRY(need("embed_forward", "tokens", a->tokens));
    return need("embed_forward", "wte", a->wte);
}

static int check_embed_backward(const void *args)
{
    const struct sherd_embed_backward *a = args;
    SHERD_TRY(matrix("embed_backward", "batch", a->batch, "seq", a->seq));
    SHERD_TRY(matrix("embed_backward", "rows", a->batch * a->seq, "width", a->width));
    SHERD_TRY(size("embed_backward", "vocab", a->vocab, 1, MAX_DIM));
    SHERD_TRY(type_of("embed_backward", "type", a->type));
    SHERD_TRY(type_of("embed_backward", "grad_type", a->grad_type));
    if (a->batch == 0 || a->seq == 0 || a->width == 0)
        return SHERD_OK;
    SHERD_TRY(need("embed_backward", "dy", a->dy));
    SHERD_TRY(need("embed_backward", "tokens", a->tokens));
    return need("embed_backward", "scratch", a->scratch);
}

static int check_loss(const void *args)
{
    const struct sherd_loss *a = args;
    SHERD_TRY(matrix("loss", "rows", a->rows, "vocab", a->vocab));
    SHERD_TRY(size("loss", "vocab", a->vocab, 1, MAX_DIM));
    SHERD_TRY(pitch("loss", "pitch", a->pitch, a->vocab));
    SHERD_TRY(type_of("loss", "type", a->type));
    SHERD_TRY(need("loss", "sum", a->sum));
    if (a->rows == 0)
        return SHERD_OK;
    SHERD_TRY(need("loss", "logits", a->logits));
    SHERD_TRY(need("loss", "targets", a->targets));
    SHERD_TRY(need("loss", "scratch", a->scratch));
    return a->backward ? need("loss", "count", a->count) : SHERD_OK;
}

static int rate(const char *op, const char *field, float value)
{
    return value >= 0 && value < 1 ? SHERD_OK
                                   : SHERD_FAIL(SHERD_EINVAL, "%s: %s is %g, it must be from 0 to below 1",
                                         op, field, (double)value);
}

/* The weight is a master, or param and low. */
static int weight_of(const char *op, const void *master, const void *param, const void *low,
    enum sherd_dtype param_type, int64_t n)
{
    if (param)
        SHERD_TRY(type_of(op, "param_type", param_type));
    if (!low)
        return n ? need(op, "master", master) : SHERD_OK;
    if (master || !param || param_type != SHERD_BF16)
        return SHERD_FAIL(
            SHERD_EINVAL, "%s: low is the rest of a param of type BF16, and goes without a master", op);
    return SHERD_OK;
}

/* Of the numbers that decide about rounding. */
static int place_of(const char *op, enum sherd_dtype type, int64_t first, int64_t n, int64_t step)
{
    SHERD_TRY(type_of(op, "state_type", type));
    if (type == SHERD_F32)
        return SHERD_OK;
    if (type != SHERD_BF16)
        return SHERD_FAIL(
            SHERD_EUNSUPPORTED, "%s: state_type is %s, states are f32 or bf16", op, sherd_dtype_name(type));
    SHERD_TRY(size(op, "first", first, 0, (INT64_C(1) << 34) - n));
    return size(op, "step", step, 1, INT32_MAX);
}

static int check_adamw(const void *args)
{
    const struct sherd_adamw *a = args;
    SHERD_TRY(count("adamw", "n", a->n));
    SHERD_TRY(size("adamw", "step", a->step, 1, INT64_MAX));
    SHERD_TRY(type_of("adamw", "grad_type", a->grad_type));
    SHERD_TRY(place_of("adamw", a->state_type, a->first, a->n, a->step));
    SHERD_TRY(rate("adamw", "beta1", a->beta1));
    SHERD_TRY(rate("adamw", "beta2", a->beta2));
    SHERD_TRY(number("adamw", "lr", a->lr));
    SHERD_TRY(number("adamw", "eps", a->eps));
    SHERD_TRY(number("adamw", "weight_decay", a->weight_decay));
    SHERD_TRY(weight_of("adamw", a->master, a->param, a->low, a->param_type, a->n));
    if (a->n == 0)
        return SHERD_OK;
    SHERD_TRY(need("adamw", "m", a->m));
    SHERD_TRY(need("adamw", "v", a->v));
    SHERD_TRY(need("adamw", "grad", a->grad));
    return need("adamw", "factor", a->factor);
}

static int check_sgd(const void *args)
{
    const struct sherd_sgd *a = args;
    SHERD_TRY(count("sgd", "n", a->n));
    SHERD_TRY(size("sgd", "step", a->step, 1, INT64_MAX));
    SHERD_TRY(type_of("sgd", "grad_type", a->grad_type));
    SHERD_TRY(place_of("sgd", a->state_type, a->first, a->n, a->step));
    SHERD_TRY(number("sgd", "lr", a->lr));
    SHERD_TRY(number("sgd", "momentum", a->momentum));
    SHERD_TRY(number("sgd", "weight_decay", a->weight_decay));
    SHERD_TRY(weight_of("sgd", a->master, a->param, a->low, a->param_type, a->n));
    if (a->n == 0)
        return SHERD_OK;
    SHERD_TRY(need("sgd", "grad", a->grad));
    SHERD_TRY(need("sgd", "factor", a->factor));
    return a->momentum != 0 ? need("sgd", "m", a->m) : SHERD_OK;
}

static int check_split(const void *args)
{
    const struct sherd_split *a = args;
    SHERD_TRY(count("split", "n", a->n));
    if (a->n == 0)
        return SHERD_OK;
    SHERD_TRY(need("split", "param", a->param));
    return need("split", "master", a->master);
}

static int check_join(const void *args)
{
    const struct sherd_join *a = args;
    SHERD_TRY(count("join", "n", a->n));
    if (a->n == 0)
        return SHERD_OK;
    SHERD_TRY(need("join", "master", a->master));
    return need("join", "param", a->param);
}

static int check_square_sum(const void *args)
{
    const struct sherd_square_sum *a = args;
    SHERD_TRY(count("square_sum", "n", a->n));
    SHERD_TRY(type_of("square_sum", "type", a->type));
    SHERD_TRY(need("square_sum", "sum", a->sum));
    if (a->n == 0)
        return SHERD_OK;
    SHERD_TRY(need("square_sum", "x", a->x));
    return need("square_sum", "scratch", a->scratch);
}

static int check_ordered_sum(const void *args)
{
    const struct sherd_ordered_sum *a = args;
    SHERD_TRY(matrix("ordered_sum", "n", a->n, "stride", a->stride));
    SHERD_TRY(size("ordered_sum", "cols", a->cols, 0, a->n > 1 ? a->stride : MAX_DIM));
    if (a->cols == 0)
        return SHERD_OK;
    SHERD_TRY(need("ordered_sum", "out", a->out));
    return a->n ? need("ordered_sum", "in", a->in) : SHERD_OK;
}

static int check_clip_factor(const void *args)
{
    const struct sherd_clip_factor *a = args;
    SHERD_TRY(need("clip_factor", "factor", a->factor));
    SHERD_TRY(need("clip_factor", "norm", a->norm));
    SHERD_TRY(need("clip_factor", "square_sum", a->square_sum));
    return number("clip_factor", "max_norm", a->max_norm);
}

int (*const op_check[OP_COUNT])(const void *args) = {
#define XX(name) check_##name,
    SHERD_OPS(XX)
#undef XX
};
