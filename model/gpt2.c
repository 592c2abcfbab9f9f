/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * GPT-2: learned positions, LayerNorm before each part, biases everywhere, GELU; weights stored [in,out].
 * Names and shapes are those of Hugging Face's GPT2LMHeadModel.
 *
 *     r = x + c_proj(attention(c_attn(ln_1(x))))          y = r + c_proj(gelu(c_fc(ln_2(r))))
 */
#include "model/layers.h"
#include "model/model.h"

#include <math.h>

/* Parameters of a block, in the order of its unit. */
enum { LN1_W, LN1_B, ATTN_W, ATTN_B, PROJ_W, PROJ_B, LN2_W, LN2_B, FC_W, FC_B, OUT_W, OUT_B, BLOCK_PARAMS };

static struct block block_of(const struct sherd_model_config *c)
{
    int64_t C = c->width, F = c->mlp_width;
    return (struct block){
        .norm1 = { LN1_W, LN1_B, C, c->norm_eps, SHERD_LAYER_NORM },
        .norm2 = { LN2_W, LN2_B, C, c->norm_eps, SHERD_LAYER_NORM },
        .q_norm.w = -1,
        .k_norm.w = -1,
        .qkv = { ATTN_W, ATTN_B, C, 3 * C, 0 },
        .o = { PROJ_W, PROJ_B, C, C, 0 },
        .up = { FC_W, FC_B, C, F, 0 },
        .down = { OUT_W, OUT_B, F, C, 0 },
        .mlp = MLP_GELU,
    };
}

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

static void units(struct maker *m, const struct model_family *family, const struct sherd_model_config *c)
{
    (void)family;
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

static char *config_json(
    struct arena *arena, const struct model_family *family, const struct sherd_model_config *c)
{
    char eps[32], std[32];
    return arena_printf(arena,
        "{\n"
        "  \"architectures\": [\"%s\"],\n"
        "  \"model_type\": \"%s\",\n"
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
        family->architecture, family->name, (long long)c->vocab, (long long)c->context, (long long)c->context,
        (long long)c->width, (long long)c->layers, (long long)c->heads, (long long)c->mlp_width,
        model_float_text(c->norm_eps, eps), model_float_text(c->init_std, std), c->tied ? "true" : "false",
        c->vocab > 50256 ? "50256" : "null", c->vocab > 50256 ? "50256" : "null");
}

static void describe(
    struct transformer *t, const struct model_family *family, const struct sherd_model_config *c)
{
    (void)family;
    t->norm = SHERD_LAYER_NORM;
    t->block = block_of(c);
    t->wte = 0;
    t->wpe = 1;
    t->final_w = c->tied ? 2 : 0;
    t->final_b = c->tied ? 3 : 1;
    t->head_w = c->tied ? 0 : 2;
}

static int64_t mlp_width(int64_t width)
{
    return 4 * width;
}

const struct model_family model_gpt2 = { .name = "gpt2",
    .architecture = "GPT2LMHeadModel",
    .context = 1024,
    .tied = 1,
    .learns_places = 1,
    .mlp_width = mlp_width,
    .describe = describe,
    .units = units,
    .config_json = config_json };
