/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Scalars in a file that TensorBoard reads: TFRecord frames around Event messages, encoded by hand. Every
 * record is written whole at once, so that a run that is killed leaves a readable file.
 */
#ifndef SHERD_RUNTIME_TFEVENTS_H
#define SHERD_RUNTIME_TFEVENTS_H

#include "base/text.h"

struct tfevents {
    int fd; /* -1: nothing is written */
    char *path;
};

struct tfevents_scalar {
    const char *tag; /* "train/loss" */
    double value;
};

/* A new file in dir/tensorboard, which is made. */
int tfevents_open(struct tfevents *out, const char *dir);
void tfevents_close(struct tfevents *t);
int tfevents_write(struct tfevents *t, int64_t step, const struct tfevents_scalar *scalars, int n);
/* The run goes on from `step`: readers forget what earlier files have of later steps. */
int tfevents_resume(struct tfevents *t, int64_t step);

/* The frames, for tests: `wall` is in seconds since 1970. */
void tfevents_put_version(struct text *out, double wall);
void tfevents_put_scalars(
    struct text *out, double wall, int64_t step, const struct tfevents_scalar *scalars, int n);
void tfevents_put_resume(struct text *out, double wall, int64_t step);

#endif
