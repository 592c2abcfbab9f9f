/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Ranks on two GPUs that abort, die or do not come: the wait of the other ends in time, with a sentence.
 * Skips without two GPUs.
 */
#include "tests/t.h"

#include <signal.h>
#include <stdatomic.h>
#include <time.h>

#include <sherd/ops.h>

#include "base/clock.h"
#include "base/status.h"
#include "tests/gpu/gpus.h"
#include "tests/gpu/place.h"

#define MARGIN_SECONDS 10.0

/* Enters, and makes a first collective that all take part in, so that what follows hangs on the GPU and not
 * in NCCL's set-up. */
static void enter_warm(struct place *at, int rank, struct sherd_comm *comm, struct sherd_device *dev)
{
    enter(at, rank, comm, dev);
    T_OK(sherd_fill(at->queue, &(struct sherd_fill){ .dst = at->buf, .bytes = MOST_BYTES }));
    T_OK(sherd_all_reduce(at->comm, at->queue, at->buf, at->buf, 1000, SHERD_F32, SHERD_REDUCE_SUM));
    T_OK(sherd_queue_sync(at->queue));
}

static int sum_and_wait(struct place *at)
{
    SHERD_TRY(sherd_all_reduce(at->comm, at->queue, at->buf, at->buf, 1000, SHERD_F32, SHERD_REDUCE_SUM));
    return sherd_queue_sync(at->queue);
}

static void wait_until(_Atomic int *told)
{
    while (!atomic_load(told))
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
}

static void abort_wakes(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    (void)ctx;
    struct place at;
    enter_warm(&at, rank, comm, dev);
    if (rank == 1) {
        nanosleep(&(struct timespec){ .tv_nsec = 200000000 }, NULL);
        sherd_comm_abort(comm, "enough");
        T_FAILS(sum_and_wait(&at), SHERD_EPEER, "enough");
    } else {
        double start = clock_seconds();
        T_FAILS(sum_and_wait(&at), SHERD_EPEER, "rank 1: enough");
        T_TRUE(clock_seconds() - start < MARGIN_SECONDS);
        T_FAILS(sum_and_wait(&at), SHERD_EPEER, "enough");
    }
    leave(&at);
}

static void test_abort_wakes(void **state)
{
    (void)state;
    t_ranks(RANKS, T_PROCESSES, abort_wakes, NULL);
}

static void dead_rank(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    (void)ctx;
    struct place at;
    enter_warm(&at, rank, comm, dev);
    if (rank == 1)
        raise(SIGKILL);
    double start = clock_seconds();
    T_FAILS(sum_and_wait(&at), SHERD_EPEER, "rank 1");
    T_TRUE(clock_seconds() - start < MARGIN_SECONDS);
    leave(&at);
}

static void test_dead_rank(void **state)
{
    (void)state;
    t_ranks(RANKS, T_PROCESSES | T_MAY_DIE, dead_rank, NULL);
}

static void late_rank(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    _Atomic int *told = ctx;
    struct place at;
    enter_warm(&at, rank, comm, dev);
    if (rank == 1) {
        wait_until(told);
        T_FAILS(sum_and_wait(&at), SHERD_EPEER, "no progress");
    } else {
        T_FAILS(sum_and_wait(&at), SHERD_ETIMEOUT, "no progress for 15 s");
        T_HAS(sherd_error(), "all-reduce #2");
        atomic_store(told, 1);
    }
    leave(&at);
}

/* Rank 1 waits until it is told that the others have given up. */
static void run_late(t_rank_fn late)
{
    _Atomic int *told = t_shared(sizeof(*told));
    t_limits(90, 15); /* NCCL's own opening must fit */
    t_ranks(RANKS, T_PROCESSES, late, told);
    t_limits(0, 0);
    t_shared_free(told, sizeof(*told));
}

static void test_late_rank(void **state)
{
    (void)state;
    run_late(late_rank);
}

/* A call unlike those before, for which ranks meet on the host: one does not come. */
static void late_first(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    _Atomic int *told = ctx;
    struct place at;
    enter_warm(&at, rank, comm, dev);
    if (rank == 1) {
        wait_until(told);
        T_FAILS(sum_and_wait(&at), SHERD_EPEER, "rank 0");
    } else {
        double start = clock_seconds();
        T_FAILS(sherd_all_reduce(comm, at.queue, at.buf, at.buf, 2000, SHERD_F32, SHERD_REDUCE_SUM),
            SHERD_ETIMEOUT, "rank");
        T_TRUE(clock_seconds() - start < 15 + MARGIN_SECONDS);
        atomic_store(told, 1);
    }
    leave(&at);
}

static void test_late_first(void **state)
{
    (void)state;
    run_late(late_first);
}

/* Asked in a process of its own, as CUDA does not survive a fork. */
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_abort_wakes),
        cmocka_unit_test(test_dead_rank),
        cmocka_unit_test(test_late_rank),
        cmocka_unit_test(test_late_first),
    };
    if (!gpus_two())
        return 77;
    t_device("cuda");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
