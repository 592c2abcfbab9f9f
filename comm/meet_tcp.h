/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * How the ranks of several hosts find each other: rank 0 listens at an address that all were told, the others
 * come there, say who they are and where they listen, and get the list of all when all have come.
 * Called by comm/tcp.c; does not care what is sent over the connections that the ranks make from the list.
 */
#ifndef SHERD_COMM_MEET_TCP_H
#define SHERD_COMM_MEET_TCP_H

#include <stdint.h>

#include "comm/net.h"

/* A rank, as the others see it. */
struct meet_place {
    char host[NET_HOST_BYTES];    /* its name, for messages */
    char address[NET_TEXT_BYTES]; /* numeric; "" = where rank 0 was reached */
    int32_t port, pid, first;     /* first = the lowest rank of its host, as far as it knows */
};

struct meet_tcp {
    const char *job; /* names the job; shorter than MEET_JOB_BYTES */
    int rank, size, local_rank;
    const char *master; /* where rank 0 is met: a name or an address, or several with commas */
    int port;
    int door;              /* rank 0: a socket that listens there already, or -1. Taken over */
    const char *interface; /* NCCL_SOCKET_IFNAME, or NULL */
    double timeout;        /* seconds for all to come */
    /* Results; the caller closes listener, which is left open only on success. */
    int listener;
    struct net_address from;   /* the interface to use, see net_interface */
    struct net_address rank0;  /* where rank 0 was reached; of others only */
    uint64_t token;            /* of this meeting: of no other job */
    struct meet_place *places; /* of `size` ranks; the caller's memory */
};

/* ETIMEDOUT names the ranks that have not come; ECOMM where one may not come (it says another world size, or
 * its rank is taken), or rank 0 cannot be reached; EPEER where one went away. All who have come get the
 * sentence. */
int meet_tcp(struct meet_tcp *meet);

/* What travels, here for tests. All ranks run one build on one kind of processor: the magic tells others. */
#define MEET_TCP_MAGIC "sherdnt"
#define MEET_TCP_VERSION 1
#define MEET_TCP_JOB_BYTES 128
struct meet_tcp_hello {
    char magic[8];
    int32_t version, rank, size, local_rank, pid, port;
    char job[MEET_TCP_JOB_BYTES];
    char host[NET_HOST_BYTES];
};
/* With status 0, `size` places come after it. */
struct meet_tcp_reply {
    char magic[8];
    int32_t version, status;
    uint64_t token;
    char text[504];
};

#endif
