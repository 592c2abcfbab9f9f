/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * One rank as a child process: starting it in a session of its own, its last words, its output, and the text
 * of how it ended. Called by tools/attempt.c.
 */
#ifndef SHERD_TOOLS_CHILD_H
#define SHERD_TOOLS_CHILD_H

#include <signal.h>
#include <sys/types.h>

#include "tools/launch.h"

#define WORDS_BYTES 4096
#define CHILD_FDS 3 /* of a child that a loop waits on */

/* Where the ranks of this host stand in one attempt of the job. */
struct launch_place {
    int first, world; /* ranks first .. first + ranks - 1 of the world are here */
    int node;         /* of this host */
    int attempt;      /* from 0 */
    char host[128];   /* MASTER_ADDR, */
    int port;         /* MASTER_PORT, for programs of others; */
    int meet_port;    /* and where sherd's ranks meet at that host: 0 = not needed */
    int meet_door;    /* a socket that listens there, for rank 0; -1 = rank 0 is elsewhere */
    char job[64];
};

struct child_stream {
    int from; /* the end of a pipe that the rank writes to; -1 = closed */
    int file; /* where it is kept; -1 = nowhere */
};

struct child {
    pid_t pid; /* 0 once it has ended */
    pid_t was; /* its pid, for messages and for its group */
    int rank, world;
    int status;
    int order;  /* of ending, from 1 */
    int told;   /* ended after it was told to because another had failed */
    int fd;     /* where its last words come from; -1 = closed */
    size_t len; /* of words */
    char words[WORDS_BYTES];
    struct child_stream streams[2]; /* standard output and error, where they are kept */
    char log[512];                  /* the file of its standard error, "" = none */
};

/* Starts local rank `local`; `before` are the signals that it shall have blocked. Returns 0, or -1 with the
 * reason in errno. */
int child_start(struct child *child, const struct launch_desc *desc, const struct launch_place *place,
    int local, const sigset_t *before);
/* Takes what can be read of its words and its output. */
void child_read(struct child *child);
/* Sends a signal to the rank; SIGKILL to all that it started, too, and after its end. */
void child_signal(const struct child *child, int sig);
/* Closes what is open. */
void child_finish(struct child *child);

int child_failed(const struct child *child);
/* 1 = it ended because we ended it, 2 = it noticed that another had failed, 3 = by itself; 0 = no failure. */
int child_worth(const struct child *child);
int child_code(const struct child *child); /* as a shell would tell it */
/* "WHO was killed by SIGKILL ..." */
void child_describe(const struct child *child, const char *who, const char *also, char *out, size_t bytes);

/* How often the kernel ended a process here because memory was short; -1 where that cannot be read. */
long child_oom_kills(void);

#endif
