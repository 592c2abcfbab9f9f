/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Lines between the ranks of several hosts: news of aborts and farewells, and the seats of the board, which a
 * thread carries.
 */
#include "comm/lines.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/thread.h"
#include "comm/block.h"
#include "comm/board.h"
#include "comm/calls.h"
#include "comm/net.h"

#define SLICE_SECONDS 0.1
#define SILENT_SECONDS 30. /* a host that answers nothing for so long is gone */
#define EXPLAIN_SECONDS 1.0
#define CARRY_SECONDS 0.2 /* between looks at what this rank has pinned */
#define REASON_BYTES 2048

enum { NEWS_ABORT = 1, NEWS_FAREWELL, NEWS_SEAT };

/* A piece of news: this, then `bytes` bytes. */
struct news {
    uint32_t kind, bytes;
};

enum state { ALIVE, CLOSED, GONE };

struct line {
    int sock;
    enum state state;
    int error;         /* why it is gone; 0 = its end was closed */
    size_t have, held; /* bytes in `in`, and of `out` that the socket did not take yet */
    char *in, *out;    /* room for one piece, and for two */
};

struct lines {
    _Atomic int users;
    int rank, size;
    struct calls calls;
    pthread_mutex_t lock; /* around all below */
    struct line *lines;
    uint32_t next; /* channel to give out */
    int pairs;     /* of channels in use */
    int aborted_by;
    char reason[REASON_BYTES];
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
    calls_name(&l->calls, r, name, sizeof(name));
    board_lose(l->board, r);
    if (error == 0 || error == ECONNRESET || error == EPIPE)
        return SHERD_FAIL(SHERD_EPEER, "%s has died%s%s%s", name, waited, what ? what : "", rest);
    return SHERD_FAIL(SHERD_EPEER,
        "%s cannot be reached any more (%s): its host or the network to it is down%s%s%s", name,
        strerror(error), waited, what ? what : "", rest);
}

/* Under the lock. */
static int aborted(const struct lines *l)
{
    return l->aborted_by < 0 ? SHERD_OK : SHERD_FAIL(SHERD_EPEER, "rank %d: %s", l->aborted_by, l->reason);
}

/* Under the lock. */
static int judge(struct lines *l, const char *what)
{
    int first = -1;
    for (int r = 0; r < l->size; r++)
        if (r != l->rank)
            pump_line(l, r);
    SHERD_TRY(aborted(l));
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

int lines_heard(struct lines *l)
{
    pthread_mutex_lock(&l->lock);
    int st = aborted(l);
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
    calls_name(&l->calls, r, name, sizeof(name));
    if (closed || error == 0 || error == EPIPE || error == ECONNRESET)
        return SHERD_FAIL(SHERD_EPEER, "%s has closed its communicator, %s waited for it", name, what);
    return SHERD_FAIL(
        SHERD_EPEER, "%s cannot be reached any more (%s), %s waited for it", name, strerror(error), what);
}

int lines_is_closed(struct lines *l, int r)
{
    pthread_mutex_lock(&l->lock);
    int closed = l->lines[r].state == CLOSED;
    pthread_mutex_unlock(&l->lock);
    return closed;
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

static int start_carrier(struct lines *l)
{
    int st = thread_start(&l->carrier, carrier, l, "the thread for the news of ranks");
    l->carries = st == SHERD_OK;
    return st;
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

static int still_well(void *lines)
{
    return lines_check(lines);
}

int lines_connect(struct lines *l, uint32_t channel, int *socks, double timeout)
{
    return calls_connect(&l->calls, channel, socks, timeout, channel > 0 ? still_well : NULL, l);
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
    int st = calls_init(&l->calls, l->rank, l->size);
    void *memory = mem_aligned(64, board_bytes(l->size));
    l->board = memory;
    l->lines = mem_zalloc(n, sizeof(*l->lines));
    l->seat = mem_zalloc(1, seat_bytes());
    l->seat_sent = mem_zalloc(1, seat_bytes());
    for (int r = 0; l->lines && r < l->size; r++)
        l->lines[r].sock = -1;
    if (st != SHERD_OK || !memory || !l->lines || !l->seat || !l->seat_sent)
        return SHERD_ENOMEM;
    memset(memory, 0, board_bytes(l->size));
    l->board = board_at(memory, l->size);
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
    l->aborted_by = -1;
    l->next = LINES_FIRST + 2;
    l->pairs = 1;
    pthread_mutex_init(&l->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&l->ending, &clock);
    pthread_condattr_destroy(&clock);
    return l;
}

int lines_open(struct lines **out, const struct sherd_world *world, int door, double timeout)
{
    struct lines *l = lines_new(world);
    int st = l ? allocate(l) : SHERD_ENOMEM;
    if (st == SHERD_OK)
        st = calls_meet(&l->calls, world, door, timeout);
    else if (door >= 0)
        close(door);
    if (st == SHERD_OK)
        st = draw(l, timeout);
    for (int r = 0; st == SHERD_OK && r < l->size; r++)
        board_enter_as(l->board, r, l->calls.places[r].pid, l->calls.places[r].host);
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
    calls_finish(&l->calls);
    pthread_mutex_destroy(&l->lock);
    pthread_cond_destroy(&l->ending);
    mem_free(l->board);
    mem_free(l->lines);
    mem_free(l->seat);
    mem_free(l->seat_sent);
    mem_free(l);
}
