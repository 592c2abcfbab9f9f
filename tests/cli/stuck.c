/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Preloaded before an MPI by tests/cli/mpi.sh: a call of MPI's never returns on one rank, as where the
 * network is gone. STUCK says which: MPI_Init_thread, MPI_Finalize, or MPI_Test at its STUCK_AT-th call.
 */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STUCK_RANK "1"

int MPI_Init_thread(int *argc, char ***argv, int wanted, int *level);
int MPI_Finalize(void);
int MPI_Test(void *request, int *done, void *status);

static void wait_for_ever_if(const char *call)
{
    const char *which = getenv("STUCK"), *rank = getenv("OMPI_COMM_WORLD_RANK");
    rank = rank ? rank : getenv("PMI_RANK");
    while (which && rank && strcmp(which, call) == 0 && strcmp(rank, STUCK_RANK) == 0)
        pause();
}

/* real = the MPI's own, by its second name */
#define FIND(real, name) *(void **)&(real) = dlsym(RTLD_NEXT, "P" name)

int MPI_Init_thread(int *argc, char ***argv, int wanted, int *level)
{
    int (*real)(int *, char ***, int, int *);
    FIND(real, "MPI_Init_thread");
    wait_for_ever_if("MPI_Init_thread");
    return real(argc, argv, wanted, level);
}

int MPI_Finalize(void)
{
    int (*real)(void);
    FIND(real, "MPI_Finalize");
    wait_for_ever_if("MPI_Finalize");
    return real();
}

int MPI_Test(void *request, int *done, void *status)
{
    static _Atomic long calls;
    int (*real)(void *, int *, void *);
    const char *at = getenv("STUCK_AT");
    FIND(real, "MPI_Test");
    if (atomic_fetch_add(&calls, 1) >= (at ? atol(at) : 0))
        wait_for_ever_if("MPI_Test");
    return real(request, done, status);
}
