/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * One attempt of a job.
 */
#include "tools/attempt.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "tools/guard.h"
#include "tools/out.h"

#define DRAIN_SECONDS 0.5   /* for output that is still under way from what a rank had started */
#define NOTICED_SECONDS 0.5 /* from a rank that noticed a failure to the words of the one that failed */

struct attempt {
    const struct launch_desc *desc;
    struct launch_signals *signals;
    struct nodes *nodes; /* NULL = this host alone */
    struct child *children;
    struct pollfd *polls;
    int started, ended;
    int failed;     /* some rank failed, here or elsewhere: the others are to end */
    double ask_at;  /* when they are asked to; 0 = they were, or need not be */
    double kill_at; /* when patience ends; 0 = never */
    long oom_kills; /* when it began */
    struct guard guard;
};

static void signal_all(const struct attempt *a, int sig)
{
    for (int r = 0; r < a->started; r++)
        child_signal(&a->children[r], sig);
}

/* A rank failed: the others are asked to end after this delay (they may be ending already), and ended when
 * patience is over. */
static void end_others(struct attempt *a, double delay)
{
    double now = clock_seconds();
    if (a->failed) {
        a->ask_at = a->ask_at > 0 ? fmin(a->ask_at, now + delay) : 0;
        return;
    }
    a->failed = 1;
    a->ask_at = now + delay;
    a->kill_at = now + delay + a->desc->grace;
    if (a->nodes && !nodes_why(a->nodes))
        nodes_failed(a->nodes);
}

static void ask_others(struct attempt *a)
{
    a->ask_at = 0;
    for (int r = 0; r < a->started; r++)
        a->children[r].told = a->children[r].pid > 0;
    if (!a->signals->asked)
        signal_all(a, SIGTERM);
}

static void reap(struct attempt *a)
{
    for (int r = 0; r < a->started; r++) {
        struct child *child = &a->children[r];
        if (child->pid <= 0 || waitpid(child->pid, &child->status, WNOHANG) != child->pid)
            continue;
        child->pid = 0;
        child->order = ++a->ended;
        child_read(child);
    }
    for (int r = 0; r < a->started; r++)
        if (a->children[r].pid == 0 && child_failed(&a->children[r]))
            end_others(a, child_worth(&a->children[r]) == 2 ? NOTICED_SECONDS : 0);
}

/* The first request to end goes to all ranks, who stop, and save where they train; the second ends them. USR1
 * (sent ahead of the real end by batch systems) only asks. */
static void on_signal(struct attempt *a, int sig)
{
    struct launch_signals *s = a->signals;
    if (sig == SIGCHLD) {
        reap(a);
        return;
    }
    if (sig != SIGUSR1 && s->asked && clock_seconds() - s->asked_at < LAUNCH_AGAIN_SECONDS)
        return;
    if (sig != SIGUSR1 && (s->asked || a->failed)) {
        s->aborted = sig;
        signal_all(a, SIGKILL);
        return;
    }
    if (sig != SIGUSR1) {
        s->asked = sig;
        s->asked_at = clock_seconds();
    }
    fprintf(stderr, "sherd: SIG%s: asking all ranks to stop%s\n", sigabbrev_np(sig),
        sig == SIGUSR1 ? "" : " (once more ends them at once)");
    signal_all(a, sig == SIGHUP ? SIGTERM : sig);
}

static int add_polls(const struct attempt *a)
{
    int n = 0;
    a->polls[n++] = (struct pollfd){ .fd = a->signals->fd, .events = POLLIN };
    for (int r = 0; r < a->started; r++) {
        const struct child *c = &a->children[r];
        const int fds[] = { c->fd, c->streams[0].from, c->streams[1].from };
        for (int i = 0; i < CHILD_FDS; i++)
            if (fds[i] >= 0)
                a->polls[n++] = (struct pollfd){ .fd = fds[i], .events = POLLIN };
    }
    return a->nodes ? n + nodes_polls(a->nodes, a->polls + n) : n;
}

static void wait_event(struct attempt *a)
{
    int patience = a->nodes ? nodes_patience() : -1, n = add_polls(a);
    if (a->kill_at > 0) {
        double left = (a->ask_at > 0 ? a->ask_at : a->kill_at) - clock_seconds();
        int ms = left > 0 ? (int)(left * 1000) + 1 : 0;
        patience = patience < 0 || ms < patience ? ms : patience;
    }
    poll(a->polls, (nfds_t)n, patience);
    for (int r = 0; r < a->started; r++)
        child_read(&a->children[r]);
    struct signalfd_siginfo info;
    while (read(a->signals->fd, &info, sizeof(info)) == (ssize_t)sizeof(info))
        on_signal(a, (int)info.ssi_signo);
    if (a->nodes) {
        nodes_work(a->nodes);
        if (nodes_why(a->nodes))
            end_others(a, 0);
    }
    if (a->ask_at > 0 && clock_seconds() >= a->ask_at)
        ask_others(a);
    if (a->kill_at > 0 && clock_seconds() >= a->kill_at) {
        signal_all(a, SIGKILL);
        a->kill_at = 0;
    }
}

/* The rank to blame: the first that failed by itself, not because another had. */
static const struct child *find_culprit(const struct attempt *a)
{
    const struct child *best = NULL;
    for (int r = 0; r < a->started; r++) {
        const struct child *c = &a->children[r];
        int worth = child_worth(c), most = best ? child_worth(best) : 0;
        if (worth > most || (best && worth == most && c->order < best->order))
            best = c;
    }
    return best;
}

static int same_words(const struct child *a, const struct child *b)
{
    return a->len > 0 && a->len == b->len && a->status == b->status &&
           memcmp(a->words, b->words, a->len) == 0;
}

/* "rank 2 of 4 (hosta, pid 77)", or "ranks 0-2 of 4 (hosta)" where several ended in the same words. */
static void name_ranks(const struct attempt *a, const struct child *one, char *out, size_t bytes)
{
    char host[64] = "", list[256] = "";
    int same = 0;
    if (gethostname(host, sizeof(host) - 1) != 0)
        snprintf(host, sizeof(host), "this host");
    for (int r = 0; r < a->started; r++) {
        int end = r;
        size_t len = strlen(list);
        if (&a->children[r] != one && !same_words(&a->children[r], one))
            continue;
        while (
            end + 1 < a->started && (&a->children[end + 1] == one || same_words(&a->children[end + 1], one)))
            end++;
        snprintf(list + len, sizeof(list) - len, end > r ? "%s%d-%d" : "%s%d", len ? ", " : "",
            a->children[r].rank, a->children[end].rank);
        same += end - r + 1;
        r = end;
    }
    if (same > 1)
        snprintf(out, bytes, "ranks %s of %d (%s)", list, one->world, host);
    else
        snprintf(out, bytes, "rank %d of %d (%s, pid %d)", one->rank, one->world, host, (int)one->was);
}

/* Other ranks of this host that failed by themselves, and with other words. */
static void tell_others(const struct attempt *a, const struct child *culprit)
{
    char text[WORDS_BYTES + 512], who[400];
    for (int r = 0; r < a->started; r++) {
        const struct child *c = &a->children[r];
        int told = c == culprit || same_words(c, culprit);
        for (int k = 0; k < r && !told; k++)
            told = same_words(c, &a->children[k]);
        if (told || child_worth(c) < 3 || WIFSIGNALED(c->status))
            continue;
        name_ranks(a, c, who, sizeof(who));
        child_describe(c, who, "also ", text, sizeof(text));
        fprintf(stderr, "sherd: %s\n", text);
    }
}

static void blame(const struct attempt *a, const struct child *culprit, struct launch_outcome *out)
{
    int sig = WIFSIGNALED(culprit->status) ? WTERMSIG(culprit->status) : 0, asked = a->signals->asked;
    char who[400];
    out->worth = child_worth(culprit);
    out->code = child_code(culprit);
    if (asked && (sig == asked || (sig == SIGTERM && asked == SIGHUP))) {
        out->worth = 4;
        out->code = 128 + asked;
        snprintf(out->text, sizeof(out->text), "ended by SIG%s", sigabbrev_np(asked));
        return;
    }
    tell_others(a, culprit);
    name_ranks(a, culprit, who, sizeof(who));
    child_describe(culprit, who, "", out->text, sizeof(out->text));
    long kills = child_oom_kills();
    size_t len = strlen(out->text);
    if (sig == SIGKILL && a->oom_kills >= 0 && kills > a->oom_kills)
        snprintf(out->text + len, sizeof(out->text) - len,
            "\nsherd: the kernel ended %ld process(es) of this control group for want of memory (oom_kill)",
            kills - a->oom_kills);
    /* When all only noticed (a rank stands still), it is the job as a whole that failed. */
    if (!sig && out->code == EXIT_PEER)
        out->code = EXIT_FAILED;
}

static void judge(const struct attempt *a, struct launch_outcome *out)
{
    int sig = a->signals->aborted, stopped = 0;
    const struct child *culprit = find_culprit(a);
    *out = (struct launch_outcome){ .code = EXIT_OK };
    if (sig) {
        *out = (struct launch_outcome){ .worth = 4, .code = 128 + sig };
        snprintf(out->text, sizeof(out->text), "all ranks ended by a second SIG%s, without saving",
            sigabbrev_np(sig));
    } else if (culprit) {
        blame(a, culprit, out);
    } else {
        for (int r = 0; r < a->started; r++)
            stopped |= WEXITSTATUS(a->children[r].status) == EXIT_STOPPED;
        out->code = stopped ? EXIT_STOPPED : EXIT_OK;
    }
}

static int start_ranks(struct attempt *a, const struct launch_place *place, struct launch_outcome *out)
{
    for (; a->started < a->desc->ranks; a->started++) {
        struct child *child = &a->children[a->started];
        if (child_start(child, a->desc, place, a->started, &a->signals->before) == 0) {
            guard_add(&a->guard, child->was);
            continue;
        }
        *out = (struct launch_outcome){ .worth = 3, .code = EXIT_FAILED };
        snprintf(out->text, sizeof(out->text), "rank %d of %d could not be started%s%s: %s", child->rank,
            place->world, child->log[0] ? ", or its file made: " : "", child->log, strerror(errno));
        signal_all(a, SIGKILL);
        end_others(a, 0);
        return -1;
    }
    return 0;
}

/* What is left in the pipes, and whatever the ranks had started themselves. */
static void clean_up(struct attempt *a)
{
    double until = clock_seconds() + DRAIN_SECONDS;
    signal_all(a, SIGKILL);
    for (int r = 0; r < a->started; r++) {
        struct child *c = &a->children[r];
        while ((c->streams[0].from >= 0 || c->streams[1].from >= 0) && clock_seconds() < until) {
            struct pollfd polls[] = { { .fd = c->streams[0].from, .events = POLLIN },
                { .fd = c->streams[1].from, .events = POLLIN } };
            poll(polls, 2, 50);
            child_read(c);
        }
        child_finish(c);
    }
}

void attempt_run(const struct launch_desc *desc, const struct launch_place *place,
    struct launch_signals *signals, struct nodes *nodes, struct launch_outcome *out)
{
    struct attempt a = { .desc = desc,
        .signals = signals,
        .nodes = nodes,
        .oom_kills = child_oom_kills(),
        .guard = { .fd = -1 } };
    int hosts = nodes ? desc->nodes.count : 0;
    a.children = calloc((size_t)desc->ranks, sizeof(*a.children));
    a.polls = calloc((size_t)desc->ranks * CHILD_FDS + (size_t)hosts + NODES_MORE + 1, sizeof(*a.polls));
    if (!a.children || !a.polls) {
        *out = (struct launch_outcome){ .worth = 3, .code = EXIT_FAILED };
        snprintf(out->text, sizeof(out->text), "%d ranks could not be prepared: out of memory", desc->ranks);
    } else {
        if (!desc->own)
            guard_start(&a.guard);
        int bad = start_ranks(&a, place, out);
        while (a.ended < a.started)
            wait_event(&a);
        if (!bad)
            judge(&a, out);
        clean_up(&a);
        guard_end(&a.guard);
    }
    free(a.children);
    free(a.polls);
}
