/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Ranks on GPUs, through NCCL, in three files: nccl.c moves, nccl_join.c opens, waits and ends, and
 * nccl_windows.c knows the memory that was exposed. This is what they share.
 */
#ifndef SHERD_COMM_NCCL_H
#define SHERD_COMM_NCCL_H

#include <pthread.h>

#include <nccl.h>

#include "comm/ops.h"
#include "device/cuda/launch.h"

#define NCCL_MET 256             /* slots for kinds of calls that have been made, a power of two */
#define NCCL_GONE ncclNumResults /* not a result of NCCL's: the communicator was aborted */

struct nccl_root;   /* nccl_join.c */
struct nccl_window; /* nccl_windows.c */

struct nccl {
    struct sherd_comm *owner;
    struct nccl_root *root;
    pthread_mutex_t lock; /* around every use of comm, as another thread may abort */
    ncclComm_t comm;      /* NULL once it has been aborted, for this: */
    char reason[1500];
    struct cuda_watch watch;
    uint64_t pulse; /* of the other ranks, as last seen; and how long the wait had lasted when it changed */
    double pulse_waited;
    struct nccl_window *windows;
    char *landing; /* that may be used, in one of the windows; NULL: none */
    size_t landing_bytes;
    size_t room;      /* that was free on the device before it began to open */
    int exposed;      /* windows made so far */
    const char *last; /* name and number of the last collective brought */
    unsigned long long calls;
    cudaEvent_t marks[2];   /* recorded in turn, see leave_room */
    uint64_t met[NCCL_MET]; /* what meet() has met for */
};

/* nccl_join.c, of the row */
int nccl_make_id(void *id);
int nccl_open(struct sherd_comm *const *comms, int n, const void *id);
int nccl_dup(struct sherd_comm *comm, struct sherd_comm *twin);
void nccl_abort(struct sherd_comm *comm, const char *reason);
void nccl_close(struct sherd_comm *comm);

/* All ranks have come to this place, or it fails in time. */
int nccl_come_together(struct nccl *n);
/* A result of NCCL's that is a failure of `what`, as a status. */
int nccl_failed(ncclResult_t r, const char *what);
/* A failure with its text set: this rank's part ends and the others are told. Returns the status, text kept.
 */
int nccl_give_up(struct nccl *n, int status);
/* The failure of what is brought to a communicator that was aborted. */
int nccl_ended(const struct nccl *n);

/* nccl_windows.c, of the row */
int nccl_expose(struct sherd_comm *comm, void *base, size_t bytes);
void nccl_conceal(struct sherd_comm *comm, void *base);
int nccl_landing(struct sherd_comm *comm, void *base, size_t bytes);
int nccl_lands(const struct sherd_comm *comm, int64_t elems, enum sherd_dtype type);

/* EINVAL where out or in lies in exposed memory and is no piece of whole words; `name` is the collective's.
 */
int nccl_check_exposed(const struct nccl *n, const char *name, const void *out, const void *in, size_t bytes);
/* All of it lies in exposed memory. */
int nccl_is_exposed(const struct nccl *n, const void *at, size_t bytes);
/* Before the communicator closes. */
void nccl_conceal_all(struct nccl *n);

#endif
