/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Where a run goes on from: the newest checkpoint in its folder that is whole, byte for byte; and what it
 * does otherwise than that checkpoint's settings said.
 */
#ifndef SHERD_RUNTIME_RESUME_H
#define SHERD_RUNTIME_RESUME_H

#include <sherd/config.h>

#include "base/text.h"
#include "data/data.h"

struct sherd_engine;

/* Loads the newest whole checkpoint of run.dir; *found is 0 if there is none and none is required. A folder
 * that holds one already is not started over. Damaged ones are passed over for older ones, with a warning,
 * and renamed, so that no rotation keeps them in place of whole ones. Settings and data that are not those it
 * was saved with are told; data: what is trained on now, NULL = not known. Collective; rank 0 speaks. */
int resume_run(struct sherd_engine *engine, const struct sherd_config *config, const struct tokens_mark *data,
    int *found);

/* Adds a line to `out` with the settings that the loss of a checkpoint's weights depends on, on data.val or
 * on what data.split holds out, and that are not those it was saved with; nothing where all are, or where it
 * keeps none. */
int resume_other_loss(struct text *out, const char *path, const struct sherd_config *now);

/* Adds a line to `out` if any step after `done`, of which `skipped` made no update, has another rate than it
 * had with the settings of `before`; nothing otherwise. Both know their train.steps. */
void resume_rate(struct text *out, const struct sherd_config *before, const struct sherd_config *now,
    int64_t done, int64_t skipped);

#endif
