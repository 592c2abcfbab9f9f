/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * GPT-2: learned positions, LayerNorm before each part, biases everywhere, GELU; weights stored [in,out].
 * Names and shapes are those of Hugging Face's GPT2LMHeadModel.
 *
 *     r = x + c_proj(attention(c_attn(ln_1(x))))          y = r + c_proj(gelu(c_fc(ln_2(r))))
 *
 * Letters: B batch, T sequence, N = B * T rows, C width, H heads, F mlp width, V vocabulary.
 */
#include "model/layers.h"
#include "model/model.h"

#include <math.h>

/* Parameters of a block, in the order of its unit. */
enum { LN1_W, LN1_B, ATTN_W, ATTN_B, PROJ_W, PROJ_B, LN2_W, LN2_B, FC_W, FC_B, OUT_W, OUT_B, BLOCK_PARAMS };

/* The pieces of a block, sized for a model. */
struct parts {
    struct norm ln1, ln2;
    struct linear attn, proj, fc, out;
};

static struct parts block_parts(const struct transformer *t)
{
    int64_t C = t->width, F = t->mlp_width;
    return (struct parts){
        .ln1 = { LN1_W, LN1_B, C, t->norm_eps, t->norm },
        .ln2 = { LN2_W, LN2_B, C, t->norm_eps, t->norm },
        .attn = { ATTN_W, ATTN_B, C, 3 * C, 0 },
        .proj = { PROJ_W, PROJ_B, C, C, 0 },
        .fc = { FC_W, FC_B, C, F, 0 },
        .out = { OUT_W, OUT_B, F, C, 0 },
    };
}

/* Kept from forward to backward. */
struct saved {
    void *n1, *qkv, *att, *r, *n2, *fc, *act;
    float *mean1, *rstd1, *lse, *mean2, *rstd2;
};

static size_t place_saved(struct saved *s, const struct transformer *t, const struct sherd_shape *in,
    enum sherd_dtype type, void *base)
{
    struct cutter c = { base, 0 };
    int64_t N = in->batch * in->seq, C = t->width, F = t->mlp_width;
    s->n1 = cut_elems(&c, N * C, type);
    s->mean1 = cut_elems(&c, N, SHERD_F32);
    s->rstd1 = cut_elems(&c, N, SHERD_F32);
    s->qkv = cut_elems(&c, N * 3 * C, type);
    s->att = cut_elems(&c, N * C, type);
    s->lse = cut_elems(&c, N * t->heads, SHERD_F32);
    s->r = cut_elems(&c, N * C, type);
    s->n2 = cut_elems(&c, N * C, type);
    s->mean2 = cut_elems(&c, N, SHERD_F32);
    s->rstd2 = cut_elems(&c, N, SHERD_F32);
    s->fc = cut_elems(&c, N * F, type);
    s->act = cut_elems(&c, N * F, type);
    return c.used;
}

/* Work space of backward; op also serves forward. */
struct work {
    void *wide;   /* [N,max(F,3C)]: gradient of act and fc, then of qkv */
    void *narrow; /* [N,C]: gradient of n2, then att, then n1 */
    void *dr;     /* [N,C] */
    void *op;     /* of one operation at a time */
};

static size_t place_work(struct work *w, const struct transformer *t, const struct sherd_shape *in,
    enum sherd_dtype type, void *base)
{
    struct cutter c = { base, 0 };
    struct parts p = block_parts(t);
    int64_t N = in->batch * in->seq, C = t->width;
    size_t op = attend_scratch(t, in, type);
    op = MAX(op, norm_scratch(&p.ln1, N, type));
    op = MAX(op, linear_scratch(&p.attn, N, type));
    op = MAX(op, linear_scratch(&p.fc, N, type));
    op = MAX(op, linear_scratch(&p.out, N, type));
    w->wide = cut_elems(&c, N * MAX(t->mlp_width, 3 * C), type);
    w->narrow = cut_elems(&c, N * C, type);
    w->dr = cut_elems(&c, N * C, type);
    w->op = cut(&c, op);
    return c.used;
}

static int block_sizes(
    const void *arg, const struct sherd_shape *in, enum sherd_dtype type, struct sherd_layer_sizes *out)
{
    const struct transformer *t = arg;
    struct saved s;
    struct work w;
    *out = (struct sherd_layer_sizes){ .out_width = t->width,
        .saved_bytes = place_saved(&s, t, in, type, NULL),
        .scratch_bytes = place_work(&w, t, in, type, NULL) };
    return SHERD_OK;
}

static int gelu_forward(const struct sherd_run *run, const struct transformer *t, void *y, const void *x)
{
    return sherd_gelu_forward(run->queue,
        &(struct sherd_gelu_forward){ .y = y, .x = x, .n = run_rows(run) * t->mlp_width, .type = run->type });
}

static int gelu_backward(const struct sherd_run *run, const struct transformer *t, void *dy, const void *x)
{
    return sherd_gelu_backward(
        run->queue, &(struct sherd_gelu_backward){
                        .dx = dy, .dy = dy, .x = x, .n = run_rows(run) * t->mlp_width, .type = run->type });
}

static int block_forward(struct sherd_run *run)
{
    if (run_is_empty(run))
        return SHERD_OK;
    const struct transformer *t = run->arg;
    struct parts p = block_parts(t);
    struct saved s;
    struct work w;
    place_saved(&s, t, &run->in, run->type, run->saved);
    place_work(&w, t, &run->in, run->type, run->scratch);

    SHERD_TRY(norm_forward(run, &p.ln1, s.n1, s.mean1, s.rstd1, run->x));
    SHERD_TRY(linear_forward(run, &p.attn, s.qkv, s.n1, NULL));
    SHERD_TRY(attend_forward(run, t, s.att, s.lse, s.qkv, w.op));
    SHERD_TRY(linear_forward(run, &p.proj, s.r, s.att, run->x));
    SHERD_TRY(norm_forward(run, &p.ln2, s.n2, s.mean2, s.rstd2, s.r));
    SHERD_TRY(linear_forward(run, &p.fc, s.fc, s.n2, NULL));
    SHERD_TRY(gelu_forward(run, t, s.act, s.fc));
    return linear_forward(run, &p.out, run->y, s.act, s.r);
}

static int block_backward(struct sherd_run *run)
{
    if (run_is_empty(run))
        return SHERD_OK;
    const struct transformer *t = run->arg;
    struct parts p = block_parts(t);
    struct saved s;
    struct work w;
    place_saved(&s, t, &run->in, run->type, run->saved);
    place_work(&w, t, &run->in, run->type, run->scratch);

    SHERD_TRY(linear_backward(run, &p.out, w.wide, run->dy, s.act, w.op));
    SHERD_TRY(gelu_backward(run, t, w.wide, s.fc));
    SHERD_TRY(linear_backward(run, &p.fc, w.narrow, w.wide, s.n2, w.op));
    SHERD_TRY(norm_backward(run, &p.ln2, w.dr, w.narrow, s.r, s.mean2, s.rstd2, run->dy, w.op));
    SHERD_TRY(linear_backward(run, &p.proj, w.narrow, w.dr, s.att, w.op));
    SHERD_TRY(attend_backward(run, t, w.wide, w.narrow, s.att, s.qkv, s.lse, w.op));
    SHERD_TRY(linear_backward(run, &p.attn, w.narrow, w.wide, s.n1, w.op));
    return norm_backward(
        run, &p.ln1, run->dx ? run->dx : w.dr, w.narrow, run->x, s.mean1, s.rstd1, w.dr, w.op);
}

static const struct sherd_layer_ops block_ops = { "block", block_sizes, block_forward, block_backward, 1 };

/* ---- the spec ---- */

/* Projections into the residual stream start smaller, by the square root of how many add up. */
static void block_unit(struct maker *m, const struct sherd_model_config *c, int i)
{
    int64_t C = c->width, F = c->mlp_width;
    float std = c->init_std, residual = c->init_std / sqrtf(2.0f * (float)c->layers);
    maker_unit(m, BLOCK_PARAMS, "block%d", i);
    maker_vector(m, SHERD_INIT_ONE, C, "transformer.h.%d.ln_1.weight", i);
    maker_vector(m, SHERD_INIT_ZERO, C, "transformer.h.%d.ln_1.bias", i);
    maker_matrix(m, std, C, 3 * C, "transformer.h.%d.attn.c_attn.weight", i);
    maker_vector(m, SHERD_INIT_ZERO, 3 * C, "transformer.h.%d.attn.c_attn.bias", i);
    maker_matrix(m, residual, C, C, "transformer.h.%d.attn.c_proj.weight", i);
    maker_vector(m, SHERD_INIT_ZERO, C, "transformer.h.%d.attn.c_proj.bias", i);
    maker_vector(m, SHERD_INIT_ONE, C, "transformer.h.%d.ln_2.weight", i);
    maker_vector(m, SHERD_INIT_ZERO, C, "transformer.h.%d.ln_2.bias", i);
    maker_matrix(m, std, C, F, "transformer.h.%d.mlp.c_fc.weight", i);
    maker_vector(m, SHERD_INIT_ZERO, F, "transformer.h.%d.mlp.c_fc.bias", i);
    maker_matrix(m, residual, F, C, "transformer.h.%d.mlp.c_proj.weight", i);
    maker_vector(m, SHERD_INIT_ZERO, C, "transformer.h.%d.mlp.c_proj.bias", i);
}

static void final_params(struct maker *m, const struct sherd_model_config *c)
{
    maker_vector(m, SHERD_INIT_ONE, c->width, "transformer.ln_f.weight");
    maker_vector(m, SHERD_INIT_ZERO, c->width, "transformer.ln_f.bias");
}

static void units(struct maker *m, const struct sherd_model_config *c)
{
    maker_unit(m, 4, "%s", c->tied ? "root" : "embed");
    maker_matrix(m, c->init_std, c->vocab, c->width, "transformer.wte.weight");
    if (c->tied)
        maker_alias(m, "lm_head.weight");
    maker_matrix(m, c->init_std, c->context, c->width, "transformer.wpe.weight");
    if (c->tied)
        final_params(m, c);
    for (int i = 0; i < (int)c->layers; i++)
        block_unit(m, c, i);
    if (c->tied)
        return;
    maker_unit(m, 3, "head");
    final_params(m, c);
    maker_matrix(m, c->init_std, c->vocab, c->width, "lm_head.weight");
}

static char *config_json(struct arena *arena, const struct sherd_model_config *c)
{
    char eps[32], std[32];
    return arena_printf(arena,
        "{\n"
        "  \"architectures\": [\"GPT2LMHeadModel\"],\n"
        "  \"model_type\": \"gpt2\",\n"
        "  \"vocab_size\": %lld,\n"
        "  \"n_positions\": %lld,\n"
        "  \"n_ctx\": %lld,\n"
        "  \"n_embd\": %lld,\n"
        "  \"n_layer\": %lld,\n"
        "  \"n_head\": %lld,\n"
        "  \"n_inner\": %lld,\n"
        "  \"activation_function\": \"gelu_new\",\n"
        "  \"layer_norm_epsilon\": %s,\n"
        "  \"initializer_range\": %s,\n"
        "  \"resid_pdrop\": 0.0,\n"
        "  \"embd_pdrop\": 0.0,\n"
        "  \"attn_pdrop\": 0.0,\n"
        "  \"scale_attn_weights\": true,\n"
        "  \"scale_attn_by_inverse_layer_idx\": false,\n"
        "  \"reorder_and_upcast_attn\": false,\n"
        "  \"tie_word_embeddings\": %s,\n"
        "  \"bos_token_id\": %s,\n"
        "  \"eos_token_id\": %s,\n"
        "  \"use_cache\": true\n"
        "}\n",
        (long long)c->vocab, (long long)c->context, (long long)c->context, (long long)c->width,
        (long long)c->layers, (long long)c->heads, (long long)c->mlp_width,
        model_float_text(c->norm_eps, eps), model_float_text(c->init_std, std), c->tied ? "true" : "false",
        c->vocab > 50256 ? "50256" : "null", c->vocab > 50256 ? "50256" : "null");
}

static int gpt2_spec(struct sherd_model_spec *spec, struct arena *arena, const struct sherd_model_config *c)
{
    struct transformer *t = arena_zalloc(arena, 1, sizeof(*t));
    if (!t)
        return SHERD_ENOMEM;
    *t = (struct transformer){
        .vocab = c->vocab,
        .width = c->width,
        .heads = c->heads,
        .kv_heads = c->heads,
        .head_dim = c->head_dim,
        .mlp_width = c->mlp_width,
        .context = c->context,
        .norm = SHERD_LAYER_NORM,
        .norm_eps = c->norm_eps,
        .wte = 0,
        .wpe = 1,
        .final_w = c->tied ? 2 : 0,
        .final_b = c->tied ? 3 : 1,
        .head_w = c->tied ? 0 : 2,
    };
    int n = (int)c->layers;
    struct maker m;
    maker_init(&m, arena, n + 2, n + 2);
    units(&m, c);
    maker_layer(&m, 0, &model_embed, t, "embed");
    for (int i = 0; i < n; i++)
        maker_layer(&m, 1 + i, &block_ops, t, "block%d", i);
    maker_layer(&m, c->tied ? 0 : n + 1, &model_head, t, "head");
    SHERD_TRY(maker_take(&m, spec));
    spec->vocab = c->vocab;
    spec->export_json = config_json(arena, c);
    return spec->export_json ? SHERD_OK : SHERD_ENOMEM;
}

static int64_t mlp_width(int64_t width)
{
    return 4 * width;
}

const struct model_family model_gpt2 = {
    .name = "gpt2", .context = 1024, .tied = 1, .learns_places = 1, .mlp_width = mlp_width, .spec = gpt2_spec
};
