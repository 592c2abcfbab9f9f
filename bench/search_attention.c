/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Candidates for attention: what cuDNN's heuristics answer in each of their modes for sherd's own graphs,
 * every engine with its knobs as they come, and with one of them turned; and the same for q, k and v whose
 * heads lie apart instead of tokens, which sherd does not have.
 */
#include "bench/search.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "base/mem.h"
#include "base/status.h"
#include "device/cuda/attn_graph.h"
#include "device/scratch.h"

#define SETS 2
#define KNOBS 24
#define KNOB_VALUES 12 /* of a knob, at most */
#define ANSWERS 16     /* of one mode */
#define COMPARED (1 << 20)

enum source { MODE_A, MODE_B, MODE_FALLBACK, ENGINE, SOURCES };

/* How to come by a configuration. */
struct recipe {
    int32_t heads_apart, source;
    int64_t index;       /* of the answer, or of the engine */
    int64_t knob, value; /* knob -1: as they come */
};
_Static_assert(sizeof(struct recipe) <= CANDIDATE_BYTES, "a recipe is what a candidate keeps");

/* A candidate's plan, made at its first call. */
struct made {
    int tried;
    desc_t plan; /* NULL: refused */
    size_t workspace;
    int64_t b, k; /* batches and kv heads of a run */
};

struct attention {
    struct meter *m;
    struct contest *c;
    struct cudnn cudnn;
    struct attn_shape shape;
    int backward, any_order;
    float scale;
    size_t room;       /* of scratch, as sherd plans it */
    struct made *made; /* [CANDIDATES] */
    char *memory;
    struct {
        uint16_t *qkv, *out, *dout, *dqkv;
        float *lse;
    } sets[SETS];
    char *scratch;
    unsigned turn;
};

/* ---- operands ---- */

static void *take(char **at, size_t bytes)
{
    void *from = *at;
    *at += round_up((int64_t)bytes, 256);
    return from;
}

static struct sherd_attention_forward forward_args(const struct attention *x, int set)
{
    return (struct sherd_attention_forward){ .out = x->sets[set].out,
        .lse = x->sets[set].lse,
        .qkv = x->sets[set].qkv,
        .batch = x->shape.batch,
        .seq = x->shape.seq,
        .heads = x->shape.heads,
        .kv_heads = x->shape.kv_heads,
        .head_dim = x->shape.head_dim,
        .scale = x->scale,
        .type = (enum sherd_dtype)x->shape.type,
        .scratch = x->scratch };
}

static int make_operands(struct attention *x)
{
    const struct attn_shape *s = &x->shape;
    enum sherd_dtype type = (enum sherd_dtype)s->type;
    int64_t rows = s->batch * s->seq, qkv = rows * (s->heads + 2 * s->kv_heads) * s->head_dim;
    int64_t out = rows * s->heads * s->head_dim, lse = rows * s->heads;
    size_t set = 4 * (size_t)qkv + 4 * (size_t)out + 4 * (size_t)lse + 5 * 256;
    char *at = NULL;
    CU_TRY(cudaMalloc((void **)&at, SETS * set + x->room));
    x->memory = at;
    for (int i = 0; i < SETS; i++) {
        x->sets[i].qkv = take(&at, 2 * (size_t)qkv);
        x->sets[i].dqkv = take(&at, 2 * (size_t)qkv);
        x->sets[i].out = take(&at, 2 * (size_t)out);
        x->sets[i].dout = take(&at, 2 * (size_t)out);
        x->sets[i].lse = take(&at, 4 * (size_t)lse);
        SHERD_TRY(meter_fill(x->m, x->sets[i].qkv, qkv, type));
        SHERD_TRY(meter_fill(x->m, x->sets[i].dout, out, type));
    }
    x->scratch = at;
    for (int i = 0; i < SETS; i++) {
        struct sherd_attention_forward a = forward_args(x, i);
        SHERD_TRY(sherd_attention_forward(x->m->queue, &a));
    }
    return sherd_queue_sync(x->m->queue);
}

/* ---- plans ---- */

/* Heads apart: [B,H,T,D] of q, then of k, then of v. */
static struct attn_views views_of(const struct attention *x, int heads_apart, int64_t b, int64_t k)
{
    struct attn_views v = attn_views(&x->shape, b, k);
    int64_t T = x->shape.seq, D = x->shape.head_dim;
    struct dims *dims[] = { &v.q, &v.k, &v.v, &v.o };
    for (size_t i = 0; i < ARRAY_LEN(dims) && heads_apart; i++) {
        int64_t heads = i == 0 || i == 3 ? x->shape.heads : x->shape.kv_heads;
        dims[i]->stride[0] = heads * T * D;
        dims[i]->stride[1] = T * D;
        dims[i]->stride[2] = D;
    }
    return v;
}

static void describe(struct graph *g, const struct attention *x, int heads_apart, int64_t b, int64_t k)
{
    struct attn_views v = views_of(x, heads_apart, b, k);
    graph_init(g, &x->cudnn);
    if (x->backward)
        attn_graph_backward(g, &v, x->any_order);
    else
        attn_graph_forward(g, &v);
}

static desc_t engine_of(struct graph *g, desc_t operations, int64_t index)
{
    desc_t engine = graph_make(g, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    graph_set(g, engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &operations);
    graph_set(g, engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &index);
    graph_finalize(g, engine, "engine");
    return engine;
}

/* NULL where there is none such. */
static desc_t config_of(struct graph *g, const struct recipe *r)
{
    static const cudnnBackendHeurMode_t modes[] = { CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_B,
        CUDNN_HEUR_MODE_FALLBACK };
    desc_t operations = graph_operations(g), configs[ANSWERS];
    int64_t n = 0;
    if (r->source != ENGINE) {
        graph_heuristics(g, operations, modes[r->source], configs, &n, ANSWERS);
        return g->st == SHERD_OK && r->index < n ? configs[r->index] : NULL;
    }
    desc_t engine = engine_of(g, operations, r->index),
           config = graph_make(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    graph_set(g, config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &engine);
    if (r->knob >= 0) {
        cudnnBackendKnobType_t type = (cudnnBackendKnobType_t)r->knob;
        desc_t knob = graph_make(g, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
        graph_set(g, knob, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &type);
        graph_set(g, knob, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &r->value);
        graph_finalize(g, knob, "knob");
        graph_set(g, config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &knob);
    }
    graph_finalize(g, config, "engine configuration");
    return g->st == SHERD_OK ? config : NULL;
}

/* Engine and knobs of a configuration, " 11 27=2 40=128". */
static void name_config(struct graph *g, desc_t config, char *out, size_t bytes)
{
    const struct cudnn *c = g->c;
    desc_t engine = graph_make(g, CUDNN_BACKEND_ENGINE_DESCRIPTOR), knobs[KNOBS];
    int64_t index = -1, n = 0, got;
    size_t at;
    (void)c->BackendGetAttribute(
        config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &got, &engine);
    (void)c->BackendGetAttribute(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &got, &index);
    at = (size_t)snprintf(out, bytes, "e%lld", (long long)index);
    for (int i = 0; i < KNOBS; i++)
        if (c->BackendCreateDescriptor(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, &knobs[i]) !=
            CUDNN_STATUS_SUCCESS)
            return;
    if (c->BackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR,
            KNOBS, &n, knobs) != CUDNN_STATUS_SUCCESS)
        n = 0;
    for (int64_t i = 0; i < MIN(n, KNOBS) && at < bytes; i++) {
        cudnnBackendKnobType_t type = CUDNN_KNOB_TYPE_COUNTS;
        int64_t value = -1;
        (void)c->BackendGetAttribute(
            knobs[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &got, &type);
        (void)c->BackendGetAttribute(
            knobs[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &got, &value);
        at += (size_t)snprintf(out + at, bytes - at, " %d=%lld", (int)type, (long long)value);
    }
    for (int i = 0; i < KNOBS; i++)
        c->BackendDestroyDescriptor(knobs[i]);
}

static size_t rowsum_bytes(const struct attention *x, const struct made *p)
{
    return (size_t)round_up(4 * p->b * p->k * (x->shape.heads / x->shape.kv_heads) * x->shape.seq, 256);
}

static size_t own_scratch(const struct attention *x, const struct made *p)
{
    int64_t rows = p->b * p->k * (x->shape.heads / x->shape.kv_heads) * x->shape.seq;
    size_t sums = x->any_order ? (size_t)round_up(4 * rows * x->shape.head_dim, 256) : 0;
    return x->backward ? rowsum_bytes(x, p) + sums : 0;
}

static int make_plan(const struct attention *x, const struct recipe *r, struct made *p)
{
    struct graph g;
    describe(&g, x, r->heads_apart, p->b, p->k);
    desc_t config = config_of(&g, r);
    cudnnStatus_t s = config ? graph_take(&g, config, &p->plan, &p->workspace) : CUDNN_STATUS_NOT_SUPPORTED;
    graph_finish(&g);
    return s == CUDNN_STATUS_SUCCESS ? SHERD_OK : SHERD_EUNSUPPORTED;
}

static int64_t next_divisor(int64_t n, int64_t below)
{
    int64_t d = below - 1;
    while (d > 1 && n % d)
        d--;
    return d;
}

/* As sherd does it: the largest equal pieces of the batch, then of the kv heads, that fit its scratch. */
static int fit_plan(const struct attention *x, int i)
{
    struct made *p = &x->made[i];
    struct recipe r;
    if (p->tried)
        return p->plan ? SHERD_OK : SHERD_EUNSUPPORTED;
    p->tried = 1;
    memcpy(&r, x->c->all[i].how, sizeof(r));
    for (p->b = x->shape.batch, p->k = x->shape.kv_heads; p->b > 0 && p->k > 0;) {
        SHERD_TRY(make_plan(x, &r, p));
        if (own_scratch(x, p) + p->workspace <= x->room)
            return SHERD_OK;
        x->cudnn.BackendDestroyDescriptor(p->plan);
        p->plan = NULL;
        if (p->b > 1)
            p->b = next_divisor(x->shape.batch, p->b);
        else
            p->k = next_divisor(x->shape.kv_heads, p->k);
    }
    return SHERD_EUNSUPPORTED;
}

/* ---- running ---- */

static const float neg_inf = -INFINITY, one = 1.0f;

/* Elements from the start of q, k and v to what a run begins with. */
static void bind_qkv(struct attn_binding *b, const struct attention *x, const uint16_t *qkv, int64_t uid,
    int apart, int64_t b0, int64_t k0)
{
    const struct attn_shape *s = &x->shape;
    int64_t T = s->seq, D = s->head_dim, H = s->heads, K = s->kv_heads, q0 = k0 * (H / K);
    int64_t rows = s->batch * T;
    if (apart) {
        attn_bind(b, uid, qkv + (b0 * H + q0) * T * D);
        attn_bind(b, uid + 1, qkv + rows * H * D + (b0 * K + k0) * T * D);
        attn_bind(b, uid + 2, qkv + rows * (H + K) * D + (b0 * K + k0) * T * D);
        return;
    }
    qkv += b0 * T * (H + 2 * K) * D;
    attn_bind(b, uid, qkv + q0 * D);
    attn_bind(b, uid + 1, qkv + (H + k0) * D);
    attn_bind(b, uid + 2, qkv + (H + K + k0) * D);
}

static int run_piece(struct attention *x, const struct made *p, int set, int apart, int64_t b0, int64_t k0)
{
    const struct attn_shape *s = &x->shape;
    int64_t T = s->seq, D = s->head_dim, H = s->heads, q0 = k0 * (H / s->kv_heads);
    int64_t out = apart ? (b0 * H + q0) * T * D : b0 * T * H * D + q0 * D;
    char *scratch = x->scratch;
    struct attn_binding b = { 0 };
    bind_qkv(&b, x, x->sets[set].qkv, ATTN_Q, apart, b0, k0);
    attn_bind(&b, ATTN_O, x->sets[set].out + out);
    attn_bind(&b, ATTN_LSE, x->sets[set].lse + (b0 * H + q0) * T);
    attn_bind(&b, ATTN_SCALE, &x->scale);
    attn_bind(&b, ATTN_NEG_INF, &neg_inf);
    if (x->backward) {
        bind_qkv(&b, x, x->sets[set].dqkv, ATTN_DQ, apart, b0, k0);
        attn_bind(&b, ATTN_DO, x->sets[set].dout + out);
        attn_bind(&b, ATTN_ONE, &one);
        attn_bind(&b, ATTN_ROWSUM, scratch);
        if (x->any_order)
            attn_bind(&b, ATTN_DQ_SUM, scratch + rowsum_bytes(x, p));
        scratch += own_scratch(x, p);
    }
    return cudnn_run(&x->cudnn, x->m->stream, p->plan, b.n, b.uids, b.pointers, scratch);
}

static int run_own(struct attention *x, int set)
{
    struct sherd_attention_forward f = forward_args(x, set);
    if (!x->backward)
        return sherd_attention_forward(x->m->queue, &f);
    return sherd_attention_backward(
        x->m->queue, &(struct sherd_attention_backward){ .dqkv = x->sets[set].dqkv,
                         .dout = x->sets[set].dout,
                         .out = f.out,
                         .qkv = f.qkv,
                         .lse = f.lse,
                         .batch = f.batch,
                         .seq = f.seq,
                         .heads = f.heads,
                         .kv_heads = f.kv_heads,
                         .head_dim = f.head_dim,
                         .scale = f.scale,
                         .type = f.type,
                         .any_order = x->any_order,
                         .scratch = x->scratch });
}

static int run(struct attention *x, int i, int set)
{
    struct recipe r;
    if (i == SHERDS)
        return run_own(x, set);
    memcpy(&r, x->c->all[i].how, sizeof(r));
    SHERD_TRY(fit_plan(x, i));
    const struct made *p = &x->made[i];
    for (int64_t b0 = 0; b0 < x->shape.batch; b0 += p->b)
        for (int64_t k0 = 0; k0 < x->shape.kv_heads; k0 += p->k)
            SHERD_TRY(run_piece(x, p, set, r.heads_apart, b0, k0));
    return SHERD_OK;
}

static int enqueue(void *ctx, int i)
{
    struct attention *x = ctx;
    return run(x, i, (int)(x->turn++ % SETS));
}

/* Of the last elements of out, or of dqkv. */
static double differs(void *ctx, int i)
{
    struct attention *x = ctx;
    const struct attn_shape *s = &x->shape;
    int64_t width = (s->heads + (x->backward ? 2 * s->kv_heads : 0)) * s->head_dim;
    int64_t elems = s->batch * s->seq * width, n = MIN(elems, COMPARED);
    uint16_t *to = x->backward ? x->sets[0].dqkv : x->sets[0].out;
    uint16_t *got = x->c->all[i].apart || s->type != SHERD_BF16 ? NULL : mem_zalloc((size_t)(2 * n), 2);
    double error = 0, whole = 0;
    int st = SHERD_OK;
    for (int k = 0; k < 2 && got && st == SHERD_OK; k++) {
        st = CU_CHECK(cudaMemsetAsync(to, 0xff, 2 * (size_t)elems, x->m->stream));
        if (st == SHERD_OK)
            st = run(x, k ? i : SHERDS, 0);
        if (st == SHERD_OK)
            st = CU_CHECK(cudaStreamSynchronize(x->m->stream));
        if (st == SHERD_OK)
            st = CU_CHECK(cudaMemcpy(got + k * n, to + elems - n, 2 * (size_t)n, cudaMemcpyDeviceToHost));
    }
    for (int64_t e = 0; e < n && got; e++) {
        double own = (double)bf16_to_float(got[e]), other = (double)bf16_to_float(got[n + e]);
        error += (own - other) * (own - other);
        whole += own * own;
    }
    mem_free(got);
    return st != SHERD_OK ? INFINITY : got ? sqrt(error / whole) : 0;
}

/* ---- listing ---- */

/* A candidate where its configuration can be had, is allowed and was not seen yet. */
static int add(struct attention *x, const struct recipe *r)
{
    static const char *const sources[SOURCES] = { "A", "B", "fallback", "engine" };
    struct contest *c = x->c;
    struct graph g;
    char config_name[64], name[sizeof(c->all[0].name)];
    c->looked_at++;
    describe(&g, x, r->heads_apart, x->shape.batch, x->shape.kv_heads);
    desc_t config = config_of(&g, r);
    int ok = config && (!x->backward || x->any_order || !graph_may_differ(&g, config));
    if (ok)
        name_config(&g, config, config_name, sizeof(config_name));
    graph_finish(&g);
    if (!config)
        return 0;
    const char *layout = r->heads_apart ? "apart " : "";
    for (int i = 1; i < c->n && ok; i++)
        ok = strcmp(strchr(c->all[i].name, ':') + 1, config_name) != 0 || c->all[i].apart != r->heads_apart;
    if (!ok || c->n == CANDIDATES)
        return 1;
    snprintf(
        name, sizeof(name), "%s%.1s%lld:%s", layout, sources[r->source], (long long)r->index, config_name);
    struct candidate *k = &c->all[c->n++];
    *k = (struct candidate){ .apart = r->heads_apart != 0 };
    memcpy(k->name, name, sizeof(name));
    memcpy(k->how, r, sizeof(*r));
    k->answer = r->source == MODE_A && !r->heads_apart ? (int)r->index + 1 : 0;
    return 1;
}

/* The engine as it comes, and with each knob at each value. */
static void list_engine(struct attention *x, struct recipe r)
{
    struct graph g;
    desc_t infos[KNOBS];
    int64_t n = 0, got, from, to, step;
    if (!add(x, &r))
        return;
    describe(&g, x, r.heads_apart, x->shape.batch, x->shape.kv_heads);
    desc_t engine = engine_of(&g, graph_operations(&g), r.index);
    for (int i = 0; i < KNOBS; i++)
        infos[i] = graph_make(&g, CUDNN_BACKEND_KNOB_INFO_DESCRIPTOR);
    if (g.st != SHERD_OK || x->cudnn.BackendGetAttribute(engine, CUDNN_ATTR_ENGINE_KNOB_INFO,
                                CUDNN_TYPE_BACKEND_DESCRIPTOR, KNOBS, &n, infos) != CUDNN_STATUS_SUCCESS)
        n = 0;
    for (int64_t i = 0; i < MIN(n, KNOBS); i++) {
        cudnnBackendKnobType_t type;
        const struct cudnn *c = &x->cudnn;
        if (c->BackendGetAttribute(
                infos[i], CUDNN_ATTR_KNOB_INFO_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &got, &type) ||
            c->BackendGetAttribute(
                infos[i], CUDNN_ATTR_KNOB_INFO_MINIMUM_VALUE, CUDNN_TYPE_INT64, 1, &got, &from) ||
            c->BackendGetAttribute(
                infos[i], CUDNN_ATTR_KNOB_INFO_MAXIMUM_VALUE, CUDNN_TYPE_INT64, 1, &got, &to) ||
            c->BackendGetAttribute(infos[i], CUDNN_ATTR_KNOB_INFO_STRIDE, CUDNN_TYPE_INT64, 1, &got, &step))
            continue;
        step = MAX(MAX(step, 1), (to - from) / KNOB_VALUES);
        for (r.knob = type, r.value = from; r.value <= to; r.value += step)
            (void)add(x, &r);
    }
    graph_finish(&g);
}

static int64_t count_engines(const struct attention *x)
{
    struct graph g;
    int64_t n = 0, got;
    describe(&g, x, 0, x->shape.batch, x->shape.kv_heads);
    desc_t operations = graph_operations(&g);
    if (g.st != SHERD_OK ||
        x->cudnn.BackendGetAttribute(operations, CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT,
            CUDNN_TYPE_INT64, 1, &got, &n) != CUDNN_STATUS_SUCCESS)
        n = 0;
    graph_finish(&g);
    return n;
}

static int list(struct attention *x)
{
    int64_t engines = count_engines(x);
    x->c->n = 1;
    for (int apart = 0; apart < 2; apart++) {
        struct recipe r = { .heads_apart = apart, .knob = -1 };
        for (r.source = MODE_A; r.source <= MODE_FALLBACK; r.source++)
            for (r.index = 0; r.index < ANSWERS && add(x, &r); r.index++)
                ;
    }
    for (int apart = 0; apart < 2; apart++)
        for (int64_t engine = 0; engine < engines; engine++)
            list_engine(
                x, (struct recipe){ .heads_apart = apart, .source = ENGINE, .index = engine, .knob = -1 });
    snprintf(x->c->all[SHERDS].name, sizeof(x->c->all[0].name), "A's first that plans");
    x->c->listed = 1;
    return SHERD_OK;
}

static int measure(struct attention *x, double seconds)
{
    struct runner r = { x, enqueue, differs };
    if (!x->c->listed)
        SHERD_TRY(list(x));
    SHERD_TRY(meter_rough(x->m, x->c, &r, SHERDS, seconds));
    return meter_rank(x->m, x->c, &r);
}

static void take_sizes(struct attention *x)
{
    if (x->c->op == OP_attention_forward) {
        const struct sherd_attention_forward *a = &x->c->args.forward;
        x->shape = (struct attn_shape){ a->batch, a->seq, a->heads, a->kv_heads, a->head_dim, a->type };
        x->scale = a->scale;
        x->room = SCRATCH_ATTENTION_SMALL;
        return;
    }
    const struct sherd_attention_backward *a = &x->c->args.backward;
    x->shape = (struct attn_shape){ a->batch, a->seq, a->heads, a->kv_heads, a->head_dim, a->type };
    x->scale = a->scale;
    x->backward = 1;
    x->any_order = a->any_order != 0;
    x->room = sherd_attention_backward_scratch(a, "cuda");
}

int search_attention(struct meter *m, struct contest *c, double seconds)
{
    struct attention x = { .m = m, .c = c, .made = mem_zalloc(CANDIDATES, sizeof(*x.made)) };
    int st = x.made ? cudnn_open(&x.cudnn) : SHERD_ENOMEM;
    if (st == SHERD_OK) {
        take_sizes(&x);
        st = make_operands(&x);
        if (st == SHERD_OK)
            st = measure(&x, seconds);
        for (int i = 0; i < c->n; i++)
            if (x.made[i].plan)
                x.cudnn.BackendDestroyDescriptor(x.made[i].plan);
        (void)cudaFree(x.memory);
        cudnn_close(&x.cudnn);
    }
    mem_free(x.made);
    return st;
}
