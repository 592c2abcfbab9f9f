/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * One rank's storage: every unit's parameters, masters, optimizer state and gradients at rest, the slots that
 * units are gathered into, and the partial gradients. One device allocation per region, all views of it.
 * Owns memory and events; moves nothing (that is shard/move.h).
 */
#ifndef SHERD_SHARD_STORE_H
#define SHERD_SHARD_STORE_H

#include <sherd/comm.h>
#include <sherd/ops.h>

#include "shard/memory.h"

#define STORE_MAX_STATES 2

enum store_region {
    STORE_PARAM,
    STORE_MASTER,
    STORE_STATE,
    STORE_GRAD,
    STORE_SLOT,
    STORE_PARTIAL,
    STORE_LANDING,
    STORE_REGIONS
};

/* One unit at rest. Ranges are elements of a segment: whole is [0, elems), a slice is the rank's own. */
struct shard_unit {
    const struct shard_unit_layout *layout;
    void *param[SHARD_SEGMENTS]; /* whole, or the slice where the stage shards parameters */
    float *master;               /* TRAINED, whole or slice as the stage has state; is the parameter if F32 */
    int16_t *low; /* instead of master where that is split, the same range: the rest of param */
    void *state[STORE_MAX_STATES]; /* the same range */
    void *grad;                    /* what the update reads, the same range; type grad_type */
    void *partial;                 /* stages 0, 1: whole gradient at rest; else NULL */
    int slot, partial_slot;        /* where it is gathered / its partial is now; -1 = not */
    struct sherd_event *full;      /* compute: the partial is complete; reduce queue waits */
    struct sherd_event *reduced;   /* reduce queue: the gradient at rest is complete */
    struct sherd_event *updated;   /* update queue: parameters at rest are new, the gradient was read */
    struct sherd_event *published; /* gather queue: the whole parameters are new; compute waits */
};

/* A full-size buffer that units take turns in. `ready`: its contents may be read (gather queue). `released`:
 * its last reader is done (compute, or for a partial the reduce queue). */
struct shard_slot {
    void *data;
    struct sherd_event *ready, *released;
};

struct shard_store {
    struct memory_desc desc; /* stage, layout, program and types it was made for; borrowed */
    int rank;
    enum sherd_dtype grad_type; /* of unit.grad: F32, or the wire's type in stages 0 and 1 */
    struct sherd_device *dev;
    struct shard_unit *units;
    struct shard_slot *slots, *partials;
    void *region[STORE_REGIONS];
};

/* Allocates and zeroes everything. ENOMEM lists the regions and their sizes. */
int store_init(struct shard_store *store, const struct memory_desc *desc, int rank, struct sherd_device *dev);
void store_finish(struct shard_store *store);

/* Where the gradient at rest of a unit of desc.lent lies: device memory for its slice, free from the last
 * backward of the unit until the next gather (stage 2: publication) of it is done. Filled with zeros. */
int store_lend(struct shard_store *store, int unit, void *place, struct sherd_queue *queue);

/* Lets each communicator prepare for the regions that its collectives read and write (see shard/move.h),
 * and for no others, see sherd_comm_expose; the one that reduces is given the landing memory as well, if any
 * was planned. Collective. store_conceal before store_finish. */
int store_expose(struct shard_store *store, struct sherd_comm *gather_comm, struct sherd_comm *reduce_comm);
void store_conceal(struct shard_store *store, struct sherd_comm *gather_comm, struct sherd_comm *reduce_comm);

/* First element and number of elements, within the segment, of parameters or of masters and states at rest.
 */
int64_t store_param_first(const struct shard_store *store, int unit, enum shard_segment segment);
int64_t store_param_elems(const struct shard_store *store, int unit, enum shard_segment segment);
int64_t store_state_first(const struct shard_store *store, int unit);
int64_t store_state_elems(const struct shard_store *store, int unit);

/* Where the whole segment lies while the unit is resident (its slot, or itself where parameters are whole);
 * NULL while it is not. */
void *store_whole(const struct shard_store *store, int unit, enum shard_segment segment);
/* Where its trained segment's partial gradient lies. */
void *store_partial(const struct shard_store *store, int unit);

/* The rank's own slices of all state, for saving and loading: at most `cap` are written, returns the number.
 * `state_names` has desc.n_states names. */
int store_views(
    const struct shard_store *store, const char *const *state_names, struct shard_view *out, int cap);

#endif
