/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Opening communicators of ranks that share memory. The rest goes through the table comm_shm.
 * Called by comm/comm.c only.
 */
#ifndef SHERD_COMM_SHM_H
#define SHERD_COMM_SHM_H

#include "comm/ops.h"

/* ops, dev, world and timeout are set; these fill impl. Ranks as processes: collective. */
int shm_open_ranks(struct sherd_comm *comm);
/* Ranks as threads: all at once. On failure those that have an impl are to be closed. */
int shm_open_threads(struct sherd_comm *const *comms, int size);

#endif
