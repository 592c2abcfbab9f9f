/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Opening communicators of ranks on several hosts. The rest goes through the table comm_tcp.
 * Called by comm/comm.c only.
 */
#ifndef SHERD_COMM_TCP_H
#define SHERD_COMM_TCP_H

#include "comm/ops.h"

/* ops, dev, world and timeout are set; fills impl. Collective. */
int tcp_open_ranks(struct sherd_comm *comm);

#endif
