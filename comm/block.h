/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The memory that the ranks of one host share: channels with staging room for every rank, the barrier between
 * rounds, and what each rank must know of the others (called what, dead, closed, aborted).
 * Called by comm/shm.c; moves no tensors itself. The memory has no name and goes with the last rank.
 *
 * A channel works in rounds. In a round a rank writes to its own staging half (round & 1), calls block_round,
 * and may then read every rank's half of that round, until it calls block_round again: a rank that has come
 * to round k + 1 has read round k, so the half of round k is free again in round k + 2.
 */
#ifndef SHERD_COMM_BLOCK_H
#define SHERD_COMM_BLOCK_H

#include <sherd/comm.h>

#include "comm/board.h"

#define BLOCK_STAGE_BYTES ((size_t)1 << 20) /* of one rank in one channel */
#define BLOCK_HALF_BYTES (BLOCK_STAGE_BYTES / 2)
#define BLOCK_CHANNELS 16 /* a communicator takes two: data and control */
#define BLOCK_RANKS 1024  /* most ranks of one host */

/* What a rank calls, and from where; all ranks must call the same. Without padding, as it is compared as it
 * lies in memory. */
struct block_call {
    int64_t elems;
    uint64_t seq;    /* from 1 in each channel */
    uint32_t kind;   /* enum sherd_collective */
    uint32_t type;   /* enum sherd_dtype */
    uint32_t detail; /* enum sherd_reduce, or the root of a broadcast */
    uint32_t unused;
    struct board_place place; /* zero where the caller tells none */
};

struct block; /* one mapping; shared by the ranks that are threads of this process */

/* One rank's end of one channel. Used by one thread at a time. */
struct block_channel {
    struct block *block;
    struct channel *shared;
    int rank, size, index;
    double timeout;
    uint32_t round;
};

/* Makes the memory for `size` ranks. The first two channels are taken. *fd, if wanted, is for other
 * processes; the caller closes it. */
int block_create(struct block **out, int *fd, int size);
/* Maps the memory that another process made. */
int block_attach(struct block **out, int fd, int size);
/* This process is this rank; without it the ranks are threads. Takes over fd. */
void block_enter(struct block *block, int fd, int rank);
/* One more user of this handle; each ends with block_drop. */
struct block *block_hold(struct block *block);
void block_drop(struct block *block);

void block_open(struct block_channel *out, struct block *block, int index, int rank, double timeout);
/* The other ranks fail when they wait for this one in this channel. */
void block_close(struct block_channel *channel);
/* For one rank to call: two neighbouring channels that nobody uses, made ready for all; -1 if none. */
int block_reserve(struct block *block);

/* This rank's and any rank's staging half of round `round`. */
void *block_half(const struct block_channel *channel, int rank, uint32_t round);
/* Ends the writing of the current round; returns when all ranks have, with channel->round one up. */
int block_round(struct block_channel *channel, const struct block_call *call);
/* OK, or EPEER where somebody has aborted. */
int block_check(const struct block_channel *channel);
/* The same, or where the process of another rank has ended and had not closed its end of the channel. */
int block_check_alive(const struct block_channel *channel);
/* All waits of all ranks in all channels fail, now and later. The first reason stands. */
void block_abort(struct block *block, int rank, const char *reason);

/* What the ranks pin beside their collectives. */
struct board *block_board(struct block *block);

/* "all-gather #12 (1000 f32)", with " at step 3, only:7 gather block1" if that is known; written to buf,
 * returned. */
const char *block_call_text(const struct block_call *call, char *buf, size_t bytes);
/* What each of `size` ranks brought: "ranks 0, 2: all-gather ...; rank 1: all-reduce ...". */
const char *block_calls_text(const struct block_call *calls, int size, char *buf, size_t bytes);

#endif
