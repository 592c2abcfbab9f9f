/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The queue of writes: see base/write.h. io_uring is asked for when the queue is made; containers often
 * forbid it, and then threads do the same with ordinary calls.
 */
#include "base/write.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#ifdef SHERD_URING
#include <liburing.h>
#endif

#include "base/file.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/thread.h"

#define THREADS 4

/* Writes in the order in which they came. */
struct list {
    struct write_op *first, **end;
};

struct write_queue {
    int uring;
    int pending;       /* between put and take */
    struct list ready; /* finished, not taken */
#ifdef SHERD_URING
    struct io_uring ring;
    struct list unsent; /* in the ring, not taken by the system */
    struct list later;  /* taken and sent back: for when another write is over */
    int under_way;      /* taken, not answered */
    int broken;         /* why the system takes nothing any more; 0 = it does */
#endif
    /* with threads */
    pthread_t threads[THREADS];
    int n_threads, stop;
    pthread_mutex_t lock;
    pthread_cond_t more, finished;
    struct list waiting;
};

static void append(struct list *list, struct write_op *op)
{
    op->next = NULL;
    *list->end = op;
    list->end = &op->next;
}

static struct write_op *take_first(struct list *list)
{
    struct write_op *op = list->first;
    if (op) {
        list->first = op->next;
        if (!list->first)
            list->end = &list->first;
    }
    return op;
}

static void keep_result(struct write_op *op, int status)
{
    op->status = status;
    if (status != SHERD_OK)
        snprintf(op->text, sizeof(op->text), "%s", sherd_error());
}

#ifdef SHERD_URING

static void fail_op(struct write_queue *q, struct write_op *op, int err)
{
    keep_result(
        op, SHERD_FAIL(SHERD_EIO, "cannot write '%s': %s%s", op->path, strerror(err), file_way_out(err)));
    append(&q->ready, op);
}

/* 1 if a write that was refused may be tried again, through the page cache. */
static int leave_direct(struct write_op *op, int err)
{
    if (err != EINVAL || op->refused)
        return 0;
    op->refused = 1;
    file_leave_direct(op->fd, op->path);
    return 1;
}

/* The system lacks something now, which an answer that is still to come may free. */
static int may_pass(const struct write_queue *q, int err)
{
    return (err == EAGAIN || err == EBUSY) && q->under_way > 0;
}

/* Offers what is in the ring. What the system does not take goes with its next answer; where none is to come,
 * it is finished with that failure, and so is all that follows: the ring cannot be emptied. */
static void send_ring(struct write_queue *q)
{
    size_t bytes = 0;
    int r = file_may("submit", q->unsent.first->path, &bytes) ? -EINTR : -errno;
    while (r == -EINTR)
        r = io_uring_submit(&q->ring);
    for (int i = 0; i < r; i++, q->under_way++)
        take_first(&q->unsent);
    int err = r < 0 ? -r : EAGAIN;
    if (!q->unsent.first || may_pass(q, err))
        return;
    q->broken = err;
    while (q->unsent.first)
        fail_op(q, take_first(&q->unsent), err);
}

/* What is left of a write goes to the system; what cannot is finished with its failure. */
static void submit(struct write_queue *q, struct write_op *op)
{
    size_t bytes = op->bytes - op->done;
    while (!file_may("write", op->path, &bytes)) {
        if (leave_direct(op, errno))
            continue;
        fail_op(q, op, errno);
        return;
    }
    if (q->broken) {
        fail_op(q, op, q->broken);
        return;
    }
    bytes = MAX(bytes / op->align * op->align, MIN(op->align, op->bytes - op->done));
    struct io_uring_sqe *sqe = io_uring_get_sqe(&q->ring);
    if (!sqe) {
        fail_op(q, op, EBUSY);
        return;
    }
    io_uring_prep_write(
        sqe, op->fd, (const char *)op->data + op->done, (unsigned)bytes, op->offset + op->done);
    io_uring_sqe_set_data(sqe, op);
    append(&q->unsent, op);
    send_ring(q);
}

/* Waits for one answer of the system: the write it belongs to is finished, or goes on. What is sent back for
 * now waits for an answer that says something else: of those that are under way one finishes at least. */
static int reap(struct write_queue *q)
{
    struct io_uring_cqe *cqe;
    int r;
    do
        r = io_uring_wait_cqe(&q->ring, &cqe);
    while (r == -EINTR);
    if (r < 0)
        return SHERD_FAIL(SHERD_EIO, "io_uring does not answer: %s", strerror(-r));
    struct write_op *op = io_uring_cqe_get_data(cqe);
    int n = cqe->res;
    io_uring_cqe_seen(&q->ring, cqe);
    q->under_way--;
    if (!file_may("answer", op->path, NULL))
        n = -errno;
    if (q->unsent.first)
        send_ring(q);
    if (n > 0)
        op->done += (size_t)n;
    int again = n < 0 && may_pass(q, -n);
    if (again)
        append(&q->later, op);
    else if (n < 0 && n != -EINTR && !leave_direct(op, -n))
        fail_op(q, op, -n);
    else if (n == 0 && op->done < op->bytes)
        fail_op(q, op, ENOSPC);
    else if (op->done < op->bytes)
        submit(q, op);
    else
        append(&q->ready, op);
    while (!again && q->later.first)
        submit(q, take_first(&q->later));
    return SHERD_OK;
}

#endif

static void *serve(void *arg)
{
    struct write_queue *q = arg;
    pthread_mutex_lock(&q->lock);
    for (;;) {
        while (!q->waiting.first && !q->stop)
            pthread_cond_wait(&q->more, &q->lock);
        struct write_op *op = take_first(&q->waiting);
        if (!op)
            break;
        pthread_mutex_unlock(&q->lock);
        file_watch(op->watch);
        keep_result(op, file_pwrite(op->fd, op->data, op->bytes, op->offset, op->path));
        pthread_mutex_lock(&q->lock);
        append(&q->ready, op);
        pthread_cond_signal(&q->finished);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

static int start_threads(struct write_queue *q)
{
    for (; q->n_threads < THREADS; q->n_threads++) {
        int st = thread_start(&q->threads[q->n_threads], serve, q, "the thread that writes");
        if (st != SHERD_OK && q->n_threads == 0)
            return st;
        if (st != SHERD_OK)
            break;
    }
    return SHERD_OK;
}

int write_queue_create(struct write_queue **out, int depth, enum write_kind kind)
{
    struct write_queue *q = mem_zalloc(1, sizeof(*q));
    if (!q)
        return SHERD_ENOMEM;
    q->ready.end = &q->ready.first;
    q->waiting.end = &q->waiting.first;
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->more, NULL);
    pthread_cond_init(&q->finished, NULL);
#ifdef SHERD_URING
    q->unsent.end = &q->unsent.first;
    q->later.end = &q->later.first;
    q->uring = kind == WRITE_ANY && io_uring_queue_init((unsigned)depth, &q->ring, 0) == 0;
#endif
    (void)depth;
    (void)kind;
    int st = q->uring ? SHERD_OK : start_threads(q);
    if (st != SHERD_OK) {
        write_queue_destroy(q);
        return st;
    }
    *out = q;
    return SHERD_OK;
}

void write_queue_destroy(struct write_queue *q)
{
    struct write_op *op;
    if (!q)
        return;
    while (q->pending > 0 && (write_queue_take(q, &op), op))
        continue;
    pthread_mutex_lock(&q->lock);
    q->stop = 1;
    pthread_cond_broadcast(&q->more);
    pthread_mutex_unlock(&q->lock);
    for (int i = 0; i < q->n_threads; i++)
        pthread_join(q->threads[i], NULL);
#ifdef SHERD_URING
    if (q->uring)
        io_uring_queue_exit(&q->ring);
#endif
    pthread_cond_destroy(&q->finished);
    pthread_cond_destroy(&q->more);
    pthread_mutex_destroy(&q->lock);
    mem_free(q);
}

const char *write_queue_name(const struct write_queue *q)
{
    return q->uring ? "io_uring" : "threads";
}

void write_queue_put(struct write_queue *q, struct write_op *op)
{
    op->done = 0;
    op->status = SHERD_OK;
    op->watch = file_watched();
    op->refused = 0;
    q->pending++;
#ifdef SHERD_URING
    if (q->uring) {
        submit(q, op);
        return;
    }
#endif
    pthread_mutex_lock(&q->lock);
    append(&q->waiting, op);
    pthread_cond_signal(&q->more);
    pthread_mutex_unlock(&q->lock);
}

int write_queue_take(struct write_queue *q, struct write_op **op)
{
    *op = NULL;
    if (q->pending == 0)
        return SHERD_OK;
#ifdef SHERD_URING
    while (q->uring && !q->ready.first) {
        int st = reap(q);
        if (st != SHERD_OK) {
            q->pending = 0; /* nothing will ever come out again */
            return st;
        }
    }
#endif
    pthread_mutex_lock(&q->lock);
    while (!q->ready.first)
        pthread_cond_wait(&q->finished, &q->lock);
    *op = take_first(&q->ready);
    pthread_mutex_unlock(&q->lock);
    q->pending--;
    return (*op)->status == SHERD_OK ? SHERD_OK : status_adopt((*op)->status, (*op)->text);
}
