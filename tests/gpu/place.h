/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * For tests of NCCL: what each of two ranks has, beside its communicator, to move values with.
 */
#ifndef SHERD_TESTS_GPU_PLACE_H
#define SHERD_TESTS_GPU_PLACE_H

#include "tests/t.h"

#include <sherd/comm.h>

#define RANKS 2
#define MOST_BYTES ((size_t)8 << 20) /* of a buffer on the device */

/* One rank's place in a test. */
struct place {
    int rank;
    struct sherd_comm *comm;
    struct sherd_device *dev;
    struct sherd_queue *queue;
    char *buf, *other; /* device memory, MOST_BYTES each */
};

static inline void enter(struct place *at, int rank, struct sherd_comm *comm, struct sherd_device *dev)
{
    void *p[2];
    T_EQ(sherd_comm_rank(comm), rank);
    T_EQ(sherd_comm_size(comm), RANKS);
    *at = (struct place){ .rank = rank, .comm = comm, .dev = dev };
    T_OK(sherd_queue_create(&at->queue, dev, SHERD_QUEUE_SIDE));
    for (int i = 0; i < 2; i++)
        T_OK(sherd_device_alloc(dev, &p[i], MOST_BYTES));
    at->buf = p[0];
    at->other = p[1];
}

static inline void leave(struct place *at)
{
    sherd_device_free(at->dev, at->buf);
    sherd_device_free(at->dev, at->other);
    sherd_queue_destroy(at->queue);
}

#endif
