/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The ranks of one host as child processes of this one: starting them, passing signals on, ending all when
 * one fails, and telling which failed first and why. Knows nothing of training.
 */
#ifndef SHERD_TOOLS_LAUNCH_H
#define SHERD_TOOLS_LAUNCH_H

struct launch_desc {
    int ranks;
    char *const *argv; /* of every rank: the command and what follows it, ended by NULL */
    double grace;      /* seconds between asking the other ranks to end and ending them */
};

/* Runs this program once for every rank, with RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and
 * SHERD_JOB set, and waits for all. Returns the exit code: 0, 75 (stopped on request), the code of the rank
 * that failed first (never 3, which is a rank's), or 128 + signal. No rank outlives this process, however it
 * ends. */
int launch_ranks(const struct launch_desc *desc);

/* Called by a rank: hands its last words to the launcher, if there is one (SHERD_ERROR_FD). Returns 1 if they
 * were taken, 0 if the rank has to show them itself. */
int launch_tell(const char *text);

#endif
