/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Bytes per rank of everything that holds parameters, gradients and optimizer state: pure functions of the
 * layout, the program and the stage. The engine allocates exactly these bytes, `sherd plan` prints them.
 * Activations are the models' matter (runtime/plan.h).
 *
 * With T and Z the padded trained and frozen elements of all units, W ranks, p and g bytes of a parameter and
 * of a gradient on the wire, S optimizer states of s bytes, m bytes of a master (4; 2 if it is split; 0 if p
 * is float), L the trained elements of units whose gradient is lent a place, M those of the
 * largest unit (if `landing` is set, W > 1 and its slice is not below COMM_LANDING_LEAST bytes; else 0):
 *
 *                 stage 0        stage 1        stage 2            stage 3
 *   param         (T+Z) p        (T+Z) p        (T+Z) p            (T+Z) p / W
 *   master        m T            m T / W        m T / W            m T / W
 *   state         s S T          s S T / W      s S T / W          s S T / W
 *   partial       T g            T g            partial slots g    partial slots g
 *   grad          0              0              4 (T - L) / W      4 (T - L) / W
 *   slot          0              0              0                  slots p
 *   landing       0              M g            M g                M g
 *
 * (ZeRO: arXiv 1910.02054, section 5; slots replace "one layer at a time".)
 */
#ifndef SHERD_SHARD_MEMORY_H
#define SHERD_SHARD_MEMORY_H

#include <sherd/engine.h>

#include "shard/program.h"

struct memory_desc {
    const struct shard_stage *stage;
    const struct shard_layout *layout;
    const struct shard_program *program;
    enum sherd_dtype param, reduce;
    int n_states;
    enum sherd_dtype state;
    int split; /* masters are the parameters and 16 bits each */
    /* Of each unit: 1 = its gradient at rest is lent a place, see store_lend; NULL: none. */
    const unsigned char *lent;
    int landing; /* reduce-scatters have memory where the parts of other ranks land, see sherd_comm_landing */
};

/* Of the master of one element. */
uint64_t memory_master_bytes(const struct memory_desc *desc);

/* Whether the gradient of a unit is summed from parts of other ranks that landed here. */
int memory_lands(const struct memory_desc *d, int unit);
/* Fills param, master, state, grad, slot, partial and landing; leaves the rest. Every piece is a multiple of
 * 256 bytes. */
void memory_state(struct sherd_memory *out, const struct memory_desc *desc);

/* Bytes one rank sends in one optimizer step of n_micro micro-batches, by collective, as comm counts them;
 * the scalars of the step (loss, norm) are not in it. */
void memory_sent(uint64_t sent[SHERD_COLLECTIVES], const struct memory_desc *desc, int n_micro);

#endif
