/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The meeting of the ranks of several hosts. As on one host (comm/meet.c): whoever is not of this job is sent
 * away and the meeting goes on; a rank of this job that cannot be right ends it for all.
 */
#include "comm/meet_tcp.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "comm/board.h"

#define RETRY_SECONDS 0.1
#define ONCE_SECONDS 5.0  /* for one try to connect, and for a hello */
#define TOLD_SECONDS 10.0 /* of waiting for others, before that is said */
#define GRACE_SECONDS 2.0 /* others let rank 0 time out first: it knows who is missing */

static void set_host(char out[NET_HOST_BYTES])
{
    if (gethostname(out, NET_HOST_BYTES) != 0)
        snprintf(out, NET_HOST_BYTES, "unknown");
    out[NET_HOST_BYTES - 1] = '\0';
}

/* ---- the other ranks ---- */

/* Why rank 0 could not be reached, in the light of what is known here. */
static int unreachable(const struct meet_tcp *meet, const struct net_address *to, int error)
{
    char where[NET_TEXT_BYTES] = "", hint[200] = "";
    if (to->bytes > 0)
        net_text(to, where);
    if (to->bytes > 0 && net_is_loopback(to) && meet->rank > meet->local_rank)
        snprintf(hint, sizeof(hint),
            "; that is this host itself, and rank 0 is on another one: give rank 0's address on the network");
    else if (error == ECONNREFUSED)
        snprintf(hint, sizeof(hint), "; has rank 0 started there?");
    else if (error)
        snprintf(hint, sizeof(hint), "; do a firewall or a wrong interface stand between the hosts?");
    return SHERD_FAIL(SHERD_ETIMEOUT,
        "rank %d of job '%s' could not reach rank 0 at %s:%d%s%s%s in %g s: %s%s", meet->rank, meet->job,
        meet->master, meet->port, where[0] ? " (" : "", where, where[0] ? ")" : "", meet->timeout,
        error ? strerror(error) : sherd_error(), hint);
}

/* Tries until the deadline: rank 0 may start later, and its name may not be known yet. */
static int reach(struct meet_tcp *meet, int *sock, double deadline)
{
    struct net_address found[NET_FOUND], last = { 0 };
    int error = 0, n = 0;
    for (;;) {
        int st = net_resolve(found, &n, meet->master, meet->port);
        error = 0;
        for (int i = 0; st == SHERD_OK && i < n; i++) {
            last = found[i];
            SHERD_TRY(net_interface(&meet->from, meet->interface, &last));
            double once = MIN(deadline, clock_seconds() + ONCE_SECONDS);
            error = net_connect(sock, &last, &meet->from, once);
            if (error == 0) {
                meet->rank0 = net_there(*sock);
                return SHERD_OK;
            }
        }
        if (clock_seconds() + RETRY_SECONDS >= deadline)
            return unreachable(meet, &last, error);
        nanosleep(&(struct timespec){ .tv_nsec = (long)(RETRY_SECONDS * 1e9) }, NULL);
    }
}

static int went_away(int error)
{
    return SHERD_FAIL(SHERD_EPEER, "rank 0 went away before all ranks had come: %s",
        error == EPIPE ? "connection closed" : strerror(error));
}

static int take_reply(struct meet_tcp *meet, int sock)
{
    struct meet_tcp_reply reply;
    double deadline = clock_seconds() + meet->timeout + GRACE_SECONDS;
    int error = net_receive(sock, &reply, sizeof(reply), deadline);
    if (error == ETIMEDOUT)
        return SHERD_FAIL(SHERD_ETIMEOUT,
            "rank %d waited %g s for rank 0 of job '%s', which came but then did not answer; if "
            "another program listens at %s:%d, give all ranks another MASTER_PORT",
            meet->rank, meet->timeout, meet->job, meet->master, meet->port);
    if (error)
        return went_away(error);
    if (strncmp(reply.magic, MEET_TCP_MAGIC, sizeof(reply.magic)) != 0 || reply.version != MEET_TCP_VERSION)
        return SHERD_FAIL(SHERD_ECOMM,
            "what listens at %s:%d is not sherd, or another version of it: start all ranks from one build, or "
            "give them another MASTER_PORT",
            meet->master, meet->port);
    reply.text[sizeof(reply.text) - 1] = '\0';
    if (reply.status != SHERD_OK)
        return SHERD_FAIL(reply.status, "%s", reply.text);
    meet->token = reply.token;
    error = net_receive(
        sock, meet->places, (size_t)meet->size * sizeof(*meet->places), clock_seconds() + ONCE_SECONDS);
    for (int r = 0; !error && r < meet->size; r++) {
        meet->places[r].host[NET_HOST_BYTES - 1] = '\0';
        meet->places[r].address[NET_TEXT_BYTES - 1] = '\0';
    }
    return error ? went_away(error) : SHERD_OK;
}

static int come(struct meet_tcp *meet)
{
    int sock = -1, st;
    SHERD_TRY(reach(meet, &sock, clock_seconds() + meet->timeout));
    SHERD_TRY_OUT(
        meet->from.bytes ? net_listen(&meet->listener, &meet->from) : net_listen_any(&meet->listener, 0));
    struct net_address here = net_here(meet->listener);
    struct meet_tcp_hello hello = { .magic = MEET_TCP_MAGIC,
        .version = MEET_TCP_VERSION,
        .rank = meet->rank,
        .size = meet->size,
        .local_rank = meet->local_rank,
        .pid = (int32_t)getpid(),
        .port = net_port(&here) };
    snprintf(hello.job, sizeof(hello.job), "%s", meet->job);
    set_host(hello.host);
    int error = net_send(sock, &hello, sizeof(hello), clock_seconds() + ONCE_SECONDS);
    SHERD_TRY_OUT(error ? went_away(error) : SHERD_OK);
    SHERD_TRY_OUT(take_reply(meet, sock));
out:
    close(sock);
    return st;
}

/* ---- rank 0 ---- */

/* Who has connected. */
struct guest {
    int sock; /* -1: sent away */
    int rank; /* -1: has not said it yet */
    double until;
    size_t have; /* of hello */
    struct meet_tcp_hello hello;
};

struct host {
    struct meet_tcp *meet;
    struct guest *guests;
    struct pollfd *polls;
    uint8_t *away; /* by rank: it has not come */
    int n, cap, cap_polls;
    int n_come;
};

static void answer(const struct host *host, int sock, int status, const char *text)
{
    const struct meet_tcp *meet = host->meet;
    struct meet_tcp_reply reply = {
        .magic = MEET_TCP_MAGIC, .version = MEET_TCP_VERSION, .status = status, .token = meet->token
    };
    double deadline = clock_seconds() + ONCE_SECONDS;
    snprintf(reply.text, sizeof(reply.text), "%s", text);
    if (net_send(sock, &reply, sizeof(reply), deadline) == 0 && status == SHERD_OK)
        net_send(sock, meet->places, (size_t)meet->size * sizeof(*meet->places), deadline);
}

static void send_away(const struct host *host, struct guest *guest, const char *text)
{
    if (text) {
        log_warn("%s", text);
        answer(host, guest->sock, SHERD_ECOMM, text);
    }
    close(guest->sock);
    guest->sock = -1;
}

static struct guest *find(const struct host *host, int rank)
{
    for (int i = 0; i < host->n; i++)
        if (host->guests[i].sock >= 0 && host->guests[i].rank == rank)
            return &host->guests[i];
    return NULL;
}

/* A whole hello is there. */
static int admit(struct host *host, struct guest *guest)
{
    const struct meet_tcp *meet = host->meet;
    struct meet_tcp_hello *h = &guest->hello;
    struct net_address there = net_there(guest->sock);
    char text[504], where[NET_TEXT_BYTES];
    h->host[NET_HOST_BYTES - 1] = h->job[MEET_TCP_JOB_BYTES - 1] = '\0';
    if (strncmp(h->magic, MEET_TCP_MAGIC, sizeof(h->magic)) != 0 || h->version != MEET_TCP_VERSION) {
        snprintf(text, sizeof(text), "refused %s in job '%s': it is not sherd, or another version of it",
            net_text(&there, where), meet->job);
        send_away(host, guest, text);
        return SHERD_OK;
    }
    if (strcmp(h->job, meet->job) != 0) {
        snprintf(text, sizeof(text),
            "refused %s (process %d of host %s): it is rank %d of job '%s', this is job '%s'",
            net_text(&there, where), h->pid, h->host, h->rank, h->job, meet->job);
        send_away(host, guest, text);
        return SHERD_OK;
    }
    const struct guest *taken = find(host, h->rank);
    int st = SHERD_OK;
    if (h->size != meet->size)
        st = SHERD_FAIL(SHERD_ECOMM, "rank %d (%s, pid %d) says the world has %d ranks, rank 0 says %d",
            h->rank, h->host, h->pid, h->size, meet->size);
    else if (h->rank < 0 || h->rank >= meet->size)
        st = SHERD_FAIL(
            SHERD_ECOMM, "process %d of %s says it is rank %d of %d", h->pid, h->host, h->rank, meet->size);
    else if (h->rank == 0 || taken)
        st = SHERD_FAIL(SHERD_ECOMM,
            "rank %d of job '%s' came twice: pid %d of %s and pid %d of %s; if these are two jobs, set SHERD_JOB to "
            "tell them apart",
            h->rank, meet->job, taken ? taken->hello.pid : (int)getpid(),
            taken ? taken->hello.host : "this host", h->pid, h->host);
    if (st != SHERD_OK) {
        answer(host, guest->sock, st, sherd_error());
        send_away(host, guest, NULL);
        return st;
    }
    guest->rank = h->rank;
    host->away[h->rank] = 0;
    host->n_come++;
    struct meet_place *place = &host->meet->places[h->rank];
    *place = (struct meet_place){ .port = h->port, .pid = h->pid, .first = h->rank - h->local_rank };
    memcpy(place->host, h->host, sizeof(place->host));
    net_host_text(&there, place->address);
    return SHERD_OK;
}

/* Something came from a guest, or its time is over. */
static int listen_to(struct host *host, struct guest *guest)
{
    char *to = (char *)&guest->hello;
    ssize_t n = recv(guest->sock, to + guest->have, sizeof(guest->hello) - guest->have, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return SHERD_OK;
    if (guest->rank >= 0) /* says nothing more: this is its end */
        return SHERD_FAIL(SHERD_EPEER, "rank %d (%s, pid %d) went away before all ranks had come",
            guest->rank, guest->hello.host, guest->hello.pid);
    if (n <= 0) {
        send_away(host, guest, NULL);
        return SHERD_OK;
    }
    guest->have += (size_t)n;
    return guest->have == sizeof(guest->hello) ? admit(host, guest) : SHERD_OK;
}

static int let_in(struct host *host)
{
    int sock;
    if (net_accept(&sock, host->meet->listener, 0) != 0)
        return SHERD_OK;
    for (int i = 0; i < host->n; i++) { /* places of those who were sent away */
        if (host->guests[i].sock < 0) {
            host->guests[i] =
                (struct guest){ .sock = sock, .rank = -1, .until = clock_seconds() + ONCE_SECONDS };
            return SHERD_OK;
        }
    }
    int st = mem_grow(&host->guests, &host->cap, host->n + 1, sizeof(*host->guests));
    if (st != SHERD_OK) {
        close(sock);
        return st;
    }
    host->guests[host->n++] =
        (struct guest){ .sock = sock, .rank = -1, .until = clock_seconds() + ONCE_SECONDS };
    return SHERD_OK;
}

static int missed(const struct host *host)
{
    const struct meet_tcp *meet = host->meet;
    char names[256];
    return SHERD_FAIL(SHERD_ETIMEOUT,
        "job '%s': after %g s %d of %d ranks have not come to %s:%d: %s; their own messages say what they tried",
        meet->job, meet->timeout, meet->size - 1 - host->n_come, meet->size, meet->master, meet->port,
        board_ranks(host->away, meet->size, names, sizeof(names)));
}

static void say_waiting(const struct host *host)
{
    const struct meet_tcp *meet = host->meet;
    char names[256];
    log_warn("job '%s': waiting at %s:%d for %d of %d ranks, for %g s at most: %s", meet->job, meet->master,
        meet->port, meet->size - 1 - host->n_come, meet->size, meet->timeout,
        board_ranks(host->away, meet->size, names, sizeof(names)));
}

/* Strangers who say nothing do not hold the others up. */
static int wait_for_guests(struct host *host)
{
    double begin = clock_seconds(), deadline = begin + host->meet->timeout, told = begin + TOLD_SECONDS;
    while (host->n_come < host->meet->size - 1) {
        double now = clock_seconds();
        int n = 0;
        if (now >= deadline)
            return missed(host);
        if (now >= told) {
            say_waiting(host);
            told = deadline;
        }
        SHERD_TRY(mem_grow(&host->polls, &host->cap_polls, host->n + 1, sizeof(*host->polls)));
        host->polls[n++] = (struct pollfd){ .fd = host->meet->listener, .events = POLLIN };
        for (int i = 0; i < host->n; i++)
            host->polls[n++] = (struct pollfd){ .fd = host->guests[i].sock, .events = POLLIN };
        poll(host->polls, (nfds_t)n, (int)(MIN(deadline - now, ONCE_SECONDS) * 1e3) + 1);
        for (int i = 0; i < n - 1; i++) {
            struct guest *guest = &host->guests[i];
            if (guest->sock >= 0 && host->polls[i + 1].revents)
                SHERD_TRY(listen_to(host, guest));
            if (guest->sock >= 0 && guest->rank < 0 && clock_seconds() > guest->until)
                send_away(host, guest, NULL);
        }
        if (host->polls[0].revents)
            SHERD_TRY(let_in(host));
    }
    return SHERD_OK;
}

/* Ranks beside rank 0 may have come over the loopback: the others are told an address that they can reach. */
static void replace_loopback(const struct host *host)
{
    const struct meet_tcp *meet = host->meet;
    char outside[NET_TEXT_BYTES] = "", name[NET_HOST_BYTES], text[NET_TEXT_BYTES];
    struct net_address here = { 0 };
    for (int i = 0; i < host->n && !outside[0]; i++) {
        const struct guest *guest = &host->guests[i];
        here = net_here(guest->sock);
        if (guest->sock >= 0 && guest->rank >= 0 && !net_is_loopback(&here))
            net_host_text(&here, outside);
    }
    if (!outside[0])
        return;
    for (int i = 0; i < host->n; i++) {
        const struct guest *guest = &host->guests[i];
        struct net_address there = net_there(guest->sock);
        if (guest->sock >= 0 && guest->rank >= 0 && net_is_loopback(&there))
            memcpy(meet->places[guest->rank].address, outside, sizeof(outside));
    }
    log_info("ranks on other hosts reach this one at %s over %s", net_host_text(&here, text),
        net_interface_name(&here, name));
}

static int receive_all(struct meet_tcp *meet)
{
    int st = SHERD_OK;
    struct host host = { .meet = meet };
    if (getrandom(&meet->token, sizeof(meet->token), 0) != (ssize_t)sizeof(meet->token))
        SHERD_TRY_OUT(SHERD_FAIL(SHERD_ECOMM, "the system gives no random numbers: %s", strerror(errno)));
    meet->places[0] = (struct meet_place){ .pid = (int32_t)getpid(), .first = -meet->local_rank };
    set_host(meet->places[0].host);
    host.away = mem_zalloc((size_t)meet->size, 1);
    SHERD_TRY_OUT(host.away ? SHERD_OK : SHERD_ENOMEM);
    for (int r = 1; r < meet->size; r++)
        host.away[r] = 1;
    if (meet->listener < 0)
        SHERD_TRY_OUT(net_listen_any(&meet->listener, meet->port));
    SHERD_TRY_OUT(wait_for_guests(&host));
    replace_loopback(&host);
    struct net_address here = net_here(meet->listener);
    meet->places[0].port = net_port(&here);
out:
    for (int i = 0; i < host.n; i++) {
        if (host.guests[i].sock < 0)
            continue;
        if (host.guests[i].rank >= 0)
            answer(&host, host.guests[i].sock, st, st ? sherd_error() : "");
        close(host.guests[i].sock);
    }
    mem_free(host.guests);
    mem_free(host.polls);
    mem_free(host.away);
    return st;
}

int meet_tcp(struct meet_tcp *meet)
{
    int st;
    meet->listener = meet->rank == 0 ? meet->door : -1;
    if (strlen(meet->job) >= MEET_TCP_JOB_BYTES)
        st = SHERD_FAIL(SHERD_EINVAL, "the name of the job is longer than %d bytes", MEET_TCP_JOB_BYTES - 1);
    else
        st = meet->rank == 0 ? receive_all(meet) : come(meet);
    if (st != SHERD_OK && meet->listener >= 0) {
        close(meet->listener);
        meet->listener = -1;
    }
    return st;
}
