/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Where this rank is and what its time went into: told to the other ranks before every instruction, on the
 * board of the communicator (comm/board.h). From it come the sentences that say who stood where, the record
 * of the last places of all ranks, and the line that names a slow one. Never waits, allocates in no step.
 */
#ifndef SHERD_RUNTIME_WATCH_H
#define SHERD_RUNTIME_WATCH_H

#include "comm/ops.h"
#include "runtime/slow.h"
#include "shard/program.h"

struct sherd_engine;

/* What the host's time goes into. On devices that work behind the host's back, most of it is waiting. */
#define WATCH_PHASES(XX)                                                                                     \
    XX(DATA, "data")                                                                                         \
    XX(FORWARD, "forward")                                                                                   \
    XX(BACKWARD, "backward")                                                                                 \
    XX(UPDATE, "update")                                                                                     \
    XX(SAVE, "save")                                                                                         \
    XX(WAIT, "wait")                                                                                         \
    XX(OTHER, "other")

enum watch_phase {
#define XX(name, text) WATCH_##name,
    WATCH_PHASES(XX)
#undef XX
        WATCH_N_PHASES
};

_Static_assert(WATCH_N_PHASES <= BOARD_FIGURES, "a phase has no place on the board");

struct watch {
    int64_t done;                                     /* places told so far */
    char (*texts[PROGRAM_N_LISTS])[BOARD_TEXT_BYTES]; /* of every instruction */
    enum watch_phase phase;
    double since;                  /* the phase began */
    double seconds[BOARD_FIGURES]; /* in each phase so far */
    struct slow slow;
};

int watch_init(struct sherd_engine *engine);
void watch_finish(struct sherd_engine *engine);

/* This rank is about to run an instruction, or something else that has a name. OK; tests may let it fail, or
 * skip an instruction (> 0). */
int watch_instr(struct sherd_engine *engine, enum program_list list, int at);
int watch_part(struct sherd_engine *engine, enum watch_phase phase, const char *text);
const char *watch_phase_name(enum watch_phase phase);
/* Time goes into another phase from now on; returns the one before. */
enum watch_phase watch_phase(struct sherd_engine *engine, enum watch_phase phase);
/* After a step: shows the others what the time went into. */
void watch_step(struct sherd_engine *engine);

/* Appends a line that names a slow rank if there is evidence of one (runtime/slow.h); else nothing. */
void watch_slow(struct sherd_engine *engine, struct text *line);

/* Before there is an engine: where this rank is. */
int watch_start(struct sherd_comm *comm, const char *text);
/* Whether a failure has to do with other ranks; what one rank meets alone says enough by itself. */
int watch_records(int status);
#define WATCH_RECORD "flight.txt"
/* The job fails with `status` and the error text: one rank writes the last places of all into dir/flight.txt,
 * and the text names the file. Returns the status. Does nothing where watch_records says no. */
int watch_record(struct sherd_comm *comm, const char *dir, int status);

#endif
