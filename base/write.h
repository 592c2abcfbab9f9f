/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Large writes beside the caller, several at a time: by io_uring where the build and the system have it, else
 * by a few threads. One thread puts writes in and takes finished ones out.
 */
#ifndef SHERD_BASE_WRITE_H
#define SHERD_BASE_WRITE_H

#include "base/file.h"

struct write_queue;

/* One write. It, its path and its buffer belong to the queue until they come out again. */
struct write_op {
    int fd;
    const char *path;
    const void *data;
    size_t bytes;
    uint64_t offset;
    size_t align; /* of every transfer: FILE_DIRECT_ALIGN, or 1 */
    /* The queue's own. */
    size_t done;
    int status, refused;
    char text[512];
    struct file_watch watch; /* of who put it in */
    struct write_op *next;
};

enum write_kind { WRITE_ANY, WRITE_THREADS }; /* the best there is, or threads in any case */

/* Room for `depth` writes at a time. */
int write_queue_create(struct write_queue **out, int depth, enum write_kind kind);
/* Waits for what is under way. NULL is fine. */
void write_queue_destroy(struct write_queue *queue);
const char *write_queue_name(const struct write_queue *queue); /* "io_uring", "threads" */

/* Never more than `depth` between put and take. */
void write_queue_put(struct write_queue *queue, struct write_op *op);
/* Waits for one write to finish, in whatever order; *op is NULL when none is under way. Returns how that
 * write ended: a short one has been continued, a failed one has the text of file_pwrite. */
int write_queue_take(struct write_queue *queue, struct write_op **op);

#endif
