/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What sherd needs of an MPI, as one table: comm/mpi_shim.c is built once for each MPI that there is, as they
 * differ in their binary interfaces, and opened at run time, so that the library itself needs none. MPI runs
 * on a thread of its own there, since no call of MPI's can be trusted to return. Names nothing of sherd's:
 * the shims link to an MPI and nothing else. Called by comm/mpi.c and comm/carry.c.
 */
#ifndef SHERD_COMM_MPI_SHIM_H
#define SHERD_COMM_MPI_SHIM_H

#include <stddef.h>

#define MPI_SHIM_VERSION 2
#define MPI_SHIM_TABLE "sherd_mpi_shim"

/* A message under way; the MPI's own. */
struct mpi_message {
    void *word[2];
};

/* Calls return 0, or fill `why`. */
struct mpi_shim {
    int version;
    /* Starts MPI's thread and MPI, the first time, and waits `seconds` at most. With the process MPI is
     * ended, unless it was broken, or is at work, or does not come to an end in as long, told by `warn`: then
     * the process leaves at once, without what else was to be done at its end. */
    int (*start)(
        int *rank, int *size, double seconds, void (*warn)(const char *text), char *why, size_t bytes);
    /* MPI's thread calls work(ctx), once; -1 while it is at other work. */
    int (*run)(void (*work)(void *ctx), void *ctx);
    /* Until that work is over; -1 where it is not in time. */
    int (*idle)(double seconds);
    /* The process will end without a farewell to MPI: some rank has failed. */
    void (*broken)(void);

    /* These on MPI's thread alone, in such work. */
    int (*send)(struct mpi_message *m, const void *data, int bytes, int to, int tag, char *why, size_t room);
    int (*receive)(struct mpi_message *m, void *data, int bytes, int from, int tag, char *why, size_t room);
    /* Sets *done; then the message is over. */
    int (*test)(struct mpi_message *m, int *done, char *why, size_t room);
};

#endif
