/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The launchers of several hosts, in a star around host 0: who comes, who is lost, how an attempt begins and
 * ends.
 */
#include "tools/nodes.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "tools/door.h"
#include "tools/letter.h"
#include "tools/out.h"

#define BEAT_SECONDS 1.0
#define ONCE_SECONDS 5.0 /* for one try to connect, and to say hello */
#define WAIT_TOLD 10.0   /* seconds of waiting for hosts before that is told */
#define SEND_SECONDS 2.0
#define STRANGERS 8 /* connections that have not said who they are */

/* A host that is connected; on host 0 one for each other host, elsewhere host 0 alone. */
struct peer {
    int sock; /* -1: none */
    int node; /* -1: has not said hello */
    int ranks;
    char host[64];
    double heard;
    size_t have;
    struct letter in;
    int order;       /* in which its failure was told, from 1; 0 = none */
    int takes_part;  /* in this attempt; who comes later waits for the next */
    int has_outcome; /* of this attempt */
    struct launch_outcome outcome;
};

struct nodes {
    const struct launch_desc *desc;
    int rank, count;
    int listener; /* host 0 */
    int n_peers;
    struct peer *peers;
    double beaten; /* when the last beats were sent */
    int failures;  /* told so far in this attempt */
    int own_order;
    char why[256];
    struct letter start, verdict; /* the last that came, kind 0 = none */
    char self[64];
};

static int refuse(const char *text)
{
    fprintf(stderr, "sherd: %s\n", text);
    return EXIT_FAILED;
}

static void hang_up(struct peer *peer)
{
    close(peer->sock);
    peer->sock = -1;
}

static struct launch_outcome outcome_of(int worth, int code, const char *text)
{
    struct launch_outcome outcome = { .worth = worth, .code = code };
    snprintf(outcome.text, sizeof(outcome.text), "%s", text);
    return outcome;
}

/* ---- letters ---- */

static void send_letter(struct peer *peer, const struct letter *what, double patience)
{
    if (peer->sock >= 0)
        letter_send(peer->sock, what, patience);
}

static void send_all(struct nodes *nodes, const struct letter *letter, double patience)
{
    for (int i = 0; i < nodes->n_peers; i++)
        if (nodes->peers[i].node >= 0 && (nodes->peers[i].takes_part || letter->kind == BEAT))
            send_letter(&nodes->peers[i], letter, patience);
}

static void end_attempt(struct nodes *nodes, const char *why)
{
    if (!nodes->why[0])
        snprintf(nodes->why, sizeof(nodes->why), "%s", why);
    if (nodes->rank != 0)
        return;
    struct letter end = { .kind = END };
    snprintf(end.text, sizeof(end.text), "%s", nodes->why);
    send_all(nodes, &end, SEND_SECONDS);
}

/* A host is gone, or has not been heard for too long. */
static void lose(struct nodes *nodes, struct peer *peer, const char *how)
{
    char text[256];
    int known = peer->node >= 0 && peer->takes_part;
    snprintf(text, sizeof(text), "host %d (%s) %s", peer->node, peer->host[0] ? peer->host : "?", how);
    hang_up(peer);
    if (nodes->rank != 0 && !peer->takes_part)
        end_attempt(nodes, text);
    if (known && !peer->has_outcome) {
        peer->has_outcome = 1;
        peer->order = peer->order ? peer->order : ++nodes->failures;
        peer->outcome = outcome_of(3, EXIT_FAILED, text);
        end_attempt(nodes, text);
    }
    if (nodes->rank == 0)
        peer->node = known ? -2 - peer->node : -1; /* -2 - node: its outcome still counts */
}

static int node_of(const struct peer *peer)
{
    return peer->node < -1 ? -2 - peer->node : peer->node;
}

static struct peer *find(struct nodes *nodes, int node)
{
    for (int i = 0; i < nodes->n_peers; i++)
        if (nodes->peers[i].sock >= 0 && nodes->peers[i].node == node)
            return &nodes->peers[i];
    return NULL;
}

/* ---- who comes to host 0 ---- */

static void send_away(struct peer *peer, const char *text)
{
    struct letter letter = { .kind = REFUSED };
    snprintf(letter.text, sizeof(letter.text), "%s", text);
    fprintf(stderr, "sherd: %s\n", text);
    send_letter(peer, &letter, SEND_SECONDS);
    close(peer->sock);
    *peer = (struct peer){ .sock = -1, .node = -1 };
}

/* The first number that no host has, -1 when all are there. */
static int free_number(struct nodes *nodes)
{
    for (int k = 1; k < nodes->count; k++)
        if (!find(nodes, k))
            return k;
    return -1;
}

/* Whether a host cannot be host `node` of these, and why. */
static int is_refused(struct nodes *nodes, const struct letter *l, int node, char why[400])
{
    const char *id = nodes->desc->nodes.id;
    if (strcmp(l->job, id) != 0)
        snprintf(why, 400, "it is of job '%s', this is job '%s' (--rdzv-id)", l->job, id);
    else if (l->nodes != nodes->count)
        snprintf(why, 400, "it says --nnodes %d, this host says %d", l->nodes, nodes->count);
    else if (node >= nodes->count || node == 0)
        snprintf(why, 400, "--node-rank %d of %d hosts, and host 0 is %s", node, nodes->count, nodes->self);
    else if (node < 0)
        snprintf(why, 400, "all %d hosts are there", nodes->count);
    else if (find(nodes, node))
        snprintf(why, 400, "host %d is already %s", node, find(nodes, node)->host);
    else
        return 0;
    return 1;
}

static void admit(struct nodes *nodes, struct peer *peer, const struct letter *l)
{
    int node = l->node < 0 ? free_number(nodes) : l->node;
    char why[400], text[512];
    if (is_refused(nodes, l, node, why)) {
        snprintf(text, sizeof(text), "refused host %s: %s", l->host, why);
        send_away(peer, text);
        return;
    }
    peer->node = node;
    peer->ranks = l->ranks;
    snprintf(peer->host, sizeof(peer->host), "%.63s", l->host);
}

static void let_in(struct nodes *nodes)
{
    int one = 1, sock = accept4(nodes->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (sock < 0)
        return;
    setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    for (int i = 0; i < nodes->n_peers; i++) {
        if (nodes->peers[i].sock >= 0 || nodes->peers[i].node < -1)
            continue;
        nodes->peers[i] = (struct peer){ .sock = sock, .node = -1, .heard = clock_seconds() };
        return;
    }
    close(sock);
}

static void take_letter(struct nodes *nodes, struct peer *peer)
{
    struct letter *l = &peer->in;
    char text[256];
    if (!letter_is_ours(l)) {
        send_away(peer, "refused a connection: it is not sherd's launcher, or another version of it");
        return;
    }
    switch (l->kind) {
    case HELLO:
        admit(nodes, peer, l);
        break;
    case FAILED:
        peer->order = peer->order ? peer->order : ++nodes->failures;
        snprintf(text, sizeof(text), "a rank of host %d (%s) failed", peer->node, peer->host);
        end_attempt(nodes, text);
        break;
    case END:
        snprintf(nodes->why, sizeof(nodes->why), "%.255s", l->text);
        break;
    case RESULT:
        peer->has_outcome = 1;
        peer->outcome = outcome_of(l->worth, l->code, l->text);
        break;
    case START:
        nodes->start = *l;
        peer->takes_part = 1;
        break;
    case REFUSED:
    case VERDICT:
        nodes->verdict = *l;
        break;
    default:
        break;
    }
}

/* What comes after a verdict is of the next attempt, and waits until that is begun. */
static void read_letters(struct nodes *nodes, struct peer *peer)
{
    int whole = 1;
    while (whole > 0 && peer->sock >= 0 && nodes->verdict.kind != VERDICT) {
        size_t had = peer->have;
        whole = letter_read(peer->sock, &peer->in, &peer->have);
        if (whole > 0 || peer->have != had)
            peer->heard = clock_seconds();
        if (whole > 0)
            take_letter(nodes, peer);
    }
    if (whole < 0 && peer->node == -1)
        hang_up(peer);
    else if (whole < 0)
        lose(nodes, peer, "is gone: its launcher has ended");
}

/* ---- the loop ---- */

int nodes_patience(void)
{
    return (int)(BEAT_SECONDS * 1e3 / 2);
}

int nodes_polls(const struct nodes *nodes, struct pollfd *polls)
{
    int n = 0;
    if (nodes->listener >= 0)
        polls[n++] = (struct pollfd){ .fd = nodes->listener, .events = POLLIN };
    for (int i = 0; i < nodes->n_peers; i++)
        if (nodes->peers[i].sock >= 0)
            polls[n++] = (struct pollfd){ .fd = nodes->peers[i].sock, .events = POLLIN };
    return n;
}

void nodes_work(struct nodes *nodes)
{
    double t = clock_seconds();
    char text[128];
    if (nodes->listener >= 0)
        let_in(nodes);
    for (int i = 0; i < nodes->n_peers; i++)
        read_letters(nodes, &nodes->peers[i]);
    for (int i = 0; i < nodes->n_peers; i++) {
        struct peer *peer = &nodes->peers[i];
        double most = peer->node == -1 ? ONCE_SECONDS : nodes->desc->nodes.silent;
        if (peer->sock < 0 || t - peer->heard <= most)
            continue;
        snprintf(text, sizeof(text), "has not been heard for %g s: cut off, or stopped", most);
        if (peer->node == -1)
            hang_up(peer);
        else
            lose(nodes, peer, text);
    }
    if (t - nodes->beaten >= BEAT_SECONDS) {
        nodes->beaten = t;
        send_all(nodes, &(struct letter){ .kind = BEAT }, 0);
    }
}

const char *nodes_why(const struct nodes *nodes)
{
    return nodes->why[0] ? nodes->why : NULL;
}

void nodes_failed(struct nodes *nodes)
{
    nodes->own_order = ++nodes->failures;
    if (nodes->rank == 0)
        end_attempt(nodes, "a rank of host 0 failed");
    else
        send_all(nodes, &(struct letter){ .kind = FAILED }, SEND_SECONDS);
}

/* One turn of waiting outside of an attempt; a signal that came, or 0. */
static int wait_turn(struct nodes *nodes, int signals)
{
    struct pollfd *polls = calloc((size_t)nodes->n_peers + 2, sizeof(*polls));
    struct signalfd_siginfo info;
    int sig = 0, n = 1;
    if (polls) {
        polls[0] = (struct pollfd){ .fd = signals, .events = POLLIN };
        n += nodes_polls(nodes, polls + 1);
        poll(polls, (nfds_t)n, nodes_patience());
        free(polls);
    }
    while (read(signals, &info, sizeof(info)) == (ssize_t)sizeof(info))
        if (info.ssi_signo != SIGCHLD)
            sig = (int)info.ssi_signo;
    nodes_work(nodes);
    return sig;
}

/* ---- before an attempt ---- */

static void fill_place(const struct nodes *nodes, const struct letter *start, struct launch_place *place)
{
    const struct launch_desc *d = nodes->desc;
    snprintf(place->host, sizeof(place->host), "%s", d->address ? d->address : d->nodes.host);
    snprintf(place->job, sizeof(place->job), "%s", start->job);
    place->node = start->node;
    place->first = start->first;
    place->world = start->world;
    place->attempt = start->attempt;
    place->port = start->port;
    place->meet_port = start->meet_port;
}

/* All hosts are there. */
static int start_all(struct nodes *nodes, struct launch_place *place)
{
    uint64_t token;
    struct letter start = { .kind = START, .attempt = place->attempt };
    if (getrandom(&token, sizeof(token), 0) != (ssize_t)sizeof(token))
        return refuse("the system gives no random numbers");
    snprintf(start.job, sizeof(start.job), "%016llx", (unsigned long long)token);
    start.port = nodes->desc->port ? nodes->desc->port : door_free_port();
    start.meet_port = door_open(&place->meet_door);
    if (start.port <= 0 || start.meet_port <= 0 || listen(place->meet_door, 1024) != 0)
        return refuse("no port is free on this host");
    start.world = nodes->desc->ranks;
    for (int k = 1; k < nodes->count; k++)
        start.world += find(nodes, k)->ranks;
    fill_place(nodes, &start, place);
    start.first = nodes->desc->ranks;
    for (int k = 1; k < nodes->count; k++) {
        struct peer *peer = find(nodes, k);
        start.node = k;
        peer->takes_part = 1;
        send_letter(peer, &start, SEND_SECONDS);
        start.first += peer->ranks;
    }
    return -1;
}

#define LISTED_BYTES 24 /* of ", 1000000 and more" */

static int missing(struct nodes *nodes, char *out, size_t bytes)
{
    int n = 0, cut = 0;
    size_t len = 0;
    out[0] = '\0';
    for (int k = 1; k < nodes->count; k++) {
        int there = find(nodes, k) != NULL;
        if (!there && len + LISTED_BYTES < bytes)
            len += (size_t)snprintf(out + len, bytes - len, "%s%d", n ? ", " : "", k);
        else if (!there && !cut++)
            snprintf(out + len, bytes - len, " and more");
        n += !there;
    }
    return n;
}

static void begin(struct nodes *nodes)
{
    nodes->why[0] = '\0';
    nodes->failures = nodes->own_order = 0;
    nodes->start.kind = nodes->verdict.kind = 0;
    for (int i = 0; i < nodes->n_peers; i++) {
        struct peer *peer = &nodes->peers[i];
        peer->order = peer->has_outcome = peer->takes_part = 0;
        if (peer->node < -1)
            peer->node = -1;
    }
}

int nodes_gather(struct nodes *nodes, int signals, struct launch_place *place)
{
    const struct launch_nodes *d = &nodes->desc->nodes;
    double since = clock_seconds(), told = since + WAIT_TOLD;
    char text[512], names[128];
    begin(nodes);
    place->meet_door = -1;
    for (;;) {
        int left = nodes->rank == 0 ? missing(nodes, names, sizeof(names)) : 0;
        if (nodes->rank == 0 && left == 0)
            return start_all(nodes, place);
        if (nodes->start.kind == START) {
            nodes->rank = nodes->start.node;
            fill_place(nodes, &nodes->start, place);
            return -1;
        }
        int sig = wait_turn(nodes, signals);
        if (sig && sig != SIGUSR1)
            return 128 + sig;
        if (nodes->verdict.kind == REFUSED)
            return refuse(nodes->verdict.text);
        if (nodes->rank != 0 && nodes->why[0])
            return refuse(nodes->why);
        if (left == 0)
            continue;
        nodes->why[0] = '\0'; /* a host that left again before the start */
        if (clock_seconds() - since > d->join) {
            snprintf(text, sizeof(text), "after %g s %d of %d hosts have not come to %s:%d: %s", d->join,
                left, nodes->count, d->host, d->port, names);
            return refuse(text);
        }
        if (clock_seconds() > told) {
            fprintf(stderr, "sherd: waiting at %s:%d for %d of %d hosts: %s\n", d->host, d->port, left,
                nodes->count, names);
            told = clock_seconds() + 60;
        }
    }
}

/* ---- after an attempt ---- */

static int all_told(const struct nodes *nodes)
{
    int n = 0;
    for (int i = 0; i < nodes->n_peers; i++)
        n += nodes->peers[i].has_outcome && node_of(&nodes->peers[i]) > 0;
    return n == nodes->count - 1;
}

/* A later attempt may go well, unless somebody has asked for an end or nothing was right to begin with. */
static int may_try_again(const struct launch_outcome *o)
{
    return o->worth >= 1 && o->worth <= 3 && o->code != EXIT_USAGE;
}

static int choose(struct nodes *nodes, int again, struct launch_outcome *out)
{
    int order = nodes->own_order, stopped = out->code == EXIT_STOPPED;
    for (int i = 0; i < nodes->n_peers; i++) {
        const struct peer *peer = &nodes->peers[i];
        const struct launch_outcome *o = &peer->outcome;
        if (!peer->has_outcome || node_of(peer) <= 0)
            continue;
        stopped |= o->code == EXIT_STOPPED;
        if (o->worth > out->worth || (o->worth == out->worth && o->worth > 0 && peer->order < order)) {
            *out = *o;
            order = peer->order;
        }
    }
    if (out->worth == 0 && stopped)
        out->code = EXIT_STOPPED;
    return again && may_try_again(out);
}

/* RESULT of this host, VERDICT for all. */
static void send_outcome(struct nodes *nodes, int kind, const struct launch_outcome *o, int again)
{
    struct letter l = { .kind = kind, .worth = o->worth, .code = o->code, .again = again };
    snprintf(l.text, sizeof(l.text), "%s", o->text);
    send_all(nodes, &l, SEND_SECONDS);
}

int nodes_settle(struct nodes *nodes, int signals, int again, struct launch_outcome *out)
{
    if (nodes->rank != 0)
        send_outcome(nodes, RESULT, out, 0);
    while (nodes->rank == 0 ? !all_told(nodes) : nodes->verdict.kind != VERDICT) {
        int sig = wait_turn(nodes, signals);
        if (sig && sig != SIGUSR1) {
            *out = (struct launch_outcome){ .worth = 4, .code = 128 + sig };
            snprintf(out->text, sizeof(out->text), "ended by SIG%s", sigabbrev_np(sig));
            return 0;
        }
        if (nodes->rank != 0 && nodes->peers[0].sock < 0 && nodes->verdict.kind != VERDICT) {
            if (out->worth < 3)
                *out = nodes->peers[0].outcome;
            return 0;
        }
    }
    if (nodes->rank != 0) {
        *out = outcome_of(nodes->verdict.worth, nodes->verdict.code, nodes->verdict.text);
        return nodes->verdict.again;
    }
    again = choose(nodes, again, out);
    send_outcome(nodes, VERDICT, out, again);
    return again;
}

/* ---- opening and closing ---- */

static int listen_here(struct nodes *nodes)
{
    int port = nodes->desc->nodes.port, error = door_listen(&nodes->listener, port);
    char text[256];
    if (!error)
        return -1;
    nodes->listener = -1;
    snprintf(text, sizeof(text),
        "host 0 cannot listen at port %d: %s; give another port with --rdzv-endpoint", port, strerror(error));
    return refuse(text);
}

static int come(struct nodes *nodes)
{
    const struct launch_nodes *d = &nodes->desc->nodes;
    double until = clock_seconds() + d->join;
    char why[256], text[700];
    int sock = -1, one = 1;
    while (door_call(&sock, d->host, d->port, why, sizeof(why)) != 0) {
        if (clock_seconds() > until) {
            snprintf(text, sizeof(text), "host 0 could not be reached at %s:%d in %g s: %s", d->host, d->port,
                d->join, why);
            return refuse(text);
        }
        nanosleep(&(struct timespec){ .tv_nsec = 200000000 }, NULL);
    }
    setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    nodes->peers[0] = (struct peer){ .sock = sock, .node = 0, .heard = clock_seconds() };
    snprintf(nodes->peers[0].host, sizeof(nodes->peers[0].host), "%.63s", d->host);
    struct letter hello = { .kind = HELLO, .node = d->rank, .nodes = d->count, .ranks = nodes->desc->ranks };
    snprintf(hello.job, sizeof(hello.job), "%s", d->id);
    snprintf(hello.host, sizeof(hello.host), "%s", nodes->self);
    send_letter(&nodes->peers[0], &hello, SEND_SECONDS);
    return -1;
}

int nodes_open(struct nodes **out, const struct launch_desc *desc)
{
    const struct launch_nodes *d = &desc->nodes;
    struct nodes *nodes = calloc(1, sizeof(*nodes));
    if (!nodes)
        return refuse("out of memory");
    nodes->desc = desc;
    nodes->count = d->count;
    nodes->listener = -1;
    nodes->rank = d->rank >= 0 ? d->rank : door_is_here(d->host, d->port) ? 0 : -1;
    nodes->n_peers = nodes->rank == 0 ? d->count - 1 + STRANGERS : 1;
    nodes->peers = calloc((size_t)nodes->n_peers, sizeof(*nodes->peers));
    if (gethostname(nodes->self, sizeof(nodes->self) - 1) != 0)
        snprintf(nodes->self, sizeof(nodes->self), "unknown");
    int code = nodes->peers ? -1 : refuse("out of memory");
    for (int i = 0; code < 0 && i < nodes->n_peers; i++)
        nodes->peers[i] = (struct peer){ .sock = -1, .node = -1 };
    if (code < 0)
        code = nodes->rank == 0 ? listen_here(nodes) : come(nodes);
    if (code < 0)
        *out = nodes;
    else
        nodes_close(nodes);
    return code;
}

void nodes_close(struct nodes *nodes)
{
    if (!nodes)
        return;
    for (int i = 0; nodes->peers && i < nodes->n_peers; i++)
        if (nodes->peers[i].sock >= 0)
            close(nodes->peers[i].sock);
    if (nodes->listener >= 0)
        close(nodes->listener);
    free(nodes->peers);
    free(nodes);
}
