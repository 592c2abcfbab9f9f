/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * A model as data and functions: parameters in units, layers that each use one unit, three functions a
 * layer kind. The built-in families and a user's own model are the same kind of thing.
 * Knows nothing of ranks, shards, stages or optimizers: a model needs no change for a stage.
 */
#ifndef SHERD_MODEL_H
#define SHERD_MODEL_H

#include <sherd/device.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SHERD_MAX_DIMS 4

enum sherd_init { SHERD_INIT_ZERO, SHERD_INIT_ONE, SHERD_INIT_NORMAL };

enum sherd_param_flags {
    SHERD_NO_DECAY = 1, /* no weight decay (norms, biases) */
    SHERD_FROZEN = 2,   /* never updated: no gradient, no optimizer state */
};

/* A named row range of a parameter that stands in files as a tensor of its own (a fused q,k,v). */
struct sherd_part {
    const char *name;
    int64_t rows; /* of dimension 0; the parts of a parameter add up to shape[0] */
};

/* One parameter: one dense row-major tensor. Its name is the one it has in checkpoints and exports, unique
 * over the model ("model.layers.0.mlp.down_proj.weight"). */
struct sherd_param {
    const char *name;
    int64_t shape[SHERD_MAX_DIMS]; /* the first `dims` are used */
    int dims;                      /* 1 to SHERD_MAX_DIMS */
    enum sherd_init init;
    float std;                      /* of SHERD_INIT_NORMAL */
    unsigned flags;                 /* enum sherd_param_flags */
    const struct sherd_part *parts; /* NULL: the parameter is one tensor called `name` */
    int n_parts;
    const char
        *alias; /* second name of a tied tensor, NULL for none; readers accept it, exports may write it */
};

/* Parameters that move together. Two layers that name the same unit share its weights: that is tying. */
struct sherd_unit {
    const char *name; /* unique: "root", "block0" */
    const struct sherd_param *params;
    int n_params;
};

/* What flows between layers: [batch, seq, width] of the activation type. */
struct sherd_shape {
    int64_t batch, seq, width;
};

/* What is computed a second time in backward instead of being kept from forward: the results have the same
 * bits, memory is bought with time. */
enum sherd_recompute {
    SHERD_RECOMPUTE_NONE,
    SHERD_RECOMPUTE_CHEAP, /* what costs memory traffic only (norms, activations): a layer does so itself */
    SHERD_RECOMPUTE_BLOCK, /* a layer keeps x alone: its forward is run again, by the engine */
};

/* What one layer is asked for: the largest micro-batch it will see and how it is to run. */
struct sherd_layer_plan {
    struct sherd_shape in;
    enum sherd_dtype type; /* of activations and weights */
    enum sherd_recompute recompute;
    const char *device; /* kind: "cpu", "cuda"; some operations want more scratch on one than on another */
};

/* What one layer needs for one micro-batch. */
struct sherd_layer_sizes {
    int64_t out_width;    /* y is [batch, seq, out_width]; 0 for the last layer, which ends in the loss */
    size_t saved_bytes;   /* kept from forward to backward, in addition to x and y */
    size_t scratch_bytes; /* work space, the larger of forward and backward */
};

enum sherd_mode { SHERD_TRAIN, SHERD_EVAL };

/* What a layer sees during one call; the pointers are device memory and valid only during the call
 * (work may be queued on `queue` with them). */
struct sherd_run {
    struct sherd_queue *queue;
    const void *arg;                /* the layer's arg */
    enum sherd_mode mode;           /* in EVAL no backward follows */
    struct sherd_shape in;          /* shape of x; for the first layer width is 0 */
    enum sherd_dtype type;          /* of activations and weights */
    enum sherd_dtype grad_type;     /* of weight gradients */
    enum sherd_recompute recompute; /* as sizes() was told */
    int again;                      /* forward, second run: only `saved` is wanted, y need not be written */
    const void *const *w;           /* whole weights, in the order of the unit's params */
    void *const *dw;                /* gradients, to be ADDED to; NULL entries are frozen; backward only */
    /* Layer kinds with `overwrites` only, else NULL: where fresh[i] is set, dw[i] holds nothing yet. The
     * layer writes there instead of adding and clears the flag; entries still set afterwards are filled with
     * zero. */
    unsigned char *fresh;
    const void *x;          /* input; NULL for the first layer */
    void *y;                /* output; NULL for the last layer; forward only */
    const void *dy;         /* gradient of y; NULL for the last layer; backward only */
    void *dx;               /* gradient of x, to be OVERWRITTEN; NULL if nothing before needs it */
    void *saved, *scratch;  /* backward may overwrite saved */
    const int32_t *tokens;  /* [batch, seq] */
    const int32_t *targets; /* [batch, seq]; negative = ignored */
    double *loss_sum;       /* the last layer adds the sum of the losses of valid targets (see sherd_loss) */
    const double *count; /* valid targets of the whole step, over the loss scale; the last layer divides its
                            gradient by it */
    float *logits;       /* EVAL: where the last layer leaves its outputs as F32 [batch, seq, V], or NULL */
};

/* A kind of layer. In TRAIN mode the last layer may leave all of its work to backward, which runs directly
 * after its forward: it must add to loss_sum exactly once. Functions return a status and may use SHERD_E
 * codes only; text by sherd_fail(). */
struct sherd_layer_ops {
    const char *kind; /* "mlp": for messages and timelines */
    int (*sizes)(const void *arg, const struct sherd_layer_plan *plan, struct sherd_layer_sizes *out);
    int (*forward)(struct sherd_run *run);
    int (*backward)(struct sherd_run *run);
    int overwrites; /* backward heeds run->fresh: saves zeroing and reading back the gradient of the unit */
    int weightless_backward; /* backward reads no weights: w may be NULL there, nothing is gathered for it */
};

struct sherd_layer {
    const char *name; /* unique: "embed", "block0", "head" */
    int unit;         /* index of the unit it uses */
    const struct sherd_layer_ops *ops;
    const void *arg; /* borrowed; lives as long as the model */
};

struct sherd_model_spec {
    const struct sherd_unit *units;
    int n_units;
    const struct sherd_layer *layers; /* in forward order; backward is this list reversed */
    int n_layers;
    int64_t vocab;           /* tokens and targets must be below it; 0 = not checked */
    const char *export_json; /* text of a config.json for exports, NULL for none */
};

struct sherd_model;

/* Checks and copies the spec (names, shapes and parts; ops and args are borrowed). EINVAL names the unit,
 * parameter or layer that is wrong. */
SHERD_API int sherd_model_create(struct sherd_model **out, const struct sherd_model_spec *spec);
SHERD_API void sherd_model_destroy(struct sherd_model *model); /* NULL is fine */
SHERD_API const struct sherd_model_spec *sherd_model_spec_of(const struct sherd_model *model);
SHERD_API int64_t sherd_model_params(const struct sherd_model *model); /* elements, tied ones once */

/* How rotary positions are stretched beyond the context of a first training. */
enum sherd_rope_scaling { SHERD_ROPE_PLAIN, SHERD_ROPE_LINEAR, SHERD_ROPE_LLAMA3 };

/* A built-in transformer, by family: "gpt2", "llama" (2 and 3), "qwen2" or "qwen3". 0 is a default only where
 * it says so; what says llama holds for the families with rotary positions. */
struct sherd_model_config {
    const char *family;
    int64_t vocab, width, layers, heads;
    int64_t kv_heads;  /* llama; 0 = heads */
    int64_t head_dim;  /* llama; 0 = width / heads */
    int64_t mlp_width; /* 0 = 4 width (gpt2), 8/3 width rounded up to a multiple of 32 (llama) */
    int64_t context;   /* longest sequence, rows of wpe; 0 = 1024 (gpt2), 2048 (llama), 32768 (qwen) */
    int tied;          /* head shares the embedding: 1 yes, 0 no */
    float norm_eps;    /* 0 = 1e-5 */
    float rope_theta;  /* llama; 0 = 10000 */
    float init_std;    /* 0 = 0.02 */
    enum sherd_rope_scaling rope_scaling; /* llama */
    float rope_factor;                    /* linear, llama3: how far; 0 = 1 */
    float rope_low_freq, rope_high_freq;  /* llama3: turns within rope_context; 0 = 1 and 4 */
    int64_t rope_context;                 /* llama3: context of the first training; 0 = 8192 */
    int any_order; /* backward may take sums in any order: faster on GPUs, other bits at each run */
};

/* Builds the spec of a family and creates the model. ECONFIG names the field. */
SHERD_API int sherd_model_build(struct sherd_model **out, const struct sherd_model_config *config);
/* The config of a model of Hugging Face from the text of its config.json; `name` stands for the file in
 * messages. EUNSUPPORTED names what sherd does not compute, EFORMAT what is missing or no number. */
SHERD_API int sherd_model_config_json(
    struct sherd_model_config *out, const char *text, size_t bytes, const char *name);
/* Names of the families, in order; NULL past the end. */
SHERD_API const char *sherd_model_family(int i);

/* Finite differences on every layer of the model at small size: fails with the first parameter or input
 * whose gradient is wrong. For authors of layers. batch and seq are the size of the trial. */
SHERD_API int sherd_model_check(
    const struct sherd_model *model, struct sherd_device *dev, int64_t batch, int64_t seq, uint64_t seed);

#ifdef __cplusplus
}
#endif
#endif
