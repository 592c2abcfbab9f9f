/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The thread that asks for the copies of a save, so that nobody who trains does: from the device into slabs,
 * unit by unit where all of it has room, in the order of the files where it has not. An update asks here
 * before it changes a unit.
 */
#ifndef SHERD_CKPT_FILL_H
#define SHERD_CKPT_FILL_H

#include "ckpt/slab.h"

struct stream_file;
struct fill;

/* The slabs are borrowed. */
int fill_create(struct fill **out, struct slabs *slabs);
void fill_destroy(struct fill *fill); /* waits for what is under way; NULL is fine */

/* Carries the copies: what it waits for before fill_start comes before all of them. */
struct sherd_queue *fill_queue(const struct fill *fill);

/* Begins with the files of a model of n_units units. The thread is at rest, and slabs->filling is set, until
 * it is done. */
void fill_start(struct fill *fill, struct stream_file *files, int n_files, int n_units);

/* From now on work of `queue` comes after the copies of a unit. Waits in the host until these have been asked
 * for: with room for all no longer than it takes to ask. */
int fill_await(struct fill *fill, int unit, struct sherd_queue *queue);

/* How filling ended; it has. */
int fill_status(const struct fill *fill);

struct fill_times {
    uint64_t bytes; /* off the device */
    double copied;  /* seconds from the start to the last copy */
    double waited;  /* seconds that queues have waited in fill_await for the copies, or for the host */
};
/* Of what was started last, and has ended. Waits for the queues that waited. */
int fill_read(struct fill *fill, struct fill_times *out);

#endif
