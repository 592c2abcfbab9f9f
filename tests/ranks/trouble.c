/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Ranks in trouble: see tests/ranks/trouble.h.
 */
#include "tests/ranks/trouble.h"

#include <stdio.h>
#include <time.h>

#include "base/log.h"
#include "comm/ops.h"
#include "tests/t.h"

void pause_ms(int ms)
{
    nanosleep(&(struct timespec){ .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L }, NULL);
}

int sum(struct sherd_comm *comm, struct sherd_queue *queue, void *buf, int64_t n, enum sherd_dtype type)
{
    SHERD_TRY(sherd_all_reduce(comm, queue, buf, buf, n, type, SHERD_REDUCE_SUM));
    return sherd_queue_sync(queue);
}

int sum_that_differs(int rank, struct sherd_comm *comm, struct sherd_device *dev, const char *what)
{
    struct sherd_queue *queue;
    float buf[64] = { 0 };
    int odd = rank == 1, st;
    char text[512];
    T_OK(sherd_queue_create(&queue, dev, SHERD_QUEUE_SIDE));
    T_OK(sum(comm, queue, buf, 4, SHERD_F32));
    if (strcmp(what, "kind") == 0 && odd)
        st = sherd_reduce_scatter(comm, queue, buf + rank * 8, buf, 8, SHERD_F32);
    else if (strcmp(what, "root") == 0)
        st = sherd_broadcast(comm, queue, buf, buf, 8, odd);
    else
        st = sherd_all_reduce(comm, queue, buf, buf, strcmp(what, "count") == 0 && odd ? 9 : 8,
            strcmp(what, "type") == 0 && odd ? SHERD_I32 : SHERD_F32,
            strcmp(what, "max") == 0 && odd ? SHERD_REDUCE_MAX : SHERD_REDUCE_SUM);
    SHERD_KEEP(st, sherd_queue_sync(queue));
    T_TRUE(st != SHERD_OK);
    T_HAS(sherd_error(), "ranks call different collectives");
    T_HAS(sherd_error(), "#2");
    snprintf(text, sizeof(text), "%s", sherd_error());
    /* And nothing is right any more. */
    T_FAILS(sum(comm, queue, buf, 8, SHERD_F32), SHERD_EPEER, "different collectives");
    sherd_queue_destroy(queue);
    return SHERD_FAIL(st, "%s", text);
}

void abort_wakes(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    (void)dev, (void)ctx;
    if (rank == 1) {
        pause_ms(50);
        sherd_comm_abort(comm, "the disk is full");
        sherd_comm_abort(comm, "not the first reason");
    }
    T_FAILS(sherd_comm_barrier(comm), SHERD_EPEER, "rank 1: the disk is full");
    T_FAILS(sherd_comm_barrier(comm), SHERD_EPEER, "rank 1: the disk is full");
    T_FAILS(comm->ops->heard(comm), SHERD_EPEER, "rank 1: the disk is full");
    struct sherd_comm *twin = NULL;
    T_FAILS(sherd_comm_dup(&twin, comm), SHERD_EPEER, "rank 1: the disk is full");
}

void one_leaves(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    (void)dev, (void)ctx;
    T_OK(sherd_comm_barrier(comm));
    if (rank == 1)
        return;
    T_FAILS(sherd_comm_barrier(comm), SHERD_EPEER, "has closed its communicator");
    T_HAS(sherd_error(), "rank 1 ");
}

void one_is_late(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    const char *told = ctx;
    struct sherd_queue *queue;
    float x = 1;
    T_OK(sherd_queue_create(&queue, dev, SHERD_QUEUE_SIDE));
    T_OK(sum(comm, queue, &x, 1, SHERD_F32));
    if (rank == 2)
        pause_ms(1500);
    int st = sum(comm, queue, &x, 1, SHERD_F32);
    /* The first to time out names the missing; the rest, and the late one, are told. */
    T_TRUE(st == SHERD_ETIMEOUT || st == SHERD_EPEER);
    T_TRUE(rank != 2 || st == SHERD_EPEER);
    T_HAS(sherd_error(), "all-reduce #2 (1 f32): no progress for 0.5 s, 1 of 3 ranks have not come: rank 2");
    T_HAS(sherd_error(), told);
    sherd_queue_destroy(queue);
}

/* ---- meeting ---- */

static void *visitor_main(void *arg)
{
    struct visitor *v = arg;
    v->status = v->visit(v->meet);
    snprintf(v->text, sizeof(v->text), "%s", v->status ? sherd_error() : "");
    return NULL;
}

void visitor_go(struct visitor *v, int (*visit)(void *meet), void *meet, int rank)
{
    *v = (struct visitor){ .visit = visit, .meet = meet, .rank = rank };
    assert_int_equal(pthread_create(&v->thread, NULL, visitor_main, v), 0);
}

void visitor_ended(struct visitor *v, int status, const char *text)
{
    pthread_join(v->thread, NULL);
    if (v->status != status)
        fail_msg("rank %d: %s (%s), wanted %s", v->rank, sherd_status_name(v->status), v->text,
            sherd_status_name(status));
    ASSERT_CONTAINS(v->text, text);
}

static char warnings[4096];

static void keep_warning(void *ctx, enum sherd_log_level level, const char *text)
{
    (void)ctx;
    size_t len = strlen(warnings);
    if (level == SHERD_LOG_WARN)
        snprintf(warnings + len, sizeof(warnings) - len, "%s\n", text);
}

void warnings_keep(void)
{
    warnings[0] = '\0';
    sherd_log_set(keep_warning, NULL, SHERD_LOG_WARN);
}

const char *warnings_take(void)
{
    sherd_log_set(NULL, NULL, SHERD_LOG_INFO);
    return warnings;
}
