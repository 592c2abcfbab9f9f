/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Lines between the ranks of several hosts, and the connections of channels. A rank connects to those below
 * it and is called by those above; a connection begins with who calls, for which channel, and the token of
 * the meeting. Calls for another channel than the one that is being made are kept for it.
 */
#include "comm/lines.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "comm/block.h"
#include "comm/board.h"
#include "comm/meet_tcp.h"
#include "comm/net.h"

#define MAGIC "sherdln"
#define SLICE_SECONDS 0.1
#define CALL_SECONDS 5.0   /* for a call to say who it is */
#define SILENT_SECONDS 30. /* a host that answers nothing for so long is gone */
#define EXPLAIN_SECONDS 1.0
#define CARRY_SECONDS 0.2 /* between looks at what this rank has pinned */
#define REASON_BYTES 2048

enum { NEWS_ABORT = 1, NEWS_FAREWELL, NEWS_SEAT };

/* A piece of news: this, then `bytes` bytes. */
struct news {
    uint32_t kind, bytes;
};

/* The beginning of every connection. */
struct call {
    char magic[8];
    uint64_t token;
    int32_t rank;
    uint32_t channel;
};

enum state { ALIVE, CLOSED, GONE };

struct line {
    int sock;
    enum state state;
    int error;         /* why it is gone; 0 = its end was closed */
    size_t have, held; /* bytes in `in`, and of `out` that the socket did not take yet */
    char *in, *out;    /* room for one piece, and for two */
};

/* A call that came early. */
struct early {
    int sock;
    struct call call;
};

struct lines {
    _Atomic int users;
    int rank, size, listener;
    uint64_t token;
    struct net_address from, rank0;
    struct meet_place *places;
    pthread_mutex_t lock; /* around all below */
    struct line *lines;
    struct early *early;
    int n_early, cap_early;
    uint32_t next; /* channel to give out */
    int pairs;     /* of channels in use */
    int aborted_by;
    char reason[REASON_BYTES];
    pthread_mutex_t door; /* one thread at a time takes calls */
    struct board *board;
    char *seat, *seat_sent; /* of this rank, with the time before it */
    int carries, stop;      /* the thread is there; is to end */
    pthread_cond_t ending;
    pthread_t carrier;
};

static size_t seat_bytes(void)
{
    return sizeof(double) + board_seat_bytes();
}

static size_t piece_bytes(void)
{
    return sizeof(struct news) + MAX(seat_bytes(), (size_t)REASON_BYTES);
}

/* "rank 2 (hostb, pid 77)" */
static const char *name_of(const struct lines *l, int r, char *buf, size_t bytes)
{
    snprintf(buf, bytes, "rank %d (%s, pid %d)", r, l->places[r].host, (int)l->places[r].pid);
    return buf;
}

/* ---- news ---- */

/* Under the lock: what the socket takes at once. */
static void flush(struct line *line)
{
    ssize_t n = 1;
    while (line->held > 0 && line->state == ALIVE && n > 0) {
        n = send(line->sock, line->out, line->held, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0) {
            line->held -= (size_t)n;
            memmove(line->out, line->out + n, line->held);
        }
    }
}

/* Under the lock. A seat waits for the next turn where the last piece is not gone yet: there is always room
 * for an abort or a farewell. */
static void send_news(struct line *line, uint32_t kind, const void *data, size_t bytes)
{
    struct news head = { kind, (uint32_t)bytes };
    if (line->sock < 0 || line->state != ALIVE)
        return;
    flush(line);
    if (line->held > (kind == NEWS_SEAT ? 0 : piece_bytes()))
        return;
    memcpy(line->out + line->held, &head, sizeof(head));
    if (bytes > 0)
        memcpy(line->out + line->held + sizeof(head), data, bytes);
    line->held += sizeof(head) + bytes;
    flush(line);
}

static void take_news(struct lines *l, int r, const struct news *head, const char *data)
{
    struct line *line = &l->lines[r];
    if (head->kind == NEWS_FAREWELL) {
        line->state = CLOSED;
    } else if (head->kind == NEWS_ABORT && l->aborted_by < 0) {
        l->aborted_by = r;
        snprintf(l->reason, sizeof(l->reason), "%.*s", (int)head->bytes, data);
    } else if (head->kind == NEWS_SEAT && head->bytes == seat_bytes()) {
        double sent;
        memcpy(&sent, data, sizeof(sent));
        board_take(l->board, r, data + sizeof(sent), clock_seconds() - sent);
    }
}

/* Under the lock: whole pieces of news in what has come. */
static void read_news(struct lines *l, int r)
{
    struct line *line = &l->lines[r];
    struct news head;
    size_t at = 0;
    while (line->have - at >= sizeof(head)) {
        memcpy(&head, line->in + at, sizeof(head));
        if (head.bytes > piece_bytes() - sizeof(head)) {
            line->state = GONE;
            line->error = EPROTO;
            return;
        }
        if (line->have - at < sizeof(head) + head.bytes)
            break;
        take_news(l, r, &head, line->in + at + sizeof(head));
        at += sizeof(head) + head.bytes;
    }
    memmove(line->in, line->in + at, line->have - at);
    line->have -= at;
}

static void pump_line(struct lines *l, int r)
{
    struct line *line = &l->lines[r];
    while (line->sock >= 0 && line->state == ALIVE) {
        ssize_t n = recv(line->sock, line->in + line->have, piece_bytes() - line->have, MSG_DONTWAIT);
        if (n > 0) {
            line->have += (size_t)n;
            read_news(l, r);
        } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
            line->error = n == 0 ? 0 : errno;
            line->state = GONE;
        } else if (errno == EAGAIN) {
            return;
        }
    }
}

/* A rank whose line ended without a farewell. */
static int gone(const struct lines *l, int r, const char *what)
{
    char name[128];
    int error = l->lines[r].error;
    const char *waited = what ? ", " : "", *rest = what ? " waited for it" : "";
    name_of(l, r, name, sizeof(name));
    board_lose(l->board, r);
    if (error == 0 || error == ECONNRESET || error == EPIPE)
        return SHERD_FAIL(SHERD_EPEER, "%s has died%s%s%s", name, waited, what ? what : "", rest);
    return SHERD_FAIL(SHERD_EPEER,
        "%s cannot be reached any more (%s): its host or the network to it is down%s%s%s", name,
        strerror(error), waited, what ? what : "", rest);
}

/* Under the lock. */
static int judge(struct lines *l, const char *what)
{
    int first = -1;
    for (int r = 0; r < l->size; r++)
        if (r != l->rank)
            pump_line(l, r);
    if (l->aborted_by >= 0)
        return SHERD_FAIL(SHERD_EPEER, "rank %d: %s", l->aborted_by, l->reason);
    for (int r = 0; r < l->size && first < 0; r++)
        if (r != l->rank && l->lines[r].state == GONE)
            first = r;
    return first < 0 ? SHERD_OK : gone(l, first, what);
}

int lines_check(struct lines *l)
{
    pthread_mutex_lock(&l->lock);
    int st = judge(l, NULL);
    pthread_mutex_unlock(&l->lock);
    return st;
}

void lines_abort(struct lines *l, const char *reason)
{
    board_close(l->board);
    pthread_mutex_lock(&l->lock);
    int first = l->aborted_by < 0;
    if (first) {
        l->aborted_by = l->rank;
        snprintf(l->reason, sizeof(l->reason), "%s", reason);
    }
    for (int r = 0; first && r < l->size; r++)
        if (r != l->rank)
            send_news(&l->lines[r], NEWS_ABORT, l->reason, strlen(l->reason));
    pthread_mutex_unlock(&l->lock);
}

static void nap(void)
{
    nanosleep(&(struct timespec){ .tv_nsec = (long)(SLICE_SECONDS * 1e9 / 4) }, NULL);
}

int lines_lost(struct lines *l, int r, const char *what, int error)
{
    char name[128];
    double deadline = clock_seconds() + EXPLAIN_SECONDS;
    int st = SHERD_OK, closed = 0;
    /* One that closed may have done so because of a third, who is to be named. */
    while (st == SHERD_OK && clock_seconds() < deadline) {
        pthread_mutex_lock(&l->lock);
        st = judge(l, what);
        closed = l->lines[r].state == CLOSED;
        pthread_mutex_unlock(&l->lock);
        if (st == SHERD_OK)
            nap();
    }
    SHERD_TRY(st);
    name_of(l, r, name, sizeof(name));
    if (closed || error == 0 || error == EPIPE || error == ECONNRESET)
        return SHERD_FAIL(SHERD_EPEER, "%s has closed its communicator, %s waited for it", name, what);
    return SHERD_FAIL(
        SHERD_EPEER, "%s cannot be reached any more (%s), %s waited for it", name, strerror(error), what);
}

int lines_poll(struct lines *l, struct pollfd *polls)
{
    int n = 0;
    pthread_mutex_lock(&l->lock);
    for (int r = 0; r < l->size; r++)
        if (r != l->rank && l->lines[r].state == ALIVE)
            polls[n++] = (struct pollfd){ .fd = l->lines[r].sock, .events = POLLIN };
    pthread_mutex_unlock(&l->lock);
    return n;
}

/* ---- the board ---- */

struct board *lines_board(struct lines *l)
{
    return l->board;
}

/* Under the lock. */
static void carry(struct lines *l)
{
    double now = clock_seconds();
    board_give(l->board, l->rank, l->seat + sizeof(now));
    int changed = memcmp(l->seat + sizeof(now), l->seat_sent + sizeof(now), board_seat_bytes()) != 0;
    memcpy(l->seat, &now, sizeof(now));
    if (changed)
        memcpy(l->seat_sent, l->seat, seat_bytes());
    for (int r = 0; r < l->size; r++) {
        pump_line(l, r);
        if (changed)
            send_news(&l->lines[r], NEWS_SEAT, l->seat, seat_bytes());
        else
            flush(&l->lines[r]);
    }
}

static void *carrier(void *arg)
{
    struct lines *l = arg;
    pthread_mutex_lock(&l->lock);
    while (!l->stop) {
        struct timespec until;
        carry(l);
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += (long)(CARRY_SECONDS * 1e9);
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&l->ending, &l->lock, &until);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* Signals are for the threads of the program. */
static int start_carrier(struct lines *l)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&l->carrier, NULL, carrier, l);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error)
        return SHERD_FAIL(
            SHERD_EDEVICE, "a thread for the news of ranks cannot be started: %s", strerror(error));
    l->carries = 1;
    return SHERD_OK;
}

static void stop_carrier(struct lines *l)
{
    if (!l->carries)
        return;
    pthread_mutex_lock(&l->lock);
    l->stop = 1;
    pthread_cond_signal(&l->ending);
    pthread_mutex_unlock(&l->lock);
    pthread_join(l->carrier, NULL);
}

/* ---- connections ---- */

/* To a rank below this one, which listens already. */
static int dial(struct lines *l, int r, uint32_t channel, int *sock, double timeout)
{
    const struct meet_place *p = &l->places[r];
    struct call call = { .magic = MAGIC, .token = l->token, .rank = l->rank, .channel = channel };
    struct net_address to = l->rank0;
    double deadline = clock_seconds() + timeout;
    char name[128], text[NET_TEXT_BYTES];
    int n = 0;
    if (p->address[0]) {
        struct net_address found[NET_FOUND];
        SHERD_TRY(net_resolve(found, &n, p->address, p->port));
        to = found[0];
    }
    int error = net_connect(sock, &to, &l->from, deadline);
    if (!error) {
        net_keep(*sock, timeout);
        error = net_send(*sock, &call, sizeof(call), deadline);
    }
    if (error)
        return SHERD_FAIL(SHERD_ECOMM,
            "rank %d cannot connect to %s at %s: %s; do a firewall or a wrong interface stand between the hosts? "
            "(NCCL_SOCKET_IFNAME chooses one)",
            l->rank, name_of(l, r, name, sizeof(name)), net_text(&to, text), strerror(error));
    return SHERD_OK;
}

/* A call for this channel that came before. */
static int take_early(struct lines *l, uint32_t channel, int *rank, int *sock)
{
    int found = 0;
    pthread_mutex_lock(&l->lock);
    for (int i = 0; i < l->n_early && !found; i++) {
        if (l->early[i].call.channel != channel)
            continue;
        *rank = l->early[i].call.rank;
        *sock = l->early[i].sock;
        l->early[i] = l->early[--l->n_early];
        found = 1;
    }
    pthread_mutex_unlock(&l->lock);
    return found;
}

/* Takes one call, if there is one, and keeps it. Who does not belong here is not answered. */
static int take_call(struct lines *l, double deadline)
{
    struct early e = { .sock = -1 };
    if (net_accept(&e.sock, l->listener, deadline) != 0)
        return SHERD_OK;
    int error = net_receive(e.sock, &e.call, sizeof(e.call), clock_seconds() + CALL_SECONDS);
    if (error || strncmp(e.call.magic, MAGIC, sizeof(e.call.magic)) != 0 || e.call.token != l->token ||
        e.call.rank <= l->rank || e.call.rank >= l->size) {
        struct net_address there = net_there(e.sock);
        char text[NET_TEXT_BYTES];
        if (!error)
            log_warn("refused a connection from %s: it is not of this job", net_text(&there, text));
        close(e.sock);
        return SHERD_OK;
    }
    pthread_mutex_lock(&l->lock);
    int st = mem_grow(&l->early, &l->cap_early, l->n_early + 1, sizeof(*l->early));
    if (st == SHERD_OK)
        l->early[l->n_early++] = e;
    else
        close(e.sock);
    pthread_mutex_unlock(&l->lock);
    return st;
}

static int not_called(const struct lines *l, const int *socks, double timeout)
{
    char names[256] = "";
    size_t len = 0;
    for (int r = l->rank + 1; r < l->size && len + 128 < sizeof(names); r++) {
        char name[128];
        if (socks[r] < 0)
            len += (size_t)snprintf(
                names + len, sizeof(names) - len, "%s%s", len ? ", " : "", name_of(l, r, name, sizeof(name)));
    }
    return SHERD_FAIL(
        SHERD_ETIMEOUT, "rank %d waited %g s for a connection from %s", l->rank, timeout, names);
}

int lines_connect(struct lines *l, uint32_t channel, int *socks, double timeout)
{
    double deadline = clock_seconds() + timeout;
    int left = l->size - 1 - l->rank, st = SHERD_OK, r, sock;
    for (int i = 0; i < l->size; i++)
        socks[i] = -1;
    for (int i = 0; i < l->rank; i++)
        SHERD_TRY_OUT(dial(l, i, channel, &socks[i], timeout));
    while (left > 0) {
        if (take_early(l, channel, &r, &sock)) {
            if (socks[r] >= 0)
                close(socks[r]);
            else
                left--;
            socks[r] = sock;
            net_keep(sock, timeout);
            continue;
        }
        if (channel > 0)
            SHERD_TRY_OUT(lines_check(l));
        if (clock_seconds() > deadline)
            SHERD_TRY_OUT(not_called(l, socks, timeout));
        pthread_mutex_lock(&l->door);
        st = take_call(l, clock_seconds() + SLICE_SECONDS);
        pthread_mutex_unlock(&l->door);
        if (st != SHERD_OK)
            goto out;
    }
out:
    for (int i = 0; st != SHERD_OK && i < l->size; i++) {
        if (socks[i] >= 0)
            close(socks[i]);
        socks[i] = -1;
    }
    return st;
}

int lines_reserve(struct lines *l)
{
    int channel = -1;
    pthread_mutex_lock(&l->lock);
    if (l->pairs < BLOCK_CHANNELS / 2) {
        channel = (int)l->next;
        l->next += 2;
        l->pairs++;
    }
    pthread_mutex_unlock(&l->lock);
    return channel;
}

void lines_release(struct lines *l)
{
    pthread_mutex_lock(&l->lock);
    l->pairs -= l->rank == 0;
    pthread_mutex_unlock(&l->lock);
}

/* ---- opening and closing ---- */

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value && value[0] ? value : NULL;
}

/* A socket that the launcher left open for rank 0, listening at the port that all were told. */
static int inherited(const struct sherd_world *world)
{
    const char *value = variable("SHERD_MEET_FD");
    int fd = value && world->rank == 0 ? atoi(value) : -1, listens = 0;
    socklen_t bytes = sizeof(listens);
    if (fd < 3 || getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) != 0 || !listens)
        return -1;
    struct net_address here = net_here(fd);
    return here.bytes > 0 && net_port(&here) == world->port ? fd : -1;
}

static int meet(struct lines *l, const struct sherd_world *world, double timeout)
{
    struct meet_tcp m = { .job = world->job,
        .rank = world->rank,
        .size = world->size,
        .local_rank = world->local_rank,
        .master = world->master,
        .port = world->port,
        .door = inherited(world),
        .interface = variable("NCCL_SOCKET_IFNAME"),
        .timeout = timeout,
        .places = l->places };
    SHERD_TRY(meet_tcp(&m));
    l->listener = m.listener;
    l->from = m.from;
    l->rank0 = m.rank0;
    l->token = m.token;
    return SHERD_OK;
}

static int draw(struct lines *l, double timeout)
{
    int *socks = mem_zalloc((size_t)l->size, sizeof(*socks));
    int st = socks ? lines_connect(l, 0, socks, timeout) : SHERD_ENOMEM;
    for (int r = 0; r < l->size && st == SHERD_OK; r++) {
        l->lines[r].sock = socks[r];
        if (socks[r] >= 0)
            net_keep(socks[r], MIN(timeout, SILENT_SECONDS));
    }
    mem_free(socks);
    return st;
}

static int allocate(struct lines *l)
{
    size_t n = (size_t)l->size;
    void *memory = mem_aligned(64, board_bytes(l->size));
    l->board = memory;
    l->places = mem_zalloc(n, sizeof(*l->places));
    l->lines = mem_zalloc(n, sizeof(*l->lines));
    l->seat = mem_zalloc(1, seat_bytes());
    l->seat_sent = mem_zalloc(1, seat_bytes());
    if (!memory || !l->places || !l->lines || !l->seat || !l->seat_sent)
        return SHERD_ENOMEM;
    memset(memory, 0, board_bytes(l->size));
    l->board = board_at(memory, l->size);
    for (int r = 0; r < l->size; r++)
        l->lines[r].sock = -1;
    for (int r = 0; r < l->size; r++) {
        l->lines[r].in = mem_zalloc(1, piece_bytes());
        l->lines[r].out = mem_zalloc(2, piece_bytes());
        if (!l->lines[r].in || !l->lines[r].out)
            return SHERD_ENOMEM;
    }
    return SHERD_OK;
}

static struct lines *lines_new(const struct sherd_world *world)
{
    pthread_condattr_t clock;
    struct lines *l = mem_zalloc(1, sizeof(*l));
    if (!l)
        return NULL;
    l->users = 1;
    l->rank = world->rank;
    l->size = world->size;
    l->listener = l->aborted_by = -1;
    l->next = LINES_FIRST + 2;
    l->pairs = 1;
    pthread_mutex_init(&l->lock, NULL);
    pthread_mutex_init(&l->door, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&l->ending, &clock);
    pthread_condattr_destroy(&clock);
    return l;
}

int lines_open(struct lines **out, const struct sherd_world *world, double timeout)
{
    struct lines *l = lines_new(world);
    int st = l ? allocate(l) : SHERD_ENOMEM;
    if (st == SHERD_OK)
        st = meet(l, world, timeout);
    if (st == SHERD_OK)
        st = draw(l, timeout);
    for (int r = 0; st == SHERD_OK && r < l->size; r++)
        board_enter_as(l->board, r, l->places[r].pid, l->places[r].host);
    if (st == SHERD_OK)
        st = start_carrier(l);
    if (st == SHERD_OK)
        *out = l;
    else
        lines_drop(l);
    return st;
}

struct lines *lines_hold(struct lines *l)
{
    atomic_fetch_add(&l->users, 1);
    return l;
}

void lines_drop(struct lines *l)
{
    if (!l || atomic_fetch_sub(&l->users, 1) != 1)
        return;
    stop_carrier(l);
    for (int r = 0; l->lines && r < l->size; r++) {
        struct line *line = &l->lines[r];
        pump_line(l, r); /* what is left unread would turn the farewell into a reset */
        send_news(line, NEWS_FAREWELL, NULL, 0);
        if (line->sock >= 0)
            close(line->sock);
        mem_free(line->in);
        mem_free(line->out);
    }
    for (int i = 0; i < l->n_early; i++)
        close(l->early[i].sock);
    if (l->listener >= 0)
        close(l->listener);
    pthread_mutex_destroy(&l->lock);
    pthread_mutex_destroy(&l->door);
    pthread_cond_destroy(&l->ending);
    mem_free(l->board);
    mem_free(l->places);
    mem_free(l->lines);
    mem_free(l->seat);
    mem_free(l->seat_sent);
    mem_free(l->early);
    mem_free(l);
}
