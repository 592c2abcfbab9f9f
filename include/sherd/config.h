/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The settings of a run as plain data, and reading them from a YAML file.
 * Every field has a key of the same path in the file ("shard.stage"); the keys, their ranges, defaults and
 * meaning are listed in configs/reference.yaml. Knows nothing of devices or running models.
 */
#ifndef SHERD_CONFIG_H
#define SHERD_CONFIG_H

#include <sherd/model.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A list of texts; owned by the config. */
struct sherd_texts {
    char **items;
    int n;
};

enum sherd_format { SHERD_DATA_AUTO, SHERD_DATA_BYTES, SHERD_DATA_LLMC, SHERD_DATA_U16, SHERD_DATA_MEGATRON };
enum sherd_schedule { SHERD_LR_CONSTANT, SHERD_LR_LINEAR, SHERD_LR_COSINE, SHERD_LR_WSD };
enum sherd_warmup { SHERD_WARMUP_LINEAR, SHERD_WARMUP_LOG };
enum sherd_count { SHERD_COUNT_STEPS, SHERD_COUNT_DEEPSPEED };
enum sherd_nonfinite { SHERD_NONFINITE_STOP, SHERD_NONFINITE_SKIP };
enum sherd_on_failure { SHERD_FAILURE_STOP, SHERD_FAILURE_CONTINUE };
enum sherd_save_what { SHERD_SAVE_ALL, SHERD_SAVE_WEIGHTS, SHERD_SAVE_NOTHING };
enum sherd_resume { SHERD_RESUME_NEVER, SHERD_RESUME_AUTO, SHERD_RESUME_REQUIRED };

enum sherd_graph { SHERD_GRAPH_AUTO, SHERD_GRAPH_ON, SHERD_GRAPH_OFF };
enum sherd_bind { SHERD_BIND_AUTO, SHERD_BIND_NONE };
enum sherd_profile { SHERD_PROFILE_PROGRAM, SHERD_PROFILE_OPS };

/* How GPUs of one host sum gradients: KERNEL = by NCCL's kernels; COPY = copied to each other by their copy
 * engines and summed, where what is summed is large, for memory (the region `landing`). */
enum sherd_reduce_by { SHERD_REDUCE_BY_KERNEL, SHERD_REDUCE_BY_COPY };

/* Where the float weights are when parameters are BF16: WHOLE beside them, or SPLIT: the other 16 bits. */
enum sherd_master { SHERD_MASTER_WHOLE, SHERD_MASTER_SPLIT };

#define SHERD_STAGES 4 /* rows of shard/stage.c: 0 to 3 */

struct sherd_config {
    struct {
        const char *dir;      /* everything the run writes */
        const char *device;   /* "cpu", "cuda" */
        int tune;             /* GPU: see sherd_device_desc; not when deterministic */
        int64_t threads;      /* CPU threads of a rank; 0 = share the cores among the ranks of the host */
        enum sherd_bind bind; /* cores of a rank on a GPU: of the program, the library binds nothing */
        int64_t seed;
        int deterministic; /* the same bits at every run, on GPUs too */
        enum sherd_resume resume;
        enum sherd_graph graph; /* a step as one piece of work that the device keeps */
        const char *comm;       /* "auto", "shm", "tcp", "mpi" */
        double timeout;         /* seconds */
    } run;
    struct {
        const char *from; /* folder of a Hugging Face model to start from; "none" */
        const char *family;
        int64_t vocab, width, layers, heads, kv_heads, head_dim, mlp_width, context;
        int tied;
        double norm_eps, rope_theta, init_std;
        enum sherd_rope_scaling rope_scaling;
        double rope_factor, rope_low_freq, rope_high_freq;
        int64_t rope_context;
        struct sherd_texts freeze; /* patterns of tensor names, * matches any text */
    } model;
    struct {
        int64_t stage;    /* below SHERD_STAGES */
        int64_t prefetch; /* units gathered ahead in stage 3 */
        int overlap;      /* communication beside computation */
        int poison;       /* debugging: buffers that are let go are filled with NaN */
        enum sherd_reduce_by reduce;
    } shard;
    struct {
        enum sherd_dtype param;  /* weights and activations: F32, BF16 or F16; masters are always F32 */
        enum sherd_dtype reduce; /* gradients on the wire: F32, or as param */
        enum sherd_master master;
        enum sherd_dtype state; /* the optimizer's: F32, or BF16 rounded at random */
        double loss_scale;      /* F16: factor of all gradients; 0 = dynamic, by the five below */
        int64_t initial_scale_power, loss_scale_window, hysteresis;
        int consecutive_hysteresis;
        double min_loss_scale;
    } dtype;
    struct {
        int64_t global, micro, accum; /* sequences; 0 = derived, as soon as the world is known */
        int64_t seq;                  /* tokens of a sequence */
    } batch;
    struct {
        const char *name; /* "adamw", "sgd" */
        double lr, beta1, beta2, eps, weight_decay, momentum;
        double clip; /* largest global gradient norm; 0 = off */
    } optim;
    struct {
        enum sherd_schedule kind;
        double warmup;                  /* steps; below 1 a fraction of the schedule's steps */
        enum sherd_warmup warmup_shape; /* of the rise */
        double warmup_from;             /* where it begins, as a fraction of optim.lr */
        double decay;                   /* wsd: the final decay, as warmup */
        double min_lr;                  /* as a fraction of optim.lr */
        int64_t steps;                  /* over which it goes; 0 = those of the run */
        enum sherd_count count;         /* which place on the curve step 1 has */
    } schedule;
    struct {
        int64_t steps;                    /* optimizer steps in all; 0 = by epochs */
        int64_t epochs;                   /* used when steps is 0 */
        int64_t eval_every, eval_batches; /* 0 = no evaluation; all of the data */
        enum sherd_nonfinite
            nonfinite; /* a step whose loss or gradient is not finite ends the run, or is passed over */
        int64_t nonfinite_limit;        /* skip: so many in a row at most */
        enum sherd_recompute recompute; /* in backward, instead of being kept from forward */
    } train;
    struct {
        struct sherd_texts train, val; /* files or folders */
        struct sherd_texts weights;    /* numbers, one for each of `train`: passes over it in an epoch */
        double split;                  /* fraction of `train` that is kept for evaluation */
        int64_t split_seed;            /* which samples that are; 0 = those at the end */
        enum sherd_format format;
        int64_t end; /* token that ends documents; -1 = of no concern */
        int shuffle;
    } data;
    struct {
        enum sherd_save_what what;
        int64_t every;      /* steps; 0 = only at the end */
        int64_t keep;       /* newest checkpoints kept; 0 = all */
        int64_t keep_every; /* those at multiples of this step stay, too; 0 = none */
        int64_t keep_best;  /* that many with the lowest validation loss stay, too */
        int async;          /* written beside training */
        int64_t buffer;     /* async: MiB of host memory of a rank; 0 = by its state and what is free */
        enum sherd_on_failure on_failure;
    } save;
    struct {
        int64_t every;      /* steps between progress lines */
        int jsonl;          /* also write metrics.jsonl into run.dir */
        int tensorboard;    /* also write event files into run.dir/tensorboard */
        double peak_tflops; /* of one device, for MFU; 0 = as known of the device */
    } log;
    struct {
        int on;           /* time some steps */
        const char *file; /* Chrome trace JSON; "auto" = profile.json in run.dir */
        int64_t skip;     /* steps of this run before the first that is timed */
        int64_t steps;    /* how many are timed */
        enum sherd_profile detail;
    } profile;
    struct {
        int collectives;  /* compare every collective over the ranks before it runs */
        int64_t replicas; /* steps between comparisons of what ranks hold alike; 0 = none */
    } check;
    void *origin; /* private: the texts, and where each value came from */
};

/* All defaults. Must be freed with sherd_config_free, as every config. Fields may be changed afterwards; the
 * texts that were in them stay owned by the config, new ones are the caller's. */
SHERD_API int sherd_config_default(struct sherd_config *out);
/* Reads a file of sherd's settings, DeepSpeed's or Accelerate's, then applies the overrides
 * ("key.path=value", n of them) as if they stood in it; of two for the same key the later one holds. With
 * model.from, the config.json there is read too. `world` is the number of ranks, for the batch arithmetic; 0
 * = unknown, arithmetic not checked. ECONFIG with "file:line: key: ..." for an unknown, repeated, ill-typed
 * or contradicting key, with the nearest valid one. On failure *out is zero. */
SHERD_API int sherd_config_load(
    struct sherd_config *out, const char *path, const char *const *overrides, int n, int world);
/* The same from memory; `name` stands for the file in messages. model.from is not looked into. */
SHERD_API int sherd_config_parse(struct sherd_config *out, const char *text, size_t bytes, const char *name,
    const char *const *overrides, int n, int world);
/* One setting from elsewhere, told by its source: { "data.train=[a, b]", "--data" }. */
struct sherd_option {
    const char *setting, *source;
};
struct sherd_config_desc {
    const char *path;         /* the file: sherd's own, or DeepSpeed's or Accelerate's; NULL for none */
    const char *model;        /* another file, whose section model is read, or the folder of a Hugging
                                 Face model, as model.from; NULL for none */
    const char *model_source; /* of model, as "--model"; NULL: messages begin with its path */
    const struct sherd_option *options; /* applied after the files, */
    const char *const *overrides;       /* and these after them */
    int n_options, n_overrides, world;
};
/* As sherd_config_load, with more than one source. */
SHERD_API int sherd_config_read(struct sherd_config *out, const struct sherd_config_desc *desc);
/* What to know of settings that came from another system's file, as text: values chosen for "auto", keys
 * without influence, differences. Empty if there are none. Caller frees *out. */
SHERD_API int sherd_config_remarks(const struct sherd_config *config, char **out);
SHERD_API void sherd_config_free(struct sherd_config *config); /* NULL and zero are fine */
/* The effective settings as YAML with one comment a line: where the value came from. Caller frees *out. */
SHERD_API int sherd_config_print(const struct sherd_config *config, char **out);
/* The same as JSON: {"settings": {"shard.stage": {"value": 3, "source": "x.yaml:4"}, ...}, "remarks": "..."}.
 * Caller frees *out. */
SHERD_API int sherd_config_json(const struct sherd_config *config, char **out);
/* The text of configs/reference.yaml: every key, its default and help. Caller frees *out. */
SHERD_API int sherd_config_reference(char **out);

#ifdef __cplusplus
}
#endif
#endif
