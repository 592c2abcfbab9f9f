/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * See attn_graph.h. The order of the operations is what cuDNN's pattern matching expects (the one its own
 * front end emits).
 */
#include "device/cuda/attn_graph.h"

#include <string.h>

#include "base/status.h"

#define F32 CUDNN_DATA_FLOAT

struct attn_views attn_views(const struct attn_shape *s, int64_t b, int64_t k)
{
    int64_t T = s->seq, D = s->head_dim, h = k * (s->heads / s->kv_heads);
    int64_t width = (s->heads + 2 * s->kv_heads) * D, out = s->heads * D;
    return (struct attn_views){
        .q = { { b, h, T, D }, { T * width, D, width, 1 } },
        .k = { { b, k, T, D }, { T * width, D, width, 1 } },
        .v = { { b, k, T, D }, { T * width, D, width, 1 } },
        .o = { { b, h, T, D }, { T * out, D, out, 1 } },
        .row = { { b, h, T, 1 }, { s->heads * T, T, 1, 1 } },
        .score = dims_packed(b, h, T, T),
        .type = s->type == SHERD_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF,
    };
}

static desc_t pointwise(struct graph *g, cudnnPointwiseMode_t mode, struct dims dims, desc_t x, desc_t b)
{
    desc_t y = graph_virtual(g, dims, F32);
    graph_pointwise(g, mode, F32, y, x, b, NULL, 0);
    return y;
}

/* Scores above the diagonal become minus infinity. */
static desc_t causal(struct graph *g, struct dims dims, desc_t x)
{
    desc_t row = graph_virtual(g, dims, CUDNN_DATA_INT32), col = graph_virtual(g, dims, CUDNN_DATA_INT32);
    desc_t keep = graph_virtual(g, dims, CUDNN_DATA_BOOLEAN), y = graph_virtual(g, dims, F32);
    graph_pointwise(g, CUDNN_POINTWISE_GEN_INDEX, F32, row, x, NULL, NULL, 2);
    graph_pointwise(g, CUDNN_POINTWISE_GEN_INDEX, F32, col, x, NULL, NULL, 3);
    graph_pointwise(g, CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, keep, row, col, NULL, 0);
    graph_pointwise(g, CUDNN_POINTWISE_BINARY_SELECT, F32, y, x, graph_scalar(g, ATTN_NEG_INF), keep, 0);
    return y;
}

void attn_graph_forward(struct graph *g, const struct attn_views *v)
{
    struct dims row = dims_packed(v->q.n[0], v->q.n[1], v->q.n[2], 1);
    desc_t scores = graph_virtual(g, v->score, F32);
    graph_matmul(g, scores, graph_tensor(g, ATTN_Q, v->q, v->type),
        graph_tensor(g, ATTN_K, dims_swapped(v->k), v->type));
    desc_t scaled = pointwise(g, CUDNN_POINTWISE_MUL, v->score, scores, graph_scalar(g, ATTN_SCALE));
    desc_t masked = causal(g, v->score, scaled);

    desc_t max = graph_virtual(g, row, F32), sum = graph_virtual(g, row, F32);
    graph_reduce(g, CUDNN_REDUCE_TENSOR_MAX, max, masked);
    desc_t e = pointwise(
        g, CUDNN_POINTWISE_EXP, v->score, pointwise(g, CUDNN_POINTWISE_SUB, v->score, masked, max), NULL);
    graph_reduce(g, CUDNN_REDUCE_TENSOR_ADD, sum, e);
    desc_t log_sum = pointwise(g, CUDNN_POINTWISE_LOG, row, sum, NULL);
    graph_pointwise(
        g, CUDNN_POINTWISE_ADD, F32, graph_tensor(g, ATTN_LSE, v->row, F32), max, log_sum, NULL, 0);
    desc_t p = graph_virtual(g, v->score, v->type);
    graph_pointwise(g, CUDNN_POINTWISE_DIV, F32, p, e, sum, NULL, 0);
    graph_matmul(g, graph_tensor(g, ATTN_O, v->o, v->type), p, graph_tensor(g, ATTN_V, v->v, v->type));
}

/* dy = x' r per query head, added up over the q heads of each kv head. x is [b,h,T,T], r [b,h,T,D]. */
static void transposed_product(
    struct graph *g, const struct attn_views *v, int64_t uid, struct dims out, desc_t x, desc_t r)
{
    desc_t xt = graph_virtual(g, dims_swapped(v->score), v->type);
    graph_reshape(g, xt, x);
    desc_t y = graph_tensor(g, uid, out, v->type);
    if (v->q.n[1] == out.n[1]) {
        graph_matmul(g, y, xt, r);
        return;
    }
    desc_t each = graph_virtual(g, dims_packed(v->q.n[0], v->q.n[1], v->q.n[2], v->q.n[3]), v->type);
    graph_matmul(g, each, xt, r);
    graph_reduce(g, CUDNN_REDUCE_TENSOR_ADD, y, each);
}

void attn_graph_backward(struct graph *g, const struct attn_views *v, int any_order)
{
    struct dims row = dims_packed(v->q.n[0], v->q.n[1], v->q.n[2], 1);
    struct dims head = dims_packed(v->q.n[0], v->q.n[1], v->q.n[2], v->q.n[3]);
    desc_t q = graph_tensor(g, ATTN_Q, v->q, v->type),
           kt = graph_tensor(g, ATTN_K, dims_swapped(v->k), v->type);
    desc_t vt = graph_tensor(g, ATTN_V, dims_swapped(v->v), v->type),
           dout = graph_tensor(g, ATTN_DO, v->o, v->type);
    desc_t scale = graph_scalar(g, ATTN_SCALE);

    /* rowsum[t] = dout[t] . out[t] */
    desc_t dot = graph_virtual(g, row, F32), rowsum = graph_tensor(g, ATTN_ROWSUM, row, F32);
    graph_reduce(g, CUDNN_REDUCE_TENSOR_ADD, dot,
        pointwise(g, CUDNN_POINTWISE_MUL, head, dout, graph_tensor(g, ATTN_O, v->o, v->type)));
    graph_pointwise(g, CUDNN_POINTWISE_MUL, F32, rowsum, dot, graph_scalar(g, ATTN_ONE), NULL, 0);

    /* p = exp(q k' scale - lse); dv = p' dout */
    desc_t scores = graph_virtual(g, v->score, F32);
    graph_matmul(g, scores, q, kt);
    desc_t scaled = pointwise(g, CUDNN_POINTWISE_MUL, v->score, scores, scale);
    desc_t less = pointwise(g, CUDNN_POINTWISE_SUB, v->score, scaled, graph_tensor(g, ATTN_LSE, v->row, F32));
    desc_t p = pointwise(g, CUDNN_POINTWISE_EXP, v->score, causal(g, v->score, less), NULL);
    transposed_product(g, v, ATTN_DV, v->v, p, dout);

    /* ds = (dout v' - rowsum) p scale; dk = ds' q; dq = ds k */
    desc_t dp = graph_virtual(g, v->score, F32);
    graph_matmul(g, dp, dout, vt);
    desc_t centred = pointwise(g, CUDNN_POINTWISE_SUB, v->score, dp, rowsum);
    desc_t ds = pointwise(
        g, CUDNN_POINTWISE_MUL, v->score, pointwise(g, CUDNN_POINTWISE_MUL, v->score, centred, p), scale);
    transposed_product(g, v, ATTN_DK, v->k, ds, q);
    desc_t k = graph_virtual(g, v->k, v->type);
    graph_reshape(g, k, kt);
    desc_t dq = graph_tensor(g, ATTN_DQ, v->q, v->type);
    if (!any_order) {
        graph_matmul(g, dq, ds, k);
        return;
    }
    desc_t sum = graph_tensor(g, ATTN_DQ_SUM, head, F32);
    graph_matmul(g, sum, ds, k);
    graph_pointwise(g, CUDNN_POINTWISE_IDENTITY, F32, dq, sum, NULL, NULL, 0);
}

/* cuDNN takes all addresses as void *, those it only reads too. */
void attn_bind(struct attn_binding *b, int64_t uid, const void *p)
{
    b->uids[b->n] = uid;
    memcpy(&b->pointers[b->n++], &p, sizeof(p));
}
