/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What values must be together, and what follows from what: the arithmetic of the batch, and the keys that
 * are "auto" until other keys are known.
 */
#include <math.h>
#include <stdio.h>

#include "model/model.h"
#include "optim/optim.h"
#include "runtime/foreign.h"
#include "runtime/keys.h"
#include "runtime/reading.h"

#define MICRO_DEFAULT 8
#define EVAL_EVERY_DEFAULT 100
#define FIX_MOST 65536 /* divisors are searched up to here */

static int derived(struct sherd_config *config, const char *path)
{
    return config_note(config, key_find(path), CONFIG_DERIVED);
}

static int has_eval_data(const struct sherd_config *c)
{
    return c->data.val.n > 0 || c->data.split > 0;
}

static int settle_auto(struct sherd_config *c)
{
    if (c->model.tied == KEY_UNSET) {
        const struct model_family *family;
        SHERD_TRY(model_find_family(&family, c->model.family));
        c->model.tied = family->tied;
        SHERD_TRY(derived(c, "model.tied"));
    }
    if (c->batch.seq == KEY_UNSET) {
        c->batch.seq = c->model.context;
        SHERD_TRY(derived(c, "batch.seq"));
    }
    if (c->train.epochs == KEY_UNSET) {
        c->train.epochs = c->train.steps == 0;
        SHERD_TRY(derived(c, "train.epochs"));
    }
    if (c->train.eval_every == KEY_UNSET) {
        c->train.eval_every = has_eval_data(c) ? EVAL_EVERY_DEFAULT : 0;
        SHERD_TRY(derived(c, "train.eval_every"));
    }
    return SHERD_OK;
}

int config_check_steps(const struct sherd_config *c, int64_t n)
{
    long long steps = c->schedule.steps ? c->schedule.steps : n;
    long long warmup = lr_steps(c->schedule.warmup, steps), decay = lr_steps(c->schedule.decay, steps);
    const char *whose = c->schedule.steps ? "schedule.steps" : "the run";
    if (c->schedule.count == SHERD_COUNT_DEEPSPEED) /* a run that ends while its rate rises is usual there */
        return SHERD_OK;
    if (warmup > steps)
        return CONFIG_FAIL(c, "schedule.warmup",
            "%lld steps are more than the %lld of %s; set it to %lld or less, or to a fraction of them as 0.05",
            warmup, steps, whose, steps);
    if (c->schedule.kind == SHERD_LR_WSD && warmup + decay > steps)
        return CONFIG_FAIL(c, "schedule.decay",
            "%lld steps after a warm-up of %lld are more than the %lld of %s; set it to %lld or less, or to a "
            "fraction of them as 0.2",
            decay, warmup, steps, whose, steps - warmup);
    return SHERD_OK;
}

/* Steps in a field that also takes fractions. */
static int check_whole(const struct sherd_config *c, const char *path, double steps)
{
    if (steps < 1 || steps == (double)(int64_t)steps)
        return SHERD_OK;
    return CONFIG_FAIL(
        c, path, "must be a whole number of steps, or below 1 as a fraction of all, not %.10g", steps);
}

static int check_data(const struct sherd_config *c)
{
    double *weights;
    if (c->data.val.n > 0 && c->data.split > 0)
        return CONFIG_FAIL(c, "data.split",
            "evaluation is on data.val, so nothing need be held out of data.train; remove one of the two");
    if (c->data.split_seed && c->data.split <= 0)
        return CONFIG_FAIL(
            c, "data.split_seed", "nothing is drawn by it: set data.split to the fraction to hold out");
    if (c->data.split_seed && !c->data.shuffle)
        return CONFIG_FAIL(c, "data.split_seed",
            "samples held out at random leave no order as it lies in the files, which data.shuffle: false asks for; "
            "set it to 0, or let data.shuffle be true");
    if (c->data.end >= c->model.vocab)
        return CONFIG_FAIL(c, "data.end", "there is no token %lld in a vocabulary of %lld (model.vocab)",
            (long long)c->data.end, (long long)c->model.vocab);
    SHERD_TRY(reading_weights(c, &weights));
    mem_free(weights);
    return SHERD_OK;
}

/* Every checkpoint must have a loss, or the best one could be one that was never looked at. */
static int check_keep_best(const struct sherd_config *c)
{
    if (c->save.keep_best == 0 || c->save.keep == 0)
        return SHERD_OK;
    if (!has_eval_data(c) || c->train.eval_every == 0)
        return CONFIG_FAIL(c, "save.keep_best",
            "the best checkpoints are those with the lowest validation loss, and there is none: set data.val (or data.split) and "
            "train.eval_every, or save.keep_best to 0");
    if (c->save.every % c->train.eval_every)
        return CONFIG_FAIL(c, "save.keep_best",
            "save.every %lld is no multiple of train.eval_every %lld, so some checkpoints would have no validation "
            "loss: set train.eval_every to a divisor of save.every",
            (long long)c->save.every, (long long)c->train.eval_every);
    return SHERD_OK;
}

static int check_formats(const struct sherd_config *c)
{
    if (c->dtype.master == SHERD_MASTER_SPLIT && c->dtype.param != SHERD_BF16)
        return CONFIG_FAIL(c, "dtype.master",
            "split masters are what bf16 weights lack; set dtype.param to bf16 too, or leave dtype.master out: f32 "
            "weights are their own masters, and f16 ones keep theirs whole");
    if (c->dtype.reduce != SHERD_F32 && c->dtype.reduce != c->dtype.param)
        return CONFIG_FAIL(c, "dtype.reduce",
            "%s would round gradients that were computed in %s; set dtype.param to %s too, or dtype.reduce to f32",
            sherd_dtype_name(c->dtype.reduce), sherd_dtype_name(c->dtype.param),
            sherd_dtype_name(c->dtype.reduce));
    if (ldexp(1, (int)c->dtype.initial_scale_power) < c->dtype.min_loss_scale)
        return CONFIG_FAIL(c, "dtype.min_loss_scale",
            "%.10g is above the first scale, 2 to the power of %lld (dtype.initial_scale_power); lower the one or "
            "raise the other",
            c->dtype.min_loss_scale, (long long)c->dtype.initial_scale_power);
    return SHERD_OK;
}

static int check_fall(const struct sherd_config *c)
{
    if (c->schedule.kind == SHERD_LR_WSD && c->schedule.decay <= 0)
        return CONFIG_FAIL(c, "schedule.kind",
            "wsd ends in a fall, but schedule.decay is 0; set it to a number of steps, or use constant");
    return SHERD_OK;
}

int config_check_filled(const struct sherd_config *c)
{
    static const char *const sections[] = { "run", "shard", "dtype", "batch", "optim", "schedule", "train",
        "check" };
    if (!c->optim.name)
        return SHERD_FAIL(SHERD_ECONFIG,
            "the config holds nothing: begin with sherd_config_default or sherd_config_load, then change what is to "
            "be another");
    for (size_t s = 0; s < ARRAY_LEN(sections); s++)
        for (int i = 0; i < key_count(); i++)
            if (key_in_section(key_at(i), sections[s]))
                SHERD_TRY(key_check(key_at(i), c));
    SHERD_TRY(check_formats(c));
    return check_fall(c);
}

int config_settle(struct sherd_config *c)
{
    SHERD_TRY(settle_auto(c));
    SHERD_TRY(deepspeed_settle(c));
    SHERD_TRY(check_whole(c, "schedule.warmup", c->schedule.warmup));
    SHERD_TRY(check_whole(c, "schedule.decay", c->schedule.decay));
    if (c->batch.seq > c->model.context)
        return CONFIG_FAIL(c, "batch.seq",
            "%lld tokens are more than model.context %lld; set model.context to %lld, or batch.seq to %lld or less",
            (long long)c->batch.seq, (long long)c->model.context, (long long)c->batch.seq,
            (long long)c->model.context);
    SHERD_TRY(check_formats(c));
    if (c->train.steps == 0 && c->train.epochs == 0)
        return CONFIG_FAIL(
            c, "train.steps", "train.steps and train.epochs are both 0, so there is nothing to do; set one");
    if (c->train.steps > 0 && c->train.epochs > 0)
        return CONFIG_FAIL(c, "train.epochs",
            "train.steps is %lld and train.epochs is %lld, but only one can end the run; remove one or set it to 0",
            (long long)c->train.steps, (long long)c->train.epochs);
    SHERD_TRY(check_fall(c));
    SHERD_TRY(check_data(c));
    SHERD_TRY(check_keep_best(c));
    return c->train.steps > 0 ? config_check_steps(c, c->train.steps) : SHERD_OK;
}

int config_check_train(const struct sherd_config *c)
{
    if (c->data.train.n == 0)
        return CONFIG_FAIL(c, "data.train",
            "there is nothing to train on; name files or folders, as data.train: [data/text] or --data data/text");
    if (c->train.eval_every > 0 && !has_eval_data(c))
        return CONFIG_FAIL(c, "train.eval_every",
            "evaluates every %lld steps, but data.val is empty; name files or folders there, set data.split to hold out a part of data.train, or set train.eval_every to 0",
            (long long)c->train.eval_every);
    return SHERD_OK;
}

/* --- batch --- */

struct batch {
    int64_t global, micro, accum, world;
};

/* a * b * c for numbers from 1; 0 if that does not fit. */
static int64_t product(int64_t a, int64_t b, int64_t c)
{
    int64_t ab, abc;
    return __builtin_mul_overflow(a, b, &ab) || __builtin_mul_overflow(ab, c, &abc) ? 0 : abc;
}

/* The value as the user gave it: 0 if it was derived, for whatever world. */
static int given(const struct sherd_config *c, const char *path, int64_t value, int64_t *out)
{
    const char *where;
    SHERD_TRY(config_where(c, key_find(path), &where));
    if (value < 0)
        return CONFIG_FAIL(c, path, "must not be negative, as %lld is; 0 = derived", (long long)value);
    *out = where == CONFIG_DERIVED ? 0 : value;
    return SHERD_OK;
}

/* "global 20, micro 4, accum auto and world 2 do not fit" */
static void four_numbers(const struct batch *b, char out[160])
{
    struct text_number {
        char s[24];
    } n[3];
    const int64_t v[3] = { b->global, b->micro, b->accum };
    for (int i = 0; i < 3; i++)
        snprintf(n[i].s, sizeof(n[i].s), v[i] ? "%lld" : "auto", (long long)v[i]);
    snprintf(out, 160, "global %s, micro %s, accum %s and world %lld do not fit", n[0].s, n[1].s, n[2].s,
        (long long)b->world);
}

/* Largest divisor of n that is not above `most`; 0 if too far to search. */
static int64_t divisor(int64_t n, int64_t most)
{
    int64_t d = MIN(n, most);
    if (d > FIX_MOST && d != n)
        return 0;
    while (d > 1 && n % d != 0)
        d--;
    return d;
}

/* The global batch is no multiple of `unit` (= what * world, 0 = beyond all numbers). */
static int fail_remainder(const struct sherd_config *c, const struct batch *b, const char *what, int64_t unit)
{
    char numbers[160], global[96], other[64] = "";
    four_numbers(b, numbers);
    if (unit == 0)
        return CONFIG_FAIL(c, "batch.global", "%s: %s * world is beyond all numbers; make batch.%s smaller",
            numbers, what, what);
    int64_t below = b->global / unit * unit, above = below + unit;
    if (below > 0)
        snprintf(global, sizeof(global), "%lld or %lld", (long long)below, (long long)above);
    else
        snprintf(global, sizeof(global), "%lld", (long long)above);
    int64_t fix = b->global % b->world == 0 ? divisor(b->global / b->world, unit / b->world) : 0;
    if (fix > 0)
        snprintf(other, sizeof(other), ", or batch.%s to %lld", what, (long long)fix);
    return CONFIG_FAIL(c, "batch.global",
        "%s: global must be a multiple of %s * world = %lld; set batch.global to %s%s", numbers, what,
        (long long)unit, global, other);
}

/* All three are given; they must agree. */
static int check_batch(const struct sherd_config *c, const struct batch *b)
{
    char numbers[160], other[64] = "";
    int64_t whole = product(b->micro, b->accum, b->world);
    if (whole == b->global)
        return SHERD_OK;
    four_numbers(b, numbers);
    int64_t per_accum = product(b->micro, b->world, 1), per_micro = product(b->accum, b->world, 1);
    if (per_accum && b->global % per_accum == 0)
        snprintf(other, sizeof(other), "batch.accum to %lld", (long long)(b->global / per_accum));
    else if (per_micro && b->global % per_micro == 0)
        snprintf(other, sizeof(other), "batch.micro to %lld", (long long)(b->global / per_micro));
    if (!whole)
        return CONFIG_FAIL(c, "batch.global",
            "%s: micro * accum * world is beyond all numbers; set batch.accum to auto", numbers);
    return CONFIG_FAIL(c, "batch.global",
        "%s: global must be micro * accum * world = %lld; set %s%sbatch.global to %lld", numbers,
        (long long)whole, other, other[0] ? " or " : "", (long long)whole);
}

/* Derives what is 0. */
static int complete(const struct sherd_config *c, struct batch *b)
{
    if (!b->global && !b->micro && b->accum)
        return CONFIG_FAIL(c, "batch.accum",
            "accum %lld alone does not say how large a batch is; set batch.micro or batch.global too",
            (long long)b->accum);
    if (b->global && b->micro && b->accum)
        return check_batch(c, b);
    if (!b->global) {
        b->micro = b->micro ? b->micro : MICRO_DEFAULT;
        b->accum = b->accum ? b->accum : 1;
        b->global = product(b->micro, b->accum, b->world);
        if (!b->global)
            return CONFIG_FAIL(c, "batch.micro",
                "micro %lld, accum %lld and world %lld make a batch beyond all numbers; make them smaller",
                (long long)b->micro, (long long)b->accum, (long long)b->world);
        return SHERD_OK;
    }
    const char *what = b->micro ? "micro" : "accum";
    int64_t unit = product(b->micro ? b->micro : MAX(b->accum, 1), b->world, 1);
    if (!unit || b->global % unit != 0)
        return fail_remainder(c, b, what, unit);
    if (b->micro) {
        b->accum = b->global / unit;
    } else {
        b->accum = MAX(b->accum, 1);
        b->micro = b->global / unit;
    }
    return SHERD_OK;
}

int config_derive_batch(struct sherd_config *c, int world)
{
    struct batch b = { .world = world };
    if (world < 1)
        return SHERD_FAIL(SHERD_EINVAL, "a world of %d ranks; there must be at least 1", world);
    SHERD_TRY(given(c, "batch.global", c->batch.global, &b.global));
    SHERD_TRY(given(c, "batch.micro", c->batch.micro, &b.micro));
    SHERD_TRY(given(c, "batch.accum", c->batch.accum, &b.accum));
    struct batch before = b;
    SHERD_TRY(complete(c, &b));
    c->batch.global = b.global;
    c->batch.micro = b.micro;
    c->batch.accum = b.accum;
    if (!before.global)
        SHERD_TRY(derived(c, "batch.global"));
    if (!before.micro)
        SHERD_TRY(derived(c, "batch.micro"));
    if (!before.accum)
        SHERD_TRY(derived(c, "batch.accum"));
    return SHERD_OK;
}
