/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * DeepSpeed's settings: what waits until all others are known, those of the command line included. What there
 * is to decide has been left in the config by runtime/deepspeed.c.
 */
#include <math.h>
#include <stdio.h>

#include <sherd/engine.h>

#include "model/model.h"
#include "runtime/foreign.h"
#include "runtime/keys.h"

#define AHEAD_MOST 2 /* units: more hide nothing, and cost the memory that stage 3 saves */

/* What the command line says holds. */
static int late_put(struct sherd_config *config, const struct config_place *p, const char *ours, double value)
{
    const struct key *key = key_find(ours);
    char s[40];
    if (text_starts(config_source_of(config, key)->where, "--"))
        return SHERD_OK;
    snprintf(s, sizeof(s), "%.17g", value);
    return foreign_agree(
        config, key, &(struct yaml_node){ .kind = YAML_VALUE, .value = s }, p->where, p->theirs);
}

/* As many of the largest unit as the elements hold. */
static int settle_ahead(struct sherd_config *c, const struct config_place *p)
{
    struct sherd_model *model;
    int64_t largest = 0;
    if (!p->where || config_source_of(c, key_find("shard.prefetch"))->where != CONFIG_DEFAULT)
        return SHERD_OK;
    int st = p->value > 0 ? sherd_config_model(&model, c) : SHERD_OK;
    if (st == SHERD_ENOMEM)
        return st;
    if (st != SHERD_OK) /* no model can be made of these settings; who makes one is told */
        return SHERD_OK;
    for (int u = 0; p->value > 0 && u < sherd_model_spec_of(model)->n_units; u++) {
        const struct sherd_unit *unit = &sherd_model_spec_of(model)->units[u];
        int64_t elems = 0;
        for (int i = 0; i < unit->n_params; i++)
            elems += model_param_elems(&unit->params[i]);
        largest = MAX(largest, elems);
    }
    if (p->value > 0)
        sherd_model_destroy(model);
    double units = largest > 0 ? floor(p->value / (double)largest) : 0;
    return late_put(c, p, "shard.prefetch", p->value <= 0 ? 0 : MIN(MAX(units, 1), AHEAD_MOST));
}

/* The rate that the rise begins with; a linear fall ends there, too. */
static int settle_lowest(struct sherd_config *c, const struct config_place *p)
{
    if (!p->where)
        return SHERD_OK;
    if (p->value > c->optim.lr)
        return SHERD_FAIL(SHERD_ECONFIG,
            "%s: %s: %g is above the highest rate %g (optim.lr); make it smaller", p->where, p->theirs,
            p->value, c->optim.lr);
    double part = c->optim.lr > 0 ? p->value / c->optim.lr : 0;
    SHERD_TRY(late_put(c, p, "schedule.warmup_from", part));
    return c->schedule.kind == SHERD_LR_LINEAR ? late_put(c, p, "schedule.min_lr", part) : SHERD_OK;
}

static int settle_decay(const struct sherd_config *c, const struct config_place *p)
{
    if (!p->where || c->optim.weight_decay <= 0)
        return SHERD_OK;
    return SHERD_FAIL(SHERD_ECONFIG,
        "%s: %s: adds weight decay to the gradient; here it is taken from the weights: set weight_decay to 0, or "
        "adam_w_mode to true",
        p->where, p->theirs);
}

/* DeepSpeed does not guess a batch, and neither does who reads its file. */
static int settle_batch(const struct sherd_config *c)
{
    const struct config_origin *origin = c->origin;
    static const char *const keys[] = { "batch.global", "batch.micro" };
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        const struct config_source *from = config_source_of(c, key_find(keys[i]));
        if (from->asked || from->where != CONFIG_DEFAULT)
            return SHERD_OK;
    }
    return SHERD_FAIL(SHERD_ECONFIG,
        "%s: neither train_batch_size nor train_micro_batch_size_per_gpu is given; give one or both, or "
        "--set batch.micro=N",
        origin->name);
}

int deepspeed_settle(struct sherd_config *c)
{
    struct config_origin *origin = c->origin;
    if (!origin)
        return SHERD_OK;
    SHERD_TRY(foreign_keep(origin, settle_lowest(c, &origin->late.lowest)));
    SHERD_TRY(foreign_keep(origin, settle_decay(c, &origin->late.coupled)));
    SHERD_TRY(foreign_keep(origin, settle_ahead(c, &origin->late.ahead)));
    SHERD_TRY(foreign_keep(origin, origin->late.needs_batch ? settle_batch(c) : SHERD_OK));
    return foreign_tell(origin);
}
