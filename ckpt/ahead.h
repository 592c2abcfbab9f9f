/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Reading ahead: a thread reads the parts of a checkpoint that will be asked for, in order, while those
 * before are checked and copied. Memory is AHEAD_BUFFERS parts.
 */
#ifndef SHERD_CKPT_AHEAD_H
#define SHERD_CKPT_AHEAD_H

#include "comm/ops.h"
#include "ckpt/open.h"

#define AHEAD_BUFFERS 3 /* one in use, one ready, one being read */

/* Whole blocks of a file (but for its end), at most CKPT_STAGING_BYTES. */
struct ahead_part {
    int file;
    uint64_t begin, end;
};

struct ahead;
/* Begins to read; the parts are borrowed, the buffers of the device's host memory. */
int ahead_create(struct ahead **out, const struct sherd_ckpt *ckpt, struct sherd_device *dev,
    const struct ahead_part *parts, int n);
void ahead_destroy(struct ahead *ahead); /* waits for the read under way; NULL is fine */

/* The part that ahead_take gives next; NULL behind the last. */
const struct ahead_part *ahead_next(const struct ahead *ahead);
/* Waits for it. Its bytes, not checked, are the caller's until the next call. */
int ahead_take(struct ahead *ahead, const char **data);

#endif
