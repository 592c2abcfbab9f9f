/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Saves beside training whose first copy is held until training has gone as far as it can: either it waits
 * for the copy, or it has changed what is copied, and then the files differ from those of a run that stood
 * still. The device's table of calls is the test's own, so nothing depends on who is faster.
 */
#include "tests/ranks/train.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <sherd/ops.h>
#include <sherd/sherd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/status.h"
#include "device/cpu/cpu.h"

#define HELD 2       /* saves of a run that are; nobody waits for its last */
#define GRACE 0.05   /* seconds that who waits is given to show that it does not */
#define LONGEST 25.0 /* seconds for training to come to its next update: below the timeout of ranks */
#define LOOK 4096    /* bytes that are compared at most */

/* One rank's. The copies of the first save are held before they are asked for, those of the second in their
 * queue: who waits must wait for both. */
struct gate {
    struct sherd_device *_Atomic dev; /* looked at by both ranks */
    struct sherd_event *ended;        /* what the copies come after */
    int saves, first;                 /* that have begun; its first copy has not come yet */
    const void *src;                  /* of the first copy */
    size_t bytes;
    _Atomic int asked;         /* somebody waits for copies of this save */
    _Atomic int changed, lost; /* how many were overtaken; nobody came */
};
static struct gate gates[WORLD];

static struct gate *gate_of(const struct sherd_device *dev)
{
    return &gates[gates[0].dev == dev ? 0 : 1];
}

static int hold(void *args)
{
    struct gate *g = *(struct gate **)args;
    char before[LOOK];
    double begin = clock_seconds(), asked = 0, now = begin;
    memcpy(before, g->src, g->bytes);
    while (memcmp(before, g->src, g->bytes) == 0) {
        if (asked == 0 && g->asked)
            asked = now;
        if (asked > 0 && now - asked > GRACE)
            return SHERD_OK;
        if (now - begin > LONGEST) {
            g->lost++;
            return SHERD_OK;
        }
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
        now = clock_seconds();
    }
    g->changed++;
    nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    return SHERD_OK;
}

/* The queue of copies waits once a save: for the updates before it. */
static int gated_wait(struct sherd_queue *queue, struct sherd_event *event)
{
    if (queue->apart) {
        struct gate *g = gate_of(queue->dev);
        g->ended = event;
        g->saves++;
        g->first = 1;
        g->asked = 0;
    }
    return dev_cpu.event_wait(queue, event);
}

/* Those who wait for copies take the time before. */
static int gated_stamp(struct sherd_event *event, struct sherd_queue *queue)
{
    gate_of(queue->dev)->asked = 1;
    return dev_cpu.event_stamp(event, queue);
}

static int gated_copy(struct sherd_queue *queue, const void *args)
{
    struct gate *g = gate_of(queue->dev);
    const struct sherd_copy *copy = args;
    if (queue->apart && g->first && g->saves <= HELD) {
        g->src = copy->src;
        g->bytes = MIN(copy->bytes, LOOK);
        if (g->saves == 1) {
            SHERD_TRY(dev_cpu.event_sync(g->ended));
            SHERD_TRY(hold(&g));
        } else {
            SHERD_TRY(dev_cpu.submit(queue, hold, &g, sizeof(g)));
        }
    }
    if (queue->apart)
        g->first = 0;
    return dev_cpu.op[OP_copy](queue, args);
}

static struct dev_ops gated; /* dev_cpu, but for these three */

static void train_gated(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    gates[rank].dev = dev;
    dev->ops = &gated;
    train_rank(rank, comm, dev, ctx);
    dev->ops = &dev_cpu;
}

/* A run of 8 steps, saved after 3, 6 and 8: a recorded step updates at the begin of the next. */
static struct train run_of(const char *dir, const char *more, const char *beside)
{
    return (struct train){ .dir = dir,
        .settings = { "model.width=192", "model.layers=4", "train.steps=8", "train.eval_every=0",
            "shard.stage=2", "log.every=100", more, beside } };
}

/* Compares with a run that stood still while it saved; what a failure leaves is in no other's way. */
static void check_held(const char *more)
{
    ASSERT_OK(file_remove_tree(at("still")));
    ASSERT_OK(file_remove_tree(at("held")));
    struct train still = run_of("still", "save.async=false", NULL),
                 t = run_of("held", more, "save.async=true");
    train(&still);
    assert_true(still.status[0] == SHERD_OK && still.status[1] == SHERD_OK);
    text_finish(&said);
    said = (struct text){ 0 };
    memset(gates, 0, sizeof(gates));
    gated = dev_cpu;
    gated.event_wait = gated_wait;
    gated.event_stamp = gated_stamp;
    gated.op[OP_copy] = gated_copy;
    t_ranks(WORLD, T_THREADS | T_ASYNC, train_gated, &t);
    assert_true(t.status[0] == SHERD_OK && t.status[1] == SHERD_OK);
    for (int r = 0; r < WORLD; r++) {
        assert_int_equal(gates[r].saves, HELD + 1);
        assert_int_equal(gates[r].lost, 0);
        assert_int_equal(gates[r].changed, 0);
    }
    for (int step = 3; step <= 6; step += 3)
        same_step("still", "held", step);
}

/* There is room for all copies: each unit is waited for by itself. */
static void an_update_waits_for_copies(void **state)
{
    (void)state;
    check_held("save.buffer=0");
}

/* Updates are the first part of a recorded step, which waits for all copies. */
static void a_recorded_step_waits_for_copies(void **state)
{
    (void)state;
    check_held("run.graph=on");
}

/* There is room for some copies at a time: updates wait for the disk, and the run says for how long. */
static void an_update_waits_for_room(void **state)
{
    (void)state;
    check_held("save.buffer=1");
    ASSERT_CONTAINS(said.data, "through 8.39 MB of host memory a rank; its state takes 1");
    const char *line = strstr(said.data, "step 3: training stood still for ");
    assert_non_null(line);
    line = strstr(line, " and ");
    assert_true(line && atof(line + 5) > 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_update_waits_for_copies),
        cmocka_unit_test(a_recorded_step_waits_for_copies),
        cmocka_unit_test(an_update_waits_for_room),
    };
    return cmocka_run_group_tests(tests, train_enter, train_leave);
}
