/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * A job of ranks as child processes, on this host alone or together with launchers of other hosts: starting
 * them, passing signals on, ending all when one fails, telling which failed first and why, starting all
 * again. Knows nothing of training.
 */
#ifndef SHERD_TOOLS_LAUNCH_H
#define SHERD_TOOLS_LAUNCH_H

/* Batch systems ask for an end on several ways at once, or twice in a row: what comes sooner than this after
 * the first request is none to end at once. */
#define LAUNCH_AGAIN_SECONDS 1.0

/* The launchers of several hosts; see tools/nodes.h. */
struct launch_nodes {
    int count;        /* hosts; below 2 = this one alone */
    int rank;         /* of this host; -1 = in the order of coming */
    const char *host; /* where host 0 is met, */
    int port;
    const char *id; /* names the job: others are refused; "" = any */
    double join;    /* seconds for all hosts to come */
    double silent;  /* a host that is not heard for so long is given up */
};

struct launch_desc {
    int ranks;           /* on this host */
    char *const *argv;   /* of every rank, ended by NULL */
    int own;             /* argv is a command of this program, without the program's name */
    double grace;        /* seconds between asking the other ranks to end and ending them */
    int restarts;        /* how often all ranks are started again after a failure */
    const char *logs;    /* folder for the ranks' output; NULL = none is kept */
    int only_logged;     /* 1 = standard output, 2 = standard error of the ranks goes to its file alone */
    const char *address; /* given to the ranks as MASTER_ADDR and MASTER_PORT; NULL and 0 = chosen */
    int port;
    const char *role; /* ROLE_NAME of the ranks; NULL = default */
    struct launch_nodes nodes;
};

/* Runs the program once for every rank, with RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK,
 * MASTER_ADDR, MASTER_PORT, SHERD_JOB and the like set, ${local_rank} in argv replaced, and waits for all.
 * Returns the exit code: 0, 75 (stopped on request), the code of the rank that failed first (never 3, which
 * is a rank's), or 128 + signal. No rank outlives this process, however it ends. */
int launch_job(const struct launch_desc *desc);

/* Called by a rank: hands its last words to the launcher, if there is one (SHERD_ERROR_FD). Returns 1 if they
 * were taken, 0 if the rank has to show them itself. */
int launch_tell(const char *text);
/* Called by a rank: how often the job was started again before this. */
int launch_restarts(void);

#endif
