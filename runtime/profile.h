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

enum profile_queue { PROFILE_COMPUTE, PROFILE_GATHER, PROFILE_REDUCE, PROFILE_QUEUES };

/* Times are milliseconds since the step began. */
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

struct profile_step {
    int64_t step;
    double clock;   /* host seconds when it began */
    double whole;   /* ms, of the host's clock */
    double busy;    /* ms that the compute queue worked, */
    double exposed; /* waited for communication, or did it itself, */
    double idle;    /* and had nothing to do */
};

struct profile {
    struct device_probe probe; /* first: the device calls with it */
    struct sherd_engine *engine;
    char *path;
    int64_t skip, want; /* steps left before the first that is timed; how many are */
    int active;         /* a step is being timed */
    struct profile_step *steps;
    int n_steps, steps_cap;
    struct profile_span *spans;
    int n_spans, spans_cap, first_span; /* first_span: of the step being timed */
    struct sherd_event **events;        /* used again in every step; [0] is the step's begin */
    int n_events, events_cap, used;
    int open[PROFILE_QUEUES]; /* innermost span, -1 = none */
};

/* `config` says which steps; the engine owns *out. */
int profile_create(struct profile **out, struct sherd_engine *engine, const struct sherd_config *config);
void profile_destroy(struct profile *profile);

/* All take NULL, and do nothing between steps that are not timed. The queues must be idle around a step. */
int profile_step_begin(struct profile *profile, int64_t step);
int profile_step_end(struct profile *profile);
int profile_instr_begin(struct profile *profile, enum program_list list, int at);
int profile_instr_end(struct profile *profile, enum program_list list, int at);
/* Work of the compute queue that is no instruction. */
int profile_part_begin(struct profile *profile, const char *name);
int profile_part_end(struct profile *profile);

/* Whether all steps have been timed. */
int profile_full(const struct profile *profile);
/* Collective. Rank 0 writes the file and logs the tables. */
int profile_write(struct profile *profile);

#endif
