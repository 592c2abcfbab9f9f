/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Ranks over sockets that differ, stop, come late, die or were never of this job; and the meeting over TCP.
 * What the collectives give is in test_comm.c.
 */
#include "tests/t.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "comm/board.h"
#include "comm/lines.h"
#include "comm/meet_tcp.h"
#include "comm/net.h"
#include "comm/ops.h"
#include "tests/ranks/trouble.h"

/* ---- ranks that fail ---- */

static void differ(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    int st = sum_that_differs(rank, comm, dev, ctx);
    T_TRUE(st == SHERD_ECOMM || st == SHERD_EPEER);
    T_HAS(sherd_error(), "rank 1");
}

/* Equal calls from two places of the program are two calls, as in memory that ranks share. */
static void one_is_elsewhere(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    struct sherd_queue *queue;
    float sum[8] = { 0 };
    (void)ctx;
    T_OK(sherd_queue_create(&queue, dev, SHERD_QUEUE_COMPUTE));
    struct board_place here = { .step = 7, .done = 1, .text = "only:1 gather block0" };
    T_OK(comm_at(comm, &here));
    T_OK(sherd_all_reduce(comm, queue, sum, sum, 8, SHERD_F32, SHERD_REDUCE_SUM));
    T_OK(sherd_queue_sync(queue));
    here.done = 2;
    snprintf(here.text, sizeof(here.text), "only:%d gather block1", rank == 1 ? 4 : 3);
    T_OK(comm_at(comm, &here));
    int st = sherd_all_reduce(comm, queue, sum, sum, 8, SHERD_F32, SHERD_REDUCE_SUM);
    SHERD_KEEP(st, sherd_queue_sync(queue));
    T_TRUE(st == SHERD_ECOMM || st == SHERD_EPEER);
    T_HAS(sherd_error(), "ranks call different collectives: ");
    T_HAS(sherd_error(), "rank 1 all-reduce #2 (8 f32) at step 7, only:4 gather block1");
    sherd_queue_destroy(queue);
}

static void one_dies_before(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    (void)ctx, (void)dev;
    T_OK(sherd_comm_barrier(comm));
    if (rank == 2)
        raise(SIGKILL);
    T_FAILS(sherd_comm_barrier(comm), SHERD_EPEER, "rank 2 (");
    T_HAS(sherd_error(), "has died");
    T_FAILS(comm->ops->check(comm), SHERD_EPEER, "has died");
}

static void test_failures_are_told(void **state)
{
    (void)state;
    static char whats[][8] = { "count", "type", "max" }, late[] = "rank 2 (";
    t_kind("tcp");
    for (size_t i = 0; i < ARRAY_LEN(whats); i++)
        t_ranks(3, T_PROCESSES | (i % 2 ? T_ASYNC : 0), differ, whats[i]);
    t_ranks(3, T_PROCESSES, one_is_elsewhere, NULL);
    t_ranks(3, T_PROCESSES, abort_wakes, NULL);
    t_ranks(2, T_PROCESSES, one_leaves, NULL);
    t_limits(30, 0.5);
    t_ranks(3, T_PROCESSES | T_ASYNC, one_is_late, late);
    t_limits(20, 1000); /* long before the timeout, which would be ETIMEOUT */
    t_ranks(4, T_PROCESSES | T_MAY_DIE, one_dies_before, NULL);
    t_limits(0, 0);
    t_kind(NULL);
}

/* ---- the board ---- */

/* What a rank pins comes to the boards of all others, whole, and a wait lasts as long as somebody pins. */
static void pins(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    (void)ctx, (void)dev;
    struct board *board = comm_board(comm);
    struct board_note note = { 0 };
    double figures[BOARD_FIGURES] = { 0 };
    int size = sherd_comm_size(comm);
    for (int i = 1; i <= 100; i++) {
        struct board_place place = { .step = 7, .done = i };
        snprintf(place.text, sizeof(place.text), "%d:%d", rank, i);
        T_EQ(comm_at(comm, &place), 0);
    }
    figures[0] = rank;
    board_show(board, rank, 6, figures);
    for (int r = 0; r < size; r++) {
        for (double end = clock_seconds() + 10; board_pinned(board, r) < 100 && clock_seconds() < end;)
            pause_ms(5);
        char want[64], name[128];
        for (int k = 0; k < BOARD_TRAIL; k++) {
            snprintf(want, sizeof(want), "%d:%d", r, 100 - k);
            T_TRUE(board_read(board, r, k, &note));
            T_STR(note.place.text, want);
            T_NEAR(note.seconds, clock_seconds(), 15);
        }
        T_EQ(board_look(board, r, figures), 6);
        T_EQ(figures[0], r);
        T_HAS(board_name(board, r, name, sizeof(name)), "pid ");
    }
    T_OK(sherd_comm_barrier(comm));
}

static void one_is_slow(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    (void)ctx, (void)dev;
    for (int i = 0; rank == 1 && i < 20; i++) {
        pause_ms(100);
        comm_beat(comm);
    }
    T_OK(sherd_comm_barrier(comm));
}

static void test_the_board_is_carried(void **state)
{
    (void)state;
    t_kind("tcp");
    t_ranks(3, T_PROCESSES, pins, NULL);
    t_limits(30, 1);
    t_ranks(3, T_PROCESSES, one_is_slow, NULL);
    t_limits(0, 0);
    t_kind(NULL);
}

/* ---- meeting ---- */

struct guest {
    struct visitor visitor;
    struct meet_tcp meet;
    struct meet_place places[8];
};

static int visit(void *meet)
{
    return meet_tcp(meet);
}

static void start(struct guest *g, const char *job, int rank, int size, int port, double timeout)
{
    memset(g, 0, sizeof(*g));
    g->meet = (struct meet_tcp){ .job = job,
        .rank = rank,
        .size = size,
        .local_rank = rank,
        .master = "127.0.0.1",
        .port = port,
        .door = -1,
        .timeout = timeout,
        .places = g->places };
    visitor_go(&g->visitor, visit, &g->meet, rank);
}

static void ended(struct guest *g, int status, const char *text)
{
    visitor_ended(&g->visitor, status, text);
    if (g->meet.listener >= 0)
        close(g->meet.listener);
}

static void test_all_get_the_list(void **state)
{
    (void)state;
    struct guest v[4];
    int port = t_free_port();
    for (int r = 3; r >= 0; r--)
        start(&v[r], "list", r, 4, port, 20);
    for (int r = 0; r < 4; r++)
        ended(&v[r], SHERD_OK, "");
    for (int r = 1; r < 4; r++) {
        assert_memory_equal(v[r].places, v[0].places, 4 * sizeof(v[0].places[0]));
        assert_true(v[r].meet.token == v[0].meet.token);
        assert_int_equal(v[r].places[r].pid, (int)getpid());
        assert_string_equal(v[r].places[r].address, "127.0.0.1");
    }
}

static void test_missing_ranks_are_named(void **state)
{
    (void)state;
    struct guest v[4];
    int port = t_free_port();
    start(&v[0], "missing", 0, 4, port, 0.6);
    start(&v[2], "missing", 2, 4, port, 5);
    ended(&v[0], SHERD_ETIMEOUT, "2 of 4 ranks have not come to 127.0.0.1:");
    ended(&v[2], SHERD_ETIMEOUT, "2 of 4 ranks have not come to 127.0.0.1:");
    ASSERT_CONTAINS(v[0].visitor.text, ": ranks 1, 3;");
    start(&v[1], "missing", 1, 2, port, 0.3);
    ended(&v[1], SHERD_ETIMEOUT, "could not reach rank 0 at 127.0.0.1:");
    ASSERT_CONTAINS(v[1].visitor.text, "has rank 0 started there?");
}

/* The name of rank 0's host leads back to this host, which is not rank 0's. */
static void test_a_loopback_name_is_told(void **state)
{
    (void)state;
    struct guest v;
    memset(&v, 0, sizeof(v));
    v.meet = (struct meet_tcp){ .job = "loop",
        .rank = 2,
        .size = 4,
        .local_rank = 0,
        .master = "localhost",
        .port = t_free_port(),
        .door = -1,
        .timeout = 0.3,
        .places = v.places };
    ASSERT_FAILS(meet_tcp(&v.meet), SHERD_ETIMEOUT, "that is this host itself, and rank 0 is on another one");
    v.meet.master = "no-such-host.invalid";
    ASSERT_FAILS(meet_tcp(&v.meet), SHERD_ETIMEOUT, "'no-such-host.invalid' cannot be resolved here");
    v.meet.master = "127.0.0.1";
    v.meet.interface = "wrong0";
    ASSERT_FAILS(meet_tcp(&v.meet), SHERD_ENOTFOUND, "NCCL_SOCKET_IFNAME is 'wrong0'");
    ASSERT_CONTAINS(sherd_error(), "there are: lo (127.0.0.1)");
}

static void test_wrong_ranks_are_refused(void **state)
{
    (void)state;
    struct guest v[3];
    int port = t_free_port();
    for (int i = 0; i < 3; i++)
        start(&v[i], "twice", i ? 1 : 0, 3, port, 20);
    for (int i = 0; i < 3; i++) {
        ended(&v[i], SHERD_ECOMM, "came twice");
        ASSERT_CONTAINS(v[i].visitor.text, "SHERD_JOB");
    }
    start(&v[0], "size", 0, 2, port, 20);
    start(&v[1], "size", 1, 3, port, 20);
    ended(&v[0], SHERD_ECOMM, "says the world has 3 ranks, rank 0 says 2");
    ended(&v[1], SHERD_ECOMM, "says the world has 3 ranks, rank 0 says 2");
}

static void test_a_busy_port_is_told(void **state)
{
    (void)state;
    int sock = -1;
    ASSERT_OK(net_listen_any(&sock, 0));
    struct net_address here = net_here(sock);
    struct guest v;
    start(&v, "busy", 0, 2, net_port(&here), 5);
    char owner[128];
    snprintf(owner, sizeof(owner), "process %d (test_tcp) has this port; give all ranks another MASTER_PORT",
        (int)getpid());
    ended(&v, SHERD_ECOMM, owner);
    close(sock);
}

/* The port is another program's, which says nothing, or something else. */
static void test_a_stranger_in_place_of_rank_0_is_told(void **state)
{
    (void)state;
    static const char page[sizeof(struct meet_tcp_reply)] = "HTTP/1.1 400 Bad Request";
    struct guest v[2];
    int door = -1;
    ASSERT_OK(net_listen_any(&door, 0));
    struct net_address here = net_here(door);
    start(&v[0], "page", 1, 2, net_port(&here), 20);
    int sock = -1;
    assert_int_equal(net_accept(&sock, door, clock_seconds() + 5), 0);
    assert_int_equal(net_send(sock, page, sizeof(page), clock_seconds() + 5), 0);
    ended(&v[0], SHERD_ECOMM, "is not sherd, or another version of it");
    ASSERT_CONTAINS(v[0].visitor.text, "give them another MASTER_PORT");
    close(sock);
    start(&v[1], "silence", 1, 2, net_port(&here), 0.2);
    ended(&v[1], SHERD_ETIMEOUT, "if another program listens at 127.0.0.1:");
    close(door);
}

/* A door that was handed over is closed, however far its taker came. */
static void test_a_door_is_taken_over(void **state)
{
    (void)state;
    char longer[MEET_TCP_JOB_BYTES + 1];
    struct guest v = { .meet = { .job = longer, .size = 2, .master = "127.0.0.1", .places = v.places } };
    struct sherd_world world = { .size = 2, .master = "127.0.0.1", .job = "door" };
    struct lines *lines = NULL;
    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    ASSERT_OK(net_listen_any(&v.meet.door, 0));
    ASSERT_FAILS(meet_tcp(&v.meet), SHERD_EINVAL, "the name of the job is longer than");
    assert_int_equal(fcntl(v.meet.door, F_GETFD), -1);
    assert_int_equal(v.meet.listener, -1);
    for (int k = 1; k <= 2; k++) {
        int door = -1;
        ASSERT_OK(net_listen_any(&door, 0));
        mem_fail_at(k);
        ASSERT_FAILS(lines_open(&lines, &world, door, 1), SHERD_ENOMEM, "out of memory");
        mem_fail_at(0);
        assert_int_equal(fcntl(door, F_GETFD), -1);
    }
}

static int knock(int port)
{
    struct net_address at[NET_FOUND];
    int n, sock = -1;
    ASSERT_OK(net_resolve(at, &n, "127.0.0.1", port));
    for (int i = 0; net_connect(&sock, &at[0], NULL, clock_seconds() + 1) != 0 && i < 500; i++)
        pause_ms(10);
    return sock;
}

/* Another job, another program and one who says nothing: the meeting goes on. */
static void test_strangers_are_sent_away(void **state)
{
    (void)state;
    struct guest v[2];
    struct meet_tcp_hello hello = {
        .magic = MEET_TCP_MAGIC, .version = MEET_TCP_VERSION, .rank = 1, .size = 2
    };
    struct meet_tcp_reply reply = { 0 };
    int port = t_free_port();
    snprintf(hello.job, sizeof(hello.job), "another job");
    warnings_keep();
    start(&v[0], "stranger", 0, 2, port, 20);

    int silent = knock(port);
    int sock = knock(port);
    assert_int_equal(net_send(sock, &hello, sizeof(hello), clock_seconds() + 5), 0);
    assert_int_equal(net_receive(sock, &reply, sizeof(reply), clock_seconds() + 5), 0);
    assert_int_equal(reply.status, SHERD_ECOMM);
    ASSERT_CONTAINS(reply.text, "it is rank 1 of job 'another job', this is job 'stranger'");
    close(sock);

    sock = knock(port);
    memcpy(hello.magic, "GET / HT", sizeof(hello.magic));
    assert_int_equal(net_send(sock, &hello, sizeof(hello), clock_seconds() + 5), 0);
    assert_int_equal(net_receive(sock, &reply, sizeof(reply), clock_seconds() + 5), 0);
    ASSERT_CONTAINS(reply.text, "it is not sherd, or another version of it");
    close(sock);

    start(&v[1], "stranger", 1, 2, port, 20);
    ended(&v[0], SHERD_OK, "");
    ended(&v[1], SHERD_OK, "");
    close(silent);
    const char *warnings = warnings_take();
    ASSERT_CONTAINS(warnings, "another job");
    ASSERT_CONTAINS(warnings, "it is not sherd");
}

static void test_going_away_before_the_meeting_is_told(void **state)
{
    (void)state;
    struct guest v;
    struct meet_tcp_hello hello = { .magic = MEET_TCP_MAGIC,
        .version = MEET_TCP_VERSION,
        .rank = 2,
        .size = 3,
        .pid = 77,
        .host = "far",
        .job = "away" };
    int port = t_free_port();
    start(&v, "away", 0, 3, port, 20);
    int sock = knock(port);
    assert_int_equal(net_send(sock, &hello, sizeof(hello), clock_seconds() + 5), 0);
    pause_ms(50);
    close(sock);
    ended(&v, SHERD_EPEER, "rank 2 (far, pid 77) went away before all ranks had come");
}

/* ---- interfaces ---- */

static void test_interfaces(void **state)
{
    (void)state;
    struct net_address to[NET_FOUND], from;
    char text[NET_TEXT_BYTES], name[NET_HOST_BYTES];
    int n;
    ASSERT_OK(net_resolve(to, &n, "127.0.0.1", 5));
    static const char *const good[] = { "lo", "=lo", "nothing,lo", "l", "^eth,wlan,enp,ens,docker,br,veth",
        "lo:1" };
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        ASSERT_OK(net_interface(&from, good[i], &to[0]));
        assert_true(from.bytes > 0);
    }
    ASSERT_OK(net_interface(&from, "lo", &to[0]));
    assert_string_equal(net_host_text(&from, text), "127.0.0.1");
    assert_string_equal(net_interface_name(&from, name), "lo");
    ASSERT_OK(net_interface(&from, NULL, &to[0]));
    assert_int_equal(from.bytes, 0);
    ASSERT_FAILS(net_interface(&from, "=l", &to[0]), SHERD_ENOTFOUND, "there are: ");
    assert_string_equal(net_text(&to[0], text), "127.0.0.1:5");
    assert_true(net_is_loopback(&to[0]));
    ASSERT_OK(net_resolve(to, &n, "::1", 7));
    assert_true(net_is_loopback(&to[0]));
    assert_string_equal(net_text(&to[0], text), "[::1]:7");
    ASSERT_OK(net_resolve(to, &n, "127.0.0.2,127.0.0.1", 9));
    assert_int_equal(n, 2);
    assert_string_equal(net_text(&to[0], text), "127.0.0.2:9");
    assert_string_equal(net_text(&to[1], text), "127.0.0.1:9");
    char list[NET_TEXT_BYTES];
    ASSERT_OK(net_addresses(list, sizeof(list), "=lo"));
    assert_int_equal(strncmp(list, "127.0.0.1", 9), 0);
    ASSERT_FAILS(net_addresses(list, sizeof(list), "=l"), SHERD_ENOTFOUND, "named by NCCL_SOCKET_IFNAME=");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_failures_are_told),
        cmocka_unit_test(test_the_board_is_carried),
        cmocka_unit_test(test_all_get_the_list),
        cmocka_unit_test(test_missing_ranks_are_named),
        cmocka_unit_test(test_a_loopback_name_is_told),
        cmocka_unit_test(test_wrong_ranks_are_refused),
        cmocka_unit_test(test_a_busy_port_is_told),
        cmocka_unit_test(test_a_stranger_in_place_of_rank_0_is_told),
        cmocka_unit_test(test_a_door_is_taken_over),
        cmocka_unit_test(test_strangers_are_sent_away),
        cmocka_unit_test(test_going_away_before_the_meeting_is_told),
        cmocka_unit_test(test_interfaces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
