/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Gather, reduce, publish: see shard/move.h.
 */
#include "shard/move.h"

#include <assert.h>

#include "base/status.h"

static int64_t slice_of(const struct shard_store *s, int unit, enum shard_segment segment)
{
    return layout_slice(s->desc.layout, unit, segment);
}

static void *at(void *base, enum sherd_dtype type, int64_t elems)
{
    return (char *)base + sherd_dtype_bytes(type) * (size_t)elems;
}

int move_gather(struct shard_mover *m, int unit, int slot)
{
    struct shard_store *s = m->store;
    struct shard_unit *u = &s->units[unit];
    u->slot = slot;
    SHERD_TRY(sherd_event_wait(m->gather, s->slots[slot].released));
    SHERD_TRY(sherd_event_wait(m->gather, u->updated));
    for (int seg = 0; seg < SHARD_SEGMENTS; seg++)
        if (u->layout->elems[seg])
            SHERD_TRY(
                sherd_all_gather(m->gather_comm, m->gather, store_whole(s, unit, (enum shard_segment)seg),
                    u->param[seg], slice_of(s, unit, (enum shard_segment)seg), s->desc.param));
    return sherd_event_record(s->slots[slot].ready, m->gather);
}

int move_await(struct shard_mover *m, int unit)
{
    struct shard_unit *u = &m->store->units[unit];
    if (u->slot >= 0)
        return sherd_event_wait(m->compute, m->store->slots[u->slot].ready);
    SHERD_TRY(sherd_event_wait(m->compute, u->updated));
    return sherd_event_wait(m->compute, u->published);
}

/* 0xff in every byte is a NaN in every float type. */
static int poison(
    struct shard_mover *m, struct sherd_queue *queue, void *data, int64_t elems, enum sherd_dtype type)
{
    if (!m->poison || elems == 0)
        return SHERD_OK;
    return sherd_fill(queue,
        &(struct sherd_fill){ .dst = data, .bytes = sherd_dtype_bytes(type) * (size_t)elems, .byte = 0xff });
}

int move_release(struct shard_mover *m, int unit)
{
    struct shard_store *s = m->store;
    struct shard_unit *u = &s->units[unit];
    assert(u->slot >= 0);
    struct shard_slot *slot = &s->slots[u->slot];
    SHERD_TRY(poison(m, m->compute, slot->data, s->desc.program->slot_elems[u->slot], s->desc.param));
    u->slot = -1;
    return sherd_event_record(slot->released, m->compute);
}

int move_take_partial(struct shard_mover *m, int unit, int partial_slot)
{
    struct shard_store *s = m->store;
    struct shard_unit *u = &s->units[unit];
    u->partial_slot = partial_slot;
    /* a partial at rest is the gradient that the last update reads */
    return sherd_event_wait(m->compute, partial_slot < 0 ? u->updated : s->partials[partial_slot].released);
}

/* Stages 2 and 3: reduce-scatter, then into the float gradient at rest. A first F32 sum goes there directly,
 * if that is memory which the communicators know or they need not know it. */
static int reduce_to_shard(struct shard_mover *m, int unit, int first)
{
    struct shard_store *s = m->store;
    struct shard_unit *u = &s->units[unit];
    int64_t slice = slice_of(s, unit, SHARD_TRAINED);
    enum sherd_dtype type = s->desc.reduce;
    void *partial = store_partial(s, unit), *own = at(partial, type, slice * s->rank);
    SHERD_TRY(sherd_event_wait(m->reduce, u->updated)); /* which reads the gradient at rest */
    int known = !s->desc.lent || !s->desc.lent[unit] || comm_lands(m->reduce_comm, slice, type);
    if (first && type == SHERD_F32 && known) {
        SHERD_TRY(sherd_reduce_scatter(m->reduce_comm, m->reduce, u->grad, partial, slice, type));
    } else {
        SHERD_TRY(sherd_reduce_scatter(m->reduce_comm, m->reduce, own, partial, slice, type));
        SHERD_TRY(sherd_accumulate(
            m->reduce, &(struct sherd_accumulate){
                           .dst = u->grad, .src = own, .n = slice, .src_type = type, .overwrite = first }));
    }
    SHERD_TRY(poison(m, m->reduce, partial, u->layout->elems[SHARD_TRAINED], type));
    SHERD_TRY(sherd_event_record(s->partials[u->partial_slot].released, m->reduce));
    u->partial_slot = -1;
    return SHERD_OK;
}

int move_reduce(struct shard_mover *m, int unit, int first)
{
    struct shard_store *s = m->store;
    struct shard_unit *u = &s->units[unit];
    int64_t elems = u->layout->elems[SHARD_TRAINED];
    SHERD_TRY(sherd_event_record(u->full, m->compute));
    SHERD_TRY(sherd_event_wait(m->reduce, u->full));
    if (s->desc.stage->grad == SHARD_SHARDED)
        SHERD_TRY(reduce_to_shard(m, unit, first));
    else if (s->desc.stage->state == SHARD_SHARDED)
        SHERD_TRY(sherd_reduce_scatter(
            m->reduce_comm, m->reduce, u->grad, u->partial, elems / s->desc.layout->world, s->desc.reduce));
    else
        SHERD_TRY(sherd_all_reduce(
            m->reduce_comm, m->reduce, u->partial, u->partial, elems, s->desc.reduce, SHERD_REDUCE_SUM));
    return sherd_event_record(u->reduced, m->reduce);
}

int move_await_grad(struct shard_mover *m, int unit)
{
    return sherd_event_wait(m->compute, m->store->units[unit].reduced);
}

int move_updated(struct shard_mover *m, int unit)
{
    return sherd_event_record(m->store->units[unit].updated, m->update);
}

int move_publish(struct shard_mover *m, int unit)
{
    struct shard_store *s = m->store;
    struct shard_unit *u = &s->units[unit];
    int64_t slice = slice_of(s, unit, SHARD_TRAINED);
    void *whole = u->param[SHARD_TRAINED];
    SHERD_TRY(sherd_event_wait(m->gather, u->updated));
    SHERD_TRY(sherd_all_gather(
        m->gather_comm, m->gather, whole, at(whole, s->desc.param, slice * s->rank), slice, s->desc.param));
    return sherd_event_record(u->published, m->gather);
}
