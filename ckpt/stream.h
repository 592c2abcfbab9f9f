/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The files of one rank on their way from the device to the disk. The caller queues copies into slabs of host
 * memory; a thread takes the slabs in order, sums them, writes them and syncs the files. Memory is the slabs,
 * however much there is to write: where they run out, the caller waits for the disk.
 */
#ifndef SHERD_CKPT_STREAM_H
#define SHERD_CKPT_STREAM_H

#include "base/write.h"
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
};

/* Room for `bytes` of data, at least a few slabs. */
int stream_create(struct stream **out, struct sherd_device *dev, uint64_t bytes, enum write_kind kind);
void stream_destroy(struct stream *stream); /* waits for what is under way; NULL is fine */
/* Other ranks may wait for as long as files are worked on: from now on every call is told on the board of
 * comm. */
void stream_tell(struct stream *stream, struct sherd_comm *comm);
uint64_t stream_memory(const struct stream *stream);

/* Begins to write the files, and to sync `dir` after. Returns when all copies are queued; a failure is told
 * by stream_wait alone, so that ranks stay in step. The stream is idle. */
void stream_start(struct stream *stream, struct stream_file *files, int n, uint64_t block, const char *dir);
/* Runs fn beside the caller; the stream is idle. */
void stream_run(struct stream *stream, int (*fn)(void *ctx), void *ctx);
/* 1 while the thread has something to do. */
int stream_busy(struct stream *stream);
/* Waits for the end of what was begun last; how it ended. */
int stream_wait(struct stream *stream);

/* Reached when all copies off the device are done: what is being saved may be changed after it. */
struct sherd_event *stream_taken(const struct stream *stream);
/* "io_uring, past the page cache" */
void stream_how(const struct stream *stream, char out[64]);

#endif
