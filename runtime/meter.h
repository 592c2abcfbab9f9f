/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What a run says of itself: the progress line, the start-up lines, metrics.jsonl. Everything printed is
 * counted, never estimated twice: tokens are those of the step statistics, time is that of the clock.
 */
#ifndef SHERD_RUNTIME_METER_H
#define SHERD_RUNTIME_METER_H

#include <sherd/engine.h>

#include "base/text.h"

struct meter {
    int64_t steps;       /* of the whole run */
    int64_t mark_tokens; /* tokens and seconds since the last line */
    int64_t mark_steps;
    double mark_seconds, started;
    int jsonl; /* file descriptor, -1 = none */
    char *jsonl_path;
};

/* `dir` gets metrics.jsonl if wanted; lines are appended. */
int meter_init(struct meter *meter, int64_t steps, const char *dir, int jsonl);
/* After resuming at `step`: drops the records of later steps, which will be taken again. */
int meter_resume(struct meter *meter, int64_t step);
void meter_finish(struct meter *meter);

/* One line for the step, and its record in metrics.jsonl. */
int meter_step(struct meter *meter, const struct sherd_step_stats *stats, struct text *line);
/* Starts a new interval for tokens/s and time left (after a line was shown; after saving or evaluating). */
void meter_mark(struct meter *meter);
int meter_eval(struct meter *meter, int64_t step, double loss, int64_t tokens);

#endif
