/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The built-in families: names, defaults, and what all share: the checks, and the layers.
 */
#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <sherd/ops.h>
#include "base/status.h"
#include "model/layers.h"

static const struct model_family *const families[] = { &model_gpt2, &model_llama, &model_qwen2,
    &model_qwen3 };

const char *sherd_model_family(int i)
{
    return i >= 0 && i < (int)ARRAY_LEN(families) ? families[i]->name : NULL;
}

int model_find_family(const struct model_family **out, const char *name)
{
    const char *names[ARRAY_LEN(families)];
    char all[256] = "";
    for (size_t i = 0; i < ARRAY_LEN(families); i++) {
        names[i] = families[i]->name;
        *out = families[i];
        if (name && strcmp(name, families[i]->name) == 0)
            return SHERD_OK;
        size_t len = strlen(all);
        snprintf(all + len, sizeof(all) - len, "%s%s", i ? ", " : "", names[i]);
    }
    if (!name || !name[0])
        return SHERD_FAIL(SHERD_ECONFIG, "model.family is not set: use one of %s", all);
    const char *near = text_nearest(name, names, (int)ARRAY_LEN(families));
    return SHERD_FAIL(SHERD_ECONFIG, "model.family: unknown family '%s'%s%s%s; there are %s", name,
        near ? ", did you mean '" : "", near ? near : "", near ? "'" : "", all);
}

/* Sizes far beyond any model, so that products of two cannot overflow. */
#define MAX_SIZE (INT64_C(1) << 30)
#define MAX_LAYERS 100000

static int check_size(const char *field, int64_t value)
{
    if (value < 1)
        return SHERD_FAIL(
            SHERD_ECONFIG, "model.%s is %lld: it must be given, at least 1", field, (long long)value);
    if (value > MAX_SIZE)
        return SHERD_FAIL(SHERD_ECONFIG, "model.%s is %lld: the largest size is %lld", field,
            (long long)value, (long long)MAX_SIZE);
    return SHERD_OK;
}

static int check_float(const char *field, float value)
{
    if (!isfinite(value) || value < 0)
        return SHERD_FAIL(SHERD_ECONFIG, "model.%s is %g: it must be finite and above 0 (0 = the default)",
            field, (double)value);
    return SHERD_OK;
}

static int fill_heads(struct sherd_model_config *c, const struct model_family *family)
{
    if (!family->free_heads && c->kv_heads && c->kv_heads != c->heads)
        return SHERD_FAIL(SHERD_ECONFIG,
            "model.kv_heads is %lld, but %s has as many as heads (%lld): leave it at 0, or use family llama",
            (long long)c->kv_heads, family->name, (long long)c->heads);
    if (!family->free_heads && c->head_dim && (c->width % c->heads || c->head_dim != c->width / c->heads))
        return SHERD_FAIL(SHERD_ECONFIG,
            "model.head_dim is %lld, but %s has width / heads: leave it at 0, or use family llama",
            (long long)c->head_dim, family->name);
    if (!c->head_dim) {
        if (c->width % c->heads)
            return SHERD_FAIL(SHERD_ECONFIG,
                "model.width %lld is not a multiple of model.heads %lld: change one of them%s",
                (long long)c->width, (long long)c->heads,
                family->free_heads ? ", or set model.head_dim" : "");
        c->head_dim = c->width / c->heads;
    }
    if (!c->kv_heads)
        c->kv_heads = c->heads;
    SHERD_TRY(check_size("kv_heads", c->kv_heads));
    SHERD_TRY(check_size("head_dim", c->head_dim));
    if (c->heads % c->kv_heads)
        return SHERD_FAIL(SHERD_ECONFIG,
            "model.heads %lld is not a multiple of model.kv_heads %lld: each kv head must serve as many "
            "heads",
            (long long)c->heads, (long long)c->kv_heads);
    if (c->head_dim > SHERD_MAX_HEAD_DIM)
        return SHERD_FAIL(SHERD_ECONFIG, "model.head_dim is %lld, the largest is %d: use more heads",
            (long long)c->head_dim, SHERD_MAX_HEAD_DIM);
    if (!family->learns_places && c->head_dim % 2)
        return SHERD_FAIL(SHERD_ECONFIG,
            "model.head_dim is %lld, but rotary positions need an even one: change heads or set "
            "model.head_dim",
            (long long)c->head_dim);
    return SHERD_OK;
}

static int fill_scaling(struct sherd_model_config *c, const struct model_family *family)
{
    if (c->rope_scaling == SHERD_ROPE_PLAIN)
        return SHERD_OK;
    if (c->rope_scaling != SHERD_ROPE_LINEAR && c->rope_scaling != SHERD_ROPE_LLAMA3)
        return SHERD_FAIL(
            SHERD_ECONFIG, "model.rope_scaling is %d, which is no SHERD_ROPE value", (int)c->rope_scaling);
    if (family->learns_places)
        return SHERD_FAIL(SHERD_ECONFIG,
            "model.rope_scaling: %s learns its positions and rotates nothing: set it to none", family->name);
    SHERD_TRY(check_float("rope_factor", c->rope_factor));
    SHERD_TRY(check_float("rope_low_freq", c->rope_low_freq));
    SHERD_TRY(check_float("rope_high_freq", c->rope_high_freq));
    c->rope_factor = c->rope_factor > 0 ? c->rope_factor : 1.0f;
    if (c->rope_scaling == SHERD_ROPE_LINEAR)
        return SHERD_OK;
    c->rope_low_freq = c->rope_low_freq > 0 ? c->rope_low_freq : 1.0f;
    c->rope_high_freq = c->rope_high_freq > 0 ? c->rope_high_freq : 4.0f;
    c->rope_context = c->rope_context ? c->rope_context : 8192;
    SHERD_TRY(check_size("rope_context", c->rope_context));
    if (c->rope_high_freq <= c->rope_low_freq)
        return SHERD_FAIL(SHERD_ECONFIG,
            "model.rope_high_freq is %g, it must be above model.rope_low_freq %g", (double)c->rope_high_freq,
            (double)c->rope_low_freq);
    return SHERD_OK;
}

/* Checks a config and replaces zeros by the family's defaults. */
static int fill_config(struct sherd_model_config *c, const struct model_family *family)
{
    if (!c->context)
        c->context = family->context;
    SHERD_TRY(check_size("vocab", c->vocab));
    SHERD_TRY(check_size("width", c->width));
    SHERD_TRY(check_size("layers", c->layers));
    SHERD_TRY(check_size("heads", c->heads));
    if (c->layers > MAX_LAYERS)
        return SHERD_FAIL(SHERD_ECONFIG, "model.layers is %lld: the largest number is %d",
            (long long)c->layers, MAX_LAYERS);
    SHERD_TRY(check_size("context", c->context));
    SHERD_TRY(fill_heads(c, family));
    if (!c->mlp_width)
        c->mlp_width = family->mlp_width(c->width);
    SHERD_TRY(check_size("mlp_width", c->mlp_width));
    SHERD_TRY(check_float("norm_eps", c->norm_eps));
    SHERD_TRY(check_float("rope_theta", c->rope_theta));
    SHERD_TRY(check_float("init_std", c->init_std));
    c->norm_eps = c->norm_eps > 0 ? c->norm_eps : 1e-5f;
    c->rope_theta = c->rope_theta > 0 ? c->rope_theta : 10000.0f;
    c->init_std = c->init_std > 0 ? c->init_std : 0.02f;
    SHERD_TRY(fill_scaling(c, family));
    if (c->tied != 0 && c->tied != 1)
        return SHERD_FAIL(SHERD_ECONFIG, "model.tied is %d: it must be 0 or 1", c->tied);
    return SHERD_OK;
}

/* One layer for each unit, but that a tied head uses the embedding's. */
static int make_spec(struct sherd_model_spec *spec, struct arena *arena, const struct model_family *family,
    const struct sherd_model_config *c)
{
    int n = (int)c->layers;
    struct maker m;
    struct transformer *t = arena_zalloc(arena, 1, sizeof(*t));
    if (!t)
        return SHERD_ENOMEM;
    *t = (struct transformer){ .vocab = c->vocab,
        .width = c->width,
        .heads = c->heads,
        .kv_heads = c->kv_heads,
        .head_dim = c->head_dim,
        .mlp_width = c->mlp_width,
        .context = c->context,
        .norm_eps = c->norm_eps,
        .any_order = c->any_order };
    family->describe(t, family, c);
    maker_init(&m, arena, n + 2, n + 2);
    family->units(&m, family, c);
    maker_layer(&m, 0, &model_embed, t, "embed");
    for (int i = 0; i < n; i++)
        maker_layer(&m, 1 + i, &model_block, t, "block%d", i);
    maker_layer(&m, c->tied ? 0 : n + 1, &model_head, t, "head");
    SHERD_TRY(maker_take(&m, spec));
    spec->vocab = c->vocab;
    spec->export_json = family->config_json(arena, family, c);
    return spec->export_json ? SHERD_OK : SHERD_ENOMEM;
}

int sherd_model_build(struct sherd_model **out, const struct sherd_model_config *config)
{
    if (!out || !config)
        return SHERD_FAIL(SHERD_EINVAL, "sherd_model_build: out or config is NULL");
    const struct model_family *family = NULL;
    struct sherd_model_config full = *config;
    SHERD_TRY(model_find_family(&family, config->family));
    SHERD_TRY(fill_config(&full, family));

    int st = SHERD_OK;
    struct sherd_model *model = mem_zalloc(1, sizeof(*model));
    if (!model)
        return SHERD_ENOMEM;
    SHERD_TRY_OUT(make_spec(&model->spec, &model->arena, family, &full));
    SHERD_TRY_OUT(model_check_spec(&model->spec));
    model->params = model_count(&model->spec);
    model->family = family;
    model->config = full;
    model->config.family = family->name;
    *out = model;
    return SHERD_OK;
out:
    sherd_model_destroy(model);
    return st;
}

/* 6 for every parameter that is multiplied (an embedding that is only looked up is not), and for attention 6
 * layers width seq (causal: half of the 12 of PaLM, arXiv 2204.02311, appendix B). */
double model_flops(const struct sherd_model *model, int64_t seq)
{
    const struct sherd_model_config *c = &model->config;
    if (!model->family)
        return 6.0 * (double)model->params;
    int64_t looked_up = c->tied ? 0 : c->vocab * c->width;
    if (model->family->learns_places)
        looked_up += c->context * c->width;
    return 6.0 * (double)(model->params - looked_up) +
           6.0 * (double)c->layers * (double)(c->heads * c->head_dim) * (double)seq;
}
