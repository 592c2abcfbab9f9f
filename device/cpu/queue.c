/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Queues and events. A compute queue runs its work at once in the calling thread; a side queue of an
 * asynchronous device has a thread and a ring of jobs, each with a copy of its arguments, so that nothing is
 * allocated when work is submitted. The first failure stays with the queue and the work behind it is left out
 * until the queue is synchronized; events are recorded all the same, so that nobody waits for ever.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/thread.h"
#include "device/cpu/cpu.h"

#define RING_JOBS 256
#define JOB_BYTES 640 /* of arguments */
#define ERROR_BYTES 2048

#define XX(name)                                                                                             \
    _Static_assert(sizeof(struct sherd_##name) <= JOB_BYTES, #name ": its arguments do not fit into a job");
SHERD_OPS(XX)
#undef XX

struct cpu_event {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t issued, done;    /* recordings asked for, recordings reached */
    int pending;              /* jobs in rings that will touch this event */
    double seconds;           /* when the last recording was reached */
    struct sherd_queue *last; /* where it was recorded last; only compared */
};

struct work {
    enum { WORK_OP, WORK_HOST, WORK_RECORD, WORK_WAIT } kind;
    cpu_op op;
    int (*host)(void *args);
    struct cpu_event *event;
    uint64_t recording;
};

struct job {
    struct work work;
    _Alignas(16) unsigned char args[JOB_BYTES];
};

struct cpu_queue {
    struct cpu *cpu;
    struct cpu_lane lane;
    int status; /* first failure since the last sync; its text. With a thread: its own while it runs a job */
    char text[ERROR_BYTES];
    /* with a thread only */
    struct job *ring;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t more, less;
    uint64_t submitted, completed;
    int stop;
};

static void keep_failure(struct cpu_queue *q, int status)
{
    if (status == SHERD_OK || q->status != SHERD_OK)
        return;
    q->status = status;
    snprintf(q->text, sizeof(q->text), "%s", sherd_error());
}

/* ---- events ---- */

static void reach(struct cpu_event *e, uint64_t recording, int pending)
{
    pthread_mutex_lock(&e->lock);
    e->done = recording;
    e->seconds = clock_seconds();
    e->pending -= pending;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

static void await(struct cpu_event *e, uint64_t recording, int pending)
{
    pthread_mutex_lock(&e->lock);
    while (e->done < recording)
        pthread_cond_wait(&e->changed, &e->lock);
    e->pending -= pending;
    if (pending)
        pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

int cpu_event_create(struct sherd_event *event)
{
    struct cpu_event *e = mem_zalloc(1, sizeof(*e));
    if (!e)
        return SHERD_ENOMEM;
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->changed, NULL);
    event->impl = e;
    return SHERD_OK;
}

void cpu_event_destroy(struct sherd_event *event)
{
    struct cpu_event *e = event->impl;
    pthread_mutex_lock(&e->lock);
    while (e->pending > 0)
        pthread_cond_wait(&e->changed, &e->lock);
    pthread_mutex_unlock(&e->lock);
    pthread_cond_destroy(&e->changed);
    pthread_mutex_destroy(&e->lock);
    mem_free(e);
}

int cpu_event_sync(struct sherd_event *event)
{
    struct cpu_event *e = event->impl;
    pthread_mutex_lock(&e->lock);
    uint64_t recording = e->issued;
    pthread_mutex_unlock(&e->lock);
    await(e, recording, 0);
    return SHERD_OK;
}

static int event_time(struct cpu_event *e, double *seconds)
{
    pthread_mutex_lock(&e->lock);
    int ready = e->done > 0 && e->done == e->issued;
    *seconds = e->seconds;
    pthread_mutex_unlock(&e->lock);
    return ready ? SHERD_OK
                 : SHERD_FAIL(SHERD_EINVAL, "event_elapsed: an event is not recorded, or not reached yet");
}

int cpu_event_elapsed(struct sherd_event *from, struct sherd_event *to, double *ms)
{
    double begin, end;
    SHERD_TRY(event_time(from->impl, &begin));
    SHERD_TRY(event_time(to->impl, &end));
    *ms = 1e3 * (end - begin);
    return SHERD_OK;
}

/* ---- the thread of a side queue ---- */

static void run_work(struct cpu_queue *q, const struct work *work, void *args)
{
    if (work->kind == WORK_RECORD) {
        reach(work->event, work->recording, 1);
    } else if (work->kind == WORK_WAIT) {
        await(work->event, work->recording, 1);
    } else if (q->status == SHERD_OK) {
        int us = q->lane.side ? atomic_load(&q->cpu->delay_us) : 0;
        if (us > 0)
            nanosleep(&(struct timespec){ us / 1000000, us % 1000000 * 1000L }, NULL);
        keep_failure(q, work->kind == WORK_OP ? work->op(&q->lane, args) : work->host(args));
    }
}

static void *serve(void *arg)
{
    struct cpu_queue *q = arg;
    pthread_mutex_lock(&q->lock);
    for (;;) {
        while (q->completed == q->submitted && !q->stop)
            pthread_cond_wait(&q->more, &q->lock);
        if (q->completed == q->submitted)
            break;
        struct job *job = &q->ring[q->completed % RING_JOBS];
        pthread_mutex_unlock(&q->lock);
        run_work(q, &job->work, job->args);
        pthread_mutex_lock(&q->lock);
        q->completed++;
        pthread_cond_broadcast(&q->less);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

/* Puts a job with these arguments into the ring; waits while it is full. */
static void push(struct cpu_queue *q, const struct work *work, const void *args, size_t bytes)
{
    pthread_mutex_lock(&q->lock);
    while (q->submitted - q->completed == RING_JOBS)
        pthread_cond_wait(&q->less, &q->lock);
    struct job *slot = &q->ring[q->submitted % RING_JOBS];
    slot->work = *work;
    if (bytes)
        memcpy(slot->args, args, bytes);
    q->submitted++;
    pthread_cond_signal(&q->more);
    pthread_mutex_unlock(&q->lock);
}

static int start(struct cpu_queue *q)
{
    q->ring = mem_zalloc(RING_JOBS, sizeof(*q->ring));
    if (!q->ring)
        return SHERD_ENOMEM;
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->more, NULL);
    pthread_cond_init(&q->less, NULL);
    int st = thread_start(&q->thread, serve, q, "cpu: the thread of a queue");
    if (st != SHERD_OK)
        mem_free(q->ring);
    return st;
}

static void stop(struct cpu_queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->stop = 1;
    pthread_cond_signal(&q->more);
    pthread_mutex_unlock(&q->lock);
    pthread_join(q->thread, NULL);
    pthread_cond_destroy(&q->less);
    pthread_cond_destroy(&q->more);
    pthread_mutex_destroy(&q->lock);
    mem_free(q->ring);
}

/* ---- queues ---- */

int cpu_queue_create(struct sherd_queue *queue)
{
    struct cpu *cpu = queue->dev->impl;
    struct cpu_queue *q = mem_zalloc(1, sizeof(*q));
    if (!q)
        return SHERD_ENOMEM;
    q->cpu = cpu;
    q->lane = (struct cpu_lane){ .pool = cpu->pool, .side = queue->kind != SHERD_QUEUE_COMPUTE };
    if (queue->kind != SHERD_QUEUE_COMPUTE && cpu->async) {
        int st = start(q);
        if (st != SHERD_OK) {
            mem_free(q);
            return st;
        }
    }
    queue->impl = q;
    return SHERD_OK;
}

void cpu_queue_destroy(struct sherd_queue *queue)
{
    struct cpu_queue *q = queue->impl;
    if (q->ring)
        stop(q);
    cpu_lane_finish(&q->lane);
    cpu_blas_leave(&q->lane);
    mem_free(q);
}

/* Before its first work: its own thread, where it has one, does not look at the lane yet. */
int cpu_queue_multiplies(struct sherd_queue *queue)
{
    struct cpu_queue *q = queue->impl;
    return cpu_blas_join(&q->lane);
}

int cpu_queue_sync(struct sherd_queue *queue)
{
    struct cpu_queue *q = queue->impl;
    if (q->ring) {
        pthread_mutex_lock(&q->lock);
        while (q->completed != q->submitted)
            pthread_cond_wait(&q->less, &q->lock);
        pthread_mutex_unlock(&q->lock);
    }
    int st = q->status;
    q->status = SHERD_OK;
    return st == SHERD_OK ? st : status_adopt(st, q->text);
}

/* Into the ring, or done at once: then with a copy of the arguments too, which host functions may change. */
static void submit(struct cpu_queue *q, const struct work *work, const void *args, size_t bytes)
{
    if (q->ring) {
        push(q, work, args, bytes);
        return;
    }
    _Alignas(16) unsigned char copy[JOB_BYTES];
    if (bytes)
        memcpy(copy, args, bytes);
    run_work(q, work, copy);
}

/* Work that is brought now is kept, not done. */
static int is_kept(const struct sherd_queue *queue)
{
    return !queue->apart && ((const struct cpu_queue *)queue->impl)->cpu->graph;
}

int cpu_queue_op(struct sherd_queue *queue, cpu_op op, const void *args, size_t bytes)
{
    if (is_kept(queue))
        return cpu_keep(
            queue, &(struct cpu_call){ .kind = CPU_CALL_OP, .op = op, .args = args, .bytes = bytes });
    submit(queue->impl, &(struct work){ .kind = WORK_OP, .op = op }, args, bytes);
    return SHERD_OK;
}

int cpu_queue_submit(struct sherd_queue *queue, int (*fn)(void *args), const void *args, size_t bytes)
{
    if (bytes > JOB_BYTES)
        return SHERD_FAIL(
            SHERD_EINVAL, "submit: %zu bytes of arguments, at most %d fit: pass a pointer", bytes, JOB_BYTES);
    if (is_kept(queue))
        return cpu_keep(
            queue, &(struct cpu_call){ .kind = CPU_CALL_HOST, .host = fn, .args = args, .bytes = bytes });
    submit(queue->impl, &(struct work){ .kind = WORK_HOST, .host = fn }, args, bytes);
    return SHERD_OK;
}

/* An event that moves to another queue is first reached in the old one: so one number orders all. */
int cpu_event_record(struct sherd_event *event, struct sherd_queue *queue)
{
    struct cpu_event *e = event->impl;
    struct cpu_queue *q = queue->impl;
    if (is_kept(queue))
        return cpu_keep(queue, &(struct cpu_call){ .kind = CPU_CALL_RECORD, .event = event });
    pthread_mutex_lock(&e->lock);
    while (e->last != queue && e->done < e->issued)
        pthread_cond_wait(&e->changed, &e->lock);
    e->last = queue;
    uint64_t recording = ++e->issued;
    e->pending += q->ring != NULL;
    pthread_mutex_unlock(&e->lock);
    if (q->ring)
        push(q, &(struct work){ .kind = WORK_RECORD, .event = e, .recording = recording }, NULL, 0);
    else
        reach(e, recording, 0);
    return SHERD_OK;
}

int cpu_event_wait(struct sherd_queue *queue, struct sherd_event *event)
{
    struct cpu_event *e = event->impl;
    struct cpu_queue *q = queue->impl;
    if (is_kept(queue))
        return cpu_keep(queue, &(struct cpu_call){ .kind = CPU_CALL_WAIT, .event = event });
    pthread_mutex_lock(&e->lock);
    uint64_t recording = e->issued;
    int due = e->done < recording && e->last != queue;
    e->pending += due && q->ring;
    pthread_mutex_unlock(&e->lock);
    if (due && q->ring)
        push(q, &(struct work){ .kind = WORK_WAIT, .event = e, .recording = recording }, NULL, 0);
    else if (due)
        await(e, recording, 0);
    return SHERD_OK;
}
