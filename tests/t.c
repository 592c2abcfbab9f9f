/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Ranks for tests. A rank, thread or process, writes how it ended into shared memory; a failure inside it
 * jumps back to where the rank began. Nothing outlives t_ranks: forked ranks die with their parent.
 */
#include "tests/t.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"

#define TEXT_BYTES 1000
#define LATE_SECONDS 5.0 /* for threads to end after an abort */

struct rank {
    _Atomic int done;
    _Atomic int failed;
    char text[TEXT_BYTES];
    int index, mode;
    int pid;
    pthread_t thread;
    t_rank_fn fn;
    void *ctx;
    struct sherd_device *dev;
    struct sherd_comm *comm;
    struct sherd_world world;
    double timeout;
    jmp_buf back;
};

static _Thread_local struct rank *this_rank;
static double deadline_seconds = 60, timeout_seconds = 30;

void t_limits(double deadline, double timeout)
{
    deadline_seconds = deadline > 0 ? deadline : 60;
    timeout_seconds = timeout > 0 ? timeout : 30;
}

static const char *device_kind = "cpu";

void t_device(const char *kind)
{
    device_kind = kind ? kind : "cpu";
}

static const char *comm_kind;

void t_kind(const char *kind)
{
    comm_kind = kind;
}

int t_free_port(void)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY) };
    socklen_t bytes = sizeof(at);
    int sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (sock < 0 || bind(sock, (struct sockaddr *)&at, bytes) != 0 ||
        getsockname(sock, (struct sockaddr *)&at, &bytes) != 0)
        T_FAIL("no port is free");
    close(sock);
    return ntohs(at.sin_port);
}

void *t_shared(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        T_FAIL("cannot map %zu bytes", bytes);
    return p;
}

void t_shared_free(void *p, size_t bytes)
{
    munmap(p, bytes);
}

void t_flip(const char *path, uint64_t offset)
{
    uint8_t byte;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    T_TRUE(fd >= 0);
    T_OK(file_pread(fd, &byte, 1, offset, path));
    byte ^= 0x40;
    T_OK(file_pwrite(fd, &byte, 1, offset, path));
    T_OK(file_close(fd, path));
}

uint64_t t_bits(uint64_t seed, uint64_t n)
{
    uint64_t x = (seed + 1) * 0x9e3779b97f4a7c15u + n * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

float t_float(uint64_t seed, uint64_t n)
{
    return (float)((double)(t_bits(seed, n) >> 40) / (double)(1 << 23) - 1.0);
}

void t_fail(const char *file, int line, const char *format, ...)
{
    char text[TEXT_BYTES];
    va_list args;
    va_start(args, format);
    int len = snprintf(text, sizeof(text), "%s:%d: ", file, line);
    vsnprintf(text + len, sizeof(text) - (size_t)len, format, args);
    va_end(args);
    struct rank *rank = this_rank;
    if (!rank) {
        fail_msg("%s", text);
        _exit(1); /* fail_msg does not come back */
    }
    memcpy(rank->text, text, sizeof(text));
    rank->failed = 1;
    longjmp(rank->back, 1);
}

void t_same_bits(const char *file, int line, const char *a_text, const char *b_text, const void *a,
    const void *b, size_t bytes)
{
    const unsigned char *x = a, *y = b;
    if (bytes == 0 || memcmp(x, y, bytes) == 0)
        return;
    size_t i = 0;
    while (x[i] == y[i])
        i++;
    t_fail(
        file, line, "%s and %s differ at byte %zu of %zu: %02x, %02x", a_text, b_text, i, bytes, x[i], y[i]);
}

static int is_async(const struct rank *rank)
{
    return (rank->mode & T_ASYNC) != 0;
}

/* Beside a GPU the threads draw weights, and a host with GPUs has many cores. */
static void open_device(struct rank *rank)
{
    char name[32];
    int cpu = strcmp(device_kind, "cpu") == 0;
    if (cpu)
        snprintf(name, sizeof(name), "cpu");
    else
        snprintf(name, sizeof(name), "%s:%d", device_kind, rank->index);
    T_OK(sherd_device_open(&rank->dev,
        &(struct sherd_device_desc){ .name = name, .threads = cpu ? 1 : 8, .async = is_async(rank) }));
}

/* The rank from its communicator on, in its own thread or process. */
static void run_rank(struct rank *rank)
{
    this_rank = rank;
    log_rank(rank->index);
    if (setjmp(rank->back) == 0) {
        if (!rank->dev)
            open_device(rank);
        if (!rank->comm)
            T_OK(sherd_comm_open(&rank->comm, rank->dev,
                &(struct sherd_comm_desc){
                    .world = rank->world, .timeout = rank->timeout, .kind = comm_kind }));
        rank->fn(rank->index, rank->comm, rank->dev, rank->ctx);
    } else if (rank->comm) {
        sherd_comm_abort(rank->comm, rank->text);
    }
    log_rank(-1);
    this_rank = NULL;
}

/* cmocka's handlers jump back into the test, which is wrong in a thread and worse in a forked rank. */
static const int crashes[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT };

static void crash_plainly(struct sigaction old[ARRAY_LEN(crashes)])
{
    struct sigaction plain = { .sa_handler = SIG_DFL };
    for (size_t i = 0; i < ARRAY_LEN(crashes); i++)
        sigaction(crashes[i], &plain, &old[i]);
}

static void nap(void)
{
    nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
}

static int all_done(const struct rank *ranks, int n)
{
    int done = 0;
    for (int r = 0; r < n; r++)
        done += ranks[r].done;
    return done == n;
}

/* ---- threads ---- */

static void *thread_main(void *arg)
{
    struct rank *rank = arg;
    run_rank(rank);
    rank->done = 1;
    return NULL;
}

static void run_threads(struct rank *ranks, int n)
{
    struct sherd_device **devs = calloc((size_t)n, sizeof(*devs));
    struct sherd_comm **comms = calloc((size_t)n, sizeof(*comms));
    for (int r = 0; r < n; r++) {
        open_device(&ranks[r]);
        devs[r] = ranks[r].dev;
    }
    T_OK(sherd_comm_open_threads(comms, devs, n, timeout_seconds));
    struct sigaction old[ARRAY_LEN(crashes)];
    crash_plainly(old);
    for (int r = 0; r < n; r++) {
        ranks[r].comm = comms[r];
        T_EQ(pthread_create(&ranks[r].thread, NULL, thread_main, &ranks[r]), 0);
    }
    double deadline = clock_seconds() + deadline_seconds;
    while (!all_done(ranks, n) && clock_seconds() < deadline)
        nap();
    if (!all_done(ranks, n)) {
        for (int r = 0; r < n; r++) {
            if (!ranks[r].done)
                fprintf(stderr, "rank %d of %d did not end in %g s\n", r, n, deadline_seconds);
        }
        sherd_comm_abort(comms[0], "the deadline of the test has passed");
        for (deadline = clock_seconds() + LATE_SECONDS; !all_done(ranks, n) && clock_seconds() < deadline;)
            nap();
        if (!all_done(ranks, n)) {
            fprintf(stderr, "some do not end even after an abort; the test program ends here\n");
            _exit(1);
        }
        snprintf(ranks[0].text, TEXT_BYTES, "the ranks did not end in %g s", deadline_seconds);
        ranks[0].failed = 1;
    }
    for (int r = 0; r < n; r++)
        pthread_join(ranks[r].thread, NULL);
    for (size_t i = 0; i < ARRAY_LEN(crashes); i++)
        sigaction(crashes[i], &old[i], NULL);
    int failed = 0;
    for (int r = 0; r < n; r++)
        failed |= ranks[r].failed;
    /* A failed rank may leave queues behind, with which a device cannot be closed. */
    for (int r = 0; r < n && !failed; r++) {
        sherd_comm_close(comms[r]);
        sherd_device_close(devs[r]);
    }
    free(comms);
    free(devs);
}

/* ---- processes ---- */

static void child_main(struct rank *rank, int parent)
{
    struct sigaction old[ARRAY_LEN(crashes)];
    crash_plainly(old);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    run_rank(rank);
    if (!rank->failed) {
        sherd_comm_close(rank->comm);
        sherd_device_close(rank->dev);
    }
    rank->done = 1;
    fflush(NULL);
    _exit(rank->failed ? 1 : 0);
}

static void judge(struct rank *rank, int status)
{
    int died = (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) ||
               (WIFEXITED(status) && WEXITSTATUS(status) == T_EXIT);
    int may_die = (rank->mode & T_MAY_DIE) && died;
    rank->pid = 0;
    if (rank->failed || rank->done || may_die) {
        rank->done = 1;
        return;
    }
    rank->failed = rank->done = 1;
    if (rank->text[0])
        return;
    if (WIFSIGNALED(status))
        snprintf(
            rank->text, TEXT_BYTES, "ended by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        snprintf(rank->text, TEXT_BYTES, "ended with exit code %d before it was done", WEXITSTATUS(status));
}

static void run_processes(struct rank *ranks, int n)
{
    static int runs;
    int parent = (int)getpid(), left = n, port = comm_kind ? t_free_port() : 0;
    runs++;
    fflush(NULL);
    for (int r = 0; r < n; r++) {
        ranks[r].world = (struct sherd_world){ .rank = r,
            .size = n,
            .local_rank = r,
            .local_size = n,
            .source = "test",
            .master = "127.0.0.1",
            .port = port };
        snprintf(ranks[r].world.job, sizeof(ranks[r].world.job), "test-%d-%d", parent, runs);
        int pid = (int)fork();
        if (pid == 0)
            child_main(&ranks[r], parent);
        ranks[r].pid = pid;
        if (pid < 0) {
            snprintf(ranks[r].text, TEXT_BYTES, "cannot fork");
            ranks[r].failed = 1;
            left--;
        }
    }
    for (double deadline = clock_seconds() + deadline_seconds; left > 0; nap()) {
        int late = clock_seconds() > deadline;
        for (int r = 0; r < n; r++) {
            int status = 0;
            if (ranks[r].pid <= 0)
                continue;
            if (late) {
                snprintf(ranks[r].text, TEXT_BYTES, "did not end in %g s", deadline_seconds);
                ranks[r].failed = 1;
                kill(ranks[r].pid, SIGKILL);
            }
            if (waitpid(ranks[r].pid, &status, late ? 0 : WNOHANG) == ranks[r].pid) {
                judge(&ranks[r], status);
                left--;
            }
        }
    }
}

/* ---- under mpirun ---- */

int t_mpi(void)
{
    return getenv("OMPI_COMM_WORLD_SIZE") != NULL || getenv("PMI_SIZE") != NULL;
}

static void run_here(int n, int mode, t_rank_fn fn, void *ctx)
{
    struct rank *rank = calloc(1, sizeof(*rank));
    *rank = (struct rank){ .mode = mode, .fn = fn, .ctx = ctx, .timeout = timeout_seconds };
    ASSERT_OK(sherd_world_from_env(&rank->world));
    if (rank->world.size == n) {
        const char *before = comm_kind;
        rank->index = rank->world.rank;
        comm_kind = "mpi";
        run_rank(rank);
        comm_kind = before;
        if (rank->failed) /* the others are told by the end of this process */
            fprintf(stderr, "rank %d of %d: %s\n", rank->index, n, rank->text);
        if (rank->failed)
            _exit(1);
        sherd_comm_close(rank->comm);
        sherd_device_close(rank->dev);
    }
    free(rank);
}

/* Frees them, and fails with what the failed ones have to say, in a case beside others as that case. */
static void end_ranks(const char *what, struct rank *ranks, int n)
{
    char text[4 * TEXT_BYTES] = "";
    size_t len = 0;
    for (int r = 0; r < n; r++) {
        if (ranks[r].failed && len + 64 < sizeof(text)) {
            int m =
                snprintf(text + len, sizeof(text) - len, "\n  %s %d of %d: %s", what, r, n, ranks[r].text);
            len = MIN(len + (size_t)m, sizeof(text) - 1);
        }
    }
    t_shared_free(ranks, (size_t)n * sizeof(*ranks));
    if (len && this_rank)
        T_FAIL("%s", text);
    if (len)
        fail_msg("%s", text);
}

void t_ranks(int n, int mode, t_rank_fn fn, void *ctx)
{
    if (t_mpi()) {
        run_here(n, mode, fn, ctx);
        return;
    }
    struct rank *ranks = t_shared((size_t)n * sizeof(struct rank));
    for (int r = 0; r < n; r++) {
        ranks[r].index = r;
        ranks[r].mode = mode;
        ranks[r].fn = fn;
        ranks[r].ctx = ctx;
        ranks[r].timeout = timeout_seconds;
    }
    if (mode & T_PROCESSES)
        run_processes(ranks, n);
    else
        run_threads(ranks, n);
    end_ranks("rank", ranks, n);
}

/* ---- beside each other ---- */

static void child_beside(struct rank *rank, int parent, void (*fn)(int i, void *ctx))
{
    struct sigaction old[ARRAY_LEN(crashes)];
    crash_plainly(old);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    this_rank = rank;
    if (setjmp(rank->back) == 0)
        fn(rank->index, rank->ctx);
    rank->done = 1;
    fflush(NULL);
    _exit(rank->failed ? 1 : 0);
}

void t_beside(int n, void (*fn)(int i, void *ctx), void *ctx)
{
    int parent = (int)getpid();
    struct rank *ranks = t_shared((size_t)n * sizeof(struct rank));
    fflush(NULL);
    for (int i = 0; i < n; i++) {
        ranks[i].index = i;
        ranks[i].ctx = ctx;
        int pid = (int)fork();
        if (pid == 0)
            child_beside(&ranks[i], parent, fn);
        ranks[i].pid = pid;
        if (pid < 0) {
            snprintf(ranks[i].text, TEXT_BYTES, "cannot fork");
            ranks[i].failed = 1;
        }
    }
    for (int i = 0; i < n; i++) {
        int status;
        if (ranks[i].pid > 0 && waitpid(ranks[i].pid, &status, 0) == ranks[i].pid)
            judge(&ranks[i], status);
    }
    end_ranks("case", ranks, n);
}
