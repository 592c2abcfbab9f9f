/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The board: the channel beside the collectives, on which every rank pins what it is doing, its last
 * BOARD_TRAIL places, a beat and a few figures, and reads what the others pinned. Nobody ever waits here.
 * One flat piece of memory: shared by the ranks of a host (comm/block.c), or one copy a host that something
 * else keeps equal, seat by seat. Knows nothing of units or programs: a place is a text.
 *
 * A rank that works pins; one that waits, stands still or is gone does not. So a wait is in vain once no
 * other rank has pinned anything for the timeout.
 */
#ifndef SHERD_COMM_BOARD_H
#define SHERD_COMM_BOARD_H

#include <stddef.h>
#include <stdint.h>

#define BOARD_TRAIL 64
#define BOARD_TEXT_BYTES 64
#define BOARD_FIGURES 8

/* Where a rank is: in words, and counted. */
struct board_place {
    int64_t step;                /* from 1; 0 = in none */
    int64_t done;                /* places told so far */
    char text[BOARD_TEXT_BYTES]; /* "last:17 reduce block1" */
};

struct board_note {
    struct board_place place;
    double seconds; /* when it was pinned, on the clock of this host */
};

struct board;

size_t board_bytes(int size);
/* Zeroed memory of that size, 64-byte aligned, is a board on which nobody has pinned anything. */
struct board *board_at(void *memory, int size);
/* One rank's part of the memory, as bytes that can be carried to another host and put into its board there.
 * shift: seconds of the clock there less those of the clock here. */
size_t board_seat_bytes(void);
void board_give(const struct board *board, int rank, void *out);
void board_take(struct board *board, int rank, const void *seat, double shift);

/* Each rank for itself, once, where it is a process; messages name host and process. */
void board_enter(struct board *board, int rank, int pid);
/* The same for a rank of another host. */
void board_enter_as(struct board *board, int rank, int pid, const char *host);
void board_pin(struct board *board, int rank, const struct board_place *place);
/* The job has failed: what is pinned from now on would not tell where it did, and is not. */
void board_close(struct board *board);
/* The same, because this rank is gone. */
void board_lose(struct board *board, int rank);
/* Still at it: in long work between two places. */
void board_beat(struct board *board, int rank);
/* Figures of the rank as of step `step`, for whoever looks. */
void board_show(struct board *board, int rank, int64_t step, const double figures[BOARD_FIGURES]);
/* The step that the figures are of; 0 = none yet. */
int64_t board_look(const struct board *board, int rank, double figures[BOARD_FIGURES]);

/* Changes whenever a rank other than this has pinned something. */
uint64_t board_pulse(const struct board *board, int rank);
/* Places pinned so far; and the k-th last of them (0 = the last), 0 if there is none or it is gone. */
uint64_t board_pinned(const struct board *board, int rank);
int board_read(const struct board *board, int rank, int k, struct board_note *out);
/* One caller gets 1: whoever shall write down what all ranks did. */
int board_claim(struct board *board);

/* "rank 2 (host, pid 77)" */
const char *board_name(const struct board *board, int rank, char *buf, size_t bytes);
/* "rank 2 (host, pid 77) last seen at step 7, last:17 reduce b1, 12 s ago; ranks 0, 1, 3 wait at step 7,
 * last:18 gather b0". absent[r] is non-zero for those who are missed; of one that never pinned a place, the
 * collective absent_seq[r] is told. */
const char *board_tell(
    const struct board *board, const uint8_t *absent, const uint64_t *absent_seq, char *buf, size_t bytes);
/* The same where nobody knows who is missed: who is gone, or behind the one that is furthest. */
const char *board_tell_all(const struct board *board, char *buf, size_t bytes);
/* "rank 1", "ranks 0-2, 5" of those whose flag is not 0; what has no room is " and more". */
const char *board_ranks(const uint8_t *flags, int size, char *buf, size_t bytes);

#endif
