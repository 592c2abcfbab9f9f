/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Timing some steps of a run: a span for each instruction, wait, collective and, if wanted, operation, on the
 * queue it runs on. Then a timeline for all ranks (Chrome trace JSON) and tables in the log. An engine
 * without a profile pays one comparison an instruction.
 */
#ifndef SHERD_RUNTIME_PROFILE_H
#define SHERD_RUNTIME_PROFILE_H

#include <sherd/config.h>

#include "base/text.h"
#include "device/ops.h"
#include "shard/program.h"

struct sherd_engine;

enum profile_queue { PROFILE_COMPUTE, PROFILE_GATHER, PROFILE_REDUCE, PROFILE_UPDATE, PROFILE_QUEUES };

/* Times are milliseconds since the first step that is timed began. */
struct profile_span {
    enum probe_kind kind;
    enum profile_queue queue;
    int step;                          /* index into profile.steps */
    int parent;                        /* the span it lies in, -1 = none */
    const char *name;                  /* constant */
    const struct program_instr *instr; /* of a PART that is an instruction */
    enum program_list list;
    int at; /* its place in the list */
    double flops, bytes;
    char shape[48];
    int begin, end; /* events */
    double from, to;
};

/* From the begin of its first work on the compute queue to the end of its last. */
struct profile_step {
    int64_t step;
    int begin, end; /* events */
    double from, to;
    double busy;    /* ms that the compute queue worked, */
    double exposed; /* waited for communication or updates, or communicated itself, */
    double idle;    /* and had nothing to do */
};

struct profile {
    struct device_probe probe; /* first: the device calls with it */
    struct device_probe *next; /* was there before: sees waits and collectives as ever; NULL = none */
    struct sherd_engine *engine;
    char *path;
    int64_t skip, want; /* steps left before the first that is timed; how many are */
    int active;         /* a step is being timed */
    int first_span;     /* of the step begun last */
    double clock;       /* host seconds at time 0 */
    struct profile_step *steps;
    int n_steps, steps_cap;
    struct profile_span *spans;
    int n_spans, spans_cap;
    struct sherd_event **events;
    int n_events, events_cap;
    int open[PROFILE_QUEUES]; /* innermost span, -1 = none */
};

/* `config` says which steps; the engine owns *out. */
int profile_create(struct profile **out, struct sherd_engine *engine, const struct sherd_config *config);
void profile_destroy(struct profile *profile);

/* Once a step, before it: whether it is to be timed. Then begin and end, around what is submitted or
 * recorded; neither waits, and the next step may begin. Takes NULL. */
int profile_due(struct profile *profile);
int profile_step_begin(struct profile *profile, int64_t step);
int profile_step_end(struct profile *profile);
/* The work that was begun last, and maybe ended, is not done but forgotten. */
void profile_drop(struct profile *profile);
/* Recorded work is launched now. */
void profile_launched(struct profile *profile);
/* These take NULL, and do nothing in steps that are not timed. */
int profile_instr_begin(struct profile *profile, enum program_list list, int at);
int profile_instr_end(struct profile *profile, enum program_list list, int at);
/* Work of the compute queue that is no instruction. */
int profile_part_begin(struct profile *profile, const char *name);
int profile_part_end(struct profile *profile);

/* Whether all steps have been timed. */
int profile_full(const struct profile *profile);
/* Waits for what is timed and fills in the times; once, by profile_write. */
int profile_read(struct profile *profile);
/* Collective. Waits for what is timed; rank 0 writes the file and logs the tables. */
int profile_write(struct profile *profile);

#endif
