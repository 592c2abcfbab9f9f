/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Opening communicators of ranks that an MPI has started. The rest goes through the table comm_mpi.
 * Called by comm/comm.c only.
 */
#ifndef SHERD_COMM_MPI_H
#define SHERD_COMM_MPI_H

#include "comm/ops.h"

/* ops, dev, world and timeout are set; fills impl. Collective. EUNSUPPORTED where this build has no shim for
 * the MPI of world.source. */
int mpi_open_ranks(struct sherd_comm *comm);

#endif
