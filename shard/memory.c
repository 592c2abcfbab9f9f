/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Bytes per rank and bytes sent: see shard/memory.h.
 */
#include "shard/memory.h"

#include <string.h>

#include "base/status.h"
#include "comm/ops.h"

static uint64_t share(int64_t elems, const struct memory_desc *d, enum shard_form form)
{
    return (uint64_t)(form == SHARD_SHARDED ? elems / d->layout->world : elems);
}

uint64_t memory_master_bytes(const struct memory_desc *d)
{
    return d->param == SHERD_F32 ? 0 : d->split ? sizeof(int16_t) : sizeof(float);
}

int memory_lands(const struct memory_desc *d, int unit)
{
    int64_t g = (int64_t)sherd_dtype_bytes(d->reduce);
    return d->landing && d->layout->world > 1 && d->stage->state == SHARD_SHARDED &&
           g * layout_slice(d->layout, unit, SHARD_TRAINED) >= COMM_LANDING_LEAST;
}

/* The largest reduce-scatter that is worth it needs room for all of its parts. */
static uint64_t landing_bytes(const struct memory_desc *d)
{
    int64_t most = 0, g = (int64_t)sherd_dtype_bytes(d->reduce);
    for (int u = 0; u < d->layout->n_units; u++)
        if (memory_lands(d, u))
            most = MAX(most, g * d->layout->units[u].elems[SHARD_TRAINED]);
    return (uint64_t)most;
}

uint64_t sherd_memory_total(const struct sherd_memory *memory)
{
    uint64_t total = 0;
#define XX(name, text) total += memory->name;
    SHERD_REGIONS(XX)
#undef XX
    return total;
}

void memory_state(struct sherd_memory *out, const struct memory_desc *d)
{
    uint64_t p = sherd_dtype_bytes(d->param), g = sherd_dtype_bytes(d->reduce);
    out->param = out->master = out->state = out->grad = out->slot = out->partial = 0;
    for (int u = 0; u < d->layout->n_units; u++) {
        int64_t trained = d->layout->units[u].elems[SHARD_TRAINED];
        int64_t frozen = d->layout->units[u].elems[SHARD_FROZEN];
        out->param += p * share(trained + frozen, d, d->stage->param);
        out->master += memory_master_bytes(d) * share(trained, d, d->stage->state);
        out->state +=
            sherd_dtype_bytes(d->state) * (uint64_t)d->n_states * share(trained, d, d->stage->state);
        if (d->stage->grad == SHARD_SHARDED && d->lent && d->lent[u])
            continue;
        if (d->stage->grad == SHARD_SHARDED)
            out->grad += 4 * share(trained, d, SHARD_SHARDED);
        else
            out->partial += g * (uint64_t)trained;
    }
    for (int i = 0; i < d->program->n_slots; i++)
        out->slot += p * (uint64_t)d->program->slot_elems[i];
    for (int i = 0; i < d->program->n_partials; i++)
        out->partial += g * (uint64_t)d->program->partial_elems[i];
    out->landing = landing_bytes(d);
}

static void count(
    uint64_t sent[SHERD_COLLECTIVES], const struct memory_desc *d, const struct program_instr *in)
{
    uint64_t world = (uint64_t)d->layout->world;
    uint64_t p = sherd_dtype_bytes(d->param), g = sherd_dtype_bytes(d->reduce);
    const int64_t *elems = d->layout->units[program_is_layer(in->op) ? 0 : in->index].elems;
    uint64_t trained = (uint64_t)elems[SHARD_TRAINED], frozen = (uint64_t)elems[SHARD_FROZEN];
    if (in->op == PROGRAM_GATHER)
        sent[SHERD_ALL_GATHER] += p * (trained + frozen) / world * (world - 1);
    else if (in->op == PROGRAM_PUBLISH)
        sent[SHERD_ALL_GATHER] += p * trained / world * (world - 1);
    else if (in->op == PROGRAM_REDUCE && d->stage->state == SHARD_SHARDED)
        sent[SHERD_REDUCE_SCATTER] += g * trained / world * (world - 1);
    else if (in->op == PROGRAM_REDUCE)
        sent[SHERD_ALL_REDUCE] += 2 * (g * trained / world * (world - 1));
}

static void count_list(uint64_t sent[SHERD_COLLECTIVES], const struct memory_desc *d, enum program_list list)
{
    for (int i = 0; i < d->program->list[list].n; i++)
        count(sent, d, &d->program->list[list].at[i]);
}

void memory_sent(uint64_t sent[SHERD_COLLECTIVES], const struct memory_desc *d, int n_micro)
{
    memset(sent, 0, SHERD_COLLECTIVES * sizeof(*sent));
    if (n_micro == 1) {
        count_list(sent, d, PROGRAM_ONLY);
    } else {
        count_list(sent, d, PROGRAM_FIRST);
        for (int i = 0; i < n_micro - 2; i++)
            count_list(sent, d, PROGRAM_MIDDLE);
        count_list(sent, d, PROGRAM_LAST);
    }
    count_list(sent, d, PROGRAM_AFTER);
    count_list(sent, d, PROGRAM_UPDATES);
}
