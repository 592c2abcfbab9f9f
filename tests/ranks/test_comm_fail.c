/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Ranks that differ, stop, come late, die or were never of this job: every other rank ends with a sentence
 * that names the one, and in time.
 */
#include "tests/t.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"
#include "comm/collect.h"
#include "comm/meet.h"
#include "comm/ops.h"
#include "tests/ranks/trouble.h"

/* ---- ranks that call different things ---- */

static void differ(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    T_EQ(sum_that_differs(rank, comm, dev, ctx), SHERD_ECOMM);
    T_HAS(sherd_error(), "ranks 0, 2: ");
    T_HAS(sherd_error(), "; rank 1: ");
}

static void test_differences_are_named(void **state)
{
    (void)state;
    static char whats[][8] = { "kind", "count", "type", "max", "root" };
    for (size_t i = 0; i < ARRAY_LEN(whats); i++)
        t_ranks(3, i % 2 ? T_THREADS : T_PROCESSES | T_ASYNC, differ, whats[i]);
}

/* ---- abort ---- */

static void test_abort_wakes_all(void **state)
{
    (void)state;
    t_ranks(4, T_THREADS, abort_wakes, NULL);
    t_ranks(3, T_PROCESSES, abort_wakes, NULL);
}

/* ---- two queues ---- */

/* The others put the rank before the text, and so does the program. */
static void one_uses_two_queues(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    struct collect *collect = comm->impl;
    (void)dev, (void)ctx;
    T_OK(sherd_comm_barrier(comm));
    if (rank == 1) {
        char byte = 0;
        atomic_store(&collect->busy, 1); /* as while another queue's collective runs */
        T_EQ(collect_tell(collect, &byte, 1, 0), SHERD_EINVAL);
        T_STR(sherd_error(), "one communicator is used from two queues at once; give each queue its own");
        sherd_comm_abort(comm, sherd_error());
    } else {
        T_EQ(sherd_comm_barrier(comm), SHERD_EPEER);
        T_STR(sherd_error(),
            "rank 1: one communicator is used from two queues at once; give each queue its own");
    }
}

static void test_two_queues_are_told_with_the_rank_once(void **state)
{
    (void)state;
    t_ranks(2, T_THREADS, one_uses_two_queues, NULL);
    t_ranks(2, T_PROCESSES, one_uses_two_queues, NULL);
}

/* ---- a rank that does not come ---- */

static void test_timeout_names_the_missing(void **state)
{
    (void)state;
    static char late[] = "last seen at #1";
    t_limits(30, 0.5);
    t_ranks(3, T_THREADS, one_is_late, late);
    t_ranks(3, T_PROCESSES | T_ASYNC, one_is_late, late);
    t_limits(0, 0);
}

static void test_closing_early_is_told(void **state)
{
    (void)state;
    t_ranks(2, T_PROCESSES, one_leaves, NULL);
}

/* ---- a rank that dies ---- */

static void one_dies(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    struct sherd_queue *queue;
    int *pid = ctx;
    float x = 1;
    char text[64];
    T_OK(sherd_queue_create(&queue, dev, SHERD_QUEUE_SIDE));
    if (rank == 2)
        *pid = (int)getpid();
    T_OK(sum(comm, queue, &x, 1, SHERD_F32));
    if (rank == 2)
        raise(SIGKILL);
    /* Long before the timeout, which would be ETIMEOUT. */
    snprintf(text, sizeof(text), "rank 2 (pid %d) has died", *pid);
    T_FAILS(sum(comm, queue, &x, 1, SHERD_F32), SHERD_EPEER, text);
    sherd_queue_destroy(queue);
}

static void test_death_is_seen(void **state)
{
    (void)state;
    int *pid = t_shared(sizeof(*pid));
    t_limits(20, 1000);
    t_ranks(4, T_PROCESSES | T_ASYNC | T_MAY_DIE, one_dies, pid);
    t_ranks(3, T_PROCESSES | T_MAY_DIE, one_dies, pid);
    t_limits(0, 0);
    t_shared_free(pid, sizeof(*pid));
}

/* ---- meeting ---- */

struct guest {
    struct visitor visitor;
    struct meet meet;
};

static int visit(void *meet)
{
    return meet_host(meet);
}

/* Rank 0 shows its standard error around: any descriptor will do. */
static void prepare(struct guest *g, const char *job, int rank, int size, double timeout)
{
    memset(g, 0, sizeof(*g));
    g->meet = (struct meet){
        .job = job, .rank = rank, .size = size, .timeout = timeout, .fd = rank == 0 ? STDERR_FILENO : -1
    };
}

static void go(struct guest *g)
{
    visitor_go(&g->visitor, visit, &g->meet, g->meet.rank);
}

static void start(struct guest *g, const char *job, int rank, int size, double timeout)
{
    prepare(g, job, rank, size, timeout);
    go(g);
}

static void ended(struct guest *g, int status, const char *text)
{
    visitor_ended(&g->visitor, status, text);
    if (g->meet.fd > STDERR_FILENO)
        close(g->meet.fd);
}

static const char *job_name(const char *what)
{
    static char name[64];
    snprintf(name, sizeof(name), "meet-%s-%d", what, (int)getpid());
    return name;
}

static void test_jobs_at_once_do_not_mix(void **state)
{
    (void)state;
    char names[20][64];
    struct guest v[20][2];
    for (int j = 0; j < 20; j++) {
        snprintf(names[j], sizeof(names[j]), "meet-%d-of-many-%d", j, (int)getpid());
        start(&v[j][1], names[j], 1, 2, 20);
        start(&v[j][0], names[j], 0, 2, 20);
    }
    for (int j = 0; j < 20; j++) {
        ended(&v[j][0], SHERD_OK, "");
        ended(&v[j][1], SHERD_OK, "");
        assert_true(v[j][1].meet.fd >= 0);
    }
}

static void test_missing_ranks_are_named(void **state)
{
    (void)state;
    struct guest v[4];
    const char *job = job_name("missing");
    start(&v[0], job, 0, 4, 0.6);
    start(&v[2], job, 2, 4, 5);
    ended(&v[0], SHERD_ETIMEOUT, "2 of 4 ranks have not come: ranks 1, 3");
    ended(&v[2], SHERD_ETIMEOUT, "2 of 4 ranks have not come: ranks 1, 3");
    start(&v[1], job, 1, 2, 0.3);
    ended(&v[1], SHERD_ETIMEOUT, "for rank 0 of job");
}

static void test_a_rank_twice_is_refused(void **state)
{
    (void)state;
    struct guest v[3];
    const char *job = job_name("twice");
    start(&v[0], job, 0, 3, 20);
    start(&v[1], job, 1, 3, 20);
    start(&v[2], job, 1, 3, 20);
    for (int i = 0; i < 3; i++) {
        ended(&v[i], SHERD_ECOMM, "came twice");
        ASSERT_CONTAINS(v[i].visitor.text, "SHERD_JOB");
    }
}

static void test_rank_0_twice_is_refused(void **state)
{
    (void)state;
    struct guest v[2];
    const char *job = job_name("zero");
    start(&v[0], job, 0, 2, 2);
    pause_ms(100);
    start(&v[1], job, 0, 2, 0.5);
    ended(&v[1], SHERD_ECOMM, "another process waits as rank 0");
    ended(&v[0], SHERD_ETIMEOUT, "1 of 2 ranks have not come: rank 1");
}

static void test_another_world_size_is_refused(void **state)
{
    (void)state;
    struct guest v[2];
    const char *job = job_name("size");
    start(&v[0], job, 0, 2, 20);
    start(&v[1], job, 1, 3, 20);
    ended(&v[0], SHERD_ECOMM, "says the world has 3 ranks, rank 0 says 2");
    ended(&v[1], SHERD_ECOMM, "says the world has 3 ranks, rank 0 says 2");
}

static int knock(const char *job)
{
    struct sockaddr_un address;
    socklen_t bytes = meet_address(&address, job);
    int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    for (int i = 0; connect(sock, (struct sockaddr *)&address, bytes) != 0 && i < 500; i++)
        pause_ms(10);
    return sock;
}

/* The stranger is told, rank 0 says so in its log, and the meeting goes on. */
static void test_strangers_are_sent_away(void **state)
{
    (void)state;
    struct guest v[2];
    const char *job = job_name("stranger");
    struct meet_hello hello = { .magic = MEET_MAGIC, .version = MEET_VERSION, .rank = 1, .size = 2 };
    struct meet_reply reply = { 0 };
    snprintf(hello.job, sizeof(hello.job), "another job");
    warnings_keep();
    start(&v[0], job, 0, 2, 20);

    int sock = knock(job);
    assert_int_equal(send(sock, &hello, sizeof(hello), 0), sizeof(hello));
    assert_int_equal(recv(sock, &reply, sizeof(reply), 0), sizeof(reply));
    assert_int_equal(reply.status, SHERD_ECOMM);
    ASSERT_CONTAINS(reply.text, "it is rank 1 of job 'another job', this is job 'meet-stranger-");
    close(sock);

    sock = knock(job);
    assert_int_equal(send(sock, "GET / HTTP/1.0", 14, 0), 14);
    assert_int_equal(recv(sock, &reply, sizeof(reply), 0), sizeof(reply));
    assert_int_equal(reply.status, SHERD_ECOMM);
    ASSERT_CONTAINS(reply.text, "it is not sherd, or another version of it");
    close(sock);

    start(&v[1], job, 1, 2, 20);
    ended(&v[0], SHERD_OK, "");
    ended(&v[1], SHERD_OK, "");
    const char *warnings = warnings_take();
    ASSERT_CONTAINS(warnings, "another job");
    ASSERT_CONTAINS(warnings, "it is not sherd");
}

/* Standard input has the number of a guest's socket that was never opened. */
static void test_a_host_without_memory_keeps_standard_input(void **state)
{
    (void)state;
    struct guest v;
    int input = fcntl(STDIN_FILENO, F_GETFD);
    for (int k = 1; k <= 4; k++) {
        prepare(&v, job_name("poor"), 0, 2, 1);
        mem_fail_at(k);
        assert_int_equal(meet_host(&v.meet), SHERD_ENOMEM);
        assert_int_equal(fcntl(STDIN_FILENO, F_GETFD), input);
    }
}

static void test_going_away_before_the_meeting_is_told(void **state)
{
    (void)state;
    struct guest v[3];
    const char *job = job_name("away");
    struct meet_hello hello = {
        .magic = MEET_MAGIC, .version = MEET_VERSION, .rank = 2, .size = 3, .pid = 77
    };
    snprintf(hello.job, sizeof(hello.job), "%s", job);
    start(&v[0], job, 0, 3, 20);
    int sock = knock(job);
    assert_int_equal(send(sock, &hello, sizeof(hello), 0), sizeof(hello));
    pause_ms(50);
    close(sock);
    ended(&v[0], SHERD_EPEER, "rank 2 (pid 77) went away before all ranks had come");
}

/* Rank 0 is told why one that was let in could not enter, or that it went away. */
static int cannot_enter(struct meet *meet)
{
    return SHERD_FAIL(SHERD_ENOMEM, "rank %d has no room for what it got", meet->rank);
}

static void test_who_cannot_enter_is_told(void **state)
{
    (void)state;
    struct guest v[3];
    const char *job = job_name("enter");
    for (int r = 0; r < 3; r++) {
        prepare(&v[r], job, r, 3, 20);
        v[r].meet.enter = r == 2 ? cannot_enter : NULL;
        go(&v[r]);
    }
    ended(&v[0], SHERD_EPEER, "rank 2 has no room for what it got");
    ended(&v[1], SHERD_OK, "");
    ended(&v[2], SHERD_ENOMEM, "rank 2 has no room for what it got");
}

static void test_going_away_before_entering_is_told(void **state)
{
    (void)state;
    struct guest v;
    const char *job = job_name("between");
    struct meet_hello hello = {
        .magic = MEET_MAGIC, .version = MEET_VERSION, .rank = 1, .size = 2, .pid = 77
    };
    struct meet_reply reply = { 0 };
    snprintf(hello.job, sizeof(hello.job), "%s", job);
    start(&v, job, 0, 2, 20);
    int sock = knock(job);
    assert_int_equal(send(sock, &hello, sizeof(hello), 0), sizeof(hello));
    assert_int_equal(recv(sock, &reply, sizeof(reply), 0), sizeof(reply));
    assert_int_equal(reply.status, SHERD_OK);
    close(sock);
    ended(&v, SHERD_EPEER, "rank 1 (pid 77) went away before it had entered");
}

static void test_standing_still_before_entering_is_told(void **state)
{
    (void)state;
    struct guest v;
    const char *job = job_name("still");
    struct meet_hello hello = {
        .magic = MEET_MAGIC, .version = MEET_VERSION, .rank = 1, .size = 2, .pid = 77
    };
    snprintf(hello.job, sizeof(hello.job), "%s", job);
    start(&v, job, 0, 2, 0.5);
    int sock = knock(job);
    assert_int_equal(send(sock, &hello, sizeof(hello), 0), sizeof(hello));
    ended(&v, SHERD_ETIMEOUT, "rank 1 (pid 77) came, but stood still before it had entered");
    close(sock);
}

/* ---- opening ---- */

static void test_open_refuses(void **state)
{
    (void)state;
    struct sherd_device *dev;
    struct sherd_comm *comm = NULL;
    ASSERT_OK(sherd_device_open(&dev, &(struct sherd_device_desc){ .name = "cpu", .threads = 1 }));
    struct sherd_comm_desc desc = {
        .world = { .rank = 0, .size = 4, .local_rank = 0, .local_size = 2, .job = "x" }
    };
    ASSERT_FAILS(sherd_comm_open(&comm, dev, &desc), SHERD_ECONFIG, "2 of 4 ranks are on this host");
    desc.kind = "shm";
    ASSERT_FAILS(sherd_comm_open(&comm, dev, &desc), SHERD_ECONFIG, "not all can share its memory");
    desc.kind = "pigeon";
    ASSERT_FAILS(sherd_comm_open(&comm, dev, &desc), SHERD_ECONFIG, "over 'pigeon'");
    desc.kind = NULL;
    desc.world.local_size = 4;
    desc.world.rank = 4;
    ASSERT_FAILS(sherd_comm_open(&comm, dev, &desc), SHERD_EINVAL, "rank 4 of a world of 4");
    desc.world.rank = 0;
    desc.world.job[0] = '\0';
    ASSERT_FAILS(sherd_comm_open(&comm, dev, &desc), SHERD_EINVAL, "has no name");
    desc.world.job[0] = 'x';
    desc.timeout = -1;
    ASSERT_FAILS(sherd_comm_open(&comm, dev, &desc), SHERD_EINVAL, "timeout of -1");
    ASSERT_FAILS(sherd_comm_open(NULL, dev, &desc), SHERD_EINVAL, "NULL");
    desc = (struct sherd_comm_desc){ .world = { .size = 1, .local_size = 1 } };
    ASSERT_OK(sherd_comm_open(&comm, dev, &desc));
    assert_string_equal(comm->ops->kind, "self");
    sherd_comm_abort(comm, "nobody waits");
    sherd_comm_close(comm);
    sherd_comm_close(NULL);
    sherd_device_close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_differences_are_named),
        cmocka_unit_test(test_abort_wakes_all),
        cmocka_unit_test(test_two_queues_are_told_with_the_rank_once),
        cmocka_unit_test(test_timeout_names_the_missing),
        cmocka_unit_test(test_closing_early_is_told),
        cmocka_unit_test(test_death_is_seen),
        cmocka_unit_test(test_jobs_at_once_do_not_mix),
        cmocka_unit_test(test_missing_ranks_are_named),
        cmocka_unit_test(test_a_rank_twice_is_refused),
        cmocka_unit_test(test_rank_0_twice_is_refused),
        cmocka_unit_test(test_another_world_size_is_refused),
        cmocka_unit_test(test_strangers_are_sent_away),
        cmocka_unit_test(test_a_host_without_memory_keeps_standard_input),
        cmocka_unit_test(test_going_away_before_the_meeting_is_told),
        cmocka_unit_test(test_who_cannot_enter_is_told),
        cmocka_unit_test(test_going_away_before_entering_is_told),
        cmocka_unit_test(test_standing_still_before_entering_is_told),
        cmocka_unit_test(test_open_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
