/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Exchanges over sockets: a connection between every two ranks in each channel. What a rank sends is a call,
 * so that all see that all do the same, and the part behind it. One poll waits for all connections and for
 * news on the lines; only a time in which nothing moved and nobody pinned anything counts against the
 * timeout.
 */
#include "comm/tcp.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/status.h"
#include "comm/board.h"
#include "comm/lines.h"
#include "comm/mesh.h"

#define SLICE_SECONDS 0.2

/* One connection during an exchange: what is left of the call and of the part, each way. */
struct leg {
    int sock; /* -1: this rank itself */
    size_t sent, got;
    struct block_call theirs;
};

struct tcp {
    struct mesh mesh; /* first, see comm/mesh.h */
    struct lines *lines;
    int control; /* the second channel of a pair */
    uint32_t channel;
    double timeout;
    struct leg *legs;
    struct pollfd *polls; /* of the legs, then of the lines */
    uint8_t *absent;
};

static size_t out_bytes(const struct mesh_part *part)
{
    return sizeof(struct block_call) + part->out_bytes;
}

static size_t in_bytes(const struct mesh_part *part)
{
    return sizeof(struct block_call) + part->in_bytes;
}

/* What is left of two pieces, `done` bytes into them. */
static int rest(
    struct iovec out[2], const void *a, size_t a_bytes, const void *b, size_t b_bytes, size_t done)
{
    int n = 0;
    const struct iovec both[2] = { { (void *)(uintptr_t)a, a_bytes }, { (void *)(uintptr_t)b, b_bytes } };
    for (int i = 0; i < 2; i++) {
        size_t skip = MIN(done, both[i].iov_len);
        done -= skip;
        if (both[i].iov_len > skip)
            out[n++] = (struct iovec){ (char *)both[i].iov_base + skip, both[i].iov_len - skip };
    }
    return n;
}

/* Each: bytes moved, 0 where nothing can be now, below 0 an errno. */
static ssize_t push(struct leg *leg, const struct block_call *call, const struct mesh_part *part)
{
    struct iovec iov[2];
    struct msghdr msg = { .msg_iov = iov };
    msg.msg_iovlen = (size_t)rest(iov, call, sizeof(*call), part->out, part->out_bytes, leg->sent);
    ssize_t n = sendmsg(leg->sock, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0)
        leg->sent += (size_t)n;
    return n >= 0 ? n : errno == EAGAIN || errno == EINTR ? 0 : -errno;
}

/* The call alone first: a part of another call may be longer than what there is room for. */
static ssize_t pull(struct leg *leg, const struct mesh_part *part)
{
    size_t head = sizeof(leg->theirs);
    char *to = leg->got < head ? (char *)&leg->theirs + leg->got : (char *)part->in + (leg->got - head);
    size_t want = leg->got < head ? head - leg->got : in_bytes(part) - leg->got;
    ssize_t n = recv(leg->sock, to, want, MSG_DONTWAIT);
    if (n == 0)
        return -EPIPE;
    if (n > 0)
        leg->got += (size_t)n;
    return n > 0 ? n : errno == EAGAIN || errno == EINTR ? 0 : -errno;
}

/* Names those that have not come or stopped, and tells all others. */
static int timed_out(const struct tcp *t, const struct block_call *call, const struct mesh_part *parts)
{
    char text[256], where[1000];
    uint8_t *absent = t->absent;
    int missing = 0;
    for (int r = 0; r < t->mesh.size; r++) {
        const struct leg *leg = &t->legs[r];
        absent[r] = leg->sock >= 0 && (leg->got < in_bytes(&parts[r]) || leg->sent < out_bytes(&parts[r]));
        missing += absent[r];
    }
    int st = SHERD_FAIL(SHERD_ETIMEOUT, "%s: no progress for %g s, %d of %d ranks have not come: %s",
        block_call_text(call, text, sizeof(text)), t->timeout, missing, t->mesh.size,
        board_tell(lines_board(t->lines), absent, NULL, where, sizeof(where)));
    lines_abort(t->lines, sherd_error());
    return st;
}

/* Moves what can be moved with rank r; *moved grows. */
static int work(struct tcp *t, int r, const struct block_call *call, const struct mesh_part *part, int *moved)
{
    struct leg *leg = &t->legs[r];
    size_t head = sizeof(leg->theirs);
    char text[256];
    ssize_t n = 1, pushed = 1;
    while (pushed > 0 && leg->sent < out_bytes(part)) {
        pushed = push(leg, call, part);
        *moved += pushed > 0;
    }
    /* It may have said something before it left. */
    while (n > 0 && leg->got < in_bytes(part)) {
        int before = leg->got < head;
        n = pull(leg, part);
        *moved += n > 0;
        if (before && leg->got >= head && memcmp(&leg->theirs, call, head) != 0) {
            int st = mesh_differ(&t->mesh, call, r, &leg->theirs);
            lines_abort(t->lines, sherd_error());
            return st;
        }
    }
    if (pushed < 0 && leg->got == in_bytes(part))
        n = pushed;
    return n >= 0 ? SHERD_OK : lines_lost(t->lines, r, block_call_text(call, text, sizeof(text)), (int)-n);
}

/* What each connection waits for; the number of those that are not done. */
static int set_polls(struct tcp *t, const struct mesh_part *parts)
{
    int n = 0;
    for (int r = 0; r < t->mesh.size; r++) {
        const struct leg *leg = &t->legs[r];
        int in = leg->got < in_bytes(&parts[r]), out = leg->sent < out_bytes(&parts[r]);
        if (leg->sock >= 0 && (in || out))
            t->polls[n++] = (struct pollfd){ .fd = leg->sock,
                .events = (short)((in ? POLLIN : 0) | (out ? POLLOUT : 0)) };
    }
    return n;
}

static int exchange(struct mesh *mesh, const struct block_call *call, const struct mesh_part *parts)
{
    struct tcp *t = (struct tcp *)mesh;
    double since = clock_seconds();
    uint64_t pulse = 0;
    SHERD_TRY(lines_check(t->lines));
    for (int r = 0; r < mesh->size; r++)
        t->legs[r].sent = t->legs[r].got = 0;
    for (;;) {
        int moved = 0;
        for (int r = 0; r < mesh->size; r++)
            if (t->legs[r].sock >= 0)
                SHERD_TRY(work(t, r, call, &parts[r], &moved));
        int n = set_polls(t, parts);
        if (n == 0)
            return SHERD_OK;
        double now = clock_seconds();
        uint64_t seen = board_pulse(lines_board(t->lines), mesh->rank);
        if (moved || seen != pulse)
            since = now;
        else if (now - since >= t->timeout)
            return timed_out(t, call, parts);
        pulse = seen;
        int all = n + lines_poll(t->lines, t->polls + n), ready = 0;
        int news = poll(t->polls, (nfds_t)all, (int)(SLICE_SECONDS * 1e3));
        for (int i = 0; i < n; i++)
            ready |= t->polls[i].revents;
        if (news >= 0 && !ready) /* a line has something to say, or nobody has */
            SHERD_TRY(lines_check(t->lines));
    }
}

static void tcp_destroy(struct tcp *t)
{
    for (int r = 0; t->legs && r < t->mesh.size; r++)
        if (t->legs[r].sock >= 0)
            close(t->legs[r].sock);
    if (!t->control)
        lines_release(t->lines);
    lines_drop(t->lines);
    mesh_finish(&t->mesh);
    mem_free(t->legs);
    mem_free(t->polls);
    mem_free(t->absent);
    mem_free(t);
}

/* One end of a channel for comm. Collective. */
static int join(struct sherd_comm *comm, struct lines *lines, uint32_t channel, int control)
{
    size_t size = (size_t)comm->world.size;
    int st = SHERD_OK, *socks = NULL;
    struct tcp *t = mem_zalloc(1, sizeof(*t));
    if (!t) {
        if (!control)
            lines_release(lines);
        return SHERD_ENOMEM;
    }
    t->mesh = (struct mesh){ .rank = comm->world.rank, .size = comm->world.size, .exchange = exchange };
    t->lines = lines_hold(lines);
    t->control = control;
    t->channel = channel;
    t->timeout = comm->timeout;
    t->legs = mem_zalloc(size, sizeof(*t->legs));
    t->polls = mem_zalloc(2 * size, sizeof(*t->polls));
    t->absent = mem_zalloc(size, 1);
    socks = mem_zalloc(size, sizeof(*socks));
    for (size_t r = 0; t->legs && r < size; r++)
        t->legs[r].sock = -1;
    if (!t->legs || !t->polls || !t->absent || !socks) {
        st = SHERD_ENOMEM;
        goto out;
    }
    SHERD_TRY_OUT(mesh_init(&t->mesh));
    SHERD_TRY_OUT(lines_connect(lines, channel, socks, comm->timeout));
    for (size_t r = 0; r < size; r++)
        t->legs[r].sock = socks[r];
    comm->impl = t;
out:
    mem_free(socks);
    if (st != SHERD_OK)
        tcp_destroy(t);
    return st;
}

int tcp_open_ranks(struct sherd_comm *comm)
{
    struct lines *lines = NULL;
    if (!comm->world.master[0])
        return SHERD_FAIL(SHERD_ECONFIG,
            "%d of %d ranks are on this host, and where rank 0 can be reached is not told by %s: set MASTER_ADDR and "
            "MASTER_PORT for all ranks",
            comm->world.local_size, comm->world.size, comm->world.source);
    SHERD_TRY(lines_open(&lines, &comm->world, -1, comm->timeout));
    int st = join(comm, lines, LINES_FIRST, 0);
    if (st != SHERD_OK)
        lines_abort(lines, sherd_error());
    lines_drop(lines);
    return st;
}

static int tcp_control(struct sherd_comm *comm, struct sherd_comm *twin)
{
    const struct tcp *t = comm->impl;
    return join(twin, t->lines, t->channel + 1, 1);
}

static int tcp_dup(struct sherd_comm *control, struct sherd_comm *twin)
{
    struct tcp *t = control->impl;
    int32_t channel = t->mesh.rank == 0 ? lines_reserve(t->lines) : 0;
    SHERD_TRY(collect_tell(&t->mesh.collect, &channel, sizeof(channel), 0));
    if (channel < 0)
        return SHERD_FAIL(SHERD_EUNSUPPORTED, "no more than %d communicators over the same ranks; close one",
            BLOCK_CHANNELS / 2);
    return join(twin, t->lines, (uint32_t)channel, 0);
}

static void tcp_abort(struct sherd_comm *comm, const char *reason)
{
    lines_abort(((struct tcp *)comm->impl)->lines, reason);
}

static int tcp_check(struct sherd_comm *comm)
{
    return lines_check(((struct tcp *)comm->impl)->lines);
}

static int tcp_heard(struct sherd_comm *comm)
{
    return lines_heard(((struct tcp *)comm->impl)->lines);
}

static struct board *tcp_board(struct sherd_comm *comm)
{
    return lines_board(((struct tcp *)comm->impl)->lines);
}

static uint64_t tcp_pulse(struct sherd_comm *comm)
{
    return board_pulse(tcp_board(comm), comm->world.rank);
}

static const char *tcp_tell(struct sherd_comm *comm, char *buf, size_t bytes)
{
    return board_tell_all(tcp_board(comm), buf, bytes);
}

static void tcp_close(struct sherd_comm *comm)
{
    tcp_destroy(comm->impl);
}

const struct comm_ops comm_tcp = {
    .kind = "tcp",
    .ordered = 1,
    .all_gather = collect_all_gather,
    .reduce_scatter = collect_reduce_scatter,
    .all_reduce = collect_all_reduce,
    .broadcast = collect_broadcast,
    .control = tcp_control,
    .dup = tcp_dup,
    .abort = tcp_abort,
    .close = tcp_close,
    .check = tcp_check,
    .heard = tcp_heard,
    .board = tcp_board,
    .pulse = tcp_pulse,
    .tell = tcp_tell,
};
