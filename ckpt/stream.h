/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The files of one rank on their way from the device to the disk: one thread fills slabs of host memory from
 * the device (ckpt/fill.h), another takes them in order, sums them, writes them and syncs the files. Where
 * the slabs run out, filling waits for the disk; the caller never does.
 */
#ifndef SHERD_CKPT_STREAM_H
#define SHERD_CKPT_STREAM_H

#include "ckpt/fill.h"
#include "ckpt/piece.h"

struct stream;

/* One file. The list stays as it is until the stream has ended. */
struct stream_file {
    const struct piece_list *list;
    char *path; /* mem_free by the owner */
    /* Filled by the stream: */
    uint64_t *blocks; /* room for all sums, given by the owner */
    char sum[SUM_TEXT_BYTES];
    const char *nonfinite; /* the first entry with a value that is infinite or no number; NULL */
    /* Its own: */
    int piece;
    uint64_t piece_begin;
    int open, fd, direct;
    int full, writing; /* all of it is on its way; writes that are */
    struct sum *summing;
};

/* Room for `bytes` of data, at least a few slabs. */
int stream_create(struct stream **out, struct sherd_device *dev, uint64_t bytes, enum write_kind kind);
void stream_destroy(struct stream *stream); /* waits for what is under way; NULL is fine */
/* Other ranks may wait for as long as files are worked on: from now on every call is told on the board of
 * comm. */
void stream_tell(struct stream *stream, struct sherd_comm *comm);
uint64_t stream_memory(const struct stream *stream);

/* What waits for the copies off the device, and what these wait for. */
struct fill *stream_fill(const struct stream *stream);
/* Begins to write the n files of a model of n_units, and to sync `dir` after. Returns at once; a failure is
 * told by stream_wait alone, so that ranks stay in step. The stream is idle. */
void stream_start(
    struct stream *stream, struct stream_file *files, int n, int n_units, uint64_t block, const char *dir);
/* Runs fn beside the caller; the stream is idle. */
void stream_run(struct stream *stream, int (*fn)(void *ctx), void *ctx);
/* 1 while the thread has something to do. */
int stream_busy(struct stream *stream);
/* Waits for the end of what was begun last; how it ended. */
int stream_wait(struct stream *stream);

const char *stream_writer(const struct stream *stream); /* "io_uring", "threads" */

#endif
