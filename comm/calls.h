/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * How ranks of several hosts get their connections: the meeting, and one socket to every other rank for each
 * channel that is asked for. Called by comm/lines.c. Knows nothing of what travels over them.
 */
#ifndef SHERD_COMM_CALLS_H
#define SHERD_COMM_CALLS_H

#include <pthread.h>

#include <sherd/comm.h>

#include "comm/meet_tcp.h"
#include "comm/net.h"

struct early;

struct calls {
    int rank, size, listener;
    uint64_t token;
    struct net_address from, rank0;
    struct meet_place *places; /* of all ranks */
    pthread_mutex_t lock;      /* around those that came early */
    struct early *early;
    int n_early, cap_early;
    pthread_mutex_t door; /* one thread at a time takes calls */
};

int calls_init(struct calls *calls, int rank, int size); /* calls_finish also after a failure */
void calls_finish(struct calls *calls);

/* Meets all ranks of the world: places and token. `door` as of lines_open, taken over. */
int calls_meet(struct calls *calls, const struct sherd_world *world, int door, double timeout);
/* socks[size]: a connection of this channel to every other rank, -1 for this one. While it waits, `check`
 * (may be NULL) may end it. On failure none is left. */
int calls_connect(
    struct calls *calls, uint32_t channel, int *socks, double timeout, int (*check)(void *ctx), void *ctx);

/* "rank 2 (hostb, pid 77)" */
const char *calls_name(const struct calls *calls, int r, char *buf, size_t bytes);

#endif
