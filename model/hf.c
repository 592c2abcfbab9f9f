/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * From a config.json of Hugging Face to the config of a built-in family. What would change a model's outputs
 * and is not computed here is refused by name; members that say nothing of the outputs are not looked at.
 */
#include "model/model.h"

#include <string.h>

#include "base/json.h"
#include "base/status.h"

#define MOST (INT64_C(1) << 40) /* sizes are checked when the model is built */

struct reader {
    const json_t *root;
    const char *name; /* of the file */
};

/* A null says as much as nothing. */
static int has(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return value && !json_is_null(value);
}

static int refuse(const struct reader *r, const char *key, const char *why)
{
    return SHERD_FAIL(SHERD_EUNSUPPORTED, "%s: '%s': %s", r->name, key, why);
}

/* A size that must be there, or the default where one is given. */
static int size(const struct reader *r, const char *key, int64_t fallback, int64_t *out)
{
    *out = fallback;
    if (fallback >= 0 && !has(r->root, key))
        return SHERD_OK;
    return json_get_int(r->root, key, 0, MOST, r->name, out);
}

static int number(const struct reader *r, const json_t *object, const char *key, double fallback, float *out)
{
    double value = fallback;
    if (fallback < 0 || has(object, key))
        SHERD_TRY(json_get_double(object, key, r->name, &value));
    *out = (float)value;
    return SHERD_OK;
}

/* A truth value; 1 or 0. */
static int truth(const struct reader *r, const char *key, int fallback, int *out)
{
    const json_t *value = json_object_get(r->root, key);
    *out = has(r->root, key) ? json_is_true(value) : fallback;
    if (has(r->root, key) && !json_is_boolean(value))
        return SHERD_FAIL(SHERD_EFORMAT, "%s: member '%s' must be true or false", r->name, key);
    return SHERD_OK;
}

/* A truth value that can be only one thing here. */
static int must_be(const struct reader *r, const char *key, int only, const char *why)
{
    int value;
    SHERD_TRY(truth(r, key, only, &value));
    return value == only ? SHERD_OK : refuse(r, key, why);
}

static int word_is(const struct reader *r, const char *key, const char *only, const char *also)
{
    const char *word = only;
    if (has(r->root, key))
        SHERD_TRY(json_get_text(r->root, key, r->name, &word));
    if (!strcmp(word, only) || (also && !strcmp(word, also)))
        return SHERD_OK;
    return SHERD_FAIL(
        SHERD_EUNSUPPORTED, "%s: '%s' is '%s', sherd computes '%s' only", r->name, key, word, only);
}

/* Dropout changes training, not outputs: it is left out, and who trains is told by model_dropout. */
static const char *const dropouts[] = { "resid_pdrop", "embd_pdrop", "attn_pdrop", "attention_dropout" };

static int check_dropout(const struct reader *r)
{
    float p;
    for (size_t i = 0; i < ARRAY_LEN(dropouts); i++)
        SHERD_TRY(number(r, r->root, dropouts[i], 0, &p));
    return SHERD_OK;
}

int model_dropout(char **out, const char *text)
{
    struct text t = { 0 };
    json_t *root;
    SHERD_TRY(json_parse(&root, text, strlen(text), "config.json"));
    for (size_t i = 0; i < ARRAY_LEN(dropouts); i++) {
        double p = json_number_value(json_object_get(root, dropouts[i]));
        if (p > 0)
            text_add(&t, "%s%s %g", t.len ? ", " : "", dropouts[i], p);
    }
    json_decref(root);
    return text_take(&t, out);
}

/* ---- positions ---- */

/* The object that describes them: rope_parameters in newer files, rope_scaling beside rope_theta in older. */
static int scaling_kind(const struct reader *r, const json_t *object, struct sherd_model_config *c)
{
    const char *key = json_object_get(object, "rope_type") ? "rope_type" : "type", *kind = "default";
    if (has(object, key))
        SHERD_TRY(json_get_text(object, key, r->name, &kind));
    if (!strcmp(kind, "default"))
        return SHERD_OK;
    if (!strcmp(kind, "linear"))
        c->rope_scaling = SHERD_ROPE_LINEAR;
    else if (!strcmp(kind, "llama3"))
        c->rope_scaling = SHERD_ROPE_LLAMA3;
    else
        return SHERD_FAIL(SHERD_EUNSUPPORTED,
            "%s: '%s' of the rotary positions is '%s'; sherd computes default, linear and llama3", r->name,
            key, kind);
    SHERD_TRY(number(r, object, "factor", -1, &c->rope_factor));
    if (c->rope_scaling == SHERD_ROPE_LINEAR)
        return SHERD_OK;
    SHERD_TRY(number(r, object, "low_freq_factor", -1, &c->rope_low_freq));
    SHERD_TRY(number(r, object, "high_freq_factor", -1, &c->rope_high_freq));
    return json_get_int(object, "original_max_position_embeddings", 1, MOST, r->name, &c->rope_context);
}

/* Both forms have it: at the top of older files, among the other numbers of the rotation in newer ones. */
static int check_whole(const struct reader *r, const json_t *object)
{
    float part;
    SHERD_TRY(number(r, object, "partial_rotary_factor", 1, &part));
    return part == 1 ? SHERD_OK : refuse(r, "partial_rotary_factor", "sherd rotates heads whole");
}

static int positions(const struct reader *r, struct sherd_model_config *c)
{
    json_t *object = NULL;
    SHERD_TRY(number(r, r->root, "rope_theta", 10000, &c->rope_theta));
    SHERD_TRY(check_whole(r, r->root));
    const char *key = has(r->root, "rope_parameters") ? "rope_parameters" : "rope_scaling";
    if (!has(r->root, key))
        return SHERD_OK;
    SHERD_TRY(json_get_object(r->root, key, r->name, &object));
    SHERD_TRY(check_whole(r, object));
    SHERD_TRY(number(r, object, "rope_theta", (double)c->rope_theta, &c->rope_theta));
    return scaling_kind(r, object, c);
}

/* ---- families ---- */

static int read_gpt2(const struct reader *r, struct sherd_model_config *c)
{
    SHERD_TRY(size(r, "n_embd", -1, &c->width));
    SHERD_TRY(size(r, "n_layer", -1, &c->layers));
    SHERD_TRY(size(r, "n_head", -1, &c->heads));
    SHERD_TRY(size(r, "n_inner", 0, &c->mlp_width));
    SHERD_TRY(size(r, "n_positions", -1, &c->context));
    SHERD_TRY(number(r, r->root, "layer_norm_epsilon", 1e-5, &c->norm_eps));
    SHERD_TRY(word_is(r, "activation_function", "gelu_new", "gelu_pytorch_tanh"));
    SHERD_TRY(must_be(r, "scale_attn_weights", 1, "sherd scales the scores by the size of a head"));
    SHERD_TRY(must_be(r, "scale_attn_by_inverse_layer_idx", 0, "sherd scales all layers alike"));
    return must_be(r, "add_cross_attention", 0, "sherd has no cross attention");
}

/* Layers of Qwen files may each be of another type. */
static int layer_types(const struct reader *r)
{
    json_t *list, *type;
    size_t i;
    if (!has(r->root, "layer_types"))
        return SHERD_OK;
    SHERD_TRY(json_get_array(r->root, "layer_types", r->name, &list));
    json_array_foreach(list, i, type)
    {
        if (!json_is_string(type) || strcmp(json_string_value(type), "full_attention"))
            return refuse(r, "layer_types", "sherd computes full_attention only");
    }
    return SHERD_OK;
}

static int read_llama(const struct reader *r, const struct model_family *family, struct sherd_model_config *c)
{
    SHERD_TRY(size(r, "hidden_size", -1, &c->width));
    SHERD_TRY(size(r, "num_hidden_layers", -1, &c->layers));
    SHERD_TRY(size(r, "num_attention_heads", -1, &c->heads));
    SHERD_TRY(size(r, "num_key_value_heads", family == &model_llama ? c->heads : -1, &c->kv_heads));
    SHERD_TRY(size(r, "head_dim", family == &model_qwen3 ? 128 : 0, &c->head_dim));
    SHERD_TRY(size(r, "intermediate_size", -1, &c->mlp_width));
    SHERD_TRY(size(r, "max_position_embeddings", -1, &c->context));
    SHERD_TRY(number(r, r->root, "rms_norm_eps", 1e-6, &c->norm_eps));
    SHERD_TRY(word_is(r, "hidden_act", "silu", "swish"));
    if (!family->qkv_bias)
        SHERD_TRY(must_be(r, "attention_bias", 0, "the attention of this family has no biases in sherd"));
    SHERD_TRY(must_be(r, "mlp_bias", 0, "the MLP of this family has no biases in sherd"));
    SHERD_TRY(must_be(r, "use_sliding_window", 0, "sherd attends to all that came before"));
    SHERD_TRY(layer_types(r));
    return positions(r, c);
}

static int read_config(const struct reader *r, struct sherd_model_config *c)
{
    const struct model_family *family;
    const char *type;
    SHERD_TRY(json_get_text(r->root, "model_type", r->name, &type));
    if (model_find_family(&family, type) != SHERD_OK)
        return SHERD_FAIL(SHERD_EUNSUPPORTED,
            "%s: 'model_type' is '%s'; sherd has gpt2, llama, qwen2 and qwen3", r->name, type);
    c->family = family->name;
    if (has(r->root, "quantization_config"))
        return refuse(r, "quantization_config", "sherd reads weights in F32, BF16 and F16 only");
    SHERD_TRY(size(r, "vocab_size", -1, &c->vocab));
    SHERD_TRY(number(r, r->root, "initializer_range", 0.02, &c->init_std));
    SHERD_TRY(truth(r, "tie_word_embeddings", family->tied, &c->tied));
    SHERD_TRY(check_dropout(r));
    return family->learns_places ? read_gpt2(r, c) : read_llama(r, family, c);
}

int sherd_model_config_json(struct sherd_model_config *out, const char *text, size_t bytes, const char *name)
{
    json_t *root;
    *out = (struct sherd_model_config){ 0 };
    SHERD_TRY(json_parse(&root, text, bytes, name));
    int st = read_config(&(struct reader){ root, name }, out);
    json_decref(root);
    return st;
}

/* The type of the weights is the exporter's to say. */
int model_set_export(struct sherd_model *model, const char *text)
{
    json_t *root;
    char *printed = NULL;
    SHERD_TRY(json_parse(&root, text, strlen(text), "config.json"));
    json_object_del(root, "dtype");
    json_object_del(root, "torch_dtype");
    int bad = json_object_set_new(root, "architectures", json_pack("[s]", model->family->architecture));
    int st = bad ? MEM_OUT("config.json") : json_print(&printed, root, 2);
    if (st == SHERD_OK) {
        const char *copy = arena_strdup(&model->arena, printed);
        st = copy ? SHERD_OK : SHERD_ENOMEM;
        model->spec.export_json = copy ? copy : model->spec.export_json;
    }
    mem_free(printed);
    json_decref(root);
    return st;
}
