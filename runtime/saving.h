/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The saving side of a run: the lock on its folder, what checkpoints will take, when one is begun, seen on
 * and ended, and what happens when one fails. Collective unless said otherwise.
 */
#ifndef SHERD_RUNTIME_SAVING_H
#define SHERD_RUNTIME_SAVING_H

#include "runtime/engine.h"
#include "runtime/meter.h"

struct saving {
    struct sherd_engine *engine;
    const struct sherd_config *config;
    struct meter *meter;
    const char *extra; /* JSON kept in every checkpoint */
    struct ckpt_keep keep;
    int64_t loss_step; /* the last evaluation: after which step, and its loss */
    double loss;
    int64_t step; /* of the save under way */
    double still; /* seconds that training has stood in saving_save for it */
    int beside;   /* it is written beside training */
    int64_t told; /* step of the last save whose times were told */
    int lock;     /* rank 0: on run.dir; -1 */
};

/* Not collective; rank 0 alone. Nobody else writes into run.dir until saving_unlock: EEXISTS names who does.
 */
int saving_lock(struct saving *saving, const char *dir);
void saving_unlock(struct saving *saving);

/* Not collective; rank 0 alone. ECONFIG where the folder is that of a model, or holds a config.yaml or a
 * `latest` that no run of sherd's wrote, and this one would write over. */
int saving_own(const char *dir);

/* Before a resume: all ranks have the same run.dir, if anything will be saved there. */
int saving_place(struct sherd_engine *engine, const struct sherd_config *config);
/* After a resume: clears away what a run that died left, and tells what checkpoints will take. */
int saving_init(struct saving *saving, struct sherd_engine *engine, const struct sherd_config *config,
    struct meter *meter, const char *extra);
/* Not collective: the loss on the validation data after the engine's step. */
void saving_loss(struct saving *saving, double loss);
/* Saves the engine's step: begins it (save.async), or does it all. `last`: nothing comes after, so it is seen
 * to its end, and fails as a failure whatever save.on_failure says. */
int saving_save(struct saving *saving, int last);
/* Between steps: sees on what is under way. */
int saving_poll(struct saving *saving);
/* To its end. */
int saving_end(struct saving *saving);

#endif
