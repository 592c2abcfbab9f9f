/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The launchers of several hosts: host 0 listens, the others come; before each attempt all learn where their
 * ranks stand, while it runs each is heard every second, and after it they agree on how it ended. A host that
 * is not heard any more ends the attempt for the others.
 * Called by tools/launch.c and tools/attempt.c.
 */
#ifndef SHERD_TOOLS_NODES_H
#define SHERD_TOOLS_NODES_H

#include "tools/child.h"
#include "tools/launch.h"

/* How an attempt ended: on one host, and in the end on all. */
struct launch_outcome {
    int worth; /* as child_worth; of several failures the highest counts, then the first. 4 = asked for twice
                */
    int code;  /* the exit code */
    char text[2048]; /* the lines to show last, "" = none */
};

struct pollfd;
struct nodes;

/* Host 0 begins to listen, others come to it. Returns -1, or the exit code after the reason was shown. */
int nodes_open(struct nodes **out, const struct launch_desc *desc);
void nodes_close(struct nodes *nodes);

/* Waits for all hosts and fills the place of this one; attempt is set. Ends early when `signals` can be read.
 * Returns -1, or the exit code after the reason was shown. */
int nodes_gather(struct nodes *nodes, int signals, struct launch_place *place);

/* For the loop of an attempt: what to wait on (at most as many as hosts and NODES_MORE), and what came. */
#define NODES_MORE 9
int nodes_polls(const struct nodes *nodes, struct pollfd *polls);
void nodes_work(struct nodes *nodes);
/* Milliseconds until nodes_work must be called again. */
int nodes_patience(void);
/* Why the attempt is to end here, because of another host; NULL = it is not. */
const char *nodes_why(const struct nodes *nodes);
/* A rank of this host failed: the others are to end. */
void nodes_failed(struct nodes *nodes);

/* Agrees on the outcome with the other hosts: *out is this host's, then that of all. `again`: on host 0, that
 * the job may be started again; returned for all. */
int nodes_settle(struct nodes *nodes, int signals, int again, struct launch_outcome *out);

#endif
