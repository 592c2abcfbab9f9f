/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The thread goes round all jobs, and everybody else is woken between two rounds. In each exchange a call is
 * sent, so that all see that all do the same, then the part; a channel is a tag.
 */
#include "comm/carry.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/status.h"

#define PIECE_BYTES ((size_t)1 << 30)
#define OUT_SECONDS 2.0    /* for MPI's thread to come out of a call */
#define SPIN_SECONDS 0.001 /* without a nap, when nothing moves */

struct carry {
    const struct mpi_shim *shim;
    int rank, size;
    pthread_mutex_t lock; /* around all below, and the states of jobs */
    pthread_cond_t come;  /* work for the thread */
    pthread_cond_t turned;
    struct carry_job *jobs[CARRY_JOBS];
    int n;
    int turning; /* the thread is at the jobs */
    int asked;   /* who wait for it to come back from them */
    int stop;
    _Atomic int given_up; /* the others have gone while the thread was in a call: it may touch nothing more */
};

/* ---- on MPI's thread ---- */

static int fail(struct carry_job *job, int r, unsigned int state)
{
    job->now.with = r;
    job->now.state = state;
    return -1;
}

/* A call of MPI's has come back with `st`. */
static int back(const struct carry *c, struct carry_job *job, int r, int st)
{
    return st == 0 && !atomic_load(&c->given_up) ? 0 : fail(job, r, CARRY_FAILED);
}

static int send(const struct carry *c, struct carry_job *job, int r, struct mpi_message *m, const void *data,
    size_t bytes)
{
    return back(c, job, r, c->shim->send(m, data, (int)bytes, r, job->tag, job->why, sizeof(job->why)));
}

static int receive(
    const struct carry *c, struct carry_job *job, int r, struct mpi_message *m, void *data, size_t bytes)
{
    return back(c, job, r, c->shim->receive(m, data, (int)bytes, r, job->tag, job->why, sizeof(job->why)));
}

static int begin(const struct carry *c, struct carry_job *job, int r)
{
    struct carry_leg *leg = &job->legs[r];
    if (receive(c, job, r, &leg->call_in, &leg->theirs, sizeof(leg->theirs)) != 0)
        return -1;
    leg->has_call_in = 1;
    if (send(c, job, r, &leg->call_out, job->call, sizeof(*job->call)) != 0)
        return -1;
    leg->has_call_out = 1;
    job->now.moved++;
    return 0;
}

/* Ends a message that is under way if it is done. */
static int test(const struct carry *c, struct carry_job *job, int r, struct mpi_message *m, int *under_way)
{
    int done = 0;
    if (*under_way && back(c, job, r, c->shim->test(m, &done, job->why, sizeof(job->why))) != 0)
        return -1;
    if (done) {
        *under_way = 0;
        job->now.moved++;
    }
    return 0;
}

/* The next piece each way. Nothing is received before the other's call is known to be ours. */
static int go_on(const struct carry *c, struct carry_job *job, int r)
{
    struct carry_leg *leg = &job->legs[r];
    const struct mesh_part *part = &job->parts[r];
    size_t out = MIN(part->out_bytes - leg->sent, PIECE_BYTES),
           in = MIN(part->in_bytes - leg->got, PIECE_BYTES);
    if (leg->has_call_in)
        return 0;
    if (!leg->has_out && out > 0) {
        if (send(c, job, r, &leg->out, (const char *)part->out + leg->sent, out) != 0)
            return -1;
        leg->has_out = 1;
        leg->sent += out;
    }
    if (!leg->has_in && in > 0) {
        if (receive(c, job, r, &leg->in, (char *)part->in + leg->got, in) != 0)
            return -1;
        leg->has_in = 1;
        leg->got += in;
    }
    return 0;
}

static int is_done(const struct carry_job *job, int r)
{
    const struct carry_leg *leg = &job->legs[r];
    const struct mesh_part *part = &job->parts[r];
    return !leg->has_call_out && !leg->has_call_in && !leg->has_out && !leg->has_in &&
           leg->sent == part->out_bytes && leg->got == part->in_bytes;
}

static int work(const struct carry *c, struct carry_job *job, int r)
{
    struct carry_leg *leg = &job->legs[r];
    int unknown = leg->has_call_in;
    if (test(c, job, r, &leg->call_out, &leg->has_call_out) != 0 ||
        test(c, job, r, &leg->call_in, &leg->has_call_in) != 0)
        return -1;
    if (unknown && !leg->has_call_in && memcmp(&leg->theirs, job->call, sizeof(*job->call)) != 0)
        return fail(job, r, CARRY_DIFFERS);
    if (test(c, job, r, &leg->out, &leg->has_out) != 0 || test(c, job, r, &leg->in, &leg->has_in) != 0)
        return -1;
    return go_on(c, job, r);
}

static void turn(const struct carry *c, struct carry_job *job)
{
    int left = 0, st = 0;
    for (int r = 0; r < c->size && st == 0 && !job->begun; r++)
        if (r != c->rank)
            st = begin(c, job, r);
    job->begun = 1;
    for (int r = 0; r < c->size && st == 0; r++) {
        if (r == c->rank || is_done(job, r))
            continue;
        st = work(c, job, r);
        left += !is_done(job, r);
    }
    if (st == 0 && left == 0)
        job->now.state = CARRY_DONE;
}

/* Under the lock: what the others may see. */
static int publish(struct carry *c)
{
    int moved = 0, over = 0;
    for (int i = 0; i < c->n; i++) {
        struct carry_job *job = c->jobs[i];
        moved |= job->now.moved != job->seen.moved;
        over |= job->now.state != job->seen.state;
        job->seen = job->now;
    }
    if (over || c->asked)
        pthread_cond_broadcast(&c->turned);
    return moved;
}

static void rest(double since)
{
    if (clock_seconds() - since > SPIN_SECONDS)
        nanosleep(&(struct timespec){ .tv_nsec = 50000 }, NULL);
    else
        sched_yield();
}

/* Until carrying ends. Jobs are added while this goes round, and taken away between rounds only. */
static void go_round(void *carry)
{
    struct carry *c = carry;
    double since = clock_seconds();
    pthread_mutex_lock(&c->lock);
    while (!c->stop) {
        struct carry_job *jobs[CARRY_JOBS];
        int n = 0;
        for (int i = 0; i < c->n; i++)
            if (c->jobs[i]->seen.state == CARRY_UNDER_WAY)
                jobs[n++] = c->jobs[i];
        if (n == 0) {
            pthread_cond_wait(&c->come, &c->lock);
            since = clock_seconds();
            continue;
        }
        c->turning = 1;
        pthread_mutex_unlock(&c->lock);
        for (int i = 0; i < n && !atomic_load(&c->given_up); i++)
            turn(c, jobs[i]);
        pthread_mutex_lock(&c->lock);
        c->turning = 0;
        int moved = publish(c);
        pthread_mutex_unlock(&c->lock);
        if (moved)
            since = clock_seconds();
        else
            rest(since);
        pthread_mutex_lock(&c->lock);
    }
    pthread_mutex_unlock(&c->lock);
}

/* ---- the others ---- */

static struct timespec after(double seconds)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    long nanos = until.tv_nsec + (long)((seconds - (double)(time_t)seconds) * 1e9);
    until.tv_sec += (time_t)seconds + nanos / 1000000000;
    until.tv_nsec = nanos % 1000000000;
    return until;
}

static void forget(struct carry *c)
{
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->come);
    pthread_cond_destroy(&c->turned);
    mem_free(c);
}

int carry_open(struct carry **out, const struct mpi_shim *shim, int rank, int size)
{
    pthread_condattr_t clock;
    struct carry *c = mem_zalloc(1, sizeof(*c));
    if (!c)
        return SHERD_ENOMEM;
    *c = (struct carry){ .shim = shim, .rank = rank, .size = size };
    pthread_mutex_init(&c->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&c->come, &clock);
    pthread_cond_init(&c->turned, &clock);
    pthread_condattr_destroy(&clock);
    if (shim->run(go_round, c) != 0) {
        forget(c);
        return SHERD_FAIL(SHERD_EUNSUPPORTED,
            "MPI carries the ranks of one opening at a time, and of none after a failure: close the other "
            "communicator first, or duplicate it");
    }
    *out = c;
    return SHERD_OK;
}

void carry_close(struct carry *c)
{
    pthread_mutex_lock(&c->lock);
    c->stop = 1;
    pthread_cond_broadcast(&c->come);
    pthread_mutex_unlock(&c->lock);
    if (c->shim->idle(OUT_SECONDS) == 0)
        forget(c);
}

int carry_begin(struct carry *c, struct carry_job *job)
{
    memset(job->legs, 0, (size_t)c->size * sizeof(*job->legs));
    job->now = job->seen = (struct carry_standing){ .state = CARRY_UNDER_WAY };
    job->begun = 0;
    pthread_mutex_lock(&c->lock);
    int stopped = c->stop;
    if (!stopped) {
        c->jobs[c->n++] = job;
        pthread_cond_signal(&c->come);
    }
    pthread_mutex_unlock(&c->lock);
    return stopped ? SHERD_FAIL(SHERD_EPEER, "an exchange over MPI has failed before") : SHERD_OK;
}

struct carry_standing carry_wait(struct carry *c, struct carry_job *job, double seconds)
{
    struct timespec until = after(seconds);
    pthread_mutex_lock(&c->lock);
    while (job->seen.state == CARRY_UNDER_WAY && pthread_cond_timedwait(&c->turned, &c->lock, &until) == 0)
        ;
    struct carry_standing seen = job->seen;
    pthread_mutex_unlock(&c->lock);
    return seen;
}

/* Under the lock: until the thread is between two rounds. */
static int come_out(struct carry *c)
{
    struct timespec until = after(OUT_SECONDS);
    c->asked++;
    while (c->turning && pthread_cond_timedwait(&c->turned, &c->lock, &until) == 0)
        ;
    c->asked--;
    return !c->turning;
}

int carry_look(struct carry *c, const struct carry_job *job, uint8_t *absent)
{
    int n = 0;
    pthread_mutex_lock(&c->lock);
    int out = come_out(c);
    for (int r = 0; r < c->size; r++) {
        absent[r] = out && r != c->rank && !is_done(job, r);
        n += absent[r];
    }
    pthread_mutex_unlock(&c->lock);
    return n;
}

int carry_end(struct carry *c, struct carry_job *job)
{
    int out = 1, i = 0;
    pthread_mutex_lock(&c->lock);
    if (job->seen.state != CARRY_DONE) {
        c->stop = 1;
        c->shim->broken();
        out = come_out(c);
        if (!out)
            atomic_store(&c->given_up, 1);
    }
    while (c->jobs[i] != job)
        i++;
    if (out)
        c->jobs[i] = c->jobs[--c->n];
    pthread_mutex_unlock(&c->lock);
    return out;
}
