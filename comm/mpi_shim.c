/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * One MPI behind the table of comm/mpi_shim.h, and the thread that makes all calls to it. Starting and ending
 * MPI wait for all ranks, without bound where one stands still or the network is gone; so others wait for the
 * thread, with a bound, and a process whose MPI does not end leaves by _exit.
 */
#include "comm/mpi_shim.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <mpi.h>

#define FLUSH_SECONDS 10
#define LEAVE_SECONDS 5.0 /* once all ranks are there */

enum stage { NOT_BEGUN, BEGINNING, FAILED, BEGUN, ENDING, LEAVING, LEFT, ENDED };

static struct {
    pthread_mutex_t lock; /* around all below */
    pthread_cond_t changed;
    enum stage stage;
    int borrowed; /* the program has started MPI itself, and ends it */
    int broken;
    int rank, size;
    char why[256];
    double seconds;
    void (*warn)(const char *text);
    void (*work)(void *ctx);
    void *ctx;
} mpi = { .lock = PTHREAD_MUTEX_INITIALIZER };

_Static_assert(sizeof(MPI_Request) <= sizeof(struct mpi_message), "a request does not fit");

static MPI_Request *request(struct mpi_message *m)
{
    return (MPI_Request *)(void *)m;
}

static int told(int r, char *why, size_t bytes)
{
    char text[MPI_MAX_ERROR_STRING];
    int n = 0;
    if (r == MPI_SUCCESS)
        return 0;
    MPI_Error_string(r, text, &n);
    snprintf(why, bytes, "%.*s", n, text);
    return -1;
}

/* ---- MPI's thread ---- */

static int begin(int *borrowed, int *rank, int *size, char *why, size_t bytes)
{
    int level = MPI_THREAD_SINGLE;
    MPI_Initialized(borrowed);
    if (!*borrowed) {
        if (told(MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level), why, bytes) != 0)
            return -1;
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    } else {
        MPI_Query_thread(&level);
        if (level < MPI_THREAD_MULTIPLE) {
            snprintf(why, bytes, "the program has started it without MPI_THREAD_MULTIPLE");
            return -1;
        }
    }
    int r = MPI_Comm_rank(MPI_COMM_WORLD, rank);
    return told(r == MPI_SUCCESS ? MPI_Comm_size(MPI_COMM_WORLD, size) : r, why, bytes);
}

static void set_stage(enum stage stage)
{
    mpi.stage = stage;
    pthread_cond_broadcast(&mpi.changed);
}

/* Under the lock: works until the process ends. */
static void serve(void)
{
    while (mpi.stage != ENDING) {
        if (!mpi.work) {
            pthread_cond_wait(&mpi.changed, &mpi.lock);
            continue;
        }
        pthread_mutex_unlock(&mpi.lock);
        mpi.work(mpi.ctx);
        pthread_mutex_lock(&mpi.lock);
        mpi.work = NULL;
        pthread_cond_broadcast(&mpi.changed);
    }
}

static void move_to(enum stage stage)
{
    pthread_mutex_lock(&mpi.lock);
    set_stage(stage);
    pthread_mutex_unlock(&mpi.lock);
}

static void come_together(void)
{
    MPI_Request all = MPI_REQUEST_NULL;
    int done = 0;
    MPI_Ibarrier(MPI_COMM_WORLD, &all);
    while (!done && MPI_Test(&all, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS)
        nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
}

#ifdef MPICH_VERSION
/* A farewell to the process manager by its own protocol (PMI 1), which takes whoever leaves without for one
 * that has failed. Returns 0 where there is no such manager. */
static int leave_manager(void)
{
    static const char goodbye[] = "cmd=finalize\n";
    const char *fd = getenv("PMI_FD");
    char answer = 0;
    if (!fd || write(atoi(fd), goodbye, sizeof(goodbye) - 1) != (ssize_t)sizeof(goodbye) - 1)
        return 0;
    while (answer != '\n' && read(atoi(fd), &answer, 1) == 1)
        ;
    return 1;
}
#endif

/* Whoever is at work still is waited for with patience; from there on it is a matter of a moment. MPICH over
 * UCX may not come out of MPI_Finalize: ranks wait for each other to close connections while others wait for
 * them at the process manager, making no progress. So its ranks come together twice, that nobody leaves who
 * is still read from, and go without it. Nothing here has a bound of its own, as MPI's calls cannot have one:
 * say_goodbye waits for each stage with one, tells what did not come to its end, and the process leaves by
 * _exit with this thread wherever it is. */
static void leave(void)
{
    come_together();
    move_to(LEAVING);
#ifdef MPICH_VERSION
    come_together();
    if (leave_manager()) {
        move_to(LEFT);
        return;
    }
#endif
    MPI_Finalize();
    move_to(ENDED);
}

static void *live(void *unused)
{
    char why[sizeof(mpi.why)] = "";
    int borrowed = 0, rank = 0, size = 0, st = begin(&borrowed, &rank, &size, why, sizeof(why));
    pthread_mutex_lock(&mpi.lock);
    mpi.borrowed = borrowed;
    mpi.rank = rank;
    mpi.size = size;
    memcpy(mpi.why, why, sizeof(why));
    set_stage(st == 0 ? BEGUN : FAILED);
    if (st == 0)
        serve();
    pthread_mutex_unlock(&mpi.lock);
    if (st == 0)
        leave();
    return unused;
}

/* ---- the others ---- */

static struct timespec after(double seconds)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)seconds + 1;
    return until;
}

/* Under the lock: until MPI's thread has left the stage. Returns 0 where it does not in time. */
static int await(enum stage left, double seconds)
{
    struct timespec until = after(seconds);
    while (mpi.stage == left && pthread_cond_timedwait(&mpi.changed, &mpi.lock, &until) == 0)
        ;
    return mpi.stage != left;
}

/* Under the lock. */
static void say_goodbye(void)
{
    char text[256];
    set_stage(ENDING);
    int all = await(ENDING, mpi.seconds);
    if ((all && await(LEAVING, LEAVE_SECONDS)) || !mpi.warn)
        return;
    snprintf(text, sizeof(text), "MPI_Finalize has not come back in %g s%s; this process ends without it",
        all ? LEAVE_SECONDS : mpi.seconds,
        all ? ", though all ranks are there" : ": a rank or the network is gone");
    mpi.warn(text);
}

/* At the end of the process, before what MPI itself does there, which may wait without bound too. Output that
 * nobody takes does not keep the process either. */
static void end(int status, void *unused)
{
    (void)unused;
    pthread_mutex_lock(&mpi.lock);
    if (!mpi.broken && mpi.stage == BEGUN && !mpi.work)
        say_goodbye();
    int whole = mpi.stage == ENDED;
    pthread_mutex_unlock(&mpi.lock);
    if (whole)
        return;
    signal(SIGALRM, SIG_DFL);
    alarm(FLUSH_SECONDS);
    fflush(NULL);
    _exit(status);
}

/* Under the lock. Signals are for the threads of the program. */
static int start_thread(void)
{
    pthread_t thread;
    pthread_condattr_t clock;
    sigset_t all, before;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&mpi.changed, &clock);
    pthread_condattr_destroy(&clock);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    mpi.stage = BEGINNING;
    int error = pthread_create(&thread, NULL, live, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) {
        mpi.stage = NOT_BEGUN;
        snprintf(mpi.why, sizeof(mpi.why), "a thread for it cannot be started: %s", strerror(error));
        return -1;
    }
    pthread_detach(thread);
    return 0;
}

static int start(int *rank, int *size, double seconds, void (*warn)(const char *), char *why, size_t bytes)
{
    pthread_mutex_lock(&mpi.lock);
    int first = mpi.stage == NOT_BEGUN;
    mpi.seconds = seconds;
    mpi.warn = warn;
    if (first && start_thread() == 0 && !await(BEGINNING, seconds))
        snprintf(mpi.why, sizeof(mpi.why),
            "MPI_Init has not come back in %g s: has every rank started, and can the hosts reach each other?",
            seconds);
    int ok = mpi.stage == BEGUN && !mpi.broken;
    if (!ok)
        mpi.broken = 1;
    if (first && !mpi.borrowed && mpi.stage != NOT_BEGUN)
        on_exit(end, NULL);
    *rank = mpi.rank;
    *size = mpi.size;
    snprintf(why, bytes, "%s", mpi.why[0] ? mpi.why : "it has failed before in this process");
    pthread_mutex_unlock(&mpi.lock);
    return ok ? 0 : -1;
}

static int run(void (*work)(void *), void *ctx)
{
    pthread_mutex_lock(&mpi.lock);
    int free = mpi.stage == BEGUN && !mpi.work && !mpi.broken;
    if (free) {
        mpi.work = work;
        mpi.ctx = ctx;
        pthread_cond_broadcast(&mpi.changed);
    }
    pthread_mutex_unlock(&mpi.lock);
    return free ? 0 : -1;
}

static int idle(double seconds)
{
    struct timespec until = after(seconds);
    pthread_mutex_lock(&mpi.lock);
    while (mpi.work && pthread_cond_timedwait(&mpi.changed, &mpi.lock, &until) == 0)
        ;
    int is_idle = !mpi.work;
    pthread_mutex_unlock(&mpi.lock);
    return is_idle ? 0 : -1;
}

static void broken(void)
{
    pthread_mutex_lock(&mpi.lock);
    mpi.broken = 1;
    pthread_mutex_unlock(&mpi.lock);
}

/* ---- messages ---- */

static int send(struct mpi_message *m, const void *data, int bytes, int to, int tag, char *why, size_t room)
{
    return told(MPI_Isend(data, bytes, MPI_BYTE, to, tag, MPI_COMM_WORLD, request(m)), why, room);
}

static int receive(struct mpi_message *m, void *data, int bytes, int from, int tag, char *why, size_t room)
{
    return told(MPI_Irecv(data, bytes, MPI_BYTE, from, tag, MPI_COMM_WORLD, request(m)), why, room);
}

static int test(struct mpi_message *m, int *done, char *why, size_t room)
{
    return told(MPI_Test(request(m), done, MPI_STATUS_IGNORE), why, room);
}

__attribute__((visibility("default"))) extern const struct mpi_shim sherd_mpi_shim;
const struct mpi_shim sherd_mpi_shim = {
    .version = MPI_SHIM_VERSION,
    .start = start,
    .run = run,
    .idle = idle,
    .broken = broken,
    .send = send,
    .receive = receive,
    .test = test,
};
