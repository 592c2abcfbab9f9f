/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Causal attention through cuDNN: one graph forward, one backward, planned once per shape. q, k and v are
 * strided views of the packed [B,T,H+2K,D] buffer and dqkv likewise, so nothing is copied. The order of the
 * operations is what cuDNN's pattern matching expects (the one its own front end emits).
 *
 * Backward has two forms. In one order: dq is written by one product, for which cuDNN wants room for the T x
 * T gradients of the scores. In any order: many blocks add dq up in float, by atomics. The batch, and if need
 * be the kv heads, are run in equal pieces so that this fits the scratch that was planned (device/scratch.h).
 *
 * Letters: B batch, T sequence, H heads, K kv heads, D head size; b, h, k of these in one run.
 */
#include "device/cuda/attn.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "device/cuda/cudnn.h"
#include "device/scratch.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"

enum { Q = 1, K, V, O, LSE, DO, DQ, DK, DV, DQ_SUM, ROWSUM, SCALE, NEG_INF, ONE };

#define F32 CUDNN_DATA_FLOAT

struct shape {
    int64_t batch, seq, heads, kv_heads, head_dim, type; /* type: BF16 or F16, and no padding */
};

struct plan {
    struct shape shape;
    int backward, any_order;
    int64_t b, k; /* batches and kv heads in one run */
    desc_t desc;  /* NULL: refused, for the reason in `why` */
    size_t workspace;
    char why[512];
};

struct attn_cudnn {
    struct cudnn cudnn;
    int deterministic; /* backward in one order is known to be, on this GPU */
    struct plan *plans;
    int n;
};

struct views {
    struct dims q, k, v, o, row, score;
    cudnnDataType_t type;
};

/* The layouts of one run over b batches and k kv heads. */
static struct views view(const struct shape *s, int64_t b, int64_t k)
{
    int64_t T = s->seq, D = s->head_dim, h = k * (s->heads / s->kv_heads);
    int64_t width = (s->heads + 2 * s->kv_heads) * D, out = s->heads * D;
    return (struct views){
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
    graph_pointwise(g, CUDNN_POINTWISE_BINARY_SELECT, F32, y, x, graph_scalar(g, NEG_INF), keep, 0);
    return y;
}

static void describe_forward(struct graph *g, const struct views *v)
{
    struct dims row = dims_packed(v->q.n[0], v->q.n[1], v->q.n[2], 1);
    desc_t scores = graph_virtual(g, v->score, F32);
    graph_matmul(
        g, scores, graph_tensor(g, Q, v->q, v->type), graph_tensor(g, K, dims_swapped(v->k), v->type));
    desc_t scaled = pointwise(g, CUDNN_POINTWISE_MUL, v->score, scores, graph_scalar(g, SCALE));
    desc_t masked = causal(g, v->score, scaled);

    desc_t max = graph_virtual(g, row, F32), sum = graph_virtual(g, row, F32);
    graph_reduce(g, CUDNN_REDUCE_TENSOR_MAX, max, masked);
    desc_t e = pointwise(
        g, CUDNN_POINTWISE_EXP, v->score, pointwise(g, CUDNN_POINTWISE_SUB, v->score, masked, max), NULL);
    graph_reduce(g, CUDNN_REDUCE_TENSOR_ADD, sum, e);
    desc_t log_sum = pointwise(g, CUDNN_POINTWISE_LOG, row, sum, NULL);
    graph_pointwise(g, CUDNN_POINTWISE_ADD, F32, graph_tensor(g, LSE, v->row, F32), max, log_sum, NULL, 0);
    desc_t p = graph_virtual(g, v->score, v->type);
    graph_pointwise(g, CUDNN_POINTWISE_DIV, F32, p, e, sum, NULL, 0);
    graph_matmul(g, graph_tensor(g, O, v->o, v->type), p, graph_tensor(g, V, v->v, v->type));
}

/* dy = x' r per query head, added up over the q heads of each kv head. x is [b,h,T,T], r [b,h,T,D]. */
static void transposed_product(
    struct graph *g, const struct views *v, int64_t uid, struct dims out, desc_t x, desc_t r)
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

static void describe_backward(struct graph *g, const struct views *v, int any_order)
{
    struct dims row = dims_packed(v->q.n[0], v->q.n[1], v->q.n[2], 1);
    struct dims head = dims_packed(v->q.n[0], v->q.n[1], v->q.n[2], v->q.n[3]);
    desc_t q = graph_tensor(g, Q, v->q, v->type), kt = graph_tensor(g, K, dims_swapped(v->k), v->type);
    desc_t vt = graph_tensor(g, V, dims_swapped(v->v), v->type), dout = graph_tensor(g, DO, v->o, v->type);
    desc_t scale = graph_scalar(g, SCALE);

    /* rowsum[t] = dout[t] . out[t] */
    desc_t dot = graph_virtual(g, row, F32), rowsum = graph_tensor(g, ROWSUM, row, F32);
    graph_reduce(g, CUDNN_REDUCE_TENSOR_ADD, dot,
        pointwise(g, CUDNN_POINTWISE_MUL, head, dout, graph_tensor(g, O, v->o, v->type)));
    graph_pointwise(g, CUDNN_POINTWISE_MUL, F32, rowsum, dot, graph_scalar(g, ONE), NULL, 0);

    /* p = exp(q k' scale - lse); dv = p' dout */
    desc_t scores = graph_virtual(g, v->score, F32);
    graph_matmul(g, scores, q, kt);
    desc_t scaled = pointwise(g, CUDNN_POINTWISE_MUL, v->score, scores, scale);
    desc_t less = pointwise(g, CUDNN_POINTWISE_SUB, v->score, scaled, graph_tensor(g, LSE, v->row, F32));
    desc_t p = pointwise(g, CUDNN_POINTWISE_EXP, v->score, causal(g, v->score, less), NULL);
    transposed_product(g, v, DV, v->v, p, dout);

    /* ds = (dout v' - rowsum) p scale; dk = ds' q; dq = ds k */
    desc_t dp = graph_virtual(g, v->score, F32);
    graph_matmul(g, dp, dout, vt);
    desc_t centred = pointwise(g, CUDNN_POINTWISE_SUB, v->score, dp, rowsum);
    desc_t ds = pointwise(
        g, CUDNN_POINTWISE_MUL, v->score, pointwise(g, CUDNN_POINTWISE_MUL, v->score, centred, p), scale);
    transposed_product(g, v, DK, v->k, ds, q);
    desc_t k = graph_virtual(g, v->k, v->type);
    graph_reshape(g, k, kt);
    desc_t dq = graph_tensor(g, DQ, v->q, v->type);
    if (!any_order) {
        graph_matmul(g, dq, ds, k);
        return;
    }
    desc_t sum = graph_tensor(g, DQ_SUM, head, F32);
    graph_matmul(g, sum, ds, k);
    graph_pointwise(g, CUDNN_POINTWISE_IDENTITY, F32, dq, sum, NULL, NULL, 0);
}

static int build(struct attn_cudnn *c, struct plan *p)
{
    struct graph g;
    struct views v = view(&p->shape, p->b, p->k);
    graph_init(&g, &c->cudnn);
    if (p->backward)
        describe_backward(&g, &v, p->any_order);
    else
        describe_forward(&g, &v);
    int st = graph_plan(&g, p->backward && !p->any_order, &p->desc, &p->workspace);
    graph_finish(&g);
    return st;
}

/* ---- plans ---- */

static int64_t next_divisor(int64_t n, int64_t below)
{
    for (int64_t d = below - 1; d > 1; d--)
        if (n % d == 0)
            return d;
    return below > 1 ? 1 : 0;
}

static size_t rowsum_bytes(const struct plan *p)
{
    int64_t h = p->k * (p->shape.heads / p->shape.kv_heads);
    return (size_t)round_up(p->b * h * p->shape.seq * (int64_t)sizeof(float), 256);
}

/* Of the sums of dq, behind the dot products. */
static size_t sum_bytes(const struct plan *p)
{
    int64_t h = p->k * (p->shape.heads / p->shape.kv_heads);
    return p->any_order
               ? (size_t)round_up(p->b * h * p->shape.seq * p->shape.head_dim * (int64_t)sizeof(float), 256)
               : 0;
}

/* What one run takes from the scratch. */
static size_t run_bytes(const struct plan *p)
{
    return p->workspace + (p->backward ? rowsum_bytes(p) + sum_bytes(p) : 0);
}

/* Never more than cuDNN will ask for, so that no plan is made in vain. */
static size_t least_bytes(const struct plan *p)
{
    int64_t h = p->k * (p->shape.heads / p->shape.kv_heads);
    size_t scores = p->any_order ? 0 : (size_t)(2 * p->b * h * p->shape.seq * p->shape.seq);
    return p->backward ? scores + rowsum_bytes(p) + sum_bytes(p) : 0;
}

/* What cuDNN's own front end refuses or works around. */
static int check_shape(const struct attn_cudnn *c, const struct shape *s, int backward, int any_order)
{
    size_t v = c->cudnn.version;
    if (s->head_dim % 8 != 0)
        return SHERD_FAIL(SHERD_EUNSUPPORTED, "cuDNN wants head sizes that are multiples of 8, this is %lld",
            (long long)s->head_dim);
    if (s->seq == 1)
        return SHERD_FAIL(SHERD_EUNSUPPORTED, "cuDNN wants sequences longer than 1");
    if (!backward)
        return SHERD_OK;
    if (!any_order && !c->deterministic)
        return SHERD_FAIL(
            SHERD_EUNSUPPORTED, "cuDNN's backward is not known to be deterministic on this GPU");
    if (v == 91000 || v == 91001)
        return SHERD_FAIL(SHERD_EUNSUPPORTED, "cuDNN %zu has a faulty backward, fixed in 9.10.2", v);
    if (s->seq % 128 != 0 && v <= 91500)
        return SHERD_FAIL(SHERD_EUNSUPPORTED,
            "cuDNN %zu wants sequences that are multiples of 128 in backward (9.15.1 does not), this is %lld",
            v, (long long)s->seq);
    return SHERD_OK;
}

/* Goes from the whole batch to ever smaller equal pieces until one run fits `scratch`. */
static int fit(struct attn_cudnn *c, struct plan *p, size_t scratch)
{
    size_t wanted = 0;
    p->b = p->shape.batch;
    p->k = p->shape.kv_heads;
    while (p->b > 0) {
        if (least_bytes(p) <= scratch) {
            SHERD_TRY(build(c, p));
            wanted = run_bytes(p);
            if (wanted <= scratch)
                return SHERD_OK;
            c->cudnn.BackendDestroyDescriptor(p->desc);
            p->desc = NULL;
        }
        if (p->b > 1)
            p->b = next_divisor(p->shape.batch, p->b);
        else if (p->k > 1)
            p->k = next_divisor(p->shape.kv_heads, p->k);
        else
            break;
    }
    return SHERD_FAIL(SHERD_EUNSUPPORTED,
        "cuDNN %zu wants %zu bytes of scratch for one kv head, %zu are planned", c->cudnn.version,
        MAX(wanted, least_bytes(p)), scratch);
}

static struct plan *look_up(
    const struct attn_cudnn *c, const struct shape *shape, int backward, int any_order)
{
    for (int i = 0; c && i < c->n; i++) {
        struct plan *p = &c->plans[i];
        if (p->backward == backward && p->any_order == any_order &&
            memcmp(&p->shape, shape, sizeof *shape) == 0)
            return p;
    }
    return NULL;
}

int attn_cudnn_has_forward(const struct attn_cudnn *c, const struct sherd_attention_forward *a)
{
    struct shape shape = { a->batch, a->seq, a->heads, a->kv_heads, a->head_dim, a->type };
    return look_up(c, &shape, 0, 0) != NULL;
}

int attn_cudnn_has_backward(const struct attn_cudnn *c, const struct sherd_attention_backward *a)
{
    struct shape shape = { a->batch, a->seq, a->heads, a->kv_heads, a->head_dim, a->type };
    return look_up(c, &shape, 1, a->any_order != 0) != NULL;
}

/* From the cache, or new. A refusal is cached too. */
static int find(
    struct attn_cudnn *c, struct plan **out, struct shape shape, int backward, int any_order, size_t scratch)
{
    struct plan *p = look_up(c, &shape, backward, any_order);
    if (!p) {
        struct plan *more = mem_realloc(c->plans, (size_t)c->n + 1, sizeof *c->plans);
        if (!more)
            return SHERD_ENOMEM;
        c->plans = more;
        p = &c->plans[c->n];
        *p = (struct plan){ .shape = shape, .backward = backward, .any_order = any_order };
        int st = check_shape(c, &shape, backward, any_order);
        if (st == SHERD_OK)
            st = fit(c, p, scratch);
        if (st != SHERD_OK && st != SHERD_EUNSUPPORTED)
            return st;
        if (st != SHERD_OK) {
            snprintf(p->why, sizeof p->why, "%s", sherd_error());
            log_info(
                "attention %s runs on sherd's own kernel: %s", backward ? "backward" : "forward", p->why);
        }
        c->n++;
    }
    *out = p;
    return p->desc ? SHERD_OK : SHERD_FAIL(SHERD_EUNSUPPORTED, "%s", p->why);
}

static int find_forward(struct attn_cudnn *c, struct plan **p, const struct sherd_attention_forward *a)
{
    if (a->type == SHERD_F32)
        return SHERD_FAIL(SHERD_EUNSUPPORTED, "cuDNN's attention is for types of 16 bits");
    struct shape shape = { a->batch, a->seq, a->heads, a->kv_heads, a->head_dim, a->type };
    return find(c, p, shape, 0, 0, SCRATCH_ATTENTION_SMALL);
}

static int find_backward(struct attn_cudnn *c, struct plan **p, const struct sherd_attention_backward *a)
{
    if (a->type == SHERD_F32)
        return SHERD_FAIL(SHERD_EUNSUPPORTED, "cuDNN's attention is for types of 16 bits");
    struct shape shape = { a->batch, a->seq, a->heads, a->kv_heads, a->head_dim, a->type };
    int any_order = a->any_order != 0;
    int64_t bytes =
        scratch_attention_backward(a->batch, a->seq, a->heads, a->kv_heads, a->head_dim, any_order);
    return find(c, p, shape, 1, any_order, (size_t)bytes);
}

/* ---- running ---- */

/* Addresses of one run, by uid. */
struct binding {
    int n;
    int64_t uids[ONE];
    void *pointers[ONE];
};

/* cuDNN takes all addresses as void *, those it only reads too. */
static void bind(struct binding *b, int64_t uid, const void *p)
{
    b->uids[b->n] = uid;
    memcpy(&b->pointers[b->n++], &p, sizeof p);
}

/* Where the run that begins at batch b0 and kv head k0 finds things: elements from the start of each buffer.
 */
struct place {
    int64_t q, k, v, out, lse;
};

static struct place place(const struct shape *s, int64_t b0, int64_t k0)
{
    int64_t g = s->heads / s->kv_heads, D = s->head_dim, T = s->seq, H = s->heads;
    int64_t start = b0 * T * (H + 2 * s->kv_heads) * D;
    return (struct place){
        .q = start + k0 * g * D,
        .k = start + (H + k0) * D,
        .v = start + (H + s->kv_heads + k0) * D,
        .out = b0 * T * H * D + k0 * g * D,
        .lse = b0 * H * T + k0 * g * T,
    };
}

static const float neg_inf = -INFINITY, one = 1.0f;

int attn_cudnn_forward(struct attn_cudnn *c, cudaStream_t stream, const struct sherd_attention_forward *a)
{
    struct plan *p = NULL;
    SHERD_TRY(find_forward(c, &p, a));
    const uint16_t *qkv = a->qkv;
    struct place at = place(&p->shape, 0, 0);
    struct binding b = { 0 };
    bind(&b, Q, qkv + at.q);
    bind(&b, K, qkv + at.k);
    bind(&b, V, qkv + at.v);
    bind(&b, O, a->out);
    bind(&b, LSE, a->lse);
    bind(&b, SCALE, &a->scale);
    bind(&b, NEG_INF, &neg_inf);
    return cudnn_run(&c->cudnn, stream, p->desc, b.n, b.uids, b.pointers, a->scratch);
}

static int run_backward(struct attn_cudnn *c, const struct plan *p, cudaStream_t stream,
    const struct sherd_attention_backward *a, struct place at)
{
    const uint16_t *qkv = a->qkv, *out = a->out, *dout = a->dout;
    uint16_t *dqkv = a->dqkv;
    char *scratch = a->scratch;
    struct binding b = { 0 };
    bind(&b, Q, qkv + at.q);
    bind(&b, K, qkv + at.k);
    bind(&b, V, qkv + at.v);
    bind(&b, O, out + at.out);
    bind(&b, DO, dout + at.out);
    bind(&b, LSE, a->lse + at.lse);
    bind(&b, DQ, dqkv + at.q);
    bind(&b, DK, dqkv + at.k);
    bind(&b, DV, dqkv + at.v);
    bind(&b, ROWSUM, scratch);
    scratch += rowsum_bytes(p);
    if (p->any_order)
        bind(&b, DQ_SUM, scratch);
    scratch += sum_bytes(p);
    bind(&b, SCALE, &a->scale);
    bind(&b, NEG_INF, &neg_inf);
    bind(&b, ONE, &one);
    return cudnn_run(&c->cudnn, stream, p->desc, b.n, b.uids, b.pointers, scratch);
}

int attn_cudnn_backward(struct attn_cudnn *c, cudaStream_t stream, const struct sherd_attention_backward *a)
{
    struct plan *p = NULL;
    SHERD_TRY(find_backward(c, &p, a));
    for (int64_t b0 = 0; b0 < a->batch; b0 += p->b)
        for (int64_t k0 = 0; k0 < a->kv_heads; k0 += p->k)
            SHERD_TRY(run_backward(c, p, stream, a, place(&p->shape, b0, k0)));
    return SHERD_OK;
}

/* ---- opening ---- */

/* Compute capabilities 8.x and 9.x; later ones have a kernel of their own for it that is asked for in another
 * way. */
static int known_deterministic(void)
{
    int device = 0, major = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
           (major == 8 || major == 9);
}

int attn_cudnn_create(struct attn_cudnn **out)
{
    struct attn_cudnn *c = mem_zalloc(1, sizeof *c);
    if (!c)
        return SHERD_ENOMEM;
    int st = cudnn_open(&c->cudnn);
    if (st != SHERD_OK) {
        mem_free(c);
        return st;
    }
    c->deterministic = known_deterministic();
    *out = c;
    return SHERD_OK;
}

void attn_cudnn_destroy(struct attn_cudnn *c)
{
    if (!c)
        return;
    for (int i = 0; i < c->n; i++)
        if (c->plans[i].desc)
            c->cudnn.BackendDestroyDescriptor(c->plans[i].desc);
    mem_free(c->plans);
    cudnn_close(&c->cudnn);
    mem_free(c);
}
