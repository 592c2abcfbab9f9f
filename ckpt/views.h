/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What saving and loading share: the views of a job, and carrying device memory through a fixed buffer.
 */
#ifndef SHERD_CKPT_VIEWS_H
#define SHERD_CKPT_VIEWS_H

#include "ckpt/ckpt.h"
#include "ckpt/format.h"

/* All views that the layout calls for are there, with types and ranges that make sense. EINTERNAL. */
int views_check(const struct ckpt_job *job, const char *const *states, int n_states);
/* The view of a state of a segment; NULL if there is none. */
const struct shard_view *views_find(
    const struct ckpt_job *job, const char *what, int unit, enum shard_segment segment);

/* A queue and CKPT_STAGING_BYTES of host memory to copy through. */
struct ferry {
    struct sherd_device *dev;
    struct sherd_queue *queue;
    void *host;
};
int ferry_init(struct ferry *ferry, struct sherd_device *dev);
void ferry_finish(struct ferry *ferry);
/* n elements of ferry->host, of the view's type, to the view from element `at` of its data; at most
 * CKPT_STAGING_BYTES. Done when it returns. */
int ferry_in(struct ferry *ferry, const struct shard_view *view, int64_t at, int64_t n);
/* The same from other host memory; not for views of halves. */
int ferry_from(struct ferry *ferry, const struct shard_view *view, int64_t at, const void *from, int64_t n);
/* Zeros there. */
int ferry_zero(struct ferry *ferry, const struct shard_view *view, int64_t at, int64_t n);

#endif
