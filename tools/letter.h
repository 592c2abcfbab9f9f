/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What launchers of several hosts send each other: one kind of letter, of one size. Knows nothing of who
 * sends what when; that is nodes.c's.
 */
#ifndef SHERD_TOOLS_LETTER_H
#define SHERD_TOOLS_LETTER_H

#include <stddef.h>
#include <stdint.h>

enum letter_kind { HELLO = 1, REFUSED, START, BEAT, FAILED, END, RESULT, VERDICT };

struct letter {
    char magic[8];
    int32_t version, kind;
    int32_t node, nodes, ranks;                     /* HELLO */
    int32_t first, world, attempt, port, meet_port; /* START */
    int32_t worth, code, again;                     /* RESULT, VERDICT */
    char job[64], host[64];
    char text[2048];
};

/* Sends all of it to a socket that does not block, for `patience` seconds at most. One that could not be sent
 * whole ends the connection; without patience, one that cannot be begun is left out. */
void letter_send(int sock, const struct letter *letter, double patience);
/* Reads on into *in, of which *have bytes are there. 1: it is whole, and *have 0 again; 0: not yet; -1: the
 * connection has ended. */
int letter_read(int sock, struct letter *in, size_t *have);
/* Whether it is from a launcher of this version; ends its texts. */
int letter_is_ours(struct letter *letter);

#endif
