/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Letters of launchers: sent whole or not at all, read as they come.
 */
#include "tools/letter.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"

#define MAGIC "sherdln"
#define VERSION 1

void letter_send(int sock, const struct letter *what, double patience)
{
    struct letter letter = *what;
    const char *p = (const char *)&letter;
    size_t left = sizeof(letter);
    double until = clock_seconds() + patience;
    snprintf(letter.magic, sizeof(letter.magic), "%s", MAGIC);
    letter.version = VERSION;
    while (left > 0) {
        ssize_t n = send(sock, p, left, MSG_NOSIGNAL);
        if (n > 0) {
            p += n;
            left -= (size_t)n;
        } else if (n < 0 && errno == EAGAIN) {
            struct pollfd room = { .fd = sock, .events = POLLOUT };
            if (left == sizeof(letter) && patience <= 0)
                return; /* a beat, and the next will do */
            if (clock_seconds() > until)
                break;
            poll(&room, 1, 100);
        } else if (n < 0 && errno != EINTR) {
            break;
        }
    }
    if (left > 0)
        shutdown(sock, SHUT_RDWR); /* half a letter: seen as its end when read */
}

int letter_read(int sock, struct letter *in, size_t *have)
{
    while (*have < sizeof(*in)) {
        ssize_t n = recv(sock, (char *)in + *have, sizeof(*in) - *have, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return 0;
        if (n <= 0)
            return -1;
        *have += (size_t)n;
    }
    *have = 0;
    return 1;
}

int letter_is_ours(struct letter *l)
{
    l->job[sizeof(l->job) - 1] = l->host[sizeof(l->host) - 1] = l->text[sizeof(l->text) - 1] = '\0';
    return strncmp(l->magic, MAGIC, sizeof(l->magic)) == 0 && l->version == VERSION;
}
