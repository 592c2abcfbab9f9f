/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Causal attention, forward and backward, as graphs of cuDNN operations. Called by attn_cudnn.c, which plans
 * and runs them, and by what measures the plans.
 */
#ifndef SHERD_DEVICE_CUDA_ATTN_GRAPH_H
#define SHERD_DEVICE_CUDA_ATTN_GRAPH_H

#include <sherd/base.h>

#include "device/cuda/cudnn.h"

/* The memory of a graph, by uid; the last three are floats of the host. DQ_SUM: in any order only. */
enum attn_uid {
    ATTN_Q = 1,
    ATTN_K,
    ATTN_V,
    ATTN_O,
    ATTN_LSE,
    ATTN_DO,
    ATTN_DQ,
    ATTN_DK,
    ATTN_DV,
    ATTN_DQ_SUM, /* [b,h,T,D] float, close */
    ATTN_ROWSUM, /* [b,h,T] float, close */
    ATTN_SCALE,
    ATTN_NEG_INF,
    ATTN_ONE,
};

/* Of a whole call. type: BF16 or F16. No padding: compared as bytes. */
struct attn_shape {
    int64_t batch, seq, heads, kv_heads, head_dim, type;
};

/* Layouts of one run. q also serves dq, k dk, v dv, o dout. */
struct attn_views {
    struct dims q, k, v, o, row, score;
    cudnnDataType_t type;
};

/* Of a run over b batches and k kv heads of the packed [B,T,H+2K,D] and of [B,T,H,D]. */
struct attn_views attn_views(const struct attn_shape *s, int64_t b, int64_t k);

/* Addresses of one run, by uid; begins as zeros. */
struct attn_binding {
    int n;
    int64_t uids[ATTN_ONE];
    void *pointers[ATTN_ONE];
};
void attn_bind(struct attn_binding *b, int64_t uid, const void *p);

void attn_graph_forward(struct graph *g, const struct attn_views *v);
void attn_graph_backward(struct graph *g, const struct attn_views *v, int any_order);

#endif
