/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The second seam: what a communicator must provide. The collectives are called as <sherd/comm.h> names them:
 * comm.c checks, counts bytes and calls through the table. Reductions are sums (max for control values) and
 * are done in rank order where the implementation says `ordered`, so that sums depend on nothing but the
 * ranks. Knows nothing of units, shards or stages.
 *
 * Every collective takes a queue: the work happens in that queue's order. All ranks must call the same
 * collectives with the same sizes in the same order on one communicator; two communicators are independent.
 */
#ifndef SHERD_COMM_OPS_H
#define SHERD_COMM_OPS_H

#include <sherd/comm.h>

#include "base/file.h"
#include "comm/board.h"

#define COMM_ID_BYTES 128

#define COMM_EXPOSED_ALIGN 256
#define COMM_LANDING_LEAST ((int64_t)1 << 20) /* bytes of a part for which landing memory is used */

struct comm_ops {
    const char *kind; /* "self", "shm", "tcp", "mpi", "nccl" */
    /* COMM_BUILT, of kinds from plugins: what is built apart must agree on this table. */
    size_t built;
    int ordered; /* sums are taken in rank order, in float (bf16 rounded once at the end) */
    /* out[size * elems] = in of every rank in rank order; in may be out + rank * elems (in place). */
    int (*all_gather)(struct sherd_comm *, struct sherd_queue *, void *out, const void *in, int64_t elems,
        enum sherd_dtype type);
    /* out[elems] = sum over ranks of in[rank * elems ..]; out may be in + rank * elems (in place). The rest
     * of `in` is undefined afterwards. */
    int (*reduce_scatter)(
        struct sherd_comm *, struct sherd_queue *, void *out, void *in, int64_t elems, enum sherd_dtype type);
    /* out[elems] = sum or max over ranks of in; out may be in. */
    int (*all_reduce)(struct sherd_comm *, struct sherd_queue *, void *out, const void *in, int64_t elems,
        enum sherd_dtype type, enum sherd_reduce reduce);
    /* out = in of the root, on every rank; out may be in, which only the root reads. */
    int (*broadcast)(
        struct sherd_comm *, struct sherd_queue *, void *out, const void *in, size_t bytes, int root);
    /* The channel of comm that is for the host helpers alone, as a communicator. All ranks ask for it, and
     * some kinds wait for all. Fills impl of *twin. */
    int (*control)(struct sherd_comm *comm, struct sherd_comm *twin);
    /* A second communicator over the same ranks, for another queue. Collective, on the control channel of
     * comm (on comm itself where that has a side). Fills impl of *twin. */
    int (*dup)(struct sherd_comm *control, struct sherd_comm *twin);
    /* Ends the waits of all communicators that came from one opening. */
    void (*abort)(struct sherd_comm *, const char *reason);
    void (*close)(struct sherd_comm *);
    /* OK, or EPEER where a rank has aborted or died. Does not wait. NULL where nothing can be known. */
    int (*check)(struct sherd_comm *);
    /* The same from what this process knows without a call of the system; a death may not be known yet. */
    int (*heard)(struct sherd_comm *);
    /* The board of all ranks, kept by the kind; NULL where it has none. Kinds with a side use the side's. */
    struct board *(*board)(struct sherd_comm *);
    /* board_pulse and board_tell_all of it, for kinds that see their side through its table alone. */
    uint64_t (*pulse)(struct sherd_comm *);
    const char *(*tell)(struct sherd_comm *, char *buf, size_t bytes);

    /* Kinds of a device plugin (dev_ops.comm) are opened with these, and have no `control`: they get a side,
     * see struct sherd_comm. make_id, on rank 0: COMM_ID_BYTES that name the job to the library underneath.
     * open: the n ranks of this process at once (one, or all as threads); collective; fills impl. */
    int (*make_id)(void *id);
    int (*open)(struct sherd_comm *const *comms, int n, const void *id);
    /* Memory that collectives will use again and again, whole allocations of sherd_device_alloc: lets the
     * kind move it faster. Collective, same sizes in the same order on all ranks. NULL: nothing to gain.
     * Collectives on exposed memory take pieces (a rank's part) that begin at and are as long as multiples of
     * COMM_EXPOSED_ALIGN bytes; others are EINVAL where the kind has a use for exposed memory. */
    int (*expose)(struct sherd_comm *, void *base, size_t bytes);
    void (*conceal)(struct sherd_comm *, void *base); /* before it is freed; not collective */
    /* As expose, of memory that is the kind's own to work in, until it is concealed; one at a time. Where it
     * cannot be used that is said, and no failure. NULL, both: no use for it. */
    int (*landing)(struct sherd_comm *, void *base, size_t bytes);
    int (*lands)(const struct sherd_comm *, int64_t elems, enum sherd_dtype type); /* see comm_lands */
};

struct sherd_comm {
    const struct comm_ops *ops;
    struct sherd_device *dev;
    struct sherd_world world;
    double timeout;
    struct sherd_comm_counters counters; /* written by the thread that submits */
    struct comm_control *control;        /* of the host helpers, made when first used */
    /* The same ranks over the host's shared memory, or TCP where there are several hosts, for control values
     * and for news of failures. For kinds that have an `open`, NULL for others; owned. */
    struct sherd_comm *side;
    struct board_place here; /* where this rank is, see comm_at; goes along with collectives */
    int compare;             /* see comm_compare */
    /* For tests: stands before every comm_at, may fail it, or make it skip with a positive number. */
    int (*door)(void *ctx, const struct board_place *place);
    void *door_ctx;
    unsigned delay_us; /* for tests: a GPU's queue idles so long before each collective */
    void *impl;
};

#define COMM_BUILT (sizeof(struct comm_ops) << 16 | sizeof(struct sherd_comm))

/* This rank is at `place` now: pinned on the board, and told with the collectives that follow, which fail if
 * another rank brings them from another place. OK; tests may let it fail, or skip (> 0) what is to come. */
int comm_at(struct sherd_comm *, const struct board_place *place);
/* Collectives that follow come from this place too, of another communicator of the same engine. */
void comm_at_as(struct sherd_comm *, const struct sherd_comm *other);
/* In long work between two places: still at it, whoever waits may go on waiting. */
void comm_beat(struct sherd_comm *);
/* From now on what this thread does with files counts as that; returns what is to be put back with file_watch
 * before comm is closed. */
struct file_watch comm_beat_with_files(struct sherd_comm *);
/* Whether a reduce-scatter of such parts, from exposed memory, goes through landing memory: `out` may then
 * lie in any memory, which costs nothing. */
int comm_lands(const struct sherd_comm *, int64_t elems, enum sherd_dtype type);
/* NULL for a world of one. */
struct board *comm_board(struct sherd_comm *);
/* From now on every collective is compared over all ranks (kind, count, type, place) before it is submitted;
 * ECOMM on all ranks, with who brought what, where they differ. The host waits for all ranks each time. */
void comm_compare(struct sherd_comm *, int on);

/* For comm.c: the comparison, if it is on. */
int comm_check_same(
    struct sherd_comm *, enum sherd_collective kind, int64_t elems, enum sherd_dtype type, uint32_t detail);

/* Host-side helpers, blocking, for control and never inside a step. They use a small staging buffer and
 * queue of the communicator's own. */
/* all[size * bytes] = `bytes` bytes of every rank in rank order. */
int comm_host_gather(struct sherd_comm *, void *all, const void *mine, size_t bytes);
int comm_host_broadcast(struct sherd_comm *, void *buf, size_t bytes, int root);
/* Every rank brings its status; all get OK only if all brought OK, otherwise the failing rank keeps its own
 * status and text and the others get EPEER with "rank R: " and that text. */
int comm_agree(struct sherd_comm *, int status);
/* The same; *why is the status of the rank whose failure it is, alike on all ranks, or OK. */
int comm_agree_why(struct sherd_comm *, int status, int *why);

/* The i-th word for how ranks of CPUs may talk, see sherd_comm_desc; NULL at the end. */
const char *comm_way(int i);

/* The kinds, opened in comm/comm.c. */
extern const struct comm_ops comm_self, comm_shm, comm_tcp, comm_mpi;

#endif
