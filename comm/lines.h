/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The ranks of several hosts, connected: a line between every two, which carries short news (an abort, a
 * farewell, what the rank pins on its board) and whose end is the end of the rank; and the making of more
 * connections between the same ranks, a set of them for each channel of collectives. Called by comm/tcp.c
 * and, for the news alone, by comm/mpi.c. Safe from any thread.
 */
#ifndef SHERD_COMM_LINES_H
#define SHERD_COMM_LINES_H

#include <stdint.h>

#include "comm/ops.h"

struct pollfd;
struct lines;

/* Meets the others and draws the lines; collective. `door` as in struct meet_tcp, taken over also where this
 * fails; -1 is what the launcher may have left open. */
int lines_open(struct lines **out, const struct sherd_world *world, int door, double timeout);
struct lines *lines_hold(struct lines *lines);
/* The last user says farewell to the other ranks. */
void lines_drop(struct lines *lines);

/* Connects the channel with this number (above 0) with all ranks: socks[r] for every rank r but this one
 * (-1). Collective; numbers must not repeat. EPEER, ETIMEDOUT as always. */
int lines_connect(struct lines *lines, uint32_t channel, int *socks, double timeout);
/* A number for two channels that no others have; for rank 0 to ask, who counts. -1: there are too many. The
 * first two, from LINES_FIRST, are taken. */
#define LINES_FIRST 1
int lines_reserve(struct lines *lines);
void lines_release(struct lines *lines); /* two channels are closed */

/* Reads what has come, and returns OK, or EPEER where a rank has aborted or its process or host is gone.
 * Does not wait. */
int lines_check(struct lines *lines);
/* OK, or EPEER where an abort was read before or is this rank's own. Reads nothing. */
int lines_heard(struct lines *lines);
void lines_abort(struct lines *lines, const char *reason);
/* Why rank r no longer answers in a channel; waits a moment for its line to tell. `what` waited for it. */
int lines_lost(struct lines *lines, int r, const char *what, int error);

/* Whether rank r has said farewell. */
int lines_is_closed(struct lines *lines, int r);

/* The lines, to wait on beside other things: fills size - 1 entries at most, returns their number. */
int lines_poll(struct lines *lines, struct pollfd *polls);

/* The board of all ranks; a thread carries what this rank pins to the others, several times a second. */
struct board *lines_board(struct lines *lines);

#endif
