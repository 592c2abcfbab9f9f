/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The stage table: where each kind of state rests. A stage is a row here and nowhere a branch.
 * Pure data; the three movements between the forms are in shard/move.h.
 */
#ifndef SHERD_SHARD_STAGE_H
#define SHERD_SHARD_STAGE_H

/* whole: every rank has all of it. partial: every rank has a full-size piece of a sum that is not yet taken.
 * sharded: every rank has its slice. */
enum shard_form { SHARD_WHOLE, SHARD_PARTIAL, SHARD_SHARDED };

struct shard_stage {
    int number;
    const char *name;      /* as people know it: "DDP", "ZeRO-1" ... */
    enum shard_form param; /* parameters at rest */
    enum shard_form grad;  /* gradients between micro-batches: partial or sharded */
    enum shard_form state; /* optimizer state and masters: whole or sharded */
    int publish;           /* parameters are gathered after the update */
};

/* NULL for a number that is no stage. */
const struct shard_stage *stage_find(int number);

#endif
