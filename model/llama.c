/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Llama and the families that differ from it by a row of a table: Qwen2 has biases on q, k and v, Qwen3 norms
 * the heads of q and k. Rotary positions, RMSNorm before each part, grouped queries, SwiGLU; weights stored
 * [out,in]. Names and shapes are those of Hugging Face's ...ForCausalLM; q, k, v and gate, up are fused here
 * and stand as parts in files.
 */
#include "model/layers.h"
#include "model/model.h"

#include <math.h>

/* Parameters of a block, as indices in its unit; -1 = the family has none. */
struct places {
    int norm1, qkv, qkv_bias, q_norm, k_norm, o, norm2, gate_up, down, n;
};

static struct places places_of(const struct model_family *family)
{
    struct places p = { .qkv_bias = -1, .q_norm = -1, .k_norm = -1 };
    p.norm1 = p.n++;
    p.qkv = p.n++;
    if (family->qkv_bias)
        p.qkv_bias = p.n++;
    if (family->qk_norm) {
        p.q_norm = p.n++;
        p.k_norm = p.n++;
    }
    p.o = p.n++;
    p.norm2 = p.n++;
    p.gate_up = p.n++;
    p.down = p.n++;
    return p;
}

static struct block block_of(const struct model_family *family, const struct sherd_model_config *c)
{
    int64_t C = c->width, F = c->mlp_width, D = c->head_dim;
    struct places p = places_of(family);
    return (struct block){
        .norm1 = { p.norm1, -1, C, c->norm_eps, SHERD_RMS_NORM },
        .norm2 = { p.norm2, -1, C, c->norm_eps, SHERD_RMS_NORM },
        .q_norm = { p.q_norm, -1, D, c->norm_eps, SHERD_RMS_NORM },
        .k_norm = { p.k_norm, -1, D, c->norm_eps, SHERD_RMS_NORM },
        .qkv = { p.qkv, p.qkv_bias, C, (c->heads + 2 * c->kv_heads) * D, 1 },
        .o = { p.o, -1, c->heads * D, C, 1 },
        .up = { p.gate_up, -1, C, 2 * F, 1 },
        .down = { p.down, -1, F, C, 1 },
        .mlp = MLP_SWIGLU,
        .rope = 1,
    };
}

static void qkv_parts(struct maker *m, int64_t q, int64_t kv, const char *what, int i)
{
    maker_part(m, q, "model.layers.%d.self_attn.q_proj.%s", i, what);
    maker_part(m, kv, "model.layers.%d.self_attn.k_proj.%s", i, what);
    maker_part(m, kv, "model.layers.%d.self_attn.v_proj.%s", i, what);
}

/* Projections into the residual stream start smaller, by the square root of how many add up. */
static void block_unit(
    struct maker *m, const struct model_family *family, const struct sherd_model_config *c, int i)
{
    int64_t C = c->width, F = c->mlp_width, q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    float std = c->init_std, residual = c->init_std / sqrtf(2.0f * (float)c->layers);
    maker_unit(m, places_of(family).n, "block%d", i);
    maker_vector(m, SHERD_INIT_ONE, C, "model.layers.%d.input_layernorm.weight", i);
    maker_matrix(m, std, q + 2 * kv, C, "model.layers.%d.self_attn.qkv_proj.weight", i);
    qkv_parts(m, q, kv, "weight", i);
    if (family->qkv_bias) {
        maker_vector(m, SHERD_INIT_ZERO, q + 2 * kv, "model.layers.%d.self_attn.qkv_proj.bias", i);
        qkv_parts(m, q, kv, "bias", i);
    }
    if (family->qk_norm) {
        maker_vector(m, SHERD_INIT_ONE, c->head_dim, "model.layers.%d.self_attn.q_norm.weight", i);
        maker_vector(m, SHERD_INIT_ONE, c->head_dim, "model.layers.%d.self_attn.k_norm.weight", i);
    }
    maker_matrix(m, residual, C, q, "model.layers.%d.self_attn.o_proj.weight", i);
    maker_vector(m, SHERD_INIT_ONE, C, "model.layers.%d.post_attention_layernorm.weight", i);
    maker_matrix(m, std, 2 * F, C, "model.layers.%d.mlp.gate_up_proj.weight", i);
    maker_part(m, F, "model.layers.%d.mlp.gate_proj.weight", i);
    maker_part(m, F, "model.layers.%d.mlp.up_proj.weight", i);
    maker_matrix(m, residual, C, F, "model.layers.%d.mlp.down_proj.weight", i);
}

static void units(struct maker *m, const struct model_family *family, const struct sherd_model_config *c)
{
    maker_unit(m, 2, "%s", c->tied ? "root" : "embed");
    maker_matrix(m, c->init_std, c->vocab, c->width, "model.embed_tokens.weight");
    if (c->tied) {
        maker_alias(m, "lm_head.weight");
        maker_vector(m, SHERD_INIT_ONE, c->width, "model.norm.weight");
    }
    for (int i = 0; i < (int)c->layers; i++)
        block_unit(m, family, c, i);
    if (c->tied)
        return;
    maker_unit(m, 2, "head");
    maker_vector(m, SHERD_INIT_ONE, c->width, "model.norm.weight");
    maker_matrix(m, c->init_std, c->vocab, c->width, "lm_head.weight");
}

/* The member "rope_scaling" of config.json. */
static const char *scaling_json(struct arena *arena, const struct sherd_model_config *c)
{
    char factor[32], low[32], high[32];
    model_float_text(c->rope_factor, factor);
    if (c->rope_scaling == SHERD_ROPE_LINEAR)
        return arena_printf(arena, "{\"rope_type\": \"linear\", \"factor\": %s}", factor);
    if (c->rope_scaling == SHERD_ROPE_LLAMA3)
        return arena_printf(arena,
            "{\"rope_type\": \"llama3\", \"factor\": %s, \"low_freq_factor\": %s, \"high_freq_factor\": %s, "
            "\"original_max_position_embeddings\": %lld}",
            factor, model_float_text(c->rope_low_freq, low), model_float_text(c->rope_high_freq, high),
            (long long)c->rope_context);
    return "null";
}

static char *config_json(
    struct arena *arena, const struct model_family *family, const struct sherd_model_config *c)
{
    char eps[32], std[32], theta[32];
    const char *scaling = scaling_json(arena, c);
    if (!scaling)
        return NULL;
    return arena_printf(arena,
        "{\n"
        "  \"architectures\": [\"%s\"],\n"
        "  \"model_type\": \"%s\",\n"
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
        "  \"rope_scaling\": %s,\n"
        "  \"initializer_range\": %s,\n"
        "%s"
        "  \"attention_dropout\": 0.0,\n"
        "  \"tie_word_embeddings\": %s,\n"
        "  \"bos_token_id\": null,\n"
        "  \"eos_token_id\": null,\n"
        "  \"use_cache\": true\n"
        "}\n",
        family->architecture, family->name, (long long)c->vocab, (long long)c->context, (long long)c->width,
        (long long)c->mlp_width, (long long)c->layers, (long long)c->heads, (long long)c->kv_heads,
        (long long)c->head_dim, model_float_text(c->norm_eps, eps), model_float_text(c->rope_theta, theta),
        scaling, model_float_text(c->init_std, std), family->export_more, c->tied ? "true" : "false");
}

/* Angle per position of the i-th pair of a head. "linear" (arXiv 2306.15595) stretches all positions;
 * "llama3" only what turns less than low_freq times within the context of the first training, and blends up
 * to high_freq. */
static double pair_frequency(const struct sherd_model_config *c, int i)
{
    double f = pow((double)c->rope_theta, -2.0 * i / (double)c->head_dim);
    double factor = (double)c->rope_factor, low = (double)c->rope_low_freq, high = (double)c->rope_high_freq;
    if (c->rope_scaling == SHERD_ROPE_LINEAR)
        return f / factor;
    if (c->rope_scaling != SHERD_ROPE_LLAMA3)
        return f;
    double turns = (double)c->rope_context * f / (2 * acos(-1.0));
    if (turns > high)
        return f;
    if (turns < low)
        return f / factor;
    double blend = (turns - low) / (high - low);
    return (1 - blend) * f / factor + blend * f;
}

static void describe(
    struct transformer *t, const struct model_family *family, const struct sherd_model_config *c)
{
    t->norm = SHERD_RMS_NORM;
    t->block = block_of(family, c);
    t->wte = 0;
    t->wpe = -1;
    t->final_w = c->tied ? 1 : 0;
    t->final_b = -1;
    t->head_w = c->tied ? 0 : 1;
    for (int i = 0; i < (int)c->head_dim / 2; i++)
        t->inv_freq[i] = (float)pair_frequency(c, i);
}

static int64_t mlp_width(int64_t width)
{
    return round_up((8 * width + 2) / 3, 32);
}

const struct model_family model_llama = {
    .name = "llama",
    .architecture = "LlamaForCausalLM",
    .export_more = "  \"attention_bias\": false,\n  \"mlp_bias\": false,\n  \"pretraining_tp\": 1,\n",
    .context = 2048,
    .free_heads = 1,
    .mlp_width = mlp_width,
    .describe = describe,
    .units = units,
    .config_json = config_json,
};

const struct model_family model_qwen2 = {
    .name = "qwen2",
    .architecture = "Qwen2ForCausalLM",
    .export_more = "  \"use_sliding_window\": false,\n",
    .context = 32768,
    .free_heads = 1,
    .qkv_bias = 1,
    .mlp_width = mlp_width,
    .describe = describe,
    .units = units,
    .config_json = config_json,
};

const struct model_family model_qwen3 = {
    .name = "qwen3",
    .architecture = "Qwen3ForCausalLM",
    .export_more = "  \"attention_bias\": false,\n  \"use_sliding_window\": false,\n",
    .context = 32768,
    .free_heads = 1,
    .qk_norm = 1,
    .mlp_width = mlp_width,
    .describe = describe,
    .units = units,
    .config_json = config_json,
};
