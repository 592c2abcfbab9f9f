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
#include "ckpt/ckpt.h"
#include "runtime/tfevents.h"

struct meter_desc {
    const char *dir;        /* gets metrics.jsonl and tensorboard/ */
    int jsonl, tensorboard; /* which of them are wanted */
    int scaled;             /* there is a loss scale to tell */
    int64_t steps;          /* of the whole run */
    int world;
    int goes_on;  /* training does without records that could not be written, after a warning */
    double flops; /* per token, forward and backward: see docs/program.md */
    double peak;  /* FLOP/s of one device at best; 0 = unknown, then there is no MFU */
};

struct meter {
    struct meter_desc desc;
    int64_t mark_tokens; /* tokens and seconds since the last line */
    int64_t mark_steps;
    double mark_seconds, started;
    int jsonl; /* file descriptor, -1 = none */
    char *jsonl_path;
    int jsonl_lost, events_lost; /* the last record, and this was told */
    struct tfevents events;
};
#define METER_NONE                                                                                           \
    {                                                                                                        \
        .jsonl = -1, .events = {.fd = -1 }                                                                   \
    }

/* Lines of metrics.jsonl are appended; TensorBoard gets a new file. */
int meter_init(struct meter *meter, const struct meter_desc *desc);
/* After resuming at `step`: drops the records of later steps, which will be taken again. */
int meter_resume(struct meter *meter, int64_t step);
void meter_finish(struct meter *meter);

/* The record of a start at `step` steps taken: what is trained, on what, and the memory of one rank. */
int meter_start(
    struct meter *meter, int64_t step, int stage, int64_t params, const struct sherd_memory *memory);
/* One line for the step, and its record. `sent`: bytes this rank sent in it, by collective. */
int meter_step(struct meter *meter, const struct sherd_step_stats *stats,
    const uint64_t sent[SHERD_COLLECTIVES], struct text *line);
/* Of a step that was timed: seconds that the compute queue worked, waited for communication, had nothing. */
int meter_exposed(struct meter *meter, int64_t step, double busy, double exposed, double idle);
/* Starts a new interval for tokens/s and time left (after a line was shown; after saving or evaluating). */
void meter_mark(struct meter *meter);
/* A save: what it took, and the seconds that training stood still to begin it. */
int meter_save(struct meter *meter, const struct ckpt_times *times, double still);
int meter_eval(struct meter *meter, int64_t step, double loss, int64_t tokens);

/* TFLOP/s of a device by the model of its hardware; 0 = unknown. */
double meter_peak(const char *model, enum sherd_dtype type);

#endif
