/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Work space of the operations in bytes, rounded up to the alignment of device memory. A device may leave
 * some of it unused, but never needs more. Where kinds of devices differ by much, the formula asks for the
 * kind.
 */
#include "device/scratch.h"

#include <string.h>

#include <sherd/ops.h>

#define ALIGN_BYTES 256

static size_t room(int64_t elems, size_t elem_bytes)
{
    return elems <= 0 ? 0 : (size_t)round_up(elems * (int64_t)elem_bytes, ALIGN_BYTES);
}

/* One float for each column and block of rows. */
size_t sherd_bias_backward_scratch(const struct sherd_bias_backward *a)
{
    return room(scratch_row_blocks(a->rows) * a->cols, sizeof(float));
}

/* The same twice: dw, then db. */
size_t sherd_norm_backward_scratch(const struct sherd_norm_backward *a)
{
    return room(2 * scratch_row_blocks(a->rows) * a->cols, sizeof(float));
}

size_t sherd_attention_forward_scratch(const struct sherd_attention_forward *a)
{
    return a->type != SHERD_F32 ? SCRATCH_ATTENTION_SMALL : 0;
}

/* The dot products of out and dout, [B,H,T]; then, where storage is not float, sums of dq, [B,T,H,D]; or what
 * cuDNN wants, see scratch.h. */
size_t sherd_attention_backward_scratch(const struct sherd_attention_backward *a, const char *device)
{
    int64_t rows = a->batch * a->heads * a->seq;
    if (a->type == SHERD_F32 || a->kv_heads < 1)
        return room(rows, sizeof(float));
    size_t sums = room(rows, sizeof(float)) + room(rows * a->head_dim, sizeof(float));
    if (device && !strcmp(device, "cpu"))
        return sums;
    return MAX(sums,
        room(scratch_attention_backward(a->batch, a->seq, a->heads, a->kv_heads, a->head_dim, a->any_order),
            1));
}

/* Rows by token: a first row of each token, then for each row the next with the same token. */
size_t sherd_embed_backward_scratch(const struct sherd_embed_backward *a)
{
    return room(a->vocab + a->batch * a->seq, sizeof(int32_t));
}

/* The loss of each row. */
size_t sherd_loss_scratch(const struct sherd_loss *a)
{
    return room(a->rows, sizeof(double));
}

size_t sherd_square_sum_scratch(const struct sherd_square_sum *a)
{
    return room(scratch_sum_blocks(a->n), sizeof(double));
}
