/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Files that take longer than ranks wait for each other: slow ones are no hang, one call that does not come
 * back is. The clock is the test's own and goes on in leaps, a part of the timeout for each slow call: so
 * the timeout is one that no busy host misses, and nobody waits for it.
 */
#include "tests/ranks/train.h"

#include <stdatomic.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <sherd/sherd.h>

#include "base/file.h"

#define TIMEOUT 30.0
#define SLOWLY 0.4      /* of it for one call: two between two looks of who waits are no hang yet */
#define CALLS 7         /* that are slow */
#define NAP_MS 60       /* truly slept in each, so that who waits looks at the clock meanwhile */
#define DEADLINE 1000.0 /* of a run, by this clock */

static _Atomic int64_t ahead; /* nanoseconds */

/* In the place of the C library's, for all of this program. */
int clock_gettime(clockid_t id, struct timespec *t)
{
    int st = (int)syscall(SYS_clock_gettime, id, t);
    if (st == 0 && id == CLOCK_MONOTONIC) {
        int64_t ns = t->tv_nsec + ahead;
        t->tv_sec += ns / 1000000000;
        t->tv_nsec = ns % 1000000000;
    }
    return st;
}

static void leap(double seconds)
{
    ahead += (int64_t)(1e9 * seconds);
    nanosleep(&(struct timespec){ .tv_nsec = NAP_MS * 1000000L }, NULL);
}

/* Which calls dawdle: of files with this in their path, or of this rank. Pieces are made so small that there
 * are many of them. */
static struct {
    const char *call, *path;
    int rank;
    atomic_int calls;
} slow;
static _Thread_local int here = -1; /* the rank of this thread; savers have none */

static int is_slow(const char *call, const char *path)
{
    return slow.call && !strcmp(call, slow.call) && strstr(path, slow.path) &&
           (slow.rank < 0 || here == slow.rank);
}

static int dawdle(const char *call, const char *path, size_t *bytes)
{
    if (!is_slow(call, path) || slow.calls++ >= CALLS)
        return 0;
    if (*bytes > 8192)
        *bytes = 8192;
    leap(SLOWLY * TIMEOUT);
    return 0;
}

static _Atomic int given_up; /* by rank 0 */

/* Comes back when nobody waits any more. */
static int stand_still(const char *call, const char *path, size_t *bytes)
{
    (void)bytes;
    while (is_slow(call, path) && !given_up && slow.calls++ < 100)
        leap(SLOWLY * TIMEOUT);
    return 0;
}

static void train_slowly(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    here = rank;
    train_rank(rank, comm, dev, ctx);
    given_up |= rank == 0;
    here = -1;
}

static void run(struct train *t, const char *call, const char *path, int rank, file_hook_fn hook)
{
    text_finish(&said);
    said = (struct text){ 0 };
    slow.call = call;
    slow.path = path;
    slow.rank = rank;
    slow.calls = 0;
    given_up = 0;
    file_hook(hook);
    t_limits(DEADLINE, TIMEOUT);
    t_ranks(WORLD, T_THREADS | T_ASYNC, train_slowly, t);
    t_limits(0, 0);
    file_hook(NULL);
}

/* The last run ended well although calls of one kind took far longer than the timeout in all. */
static void check_slow(const struct train *t)
{
    for (int r = 0; r < WORLD; r++)
        if (t->status[r] != SHERD_OK)
            fail_msg("slow %s of %s, rank %d: %s", slow.call, slow.path, r, t->error[r]);
    if (!(slow.calls * SLOWLY > 1.8))
        fail_msg("slow %s of %s: %d calls alone", slow.call, slow.path, (int)slow.calls);
}

static void run_slowly(struct train *t, const char *call, const char *path, int rank)
{
    run(t, call, path, rank, dawdle);
    check_slow(t);
}

/* Saving, clearing away, searching and loading go on for longer than ranks wait for one that stands still. */
static void a_slow_disk_is_not_a_hang(void **state)
{
    (void)state;
    struct train saves = { .dir = "slow", .settings = { "train.steps=6" } };
    struct train rotates = { .dir = "slow", .settings = { "save.keep=1", "run.resume=required" } };
    struct train loads = { .dir = "slow", .settings = { "train.steps=9", "run.resume=required" } };
    run_slowly(&saves, "write", "-00001-of", -1);
    run_slowly(&rotates, "remove", "slow/", -1);
    assert_true(!has_step("slow", 3) && !has_step("slow", 6) && has_step("slow", 9));
    run_slowly(&loads, "read", "-00001-of", -1); /* which rank 1 reads most of */
    ASSERT_CONTAINS(said.data, "resumed from ");
    run_slowly(&loads, "read", "-00000-of", -1);
    ASSERT_OK(file_remove_tree(at("slow")));
}

/* As a run that died while it saved leaves it. */
static void what_was_left_goes_slowly(void **state)
{
    (void)state;
    struct train clears = { .dir = "left", .settings = { "train.steps=1" } };
    ASSERT_OK(file_mkdirs(at("left/.tmp-step-00000003-0123456789abcdef")));
    for (int i = 0; i < CALLS; i++)
        ASSERT_OK(file_write_atomic(at("left/.tmp-step-00000003-0123456789abcdef/%d", i), "x", 1));
    run_slowly(&clears, "remove", "left/.tmp", 0);
    ASSERT_OK(file_remove_tree(at("left")));
}

/* There is no room for another checkpoint as long as the oldest is there. */
static int dawdle_for_room(const char *call, const char *path, size_t *bytes)
{
    if (!strcmp(call, "space") && has_step("room", 3))
        *bytes = 1000;
    return dawdle(call, path, bytes);
}

static void room_is_made_slowly(void **state)
{
    (void)state;
    struct train two = { .dir = "room", .settings = { "train.steps=6" } };
    struct train third = { .dir = "room", .settings = { "save.keep=1", "run.resume=required" } };
    train(&two);
    run(&third, "remove", "room/", 0, dawdle_for_room);
    check_slow(&third);
    assert_true(!has_step("room", 3) && has_step("room", 9));
    ASSERT_OK(file_remove_tree(at("room")));
}

static void a_slow_import_is_not_a_hang(void **state)
{
    (void)state;
    char from[FOLDER_BYTES + 64];
    struct train first = { .dir = "first", .settings = { "train.steps=3", "save.every=3" } };
    struct train imports = { .dir = "second", .settings = { from, "train.steps=1" } };
    train(&first);
    ASSERT_OK(sherd_merge(
        &(struct sherd_merge_desc){ .from = at("first/step-00000003"), .to = at("model"), .type = SHERD_F32 },
        NULL));
    snprintf(from, sizeof(from), "model.from=%s/model", root);
    run_slowly(&imports, "read", "model/", 1);
    ASSERT_OK(file_remove_tree(at("first")));
    ASSERT_OK(file_remove_tree(at("second")));
    ASSERT_OK(file_remove_tree(at("model")));
}

/* One call that does not come back is one. */
static void a_disk_that_stands_still_is_a_hang(void **state)
{
    (void)state;
    struct train t = { .dir = "stuck", .settings = { "train.steps=3" } };
    run(&t, "sync", "states-00001", -1, stand_still);
    assert_int_equal(t.status[0], SHERD_ETIMEOUT);
    ASSERT_CONTAINS(t.error[0], "no progress for 30 s, 1 of 2 ranks have not come: rank 1");
    ASSERT_CONTAINS(t.error[0], "save");
    ASSERT_OK(file_remove_tree(at("stuck")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_slow_disk_is_not_a_hang),
        cmocka_unit_test(what_was_left_goes_slowly),
        cmocka_unit_test(room_is_made_slowly),
        cmocka_unit_test(a_slow_import_is_not_a_hang),
        cmocka_unit_test(a_disk_that_stands_still_is_a_hang),
    };
    return cmocka_run_group_tests(tests, train_enter, train_leave);
}
