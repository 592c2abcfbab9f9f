/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Sockets between hosts.
 */
#include "comm/net.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/text.h"

#define BACKLOG 4096
#define QUIET_SECONDS 10 /* of a connection, before it is asked whether it still stands, */
#define ASK_SECONDS 5    /* and again, */
#define ASK_TIMES 4      /* so many times */

/* ---- addresses ---- */

int net_port(const struct net_address *address)
{
    const void *at = &address->at;
    return ntohs(address->at.ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)at)->sin6_port
                                                   : ((const struct sockaddr_in *)at)->sin_port);
}

static void set_port(struct net_address *address, int port)
{
    void *at = &address->at;
    if (address->at.ss_family == AF_INET6)
        ((struct sockaddr_in6 *)at)->sin6_port = htons((uint16_t)port);
    else
        ((struct sockaddr_in *)at)->sin_port = htons((uint16_t)port);
}

static void take(struct net_address *out, const struct sockaddr *from, socklen_t bytes)
{
    memset(out, 0, sizeof(*out));
    memcpy(&out->at, from, bytes);
    out->bytes = bytes;
}

static int resolve(struct net_address *out, int *n, const char *host, int port)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_family = AF_UNSPEC }, *list = NULL;
    int r = getaddrinfo(host, NULL, &hints, &list), before = *n;
    if (r != 0)
        return SHERD_FAIL(SHERD_ECOMM, "the host name '%s' cannot be resolved here: %s", host,
            r == EAI_SYSTEM ? strerror(errno) : gai_strerror(r));
    for (int six = 0; six < 2; six++) {
        for (struct addrinfo *a = list; a && *n < NET_FOUND; a = a->ai_next) {
            if (a->ai_family != (six ? AF_INET6 : AF_INET))
                continue;
            take(&out[*n], a->ai_addr, a->ai_addrlen);
            set_port(&out[(*n)++], port);
        }
    }
    freeaddrinfo(list);
    if (*n == before && before < NET_FOUND)
        return SHERD_FAIL(SHERD_ECOMM, "the host name '%s' has no internet address", host);
    return SHERD_OK;
}

int net_resolve(struct net_address *out, int *n, const char *hosts, int port)
{
    char host[256];
    *n = 0;
    do {
        size_t len = strcspn(hosts, ",");
        snprintf(host, sizeof(host), "%.*s", (int)MIN(len, sizeof(host) - 1), hosts);
        SHERD_TRY(resolve(out, n, host, port));
        hosts += len + (hosts[len] == ',');
    } while (*hosts);
    return SHERD_OK;
}

const char *net_host_text(const struct net_address *address, char buf[NET_TEXT_BYTES])
{
    if (address->bytes == 0 || getnameinfo((const struct sockaddr *)&address->at, address->bytes, buf,
                                   NET_TEXT_BYTES, NULL, 0, NI_NUMERICHOST) != 0)
        snprintf(buf, NET_TEXT_BYTES, "?");
    return buf;
}

const char *net_text(const struct net_address *address, char buf[NET_TEXT_BYTES])
{
    char host[NET_TEXT_BYTES];
    int six = address->at.ss_family == AF_INET6;
    snprintf(buf, NET_TEXT_BYTES, "%s%.60s%s:%d", six ? "[" : "", net_host_text(address, host),
        six ? "]" : "", net_port(address));
    return buf;
}

int net_is_loopback(const struct net_address *address)
{
    const void *at = &address->at;
    if (address->at.ss_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)at)->sin_addr.s_addr) >> 24 == 127;
    const struct in6_addr *six = &((const struct sockaddr_in6 *)at)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(six) || (IN6_IS_ADDR_V4MAPPED(six) && six->s6_addr[12] == 127);
}

/* A socket for both families shows IPv4 in a form of IPv6. */
static struct net_address plain(const struct net_address *a)
{
    const void *at = &a->at;
    const struct sockaddr_in6 *six = at;
    struct sockaddr_in four = { .sin_family = AF_INET };
    struct net_address out = *a;
    if (a->bytes == 0 || a->at.ss_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&six->sin6_addr))
        return out;
    four.sin_port = six->sin6_port;
    memcpy(&four.sin_addr, &six->sin6_addr.s6_addr[12], 4);
    take(&out, (const struct sockaddr *)&four, sizeof(four));
    return out;
}

struct net_address net_here(int sock)
{
    struct net_address a = { .bytes = sizeof(a.at) };
    if (getsockname(sock, (struct sockaddr *)&a.at, &a.bytes) != 0)
        a.bytes = 0;
    return plain(&a);
}

struct net_address net_there(int sock)
{
    struct net_address a = { .bytes = sizeof(a.at) };
    if (getpeername(sock, (struct sockaddr *)&a.at, &a.bytes) != 0)
        a.bytes = 0;
    return plain(&a);
}

/* ---- interfaces ---- */

/* The rule of NCCL's variable: a list of beginnings, or of whole names after =, or of what to leave out after
 * ^. */
static int is_wanted(const char *wanted, const char *name)
{
    int not = *wanted == '^', whole, found = 0;
    wanted += not ;
    whole = *wanted == '=';
    wanted += whole;
    while (*wanted && !found) {
        size_t len = strcspn(wanted, ",");
        char entry[64];
        snprintf(entry, sizeof(entry), "%.*s", (int)len, wanted);
        entry[strcspn(entry, ":")] = '\0'; /* NCCL allows a port of the adapter after it */
        found = entry[0] && (whole ? strcmp(name, entry) == 0 : text_starts(name, entry));
        wanted += len + (wanted[len] == ',');
    }
    return not ? !found : found;
}

static socklen_t size_of(const struct sockaddr *at)
{
    return at->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

int net_interface(struct net_address *out, const char *wanted, const struct net_address *to)
{
    struct ifaddrs *list = NULL;
    char have[400] = "", text[NET_TEXT_BYTES];
    struct text_list there = { .buf = have, .bytes = sizeof(have) };
    memset(out, 0, sizeof(*out));
    if (!wanted)
        return SHERD_OK;
    if (getifaddrs(&list) != 0)
        return SHERD_FAIL(SHERD_ECOMM, "the network interfaces cannot be listed: %s", strerror(errno));
    for (struct ifaddrs *i = list; i && out->bytes == 0; i = i->ifa_next) {
        struct net_address a;
        if (!i->ifa_addr || !(i->ifa_flags & IFF_UP) ||
            (i->ifa_addr->sa_family != AF_INET && i->ifa_addr->sa_family != AF_INET6))
            continue;
        take(&a, i->ifa_addr, size_of(i->ifa_addr));
        if (i->ifa_addr->sa_family == to->at.ss_family && is_wanted(wanted, i->ifa_name))
            *out = a;
        else
            text_list_add(&there, "%s (%s)", i->ifa_name, net_host_text(&a, text));
    }
    freeifaddrs(list);
    if (out->bytes == 0)
        return SHERD_FAIL(SHERD_ENOTFOUND,
            "NCCL_SOCKET_IFNAME is '%s', and no such interface of this host is up with an %s address; there are: %s",
            wanted, to->at.ss_family == AF_INET6 ? "IPv6" : "IPv4", have);
    return SHERD_OK;
}

static int is_for_others(const struct ifaddrs *i, int family, const char *wanted)
{
    const void *at = i->ifa_addr;
    if (!at || !(i->ifa_flags & IFF_UP) || i->ifa_addr->sa_family != family)
        return 0;
    if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)at)->sin6_addr))
        return 0;
    return wanted ? is_wanted(wanted, i->ifa_name) : !(i->ifa_flags & IFF_LOOPBACK);
}

int net_addresses(char *buf, size_t bytes, const char *wanted)
{
    static const int families[] = { AF_INET, AF_INET6 };
    struct ifaddrs *list = NULL;
    char text[NET_TEXT_BYTES];
    size_t len = 0;
    buf[0] = '\0';
    if (getifaddrs(&list) != 0)
        return SHERD_FAIL(SHERD_ECOMM, "the network interfaces cannot be listed: %s", strerror(errno));
    for (size_t f = 0; f < ARRAY_LEN(families); f++) {
        for (struct ifaddrs *i = list; i; i = i->ifa_next) {
            struct net_address a;
            if (!is_for_others(i, families[f], wanted))
                continue;
            take(&a, i->ifa_addr, size_of(i->ifa_addr));
            net_host_text(&a, text);
            if (len + strlen(text) + 2 < bytes)
                len += (size_t)snprintf(buf + len, bytes - len, "%s%s", len ? "," : "", text);
        }
    }
    freeifaddrs(list);
    if (len == 0)
        return SHERD_FAIL(SHERD_ENOTFOUND,
            "no interface of this host that is up%s%s has an address for others",
            wanted ? " and named by NCCL_SOCKET_IFNAME=" : "", wanted ? wanted : "");
    return SHERD_OK;
}

const char *net_interface_name(const struct net_address *address, char buf[NET_HOST_BYTES])
{
    struct ifaddrs *list = NULL;
    char mine[NET_TEXT_BYTES], theirs[NET_TEXT_BYTES];
    net_host_text(address, mine);
    snprintf(buf, NET_HOST_BYTES, "?");
    if (getifaddrs(&list) != 0)
        return buf;
    for (struct ifaddrs *i = list; i; i = i->ifa_next) {
        struct net_address a;
        if (!i->ifa_addr || i->ifa_addr->sa_family != address->at.ss_family)
            continue;
        take(&a, i->ifa_addr, size_of(i->ifa_addr));
        if (strcmp(net_host_text(&a, theirs), mine) == 0)
            snprintf(buf, NET_HOST_BYTES, "%s", i->ifa_name);
    }
    freeifaddrs(list);
    return buf;
}

/* ---- connections ---- */

/* Until the socket is ready for `events` (then 1) or the deadline (0). */
static int wait_ready(int sock, short events, double deadline)
{
    for (;;) {
        double left = deadline - clock_seconds();
        struct pollfd p = { .fd = sock, .events = events };
        int n = poll(&p, 1, left > 0 ? (int)(MIN(left, 1e6) * 1e3) + 1 : 0);
        if (n > 0)
            return 1;
        if (left <= 0)
            return 0;
    }
}

int net_connect(int *sock, const struct net_address *to, const struct net_address *from, double deadline)
{
    int error = 0, s = socket(to->at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    socklen_t bytes = sizeof(error);
    if (s < 0)
        return errno;
    if (from && from->bytes > 0 && from->at.ss_family == to->at.ss_family) {
        struct net_address any = *from;
        set_port(&any, 0);
        if (bind(s, (struct sockaddr *)&any.at, any.bytes) != 0)
            error = errno;
    }
    if (!error && connect(s, (const struct sockaddr *)&to->at, to->bytes) != 0) {
        if (errno != EINPROGRESS)
            error = errno;
        else if (!wait_ready(s, POLLOUT, deadline))
            error = ETIMEDOUT;
        else if (getsockopt(s, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0)
            error = errno;
    }
    if (error)
        close(s);
    else
        *sock = s;
    return error;
}

static int listen_at(int *sock, const struct net_address *at)
{
    int one = 1, zero = 0;
    int s = socket(at->at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s < 0)
        return errno;
    if (at->at.ss_family == AF_INET6)
        setsockopt(s, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof(zero));
    if (setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) != 0 ||
        bind(s, (const struct sockaddr *)&at->at, at->bytes) != 0 || listen(s, BACKLOG) != 0) {
        int error = errno;
        close(s);
        return error;
    }
    *sock = s;
    return 0;
}

/* The inode of the socket that listens at the port, 0 where none is seen. */
static unsigned long listening_inode(const char *table, int port)
{
    char line[512];
    unsigned long found = 0;
    FILE *f = fopen(table, "r");
    while (f && !found && fgets(line, sizeof(line), f)) {
        unsigned int at = 0, state = 0;
        unsigned long inode = 0;
        /* "sl: address:port address:port state queues timer retransmits uid timeout inode" */
        if (sscanf(line, " %*d: %*[0-9A-Fa-f]:%x %*s %x %*s %*s %*s %*s %*s %lu", &at, &state, &inode) == 3 &&
            at == (unsigned int)port && state == TCP_LISTEN)
            found = inode;
    }
    if (f)
        fclose(f);
    return found;
}

static int has_socket(const char *pid, const char *link)
{
    char path[300], target[64];
    int found = 0;
    snprintf(path, sizeof(path), "/proc/%s/fd", pid);
    DIR *fds = opendir(path);
    for (struct dirent *e = fds ? readdir(fds) : NULL; e && !found; e = readdir(fds)) {
        ssize_t n = readlinkat(dirfd(fds), e->d_name, target, sizeof(target) - 1);
        target[n > 0 ? n : 0] = '\0';
        found = strcmp(target, link) == 0;
    }
    if (fds)
        closedir(fds);
    return found;
}

/* "process 77 (python3)", or what can be said where the process is another user's. */
static const char *owner_of(int port, char *buf, size_t bytes)
{
    char link[64], path[300], name[64] = "";
    unsigned long inode = listening_inode("/proc/net/tcp", port);
    inode = inode ? inode : listening_inode("/proc/net/tcp6", port);
    snprintf(link, sizeof(link), "socket:[%lu]", inode);
    snprintf(buf, bytes, "another program");
    DIR *all = inode ? opendir("/proc") : NULL;
    for (struct dirent *e = all ? readdir(all) : NULL; e; e = readdir(all)) {
        if (e->d_name[0] < '1' || e->d_name[0] > '9' || !has_socket(e->d_name, link))
            continue;
        snprintf(path, sizeof(path), "/proc/%s/comm", e->d_name);
        FILE *f = fopen(path, "r");
        if (f && fgets(name, sizeof(name), f))
            name[strcspn(name, "\n")] = '\0';
        if (f)
            fclose(f);
        snprintf(buf, bytes, "process %.20s (%s)", e->d_name, name);
        break;
    }
    if (all)
        closedir(all);
    return buf;
}

static int cannot_listen(const struct net_address *at, int error)
{
    char text[NET_TEXT_BYTES], owner[128];
    if (error == EADDRINUSE)
        return SHERD_FAIL(SHERD_ECOMM,
            "cannot listen at %s: %s has this port; give all ranks another MASTER_PORT (torchrun: "
            "--master-port)",
            net_text(at, text), owner_of(net_port(at), owner, sizeof(owner)));
    return SHERD_FAIL(SHERD_ECOMM, "cannot listen at %s: %s", net_text(at, text), strerror(error));
}

int net_listen(int *sock, const struct net_address *at)
{
    int error = listen_at(sock, at);
    return error ? cannot_listen(at, error) : SHERD_OK;
}

int net_listen_any(int *sock, int port)
{
    struct net_address six = { .at.ss_family = AF_INET6, .bytes = sizeof(struct sockaddr_in6) };
    struct net_address four = { .at.ss_family = AF_INET, .bytes = sizeof(struct sockaddr_in) };
    set_port(&six, port);
    set_port(&four, port);
    int error = listen_at(sock, &six);
    if (error == EAFNOSUPPORT || error == EADDRNOTAVAIL) /* a host without IPv6 */
        error = listen_at(sock, &four);
    return error ? cannot_listen(&four, error) : SHERD_OK;
}

void net_keep(int sock, double timeout)
{
    int one = 1, quiet = QUIET_SECONDS, ask = ASK_SECONDS, times = ASK_TIMES;
    unsigned int unheard = (unsigned int)(MIN(MAX(timeout, 1), 1e6) * 1e3);
    setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    setsockopt(sock, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
    setsockopt(sock, IPPROTO_TCP, TCP_KEEPIDLE, &quiet, sizeof(quiet));
    setsockopt(sock, IPPROTO_TCP, TCP_KEEPINTVL, &ask, sizeof(ask));
    setsockopt(sock, IPPROTO_TCP, TCP_KEEPCNT, &times, sizeof(times));
    setsockopt(sock, IPPROTO_TCP, TCP_USER_TIMEOUT, &unheard, sizeof(unheard));
}

int net_send(int sock, const void *data, size_t bytes, double deadline)
{
    const char *p = data;
    while (bytes > 0) {
        ssize_t n = send(sock, p, bytes, MSG_NOSIGNAL);
        if (n > 0) {
            p += n;
            bytes -= (size_t)n;
        } else if (n < 0 && errno == EAGAIN) {
            if (!wait_ready(sock, POLLOUT, deadline))
                return ETIMEDOUT;
        } else if (n < 0 && errno != EINTR) {
            return errno;
        }
    }
    return 0;
}

int net_receive(int sock, void *data, size_t bytes, double deadline)
{
    char *p = data;
    while (bytes > 0) {
        ssize_t n = recv(sock, p, bytes, 0);
        if (n > 0) {
            p += n;
            bytes -= (size_t)n;
        } else if (n == 0) {
            return EPIPE;
        } else if (errno == EAGAIN) {
            if (!wait_ready(sock, POLLIN, deadline))
                return ETIMEDOUT;
        } else if (errno != EINTR) {
            return errno;
        }
    }
    return 0;
}

int net_accept(int *sock, int listener, double deadline)
{
    if (!wait_ready(listener, POLLIN, deadline))
        return EAGAIN;
    *sock = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    return *sock >= 0 ? 0 : EAGAIN;
}
