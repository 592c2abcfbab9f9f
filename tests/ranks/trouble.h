/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Ranks in trouble, the same whatever they talk through: test_comm_fail has them on one host, test_tcp over
 * sockets. And ranks at a meeting, each a thread.
 */
#ifndef SHERD_TESTS_RANKS_TROUBLE_H
#define SHERD_TESTS_RANKS_TROUBLE_H

#include <pthread.h>

#include <sherd/comm.h>

void pause_ms(int ms);

/* An all-reduce in place, submitted and waited for: where a failure shows is the device's matter. */
int sum(struct sherd_comm *comm, struct sherd_queue *queue, void *buf, int64_t n, enum sherd_dtype type);
/* The second collective of 3 ranks, in which rank 1 differs in its "kind", "count", "type", "max" (the
 * operation) or "root"; whatever follows it fails, too. The status of it. */
int sum_that_differs(int rank, struct sherd_comm *comm, struct sherd_device *dev, const char *what);

/* For t_ranks: rank 1 aborts; rank 1 closes early; rank 2 of 3 is late under a timeout of 0.5 s,
 * where ctx is a text: what is told of it. */
void abort_wakes(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx);
void one_leaves(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx);
void one_is_late(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx);

/* A rank that meets the others in a thread of its own. */
struct visitor {
    int (*visit)(void *meet);
    void *meet;
    int rank, status;
    char text[512];
    pthread_t thread;
};
void visitor_go(struct visitor *visitor, int (*visit)(void *meet), void *meet, int rank);
/* Waits for its end: the status must be this, and the error text contain `text`. */
void visitor_ended(struct visitor *visitor, int status, const char *text);

/* Warnings go into the text that warnings_take returns, a static one, and nowhere else until then. */
void warnings_keep(void);
const char *warnings_take(void);

#endif
