/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Planning without a device: see runtime/plan.h.
 */
#include "runtime/plan.h"

#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "model/model.h"
#include "runtime/config.h"
#include "shard/store.h"

#define REGION_ALIGN 256

_Static_assert(OPTIM_MAX_STATES <= STORE_MAX_STATES, "the store has room for the states of every optimizer");

static size_t aligned(size_t bytes)
{
    return (size_t)round_up((int64_t)bytes, REGION_ALIGN);
}

static int size_layer(struct plan *p, int l, int64_t width)
{
    const struct sherd_layer *layer = &p->spec->layers[l];
    struct plan_layer *pl = &p->layers[l];
    pl->in_width = width;
    struct sherd_layer_plan ask = { { p->batch, p->seq, width }, p->type, p->recompute, p->device };
    SHERD_TRY(model_layer_sizes(layer, &ask, &pl->sizes));
    if ((l == p->spec->n_layers - 1) != (pl->sizes.out_width == 0))
        return SHERD_FAIL(SHERD_EINVAL,
            "layer %s: out_width is %lld; it must be positive for every layer but the last, and 0 for "
            "the last",
            layer->name, (long long)pl->sizes.out_width);
    return SHERD_OK;
}

/* Where whole layers run again they take turns in one place. Nothing has been there since forward when the
 * last of them starts backward, so that one need not run again. The last layer has a place of its own: its
 * backward stands directly after its forward. */
static void plan_saved(struct plan *p)
{
    struct sherd_memory *m = &p->memory;
    int last = p->spec->n_layers - 1, newest = -1;
    for (int l = 0; l <= last; l++) {
        struct plan_layer *pl = &p->layers[l];
        size_t bytes = aligned(pl->sizes.saved_bytes);
        if (p->recompute == SHERD_RECOMPUTE_BLOCK && l < last) {
            m->saved = MAX(m->saved, bytes);
            if (bytes == 0)
                continue;
            if (newest >= 0)
                p->flags[newest] |= PROGRAM_RUN_AGAIN;
            newest = l;
        } else {
            pl->saved = m->saved;
            m->saved += bytes;
        }
    }
}

/* Where nothing is trained there is no backward: a layer reads what the one before it wrote and nothing is
 * kept, so two places for that take turns, and all layers save in one. */
static void plan_forward_only(struct plan *p, size_t widest)
{
    struct sherd_memory *m = &p->memory;
    m->activation = 2 * widest;
    for (int l = 0; l < p->spec->n_layers; l++) {
        p->layers[l].y = (size_t)(l % 2) * widest;
        m->saved = MAX(m->saved, aligned(p->layers[l].sizes.saved_bytes));
    }
}

static int plan_activations(struct plan *p)
{
    size_t e = sherd_dtype_bytes(p->type), widest = 0, rows = (size_t)(p->batch * p->seq);
    struct sherd_memory *m = &p->memory;
    int64_t width = 0;
    p->layers = mem_zalloc((size_t)p->spec->n_layers, sizeof(*p->layers));
    p->flags = mem_zalloc((size_t)p->spec->n_layers, sizeof(*p->flags));
    if (!p->layers || !p->flags)
        return SHERD_ENOMEM;
    for (int l = 0; l < p->spec->n_layers; l++) {
        struct plan_layer *pl = &p->layers[l];
        SHERD_TRY(size_layer(p, l, width));
        width = pl->sizes.out_width;
        pl->y = m->activation;
        m->activation += aligned(rows * (size_t)width * e);
        m->scratch = MAX(m->scratch, aligned(pl->sizes.scratch_bytes));
        widest = MAX(widest, (size_t)width);
        if (p->spec->layers[l].ops->weightless_backward)
            p->flags[l] |= PROGRAM_UNREAD;
    }
    if (p->layout.trained == 0) {
        plan_forward_only(p, aligned(rows * widest * e));
        return SHERD_OK;
    }
    for (int i = 0; i < 2; i++) {
        p->gradient[i] = m->activation;
        m->activation += aligned(rows * widest * e);
    }
    plan_saved(p);
    return SHERD_OK;
}

/* With one micro-batch a step the gradient at rest of a block needs no place of its own: it is there from the
 * block's backward, which is the last to read what the block saved, until the update, and the next forward of
 * the block comes after its weights were updated. So it rests in what was saved. */
static int plan_lending(struct plan *p)
{
    p->lent = mem_zalloc((size_t)p->spec->n_units, sizeof(*p->lent));
    p->lender = mem_zalloc((size_t)p->spec->n_units, sizeof(*p->lender));
    if (!p->lent || !p->lender)
        return SHERD_ENOMEM;
    if (p->accum != 1 || p->stage->grad != SHARD_SHARDED || p->recompute == SHERD_RECOMPUTE_BLOCK)
        return SHERD_OK;
    for (int u = 0; u < p->spec->n_units; u++) {
        size_t bytes = sizeof(float) * (size_t)layout_slice(&p->layout, u, SHARD_TRAINED);
        int users = 0;
        for (int l = 0; l < p->spec->n_layers; l++)
            if (p->spec->layers[l].unit == u) {
                users++;
                p->lender[u] = l;
            }
        p->lent[u] = bytes > 0 && users == 1 && p->layers[p->lender[u]].sizes.saved_bytes >= bytes;
    }
    return SHERD_OK;
}

/* The square sum of a slice needs work space as well. */
static void plan_scratch(struct plan *p)
{
    for (int u = 0; u < p->layout.n_units; u++) {
        struct sherd_square_sum a = { .n = layout_slice(&p->layout, u, SHARD_TRAINED), .type = SHERD_F32 };
        p->square_scratch = MAX(p->square_scratch, sherd_square_sum_scratch(&a));
    }
    p->memory.scratch = MAX(p->memory.scratch, aligned(p->square_scratch));
}

int plan_check_trained(const struct plan *p)
{
    if (p->layout.trained > 0)
        return SHERD_OK;
    return SHERD_FAIL(SHERD_ECONFIG, "every parameter is frozen, there is nothing to train; "
                                     "let model.freeze leave at least one tensor out");
}

/* GPUs of one host can copy their gradients to each other; whether they do, their communicator says later. */
static int may_land(const struct sherd_config *c, const char *device, int hosts)
{
    return c->shard.reduce == SHERD_REDUCE_BY_COPY && hosts == 1 && strcmp(device, "cuda") == 0;
}

int plan_init(struct plan *p, const struct sherd_config *c, const struct sherd_model *model,
    const char *device, int world, int hosts)
{
    *p = (struct plan){ 0 };
    SHERD_TRY(config_check_filled(c));
    *p = (struct plan){ .spec = sherd_model_spec_of(model),
        .stage = stage_find((int)c->shard.stage),
        .optim = optim_find(c->optim.name),
        .type = c->dtype.param,
        .recompute = c->train.recompute,
        .device = device,
        .batch = c->batch.micro,
        .accum = c->batch.accum,
        .seq = c->batch.seq };
    if (p->batch < 1 || p->seq < 1)
        return SHERD_FAIL(SHERD_ECONFIG,
            "batch.micro and batch.seq must be at least 1 (they are %lld and %lld)", (long long)p->batch,
            (long long)p->seq);
    int st = layout_init(&p->layout, p->spec, world);
    if (st != SHERD_OK)
        return st;
    SHERD_TRY_OUT(plan_activations(p));
    SHERD_TRY_OUT(plan_lending(p));
    p->program_desc = (struct program_desc){ p->stage, &p->layout, p->spec->layers, p->spec->n_layers,
        (int)c->shard.prefetch, p->flags };
    SHERD_TRY_OUT(program_build(&p->program, &p->program_desc));
    SHERD_TRY_OUT(program_check(&p->program, &p->program_desc));
    p->memory_desc = (struct memory_desc){ .stage = p->stage,
        .layout = &p->layout,
        .program = &p->program,
        .param = c->dtype.param,
        .reduce = c->dtype.reduce,
        .n_states = p->optim->n_states,
        .state = c->dtype.state,
        .split = c->dtype.master == SHERD_MASTER_SPLIT,
        .lent = p->lent,
        .landing = may_land(c, device, hosts) };
    memory_state(&p->memory, &p->memory_desc);
    plan_scratch(p);
    p->scalar_bytes = aligned((SCALAR_ALL + 4 * (size_t)world) * sizeof(double));
    p->token_bytes = aligned((size_t)(p->batch * p->seq) * sizeof(int32_t));
    p->memory.batch = p->scalar_bytes + 2 * PLAN_BATCH_SLOTS * p->token_bytes;
out:
    if (st != SHERD_OK)
        plan_finish(p);
    return st;
}

void plan_finish(struct plan *p)
{
    if (!p)
        return;
    layout_finish(&p->layout);
    program_finish(&p->program);
    mem_free(p->layers);
    mem_free(p->flags);
    mem_free(p->lent);
    mem_free(p->lender);
    *p = (struct plan){ 0 };
}

int sherd_config_model(struct sherd_model **out, const struct sherd_config *c)
{
#define SAME(name) .name = c->model.name,
#define REAL(name) .name = (float)c->model.name,
    struct sherd_model_config m = { .any_order = !c->run.deterministic, CONFIG_MODEL(SAME, REAL) };
#undef SAME
#undef REAL
    const struct config_origin *origin = c->origin;
    SHERD_TRY(sherd_model_build(out, &m));
    int st = SHERD_OK;
    if (origin && origin->from_json)
        SHERD_TRY_OUT(model_set_export(*out, origin->from_json));
    for (int i = 0; i < c->model.freeze.n; i++)
        SHERD_TRY_OUT(model_freeze(*out, c->model.freeze.items[i]));
    return SHERD_OK;
out:
    sherd_model_destroy(*out);
    *out = NULL;
    return st;
}

/* Floats of what is trained, and what is frozen as it is: the slices of all units. */
static uint64_t checkpoint_bytes(const struct plan *p, const struct sherd_config *c)
{
    int states = c->save.what == SHERD_SAVE_WEIGHTS ? 0 : p->optim->n_states;
    uint64_t bytes = 0;
    for (int u = 0; u < p->layout.n_units && c->save.what != SHERD_SAVE_NOTHING; u++)
        bytes +=
            sizeof(float) * (uint64_t)(1 + states) * (uint64_t)layout_slice(&p->layout, u, SHARD_TRAINED) +
            sherd_dtype_bytes(p->type) * (uint64_t)layout_slice(&p->layout, u, SHARD_FROZEN);
    return bytes;
}

int sherd_plan_make(struct sherd_plan *out, const struct sherd_config *config,
    const struct sherd_model *model, int world, int hosts)
{
    struct plan p;
    struct text program = { 0 };
    *out = (struct sherd_plan){ 0 };
    if (!config || !model)
        return SHERD_FAIL(SHERD_EINVAL, "sherd_plan_make: the %s is NULL", config ? "model" : "config");
    if (hosts < 1)
        return SHERD_FAIL(SHERD_EINVAL, "sherd_plan_make: %d hosts", hosts);
    SHERD_TRY(plan_init(&p, config, model, config->run.device, world, hosts));
    int st = plan_check_trained(&p);
    if (st != SHERD_OK) {
        plan_finish(&p);
        return st;
    }
    out->memory = p.memory;
    memory_sent(out->sent, &p.memory_desc, (int)MAX(config->batch.accum, 1));
    out->checkpoint = checkpoint_bytes(&p, config);
    out->params = p.layout.params;
    out->trained = p.layout.trained;
    out->layers = p.spec->n_layers;
    out->units = p.spec->n_units;
    out->flops = model_flops(model, config->batch.seq);
    program_print(&program, &p.program, &p.program_desc);
    st = text_take(&program, &out->program);
    plan_finish(&p);
    return st;
}

void sherd_plan_free(struct sherd_plan *plan)
{
    if (!plan)
        return;
    mem_free(plan->program);
    *plan = (struct sherd_plan){ 0 };
}
