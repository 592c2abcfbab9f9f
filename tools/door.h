/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Sockets of launchers: a port that is free, a place to listen, a call to another host.
 * Called by tools/nodes.c and tools/launch.c.
 */
#ifndef SHERD_TOOLS_DOOR_H
#define SHERD_TOOLS_DOOR_H

#include <stddef.h>

/* A socket at a free port of all addresses of this host, not yet listening: the port, or below 0 with errno.
 */
int door_open(int *sock);
/* A port of this host that nobody has just now; below 0 with errno where there is none. */
int door_free_port(void);
/* Listens at this port of all addresses: 0, or an errno. */
int door_listen(int *sock, int port);
/* Whether the name leads to this host, and nobody listens at the port yet. */
int door_is_here(const char *host, int port);
/* One try to connect: 0, or an errno with the reason in why. */
int door_call(int *sock, const char *host, int port, char *why, size_t bytes);

#endif
