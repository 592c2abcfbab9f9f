/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Collectives of ranks that can only send to each other: each is one exchange or a few, in which every rank
 * has something for every other. Sums are in rank order, as over shared memory, bit for bit.
 * Called by comm/tcp.c and comm/mpi.c, which know how to exchange.
 */
#ifndef SHERD_COMM_MESH_H
#define SHERD_COMM_MESH_H

#include "comm/collect.h"

/* What goes to and comes from one rank; either may be nothing. */
struct mesh_part {
    const void *out;
    size_t out_bytes;
    void *in;
    size_t in_bytes;
};

struct mesh {
    struct collect collect; /* first: comm->impl begins with the mesh */
    int rank, size;
    /* Moves parts[r] for all other ranks; all must bring the same call (its `unused` counts the exchanges of
     * a collective). `parts` is for this rank's entry too, which is nothing. */
    int (*exchange)(struct mesh *mesh, const struct block_call *call, const struct mesh_part *parts);
    struct mesh_part *parts;
    const void **src;
    char *scratch; /* MESH_PIECE_BYTES for every rank */
};

#define MESH_PIECE_BYTES ((size_t)128 << 10)

/* rank, size and exchange are set. */
int mesh_init(struct mesh *mesh);
void mesh_finish(struct mesh *mesh);

/* Who brought what: the sentence for two calls that differ. */
int mesh_differ(
    const struct mesh *mesh, const struct block_call *mine, int other, const struct block_call *theirs);

#endif
