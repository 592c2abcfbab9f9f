/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Building, checking and printing the step program: see shard/program.h.
 */
#include "shard/program.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "base/sum.h"

static const char *const op_text[] = {
#define XX(name, text, what) text,
    PROGRAM_OPS(XX)
#undef XX
};
static const char op_what[] = {
#define XX(name, text, what) what,
    PROGRAM_OPS(XX)
#undef XX
};
static const char *const list_text[] = {
#define XX(name, text) text,
    PROGRAM_LISTS(XX)
#undef XX
};

/* One computation of the micro-batch: a layer, forward or backward. */
struct use {
    enum program_op op;
    int layer, unit;
    int reads; /* its unit's weights */
    int again;
};

/* Slots in the making: which unit each holds now (-1 none) and the most elements it ever held. */
struct ring {
    int *holds;
    int64_t *elems;
    int n, cap;
};

struct builder {
    const struct program_desc *desc;
    struct shard_program *program;
    struct use *uses;
    int n_uses;
    struct ring slots, partials;
    int *slot_of, *partial_of; /* of each unit, -1 none */
    int cooling; /* partial slot whose reduction may still run beside the next backward, -1 none */
};

static int64_t trained(const struct builder *b, int unit)
{
    return b->desc->layout->units[unit].elems[SHARD_TRAINED];
}

static int64_t whole(const struct builder *b, int unit)
{
    return trained(b, unit) + b->desc->layout->units[unit].elems[SHARD_FROZEN];
}

static int emit(struct builder *b, enum program_list list, enum program_op op, int index, int slot)
{
    struct program_code *code = &b->program->list[list];
    SHERD_TRY(mem_grow(&code->at, &code->cap, code->n + 1, sizeof(*code->at)));
    code->at[code->n++] = (struct program_instr){ op, index, slot };
    return SHERD_OK;
}

/* A free slot that grows least; a new one if all are taken. */
static void ring_take(struct ring *ring, int *slot, int unit, int64_t elems)
{
    int best = -1;
    for (int i = 0; i < ring->n; i++)
        if (ring->holds[i] < 0 &&
            (best < 0 || MAX(elems - ring->elems[i], 0) < MAX(elems - ring->elems[best], 0)))
            best = i;
    if (best < 0) {
        assert(ring->n < ring->cap);
        best = ring->n++;
        ring->elems[best] = 0;
    }
    ring->holds[best] = unit;
    ring->elems[best] = MAX(ring->elems[best], elems);
    *slot = best;
}

static int gather_ahead(struct builder *b, enum program_list list, int i, int n_uses)
{
    int last = MIN(i + b->desc->prefetch, n_uses - 1);
    for (int j = i; j <= last; j++) {
        int u = b->uses[j].unit;
        if (b->slot_of[u] >= 0 || !b->uses[j].reads)
            continue;
        ring_take(&b->slots, &b->slot_of[u], u, whole(b, u));
        SHERD_TRY(emit(b, list, PROGRAM_GATHER, u, b->slot_of[u]));
    }
    return SHERD_OK;
}

static int release_after(struct builder *b, enum program_list list, int i, int n_uses)
{
    int u = b->uses[i].unit, keep = MAX(1, b->desc->prefetch);
    int slot = b->slot_of[u];
    if (slot < 0)
        return SHERD_OK;
    for (int j = i + 1; j < n_uses && j <= i + keep; j++)
        if (b->uses[j].unit == u && b->uses[j].reads)
            return SHERD_OK;
    b->slots.holds[slot] = -1;
    b->slot_of[u] = -1;
    return emit(b, list, PROGRAM_RELEASE, u, slot);
}

/* The partial of a unit has been sent off: its slot is free again only after the next one was. */
static void partial_cool(struct builder *b, int unit)
{
    if (b->cooling >= 0)
        b->partials.holds[b->cooling] = -1;
    b->cooling = b->partial_of[unit];
    b->partial_of[unit] = -1;
}

/* Whether use i is the first (step -1) or last (step 1) backward of its unit. */
static int is_edge_backward(const struct builder *b, int i, int step)
{
    for (int j = i + step; j >= 0 && j < b->n_uses; j += step)
        if (b->uses[j].op == PROGRAM_BACKWARD && b->uses[j].unit == b->uses[i].unit)
            return 0;
    return 1;
}

/* One micro-batch; first and last say where in the step it stands. */
static int build_micro(struct builder *b, enum program_list list, int first, int last, int n_uses)
{
    const struct shard_stage *stage = b->desc->stage;
    int sharded_grad = stage->grad == SHARD_SHARDED;
    for (int i = 0; i < n_uses; i++) {
        const struct use *use = &b->uses[i];
        int u = use->unit, grad = use->op == PROGRAM_BACKWARD && trained(b, u) > 0;
        if (stage->param == SHARD_SHARDED)
            SHERD_TRY(gather_ahead(b, list, i, n_uses));
        if (grad && is_edge_backward(b, i, -1) && (sharded_grad || first)) {
            if (sharded_grad)
                ring_take(&b->partials, &b->partial_of[u], u, trained(b, u));
            SHERD_TRY(emit(b, list, PROGRAM_ZERO, u, b->partial_of[u]));
        }
        if (use->again)
            SHERD_TRY(emit(b, list, PROGRAM_AGAIN, use->layer, -1));
        SHERD_TRY(emit(b, list, use->op, use->layer, -1));
        if (stage->param == SHARD_SHARDED)
            SHERD_TRY(release_after(b, list, i, n_uses));
        if (grad && is_edge_backward(b, i, 1) && (sharded_grad || last)) {
            SHERD_TRY(emit(b, list, PROGRAM_REDUCE, u, b->partial_of[u]));
            if (sharded_grad)
                partial_cool(b, u);
        }
    }
    if (b->cooling >= 0)
        b->partials.holds[b->cooling] = -1;
    b->cooling = -1;
    return SHERD_OK;
}

/* Whether the layer of use i is the first in the model to use its unit. */
static int is_first_use(const struct builder *b, int i)
{
    for (int j = 0; j < i; j++)
        if (b->uses[j].unit == b->uses[i].unit)
            return 0;
    return 1;
}

static int build_after(struct builder *b)
{
    SHERD_TRY(emit(b, PROGRAM_AFTER, PROGRAM_NORM, 0, -1));
    SHERD_TRY(emit(b, PROGRAM_AFTER, PROGRAM_CLIP, 0, -1));
    for (int i = 0; i < b->desc->n_layers; i++) {
        int u = b->uses[i].unit;
        if (!trained(b, u) || !is_first_use(b, i))
            continue;
        SHERD_TRY(emit(b, PROGRAM_UPDATES, PROGRAM_UPDATE, u, -1));
        if (b->desc->stage->publish)
            SHERD_TRY(emit(b, PROGRAM_UPDATES, PROGRAM_PUBLISH, u, -1));
    }
    return SHERD_OK;
}

static int runs_again(const struct program_desc *desc, int layer)
{
    return desc->flags && (desc->flags[layer] & PROGRAM_RUN_AGAIN) != 0;
}

/* Also when all that it reads is read by running forward again. */
static int backward_reads(const struct program_desc *desc, int layer)
{
    return !desc->flags || !(desc->flags[layer] & PROGRAM_UNREAD) || runs_again(desc, layer);
}

static int builder_init(struct builder *b, struct shard_program *program, const struct program_desc *desc)
{
    size_t units = (size_t)desc->layout->n_units, layers = (size_t)desc->n_layers;
    *b = (struct builder){ .desc = desc, .program = program, .cooling = -1 };
    b->uses = mem_zalloc(2 * layers, sizeof(*b->uses));
    b->slots = (struct ring){ mem_zalloc(units + 1, sizeof(int)), mem_zalloc(units + 1, sizeof(int64_t)), 0,
        (int)units + 1 };
    b->partials = (struct ring){ mem_zalloc(units + 1, sizeof(int)), mem_zalloc(units + 1, sizeof(int64_t)),
        0, (int)units + 1 };
    b->slot_of = mem_zalloc(units, sizeof(int));
    b->partial_of = mem_zalloc(units, sizeof(int));
    program->slot_elems = b->slots.elems;
    program->partial_elems = b->partials.elems;
    if (!b->uses || !b->slots.holds || !b->slots.elems || !b->partials.holds || !b->partials.elems ||
        !b->slot_of || !b->partial_of)
        return SHERD_ENOMEM;
    for (size_t i = 0; i <= units; i++)
        b->slots.holds[i] = b->partials.holds[i] = -1;
    for (size_t i = 0; i < units; i++)
        b->slot_of[i] = b->partial_of[i] = -1;
    program->first_trained = desc->n_layers;
    for (int l = desc->n_layers - 1; l >= 0; l--)
        if (trained(b, desc->layers[l].unit))
            program->first_trained = l;
    for (int l = 0; l < desc->n_layers; l++)
        b->uses[b->n_uses++] = (struct use){ PROGRAM_FORWARD, l, desc->layers[l].unit, 1, 0 };
    for (int l = desc->n_layers - 1; l >= program->first_trained; l--)
        b->uses[b->n_uses++] = (struct use){ PROGRAM_BACKWARD, l, desc->layers[l].unit,
            backward_reads(desc, l), runs_again(desc, l) };
    return SHERD_OK;
}

int program_build(struct shard_program *program, const struct program_desc *desc)
{
    struct builder b;
    *program = (struct shard_program){ 0 };
    int st = builder_init(&b, program, desc);
    if (st != SHERD_OK)
        goto out;
    SHERD_TRY_OUT(build_micro(&b, PROGRAM_ONLY, 1, 1, b.n_uses));
    SHERD_TRY_OUT(build_micro(&b, PROGRAM_FIRST, 1, 0, b.n_uses));
    SHERD_TRY_OUT(build_micro(&b, PROGRAM_MIDDLE, 0, 0, b.n_uses));
    SHERD_TRY_OUT(build_micro(&b, PROGRAM_LAST, 0, 1, b.n_uses));
    SHERD_TRY_OUT(build_micro(&b, PROGRAM_EVAL, 0, 0, desc->n_layers));
    SHERD_TRY_OUT(build_after(&b));
    program->n_slots = b.slots.n;
    program->n_partials = b.partials.n;
out:
    mem_free(b.uses);
    mem_free(b.slots.holds);
    mem_free(b.partials.holds);
    mem_free(b.slot_of);
    mem_free(b.partial_of);
    if (st != SHERD_OK)
        program_finish(program);
    return st;
}

void program_finish(struct shard_program *program)
{
    if (!program)
        return;
    for (int i = 0; i < PROGRAM_N_LISTS; i++)
        mem_free(program->list[i].at);
    mem_free(program->slot_elems);
    mem_free(program->partial_elems);
    *program = (struct shard_program){ 0 };
}

/* What the check knows of each unit while it walks a list. */
struct walk {
    const struct shard_program *program;
    const struct program_desc *desc;
    int *slot, *partial, *reduced; /* of each unit */
    int *slot_unit, *partial_unit; /* of each slot */
    int cooling;
};

static int wrong(const struct walk *w, enum program_list list, int at, const char *why)
{
    struct text t = { 0 };
    program_place(&t, w->program, w->desc, list, at);
    int st = SHERD_BUG("step program: %s: %s", t.data ? t.data : "?", why);
    text_finish(&t);
    return st;
}

static int walk_instr(struct walk *w, enum program_list list, int at)
{
    const struct program_instr *in = &w->program->list[list].at[at];
    const struct shard_stage *stage = w->desc->stage;
    int sharded = stage->param == SHARD_SHARDED, grad_sharded = stage->grad == SHARD_SHARDED;
    int unit = program_is_layer(in->op) ? w->desc->layers[in->index].unit : in->index;
    switch (in->op) {
    case PROGRAM_GATHER:
        if (!sharded || w->slot[unit] >= 0 || w->slot_unit[in->slot] >= 0)
            return wrong(w, list, at, "gathers a resident unit or into a taken slot");
        w->slot[unit] = in->slot;
        w->slot_unit[in->slot] = unit;
        return SHERD_OK;
    case PROGRAM_RELEASE:
        if (w->slot[unit] != in->slot || in->slot < 0)
            return wrong(w, list, at, "releases a unit that is not resident there");
        w->slot[unit] = w->slot_unit[in->slot] = -1;
        return SHERD_OK;
    case PROGRAM_FORWARD:
    case PROGRAM_AGAIN:
        return sharded && w->slot[unit] < 0 ? wrong(w, list, at, "its unit is not whole") : SHERD_OK;
    case PROGRAM_BACKWARD:
        if (sharded && w->slot[unit] < 0 && backward_reads(w->desc, in->index))
            return wrong(w, list, at, "its unit is not whole");
        if (runs_again(w->desc, in->index) !=
            (at > 0 && in[-1].op == PROGRAM_AGAIN && in[-1].index == in->index))
            return wrong(w, list, at, "its forward is run again, or not, against the plan");
        if (grad_sharded && w->desc->layout->units[unit].elems[SHARD_TRAINED] && w->partial[unit] < 0)
            return wrong(w, list, at, "its partial gradient was not zeroed");
        return w->reduced[unit] ? wrong(w, list, at, "its gradient is reduced already") : SHERD_OK;
    case PROGRAM_ZERO:
        if (!grad_sharded)
            return SHERD_OK;
        if (w->partial[unit] >= 0 || w->partial_unit[in->slot] >= 0 || in->slot == w->cooling)
            return wrong(w, list, at, "zeroes a partial slot in use");
        w->partial[unit] = in->slot;
        w->partial_unit[in->slot] = unit;
        return SHERD_OK;
    case PROGRAM_REDUCE:
        if (w->reduced[unit]++)
            return wrong(w, list, at, "reduces twice");
        if (grad_sharded && (w->partial[unit] < 0 || w->partial[unit] != in->slot))
            return wrong(w, list, at, "reduces a partial gradient that is not there");
        if (grad_sharded) {
            w->partial_unit[w->partial[unit]] = -1;
            w->partial[unit] = -1;
            w->cooling = in->slot;
        }
        return SHERD_OK;
    default:
        return SHERD_OK;
    }
}

static int walk_list(struct walk *w, enum program_list list)
{
    const struct program_code *code = &w->program->list[list];
    int units = w->desc->layout->n_units, grad_sharded = w->desc->stage->grad == SHARD_SHARDED;
    int due = list != PROGRAM_EVAL && list != PROGRAM_AFTER && list != PROGRAM_UPDATES &&
              (grad_sharded || list == PROGRAM_LAST || list == PROGRAM_ONLY);
    for (int u = 0; u < units; u++) {
        w->slot[u] = w->partial[u] = w->slot_unit[u] = w->partial_unit[u] = -1;
        w->reduced[u] = 0;
    }
    w->slot_unit[units] = w->partial_unit[units] = w->cooling = -1;
    for (int i = 0; i < code->n; i++)
        SHERD_TRY(walk_instr(w, list, i));
    for (int u = 0; u < units; u++) {
        int want = 0;
        for (int l = w->program->first_trained; l < w->desc->n_layers; l++)
            want |= w->desc->layers[l].unit == u;
        want = want && due && w->desc->layout->units[u].elems[SHARD_TRAINED] > 0;
        if (w->slot[u] >= 0 || w->partial[u] >= 0 || w->reduced[u] != want)
            return SHERD_BUG("step program: list %s leaves unit %s resident, unreduced or reduced too often",
                list_text[list], w->desc->layout->units[u].name);
    }
    return SHERD_OK;
}

int program_check(const struct shard_program *program, const struct program_desc *desc)
{
    size_t n = (size_t)desc->layout->n_units + 1;
    int *mem = mem_zalloc(5 * n, sizeof(int));
    if (!mem)
        return SHERD_ENOMEM;
    struct walk w = { program, desc, mem, mem + n, mem + 2 * n, mem + 3 * n, mem + 4 * n, -1 };
    int st = SHERD_OK;
    for (int l = 0; l < PROGRAM_N_LISTS && st == SHERD_OK; l++)
        st = walk_list(&w, (enum program_list)l);
    mem_free(mem);
    return st;
}

int program_is_layer(enum program_op op)
{
    return op_what[op] == 'l';
}

const char *program_op_name(enum program_op op)
{
    return op_text[op];
}

void program_instr_name(struct text *out, const struct program_instr *in, const struct program_desc *desc)
{
    text_add(out, "%s", op_text[in->op]);
    if (op_what[in->op] == 'u')
        text_add(out, " %s", desc->layout->units[in->index].name);
    else if (program_is_layer(in->op))
        text_add(out, " %s", desc->layers[in->index].name);
}

void program_print(struct text *out, const struct shard_program *program, const struct program_desc *desc)
{
    for (int l = 0; l < PROGRAM_N_LISTS; l++) {
        const struct program_code *code = &program->list[l];
        text_add(out, "%s:\n", list_text[l]);
        size_t line = out->len;
        for (int i = 0; i < code->n; i++) {
            if (i > 0)
                text_add(out, "%s", out->len - line > 90 ? " |\n" : " | ");
            if (i > 0 && out->len > 0 && out->data[out->len - 1] == '\n')
                line = out->len;
            if (out->len == line)
                text_add(out, "  ");
            program_instr_name(out, &code->at[i], desc);
        }
        text_add(out, "\n");
    }
}

void program_place(struct text *out, const struct shard_program *program, const struct program_desc *desc,
    enum program_list list, int at)
{
    text_add(out, "%s:%d ", list_text[list], at);
    if (at < program->list[list].n)
        program_instr_name(out, &program->list[list].at[at], desc);
    else
        text_add(out, "end");
}

uint64_t program_hash(const struct shard_program *program)
{
    uint64_t hash = 0;
    for (int l = 0; l < PROGRAM_N_LISTS; l++)
        hash =
            sum_hash64(program->list[l].at, (size_t)program->list[l].n * sizeof(struct program_instr), hash);
    return hash;
}
