/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What a run that goes on does otherwise than the checkpoint's settings said: the learning rate, which is a
 * function of the settings of now and so changes with train.steps.
 */
#ifndef SHERD_RUNTIME_RESUMED_H
#define SHERD_RUNTIME_RESUMED_H

#include <sherd/config.h>

#include "base/text.h"

/* Adds a line to `out` if any step after `done`, of which `skipped` made no update, has another rate than it
 * had with the settings of `before`; nothing otherwise. Both know their train.steps. */
void resumed_rate(struct text *out, const struct sherd_config *before, const struct sherd_config *now,
    int64_t done, int64_t skipped);
/* Logs that line for the checkpoint at `path`, which was loaded; for one rank. */
int resumed_tell(const char *path, const struct sherd_config *now, int64_t done, int64_t skipped);

#endif
