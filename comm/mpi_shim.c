/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * One MPI behind the table of comm/mpi_shim.h.
 */
#include "comm/mpi_shim.h"

#include <stdio.h>
#include <stdlib.h>

#include <mpi.h>

static int is_broken;

_Static_assert(sizeof(MPI_Request) <= sizeof(struct mpi_message), "a request does not fit");

static MPI_Request *request(struct mpi_message *m)
{
    return (MPI_Request *)(void *)m;
}

static int told(int r, char *why, size_t bytes)
{
    char text[MPI_MAX_ERROR_STRING];
    int n = 0;
    if (r == MPI_SUCCESS)
        return 0;
    MPI_Error_string(r, text, &n);
    snprintf(why, bytes, "%.*s", n, text);
    return -1;
}

static void end(void)
{
    int over = 0;
    MPI_Finalized(&over);
    if (!over && !is_broken)
        MPI_Finalize();
}

static int start(int *rank, int *size, char *why, size_t bytes)
{
    int begun = 0, level = MPI_THREAD_SINGLE;
    MPI_Initialized(&begun);
    if (!begun) {
        if (told(MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level), why, bytes) != 0)
            return -1;
        atexit(end);
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    } else {
        MPI_Query_thread(&level);
    }
    if (level < MPI_THREAD_MULTIPLE) {
        snprintf(why, bytes, "it was started or built without MPI_THREAD_MULTIPLE");
        return -1;
    }
    int r = MPI_Comm_rank(MPI_COMM_WORLD, rank);
    return told(r == MPI_SUCCESS ? MPI_Comm_size(MPI_COMM_WORLD, size) : r, why, bytes);
}

static void broken(void)
{
    is_broken = 1;
}

static int send(struct mpi_message *m, const void *data, int bytes, int to, int tag, char *why, size_t room)
{
    return told(MPI_Isend(data, bytes, MPI_BYTE, to, tag, MPI_COMM_WORLD, request(m)), why, room);
}

static int receive(struct mpi_message *m, void *data, int bytes, int from, int tag, char *why, size_t room)
{
    return told(MPI_Irecv(data, bytes, MPI_BYTE, from, tag, MPI_COMM_WORLD, request(m)), why, room);
}

static int test(struct mpi_message *m, int *done, char *why, size_t room)
{
    return told(MPI_Test(request(m), done, MPI_STATUS_IGNORE), why, room);
}

static void cancel(struct mpi_message *m)
{
    if (*request(m) == MPI_REQUEST_NULL)
        return;
    MPI_Cancel(request(m));
    MPI_Request_free(request(m));
}

static int waiting(int tag, int *from)
{
    int there = 0;
    MPI_Status status;
    if (MPI_Iprobe(MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, &there, &status) != MPI_SUCCESS || !there)
        return 0;
    *from = status.MPI_SOURCE;
    return 1;
}

__attribute__((visibility("default"))) extern const struct mpi_shim sherd_mpi_shim;
const struct mpi_shim sherd_mpi_shim = { .version = MPI_SHIM_VERSION,
    .start = start,
    .broken = broken,
    .send = send,
    .receive = receive,
    .test = test,
    .cancel = cancel,
    .waiting = waiting };
