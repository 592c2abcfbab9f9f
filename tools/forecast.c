/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Memory and time on a machine, stage by stage.
 */
#include "tools/forecast.h"

#include <stdio.h>
#include <string.h>

#include "base/text_plain.h"
#include "tools/args.h"

static const struct {
    const char *name, *text;
} shipped[] = {
#include "tools/devices.inc"
};

static const char *const recomputes[FORECAST_RECOMPUTES] = { "none", "cheap", "block" };

int forecast_machine(struct sherd_machine *out, const char *name)
{
    char all[256] = "";
    for (int i = 0; i < COUNT_OF(shipped); i++) {
        if (strcmp(shipped[i].name, name) == 0)
            return sherd_machine_parse(out, shipped[i].text, strlen(shipped[i].text), name);
        size_t n = strlen(all);
        snprintf(all + n, sizeof(all) - n, "%s%s", i ? ", " : "", shipped[i].name);
    }
    if (!strchr(name, '.') && !strchr(name, '/'))
        return sherd_fail(SHERD_EINVAL,
            "--device: '%s' is none of %s; or name a file that sherd bench --save wrote, such as ./%s.json",
            name, all, name);
    return sherd_machine_read(out, name);
}

/* ---- figures ---- */

static const struct forecast_row *configured(const struct forecast *f)
{
    return &f->rows[f->stage][f->recompute];
}

/* Bytes that the configuration needs beyond those of the device. */
static uint64_t missing(const struct forecast *f)
{
    const struct forecast_row *own = configured(f);
    return own->fits ? 0 : own->memory - f->machine.memory;
}

static int memory_of(uint64_t *out, const struct forecast *f, const struct sherd_config *c)
{
    struct sherd_model *model;
    struct sherd_plan plan;
    int st = sherd_config_model(&model, c);
    if (st != SHERD_OK)
        return st;
    st = sherd_plan_make(&plan, c, model, f->place.gpus * f->place.hosts, f->place.hosts);
    sherd_model_destroy(model);
    if (st != SHERD_OK)
        return st;
    *out = sherd_memory_total(&plan.memory) + f->machine.library_bytes;
    sherd_plan_free(&plan);
    return SHERD_OK;
}

static int fill_row(struct forecast *f, const struct sherd_config *c, const struct sherd_model *model)
{
    struct forecast_row *row = &f->rows[c->shard.stage][c->train.recompute];
    int st = memory_of(&row->memory, f, c);
    row->fits = row->memory <= f->machine.memory;
    return st == SHERD_OK ? sherd_forecast_make(&row->time, c, model, &f->machine, &f->place) : st;
}

/* ---- what would make it fit ---- */

/* One change, in the order in which they are tried: each costs more than those before it. 0 = there is
 * nothing more to change here. */
static int sums_by_kernels(struct sherd_config *c, char *text, size_t bytes)
{
    if (c->shard.reduce == SHERD_REDUCE_BY_KERNEL)
        return 0;
    c->shard.reduce = SHERD_REDUCE_BY_KERNEL;
    snprintf(text, bytes, "shard.reduce=kernel");
    return 1;
}

static int fewer_sequences(struct sherd_config *c, char *text, size_t bytes)
{
    if (c->batch.micro <= 1)
        return 0;
    int64_t micro = c->batch.micro % 2 ? 1 : c->batch.micro / 2;
    c->batch.accum = (c->batch.accum > 0 ? c->batch.accum : 1) * (c->batch.micro / micro);
    c->batch.micro = micro;
    snprintf(text, bytes, "batch.micro=%lld", (long long)micro);
    return 1;
}

static int more_recompute(struct sherd_config *c, char *text, size_t bytes)
{
    if (c->train.recompute == SHERD_RECOMPUTE_BLOCK)
        return 0;
    c->train.recompute = (enum sherd_recompute)(c->train.recompute + 1);
    snprintf(text, bytes, "train.recompute=%s", recomputes[c->train.recompute]);
    return 1;
}

static int higher_stage(struct sherd_config *c, char *text, size_t bytes)
{
    if (c->shard.stage == SHERD_STAGES - 1)
        return 0;
    c->shard.stage++;
    snprintf(text, bytes, "shard.stage=%lld", (long long)c->shard.stage);
    return 1;
}

static int split_master(struct sherd_config *c, char *text, size_t bytes)
{
    if (c->dtype.param != SHERD_BF16 || c->dtype.master == SHERD_MASTER_SPLIT)
        return 0;
    c->dtype.master = SHERD_MASTER_SPLIT;
    snprintf(text, bytes, "dtype.master=split");
    return 1;
}

static int short_state(struct sherd_config *c, char *text, size_t bytes)
{
    if (c->dtype.state == SHERD_BF16)
        return 0;
    c->dtype.state = SHERD_BF16;
    snprintf(text, bytes, "dtype.state=bf16");
    return 1;
}

static int (*const levers[])(struct sherd_config *c, char *text, size_t bytes) = { sums_by_kernels,
    fewer_sequences, more_recompute, higher_stage, split_master, short_state };

/* Pulls a lever until it fits or goes no further. Its last setting is left in the next advice; one that saves
 * nothing is put back. */
static int pull(struct forecast *f, struct sherd_config *c, int lever, int *fits)
{
    char *text = f->advice[f->n_advice];
    const struct sherd_config was = *c;
    const uint64_t before = f->advised;
    while (!*fits && levers[lever](c, text, sizeof(f->advice[0]))) {
        int st = memory_of(&f->advised, f, c);
        if (st != SHERD_OK)
            return st;
        *fits = f->advised <= f->machine.memory;
    }
    if (f->advised < before) {
        f->n_advice++;
    } else {
        f->advised = before;
        *c = was;
    }
    return SHERD_OK;
}

/* The first lever that suffices alone, else all of them, one after the other, until it fits. */
static int advise(struct forecast *f, const struct sherd_config *config)
{
    struct sherd_config c;
    const uint64_t own = configured(f)->memory;
    int fits = configured(f)->fits, st = SHERD_OK;
    if (fits)
        return SHERD_OK;
    for (int i = 0; i < COUNT_OF(levers) && !fits && st == SHERD_OK; i++) {
        c = *config;
        f->n_advice = 0;
        f->advised = own;
        st = pull(f, &c, i, &fits);
    }
    if (fits || st != SHERD_OK)
        return st;
    c = *config;
    f->n_advice = 0;
    f->advised = own;
    for (int i = 0; i < COUNT_OF(levers) && !fits && st == SHERD_OK; i++)
        st = pull(f, &c, i, &fits);
    if (!fits)
        f->n_advice = 0;
    return st;
}

int forecast_fill(struct forecast *f, struct sherd_config *c)
{
    const struct sherd_config was = *c;
    struct sherd_model *model;
    f->stage = (int)c->shard.stage;
    f->recompute = (int)c->train.recompute;
    int st = sherd_config_model(&model, c);
    if (st != SHERD_OK)
        return st;
    for (int s = 0; s < SHERD_STAGES && st == SHERD_OK; s++)
        for (int r = 0; r < FORECAST_RECOMPUTES && st == SHERD_OK; r++) {
            c->shard.stage = s;
            c->train.recompute = (enum sherd_recompute)r;
            st = fill_row(f, c, model);
        }
    *c = was;
    sherd_model_destroy(model);
    return st == SHERD_OK ? advise(f, c) : st;
}

/* ---- output ---- */

int forecast_check(const struct forecast *f)
{
    const struct forecast_row *own = configured(f);
    char need[32], have[32], more[32], with[32];
    char sets[FORECAST_ADVICE * (sizeof(f->advice[0]) + 8)] = "";
    if (own->fits)
        return SHERD_OK;
    text_human_bytes((double)own->memory, need);
    text_human_bytes((double)f->machine.memory, have);
    text_human_bytes((double)missing(f), more);
    if (f->n_advice == 0)
        return sherd_fail(SHERD_ENOMEM,
            "does NOT fit on %s: %s of %s, %s too much; nothing makes it fit on %d: more devices, a smaller "
            "model or shorter sequences (batch.seq)",
            f->machine.name, need, have, more, f->place.gpus * f->place.hosts);
    for (int i = 0; i < f->n_advice; i++) {
        size_t n = strlen(sets);
        snprintf(sets + n, sizeof(sets) - n, " --set %s", f->advice[i]);
    }
    return sherd_fail(SHERD_ENOMEM, "does NOT fit on %s: %s of %s, %s too much; would fit, with %s, by%s",
        f->machine.name, need, have, more, text_human_bytes((double)f->advised, with), sets);
}

void forecast_print(const struct forecast *f)
{
    const struct sherd_machine *m = &f->machine;
    const struct forecast_row *own = configured(f);
    const struct sherd_forecast *t = &own->time;
    int ranks = f->place.gpus * f->place.hosts;
    char library[32], need[32], have[32];
    printf("\non %d %s (%d node%s with %d each); memory with %s for libraries\n", ranks, m->name,
        f->place.hosts, f->place.hosts == 1 ? "" : "s", f->place.gpus,
        text_human_bytes((double)m->library_bytes, library));
    printf("  %-7s%-11s%12s%7s%12s%12s%15s%10s\n", "stage", "recompute", "memory", "fits", "step ms",
        "exposed ms", "tokens/s each", "TFLOP/s");
    for (int s = 0; s < SHERD_STAGES; s++)
        for (int r = 0; r < FORECAST_RECOMPUTES; r++) {
            const struct forecast_row *row = &f->rows[s][r];
            char bytes[32], tokens[32];
            printf("%c %-7d%-11s%12s%7s%12.1f%12.1f%15s%10.*f\n",
                s == f->stage && r == f->recompute ? '*' : ' ', s, recomputes[r],
                text_human_bytes((double)row->memory, bytes), row->fits ? "yes" : "no", row->time.step * 1e3,
                row->time.exposed * 1e3,
                text_commas((int64_t)(row->time.tokens_per_second / ranks + 0.5), tokens),
                row->time.flops < 1e12 ? 4 : 1, row->time.flops / 1e12);
        }
    printf("a step as configured: %.1f ms = %.1f computing + %.1f exposed + %.1f lost to what runs beside;\n"
           "  gathers %.1f, reductions %.1f, updates %.1f ms, hidden or not\n",
        t->step * 1e3, t->compute * 1e3, t->exposed * 1e3, t->lost * 1e3, t->gather * 1e3, t->reduce * 1e3,
        t->update * 1e3);
    if (own->fits)
        printf("fits: %s of %s\n", text_human_bytes((double)own->memory, need),
            text_human_bytes((double)m->memory, have));
}

static json_t *row_json(const struct forecast *f, int s, int r)
{
    const struct forecast_row *row = &f->rows[s][r];
    const struct sherd_forecast *t = &row->time;
    return json_pack("{s:i, s:s, s:I, s:b, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "stage", s,
        "recompute", recomputes[r], "memory", (json_int_t)row->memory, "fits", row->fits, "step_seconds",
        t->step, "compute", t->compute, "exposed", t->exposed, "lost", t->lost, "gather", t->gather, "reduce",
        t->reduce, "update", t->update, "flops_per_second", t->flops, "tokens_per_second",
        t->tokens_per_second);
}

json_t *forecast_json(const struct forecast *f)
{
    json_t *rows = json_array(), *advice = json_array();
    for (int s = 0; s < SHERD_STAGES; s++)
        for (int r = 0; r < FORECAST_RECOMPUTES; r++)
            json_array_append_new(rows, row_json(f, s, r));
    for (int i = 0; i < f->n_advice; i++)
        json_array_append_new(advice, json_string(f->advice[i]));
    return json_pack("{s:s, s:i, s:i, s:I, s:I, s:b, s:I, s:o, s:o, s:s}", "device", f->machine.name, "gpus",
        f->place.gpus, "nodes", f->place.hosts, "memory", (json_int_t)f->machine.memory, "library_bytes",
        (json_int_t)f->machine.library_bytes, "fits", !missing(f), "missing", (json_int_t)missing(f), "rows",
        rows, "advice", advice, "recompute", recomputes[f->recompute]);
}
