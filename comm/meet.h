/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * How the ranks of one host find each other: an abstract unix socket named after the user and the job, so
 * that there is no port and no file to clash on or to leave behind. Rank 0 listens and hands a file
 * descriptor to all when all have come; the meeting is over when all have put it to use.
 * Called by comm/shm.c; does not care what the descriptor is.
 */
#ifndef SHERD_COMM_MEET_H
#define SHERD_COMM_MEET_H

#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

struct meet {
    const char *job; /* names the job; shorter than MEET_JOB_BYTES */
    int rank, size;
    double timeout; /* seconds for all to come */
    int fd;         /* rank 0: what the others get, borrowed. Others: what they got, theirs to close */
    /* Others: puts fd to use; rank 0 is told of a failure. NULL = nothing is to be done. */
    int (*enter)(struct meet *meet);
    void *ctx;
};

/* ETIMEOUT names the ranks that have not come; ECOMM where one may not come (it says another world size, or
 * its rank is taken); EPEER where one went away. All who have come get the sentence, but for a failure of
 * enter: then rank 0 and the one that failed, and rank 0 must tell the others by way of what they share. */
int meet_host(struct meet *meet);

/* What travels, here for tests. Both ends run on one host, so the bytes are as they lie in memory. */
#define MEET_MAGIC "sherdmt"
#define MEET_VERSION 2
#define MEET_JOB_BYTES 128
struct meet_hello {
    char magic[8];
    int32_t version, rank, size, pid;
    char job[MEET_JOB_BYTES];
};
/* With status 0, a descriptor comes with it. The other rank answers in kind when it has entered, without one.
 */
struct meet_reply {
    char magic[8];
    int32_t version, status;
    char text[504];
};

/* The socket's name, returned with its length. */
socklen_t meet_address(struct sockaddr_un *out, const char *job);

#endif
