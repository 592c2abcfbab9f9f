/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Exchanges over MPI, carried by MPI's own thread (comm/mpi_shim.h): whoever wants one hands it over and
 * waits for as long as it likes, while the thread may be stuck in a call that never returns.
 * Called by comm/mpi.c. Knows nothing of failures of other ranks.
 */
#ifndef SHERD_COMM_CARRY_H
#define SHERD_COMM_CARRY_H

#include <stdint.h>

#include "comm/mesh.h"
#include "comm/mpi_shim.h"

/* What goes on with one other rank in an exchange: all of the carrier's. */
struct carry_leg {
    struct block_call theirs;
    struct mpi_message call_out, call_in, out, in;
    int has_call_out, has_call_in, has_out, has_in; /* under way */
    size_t sent, got;                               /* bytes of the part */
};

struct carry_standing {
    enum { CARRY_UNDER_WAY, CARRY_DONE, CARRY_DIFFERS, CARRY_FAILED } state;
    int with;       /* the rank that it differs from, or failed with */
    uint64_t moved; /* grows whenever something has come or gone */
};

/* One exchange. */
struct carry_job {
    int tag;
    struct carry_leg *legs; /* of every rank; the caller's memory, as all that `parts` tells */
    const struct block_call *call;
    const struct mesh_part *parts;
    char why[256]; /* of CARRY_FAILED: MPI's words */
    /* The carrier's: as MPI's thread has it, and as the others see it. */
    struct carry_standing now, seen;
    int begun;
};

#define CARRY_JOBS BLOCK_CHANNELS /* most at a time */

struct carry;

/* One at a time in a process. */
int carry_open(struct carry **out, const struct mpi_shim *shim, int rank, int size);
/* MPI's thread has nothing to do with it afterwards; if it does not come out of a call, this leaves what it
 * needs to it. */
void carry_close(struct carry *carry);

/* tag, legs, call and parts are set. EPEER after a failure. */
int carry_begin(struct carry *carry, struct carry_job *job);
/* Until the job is over, or `seconds`; how it stands then. */
struct carry_standing carry_wait(struct carry *carry, struct carry_job *job, double seconds);
/* Takes the job back. One that is not done ends all carrying, now and later, as MPI would go on writing to
 * memory of what it has begun. Returns 0 where MPI's thread does not come out of a call, so that the memory
 * of the legs must stay. */
int carry_end(struct carry *carry, struct carry_job *job);
/* absent[r] of every rank from or to which not all has gone; returns their number, 0 where MPI's thread does
 * not come out of a call. Of a job that has been taken back, too. */
int carry_look(struct carry *carry, const struct carry_job *job, uint8_t *absent);

#endif
