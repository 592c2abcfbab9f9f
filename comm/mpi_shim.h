/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What comm/mpi.c needs of an MPI, as one table: comm/mpi_shim.c is built once for each MPI that there is, as
 * they differ in their binary interfaces, and opened at run time, so that the library itself needs none.
 * Names nothing of sherd's: the shims link to an MPI and nothing else.
 */
#ifndef SHERD_COMM_MPI_SHIM_H
#define SHERD_COMM_MPI_SHIM_H

#include <stddef.h>

#define MPI_SHIM_VERSION 1
#define MPI_SHIM_TABLE "sherd_mpi_shim"

/* A message under way; the MPI's own. */
struct mpi_message {
    void *word[2];
};

/* Calls return 0, or fill `why`. All may be called from any thread at any time. */
struct mpi_shim {
    int version;
    /* Starts MPI, the first time; it is ended with the process unless it was broken. */
    int (*start)(int *rank, int *size, char *why, size_t bytes);
    /* The process will end without a farewell to MPI: some rank has failed. */
    void (*broken)(void);
    int (*send)(struct mpi_message *m, const void *data, int bytes, int to, int tag, char *why, size_t room);
    int (*receive)(struct mpi_message *m, void *data, int bytes, int from, int tag, char *why, size_t room);
    /* Sets *done; then the message is over. */
    int (*test)(struct mpi_message *m, int *done, char *why, size_t room);
    void (*cancel)(struct mpi_message *m);
    /* Whether a message with this tag waits, and from whom. */
    int (*waiting)(int tag, int *from);
};

#endif
