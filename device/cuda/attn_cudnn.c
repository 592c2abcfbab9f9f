/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Causal attention through cuDNN: one graph forward, one backward, planned once per shape. q, k and v are
 * strided views of the packed [B,T,H+2K,D] buffer and dqkv likewise, so nothing is copied.
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

#include "device/cuda/attn_graph.h"
#include "device/scratch.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"

struct plan {
    struct attn_shape shape;
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

static int build(struct attn_cudnn *c, struct plan *p)
{
    struct graph g;
    struct attn_views v = attn_views(&p->shape, p->b, p->k);
    graph_init(&g, &c->cudnn);
    if (p->backward)
        attn_graph_backward(&g, &v, p->any_order);
    else
        attn_graph_forward(&g, &v);
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
static int check_shape(const struct attn_cudnn *c, const struct attn_shape *s, int backward, int any_order)
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
    const struct attn_cudnn *c, const struct attn_shape *shape, int backward, int any_order)
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
    struct attn_shape shape = { a->batch, a->seq, a->heads, a->kv_heads, a->head_dim, a->type };
    return look_up(c, &shape, 0, 0) != NULL;
}

int attn_cudnn_has_backward(const struct attn_cudnn *c, const struct sherd_attention_backward *a)
{
    struct attn_shape shape = { a->batch, a->seq, a->heads, a->kv_heads, a->head_dim, a->type };
    return look_up(c, &shape, 1, a->any_order != 0) != NULL;
}

/* From the cache, or new. A refusal is cached too. */
static int find(struct attn_cudnn *c, struct plan **out, struct attn_shape shape, int backward, int any_order,
    size_t scratch)
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
    struct attn_shape shape = { a->batch, a->seq, a->heads, a->kv_heads, a->head_dim, a->type };
    return find(c, p, shape, 0, 0, SCRATCH_ATTENTION_SMALL);
}

static int find_backward(struct attn_cudnn *c, struct plan **p, const struct sherd_attention_backward *a)
{
    if (a->type == SHERD_F32)
        return SHERD_FAIL(SHERD_EUNSUPPORTED, "cuDNN's attention is for types of 16 bits");
    struct attn_shape shape = { a->batch, a->seq, a->heads, a->kv_heads, a->head_dim, a->type };
    int any_order = a->any_order != 0;
    int64_t bytes =
        scratch_attention_backward(a->batch, a->seq, a->heads, a->kv_heads, a->head_dim, any_order);
    return find(c, p, shape, 1, any_order, (size_t)bytes);
}

/* ---- running ---- */

/* Where the run that begins at batch b0 and kv head k0 finds things: elements from the start of each buffer.
 */
struct place {
    int64_t q, k, v, out, lse;
};

static struct place place(const struct attn_shape *s, int64_t b0, int64_t k0)
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
    struct attn_binding b = { 0 };
    attn_bind(&b, ATTN_Q, qkv + at.q);
    attn_bind(&b, ATTN_K, qkv + at.k);
    attn_bind(&b, ATTN_V, qkv + at.v);
    attn_bind(&b, ATTN_O, a->out);
    attn_bind(&b, ATTN_LSE, a->lse);
    attn_bind(&b, ATTN_SCALE, &a->scale);
    attn_bind(&b, ATTN_NEG_INF, &neg_inf);
    return cudnn_run(&c->cudnn, stream, p->desc, b.n, b.uids, b.pointers, a->scratch);
}

static int run_backward(struct attn_cudnn *c, const struct plan *p, cudaStream_t stream,
    const struct sherd_attention_backward *a, struct place at)
{
    const uint16_t *qkv = a->qkv, *out = a->out, *dout = a->dout;
    uint16_t *dqkv = a->dqkv;
    char *scratch = a->scratch;
    struct attn_binding b = { 0 };
    attn_bind(&b, ATTN_Q, qkv + at.q);
    attn_bind(&b, ATTN_K, qkv + at.k);
    attn_bind(&b, ATTN_V, qkv + at.v);
    attn_bind(&b, ATTN_O, out + at.out);
    attn_bind(&b, ATTN_DO, dout + at.out);
    attn_bind(&b, ATTN_LSE, a->lse + at.lse);
    attn_bind(&b, ATTN_DQ, dqkv + at.q);
    attn_bind(&b, ATTN_DK, dqkv + at.k);
    attn_bind(&b, ATTN_DV, dqkv + at.v);
    attn_bind(&b, ATTN_ROWSUM, scratch);
    scratch += rowsum_bytes(p);
    if (p->any_order)
        attn_bind(&b, ATTN_DQ_SUM, scratch);
    scratch += sum_bytes(p);
    attn_bind(&b, ATTN_SCALE, &a->scale);
    attn_bind(&b, ATTN_NEG_INF, &neg_inf);
    attn_bind(&b, ATTN_ONE, &one);
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
