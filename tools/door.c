/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Sockets of launchers.
 */
#include "tools/door.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ONCE_SECONDS 5 /* for one try to connect */

/* Bound to the port at all addresses, of IPv6 and IPv4 where there are both. Returns 0, or an errno. */
static int bind_any(int *sock, int port)
{
    struct sockaddr_in6 six = { .sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port) };
    struct sockaddr_in four = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
    int one = 1, zero = 0, error = 0;
    for (int k = 0; k < 2; k++) {
        int s = socket(k ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (s < 0) {
            error = errno;
            continue;
        }
        setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
        if (k == 0)
            setsockopt(s, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof(zero));
        int bad = k ? bind(s, (struct sockaddr *)&four, sizeof(four))
                    : bind(s, (struct sockaddr *)&six, sizeof(six));
        error = bad ? errno : 0;
        if (!bad) {
            *sock = s;
            return 0;
        }
        close(s);
        if (error == EADDRINUSE)
            break;
    }
    return error;
}

int door_open(int *sock)
{
    struct sockaddr_in6 at; /* the port is at one place in both families */
    socklen_t bytes = sizeof(at);
    errno = bind_any(sock, 0);
    if (errno != 0)
        return -1;
    getsockname(*sock, (struct sockaddr *)&at, &bytes);
    return ntohs(at.sin6_port);
}

int door_free_port(void)
{
    int sock = -1, port = door_open(&sock);
    if (port > 0)
        close(sock);
    return port;
}

int door_listen(int *sock, int port)
{
    int error = bind_any(sock, port);
    if (!error && listen(*sock, 1024) != 0) {
        error = errno;
        close(*sock);
    }
    return error;
}

static struct addrinfo *resolve(const char *host, int port, int *error)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *list = NULL;
    char number[16];
    snprintf(number, sizeof(number), "%d", port);
    *error = getaddrinfo(host, number, &hints, &list);
    return *error ? NULL : list;
}

int door_is_here(const char *host, int port)
{
    int error, here = 0, one = 1;
    struct addrinfo *list = resolve(host, port, &error);
    for (struct addrinfo *a = list; a && !here; a = a->ai_next) {
        int s = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (s >= 0)
            setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
        here = s >= 0 && bind(s, a->ai_addr, a->ai_addrlen) == 0 && listen(s, 1) == 0;
        if (s >= 0)
            close(s);
    }
    if (list)
        freeaddrinfo(list);
    return here;
}

int door_call(int *sock, const char *host, int port, char *why, size_t bytes)
{
    int error, last = ENOENT;
    struct addrinfo *list = resolve(host, port, &error);
    if (!list) {
        snprintf(why, bytes, "%s", gai_strerror(error));
        return last;
    }
    for (struct addrinfo *a = list; a && last; a = a->ai_next) {
        int s = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        struct pollfd p = { .fd = s, .events = POLLOUT };
        socklen_t size = sizeof(last);
        last = s < 0 ? errno : 0;
        if (!last && connect(s, a->ai_addr, a->ai_addrlen) != 0) {
            last = errno;
            if (last == EINPROGRESS && poll(&p, 1, ONCE_SECONDS * 1000) == 1)
                getsockopt(s, SOL_SOCKET, SO_ERROR, &last, &size);
            else if (last == EINPROGRESS)
                last = ETIMEDOUT;
        }
        if (last && s >= 0)
            close(s);
        else
            *sock = s;
    }
    freeaddrinfo(list);
    snprintf(why, bytes, "%s", strerror(last));
    return last;
}
