/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * A step's time without a device: layers run on operations that do nothing, a probe prices each operation,
 * and the step program is walked with four clocks, one for each queue, in the order of runtime/step.c and
 * shard/move.c.
 */
#include <math.h>

#include <sherd/forecast.h>

#include "base/mem.h"
#include "base/status.h"
#include "device/ops.h"
#include "model/model.h"
#include "runtime/dry.h"
#include "runtime/plan.h"

#define STEPS 3 /* walked: two to settle, one that counts */

struct layer_price {
    double seconds[DRY_WORKS]; /* below 0: not known yet */
};

/* When the newest work on it ends. */
struct unit_state {
    double ready; /* whole and up to date in its slot, or published */
    double updated;
    double reduced; /* its gradient */
    int slot, partial, fresh;
};

struct walk {
    struct device_probe probe; /* first: the device calls with it */
    const struct sherd_machine *m;
    struct sherd_place place;
    struct plan plan;
    struct dry dry;
    struct layer_price *layers;
    struct unit_state *units;
    double *slots, *partials;                              /* when they are free */
    double priced;                                         /* seconds of the operations seen by the probe */
    double compute, gather, reduce, update, wire, clipped; /* clocks */
    struct sherd_forecast sum;                             /* of the step that counts */
};

/* ---- prices ---- */

/* Straight between the classes, by the logarithm of the operations; the rate of the nearest class outside. */
static double matmul_rate(const struct sherd_machine *m, double flops)
{
    const struct sherd_matmul_class *c = m->matmul;
    int i = 0;
    while (i < m->n_matmul && c[i].flops < flops)
        i++;
    if (i == 0 || i == m->n_matmul)
        return c[MIN(i, m->n_matmul - 1)].rate;
    double t = log(flops / c[i - 1].flops) / log(c[i].flops / c[i - 1].flops);
    return c[i - 1].rate + t * (c[i].rate - c[i - 1].rate);
}

static double op_seconds(const struct sherd_machine *m, enum op_index op, const void *args)
{
    double flops = op_flops(op, args), seconds = op_bytes(op, args) / m->memory_rate, busy = 0;
    if (op == OP_matmul && flops > 0)
        busy = flops / matmul_rate(m, flops);
    else if (op == OP_attention_forward)
        busy = flops / m->attention_forward;
    else if (op == OP_attention_backward)
        busy = flops / m->attention_backward;
    return m->launch + MAX(seconds, busy);
}

static int price_op(struct device_probe *probe, struct sherd_queue *queue, const struct probe_span *span)
{
    struct walk *k = (struct walk *)probe;
    (void)queue;
    if (span->kind == PROBE_OP)
        k->priced += op_seconds(k->m, span->op, span->args);
    return SHERD_OK;
}

static int price_end(struct device_probe *probe, struct sherd_queue *queue)
{
    (void)probe;
    (void)queue;
    return SHERD_OK;
}

static int price_layer(struct walk *k, int l, enum dry_work work)
{
    k->priced = 0;
    int st = dry_layer(&k->dry, l, work);
    k->layers[l].seconds[work] = k->priced;
    return st == SHERD_OK ? st : status_context(st, "forecast");
}

static double elem_bytes(enum sherd_dtype type)
{
    return (double)sherd_dtype_bytes(type);
}

/* Read and written by the optimizer for one element. */
static double update_bytes(const struct plan *p)
{
    const struct memory_desc *d = &p->memory_desc;
    double grad = p->stage->grad == SHARD_SHARDED ? sizeof(float) : elem_bytes(d->reduce);
    double param = elem_bytes(p->type) * (d->param == SHERD_F32 || d->split ? 2 : 1);
    return grad + param + 2 * (double)memory_master_bytes(d) + 2 * d->n_states * elem_bytes(d->state);
}

/* ---- clocks ---- */

/* Computing waits until `time`. */
static void await(struct walk *k, double time)
{
    k->sum.exposed += MAX(time - k->compute, 0);
    k->compute = MAX(k->compute, time);
}

/* Computing lost to what runs beside it. */
static void lose(struct walk *k, double seconds)
{
    k->compute += seconds;
    k->sum.lost += seconds;
}

/* A collective on a queue whose clock is *queue, not before `from`. All collectives share the wires. */
static double collective(
    struct walk *k, double *queue, double from, enum sherd_collective kind, double bytes, double *sum)
{
    double seconds = sherd_collective_seconds(k->m, &k->place, kind, bytes);
    enum sherd_link link = k->place.hosts > 1 ? SHERD_LINK_NETWORK : SHERD_LINK_HOST;
    if (seconds <= 0)
        return MAX(*queue, from);
    *queue = k->wire = MAX(MAX(*queue, from), k->wire) + seconds;
    lose(k, k->m->link[link][kind].beside * seconds);
    *sum += seconds;
    return *queue;
}

/* A reduce-scatter by copy engines: the parts of all ranks come as those of an all-gather would, the own one
 * is copied, too, and a kernel that memory bounds, as an update, sums them. */
static double land(struct walk *k, double from, double bytes)
{
    int world = k->plan.layout.world;
    double part = bytes / world;
    double copy = 2 * part / k->m->memory_rate, add = k->m->launch + (world + 1) * part / k->m->memory_rate;
    k->reduce = k->wire = collective(k, &k->reduce, from, SHERD_ALL_GATHER, bytes, &k->sum.reduce) + copy;
    k->reduce += add;
    lose(k, k->m->beside_update * add);
    k->sum.reduce += copy + add;
    return k->reduce;
}

static double unit_bytes(const struct walk *k, int unit, enum sherd_dtype type, int frozen)
{
    const int64_t *elems = k->plan.layout.units[unit].elems;
    return elem_bytes(type) * (double)(elems[SHARD_TRAINED] + (frozen ? elems[SHARD_FROZEN] : 0));
}

static int compute(struct walk *k, const struct program_instr *in)
{
    int unit = k->plan.spec->layers[in->index].unit, fresh = k->units[unit].fresh;
    enum dry_work work = in->op == PROGRAM_FORWARD ? DRY_FORWARD
                         : in->op == PROGRAM_AGAIN ? DRY_AGAIN
                         : fresh                   ? DRY_NEW
                                                   : DRY_BACKWARD;
    if (k->layers[in->index].seconds[work] < 0)
        SHERD_TRY(price_layer(k, in->index, work));
    await(k, k->units[unit].ready);
    k->compute += k->layers[in->index].seconds[work];
    k->sum.compute += k->layers[in->index].seconds[work];
    if (in->op == PROGRAM_BACKWARD)
        k->units[unit].fresh = 0;
    return SHERD_OK;
}

static void reduce(struct walk *k, int unit)
{
    struct unit_state *u = &k->units[unit];
    enum sherd_collective kind =
        k->plan.stage->state == SHARD_SHARDED ? SHERD_REDUCE_SCATTER : SHERD_ALL_REDUCE;
    double bytes = unit_bytes(k, unit, k->plan.memory_desc.reduce, 0);
    double from = MAX(k->compute, u->updated);
    u->reduced = memory_lands(&k->plan.memory_desc, unit)
                     ? land(k, from, bytes)
                     : collective(k, &k->reduce, from, kind, bytes, &k->sum.reduce);
    if (u->partial >= 0)
        k->partials[u->partial] = u->reduced;
}

/* The square sum of this rank's slice, and the sums over the ranks that two gathers of scalars are. */
static void norm(struct walk *k)
{
    const struct plan *p = &k->plan;
    const struct program_code *updates = &p->program.list[PROGRAM_UPDATES];
    double each = p->stage->grad == SHARD_SHARDED ? sizeof(float) : elem_bytes(p->memory_desc.reduce);
    for (int i = updates->n - 1; i >= 0; i--) { /* as they were reduced */
        int u = updates->at[i].index;
        if (updates->at[i].op != PROGRAM_UPDATE)
            continue;
        double seconds =
            k->m->launch + each * (double)layout_slice(&p->layout, u, SHARD_TRAINED) / k->m->memory_rate;
        await(k, k->units[u].reduced);
        k->compute += seconds;
        k->sum.compute += seconds;
    }
    double scalars = 2.0 * sizeof(double) * p->layout.world;
    await(k, collective(k, &k->reduce, k->compute, SHERD_ALL_GATHER, scalars, &k->sum.reduce));
}

static void update(struct walk *k, int unit)
{
    const struct plan *p = &k->plan;
    const struct shard_layout *layout = &p->layout;
    int64_t elems = p->stage->state == SHARD_SHARDED ? layout_slice(layout, unit, SHARD_TRAINED)
                                                     : layout->units[unit].elems[SHARD_TRAINED];
    double seconds = k->m->launch + (double)elems * update_bytes(p) / k->m->memory_rate;
    k->update = MAX(k->update, k->clipped) + seconds;
    lose(k, k->m->beside_update * seconds);
    k->sum.update += seconds;
    k->units[unit].updated = k->update;
    if (p->stage->param == SHARD_WHOLE)
        k->units[unit].ready = k->update;
}

static int instr(struct walk *k, const struct program_instr *in)
{
    struct unit_state *u = program_is_layer(in->op) ? NULL : &k->units[in->index];
    switch (in->op) {
    case PROGRAM_GATHER:
        u->slot = in->slot;
        u->ready = collective(k, &k->gather, MAX(k->slots[in->slot], u->updated), SHERD_ALL_GATHER,
            unit_bytes(k, in->index, k->plan.type, 1), &k->sum.gather);
        return SHERD_OK;
    case PROGRAM_RELEASE:
        k->slots[u->slot] = k->compute;
        u->ready = 0; /* uses without a gather read nothing */
        return SHERD_OK;
    case PROGRAM_FORWARD:
    case PROGRAM_AGAIN:
    case PROGRAM_BACKWARD:
        return compute(k, in);
    case PROGRAM_ZERO:
        u->partial = in->slot;
        u->fresh = 1;
        await(k, in->slot < 0 ? u->updated : k->partials[in->slot]);
        return SHERD_OK;
    case PROGRAM_REDUCE:
        reduce(k, in->index);
        return SHERD_OK;
    case PROGRAM_NORM:
        norm(k);
        return SHERD_OK;
    case PROGRAM_CLIP:
        k->compute += k->m->launch;
        k->clipped = k->compute;
        return SHERD_OK;
    case PROGRAM_UPDATE:
        update(k, in->index);
        return SHERD_OK;
    case PROGRAM_PUBLISH:
        u->ready = collective(k, &k->gather, u->updated, SHERD_ALL_GATHER,
            unit_bytes(k, in->index, k->plan.type, 0), &k->sum.gather);
        return SHERD_OK;
    }
    return SHERD_BUG("forecast: instruction %d", (int)in->op);
}

static int walk_list(struct walk *k, enum program_list list)
{
    const struct program_code *code = &k->plan.program.list[list];
    for (int i = 0; i < code->n; i++)
        SHERD_TRY(instr(k, &code->at[i]));
    return SHERD_OK;
}

static int walk_step(struct walk *k, int64_t accum)
{
    SHERD_TRY(walk_list(k, PROGRAM_UPDATES)); /* of the step before */
    if (accum == 1) {
        SHERD_TRY(walk_list(k, PROGRAM_ONLY));
    } else {
        SHERD_TRY(walk_list(k, PROGRAM_FIRST));
        for (int64_t i = 0; i < accum - 2; i++)
            SHERD_TRY(walk_list(k, PROGRAM_MIDDLE));
        SHERD_TRY(walk_list(k, PROGRAM_LAST));
    }
    return walk_list(k, PROGRAM_AFTER);
}

/* ---- all of it ---- */

static int prepare(struct walk *k)
{
    const struct sherd_model_spec *spec = k->plan.spec;
    const struct shard_program *program = &k->plan.program;
    k->probe = (struct device_probe){ .ops = 1, .begin = price_op, .end = price_end };
    SHERD_TRY(dry_init(&k->dry, &k->plan, &k->probe));
    k->layers = mem_zalloc((size_t)spec->n_layers, sizeof(*k->layers));
    k->units = mem_zalloc((size_t)spec->n_units, sizeof(*k->units));
    k->slots = mem_zalloc((size_t)program->n_slots + 1, sizeof(*k->slots));
    k->partials = mem_zalloc((size_t)program->n_partials + 1, sizeof(*k->partials));
    if (!k->layers || !k->units || !k->slots || !k->partials)
        return SHERD_ENOMEM;
    for (int l = 0; l < spec->n_layers; l++)
        for (int i = 0; i < DRY_WORKS; i++)
            k->layers[l].seconds[i] = -1;
    for (int u = 0; u < spec->n_units; u++)
        k->units[u].partial = -1;
    return SHERD_OK;
}

static void finish(struct walk *k)
{
    mem_free(k->layers);
    mem_free(k->units);
    mem_free(k->slots);
    mem_free(k->partials);
    dry_finish(&k->dry);
    plan_finish(&k->plan);
}

static int check(const struct sherd_machine *m, const struct sherd_place *place)
{
    if (place->gpus < 1 || place->hosts < 1)
        return SHERD_FAIL(
            SHERD_EINVAL, "forecast: %d devices on each of %d hosts", place->gpus, place->hosts);
    if (place->hosts > 1 && m->link[SHERD_LINK_NETWORK][0].rate <= 0)
        return SHERD_FAIL(SHERD_ECONFIG,
            "the device file of %s has no 'network': measure one over several hosts (sherd bench --save), or "
            "plan for one node",
            m->name);
    if (place->gpus > 1 && m->link[SHERD_LINK_HOST][0].rate <= 0)
        return SHERD_FAIL(SHERD_ECONFIG,
            "the device file of %s has no 'node': measure it with two ranks or more (sherd bench --save), or "
            "plan for one device a node",
            m->name);
    return SHERD_OK;
}

int sherd_forecast_make(struct sherd_forecast *out, const struct sherd_config *config,
    const struct sherd_model *model, const struct sherd_machine *machine, const struct sherd_place *place)
{
    struct walk k = { .m = machine, .place = *place };
    int64_t accum = MAX(config->batch.accum, 1);
    double begin = 0;
    *out = (struct sherd_forecast){ 0 };
    SHERD_TRY(check(machine, place));
    SHERD_TRY(plan_init(&k.plan, config, model, machine->kind, place->gpus * place->hosts, place->hosts));
    int st = prepare(&k);
    for (int i = 0; i < STEPS && st == SHERD_OK; i++) {
        begin = k.compute;
        k.sum = (struct sherd_forecast){ 0 };
        st = walk_step(&k, accum);
    }
    if (st == SHERD_OK) {
        double tokens = (double)(config->batch.micro * accum * config->batch.seq);
        *out = k.sum;
        out->step = k.compute - begin;
        out->flops = tokens * model_flops(model, config->batch.seq) / out->step;
        out->tokens_per_second = tokens * place->gpus * place->hosts / out->step;
    }
    finish(&k);
    return st;
}
