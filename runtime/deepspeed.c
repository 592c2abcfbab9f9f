/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * DeepSpeed's settings: what follows from several of its keys, the optimizer, the scheduler and the number
 * formats. The table of its keys is in runtime/deepspeed_keys.c, what waits for all settings in
 * runtime/deepspeed_late.c, the way through a file in runtime/foreign.c. Defaults are those of DeepSpeed's
 * code in 2026.
 */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "runtime/foreign.h"
#include "runtime/keys.h"

/* Position of the item's text among the words, whatever its case; -1 if it is none of them. */
static int word_of(const struct foreign_item *item, const char *const *words, int n)
{
    for (int i = 0; i < n; i++)
        if (strcasecmp(item->node->value, words[i]) == 0)
            return i;
    return -1;
}

/* `path` as our key: its value, a question, or their default. */
static int take(struct foreign *f, const char *path, const char *ours, const char *initial)
{
    const struct foreign_item *item = foreign_get(f, path);
    if (!item)
        return initial ? foreign_default(f, ours, initial) : SHERD_OK;
    return foreign_is_auto(item) ? foreign_ask(f, item, ours) : foreign_put(f, item, ours, item->node->value);
}

/* The blocks that have a type: those that can be had, then those that DeepSpeed has besides. */
static const struct kind {
    const char *block;
    int possible, n;
    const char *types[16];
    const char *what, *ways;
} kinds[] = {
    { "optimizer", 3, 13,
        { "adam", "adamw", "sgd", "adagrad", "lamb", "lion", "muon", "onebitadam", "zerooneadam",
            "onebitlamb", "muadam", "muadamw", "musgd" },
        "an optimizer", "AdamW, Adam and SGD" },
    { "scheduler", 3, 5, { "WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle", "LRRangeTest" },
        "a schedule", "WarmupLR, WarmupDecayLR and WarmupCosineLR" },
};

/* A block without a type that can be had. */
static int check_kind(const struct foreign *f, const struct kind *kind, const struct yaml_node *block)
{
    const struct yaml_node *type = yaml_member(block, "type");
    char path[32];
    snprintf(path, sizeof(path), "%s%s", kind->block, type ? ".type" : "");
    struct foreign_item item = { .path = path, .node = type ? type : block };
    if (!type || yaml_is_null(type))
        return FOREIGN_FAIL(f, &item, "has no type; %s are possible", kind->ways);
    if (type->kind != YAML_VALUE)
        return SHERD_OK; /* the walk tells */
    int which = word_of(&item, kind->types, kind->n);
    const char *near = which < 0 ? text_nearest(type->value, kind->types, kind->possible) : NULL;
    if (which < 0 || which >= kind->possible)
        return FOREIGN_FAIL(f, &item, "%s is not %s of sherd's%s%s%s; %s are possible", type->value,
            kind->what, near ? ", did you mean " : "", near ? near : "", near ? "?" : "", kind->ways);
    return SHERD_OK;
}

/* Types first: parameters of another optimizer would be told as unknown otherwise. */
int deepspeed_first(struct foreign *f, const struct yaml_node *root)
{
    for (size_t k = 0; k < ARRAY_LEN(kinds); k++) {
        const struct yaml_node *block = yaml_member(root, kinds[k].block);
        if (!block || block->kind != YAML_MAP)
            continue; /* the walk tells */
        int st = check_kind(f, &kinds[k], block);
        if (st == SHERD_ECONFIG)
            f->told[f->n_told++] = block;
        FOREIGN_TRY(f, st);
    }
    return SHERD_OK;
}

/* --- optimizer --- */

/* Parameters that only the other of the two takes. */
static int refuse_params(struct foreign *f, const char *type, const char *const *names, int n)
{
    for (int i = 0; i < n; i++) {
        char path[FOREIGN_PATH_BYTES];
        snprintf(path, sizeof(path), "optimizer.params.%s", names[i]);
        const struct foreign_item *item = foreign_get(f, path);
        if (item)
            FOREIGN_TRY(f, FOREIGN_FAIL(f, item, "%s has no such parameter; remove it", type));
    }
    return SHERD_OK;
}

static int take_betas(struct foreign *f)
{
    const struct foreign_item *item = foreign_get(f, "optimizer.params.betas");
    if (!item) {
        SHERD_TRY(foreign_default(f, "optim.beta1", "0.9"));
        return foreign_default(f, "optim.beta2", "0.999");
    }
    if (foreign_is_auto(item)) {
        SHERD_TRY(foreign_ask(f, item, "optim.beta1"));
        return foreign_ask(f, item, "optim.beta2");
    }
    const struct yaml_node *first = item->node->first, *second = first ? first->next : NULL;
    if (!second || second->next)
        return FOREIGN_FAIL(f, item, "must be two numbers, as [0.9, 0.999]");
    FOREIGN_TRY(f, foreign_put(f, item, "optim.beta1", first->value));
    return foreign_put(f, item, "optim.beta2", second->value);
}

/* Adam with decay that is added to the gradient, which AdamW's is not. */
static int note_coupled(struct foreign *f, const struct foreign_item *item)
{
    f->origin->late.coupled = (struct config_place){ foreign_where(f, item), item->path, 0 };
    return f->origin->late.coupled.where ? SHERD_OK : SHERD_ENOMEM;
}

static int take_adam(struct foreign *f)
{
    static const char *const sgds[] = { "momentum", "dampening", "nesterov" };
    const struct foreign_item *mode = foreign_get(f, "optimizer.params.adam_w_mode");
    FOREIGN_TRY(f, refuse_params(f, "Adam", sgds, ARRAY_LEN(sgds)));
    FOREIGN_TRY(f, foreign_put(f, foreign_get(f, "optimizer.type"), "optim.name", "adamw"));
    FOREIGN_TRY(f, take_betas(f));
    FOREIGN_TRY(f, take(f, "optimizer.params.eps", "optim.eps", "1e-8"));
    return mode && !foreign_bool(mode) ? note_coupled(f, mode) : SHERD_OK;
}

static int take_sgd(struct foreign *f)
{
    static const char *const adams[] = { "betas", "eps", "torch_adam", "adam_w_mode", "amsgrad",
        "bias_correction" };
    const struct foreign_item *type = foreign_get(f, "optimizer.type");
    FOREIGN_TRY(f, refuse_params(f, "SGD", adams, ARRAY_LEN(adams)));
    FOREIGN_TRY(f, foreign_put(f, type, "optim.name", "sgd"));
    return take(f, "optimizer.params.momentum", "optim.momentum", "0");
}

static int take_optimizer(struct foreign *f)
{
    const struct foreign_item *type = foreign_get(f, "optimizer.type"), *decay;
    if (!type)
        return SHERD_OK;
    int which = word_of(type, kinds[0].types, kinds[0].possible);
    FOREIGN_TRY(f, which < 2 ? take_adam(f) : take_sgd(f));
    FOREIGN_TRY(f, take(f, "optimizer.params.weight_decay", "optim.weight_decay", "0"));
    decay = foreign_get(f, "optimizer.params.weight_decay");
    return decay ? foreign_remark(f, CONFIG_DIFFERENT, decay->path,
                       "norms and biases are not decayed, as in HF Trainer; DeepSpeed alone decays them too")
                 : SHERD_OK;
}

/* --- scheduler --- */

/* The rate at the top of the curve; a scheduler's own one holds over the optimizer's. */
static int take_rate(struct foreign *f, const char *top, const char *initial)
{
    const struct foreign_item *own = foreign_get(f, "optimizer.params.lr");
    const struct foreign_item *max = top ? foreign_get(f, top) : NULL;
    if (max && !foreign_is_auto(max)) {
        if (own)
            SHERD_TRY(foreign_remark(f, CONFIG_DIFFERENT, own->path,
                "the scheduler sets the rate to its warmup_max_lr, here as in DeepSpeed"));
        return foreign_put(f, max, "optim.lr", max->node->value);
    }
    if (max && !own)
        return foreign_ask(f, max, "optim.lr");
    if (max)
        SHERD_TRY(foreign_remark(f, CONFIG_CHOSEN, max->path, "optimizer.params.lr"));
    else if (initial) {
        if (own)
            SHERD_TRY(foreign_remark(f, CONFIG_DIFFERENT, own->path,
                "without a warmup_max_lr the scheduler sets the rate to %s, here as in DeepSpeed", initial));
        return foreign_default(f, "optim.lr", initial);
    }
    return foreign_get(f, "optimizer") ? take(f, "optimizer.params.lr", "optim.lr", "1e-3") : SHERD_OK;
}

/* Where the rise begins: a rate, which is a fraction once the top is known. */
static int take_lowest(struct foreign *f)
{
    const struct foreign_item *low = foreign_get(f, "scheduler.params.warmup_min_lr");
    if (!low)
        return foreign_default(f, "schedule.warmup_from", "0");
    if (foreign_is_auto(low))
        return foreign_ask(f, low, "schedule.warmup_from");
    if (foreign_real(low) < 0)
        return FOREIGN_FAIL(f, low, "must be 0 or above, not %s", low->node->value);
    f->origin->late.lowest = (struct config_place){ foreign_where(f, low), low->path, foreign_real(low) };
    return f->origin->late.lowest.where ? SHERD_OK : SHERD_ENOMEM;
}

static int take_warmup_steps(struct foreign *f)
{
    const struct foreign_item *steps = foreign_get(f, "scheduler.params.warmup_num_steps");
    const struct foreign_item *shape = foreign_get(f, "scheduler.params.warmup_type");
    static const char *const shapes[] = { "log", "linear" };
    if (steps && !foreign_is_auto(steps) && foreign_real(steps) < 0)
        FOREIGN_TRY(f, FOREIGN_FAIL(f, steps, "must be 0 or above, not %s", steps->node->value));
    else
        FOREIGN_TRY(f, take(f, "scheduler.params.warmup_num_steps", "schedule.warmup", "1000"));
    if (shape && word_of(shape, shapes, 2) < 0)
        return FOREIGN_FAIL(f, shape, "must be log or linear, not %s", shape->node->value);
    return shape ? foreign_put(f, shape, "schedule.warmup_shape", shapes[word_of(shape, shapes, 2)])
                 : foreign_default(f, "schedule.warmup_shape", "log");
}

/* Parameters of the other curves. */
static int check_curve(struct foreign *f, int which)
{
    static const struct {
        const char *path;
        unsigned curves; /* bits: WarmupLR, WarmupDecayLR, WarmupCosineLR */
    } params[] = { { "scheduler.params.warmup_min_lr", 3 }, { "scheduler.params.warmup_max_lr", 3 },
        { "scheduler.params.total_num_steps", 6 }, { "scheduler.params.warmup_min_ratio", 4 },
        { "scheduler.params.cos_min_ratio", 4 } };
    for (size_t i = 0; i < ARRAY_LEN(params); i++) {
        const struct foreign_item *item = foreign_get(f, params[i].path);
        if (item && !(params[i].curves >> which & 1))
            FOREIGN_TRY(f, FOREIGN_FAIL(f, item, "%s has no such parameter; remove it",
                               foreign_get(f, "scheduler.type")->node->value));
    }
    return SHERD_OK;
}

static int take_curve(struct foreign *f, const struct foreign_item *type, int which)
{
    static const char *const ours[] = { "constant", "linear", "cosine" };
    FOREIGN_TRY(f, check_curve(f, which));
    FOREIGN_TRY(f, foreign_put(f, type, "schedule.kind", ours[which]));
    SHERD_TRY(foreign_default(f, "schedule.count", "deepspeed"));
    FOREIGN_TRY(f, take_warmup_steps(f));
    if (which > 0) {
        const char *total = "scheduler.params.total_num_steps";
        if (!foreign_get(f, total) && !foreign_refused(f, total))
            FOREIGN_TRY(f, FOREIGN_FAIL(f, type, "needs total_num_steps; \"auto\" = the steps of the run"));
        FOREIGN_TRY(f, take(f, total, "schedule.steps", NULL));
    }
    if (which < 2) {
        FOREIGN_TRY(f, take_rate(f, "scheduler.params.warmup_max_lr", which == 1 ? "1e-3" : NULL));
        FOREIGN_TRY(f, take_lowest(f));
        return f->origin->late.lowest.where ? SHERD_OK : foreign_default(f, "schedule.min_lr", "0");
    }
    FOREIGN_TRY(f, take_rate(f, NULL, NULL));
    FOREIGN_TRY(f, take(f, "scheduler.params.warmup_min_ratio", "schedule.warmup_from", "0"));
    return take(f, "scheduler.params.cos_min_ratio", "schedule.min_lr", "1e-4");
}

static int take_scheduler(struct foreign *f)
{
    const struct foreign_item *type = foreign_get(f, "scheduler.type");
    if (!type) {
        FOREIGN_TRY(f, take_rate(f, NULL, NULL));
        return foreign_get(f, "optimizer") ? foreign_default(f, "schedule.kind", "constant") : SHERD_OK;
    }
    int which = word_of(type, kinds[1].types, kinds[1].possible);
    return take_curve(f, type, which);
}

/* --- number formats --- */

static int is_on(const struct foreign_item *enabled)
{
    return enabled && !foreign_is_auto(enabled) && foreign_bool(enabled);
}

/* Gradients that are not finite: with 16 bits the step is passed over unless told otherwise. */
static int take_overflow(struct foreign *f, int on)
{
    const struct foreign_item *check = foreign_get(f, "bf16.check_grad_overflow");
    if (check && !foreign_is_auto(check))
        return foreign_put(f, check, "train.nonfinite", foreign_bool(check) ? "skip" : "stop");
    return on ? foreign_default(f, "train.nonfinite", "skip") : SHERD_OK;
}

/* The block fp16. Its rules of the loss scale are ours too. */
static int take_scale(struct foreign *f, const struct foreign_item *fp16)
{
    static const char *const keys[][2] = { { "fp16.loss_scale", "dtype.loss_scale" },
        { "fp16.initial_scale_power", "dtype.initial_scale_power" },
        { "fp16.loss_scale_window", "dtype.loss_scale_window" }, { "fp16.hysteresis", "dtype.hysteresis" },
        { "fp16.consecutive_hysteresis", "dtype.consecutive_hysteresis" },
        { "fp16.min_loss_scale", "dtype.min_loss_scale" } };
    int off = !fp16 || !(foreign_is_auto(fp16) || foreign_bool(fp16));
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        const struct foreign_item *item = foreign_get(f, keys[i][0]);
        if (!item)
            continue;
        if (off)
            SHERD_TRY(foreign_remark(f, CONFIG_IDLE, item->path, "fp16 is not enabled"));
        else if (item->key->type == FOREIGN_BOOL && !foreign_is_auto(item))
            FOREIGN_TRY(f, foreign_put(f, item, keys[i][1], foreign_bool(item) ? "true" : "false"));
        else
            FOREIGN_TRY(f, take(f, keys[i][0], keys[i][1], NULL));
    }
    return SHERD_OK;
}

/* What weights are in: one block may be enabled; one of them is asked where it is open. */
static int take_param(struct foreign *f)
{
    const struct foreign_item *fp16 = foreign_get(f, "fp16.enabled"), *bf16 = foreign_get(f, "bf16.enabled");
    FOREIGN_TRY(f, take_overflow(f, is_on(fp16) || is_on(bf16)));
    if (foreign_refused(f, "fp16.enabled") || foreign_refused(f, "bf16.enabled"))
        return SHERD_OK;
    FOREIGN_TRY(f, take_scale(f, fp16));
    if (is_on(fp16) && is_on(bf16))
        return FOREIGN_FAIL(f, fp16, "bf16.enabled is true as well; weights have one format: remove one");
    if (is_on(fp16))
        return foreign_put(f, fp16, "dtype.param", "f16");
    if (is_on(bf16))
        return foreign_put(f, bf16, "dtype.param", "bf16");
    if (bf16 && foreign_is_auto(bf16)) {
        if (fp16 && foreign_is_auto(fp16))
            SHERD_TRY(foreign_remark(f, CONFIG_CHOSEN, fp16->path, "by dtype.param, as bf16.enabled"));
        return foreign_ask(f, bf16, "dtype.param");
    }
    if (fp16 && foreign_is_auto(fp16))
        return foreign_ask(f, fp16, "dtype.param");
    return bf16 || fp16 ? foreign_put(f, bf16 ? bf16 : fp16, "dtype.param", "f32") : SHERD_OK;
}

static int take_formats(struct foreign *f)
{
    static const char *const names[] = { "fp32", "bf16", "fp16" }, *const ours[] = { "f32", "bf16", "f16" };
    const struct foreign_item *wire = foreign_get(f, "communication_data_type");
    const struct foreign_item *param = foreign_get(f, "data_types.param_dtype");
    const struct foreign_item *typed[] = { wire, param };
    FOREIGN_TRY(f, take_param(f));
    for (int i = 0; i < 2; i++) {
        if (!typed[i])
            continue;
        int which = word_of(typed[i], names, 3);
        if (which < 0)
            FOREIGN_TRY(f, FOREIGN_FAIL(f, typed[i], "%s is not possible; fp32, bf16 and fp16 are",
                               typed[i]->node->value));
        else
            FOREIGN_TRY(f, foreign_put(f, typed[i], i ? "dtype.param" : "dtype.reduce", ours[which]));
    }
    if (foreign_get(f, "bf16.enabled") && !wire && f->config->dtype.param == SHERD_BF16)
        return foreign_remark(f, CONFIG_DIFFERENT, "communication_data_type",
            "not given: gradients travel in f32 here, in bf16 there; \"bf16\" makes it so here too");
    if (foreign_get(f, "fp16.enabled") && !wire && f->config->dtype.param == SHERD_F16)
        return foreign_remark(f, CONFIG_DIFFERENT, "communication_data_type",
            "not given: gradients travel in f32 here, in fp16 there; \"fp16\" makes it so here too");
    return SHERD_OK;
}

/* --- the rest --- */

static int take_stage(struct foreign *f)
{
    const struct foreign_item *block = foreign_get(f, "zero_optimization");
    if (block && block->node->kind == YAML_VALUE)
        return foreign_put(f, block, "shard.stage", foreign_bool(block) ? "1" : "0");
    return foreign_get(f, "zero_optimization.stage") ? SHERD_OK : foreign_default(f, "shard.stage", "0");
}

/* Elements to gather ahead become units once the model is known. */
static int take_ahead(struct foreign *f)
{
    const struct foreign_item *ahead = foreign_get(f, "zero_optimization.stage3_prefetch_bucket_size");
    if (!ahead)
        return SHERD_OK;
    if (foreign_is_auto(ahead))
        return foreign_ask(f, ahead, "shard.prefetch");
    f->origin->late.ahead =
        (struct config_place){ foreign_where(f, ahead), ahead->path, foreign_real(ahead) };
    return f->origin->late.ahead.where ? SHERD_OK : SHERD_ENOMEM;
}

/* "Infinity" is how never is written. */
static int take_print(struct foreign *f)
{
    const struct foreign_item *print = foreign_get(f, "steps_per_print");
    if (!print)
        return SHERD_OK;
    const char *value = print->node->value;
    int never = strcasecmp(value, "Infinity") == 0 || strcasecmp(value, "inf") == 0;
    return foreign_put(f, print, "log.every", never ? "1e15" : value);
}

int deepspeed_translate(struct foreign *f)
{
    static int (*const takes[])(struct foreign *) = { take_stage, take_ahead, take_optimizer, take_scheduler,
        take_formats, take_print };
    for (size_t i = 0; i < ARRAY_LEN(takes); i++)
        FOREIGN_TRY(f, takes[i](f));
    f->origin->late.needs_batch = 1;
    return foreign_get(f, "gradient_clipping")
               ? SHERD_OK
               : foreign_remark(f, CONFIG_DIFFERENT, "gradient_clipping",
                     "not given: optim.clip stays, by default 1.0, as in DeepSpeed since June 2026; before, "
                     "nothing was clipped");
}

/* Old and other names. */
void deepspeed_canonical(char *path)
{
    static const struct {
        const char *theirs, *row;
    } names[] = {
        { "zero_optimization.prefetch_bucket_size", "zero_optimization.stage3_prefetch_bucket_size" },
        { "zero_optimization.param_persistence_threshold",
            "zero_optimization.stage3_param_persistence_threshold" },
        { "zero_optimization.model_persistence_threshold",
            "zero_optimization.stage3_model_persistence_threshold" },
        { "zero_optimization.max_live_parameters", "zero_optimization.stage3_max_live_parameters" },
        { "zero_optimization.max_reuse_distance", "zero_optimization.stage3_max_reuse_distance" },
        { "zero_optimization.gather_16bit_weights_on_model_save",
            "zero_optimization.stage3_gather_16bit_weights_on_model_save" },
        { "zero_optimization.stage3_gather_fp16_weights_on_model_save",
            "zero_optimization.stage3_gather_16bit_weights_on_model_save" },
        { "zero_optimization.module_granularity_threshold",
            "zero_optimization.stage3_module_granularity_threshold" },
        { "zero_optimization.use_all_reduce_for_fetch_params",
            "zero_optimization.stage3_use_all_reduce_for_fetch_params" },
        { "zero_optimization.allgather_sequential", "zero_optimization.stage3_allgather_sequential" },
        { "bf16.check_overflow", "bf16.check_grad_overflow" },
        { "aio.intra_op_parallelism", "aio.thread_count" },
    };
    if (strncmp(path, "bfloat16", 8) == 0 && (path[8] == '.' || !path[8])) {
        memmove(path + 4, path + 8, strlen(path + 8) + 1);
        memcpy(path, "bf16", 4);
    }
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (strcmp(path, names[i].theirs) == 0)
            snprintf(path, FOREIGN_PATH_BYTES, "%s", names[i].row);
}
