/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Slabs: pieces of host memory that go round between who fills them and who writes them, each a thread. A
 * slab is free, being filled, full (in the order of the files), or being written. Memory is the slabs,
 * however much there is to write.
 */
#ifndef SHERD_CKPT_SLAB_H
#define SHERD_CKPT_SLAB_H

#include <pthread.h>

#include <sherd/device.h>

#include "base/write.h"

struct stream_file;

struct slab {
    char *data;
    struct sherd_event *copied; /* it holds what it is to hold */
    struct write_op op;
    struct stream_file *file;
    uint64_t offset;       /* in the file */
    size_t bytes, missing; /* missing: of these, not asked for yet */
    struct slab *next;
};

struct slabs {
    struct sherd_device *dev;
    void *memory;
    struct slab *items;
    int n;
    pthread_mutex_t lock;         /* of all below, and of whoever waits for the conditions */
    pthread_cond_t more, changed; /* for who writes; for all others */
    struct slab *free, *full, **full_end;
    int filling; /* more may become full */
    int broken;  /* written ones do not come back */
};

/* Room for `bytes` of data, at least a few slabs. On failure there is nothing to finish but what is zero. */
int slabs_init(struct slabs *slabs, struct sherd_device *dev, uint64_t bytes);
void slabs_finish(struct slabs *slabs);

/* Waits for a free one; NULL: none will come. */
struct slab *slabs_take(struct slabs *slabs);
/* It is to be written next. */
void slabs_hand_over(struct slabs *slabs, struct slab *slab);
/* It is free again. */
void slabs_give_back(struct slabs *slabs, struct slab *slab);

#endif
