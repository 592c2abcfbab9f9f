/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The meeting of the ranks of one host. Whoever is not of this job (another user, another job, not sherd at
 * all) is sent away and the meeting goes on; a rank of this job that cannot be right ends it for all.
 */
#include "comm/meet.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/sum.h"
#include "comm/board.h"

#define RETRY_SECONDS 0.02
#define HELLO_SECONDS 5.0 /* from connecting to the whole hello */
#define TAKEN_SECONDS 5.0 /* how long rank 0 waits for a name that is still in use */
#define GRACE_SECONDS 2.0 /* others let rank 0 time out first: it knows who is missing */
#define TOLD_SECONDS 10.0 /* of waiting for others, before that is said */

socklen_t meet_address(struct sockaddr_un *out, const char *job)
{
    memset(out, 0, sizeof(*out));
    out->sun_family = AF_UNIX;
    /* A zero byte first makes it abstract. Jobs whose sums clash are told apart by the hello. */
    int len = snprintf(out->sun_path + 1, sizeof(out->sun_path) - 1, "sherd-%u-%016llx", (unsigned)getuid(),
        (unsigned long long)sum_hash64(job, strlen(job), 0));
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)len);
}

static void nap(void)
{
    nanosleep(&(struct timespec){ .tv_nsec = (long)(RETRY_SECONDS * 1e9) }, NULL);
}

/* Waits until the socket can be read: 1, or 0 at the deadline. */
static int readable(int sock, double deadline)
{
    for (;;) {
        double left = deadline - clock_seconds();
        struct pollfd p = { .fd = sock, .events = POLLIN };
        int n = poll(&p, 1, left > 0 ? (int)(left * 1e3) + 1 : 0);
        if (n > 0)
            return 1;
        if (n == 0 && left <= 0)
            return 0;
    }
}

static int new_socket(int *out)
{
    /* Whole messages: a hello comes in one piece or not at all. */
    *out = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    return *out >= 0 ? SHERD_OK : SHERD_FAIL(SHERD_ECOMM, "cannot make a unix socket: %s", strerror(errno));
}

/* ---- the other ranks ---- */

static int come_to_rank0(const struct meet *meet, int sock, double deadline)
{
    struct sockaddr_un address;
    socklen_t bytes = meet_address(&address, meet->job);
    while (connect(sock, (struct sockaddr *)&address, bytes) != 0) {
        if (errno != ECONNREFUSED && errno != EAGAIN && errno != EINTR && errno != ENOENT)
            return SHERD_FAIL(SHERD_ECOMM, "rank %d: cannot reach rank 0 of job '%s': %s", meet->rank,
                meet->job, strerror(errno));
        if (clock_seconds() >= deadline)
            return SHERD_FAIL(SHERD_ETIMEOUT,
                "rank %d waited %g s for rank 0 of job '%s', which has not come: has it started, as the same user "
                "on this host?",
                meet->rank, meet->timeout, meet->job);
        nap();
    }
    struct meet_hello hello = { .magic = MEET_MAGIC,
        .version = MEET_VERSION,
        .rank = meet->rank,
        .size = meet->size,
        .pid = (int32_t)getpid() };
    snprintf(hello.job, sizeof(hello.job), "%s", meet->job);
    if (send(sock, &hello, sizeof(hello), MSG_NOSIGNAL) != (ssize_t)sizeof(hello))
        return SHERD_FAIL(SHERD_EPEER, "rank 0 went away before all ranks had come");
    return SHERD_OK;
}

/* One message with perhaps one descriptor: its bytes, or below 0. */
static ssize_t receive(int sock, void *buf, size_t bytes, int *fd)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = { 0 };
    struct iovec iov = { .iov_base = buf, .iov_len = bytes };
    struct msghdr msg = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)
    };
    ssize_t n = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC);
    struct cmsghdr *c = n >= 0 ? CMSG_FIRSTHDR(&msg) : NULL;
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
        memcpy(fd, CMSG_DATA(c), sizeof(*fd));
    return n;
}

static int take_reply(struct meet *meet, int sock)
{
    struct meet_reply reply;
    if (!readable(sock, clock_seconds() + meet->timeout + GRACE_SECONDS))
        return SHERD_FAIL(SHERD_ETIMEOUT,
            "rank %d waited %g s for rank 0 of job '%s', which came but then did not "
            "answer",
            meet->rank, meet->timeout, meet->job);
    ssize_t n = receive(sock, &reply, sizeof(reply), &meet->fd);
    if (n <= 0)
        return SHERD_FAIL(SHERD_EPEER, "rank 0 went away before all ranks had come");
    if (n != (ssize_t)sizeof(reply) || strcmp(reply.magic, MEET_MAGIC) != 0 || reply.version != MEET_VERSION)
        return SHERD_FAIL(SHERD_ECOMM,
            "rank 0 of job '%s' speaks another version: start all ranks from one build", meet->job);
    reply.text[sizeof(reply.text) - 1] = '\0';
    if (reply.status != SHERD_OK)
        return SHERD_FAIL(reply.status, "%s", reply.text);
    if (meet->fd < 0)
        return SHERD_FAIL(SHERD_ECOMM, "rank 0 sent no shared memory: too many open files in this process?");
    return SHERD_OK;
}

static int come(struct meet *meet)
{
    int sock = -1, st;
    SHERD_TRY(new_socket(&sock));
    SHERD_TRY_OUT(come_to_rank0(meet, sock, clock_seconds() + meet->timeout));
    SHERD_TRY_OUT(take_reply(meet, sock));
    st = meet->enter ? meet->enter(meet) : SHERD_OK;
    struct meet_reply done = { .magic = MEET_MAGIC, .version = MEET_VERSION, .status = st };
    snprintf(done.text, sizeof(done.text), "%s", st ? sherd_error() : "");
    if (send(sock, &done, sizeof(done), MSG_NOSIGNAL) != (ssize_t)sizeof(done))
        SHERD_KEEP(st, SHERD_FAIL(SHERD_EPEER, "rank 0 went away before all ranks had come"));
out:
    close(sock);
    return st;
}

/* ---- rank 0 ---- */

/* Who has come, by rank; 0 has no socket. */
struct guest {
    int sock; /* -1: not yet */
    int pid;
};

struct host {
    const struct meet *meet;
    struct guest *guests;
    struct pollfd *polls; /* the listener, then those who have come */
    int *ranks;           /* of polls */
    uint8_t *away;        /* by rank: it has not come */
    int door, n_come;
};

static void answer(int sock, int status, const char *text, int fd)
{
    struct meet_reply reply = { .magic = MEET_MAGIC, .version = MEET_VERSION, .status = status };
    snprintf(reply.text, sizeof(reply.text), "%s", text);
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = { 0 };
    struct iovec iov = { .iov_base = &reply, .iov_len = sizeof(reply) };
    struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
    if (status == SHERD_OK) {
        msg.msg_control = &control;
        msg.msg_controllen = sizeof(control);
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &fd, sizeof(fd));
    }
    /* One who is gone will be missed when it should say that it has entered. */
    (void)!sendmsg(sock, &msg, MSG_NOSIGNAL);
}

static int open_door(struct host *host)
{
    struct sockaddr_un address;
    socklen_t bytes = meet_address(&address, host->meet->job);
    double deadline = clock_seconds() + MIN(TAKEN_SECONDS, host->meet->timeout);
    SHERD_TRY(new_socket(&host->door));
    while (bind(host->door, (struct sockaddr *)&address, bytes) != 0) {
        if (errno != EADDRINUSE)
            return SHERD_FAIL(
                SHERD_ECOMM, "cannot bind the socket of job '%s': %s", host->meet->job, strerror(errno));
        if (clock_seconds() >= deadline)
            return SHERD_FAIL(SHERD_ECOMM,
                "another process waits as rank 0 of job '%s': two ranks 0 were started, or two jobs have one "
                "name; set SHERD_JOB to tell them apart",
                host->meet->job);
        nap();
    }
    if (listen(host->door, host->meet->size + 16) != 0)
        return SHERD_FAIL(
            SHERD_ECOMM, "cannot listen for the ranks of job '%s': %s", host->meet->job, strerror(errno));
    return SHERD_OK;
}

/* Whoever is not of this job: told so, and forgotten. */
static void send_away(int sock, const char *text)
{
    log_warn("%s", text);
    answer(sock, SHERD_ECOMM, text, -1);
    close(sock);
}

/* Takes in the one at the door. */
static int admit(struct host *host)
{
    const struct meet *meet = host->meet;
    char text[400] = "";
    struct meet_hello hello;
    struct ucred who = { .uid = (uid_t)-1 };
    socklen_t who_bytes = sizeof(who);
    int sock = accept4(host->door, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (sock < 0)
        return SHERD_OK;
    ssize_t n = readable(sock, clock_seconds() + MIN(HELLO_SECONDS, meet->timeout))
                    ? recv(sock, &hello, sizeof(hello), 0)
                    : -1;
    if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &who, &who_bytes) != 0 || who.uid != getuid()) {
        snprintf(text, sizeof(text), "refused a process of user %u in job '%s', which is of user %u",
            (unsigned)who.uid, meet->job, (unsigned)getuid());
    } else if (n != (ssize_t)sizeof(hello) || memcmp(hello.magic, MEET_MAGIC, sizeof(hello.magic)) != 0 ||
               hello.version != MEET_VERSION) {
        snprintf(text, sizeof(text),
            "refused process %d in job '%s': it is not sherd, or another version of it", (int)who.pid,
            meet->job);
    } else if (strncmp(hello.job, meet->job, sizeof(hello.job)) != 0) {
        snprintf(text, sizeof(text), "refused process %d: it is rank %d of job '%.*s', this is job '%s'",
            (int)who.pid, hello.rank, MEET_JOB_BYTES - 1, hello.job, meet->job);
    }
    if (text[0]) {
        send_away(sock, text);
        return SHERD_OK;
    }
    int st = SHERD_OK;
    if (hello.size != meet->size)
        st = SHERD_FAIL(SHERD_ECOMM, "rank %d (pid %d) says the world has %d ranks, rank 0 says %d",
            hello.rank, hello.pid, hello.size, meet->size);
    else if (hello.rank < 0 || hello.rank >= meet->size)
        st =
            SHERD_FAIL(SHERD_ECOMM, "process %d says it is rank %d of %d", hello.pid, hello.rank, meet->size);
    else if (hello.rank == 0 || host->guests[hello.rank].sock >= 0)
        st = SHERD_FAIL(SHERD_ECOMM,
            "rank %d of job '%s' came twice: pid %d and pid %d; if these are two jobs, set SHERD_JOB to tell them "
            "apart",
            hello.rank, meet->job, hello.rank ? host->guests[hello.rank].pid : (int)getpid(), hello.pid);
    if (st != SHERD_OK) {
        answer(sock, st, sherd_error(), -1);
        close(sock);
        return st;
    }
    host->guests[hello.rank] = (struct guest){ .sock = sock, .pid = hello.pid };
    host->away[hello.rank] = 0;
    host->n_come++;
    host->polls[host->n_come] = (struct pollfd){ .fd = sock, .events = POLLIN };
    host->ranks[host->n_come] = hello.rank;
    return SHERD_OK;
}

static int wait_for_guests(struct host *host)
{
    const struct meet *meet = host->meet;
    char names[256];
    double begin = clock_seconds(), deadline = begin + meet->timeout, told = begin + TOLD_SECONDS;
    host->polls[0] = (struct pollfd){ .fd = host->door, .events = POLLIN };
    while (host->n_come < meet->size - 1) {
        double now = clock_seconds();
        if (now >= deadline)
            return SHERD_FAIL(SHERD_ETIMEOUT, "job '%s': after %g s %d of %d ranks have not come: %s",
                meet->job, meet->timeout, meet->size - 1 - host->n_come, meet->size,
                board_ranks(host->away, meet->size, names, sizeof(names)));
        if (now >= told) {
            log_warn("job '%s': waiting for %d of %d ranks on this host, for %g s at most: %s", meet->job,
                meet->size - 1 - host->n_come, meet->size, meet->timeout,
                board_ranks(host->away, meet->size, names, sizeof(names)));
            told = deadline;
        }
        int n = poll(host->polls, (nfds_t)host->n_come + 1, (int)((MIN(told, deadline) - now) * 1e3) + 1);
        /* Those who have come say nothing more: what can be read is their end. */
        for (int i = 1; n > 0 && i <= host->n_come; i++) {
            if (host->polls[i].revents)
                return SHERD_FAIL(SHERD_EPEER, "rank %d (pid %d) went away before all ranks had come",
                    host->ranks[i], host->guests[host->ranks[i]].pid);
        }
        if (n > 0 && host->polls[0].revents)
            SHERD_TRY(admit(host));
    }
    return SHERD_OK;
}

/* Whether all that were answered have entered. */
static int wait_for_entry(const struct host *host)
{
    double deadline = clock_seconds() + host->meet->timeout;
    for (int r = 1; r < host->meet->size; r++) {
        const struct guest *guest = &host->guests[r];
        struct meet_reply done;
        if (!readable(guest->sock, deadline))
            return SHERD_FAIL(SHERD_ETIMEOUT, "rank %d (pid %d) came, but stood still before it had entered",
                r, guest->pid);
        if (recv(guest->sock, &done, sizeof(done), 0) != (ssize_t)sizeof(done))
            return SHERD_FAIL(SHERD_EPEER, "rank %d (pid %d) went away before it had entered", r, guest->pid);
        done.text[sizeof(done.text) - 1] = '\0';
        if (done.status != SHERD_OK)
            return SHERD_FAIL(SHERD_EPEER, "rank %d (pid %d): %s", r, guest->pid, done.text);
    }
    return SHERD_OK;
}

static int receive_all(const struct meet *meet)
{
    int st = SHERD_OK;
    struct host host = { .meet = meet, .door = -1 };
    host.guests = mem_zalloc((size_t)meet->size, sizeof(*host.guests));
    host.polls = mem_zalloc((size_t)meet->size, sizeof(*host.polls));
    host.ranks = mem_zalloc((size_t)meet->size, sizeof(*host.ranks));
    host.away = mem_zalloc((size_t)meet->size, 1);
    for (int r = 0; host.guests && r < meet->size; r++)
        host.guests[r].sock = -1;
    if (!host.guests || !host.polls || !host.ranks || !host.away) {
        st = SHERD_ENOMEM;
        goto out;
    }
    for (int r = 1; r < meet->size; r++)
        host.away[r] = 1;
    SHERD_TRY_OUT(open_door(&host));
    SHERD_TRY_OUT(wait_for_guests(&host));
out:
    for (int r = 0; host.guests && r < meet->size; r++)
        if (host.guests[r].sock >= 0)
            answer(host.guests[r].sock, st, st ? sherd_error() : "", meet->fd);
    if (st == SHERD_OK)
        st = wait_for_entry(&host);
    for (int r = 0; host.guests && r < meet->size; r++)
        if (host.guests[r].sock >= 0)
            close(host.guests[r].sock);
    if (host.door >= 0)
        close(host.door);
    mem_free(host.guests);
    mem_free(host.polls);
    mem_free(host.ranks);
    mem_free(host.away);
    return st;
}

int meet_host(struct meet *meet)
{
    if (strlen(meet->job) >= MEET_JOB_BYTES)
        return SHERD_FAIL(SHERD_EINVAL, "the name of the job is longer than %d bytes", MEET_JOB_BYTES - 1);
    return meet->rank == 0 ? receive_all(meet) : come(meet);
}
