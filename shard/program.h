/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The step as a static list of instructions, built once by a pure function of the layers, the stage and the
 * prefetch depth, and run by runtime/step.c. Knows nothing of devices, buffers or ranks.
 *
 * The uses of a micro-batch are forward 0..n-1, then backward n-1..first trained layer. The rules:
 *   (a) the unit of use i + prefetch is gathered before use i is computed;
 *   (b) a unit is released after a use unless its next use lies within max(1, prefetch) uses;
 *   (c) its partial gradient is zeroed before its first backward (stages 0, 1: of the step);
 *   (d) and reduced after its last backward (stages 0, 1: of the last micro-batch);
 *   (e) so the next gather always stands before this reduce, and both queues stay full;
 *   (f) a use that reads no weights counts in (a) and (b) as if it were not there;
 *   (g) a layer that is to run forward again does so directly before its backward, with the unit of that use;
 *   (h) units are updated, and published, in the order in which the next step first needs them.
 * Gathers and releases stand only where parameters are sharded at rest.
 */
#ifndef SHERD_SHARD_PROGRAM_H
#define SHERD_SHARD_PROGRAM_H

#include "base/text.h"
#include "shard/layout.h"
#include "shard/stage.h"

/* Name, text, and what the index is of: a unit, a layer, or nothing. */
#define PROGRAM_OPS(XX)                                                                                      \
    XX(GATHER, "gather", 'u')                                                                                \
    XX(RELEASE, "release", 'u')                                                                              \
    XX(FORWARD, "forward", 'l')                                                                              \
    XX(AGAIN, "again", 'l')                                                                                  \
    XX(BACKWARD, "backward", 'l')                                                                            \
    XX(ZERO, "zero", 'u')                                                                                    \
    XX(REDUCE, "reduce", 'u')                                                                                \
    XX(NORM, "norm", '-')                                                                                    \
    XX(CLIP, "clip", '-')                                                                                    \
    XX(UPDATE, "update", 'u')                                                                                \
    XX(PUBLISH, "publish", 'u')

enum program_op {
#define XX(name, text, what) PROGRAM_##name,
    PROGRAM_OPS(XX)
#undef XX
};

/* Whether an instruction's index is that of a layer, not of a unit. */
int program_is_layer(enum program_op op);

struct program_instr {
    enum program_op op;
    int index; /* unit or layer */
    int slot;  /* gather, release: which slot; zero, reduce: which partial slot; -1 where none is used */
};

/* A step of n micro-batches runs ONLY (n = 1) or FIRST, MIDDLE n - 2 times, LAST; then AFTER, and UPDATES,
 * which run beside the next step. */
#define PROGRAM_LISTS(XX)                                                                                    \
    XX(ONLY, "only")                                                                                         \
    XX(FIRST, "first")                                                                                       \
    XX(MIDDLE, "middle")                                                                                     \
    XX(LAST, "last")                                                                                         \
    XX(AFTER, "after")                                                                                       \
    XX(UPDATES, "updates")                                                                                   \
    XX(EVAL, "eval")

enum program_list {
#define XX(name, text) PROGRAM_##name,
    PROGRAM_LISTS(XX)
#undef XX
        PROGRAM_N_LISTS
};

struct program_code {
    struct program_instr *at;
    int n, cap;
};

struct shard_program {
    struct program_code list[PROGRAM_N_LISTS];
    int first_trained; /* layers below it have no backward; n_layers if nothing is trained */
    int n_slots, n_partials;
    int64_t *slot_elems;    /* largest unit (both segments) that each slot ever holds */
    int64_t *partial_elems; /* largest trained segment that each partial slot ever holds */
};

enum program_layer {
    PROGRAM_RUN_AGAIN = 1, /* forward a second time, before backward */
    PROGRAM_UNREAD = 2,    /* backward reads no weights */
};

struct program_desc {
    const struct shard_stage *stage;
    const struct shard_layout *layout;
    const struct sherd_layer *layers;
    int n_layers;
    int prefetch;               /* units gathered ahead, >= 0 */
    const unsigned char *flags; /* of each layer, enum program_layer; NULL: none for all */
};

int program_build(struct shard_program *program, const struct program_desc *desc);
void program_finish(struct shard_program *program);

/* Runs the rules over the lists: every use finds its unit whole, nothing stays resident, each trained unit is
 * zeroed and reduced exactly when due, slots never hold two units. EINTERNAL says which instruction is wrong.
 */
int program_check(const struct shard_program *program, const struct program_desc *desc);

/* "gather root | forward embed | ...", one list a paragraph. */
void program_print(struct text *out, const struct shard_program *program, const struct program_desc *desc);
/* "last:17 reduce block1": a place in the program, for reports. */
void program_place(struct text *out, const struct shard_program *program, const struct program_desc *desc,
    enum program_list list, int at);
/* "reduce"; "reduce block1" is appended. */
const char *program_op_name(enum program_op op);
void program_instr_name(struct text *out, const struct program_instr *instr, const struct program_desc *desc);
/* Equal on all ranks of a sane job. */
uint64_t program_hash(const struct shard_program *program);

#endif
