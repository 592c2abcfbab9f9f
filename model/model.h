/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What a model is inside, and the making of specs: the families fill a spec through a maker, the rest of
 * sherd sees include/sherd/model.h. Knows nothing of ranks, shards, stages or optimizers.
 */
#ifndef SHERD_MODEL_MODEL_H
#define SHERD_MODEL_MODEL_H

#include <sherd/model.h>
#include "base/mem.h"
#include "base/text.h"

struct sherd_model {
    struct sherd_model_spec
        spec; /* everything it points to lies in the arena, except ops and a user's args */
    int64_t params;
    struct arena arena;
    const struct model_family *family; /* NULL: a user's own */
    struct sherd_model_config config;  /* of a family, with all fields set */
};

/* Checks a spec that comes from anywhere: EINVAL names the unit, parameter or layer. */
int model_check_spec(const struct sherd_model_spec *spec);

/* Calls of a layer's functions, which may be a user's: a failure has the layer's name before its text, or a
 * text that no reason was given; EINVAL for a number that is no status. */
int model_layer_sizes(
    const struct sherd_layer *layer, const struct sherd_layer_plan *plan, struct sherd_layer_sizes *out);
int model_layer_forward(const struct sherd_layer *layer, struct sherd_run *run);
int model_layer_backward(const struct sherd_layer *layer, struct sherd_run *run);

/* Elements of one parameter, and of all. */
int64_t model_param_elems(const struct sherd_param *param);
int64_t model_count(const struct sherd_model_spec *spec);

/* Sets SHERD_FROZEN on every parameter whose name, alias or parts match the pattern (* only). ECONFIG if it
 * matches nothing, or only some parts of a fused parameter. */
int model_freeze(struct sherd_model *model, const char *pattern);

/* What exports of a built-in family will have as config.json: the text of the one that it was imported from.
 */
int model_set_export(struct sherd_model *model, const char *text);
/* The dropout that the text of a config.json asks for, as "resid_pdrop 0.1, attn_pdrop 0.1", and "" for none:
 * it is not computed here. mem_free it. */
int model_dropout(char **out, const char *text);

struct transformer; /* model/layers.h */
struct maker;

/* A family: what sets it apart. Configs have all fields set and checked. */
struct model_family {
    const char *name;
    const char *architecture; /* what config.json calls it */
    const char *export_more;  /* lines of config.json that only this family has; NULL for none */
    int64_t context;          /* default */
    int tied;                 /* what model.tied: auto means */
    int free_heads;           /* kv_heads and head_dim may be chosen */
    int qkv_bias;             /* q, k and v have biases (in llama.c; gpt2.c has them everywhere) */
    int qk_norm;              /* the heads of q and k are normed */
    int learns_places; /* positions are rows of a table; otherwise rotations of q and k, which need pairs */
    int64_t (*mlp_width)(int64_t width); /* default */
    /* The rest of a transformer that has the config's sizes: norm, block, rotation, places of parameters. */
    void (*describe)(struct transformer *transformer, const struct model_family *family,
        const struct sherd_model_config *config);
    /* The units: that of the embedding, one for each block, and unless the head is tied that of the head. */
    void (*units)(
        struct maker *m, const struct model_family *family, const struct sherd_model_config *config);
    /* What exports will have as config.json, in the arena. */
    char *(*config_json)(
        struct arena *arena, const struct model_family *family, const struct sherd_model_config *config);
};
extern const struct model_family model_gpt2, model_llama, model_qwen2, model_qwen3;
/* ECONFIG names those that there are. */
int model_find_family(const struct model_family **out, const char *name);

/* Floating-point operations per token of a sequence of seq, forward and backward: see docs/program.md. */
double model_flops(const struct sherd_model *model, int64_t seq);

/* A spec under construction. Failures are remembered and reported by maker_take. */
struct maker {
    struct arena *arena;
    struct sherd_unit *units;
    struct sherd_param *params; /* of the last unit */
    struct sherd_layer *layers;
    int n_units, max_units, n_layers, max_layers, max_params;
    int failed;
};
void maker_init(struct maker *m, struct arena *arena, int max_units, int max_layers);
/* Begins a unit of at most max_params parameters. Names are printf formats here and below. */
void maker_unit(struct maker *m, int max_params, const char *name, ...) __attribute__((format(printf, 3, 4)));
/* Adds a vector of ones or zeros (no decay) or a normal matrix to the last unit. */
void maker_vector(struct maker *m, enum sherd_init init, int64_t elems, const char *name, ...)
    __attribute__((format(printf, 4, 5)));
void maker_matrix(struct maker *m, float std, int64_t rows, int64_t cols, const char *name, ...)
    __attribute__((format(printf, 5, 6)));
/* Names a row range of the last parameter; ranges follow one another, at most three. */
void maker_part(struct maker *m, int64_t rows, const char *name, ...) __attribute__((format(printf, 3, 4)));
void maker_alias(struct maker *m, const char *alias);
/* Adds a layer that uses unit number `unit`. */
void maker_layer(struct maker *m, int unit, const struct sherd_layer_ops *ops, const void *arg,
    const char *name, ...) __attribute__((format(printf, 5, 6)));
/* ENOMEM if anything failed on the way. */
int maker_take(struct maker *m, struct sherd_model_spec *spec);

/* Shortest decimal text that reads back as the same float, for config.json. */
const char *model_float_text(float value, char buf[32]);

#endif
