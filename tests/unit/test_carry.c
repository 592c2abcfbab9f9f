/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Exchanges over an MPI that is made up: two ranks in one process, whose messages lie in a list, and whose
 * calls fail or do not return when they are told to.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include "tests/check.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "comm/carry.h"

#define RANKS 2
#define TAG 7

/* ---- the MPI ---- */

struct note {
    struct note *next;
    int from, to, tag, bytes;
    char data[];
};

struct wish {
    struct wish *next; /* of all that were ever made */
    void *data;        /* NULL: a note that was sent */
    int from, tag, bytes;
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct note *notes;
    struct wish *wishes;
    int working[RANKS], broken[RANKS];
    int fails; /* the rank whose sends fail; -1 = none */
    int stuck; /* the rank that does not come back from a test */
    pthread_t threads[RANKS];
    void (*work[RANKS])(void *);
    void *ctx[RANKS];
} world = {
    .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .fails = -1, .stuck = -1
};

static _Thread_local int me;

/* Under the lock. */
static struct wish *wish_for(void *data, int bytes, int from, int tag)
{
    struct wish *wish = malloc(sizeof(*wish));
    *wish = (struct wish){ world.wishes, data, from, tag, bytes };
    world.wishes = wish;
    return wish;
}

static int send(struct mpi_message *m, const void *data, int bytes, int to, int tag, char *why, size_t room)
{
    struct note *note = malloc(sizeof(*note) + (size_t)bytes), **at = &world.notes;
    pthread_mutex_lock(&world.lock);
    int fails = world.fails == me;
    *note = (struct note){ .from = me, .to = to, .tag = tag, .bytes = bytes };
    memcpy(note->data, data, (size_t)bytes);
    while (*at)
        at = &(*at)->next;
    *at = note;
    m->word[0] = wish_for(NULL, 0, to, tag);
    pthread_mutex_unlock(&world.lock);
    snprintf(why, room, "%s", fails ? "the cable is gnawed" : "");
    return fails ? -1 : 0;
}

static int receive(struct mpi_message *m, void *data, int bytes, int from, int tag, char *why, size_t room)
{
    pthread_mutex_lock(&world.lock);
    m->word[0] = wish_for(data, bytes, from, tag);
    pthread_mutex_unlock(&world.lock);
    snprintf(why, room, "%s", "");
    return 0;
}

static int test(struct mpi_message *m, int *done, char *why, size_t room)
{
    struct wish *wish = m->word[0];
    struct note **at = &world.notes;
    snprintf(why, room, "%s", "");
    pthread_mutex_lock(&world.lock);
    while (world.stuck == me)
        pthread_cond_wait(&world.changed, &world.lock);
    while (*at && ((*at)->to != me || (*at)->from != wish->from || (*at)->tag != wish->tag))
        at = &(*at)->next;
    struct note *note = wish->data ? *at : NULL;
    *done = !wish->data || note;
    if (note) {
        memcpy(wish->data, note->data, (size_t)(note->bytes < wish->bytes ? note->bytes : wish->bytes));
        *at = note->next;
        free(note);
    }
    pthread_mutex_unlock(&world.lock);
    return 0;
}

static void set_bad(int fails, int stuck)
{
    pthread_mutex_lock(&world.lock);
    world.fails = fails;
    world.stuck = stuck;
    pthread_cond_broadcast(&world.changed);
    pthread_mutex_unlock(&world.lock);
}

static void *live(void *rank)
{
    me = (int)(intptr_t)rank;
    world.work[me](world.ctx[me]);
    pthread_mutex_lock(&world.lock);
    world.working[me] = 0;
    pthread_cond_broadcast(&world.changed);
    pthread_mutex_unlock(&world.lock);
    return NULL;
}

static int run(int rank, void (*work)(void *), void *ctx)
{
    if (world.working[rank])
        return -1;
    world.work[rank] = work;
    world.ctx[rank] = ctx;
    world.working[rank] = 1;
    return pthread_create(&world.threads[rank], NULL, live, (void *)(intptr_t)rank);
}

static int idle(int rank, double seconds)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)seconds;
    pthread_mutex_lock(&world.lock);
    while (world.working[rank] && pthread_cond_timedwait(&world.changed, &world.lock, &until) == 0)
        ;
    int working = world.working[rank];
    pthread_mutex_unlock(&world.lock);
    if (!working)
        pthread_join(world.threads[rank], NULL);
    return working ? -1 : 0;
}

#define SHIM(r)                                                                                              \
    static int run##r(void (*work)(void *), void *ctx)                                                       \
    {                                                                                                        \
        return run(r, work, ctx);                                                                            \
    }                                                                                                        \
    static int idle##r(double seconds)                                                                       \
    {                                                                                                        \
        return idle(r, seconds);                                                                             \
    }                                                                                                        \
    static void broken##r(void)                                                                              \
    {                                                                                                        \
        world.broken[r] = 1;                                                                                 \
    }
SHIM(0)
SHIM(1)

static const struct mpi_shim shims[RANKS] = {
    { .run = run0, .idle = idle0, .broken = broken0, .send = send, .receive = receive, .test = test },
    { .run = run1, .idle = idle1, .broken = broken1, .send = send, .receive = receive, .test = test },
};

/* ---- exchanges ---- */

struct side {
    struct carry *carry;
    struct carry_job job;
    struct carry_leg legs[RANKS];
    struct mesh_part parts[RANKS];
    struct block_call call;
};

static void open_sides(struct side *sides)
{
    for (int r = 0; r < RANKS; r++) {
        sides[r] = (struct side){ .call = { .elems = 5, .seq = 1 } };
        ASSERT_OK(carry_open(&sides[r].carry, &shims[r], r, RANKS));
    }
}

static void close_sides(struct side *sides)
{
    for (int r = 0; r < RANKS; r++)
        carry_close(sides[r].carry);
    while (world.notes) {
        struct note *note = world.notes;
        world.notes = note->next;
        free(note);
    }
    while (world.wishes) {
        struct wish *wish = world.wishes;
        world.wishes = wish->next;
        free(wish);
    }
    world.broken[0] = world.broken[1] = 0;
    set_bad(-1, -1);
}

static void begin(struct side *side)
{
    side->job =
        (struct carry_job){ .tag = TAG, .legs = side->legs, .call = &side->call, .parts = side->parts };
    ASSERT_OK(carry_begin(side->carry, &side->job));
}

static void test_parts_are_exchanged(void **state)
{
    (void)state;
    static const size_t sizes[][RANKS] = { { 0, 0 }, { 1, 0 }, { 100000, 3 } };
    static char out[RANKS][100000], in[RANKS][100000];
    uint8_t absent[RANKS];
    struct side sides[RANKS];
    open_sides(sides);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        for (int r = 0; r < RANKS; r++) {
            memset(out[r], 'a' + r + (int)i, sizeof(out[r]));
            sides[r].parts[!r] = (struct mesh_part){ out[r], sizes[i][r], in[r], sizes[i][!r] };
            begin(&sides[r]);
        }
        for (int r = 0; r < RANKS; r++) {
            assert_int_equal(carry_wait(sides[r].carry, &sides[r].job, 20).state, CARRY_DONE);
            assert_int_equal(carry_look(sides[r].carry, &sides[r].job, absent), 0);
            assert_true(carry_end(sides[r].carry, &sides[r].job));
        }
        for (int r = 0; r < RANKS; r++)
            assert_memory_equal(in[!r], out[r], sizes[i][r]);
    }
    assert_false(world.broken[0] || world.broken[1]);
    close_sides(sides);
}

/* The same process can open again when the first is closed, and not before. */
static void test_one_opening_at_a_time(void **state)
{
    (void)state;
    struct side sides[RANKS];
    struct carry *second = NULL;
    open_sides(sides);
    ASSERT_FAILS(carry_open(&second, &shims[0], 0, RANKS), SHERD_EUNSUPPORTED, "one opening at a time");
    close_sides(sides);
    open_sides(sides);
    close_sides(sides);
}

static void test_calls_that_differ(void **state)
{
    (void)state;
    struct side sides[RANKS];
    open_sides(sides);
    sides[1].call.elems = 6;
    begin(&sides[0]);
    begin(&sides[1]);
    for (int r = 0; r < RANKS; r++) {
        struct carry_standing seen = carry_wait(sides[r].carry, &sides[r].job, 20);
        assert_int_equal(seen.state, CARRY_DIFFERS);
        assert_int_equal(seen.with, !r);
        assert_true(carry_end(sides[r].carry, &sides[r].job));
        assert_int_equal(sides[r].legs[!r].theirs.elems, 6 - r);
        assert_true(world.broken[r]);
    }
    close_sides(sides);
}

static void test_a_call_that_fails(void **state)
{
    (void)state;
    struct side sides[RANKS];
    open_sides(sides);
    set_bad(1, -1);
    begin(&sides[1]);
    assert_int_equal(carry_wait(sides[1].carry, &sides[1].job, 20).state, CARRY_FAILED);
    assert_true(carry_end(sides[1].carry, &sides[1].job));
    ASSERT_CONTAINS(sides[1].job.why, "gnawed");
    ASSERT_FAILS(carry_begin(sides[1].carry, &sides[1].job), SHERD_EPEER, "failed before");
    close_sides(sides);
}

static void test_a_rank_that_does_not_come(void **state)
{
    (void)state;
    uint8_t absent[RANKS];
    struct side sides[RANKS];
    open_sides(sides);
    begin(&sides[0]);
    struct carry_standing seen = carry_wait(sides[0].carry, &sides[0].job, 0.1);
    assert_int_equal(seen.state, CARRY_UNDER_WAY);
    assert_int_equal(carry_look(sides[0].carry, &sides[0].job, absent), 1);
    assert_true(absent[1] && !absent[0]);
    assert_true(carry_end(sides[0].carry, &sides[0].job));
    assert_true(world.broken[0]);
    close_sides(sides);
}

/* Everybody gets away from it, and what MPI may still write to stays. */
static void test_a_call_that_does_not_return(void **state)
{
    (void)state;
    uint8_t absent[RANKS];
    struct side sides[RANKS];
    struct block_call *call = calloc(1, sizeof(*call));
    char *out = calloc(1, 1000);
    open_sides(sides);
    begin(&sides[1]); /* so that there is something to go on with */
    set_bad(-1, 0);
    *call = sides[0].call;
    sides[0].parts[1] = (struct mesh_part){ out, 1000, NULL, 0 };
    sides[0].job =
        (struct carry_job){ .tag = TAG, .legs = sides[0].legs, .call = call, .parts = sides[0].parts };
    ASSERT_OK(carry_begin(sides[0].carry, &sides[0].job));
    assert_int_equal(carry_wait(sides[0].carry, &sides[0].job, 0.1).state, CARRY_UNDER_WAY);
    assert_int_equal(carry_look(sides[0].carry, &sides[0].job, absent), 0);
    assert_false(carry_end(sides[0].carry, &sides[0].job));
    set_bad(-1, 0); /* its thread has read what it needed before it got stuck */
    free(call);
    free(out);
    set_bad(-1, -1);
    assert_true(carry_end(sides[1].carry, &sides[1].job));
    close_sides(sides);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts_are_exchanged),
        cmocka_unit_test(test_one_opening_at_a_time),
        cmocka_unit_test(test_calls_that_differ),
        cmocka_unit_test(test_a_call_that_fails),
        cmocka_unit_test(test_a_rank_that_does_not_come),
        cmocka_unit_test(test_a_call_that_does_not_return),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
