/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Connections between the ranks of several hosts. A rank connects to those below it and is called by those
 * above; a connection begins with who calls, for which channel, and the token of the meeting. Calls for
 * another channel than the one that is being made are kept for it.
 */
#include "comm/calls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/text.h"

#define MAGIC "sherdln"
#define SLICE_SECONDS 0.1
#define CALL_SECONDS 5.0 /* for a call to say who it is */

/* The beginning of every connection. */
struct call {
    char magic[8];
    uint64_t token;
    int32_t rank;
    uint32_t channel;
};

/* One that came before its channel was asked for. */
struct early {
    int sock;
    struct call call;
};

const char *calls_name(const struct calls *c, int r, char *buf, size_t bytes)
{
    snprintf(buf, bytes, "rank %d (%s, pid %d)", r, c->places[r].host, (int)c->places[r].pid);
    return buf;
}

/* To a rank below this one, which listens already. */
static int dial(struct calls *c, int r, uint32_t channel, int *sock, double timeout)
{
    const struct meet_place *p = &c->places[r];
    struct call call = { .magic = MAGIC, .token = c->token, .rank = c->rank, .channel = channel };
    struct net_address to = c->rank0;
    double deadline = clock_seconds() + timeout;
    char name[128], text[NET_TEXT_BYTES];
    int n = 0;
    if (p->address[0]) {
        struct net_address found[NET_FOUND];
        SHERD_TRY(net_resolve(found, &n, p->address, p->port));
        to = found[0];
    }
    int error = net_connect(sock, &to, &c->from, deadline);
    if (!error) {
        net_keep(*sock, timeout);
        error = net_send(*sock, &call, sizeof(call), deadline);
    }
    if (error)
        return SHERD_FAIL(SHERD_ECOMM,
            "rank %d cannot connect to %s at %s: %s; do a firewall or a wrong interface stand between the hosts? "
            "(NCCL_SOCKET_IFNAME chooses one)",
            c->rank, calls_name(c, r, name, sizeof(name)), net_text(&to, text), strerror(error));
    return SHERD_OK;
}

/* A call for this channel that came before. */
static int take_early(struct calls *c, uint32_t channel, int *rank, int *sock)
{
    int found = 0;
    pthread_mutex_lock(&c->lock);
    for (int i = 0; i < c->n_early && !found; i++) {
        if (c->early[i].call.channel != channel)
            continue;
        *rank = c->early[i].call.rank;
        *sock = c->early[i].sock;
        c->early[i] = c->early[--c->n_early];
        found = 1;
    }
    pthread_mutex_unlock(&c->lock);
    return found;
}

/* Takes one call, if there is one, and keeps it. Who does not belong here is not answered. */
static int take_call(struct calls *c, double deadline)
{
    struct early e = { .sock = -1 };
    if (net_accept(&e.sock, c->listener, deadline) != 0)
        return SHERD_OK;
    int error = net_receive(e.sock, &e.call, sizeof(e.call), clock_seconds() + CALL_SECONDS);
    if (error || strncmp(e.call.magic, MAGIC, sizeof(e.call.magic)) != 0 || e.call.token != c->token ||
        e.call.rank <= c->rank || e.call.rank >= c->size) {
        struct net_address there = net_there(e.sock);
        char text[NET_TEXT_BYTES];
        if (!error)
            log_warn("refused a connection from %s: it is not of this job", net_text(&there, text));
        close(e.sock);
        return SHERD_OK;
    }
    pthread_mutex_lock(&c->lock);
    int st = mem_grow(&c->early, &c->cap_early, c->n_early + 1, sizeof(*c->early));
    if (st == SHERD_OK)
        c->early[c->n_early++] = e;
    else
        close(e.sock);
    pthread_mutex_unlock(&c->lock);
    return st;
}

static int not_called(const struct calls *c, const int *socks, double timeout)
{
    char names[256] = "", name[128];
    struct text_list list = { .buf = names, .bytes = sizeof(names) };
    for (int r = c->rank + 1; r < c->size; r++)
        if (socks[r] < 0)
            text_list_add(&list, "%s", calls_name(c, r, name, sizeof(name)));
    return SHERD_FAIL(
        SHERD_ETIMEOUT, "rank %d waited %g s for a connection from %s", c->rank, timeout, names);
}

int calls_connect(
    struct calls *c, uint32_t channel, int *socks, double timeout, int (*check)(void *ctx), void *ctx)
{
    double deadline = clock_seconds() + timeout;
    int left = c->size - 1 - c->rank, st = SHERD_OK, r, sock;
    for (int i = 0; i < c->size; i++)
        socks[i] = -1;
    for (int i = 0; i < c->rank; i++)
        SHERD_TRY_OUT(dial(c, i, channel, &socks[i], timeout));
    while (left > 0) {
        if (take_early(c, channel, &r, &sock)) {
            if (socks[r] >= 0)
                close(socks[r]);
            else
                left--;
            socks[r] = sock;
            net_keep(sock, timeout);
            continue;
        }
        if (check)
            SHERD_TRY_OUT(check(ctx));
        if (clock_seconds() > deadline)
            SHERD_TRY_OUT(not_called(c, socks, timeout));
        pthread_mutex_lock(&c->door);
        st = take_call(c, clock_seconds() + SLICE_SECONDS);
        pthread_mutex_unlock(&c->door);
        if (st != SHERD_OK)
            goto out;
    }
out:
    for (int i = 0; st != SHERD_OK && i < c->size; i++) {
        if (socks[i] >= 0)
            close(socks[i]);
        socks[i] = -1;
    }
    return st;
}

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

int calls_meet(struct calls *c, const struct sherd_world *world, int door, double timeout)
{
    struct meet_tcp m = { .job = world->job,
        .rank = world->rank,
        .size = world->size,
        .local_rank = world->local_rank,
        .master = world->master,
        .port = world->port,
        .door = door >= 0 ? door : inherited(world),
        .interface = variable("NCCL_SOCKET_IFNAME"),
        .timeout = timeout,
        .places = c->places };
    SHERD_TRY(meet_tcp(&m));
    c->listener = m.listener;
    c->from = m.from;
    c->rank0 = m.rank0;
    c->token = m.token;
    return SHERD_OK;
}

int calls_init(struct calls *c, int rank, int size)
{
    *c = (struct calls){ .rank = rank, .size = size, .listener = -1 };
    pthread_mutex_init(&c->lock, NULL);
    pthread_mutex_init(&c->door, NULL);
    c->places = mem_zalloc((size_t)size, sizeof(*c->places));
    return c->places ? SHERD_OK : SHERD_ENOMEM;
}

void calls_finish(struct calls *c)
{
    for (int i = 0; i < c->n_early; i++)
        close(c->early[i].sock);
    if (c->listener >= 0)
        close(c->listener);
    pthread_mutex_destroy(&c->lock);
    pthread_mutex_destroy(&c->door);
    mem_free(c->places);
    mem_free(c->early);
}
