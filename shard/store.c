/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * One rank's storage: see shard/store.h.
 */
#include "shard/store.h"

#include <assert.h>

#include "base/mem.h"
#include "base/status.h"
#include "base/text.h"
#include "comm/ops.h"

static int64_t first_of(
    const struct shard_store *s, int unit, enum shard_segment segment, enum shard_form form)
{
    return form == SHARD_SHARDED ? layout_slice(s->desc.layout, unit, segment) * s->rank : 0;
}

static int64_t elems_of(
    const struct shard_store *s, int unit, enum shard_segment segment, enum shard_form form)
{
    return form == SHARD_SHARDED ? layout_slice(s->desc.layout, unit, segment)
                                 : s->desc.layout->units[unit].elems[segment];
}

int64_t store_param_first(const struct shard_store *s, int unit, enum shard_segment segment)
{
    return first_of(s, unit, segment, s->desc.stage->param);
}

int64_t store_param_elems(const struct shard_store *s, int unit, enum shard_segment segment)
{
    return elems_of(s, unit, segment, s->desc.stage->param);
}

int64_t store_state_first(const struct shard_store *s, int unit)
{
    return first_of(s, unit, SHARD_TRAINED, s->desc.stage->state);
}

int64_t store_state_elems(const struct shard_store *s, int unit)
{
    return elems_of(s, unit, SHARD_TRAINED, s->desc.stage->state);
}

/* Takes the next bytes of a region. */
static void *cut(struct shard_store *s, uint64_t used[STORE_REGIONS], int region, uint64_t bytes)
{
    if (bytes == 0)
        return NULL;
    void *p = (char *)s->region[region] + used[region];
    used[region] += bytes;
    return p;
}

static void cut_master(
    struct shard_store *s, uint64_t used[STORE_REGIONS], struct shard_unit *unit, uint64_t elems)
{
    void *at = cut(s, used, STORE_MASTER, memory_master_bytes(&s->desc) * elems);
    if (s->desc.split)
        unit->low = at;
    else
        unit->master = at;
}

static void cut_unit(struct shard_store *s, uint64_t used[STORE_REGIONS], int u)
{
    struct shard_unit *unit = &s->units[u];
    const struct memory_desc *d = &s->desc;
    uint64_t p = sherd_dtype_bytes(d->param), g = sherd_dtype_bytes(d->reduce);
    uint64_t elems = (uint64_t)store_state_elems(s, u);
    for (int seg = 0; seg < SHARD_SEGMENTS; seg++)
        unit->param[seg] =
            cut(s, used, STORE_PARAM, p * (uint64_t)store_param_elems(s, u, (enum shard_segment)seg));
    if (d->param != SHERD_F32)
        cut_master(s, used, unit, elems);
    else if (elems)
        unit->master = (float *)unit->param[SHARD_TRAINED] + store_state_first(s, u) -
                       store_param_first(s, u, SHARD_TRAINED);
    for (int i = 0; i < d->n_states; i++)
        unit->state[i] = cut(s, used, STORE_STATE, sherd_dtype_bytes(d->state) * elems);
    if (d->stage->grad == SHARD_SHARDED && d->lent && d->lent[u])
        return;
    if (d->stage->grad == SHARD_SHARDED) {
        unit->grad = cut(s, used, STORE_GRAD, sizeof(float) * elems);
    } else if (elems) {
        unit->partial = cut(s, used, STORE_PARTIAL, g * (uint64_t)unit->layout->elems[SHARD_TRAINED]);
        unit->grad = (char *)unit->partial + g * (uint64_t)store_state_first(s, u);
    }
}

static int no_memory(
    const struct memory_desc *d, const struct sherd_memory *m, struct sherd_device *dev, int st)
{
    struct text t = { 0 };
    char a[32];
    text_add(
        &t, "stage %d at world %d needs on %s:", d->stage->number, d->layout->world, sherd_device_name(dev));
#define XX(name, what)                                                                                       \
    if (m->name)                                                                                             \
        text_add(&t, " %s %s,", what, text_human_bytes((double)m->name, a));
    SHERD_REGIONS(XX)
#undef XX
    text_add(&t, " and activations; a higher shard.stage or more ranks need less");
    st = status_context(st, "%s", t.data ? t.data : "state memory");
    text_finish(&t);
    return st;
}

static int alloc_regions(struct shard_store *s)
{
    struct sherd_memory m = { 0 };
    memory_state(&m, &s->desc);
    const uint64_t bytes[STORE_REGIONS] = { [STORE_PARAM] = m.param,
        [STORE_MASTER] = m.master,
        [STORE_STATE] = m.state,
        [STORE_GRAD] = m.grad,
        [STORE_SLOT] = m.slot,
        [STORE_PARTIAL] = m.partial,
        [STORE_LANDING] = m.landing };
    struct sherd_queue *queue = NULL;
    int st = sherd_queue_create(&queue, s->dev, SHERD_QUEUE_COMPUTE);
    for (int i = 0; i < STORE_REGIONS && st == SHERD_OK; i++) {
        if (bytes[i] == 0)
            continue;
        st = sherd_device_alloc(s->dev, &s->region[i], bytes[i]);
        if (st == SHERD_ENOMEM)
            st = no_memory(&s->desc, &m, s->dev, st);
        if (st == SHERD_OK)
            st = sherd_fill(queue, &(struct sherd_fill){ .dst = s->region[i], .bytes = bytes[i] });
    }
    if (st == SHERD_OK)
        st = sherd_queue_sync(queue);
    sherd_queue_destroy(queue);
    return st;
}

static int init_slots(struct shard_store *s, struct shard_slot **out, int n, const int64_t *elems,
    uint64_t size, uint64_t used[STORE_REGIONS], int region)
{
    *out = mem_zalloc((size_t)n, sizeof(**out));
    if (!*out)
        return SHERD_ENOMEM;
    for (int i = 0; i < n; i++) {
        (*out)[i].data = cut(s, used, region, size * (uint64_t)elems[i]);
        SHERD_TRY(sherd_event_create(&(*out)[i].ready, s->dev));
        SHERD_TRY(sherd_event_create(&(*out)[i].released, s->dev));
    }
    return SHERD_OK;
}

int store_init(struct shard_store *s, const struct memory_desc *desc, int rank, struct sherd_device *dev)
{
    assert(desc->n_states <= STORE_MAX_STATES);
    *s = (struct shard_store){ .desc = *desc, .rank = rank, .dev = dev };
    s->grad_type = desc->stage->grad == SHARD_SHARDED ? SHERD_F32 : desc->reduce;
    const struct shard_program *program = desc->program;
    uint64_t used[STORE_REGIONS] = { 0 };
    int st = SHERD_OK;
    s->units = mem_zalloc((size_t)desc->layout->n_units, sizeof(*s->units));
    if (!s->units)
        return SHERD_ENOMEM;
    SHERD_TRY_OUT(alloc_regions(s));
    for (int u = 0; u < desc->layout->n_units; u++) {
        struct shard_unit *unit = &s->units[u];
        unit->layout = &desc->layout->units[u];
        unit->slot = unit->partial_slot = -1;
        cut_unit(s, used, u);
        SHERD_TRY_OUT(sherd_event_create(&unit->full, dev));
        SHERD_TRY_OUT(sherd_event_create(&unit->reduced, dev));
        SHERD_TRY_OUT(sherd_event_create(&unit->updated, dev));
        SHERD_TRY_OUT(sherd_event_create(&unit->published, dev));
    }
    SHERD_TRY_OUT(init_slots(s, &s->slots, program->n_slots, program->slot_elems,
        sherd_dtype_bytes(desc->param), used, STORE_SLOT));
    SHERD_TRY_OUT(init_slots(s, &s->partials, program->n_partials, program->partial_elems,
        sherd_dtype_bytes(desc->reduce), used, STORE_PARTIAL));
out:
    if (st != SHERD_OK)
        store_finish(s);
    return st;
}

int store_lend(struct shard_store *s, int unit, void *place, struct sherd_queue *queue)
{
    assert(s->desc.lent && s->desc.lent[unit]);
    s->units[unit].grad = place;
    return sherd_fill(queue,
        &(struct sherd_fill){ .dst = place, .bytes = sizeof(float) * (size_t)store_state_elems(s, unit) });
}

static void finish_slots(struct shard_slot *slots, int n)
{
    for (int i = 0; slots && i < n; i++) {
        sherd_event_destroy(slots[i].ready);
        sherd_event_destroy(slots[i].released);
    }
    mem_free(slots);
}

void store_finish(struct shard_store *s)
{
    if (!s || !s->units)
        return;
    for (int u = 0; u < s->desc.layout->n_units; u++) {
        sherd_event_destroy(s->units[u].full);
        sherd_event_destroy(s->units[u].reduced);
        sherd_event_destroy(s->units[u].updated);
        sherd_event_destroy(s->units[u].published);
    }
    finish_slots(s->slots, s->desc.program->n_slots);
    finish_slots(s->partials, s->desc.program->n_partials);
    for (int i = 0; i < STORE_REGIONS; i++)
        sherd_device_free(s->dev, s->region[i]);
    mem_free(s->units);
    *s = (struct shard_store){ 0 };
}

/* What is gathered and published, and what is reduced. */
static const enum store_region gathered[] = { STORE_PARAM, STORE_SLOT };
static const enum store_region reduced[] = { STORE_GRAD, STORE_PARTIAL };

static int expose(struct shard_store *s, struct sherd_comm *comm, const enum store_region regions[2])
{
    struct sherd_memory m = { 0 };
    memory_state(&m, &s->desc);
    const uint64_t bytes[] = {
        [STORE_PARAM] = m.param, [STORE_GRAD] = m.grad, [STORE_SLOT] = m.slot, [STORE_PARTIAL] = m.partial
    };
    for (int i = 0; i < 2; i++)
        if (bytes[regions[i]])
            SHERD_TRY(sherd_comm_expose(comm, s->region[regions[i]], bytes[regions[i]]));
    return SHERD_OK;
}

int store_expose(struct shard_store *s, struct sherd_comm *gather_comm, struct sherd_comm *reduce_comm)
{
    struct sherd_memory m = { 0 };
    memory_state(&m, &s->desc);
    SHERD_TRY(expose(s, gather_comm, gathered));
    SHERD_TRY(expose(s, reduce_comm, reduced));
    return m.landing ? sherd_comm_landing(reduce_comm, s->region[STORE_LANDING], m.landing) : SHERD_OK;
}

void store_conceal(struct shard_store *s, struct sherd_comm *gather_comm, struct sherd_comm *reduce_comm)
{
    for (int i = 0; i < STORE_REGIONS; i++) {
        sherd_comm_conceal(gather_comm, s->region[i]);
        sherd_comm_conceal(reduce_comm, s->region[i]);
    }
}

void *store_whole(const struct shard_store *s, int unit, enum shard_segment segment)
{
    const struct shard_unit *u = &s->units[unit];
    if (s->desc.stage->param != SHARD_SHARDED)
        return u->param[segment];
    if (u->slot < 0)
        return NULL;
    int64_t before = segment == SHARD_FROZEN ? u->layout->elems[SHARD_TRAINED] : 0;
    return (char *)s->slots[u->slot].data + sherd_dtype_bytes(s->desc.param) * (size_t)before;
}

void *store_partial(const struct shard_store *s, int unit)
{
    const struct shard_unit *u = &s->units[unit];
    if (u->partial)
        return u->partial;
    assert(u->partial_slot >= 0);
    return s->partials[u->partial_slot].data;
}

/* The own slice within a buffer of `stored` elements that starts at element `first` of the segment. */
static struct shard_view view_of(const struct shard_store *s, const char *what, int unit,
    enum shard_segment seg, void *data, int64_t first, enum sherd_dtype stored)
{
    int64_t slice = layout_slice(s->desc.layout, unit, seg), own = slice * s->rank;
    char *at = (char *)data + sherd_dtype_bytes(stored) * (size_t)(own - first);
    return (struct shard_view){
        .what = what, .unit = unit, .segment = seg, .type = stored, .data = at, .first = own, .elems = slice
    };
}

/* Floats for whoever saves and loads, however they are kept. */
static struct shard_view float_view_of(const struct shard_store *s, const char *what, int unit, void *data,
    int64_t first, enum sherd_dtype stored, int16_t *low)
{
    struct shard_view v = view_of(s, what, unit, SHARD_TRAINED, data, first, stored);
    v.type = SHERD_F32;
    v.halves = stored == SHERD_BF16;
    v.low = low ? low + (v.first - store_state_first(s, unit)) : NULL;
    return v;
}

int store_views(const struct shard_store *s, const char *const *state_names, struct shard_view *out, int cap)
{
    int n = 0;
    for (int u = 0; u < s->desc.layout->n_units; u++) {
        const struct shard_unit *unit = &s->units[u];
        struct shard_view v[2 + STORE_MAX_STATES];
        int k = 0;
        if (unit->layout->elems[SHARD_TRAINED]) {
            int64_t first = store_state_first(s, u);
            if (unit->low)
                v[k++] = float_view_of(s, "weight", u, unit->param[SHARD_TRAINED],
                    store_param_first(s, u, SHARD_TRAINED), SHERD_BF16, unit->low);
            else
                v[k++] = float_view_of(s, "weight", u, unit->master, first, SHERD_F32, NULL);
            for (int i = 0; i < s->desc.n_states; i++)
                v[k++] = float_view_of(s, state_names[i], u, unit->state[i], first, s->desc.state, NULL);
        }
        if (unit->layout->elems[SHARD_FROZEN])
            v[k++] = view_of(s, "weight", u, SHARD_FROZEN, unit->param[SHARD_FROZEN],
                store_param_first(s, u, SHARD_FROZEN), s->desc.param);
        for (int i = 0; i < k; i++, n++)
            if (n < cap)
                out[n] = v[i];
    }
    return n;
}
