/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Sockets between hosts: addresses, the network interface, connecting and waiting with a deadline.
 * Called by comm/meet_tcp.c, comm/lines.c and comm/tcp.c; knows nothing of ranks. Sockets are non-blocking,
 * and closed in programs that this one starts. Deadlines are those of clock_seconds().
 */
#ifndef SHERD_COMM_NET_H
#define SHERD_COMM_NET_H

#include <stddef.h>
#include <sys/socket.h>

#define NET_TEXT_BYTES 80 /* of an address with its port */
#define NET_HOST_BYTES 64
#define NET_FOUND 8 /* most addresses of one name */

struct net_address {
    struct sockaddr_storage at;
    socklen_t bytes;
};

/* The addresses of a name, at most NET_FOUND; IPv4 first. Of several names, with commas, one after another.
 * ECOMM with the resolver's reason. */
int net_resolve(struct net_address *out, int *n, const char *host, int port);
/* "10.0.0.1:29500", "[fe80::1]:29500"; returned. And without the port. */
const char *net_text(const struct net_address *address, char buf[NET_TEXT_BYTES]);
const char *net_host_text(const struct net_address *address, char buf[NET_TEXT_BYTES]);
int net_is_loopback(const struct net_address *address);
int net_port(const struct net_address *address);
struct net_address net_here(int sock);  /* this end of a connection */
struct net_address net_there(int sock); /* the other end */

/* The address of this host that NCCL_SOCKET_IFNAME (`wanted`; "eth,ib", "=eth0", "^docker,lo") names, of the
 * family of `to`. ENOTFOUND lists the interfaces that there are. out->bytes = 0 where wanted is NULL. */
int net_interface(struct net_address *out, const char *wanted, const struct net_address *to);
/* The addresses of this host that others may reach it at, IPv4 first: "10.0.0.1,192.168.7.1", as many as fit;
 * those of NCCL_SOCKET_IFNAME (`wanted`) if it is not NULL. ENOTFOUND where there are none. */
int net_addresses(char *buf, size_t bytes, const char *wanted);
/* "eth0": the interface that has this address; "?" if none. */
const char *net_interface_name(const struct net_address *address, char buf[NET_HOST_BYTES]);

/* A connection, tried once. `from` as of net_interface, or NULL. Returns 0 or an errno. */
int net_connect(int *sock, const struct net_address *to, const struct net_address *from, double deadline);
/* A socket that listens: at this address, its port 0 = any free one; or at all addresses of this host. ECOMM.
 */
int net_listen(int *sock, const struct net_address *at);
int net_listen_any(int *sock, int port);
/* For a connection that will last: no delays, and an end in bounded time when the other host falls silent. */
void net_keep(int sock, double timeout);

/* Whole or not at all, by the deadline. Return 0, or an errno: ETIMEDOUT, EPIPE at the other's end. */
int net_send(int sock, const void *data, size_t bytes, double deadline);
int net_receive(int sock, void *data, size_t bytes, double deadline);
/* A connection that waits at a listening socket: 0, EAGAIN where there is none by the deadline. */
int net_accept(int *sock, int listener, double deadline);

#endif
