/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Collectives that the host carries out, as work of a queue: one at a time in each communicator, numbered,
 * with the place it was called from. Called by comm/shm.c, and by comm/tcp.c and comm/mpi.c through
 * comm/mesh.c.
 */
#ifndef SHERD_COMM_COLLECT_H
#define SHERD_COMM_COLLECT_H

#include <stdatomic.h>

#include "comm/block.h"
#include "comm/ops.h"

/* Reached by comm->impl, which must begin with it. */
struct collect {
    int (*run)(struct collect *collect, struct block_call *call, char *out, const char *in);
    uint64_t seq;
    _Atomic int busy; /* a collective is running */
};

/* For the table of a kind. */
int collect_all_gather(struct sherd_comm *, struct sherd_queue *, void *out, const void *in, int64_t elems,
    enum sherd_dtype type);
int collect_reduce_scatter(
    struct sherd_comm *, struct sherd_queue *, void *out, void *in, int64_t elems, enum sherd_dtype type);
int collect_all_reduce(struct sherd_comm *, struct sherd_queue *, void *out, const void *in, int64_t elems,
    enum sherd_dtype type, enum sherd_reduce reduce);
int collect_broadcast(
    struct sherd_comm *, struct sherd_queue *, void *out, const void *in, size_t bytes, int root);
/* A broadcast at once, without a queue. */
int collect_tell(struct collect *collect, void *buf, size_t bytes, int root);

#endif
