/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The launcher: one process, one poll loop over a signalfd and one pipe a rank.
 */
#include "tools/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tools/out.h"

#define WORDS_BYTES 4096

struct child {
    pid_t pid; /* 0 once it has ended */
    pid_t was; /* its pid, for messages */
    int status;
    int order;  /* of ending, from 1 */
    int told;   /* ended after it was told to because another had failed */
    int fd;     /* where its last words come from; -1 = closed */
    size_t len; /* of words */
    char words[WORDS_BYTES];
};

struct launcher {
    const struct launch_desc *desc;
    struct child *children;
    int started, ended;
    int failed;     /* some rank failed: the others are to end */
    int asked;      /* the signal that asked for an end, 0 = none */
    int aborted;    /* the signal that asked for it twice */
    int signals;    /* signalfd */
    double kill_at; /* when patience ends; 0 = never */
    sigset_t blocked, before;
    char **argv; /* of the ranks, the program's name first */
    char job[32];
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int launch_tell(const char *text)
{
    const char *value = getenv("SHERD_ERROR_FD");
    int fd = value ? atoi(value) : -1;
    size_t len = strlen(text);
    if (fd < 3 || len == 0)
        return 0;
    len = len < WORDS_BYTES ? len : WORDS_BYTES - 1;
    return write(fd, text, len) == (ssize_t)len;
}

static int set_number(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof(text), "%d", value);
    return setenv(name, text, 1);
}

static int set_environment(const struct launcher *l, int rank, int fd)
{
    return set_number("RANK", rank) || set_number("WORLD_SIZE", l->desc->ranks) ||
           set_number("LOCAL_RANK", rank) || set_number("LOCAL_WORLD_SIZE", l->desc->ranks) ||
           set_number("SHERD_ERROR_FD", fd) || setenv("SHERD_JOB", l->job, 1) ||
           setenv("MASTER_ADDR", "127.0.0.1", 1);
}

/* In the child. Its own session keeps the terminal's signals with the launcher, who passes them on once; the
 * kernel ends it with the launcher even if that is killed. Never returns. */
static void become_rank(const struct launcher *l, int rank, int fd, pid_t launcher)
{
    setsid();
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != launcher)
        _exit(EXIT_FAILED);
    sigprocmask(SIG_SETMASK, &l->before, NULL);
    if (fcntl(fd, F_SETFD, 0) != 0 || set_environment(l, rank, fd) != 0)
        _exit(EXIT_FAILED);
    execv("/proc/self/exe", l->argv);
    fprintf(stderr, "sherd: rank %d: this program cannot be started again: %s\n", rank, strerror(errno));
    _exit(EXIT_FAILED);
}

static int start_rank(struct launcher *l, int rank)
{
    int ends[2];
    pid_t self = getpid(), pid = -1;
    struct child *child = &l->children[rank];
    if (pipe2(ends, O_CLOEXEC) == 0) {
        pid = fork();
        if (pid == 0)
            become_rank(l, rank, ends[1], self);
        close(ends[1]);
        if (pid < 0)
            close(ends[0]);
    }
    if (pid < 0) {
        fprintf(
            stderr, "sherd: rank %d of %d could not be started: %s\n", rank, l->desc->ranks, strerror(errno));
        return EXIT_FAILED;
    }
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    *child = (struct child){ .pid = pid, .was = pid, .fd = ends[0] };
    l->started++;
    return EXIT_OK;
}

static void signal_all(const struct launcher *l, int sig)
{
    for (int r = 0; r < l->started; r++)
        if (l->children[r].pid > 0)
            kill(l->children[r].pid, sig);
}

/* A rank failed: the others are asked to end (they may be ending already), and ended when patience is over.
 */
static void end_others(struct launcher *l)
{
    if (l->failed)
        return;
    l->failed = 1;
    l->kill_at = now() + l->desc->grace;
    for (int r = 0; r < l->started; r++)
        l->children[r].told = l->children[r].pid > 0;
    if (!l->asked)
        signal_all(l, SIGTERM);
}

static void read_words(struct child *child)
{
    char rest[512];
    while (child->fd >= 0) {
        size_t room = WORDS_BYTES - 1 - child->len;
        ssize_t n = read(child->fd, room ? child->words + child->len : rest, room ? room : sizeof(rest));
        if (n > 0 && room)
            child->len += (size_t)n;
        if (n > 0 || (n < 0 && errno == EINTR))
            continue;
        if (n < 0 && errno == EAGAIN)
            return;
        close(child->fd);
        child->fd = -1;
    }
}

static int failed(const struct child *child)
{
    return !WIFEXITED(child->status) ||
           (WEXITSTATUS(child->status) != EXIT_OK && WEXITSTATUS(child->status) != EXIT_STOPPED);
}

static void reap(struct launcher *l)
{
    for (int r = 0; r < l->started; r++) {
        struct child *child = &l->children[r];
        if (child->pid <= 0 || waitpid(child->pid, &child->status, WNOHANG) != child->pid)
            continue;
        child->pid = 0;
        child->order = ++l->ended;
        read_words(child);
    }
    for (int r = 0; r < l->started; r++)
        if (l->children[r].pid == 0 && failed(&l->children[r]))
            end_others(l);
}

/* The first request to end goes to all ranks, who save and stop; the second ends them. USR1 (sent ahead of
 * the real end by batch systems) only asks. */
static void on_signal(struct launcher *l, int sig)
{
    if (sig == SIGCHLD) {
        reap(l);
        return;
    }
    if (sig != SIGUSR1 && (l->asked || l->failed)) {
        l->aborted = sig;
        signal_all(l, SIGKILL);
        return;
    }
    if (sig != SIGUSR1)
        l->asked = sig;
    fprintf(stderr, "sherd: SIG%s: asking all ranks to save and stop%s\n", sigabbrev_np(sig),
        sig == SIGUSR1 ? "" : " (once more ends them at once)");
    signal_all(l, sig == SIGHUP ? SIGTERM : sig);
}

static void wait_event(struct launcher *l, struct pollfd *polls)
{
    int n = 0, patience = -1;
    polls[n++] = (struct pollfd){ .fd = l->signals, .events = POLLIN };
    for (int r = 0; r < l->started; r++)
        if (l->children[r].fd >= 0)
            polls[n++] = (struct pollfd){ .fd = l->children[r].fd, .events = POLLIN };
    if (l->kill_at > 0) {
        double left = l->kill_at - now();
        patience = left > 0 ? (int)(left * 1000) + 1 : 0;
    }
    poll(polls, (nfds_t)n, patience);
    for (int r = 0; r < l->started; r++)
        read_words(&l->children[r]);
    struct signalfd_siginfo info;
    while (read(l->signals, &info, sizeof(info)) == (ssize_t)sizeof(info))
        on_signal(l, (int)info.ssi_signo);
    if (l->kill_at > 0 && now() >= l->kill_at) {
        signal_all(l, SIGKILL);
        l->kill_at = 0;
    }
}

/* The rank to blame: the first that failed by itself, not because another had. */
static const struct child *find_culprit(const struct launcher *l)
{
    const struct child *best = NULL;
    int best_worth = 0;
    for (int r = 0; r < l->started; r++) {
        const struct child *c = &l->children[r];
        if (!failed(c))
            continue;
        int signaled = WIFSIGNALED(c->status), peer = !signaled && WEXITSTATUS(c->status) == EXIT_PEER;
        int ours = c->told && signaled && (WTERMSIG(c->status) == SIGTERM || WTERMSIG(c->status) == SIGKILL);
        int worth = ours ? 1 : peer ? 2 : 3;
        if (!best || worth > best_worth || (worth == best_worth && c->order < best->order)) {
            best = c;
            best_worth = worth;
        }
    }
    return best;
}

static void describe(const struct launcher *l, const struct child *c, const char *also)
{
    int rank = (int)(c - l->children);
    fprintf(stderr, "sherd: rank %d of %d (pid %d) ", rank, l->desc->ranks, (int)c->was);
    if (WIFSIGNALED(c->status)) {
        int sig = WTERMSIG(c->status);
        fprintf(stderr, "%swas killed by SIG%s%s\n", also, sigabbrev_np(sig),
            sig == SIGKILL ? " (often the host ran out of memory: see its kernel log)" : "");
        return;
    }
    fprintf(stderr, "%sfailed: %s\n", also, c->len ? c->words : "it gave no reason; see its messages above");
    if (!c->len)
        fprintf(stderr, "sherd: its exit code was %d\n", WEXITSTATUS(c->status));
}

/* The last lines: other ranks that failed by themselves, then the one to blame. */
static void tell(const struct launcher *l, const struct child *culprit)
{
    for (int r = 0; r < l->started; r++) {
        const struct child *c = &l->children[r];
        if (c != culprit && failed(c) && !WIFSIGNALED(c->status) && WEXITSTATUS(c->status) != EXIT_PEER)
            describe(l, c, "also ");
    }
    describe(l, culprit, "");
}

static int outcome(const struct launcher *l)
{
    int stopped = 0;
    if (l->aborted) {
        fprintf(
            stderr, "sherd: all ranks ended by a second SIG%s, without saving\n", sigabbrev_np(l->aborted));
        return 128 + l->aborted;
    }
    const struct child *culprit = find_culprit(l);
    if (!culprit) {
        for (int r = 0; r < l->started; r++)
            stopped |= WEXITSTATUS(l->children[r].status) == EXIT_STOPPED;
        return stopped ? EXIT_STOPPED : EXIT_OK;
    }
    int sig = WIFSIGNALED(culprit->status) ? WTERMSIG(culprit->status) : 0;
    if (l->asked && (sig == l->asked || (sig == SIGTERM && l->asked == SIGHUP))) {
        fprintf(stderr, "sherd: ended by SIG%s\n", sigabbrev_np(l->asked));
        return 128 + l->asked;
    }
    tell(l, culprit);
    if (sig)
        return 128 + sig;
    /* When all only noticed (a rank stands still), it is the job as a whole that failed. */
    return WEXITSTATUS(culprit->status) == EXIT_PEER ? EXIT_FAILED : WEXITSTATUS(culprit->status);
}

static int copy_argv(struct launcher *l)
{
    int n = 0;
    while (l->desc->argv[n])
        n++;
    l->argv = calloc((size_t)n + 2, sizeof(*l->argv));
    if (!l->argv)
        return -1;
    l->argv[0] = program_invocation_short_name;
    memcpy(l->argv + 1, l->desc->argv, (size_t)n * sizeof(*l->argv));
    return 0;
}

/* Signals that the parent chose to ignore (nohup, background jobs) stay ignored. */
static int prepare(struct launcher *l)
{
    struct sigaction old;
    uint64_t token;
    if (copy_argv(l) != 0)
        return -1;
    if (getrandom(&token, sizeof(token), 0) != (ssize_t)sizeof(token))
        return -1;
    snprintf(l->job, sizeof(l->job), "%016llx", (unsigned long long)token);
    sigemptyset(&l->blocked);
    for (const int *s = (const int[]){ SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1, 0 }; *s; s++)
        if (sigaction(*s, NULL, &old) == 0 && old.sa_handler != SIG_IGN)
            sigaddset(&l->blocked, *s);
    if (sigprocmask(SIG_BLOCK, &l->blocked, &l->before) != 0)
        return -1;
    l->signals = signalfd(-1, &l->blocked, SFD_CLOEXEC | SFD_NONBLOCK);
    return l->signals < 0 ? -1 : 0;
}

int launch_ranks(const struct launch_desc *desc)
{
    struct launcher l = { .desc = desc, .signals = -1 };
    struct pollfd *polls = calloc((size_t)desc->ranks + 1, sizeof(*polls));
    int code = EXIT_OK;
    l.children = calloc((size_t)desc->ranks, sizeof(*l.children));
    if (!polls || !l.children || prepare(&l) != 0) {
        fprintf(stderr, "sherd: %d ranks could not be prepared: %s\n", desc->ranks, strerror(errno));
        code = EXIT_FAILED;
        goto out;
    }
    for (int r = 0; r < desc->ranks && code == EXIT_OK; r++)
        code = start_rank(&l, r);
    if (code != EXIT_OK)
        signal_all(&l, SIGKILL);
    while (l.ended < l.started)
        wait_event(&l, polls);
    code = code == EXIT_OK ? outcome(&l) : code;
out:
    if (l.signals >= 0) {
        close(l.signals);
        sigprocmask(SIG_SETMASK, &l.before, NULL);
    }
    free(polls);
    free(l.children);
    free(l.argv);
    return code;
}
