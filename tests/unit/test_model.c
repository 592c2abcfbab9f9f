/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Specs: the families, what is refused, the copy, freezing, initial values. No device is needed.
 */
#include "tests/check.h"

#include <math.h>
#include <stdlib.h>

#include <sherd/model.h>
#include "base/json.h"
#include "base/mem.h"
#include "model/init.h"
#include "model/model.h"

static const struct sherd_model_config tiny_gpt2 = {
    .family = "gpt2", .vocab = 101, .width = 24, .layers = 2, .heads = 3, .context = 16, .tied = 1
};
static const struct sherd_model_config tiny_llama = {
    .family = "llama", .vocab = 101, .width = 24, .layers = 2, .heads = 4, .kv_heads = 2, .context = 16
};

static const struct sherd_param *find_param(const struct sherd_model *model, const char *name)
{
    const struct sherd_model_spec *spec = sherd_model_spec_of(model);
    for (int i = 0; i < spec->n_units; i++) {
        for (int j = 0; j < spec->units[i].n_params; j++) {
            if (strcmp(spec->units[i].params[j].name, name) == 0)
                return &spec->units[i].params[j];
        }
    }
    fail_msg("there is no parameter '%s'", name);
    return NULL;
}

/* ---- families ---- */

static void published_sizes(void **state)
{
    (void)state;
    static const struct {
        struct sherd_model_config config;
        int64_t params;
    } rows[] = {
        { { .family = "gpt2", .vocab = 50257, .width = 768, .layers = 12, .heads = 12, .tied = 1 },
            124439808 },
        { { .family = "gpt2", .vocab = 50257, .width = 1024, .layers = 24, .heads = 16, .tied = 1 },
            354823168 },
        { { .family = "gpt2", .vocab = 50257, .width = 1280, .layers = 36, .heads = 20, .tied = 1 },
            774030080 },
        { { .family = "gpt2", .vocab = 50257, .width = 1600, .layers = 48, .heads = 25, .tied = 1 },
            1557611200 },
        { { .family = "llama",
              .vocab = 128256,
              .width = 2048,
              .layers = 16,
              .heads = 32,
              .kv_heads = 8,
              .mlp_width = 8192,
              .tied = 1 },
            1235814400 },
        { { .family = "llama", .vocab = 32000, .width = 4096, .layers = 32, .heads = 32, .mlp_width = 11008 },
            6738415616 },
        { { .family = "qwen2",
              .vocab = 151936,
              .width = 896,
              .layers = 24,
              .heads = 14,
              .kv_heads = 2,
              .mlp_width = 4864,
              .tied = 1 },
            494032768 },
        { { .family = "qwen3",
              .vocab = 151936,
              .width = 1024,
              .layers = 28,
              .heads = 16,
              .kv_heads = 8,
              .head_dim = 128,
              .mlp_width = 3072,
              .tied = 1 },
            596049920 },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct sherd_model *model = NULL;
        ASSERT_OK(sherd_model_build(&model, &rows[i].config));
        assert_int_equal(sherd_model_params(model), rows[i].params);
        sherd_model_destroy(model);
    }
}

static void layers_and_units(void **state)
{
    (void)state;
    struct sherd_model_config config = tiny_llama;
    for (config.tied = 0; config.tied <= 1; config.tied++) {
        struct sherd_model *model = NULL;
        ASSERT_OK(sherd_model_build(&model, &config));
        const struct sherd_model_spec *spec = sherd_model_spec_of(model);
        assert_int_equal(spec->n_layers, 4);
        assert_string_equal(spec->layers[0].name, "embed");
        assert_string_equal(spec->layers[2].name, "block1");
        assert_string_equal(spec->layers[3].name, "head");
        assert_int_equal(spec->n_units, config.tied ? 3 : 4);
        assert_int_equal(spec->layers[3].unit, config.tied ? 0 : 3);
        assert_string_equal(spec->units[0].name, config.tied ? "root" : "embed");
        const struct sherd_param *embed = find_param(model, "model.embed_tokens.weight");
        if (config.tied)
            assert_string_equal(embed->alias, "lm_head.weight");
        else
            assert_null(embed->alias);
        const struct sherd_param *qkv = find_param(model, "model.layers.1.self_attn.qkv_proj.weight");
        assert_int_equal(qkv->n_parts, 3);
        assert_string_equal(qkv->parts[2].name, "model.layers.1.self_attn.v_proj.weight");
        assert_int_equal(qkv->parts[0].rows, 24);
        assert_int_equal(qkv->parts[1].rows, 12);
        sherd_model_destroy(model);
    }
}

static void vectors_do_not_decay(void **state)
{
    (void)state;
    for (int family = 0; family < 2; family++) {
        struct sherd_model *model = NULL;
        ASSERT_OK(sherd_model_build(&model, family ? &tiny_llama : &tiny_gpt2));
        const struct sherd_model_spec *spec = sherd_model_spec_of(model);
        for (int i = 0; i < spec->n_units; i++) {
            for (int j = 0; j < spec->units[i].n_params; j++) {
                const struct sherd_param *p = &spec->units[i].params[j];
                assert_int_equal(p->flags, p->dims == 1 ? SHERD_NO_DECAY : 0);
            }
        }
        sherd_model_destroy(model);
    }
}

static void families_are_listed(void **state)
{
    (void)state;
    const char *const known[] = { "gpt2", "llama", "qwen2", "qwen3" };
    int n = 0, found = 0;
    for (; sherd_model_family(n); n++)
        for (size_t i = 0; i < ARRAY_LEN(known); i++)
            found += strcmp(sherd_model_family(n), known[i]) == 0;
    assert_int_equal(found, (int)ARRAY_LEN(known));
    assert_null(sherd_model_family(n + 1));
    assert_null(sherd_model_family(-1));
}

/* Tables that are only looked up do not count; of a spec of one's own nothing is known but its parameters. */
static void counts_flops(void **state)
{
    (void)state;
    struct sherd_model *gpt2, *llama, *own;
    ASSERT_OK(sherd_model_build(&gpt2, &tiny_gpt2));
    ASSERT_OK(sherd_model_build(&llama, &tiny_llama));
    ASSERT_OK(sherd_model_create(&own, sherd_model_spec_of(llama)));
    double attention = 6.0 * 2 * 24 * 8;
    assert_true(model_flops(gpt2, 8) == 6.0 * (double)(gpt2->params - 16 * 24) + attention);
    assert_true(model_flops(llama, 8) == 6.0 * (double)(llama->params - 101 * 24) + attention);
    assert_true(model_flops(own, 8) == 6.0 * (double)llama->params);
    sherd_model_destroy(gpt2);
    sherd_model_destroy(llama);
    sherd_model_destroy(own);
}

static void export_config(void **state)
{
    (void)state;
    struct sherd_model_config config = tiny_llama;
    struct sherd_model *model = NULL;
    json_t *json = NULL;
    int64_t n = 0;
    double eps = 0;
    const char *type = NULL;
    config.norm_eps = 1e-6f;
    config.rope_theta = 500000;
    ASSERT_OK(sherd_model_build(&model, &config));
    const char *text = sherd_model_spec_of(model)->export_json;
    ASSERT_OK(json_parse(&json, text, strlen(text), "config.json"));
    ASSERT_OK(json_get_text(json, "model_type", "config.json", &type));
    assert_string_equal(type, "llama");
    ASSERT_OK(json_get_int(json, "intermediate_size", 1, 1000, "config.json", &n));
    assert_int_equal(n, 64); /* 8/3 * 24, rounded up to a multiple of 32 */
    ASSERT_OK(json_get_int(json, "num_key_value_heads", 1, 1000, "config.json", &n));
    assert_int_equal(n, 2);
    ASSERT_OK(json_get_double(json, "rms_norm_eps", "config.json", &eps));
    assert_true(eps == 1e-6);
    ASSERT_OK(json_get_double(json, "rope_theta", "config.json", &eps));
    assert_true(eps == 500000);
    assert_true(json_is_false(json_object_get(json, "tie_word_embeddings")));
    json_decref(json);
    sherd_model_destroy(model);

    ASSERT_OK(sherd_model_build(&model, &tiny_gpt2));
    text = sherd_model_spec_of(model)->export_json;
    ASSERT_OK(json_parse(&json, text, strlen(text), "config.json"));
    ASSERT_OK(json_get_int(json, "n_inner", 1, 1000, "config.json", &n));
    assert_int_equal(n, 96);
    ASSERT_OK(json_get_int(json, "n_positions", 1, 1000, "config.json", &n));
    assert_int_equal(n, 16);
    ASSERT_OK(json_get_double(json, "layer_norm_epsilon", "config.json", &eps));
    assert_true(eps == 1e-5);
    assert_true(json_is_true(json_object_get(json, "tie_word_embeddings")));
    json_decref(json);
    sherd_model_destroy(model);
}

static void refuse(struct sherd_model_config config, const char *text)
{
    struct sherd_model *model = NULL;
    ASSERT_FAILS(sherd_model_build(&model, &config), SHERD_ECONFIG, text);
    assert_null(model);
}

#define REFUSE(base, field, value, text)                                                                     \
    do {                                                                                                     \
        struct sherd_model_config changed_ = base;                                                           \
        changed_.field = value;                                                                              \
        refuse(changed_, text);                                                                              \
    } while (0)

static void bad_configs(void **state)
{
    (void)state;
    REFUSE(tiny_gpt2, family, NULL, "model.family is not set");
    REFUSE(tiny_gpt2, family, "gpt", "did you mean 'gpt2'");
    REFUSE(tiny_gpt2, vocab, 0, "model.vocab is 0");
    REFUSE(tiny_gpt2, width, 0, "model.width is 0");
    REFUSE(tiny_gpt2, layers, -1, "model.layers is -1");
    REFUSE(tiny_gpt2, layers, 1000000, "model.layers is 1000000");
    REFUSE(tiny_gpt2, heads, 0, "model.heads is 0");
    REFUSE(tiny_gpt2, heads, 5, "not a multiple of model.heads 5");
    REFUSE(tiny_gpt2, kv_heads, 1, "model.kv_heads is 1");
    REFUSE(tiny_gpt2, head_dim, 16, "model.head_dim is 16");
    REFUSE(tiny_gpt2, context, INT64_MAX, "the largest size");
    REFUSE(tiny_gpt2, width, 257 * 3, "the largest is 256");
    REFUSE(tiny_gpt2, norm_eps, -1.0f, "model.norm_eps");
    REFUSE(tiny_gpt2, init_std, (float)(1.0 / 0.0), "model.init_std");
    REFUSE(tiny_gpt2, tied, 2, "model.tied");
    REFUSE(tiny_llama, kv_heads, 3, "not a multiple of model.kv_heads 3");
    REFUSE(tiny_llama, head_dim, 7, "need an even one");
    REFUSE(tiny_llama, heads, 8, "need an even one");
    REFUSE(tiny_llama, heads, 7, "or set model.head_dim");
    REFUSE(tiny_llama, rope_theta, -5.0f, "model.rope_theta");
    REFUSE(tiny_llama, rope_scaling, (enum sherd_rope_scaling)7, "model.rope_scaling is 7");
    REFUSE(tiny_gpt2, rope_scaling, SHERD_ROPE_LINEAR, "gpt2 learns its positions");
    struct sherd_model_config llama3 = tiny_llama;
    llama3.rope_scaling = SHERD_ROPE_LLAMA3;
    REFUSE(llama3, rope_high_freq, 0.5f, "must be above model.rope_low_freq 1");
    REFUSE(llama3, rope_factor, NAN, "model.rope_factor is nan");
}

static void long_sequences(void **state)
{
    (void)state;
    struct sherd_model *model = NULL;
    struct sherd_layer_sizes sizes;
    ASSERT_OK(sherd_model_build(&model, &tiny_gpt2));
    const struct sherd_layer *embed = &sherd_model_spec_of(model)->layers[0];
    struct sherd_layer_plan plan = { .in = { .batch = 2, .seq = 17 } };
    ASSERT_FAILS(embed->ops->sizes(embed->arg, &plan, &sizes), SHERD_ECONFIG, "context of 16");
    sherd_model_destroy(model);
}

static size_t work_space(const struct sherd_layer *layer, enum sherd_recompute recompute, const char *device)
{
    struct sherd_layer_plan plan = {
        .in = { 8, 2048, 2048 }, .type = SHERD_BF16, .recompute = recompute, .device = device
    };
    struct sherd_layer_sizes sizes;
    ASSERT_OK(layer->ops->sizes(layer->arg, &plan, &sizes));
    return sizes.scratch_bytes;
}

/* The head's pieces fill what a block leaves, on every device, and have the same rows whatever is recomputed.
 */
static void the_head_needs_no_more_than_a_block(void **state)
{
    (void)state;
    static const char *const families[] = { "llama", "qwen3" }, *const devices[] = { "cpu", "cuda" };
    const size_t row = 32000 * 2;
    for (int i = 0; i < 8; i++) {
        struct sherd_model *model = NULL;
        const char *device = devices[i >> 1 & 1];
        ASSERT_OK(sherd_model_build(&model, &(struct sherd_model_config){ .family = families[i & 1],
                                                .vocab = 32000,
                                                .width = 2048,
                                                .layers = 2,
                                                .heads = 16,
                                                .mlp_width = 5632,
                                                .context = 2048,
                                                .any_order = i >> 2 }));
        const struct sherd_layer *block = &sherd_model_spec_of(model)->layers[1], *head = block + 2;
        size_t most = work_space(block, SHERD_RECOMPUTE_NONE, device);
        size_t own = work_space(head, SHERD_RECOMPUTE_NONE, device), normed = 2 * 16384 * 2048 * 2;
        assert_true(own <= most);
        /* at least half of the room, whose pieces are nearly equal, up to 512 MiB */
        assert_true(own - normed > MIN(most - normed, (size_t)512 << 20) / 2);
        assert_true(own - normed < ((size_t)512 << 20) + 16 * row);
        for (int r = SHERD_RECOMPUTE_NONE; r <= SHERD_RECOMPUTE_BLOCK; r++) {
            assert_int_equal(work_space(head, (enum sherd_recompute)r, device), own);
            assert_true(work_space(block, (enum sherd_recompute)r, device) >= most);
        }
        sherd_model_destroy(model);
    }
}

static void no_memory(void **state)
{
    (void)state;
    for (int family = 0; family < 2; family++) {
        int failures = 0;
        for (int k = 1;; k++) {
            struct sherd_model *model = NULL;
            mem_fail_at(k);
            int st = sherd_model_build(&model, family ? &tiny_llama : &tiny_gpt2);
            mem_fail_at(0);
            if (st == SHERD_OK) {
                sherd_model_destroy(model);
                break;
            }
            assert_int_equal(st, SHERD_ENOMEM);
            failures++;
        }
        assert_true(failures > 1);
    }
}

/* ---- specs of others ---- */

static int no_sizes(const void *arg, const struct sherd_layer_plan *plan, struct sherd_layer_sizes *out)
{
    (void)arg, (void)plan;
    *out = (struct sherd_layer_sizes){ .out_width = 1 };
    return SHERD_OK;
}

static int no_run(struct sherd_run *run)
{
    (void)run;
    return SHERD_OK;
}

static const struct sherd_layer_ops no_ops = {
    .kind = "none", .sizes = no_sizes, .forward = no_run, .backward = no_run
};

/* A spec whose every piece can be spoiled. */
struct draft {
    struct sherd_part parts[2];
    struct sherd_param a[2], b[1];
    struct sherd_unit units[2];
    struct sherd_layer layers[2];
    struct sherd_model_spec spec;
};

static struct draft *good(struct draft *d)
{
    *d = (struct draft){
        .parts = { { "w.top", 3 }, { "w.bottom", 1 } },
        .a = { { .name = "w",
                   .shape = { 4, 5 },
                   .dims = 2,
                   .init = SHERD_INIT_NORMAL,
                   .std = 1,
                   .n_parts = 2 },
            { .name = "bias", .shape = { 5 }, .dims = 1, .flags = SHERD_NO_DECAY } },
        .b = { { .name = "head", .shape = { 2, 3, 4 }, .dims = 3, .alias = "other" } },
        .units = { { "first", NULL, 2 }, { "second", NULL, 1 } },
        .layers = { { "in", 0, &no_ops, NULL }, { "out", 1, &no_ops, NULL } },
    };
    d->a[0].parts = d->parts;
    d->units[0].params = d->a;
    d->units[1].params = d->b;
    d->spec = (struct sherd_model_spec){ d->units, 2, d->layers, 2, 10, "{}" };
    return d;
}

#define SPOIL(place, value, text)                                                                            \
    do {                                                                                                     \
        struct draft d_;                                                                                     \
        struct sherd_model *model_ = NULL;                                                                   \
        good(&d_)->place = value;                                                                            \
        ASSERT_FAILS(sherd_model_create(&model_, &d_.spec), SHERD_EINVAL, text);                             \
        assert_null(model_);                                                                                 \
    } while (0)

static void bad_specs(void **state)
{
    (void)state;
    SPOIL(spec.n_units, 0, "no units");
    SPOIL(spec.n_layers, 0, "no layers");
    SPOIL(spec.vocab, -1, "vocab is -1");
    SPOIL(layers[1].name, "in", "two layers have the name 'in'");
    SPOIL(layers[1].name, NULL, "layer 1 has no name");
    SPOIL(layers[1].unit, 2, "layer 'out': unit is 2");
    SPOIL(layers[1].unit, 0, "unit 'second' is used by no layer");
    SPOIL(layers[0].ops, NULL, "layer 'in': ops must have");
    SPOIL(units[1].name, "first", "two units have the name 'first'");
    SPOIL(units[1].name, "", "unit 1 has no name");
    SPOIL(units[1].n_params, 0, "unit 'second' has no parameters");
    SPOIL(a[1].name, "", "parameter 1 has no name");
    SPOIL(a[1].name, "w.top", "two tensors have the name 'w.top'");
    SPOIL(b[0].alias, "bias", "two tensors have the name 'bias'");
    SPOIL(b[0].dims, 5, "dims is 5");
    SPOIL(b[0].dims, 0, "dims is 0");
    SPOIL(b[0].shape[1], 0, "shape[1] is 0");
    SPOIL(b[0].shape[1], INT64_MAX / 4, "too many elements");
    SPOIL(b[0].init, (enum sherd_init)9, "init is 9");
    SPOIL(a[0].std, -1, "std is -1");
    SPOIL(a[0].flags, 64, "unknown flags 0x40");
    SPOIL(a[0].n_parts, 1, "the parts have 3 rows in all, the parameter 4");
    SPOIL(a[0].n_parts, 0, "must both be given");
    SPOIL(parts[1].rows, 2, "part 'w.bottom' has 2 rows");
    SPOIL(parts[1].name, "", "part 1 has no name");
    SPOIL(a[0].alias, "x", "cannot have an alias");
}

static void copy_is_deep(void **state)
{
    (void)state;
    struct draft d;
    struct sherd_model *model = NULL;
    char name[] = "w.bottom", unit[] = "second", layer[] = "out", json[] = "{\"a\": 1}";
    good(&d);
    d.parts[1].name = name;
    d.units[1].name = unit;
    d.layers[1].name = layer;
    d.spec.export_json = json;
    ASSERT_OK(sherd_model_create(&model, &d.spec));
    memset(name, 'x', 4);
    memset(unit, 'x', 4);
    memset(layer, 'x', 2);
    memset(json, 'x', 4);
    memset(&d, 0x55, sizeof(d));
    const struct sherd_model_spec *spec = sherd_model_spec_of(model);
    assert_string_equal(spec->units[0].params[0].parts[1].name, "w.bottom");
    assert_int_equal(spec->units[0].params[0].parts[1].rows, 1);
    assert_string_equal(spec->units[1].name, "second");
    assert_string_equal(spec->units[1].params[0].alias, "other");
    assert_string_equal(spec->layers[1].name, "out");
    assert_ptr_equal(spec->layers[1].ops, &no_ops);
    assert_string_equal(spec->export_json, "{\"a\": 1}");
    assert_int_equal(sherd_model_params(model), 4 * 5 + 5 + 24);
    sherd_model_destroy(model);
    sherd_model_destroy(NULL);

    for (int k = 1;; k++) {
        good(&d);
        mem_fail_at(k);
        int st = sherd_model_create(&model, &d.spec);
        mem_fail_at(0);
        if (st == SHERD_OK)
            break;
        assert_int_equal(st, SHERD_ENOMEM);
    }
    sherd_model_destroy(model);
}

/* ---- freezing ---- */

static void freezing(void **state)
{
    (void)state;
    struct sherd_model *model = NULL;
    ASSERT_OK(sherd_model_build(&model, &tiny_llama));
    ASSERT_OK(model_freeze(model, "model.layers.0.*"));
    assert_true(find_param(model, "model.layers.0.self_attn.qkv_proj.weight")->flags & SHERD_FROZEN);
    assert_int_equal(
        find_param(model, "model.layers.0.input_layernorm.weight")->flags, SHERD_FROZEN | SHERD_NO_DECAY);
    assert_int_equal(find_param(model, "model.layers.1.self_attn.qkv_proj.weight")->flags, 0);
    ASSERT_OK(model_freeze(model, "*embed_tokens*"));
    assert_true(find_param(model, "model.embed_tokens.weight")->flags & SHERD_FROZEN);
    assert_true(find_param(model, "model.layers.0.mlp.down_proj.weight")->flags & SHERD_FROZEN);
    ASSERT_FAILS(model_freeze(model, "*.q_proj.weight"), SHERD_ECONFIG, "only some parts");
    ASSERT_FAILS(model_freeze(model, "layers.7.*"), SHERD_ECONFIG, "no tensor matches 'layers.7.*'");
    sherd_model_destroy(model);
}

/* ---- initial values ---- */

static void init_slices(void **state)
{
    (void)state;
    struct sherd_model *model = NULL;
    ASSERT_OK(sherd_model_build(&model, &tiny_gpt2));
    const struct sherd_param *p = find_param(model, "transformer.h.1.mlp.c_fc.weight");
    const int n = 24 * 96;
    float *whole = mem_zalloc((size_t)n, sizeof(float)), *part = mem_zalloc((size_t)n, sizeof(float));
    model_init_slice(whole, p, 0, n, 42);
    double sum = 0, squares = 0;
    for (int i = 0; i < n; i++) {
        sum += whole[i];
        squares += (double)whole[i] * whole[i];
    }
    assert_true(sum / n < 0.002 && sum / n > -0.002);
    assert_true(squares / n > 0.0188 * 0.0188 && squares / n < 0.0212 * 0.0212);
    for (int first = 0; first < n; first += 311) {
        int len = MIN(n - first, 311);
        model_init_slice(part, p, first, len, 42);
        assert_memory_equal(part, whole + first, (size_t)len * sizeof(float));
    }
    model_init_slice(part, find_param(model, "transformer.h.0.mlp.c_fc.weight"), 0, n, 42);
    assert_memory_not_equal(part, whole, (size_t)n * sizeof(float));
    model_init_slice(part, p, 0, n, 43);
    assert_memory_not_equal(part, whole, (size_t)n * sizeof(float));
    model_init_slice(part, find_param(model, "transformer.ln_f.weight"), 3, 2, 42);
    assert_true(part[0] == 1.0f && part[1] == 1.0f);
    model_init_slice(part, find_param(model, "transformer.ln_f.bias"), 3, 2, 42);
    assert_true(part[0] == 0.0f && part[1] == 0.0f);
    assert_true(find_param(model, "transformer.h.1.mlp.c_proj.weight")->std == 0.01f); /* 0.02 / sqrt(4) */
    mem_free(whole);
    mem_free(part);
    sherd_model_destroy(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_sizes),
        cmocka_unit_test(layers_and_units),
        cmocka_unit_test(vectors_do_not_decay),
        cmocka_unit_test(families_are_listed),
        cmocka_unit_test(counts_flops),
        cmocka_unit_test(export_config),
        cmocka_unit_test(bad_configs),
        cmocka_unit_test(long_sequences),
        cmocka_unit_test(the_head_needs_no_more_than_a_block),
        cmocka_unit_test(no_memory),
        cmocka_unit_test(bad_specs),
        cmocka_unit_test(copy_is_deep),
        cmocka_unit_test(freezing),
        cmocka_unit_test(init_slices),
    };
    return cmocka_run_group_tests_name("model", tests, NULL, NULL);
}
