/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * One attempt of a job: the ranks of this host from their start to the end of the last, under one poll loop.
 * Called by tools/launch.c, which makes the attempts.
 */
#ifndef SHERD_TOOLS_ATTEMPT_H
#define SHERD_TOOLS_ATTEMPT_H

#include <signal.h>

#include "tools/child.h"
#include "tools/nodes.h"

/* Signals to the launcher, as a file descriptor. */
struct launch_signals {
    int fd;
    int asked; /* the signal that asked for an end, 0 = none */
    double asked_at;
    int aborted; /* the signal that asked for it twice */
    sigset_t blocked, before;
};

/* Runs the ranks; nodes may be NULL. */
void attempt_run(const struct launch_desc *desc, const struct launch_place *place,
    struct launch_signals *signals, struct nodes *nodes, struct launch_outcome *out);

#endif
