/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The engine: a model, sharded over the ranks of a communicator, stepped, saved and loaded. One engine is
 * one rank; several may live in one process. And the training loop of the `sherd` program as one call.
 */
#ifndef SHERD_ENGINE_H
#define SHERD_ENGINE_H

#include <sherd/comm.h>
#include <sherd/config.h>
#include <sherd/model.h>

#ifdef __cplusplus
extern "C" {
#endif

struct sherd_engine;

struct sherd_engine_desc {
    const struct sherd_config *config; /* run.seed, shard, dtype, batch.micro, batch.accum, batch.seq, optim,
                                          schedule and train.steps are read; copied */
    const struct sherd_model *model;   /* borrowed */
    struct sherd_device *device;       /* borrowed */
    struct sherd_comm *comm;           /* borrowed; NULL = a world of one */
};

/* Collective. Lays out, allocates everything a step needs and draws the initial weights. ECONFIG names the
 * key of a setting that cannot be, also of one that the program has filled in. ENOMEM shows the table of
 * regions. The caller owns *out; what is borrowed must outlive it. */
SHERD_API int sherd_engine_create(struct sherd_engine **out, const struct sherd_engine_desc *desc);
/* Collective. The same without drawing: the weights are there after sherd_engine_load or sherd_engine_import,
 * which begin sooner so; until then nothing else can be done with the engine (EINVAL). */
SHERD_API int sherd_engine_create_blank(struct sherd_engine **out, const struct sherd_engine_desc *desc);
SHERD_API void sherd_engine_destroy(struct sherd_engine *engine); /* NULL is fine */

/* One micro-batch of this rank, in host memory: tokens[batch * seq] and targets[batch * seq], a negative
 * target is ignored. batch may be below batch.micro (down to 0), seq must be batch.seq. */
struct sherd_batch {
    const int32_t *tokens, *targets;
    int64_t batch;
};

struct sherd_step_stats {
    int64_t step;          /* the step just taken, from 1 */
    double loss;           /* mean over the valid targets of all ranks and micro-batches */
    double grad_norm;      /* global norm before clipping */
    double lr;             /* used in this step */
    int64_t tokens;        /* valid targets of this step over all ranks */
    int64_t tokens_seen;   /* since step 1, over all ranks and resumes */
    double seconds;        /* this step, on this rank */
    int skipped;           /* loss or gradient was not finite, and the weights were left alone */
    int64_t skipped_steps; /* since step 1, over all resumes */
    double loss_scale;     /* of this step; 1 unless weights are f16 */
    double exposed; /* of seconds: this rank waited for communication; -1 = not measured, see log.every */
};

/* Collective. One optimizer step over n_micro micro-batches (every rank the same number, at least 1; just 1
 * if batch.accum is 1, which lets gradients rest where the forward pass left its values).
 * Data is read before the call returns. ENONFINITE: loss or gradient norm is not finite on some rank; every
 * rank gets it, the weights are as before the step, and the text names tensor, layer, rank and micro-batch it
 * began with. With train.nonfinite: skip such a step counts as taken, see stats, until too many come in a
 * row; with a dynamic loss scale (f16), until the scale can fall no more. EINVAL: a batch has too many
 * sequences or a token outside the vocabulary; an engine alone goes on as if it had not been called, and so
 * from eval and logits. Of several ranks all are told; then, as after any failure of a step that had begun,
 * only destroy is left, and later calls get EINVAL with the first reason. */
SHERD_API int sherd_engine_step(struct sherd_engine *engine, const struct sherd_batch *micro, int n_micro,
    struct sherd_step_stats *stats);

/* Collective. Mean loss over the valid targets of all ranks' batches; ranks may bring different numbers of
 * batches. Weights are not touched. */
SHERD_API int sherd_engine_eval(
    struct sherd_engine *engine, const struct sherd_batch *batches, int n, double *loss, int64_t *tokens);

/* Collective. Logits F32 [batch, seq, vocab] of this rank's batch, in host memory. */
SHERD_API int sherd_engine_logits(
    struct sherd_engine *engine, const struct sherd_batch *batch, float *logits);

/* Collective. Writes checkpoint `dir`/step-N, whole or not at all, and then the pointer `dir`/latest.
 * `extra` is a JSON object kept in the manifest (NULL for none). */
SHERD_API int sherd_engine_save(struct sherd_engine *engine, const char *dir, const char *extra);
/* Collective, all three. The same beside training: start returns before anything is copied off the
 * device, and steps may follow at once: their updates wait for it; poll, after every step, lets the save go
 * on without waiting for a disk, *busy is 0 when it is over, and the status then says how; wait sees it to
 * its end, as does the next save. The first start takes host memory for the state of this rank (half of what
 * is free at most), which the engine keeps. */
SHERD_API int sherd_engine_save_start(struct sherd_engine *engine, const char *dir, const char *extra);
SHERD_API int sherd_engine_save_poll(struct sherd_engine *engine, int *busy);
SHERD_API int sherd_engine_save_wait(struct sherd_engine *engine);
/* Collective. Loads a checkpoint written at any stage and any world. `path` is a step folder. */
SHERD_API int sherd_engine_load(struct sherd_engine *engine, const char *path);

/* Collective. Takes the weights from the folder of a Hugging Face model, in F32, BF16 or F16; each rank reads
 * only its own part. *bytes, if not NULL, becomes what this rank has read. Steps and optimizer state stay as
 * they are. */
SHERD_API int sherd_engine_import(struct sherd_engine *engine, const char *dir, uint64_t *bytes);

/* Collective. Copies one tensor, whole, as F32 to host memory: what = "weight", "grad" (of the last step,
 * before clipping, until the next evaluation) or the name of an optimizer state ("adam.m"). n elements must
 * match. */
SHERD_API int sherd_engine_tensor(
    struct sherd_engine *engine, const char *what, const char *name, float *out, int64_t n);

SHERD_API int64_t sherd_engine_steps(const struct sherd_engine *engine); /* steps taken */

/* Device memory of one rank by region, in bytes. The formulas are in shard/memory.h. */
#define SHERD_REGIONS(XX)                                                                                    \
    XX(param, "parameters at rest")                                                                          \
    XX(master, "float masters")                                                                              \
    XX(state, "optimizer state")                                                                             \
    XX(grad, "gradients at rest")                                                                            \
    XX(slot, "gathered units")                                                                               \
    XX(partial, "gradients before reduction")                                                                \
    XX(landing, "gradients from other ranks")                                                                \
    XX(activation, "activations between layers")                                                             \
    XX(saved, "saved for backward")                                                                          \
    XX(scratch, "work space")                                                                                \
    XX(batch, "tokens, targets and scalars")

struct sherd_memory {
#define XX(name, text) uint64_t name;
    SHERD_REGIONS(XX)
#undef XX
};

/* Of all regions together. */
SHERD_API uint64_t sherd_memory_total(const struct sherd_memory *memory);
/* What was allocated. */
SHERD_API void sherd_engine_memory(const struct sherd_engine *engine, struct sherd_memory *out);

/* What a run will need, with no device and no other rank: memory, bytes sent per step, the step program. The
 * world is spread over so many hosts, alike. */
struct sherd_plan {
    struct sherd_memory memory;       /* largest over the ranks */
    uint64_t sent[SHERD_COLLECTIVES]; /* bytes one rank sends per optimizer step */
    uint64_t checkpoint;              /* bytes one rank writes of a checkpoint, headers left out */
    int64_t params, trained;          /* elements */
    int64_t layers, units;
    double flops;  /* per token, forward and backward: see docs/program.md */
    char *program; /* text; free with sherd_plan_free */
};
SHERD_API int sherd_plan_make(struct sherd_plan *out, const struct sherd_config *config,
    const struct sherd_model *model, int world, int hosts);
SHERD_API void sherd_plan_free(struct sherd_plan *plan);

/* The model that the config describes (model.*), with model.freeze applied. */
SHERD_API int sherd_config_model(struct sherd_model **out, const struct sherd_config *config);

/* The training loop: data, steps, progress, evaluation, saving, resuming. Collective. `stop`, if not NULL,
 * is asked before every step, and in a long evaluation after every 20 micro-batches of a rank: non-zero ends
 * the run after a save with ESTOPPED. A rank that gets another status than OK, EPEER and ESTOPPED should call
 * sherd_comm_abort, or end: the others may be in a collective, where they wait for it for run.timeout. */
struct sherd_train_desc {
    const struct sherd_config *config;
    struct sherd_device *device;
    struct sherd_comm *comm;
    int (*stop)(void *ctx);
    void *ctx;
    /* Called on rank 0 after every step with one line about it, for a display that moves; NULL for none. */
    void (*progress)(void *ctx, const char *line);
};
SHERD_API int sherd_train(const struct sherd_train_desc *desc);

/* The evaluation of training apart from it: the loss of weights that are there, on data.val or on what
 * data.split holds out, over the first train.eval_batches micro-batches of each rank (0 = all). With as many
 * ranks and the same settings the bits are those of training. A rank takes memory for the weights, for
 * what two layers make of a micro-batch and for work space: nothing is kept for a backward, and there are no
 * gradients, masters or states of an optimizer. Writes nothing. */
struct sherd_evaluate_desc {
    const struct sherd_config *config; /* where batch.micro is given, any number of ranks will do */
    struct sherd_device *device;
    struct sherd_comm *comm; /* NULL = a world of one */
    const char *from;        /* run folder (its newest complete checkpoint), step folder, or the folder of a
                                Hugging Face model; NULL = run.dir. Rank 0's counts */
    /* Called on rank 0 after every 20 micro-batches of a rank, for a display that moves; NULL for none. */
    void (*progress)(void *ctx, const char *line);
    void *ctx;
};
struct sherd_evaluate_result {
    char from[4096];        /* the step folder or model folder that was taken */
    int64_t step;           /* of the checkpoint; -1 = a model folder, which has none */
    double loss;            /* mean over the valid targets of all ranks */
    int64_t tokens;         /* such targets */
    int64_t samples, there; /* of batch.seq tokens: evaluated on, and how many the data has */
    double seconds;         /* of the evaluation, without loading */
};
/* Collective; all ranks get the same, but for the seconds. ENONFINITE: the loss is no finite number. After a
 * failure of one rank: as sherd_train. */
SHERD_API int sherd_evaluate(const struct sherd_evaluate_desc *desc, struct sherd_evaluate_result *out);

#ifdef __cplusplus
}
#endif
#endif
