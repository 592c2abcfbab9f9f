/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Llama: rotary positions, RMSNorm before each part, no biases, grouped queries, SwiGLU; weights stored
 * [out,in]. Names and shapes are those of Hugging Face's LlamaForCausalLM; q, k, v and gate, up are fused
 * here and stand as parts in files.
 *
 *     r = x + o(attention(rope(qkv(norm1(x)))))          y = r + down(silu(gate(norm2(r))) * up(norm2(r)))
 *
 * Letters: B batch, T sequence, N = B * T rows, C width, H heads, K kv heads, D head size, F mlp width.
 */
#include "model/layers.h"
#include "model/model.h"

#include <math.h>
#include <string.h>

/* Parameters of a block, in the order of its unit. */
enum { NORM1, QKV, O, NORM2, GATE_UP, DOWN, BLOCK_PARAMS };

/* The pieces of a block, sized for a model. */
struct parts {
    struct norm norm1, norm2;
    struct linear qkv, o, gate_up, down;
};

static int64_t qkv_width(const struct transformer *t)
{
    return (t->heads + 2 * t->kv_heads) * t->head_dim;
}

static struct parts block_parts(const struct transformer *t)
{
    int64_t C = t->width, F = t->mlp_width;
    return (struct parts){
        .norm1 = { NORM1, -1, C, t->norm_eps, t->norm },
        .norm2 = { NORM2, -1, C, t->norm_eps, t->norm },
        .qkv = { QKV, -1, C, qkv_width(t), 1 },
        .o = { O, -1, t->heads * t->head_dim, C, 1 },
        .gate_up = { GATE_UP, -1, C, 2 * F, 1 },
        .down = { DOWN, -1, F, C, 1 },
    };
}

/* Kept from forward to backward; q and k lie rotated. */
struct saved {
    void *n1, *qkv, *att, *r, *n2, *gate_up, *act;
    float *rstd1, *lse, *rstd2;
};

static size_t place_saved(struct saved *s, const struct transformer *t, const struct sherd_shape *in,
    enum sherd_dtype type, void *base)
{
    struct cutter c = { base, 0 };
    int64_t N = in->batch * in->seq, C = t->width, F = t->mlp_width;
    s->n1 = cut_elems(&c, N * C, type);
    s->rstd1 = cut_elems(&c, N, SHERD_F32);
    s->qkv = cut_elems(&c, N * qkv_width(t), type);
    s->att = cut_elems(&c, N * t->heads * t->head_dim, type);
    s->lse = cut_elems(&c, N * t->heads, SHERD_F32);
    s->r = cut_elems(&c, N * C, type);
    s->n2 = cut_elems(&c, N * C, type);
    s->rstd2 = cut_elems(&c, N, SHERD_F32);
    s->gate_up = cut_elems(&c, N * 2 * F, type);
    s->act = cut_elems(&c, N * F, type);
    return c.used;
}

/* Work space of backward; op also serves forward. */
struct work {
    void *wide;   /* [N,max(2F,(H+2K)D)]: gradient of gate_up, then of qkv */
    void *medium; /* [N,max(F,HD,C)]: gradient of act, then n2, then att, then n1 */
    void *dr;     /* [N,C] */
    void *op;     /* of one operation at a time */
};

static size_t place_work(struct work *w, const struct transformer *t, const struct sherd_shape *in,
    enum sherd_dtype type, void *base)
{
    struct cutter c = { base, 0 };
    struct parts p = block_parts(t);
    int64_t N = in->batch * in->seq, C = t->width, F = t->mlp_width;
    int64_t medium = MAX(MAX(F, C), t->heads * t->head_dim);
    w->wide = cut_elems(&c, N * MAX(2 * F, qkv_width(t)), type);
    w->medium = cut_elems(&c, N * medium, type);
    w->dr = cut_elems(&c, N * C, type);
    w->op = cut(&c, MAX(attend_scratch(t, in, type), norm_scratch(&p.norm1, N, type)));
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

static int rotate(const struct sherd_run *run, const struct transformer *t, void *qkv, int inverse)
{
    struct sherd_rope rope = {
        .x = qkv,
        .batch = run->in.batch,
        .seq = run->in.seq,
        .heads = t->heads + 2 * t->kv_heads,
        .rotated = t->heads + t->kv_heads,
        .head_dim = t->head_dim,
        .inverse = inverse,
        .type = run->type,
    };
    memcpy(rope.inv_freq, t->inv_freq, sizeof(rope.inv_freq));
    return sherd_rope(run->queue, &rope);
}

static int swiglu_forward(const struct sherd_run *run, const struct transformer *t, void *y, const void *x)
{
    return sherd_swiglu_forward(
        run->queue, &(struct sherd_swiglu_forward){
                        .y = y, .x = x, .rows = run_rows(run), .cols = t->mlp_width, .type = run->type });
}

static int swiglu_backward(
    const struct sherd_run *run, const struct transformer *t, void *dx, const void *dy, const void *x)
{
    return sherd_swiglu_backward(run->queue,
        &(struct sherd_swiglu_backward){
            .dx = dx, .dy = dy, .x = x, .rows = run_rows(run), .cols = t->mlp_width, .type = run->type });
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

    SHERD_TRY(norm_forward(run, &p.norm1, s.n1, NULL, s.rstd1, run->x));
    SHERD_TRY(linear_forward(run, &p.qkv, s.qkv, s.n1, NULL));
    SHERD_TRY(rotate(run, t, s.qkv, 0));
    SHERD_TRY(attend_forward(run, t, s.att, s.lse, s.qkv, w.op));
    SHERD_TRY(linear_forward(run, &p.o, s.r, s.att, run->x));
    SHERD_TRY(norm_forward(run, &p.norm2, s.n2, NULL, s.rstd2, s.r));
    SHERD_TRY(linear_forward(run, &p.gate_up, s.gate_up, s.n2, NULL));
    SHERD_TRY(swiglu_forward(run, t, s.act, s.gate_up));
    return linear_forward(run, &p.down, run->y, s.act, s.r);
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

    SHERD_TRY(linear_backward(run, &p.down, w.medium, run->dy, s.act, w.op));
    SHERD_TRY(swiglu_backward(run, t, w.wide, w.medium, s.gate_up));
    SHERD_TRY(linear_backward(run, &p.gate_up, w.medium, w.wide, s.n2, w.op));
    SHERD_TRY(norm_backward(run, &p.norm2, w.dr, w.medium, s.r, NULL, s.rstd2, run->dy, w.op));
    SHERD_TRY(linear_backward(run, &p.o, w.medium, w.dr, s.att, w.op));
    SHERD_TRY(attend_backward(run, t, w.wide, w.medium, s.att, s.qkv, s.lse, w.op));
    SHERD_TRY(rotate(run, t, w.wide, 1));
    SHERD_TRY(linear_backward(run, &p.qkv, w.medium, w.wide, s.n1, w.op));
    return norm_backward(
        run, &p.norm1, run->dx ? run->dx : w.dr, w.medium, run->x, NULL, s.rstd1, w.dr, w.op);
}

static const struct sherd_layer_ops block_ops = { "block", block_sizes, block_forward, block_backward, 1 };

/* ---- the spec ---- */

/* Projections into the residual stream start smaller, by the square root of how many add up. */
static void block_unit(struct maker *m, const struct sherd_model_config *c, int i)
{
    int64_t C = c->width, F = c->mlp_width, q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    float std = c->init_std, residual = c->init_std / sqrtf(2.0f * (float)c->layers);
    maker_unit(m, BLOCK_PARAMS, "block%d", i);
    maker_vector(m, SHERD_INIT_ONE, C, "model.layers.%d.input_layernorm.weight", i);
    maker_matrix(m, std, q + 2 * kv, C, "model.layers.%d.self_attn.qkv_proj.weight", i);
    maker_part(m, q, "model.layers.%d.self_attn.q_proj.weight", i);
    maker_part(m, kv, "model.layers.%d.self_attn.k_proj.weight", i);
    maker_part(m, kv, "model.layers.%d.self_attn.v_proj.weight", i);
    maker_matrix(m, residual, C, q, "model.layers.%d.self_attn.o_proj.weight", i);
    maker_vector(m, SHERD_INIT_ONE, C, "model.layers.%d.post_attention_layernorm.weight", i);
    maker_matrix(m, std, 2 * F, C, "model.layers.%d.mlp.gate_up_proj.weight", i);
    maker_part(m, F, "model.layers.%d.mlp.gate_proj.weight", i);
    maker_part(m, F, "model.layers.%d.mlp.up_proj.weight", i);
    maker_matrix(m, residual, C, F, "model.layers.%d.mlp.down_proj.weight", i);
}

static void units(struct maker *m, const struct sherd_model_config *c)
{
    maker_unit(m, 2, "%s", c->tied ? "root" : "embed");
    maker_matrix(m, c->init_std, c->vocab, c->width, "model.embed_tokens.weight");
    if (c->tied) {
        maker_alias(m, "lm_head.weight");
        maker_vector(m, SHERD_INIT_ONE, c->width, "model.norm.weight");
    }
    for (int i = 0; i < (int)c->layers; i++)
        block_unit(m, c, i);
    if (c->tied)
        return;
    maker_unit(m, 2, "head");
    maker_vector(m, SHERD_INIT_ONE, c->width, "model.norm.weight");
    maker_matrix(m, c->init_std, c->vocab, c->width, "lm_head.weight");
}

static char *config_json(struct arena *arena, const struct sherd_model_config *c)
{
    char eps[32], std[32], theta[32];
    return arena_printf(arena,
        "{\n"
        "  \"architectures\": [\"LlamaForCausalLM\"],\n"
        "  \"model_type\": \"llama\",\n"
        "  \"vocab_size\": %lld,\n"
        "  \"max_position_embeddings\": %lld,\n"
        "  \"hidden_size\": %lld,\n"
        "  \"intermediate_size\": %lld,\n"
        "  \"num_hidden_layers\": %lld,\n"
        "  \"num_attention_heads\": %lld,\n"
        "  \"num_key_value_heads\": %lld,\n"
        "  \"head_dim\": %lld,\n"
        "  \"hidden_act\": \"silu\",\n"
        "  \"rms_norm_eps\": %s,\n"
        "  \"rope_theta\": %s,\n"
        "  \"rope_scaling\": null,\n"
        "  \"initializer_range\": %s,\n"
        "  \"attention_bias\": false,\n"
        "  \"attention_dropout\": 0.0,\n"
        "  \"mlp_bias\": false,\n"
        "  \"pretraining_tp\": 1,\n"
        "  \"tie_word_embeddings\": %s,\n"
        "  \"bos_token_id\": null,\n"
        "  \"eos_token_id\": null,\n"
        "  \"use_cache\": true\n"
        "}\n",
        (long long)c->vocab, (long long)c->context, (long long)c->width, (long long)c->mlp_width,
        (long long)c->layers, (long long)c->heads, (long long)c->kv_heads, (long long)c->head_dim,
        model_float_text(c->norm_eps, eps), model_float_text(c->rope_theta, theta),
        model_float_text(c->init_std, std), c->tied ? "true" : "false");
}

static int llama_spec(struct sherd_model_spec *spec, struct arena *arena, const struct sherd_model_config *c)
{
    struct transformer *t = arena_zalloc(arena, 1, sizeof(*t));
    if (!t)
        return SHERD_ENOMEM;
    *t = (struct transformer){
        .vocab = c->vocab,
        .width = c->width,
        .heads = c->heads,
        .kv_heads = c->kv_heads,
        .head_dim = c->head_dim,
        .mlp_width = c->mlp_width,
        .context = c->context,
        .norm = SHERD_RMS_NORM,
        .norm_eps = c->norm_eps,
        .wte = 0,
        .wpe = -1,
        .final_w = c->tied ? 1 : 0,
        .final_b = -1,
        .head_w = c->tied ? 0 : 1,
    };
    for (int i = 0; i < (int)c->head_dim / 2; i++)
        t->inv_freq[i] = (float)pow((double)c->rope_theta, -2.0 * i / (double)c->head_dim);
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
    return round_up((8 * width + 2) / 3, 32);
}

const struct model_family model_llama = {
    .name = "llama", .context = 2048, .free_heads = 1, .mlp_width = mlp_width, .spec = llama_spec
};
