/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The engine's parts: the plan, the rank's storage, the queues and communicators, the counters of a run.
 * Shared by what makes it (engine.c), runs it (step.c, graph.c, finite.c), saves and loads it (state.c,
 * resume.c, saving.c) and watches it (watch.c, profile.c, replica.c); no other room looks inside.
 */
#ifndef SHERD_RUNTIME_ENGINE_H
#define SHERD_RUNTIME_ENGINE_H

#include <sherd/engine.h>

#include "ckpt/ckpt.h"
#include "runtime/exposed.h"
#include "runtime/finite.h"
#include "runtime/graph.h"
#include "runtime/plan.h"
#include "runtime/profile.h"
#include "runtime/scale.h"
#include "runtime/watch.h"
#include "shard/move.h"

/* Tokens of one micro-batch on their way to the device. */
struct engine_batch_slot {
    int32_t *host;             /* tokens, then targets */
    int32_t *tokens, *targets; /* device */
    struct sherd_event *done;  /* compute: the micro-batch is finished */
};

struct sherd_engine {
    struct sherd_config config; /* scalars only; texts are not kept */
    const struct sherd_model *model;
    struct plan plan;
    struct sherd_device *dev;
    struct sherd_comm *comm, *own_comm; /* own_comm: made here for a world of one */
    struct sherd_comm *reduce_comm;
    struct sherd_queue *compute, *gather_queue, *reduce_queue,
        *update_queue; /* all but the first may be the first */
    struct shard_store store;
    struct shard_mover mover;
    void *activation, *saved, *scratch, *batch; /* device regions */
    double *scalars;                            /* device: enum plan_scalar */
    double *host_scalars;                       /* the same on the host */
    struct sherd_event *scalars_ready;
    struct sherd_event *clipped; /* compute: the clip factor is there; the update queue waits */
    struct engine_batch_slot batches[PLAN_BATCH_SLOTS];
    const void **weights; /* of the unit in use, one for each param */
    void **gradients;
    unsigned char *fresh;       /* of these params: the gradient holds nothing yet */
    unsigned char *fresh_units; /* one for each unit: zeroed by the program and not yet written */
    int64_t steps;              /* planned steps in all, for the schedule */
    int64_t step, tokens_seen, samples_seen;
    uint64_t run;             /* names the training that this is a part of: kept over resumes */
    struct ckpt_saver *saver; /* made for the first save */
    int save_room; /* with the host memory that a save beside steps wants, or as much as was asked */
    struct sherd_event *ended; /* update: what a save copies is there */
    int copying;               /* a save has begun since the last updates: the next wait for its copies */
    int flag;                  /* this rank wishes to stop: goes round with the next step's counts */
    int blank;                 /* no weights were drawn, loaded or imported yet */
    char broken[1500];         /* what failed half-way first: only destroy is left. "" = nothing has */
    struct engine_graph graph;
    int64_t update_step;     /* of the updates that are submitted */
    struct profile *profile; /* NULL: steps are not timed; owned */
    struct exposed exposed;
    struct watch watch;
    struct finder *finder;           /* while a step is run again to find a value that is not finite */
    int64_t skipped, skipped_in_row; /* steps without an update: in all, and up to now */
    struct scale scale;              /* of the next step's loss */
};

/* Makes what updates are pending and waits for all work of all queues; updates and publications go on when a
 * step has returned. */
int engine_settle(struct sherd_engine *engine);

/* While a save copies: waits for the updates before it, so that none has failed unseen. */
int engine_settle_saved(struct sherd_engine *engine);

/* sherd_engine_save_start with all that a run may want. */
struct engine_save {
    const char *dir, *extra;      /* as in sherd_engine_save */
    const struct ckpt_keep *keep; /* rotate after it; NULL = no */
    int has_loss;
    double loss; /* on the validation data after this step */
};
int engine_save_start(struct sherd_engine *engine, const struct engine_save *save);
/* Makes room for what is on its way of a save: `buffer` bytes of host memory, without it a few MB; with
 * ENGINE_SAVE_AUTO as much as the rank's state takes, if the ranks of the host take no more than half of what
 * is free, else that half. Memory that an earlier save made do with is given up. Collective. */
#define ENGINE_SAVE_AUTO UINT64_MAX
struct engine_save_room {
    uint64_t memory; /* taken */
    uint64_t state;  /* with so much nothing waits for the disk */
    uint64_t all;    /* bytes of one checkpoint */
};
int engine_save_prepare(struct sherd_engine *engine, uint64_t buffer, struct engine_save_room *room);
/* What ENGINE_SAVE_AUTO comes to. */
uint64_t engine_save_auto(uint64_t state, uint64_t available, int ranks);

/* sherd_engine_load without its comparison of what ranks hold alike (replica_check): what fails here for a
 * file is no matter of memory or hardware. */
int engine_load(struct sherd_engine *engine, const char *path);

/* Fills everything whole from the rank's own slices: masters to parameters, then gathers. Collective. */
int engine_spread(struct sherd_engine *engine);

/* Bytes this rank has sent so far, by collective. */
void engine_sent(const struct sherd_engine *engine, uint64_t out[SHERD_COLLECTIVES]);

/* EINVAL if there is no engine, or if it has failed half-way: with the reason. */
int engine_check(const struct sherd_engine *engine);
/* The same, and EINVAL while there are no weights. */
int engine_check_weights(const struct sherd_engine *engine);

/* Draws the initial weights: a pure function of the seed and the tensors' names. Collective. */
int engine_init_weights(struct sherd_engine *engine);

/* EINVAL for a batch that is too large or has tokens outside the vocabulary. An engine alone goes on after
 * that; other ranks are on their way to a collective, so they are told: step_give_up. */
int step_check_batches(struct sherd_engine *engine, const struct sherd_batch *batches, int n);

/* A failure in the middle of work leaves collectives half-done: the other ranks are told, and this engine can
 * only be destroyed: later calls tell the first such reason. Returns the status with its text kept. */
int step_give_up(struct sherd_engine *engine, int st);

/* The forward and backward passes of a step once more, up to the summed gradients. */
int step_again(struct sherd_engine *engine, const struct sherd_batch *micro, int n_micro);
/* The optimizer's numbers for a step. */
struct optim_hyper step_hyper(const struct sherd_engine *engine, int64_t step);
/* Submits a step from its counts to its results; and its updates. */
int step_run(struct sherd_engine *engine, const struct sherd_batch *micro, int n_micro);
int step_updates(struct sherd_engine *engine, int64_t step);
/* Work of `queue` from now on waits for a save to have copied everything. */
int step_await_copies(struct sherd_engine *engine, struct sherd_queue *queue);

/* Runs one micro-batch list over `batch`; list EVAL leaves logits (device, F32) if not NULL. */
int step_micro(struct sherd_engine *engine, enum program_list list, const struct sherd_batch *batch,
    int index, float *logits);

#endif
