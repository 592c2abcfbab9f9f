/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * A job: attempts of it, until one is done or there are no more.
 */
#include "tools/launch.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/attempt.h"
#include "tools/door.h"
#include "tools/out.h"

/* Signals that the parent chose to ignore (nohup, background jobs) stay ignored. */
static int take_signals(struct launch_signals *s)
{
    static const int list[] = { SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1, 0 };
    struct sigaction old;
    sigemptyset(&s->blocked);
    for (const int *sig = list; *sig; sig++)
        if (sigaction(*sig, NULL, &old) == 0 && old.sa_handler != SIG_IGN)
            sigaddset(&s->blocked, *sig);
    s->asked = s->aborted = 0;
    s->fd = -1;
    if (sigprocmask(SIG_BLOCK, &s->blocked, &s->before) != 0)
        return -1;
    s->fd = signalfd(-1, &s->blocked, SFD_CLOEXEC | SFD_NONBLOCK);
    return s->fd < 0 ? -1 : 0;
}

static void give_signals_back(struct launch_signals *s)
{
    if (s->fd < 0)
        return;
    close(s->fd);
    sigprocmask(SIG_SETMASK, &s->before, NULL);
}

/* The place of a host that is alone. */
static int alone(const struct launch_desc *desc, struct launch_place *place)
{
    unsigned long long token;
    if (getrandom(&token, sizeof(token), 0) != (ssize_t)sizeof(token)) {
        fprintf(stderr, "sherd: the system gives no random numbers: %s\n", strerror(errno));
        return EXIT_FAILED;
    }
    place->world = desc->ranks;
    place->meet_door = -1;
    place->port = desc->port ? desc->port : door_free_port();
    if (place->port <= 0) {
        fprintf(stderr, "sherd: no port of this host can be had for MASTER_PORT: %s\n", strerror(errno));
        return EXIT_FAILED;
    }
    snprintf(place->host, sizeof(place->host), "%s", desc->address ? desc->address : "127.0.0.1");
    snprintf(place->job, sizeof(place->job), "%016llx", token);
    return -1;
}

static void show(const struct launch_outcome *o)
{
    if (o->text[0])
        fprintf(stderr, "sherd: %s\n", o->text);
}

/* Sets *again, and returns the exit code as it stands. */
static int try_once(const struct launch_desc *desc, struct launch_signals *signals, struct nodes *nodes,
    int attempt, int *again)
{
    struct launch_place place = { .attempt = attempt };
    struct launch_outcome o;
    int left = attempt < desc->restarts;
    int code = nodes ? nodes_gather(nodes, signals->fd, &place) : alone(desc, &place);
    *again = 0;
    if (code >= 0)
        return code;
    attempt_run(desc, &place, signals, nodes, &o);
    if (place.meet_door >= 0)
        close(place.meet_door);
    left = left && !signals->asked;
    *again = nodes ? nodes_settle(nodes, signals->fd, left, &o)
                   : left && o.worth >= 1 && o.worth <= 3 && o.code != EXIT_USAGE;
    show(&o);
    return o.code;
}

int launch_job(const struct launch_desc *desc)
{
    struct launch_signals signals;
    struct nodes *nodes = NULL;
    int code = -1;
    if (take_signals(&signals) != 0) {
        fprintf(stderr, "sherd: %d ranks could not be prepared: %s\n", desc->ranks, strerror(errno));
        code = EXIT_FAILED;
    } else if (desc->nodes.count > 1) {
        code = nodes_open(&nodes, desc);
    }
    int again = code < 0;
    for (int attempt = 0; again; attempt++) {
        if (attempt > 0)
            fprintf(stderr, "sherd: starting all ranks again (restart %d of at most %d)\n", attempt,
                desc->restarts);
        code = try_once(desc, &signals, nodes, attempt, &again);
    }
    nodes_close(nodes);
    give_signals_back(&signals);
    return code;
}
