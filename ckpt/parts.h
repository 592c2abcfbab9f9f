/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Reading ahead: a thread reads the parts of a checkpoint that will be asked for, in order, while those
 * before are checked and copied. Memory is PARTS_BUFFERS parts.
 */
#ifndef SHERD_CKPT_PARTS_H
#define SHERD_CKPT_PARTS_H

#include "comm/ops.h"
#include "ckpt/open.h"

#define PARTS_BUFFERS 3 /* one in use, one ready, one being read */

/* Whole blocks of a file (but for its end), at most CKPT_STAGING_BYTES. */
struct part {
    int file;
    uint64_t begin, end;
};

struct parts;
/* Begins to read; the parts are borrowed, the buffers of the device's host memory. */
int parts_create(struct parts **out, const struct sherd_ckpt *ckpt, struct sherd_device *dev,
    const struct part *parts, int n);
void parts_destroy(struct parts *parts); /* waits for the read under way; NULL is fine */

/* The part that parts_take gives next; NULL behind the last. */
const struct part *parts_next(const struct parts *parts);
/* Waits for it. Its bytes, not checked, are the caller's until the next call. */
int parts_take(struct parts *parts, const char **data);

#endif
