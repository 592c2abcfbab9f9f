/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Finding and loading what a run goes on from. See runtime/resume.h.
 */
#include "runtime/resume.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <sherd/ckpt.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "ckpt/ckpt.h"
#include "comm/ops.h"
#include "optim/optim.h"
#include "runtime/engine.h"
#include "runtime/keys.h"
#include "runtime/replica.h"

#define PATH_BYTES 4096 /* of a checkpoint, as rank 0 tells it to all */

#define VALUES_TOLD 80 /* bytes of two values, beyond which the name alone is told */

/* What rank 0 tells all ranks: the path of the checkpoint, or why there is none to take. */
struct found {
    int status;
    char text[PATH_BYTES];
};

struct resume {
    struct sherd_engine *engine;
    const struct sherd_config *config;
    const struct tokens_mark *data;
    int rank;
    struct found found;
    struct text damaged; /* rank 0: paths that were passed over, a line each */
};

/* --- settings --- */

/* Steps that the curve goes over. */
static int64_t span_of(const struct sherd_config *c)
{
    return c->schedule.steps ? c->schedule.steps : c->train.steps;
}

/* As the update takes it. */
static float rate_at(const struct sherd_config *c, int64_t update)
{
    return (float)lr_at(c, update, c->train.steps);
}

void resume_rate(struct text *out, const struct sherd_config *before, const struct sherd_config *now,
    int64_t done, int64_t skipped)
{
    long long was = (long long)span_of(before), is = (long long)span_of(now);
    int64_t step = done + 1;
    while (step <= now->train.steps && rate_at(before, step - skipped) == rate_at(now, step - skipped))
        step++;
    if (step > now->train.steps)
        return;
    if (was != is)
        text_add(out, "learning rate: its curve goes over %lld steps now, not %lld", is, was);
    else
        text_add(out, "learning rate: optim.lr or schedule.* are not what they were");
    double rate = (double)rate_at(now, step - skipped), old = (double)rate_at(before, step - skipped);
    int digits = fabs(rate - old) < 0.01 * fabs(old) ? 8 : 2; /* so that two that differ look so */
    text_add(out, ": %.*e at step %lld, where it was to be %.*e", digits, rate, (long long)step, digits, old);
    if (was != is)
        text_add(out, "; schedule.steps=%lld keeps the old curve", was);
}

/* Whether the numbers of the steps to come depend on a key, and no line of its own tells of it. */
static int counts(const struct key *key)
{
    static const char *const sections[] = { "model", "dtype", "optim", "data" };
    static const char *const single[] = { "run.seed", "batch.global", "batch.seq" };
    static const char *const not [] = { "model.from", "model.init_std", "optim.lr" };
    int yes = 0;
    for (size_t i = 0; i < ARRAY_LEN(sections); i++)
        yes |= key_in_section(key, sections[i]);
    for (size_t i = 0; i < ARRAY_LEN(single); i++)
        yes |= !strcmp(key->path, single[i]);
    for (size_t i = 0; i < ARRAY_LEN(not ); i++)
        yes &= strcmp(key->path, not [i]) != 0;
    return yes;
}

/* Whether the loss of given weights on files of its own depends on a key; */
static int counts_in_loss(const struct key *key)
{
    static const char *const single[] = { "dtype.param", "batch.seq", "data.end" };
    int yes = key_in_section(key, "model") && strcmp(key->path, "model.freeze") != 0;
    for (size_t i = 0; i < ARRAY_LEN(single); i++)
        yes |= !strcmp(key->path, single[i]);
    return yes && counts(key);
}

/* and on what is held out, which may be what was trained on if something else is. */
static int counts_in_held(const struct key *key)
{
    return counts_in_loss(key) || (key_in_section(key, "data") && counts(key));
}

/* Adds a line to `out` with the settings, of those that count, which are not as before; nothing if all are.
 */
static void other_settings(struct text *out, const struct sherd_config *before,
    const struct sherd_config *now, int (*count)(const struct key *))
{
    for (int i = 0; i < key_count(); i++) {
        struct text was = { 0 }, is = { 0 };
        key_print(key_at(i), before, &was);
        key_print(key_at(i), now, &is);
        if (count(key_at(i)) && was.data && is.data && strcmp(was.data, is.data) != 0) {
            text_add(
                out, "%s%s", out->data ? "; " : "other settings than it was saved with: ", key_at(i)->path);
            if (was.len + is.len <= VALUES_TOLD)
                text_add(out, " %s, not %s", is.data, was.data);
        }
        text_finish(&was);
        text_finish(&is);
    }
}

/* What the run that wrote a checkpoint kept in it; *out is NULL if nothing, as another program may. */
static int extra_of(json_t **out, const char *path)
{
    struct sherd_ckpt *ckpt = NULL;
    struct sherd_ckpt_info info;
    *out = NULL;
    SHERD_TRY(sherd_ckpt_open(&ckpt, path));
    sherd_ckpt_info_of(ckpt, &info);
    int st = info.extra ? json_parse(out, info.extra, strlen(info.extra), path) : SHERD_OK;
    sherd_ckpt_close(ckpt);
    return st;
}

/* The settings that it was written with; steps: of that run, 0 = not kept. */
static int tell_settings(const char *path, const char *yaml, int64_t steps, const struct sherd_config *now,
    int64_t done, int64_t skipped)
{
    struct sherd_config before;
    struct text line = { 0 }, settings = { 0 };
    SHERD_TRY(sherd_config_parse(&before, yaml, strlen(yaml), path, NULL, 0, 0));
    other_settings(&settings, &before, now, counts);
    if (before.train.steps == 0)
        before.train.steps = steps;
    if (before.train.steps > 0)
        resume_rate(&line, &before, now, done, skipped);
    if (settings.data)
        log_info("%s", settings.data);
    if (line.data)
        log_info("%s", line.data);
    text_finish(&settings);
    text_finish(&line);
    sherd_config_free(&before);
    return SHERD_OK;
}

int resume_other_loss(struct text *out, const char *path, const struct sherd_config *now)
{
    json_t *extra;
    struct sherd_config before;
    SHERD_TRY(extra_of(&extra, path));
    const char *yaml = json_string_value(json_object_get(extra, "config"));
    int st = yaml ? sherd_config_parse(&before, yaml, strlen(yaml), path, NULL, 0, 0) : SHERD_OK;
    if (yaml && st == SHERD_OK) {
        other_settings(out, &before, now, now->data.split > 0 ? counts_in_held : counts_in_loss);
        sherd_config_free(&before);
    }
    json_decref(extra);
    return st;
}

/* The tokens that it was trained on. Without them, or with what is none of ours, nothing is known. */
static void tell_data(const json_t *data, const struct tokens_mark *now)
{
    char a[32], b[32];
    const json_t *tokens = json_object_get(data, "tokens");
    const char *was = json_string_value(json_object_get(data, "sum"));
    if (!json_is_integer(tokens) || !was)
        return;
    if (json_integer_value(tokens) != now->count)
        log_warn(
            "data.train: %s tokens, where it was trained on %s: its samples come in another order from here on, "
            "some perhaps twice in this epoch and some not at all",
            text_commas(now->count, a), text_commas(json_integer_value(tokens), b));
    else if (strcmp(was, now->sum) != 0)
        log_warn("data.train: as many tokens as it was trained on, but others");
}

/* Whether the run goes on as it would have, said by one rank. */
static int tell_changes(const struct resume *r)
{
    json_t *extra;
    const struct sherd_engine *e = r->engine;
    int st = extra_of(&extra, r->found.text);
    const char *yaml = json_string_value(json_object_get(extra, "config"));
    if (st == SHERD_OK && yaml)
        st = tell_settings(r->found.text, yaml, json_integer_value(json_object_get(extra, "steps")),
            r->config, e->step, e->skipped);
    if (st != SHERD_OK && st != SHERD_ENOMEM)
        log_info("whether the settings are those it was saved with is not known: %s", sherd_error());
    if (r->data)
        tell_data(json_object_get(extra, "data"), r->data);
    json_decref(extra);
    return st == SHERD_ENOMEM ? st : SHERD_OK;
}

/* --- the checkpoint --- */

/* The newest complete checkpoint, "" if there is none. */
static int look_for_first(struct resume *r, char **path)
{
    const struct sherd_config *c = r->config;
    struct file_watch before = comm_beat_with_files(r->engine->comm);
    int st = sherd_ckpt_find(path, c->run.dir);
    file_watch(before);
    if (st == SHERD_OK && c->run.resume == SHERD_RESUME_NEVER)
        return SHERD_FAIL(SHERD_EEXISTS,
            "%s exists already; --resume goes on from it, another run.dir starts a new run", *path);
    if (st == SHERD_ENOTFOUND && c->run.resume != SHERD_RESUME_REQUIRED)
        return SHERD_OK;
    if (st == SHERD_ENOTFOUND)
        return SHERD_FAIL(
            st, "%s; --resume=auto begins anew where there is nothing to go on from", sherd_error());
    return st;
}

/* The one behind the one that was found and is damaged, as the thread's error says. */
static int look_for_older(struct resume *r, char **path)
{
    int st = SHERD_OK;
    char *why = mem_strdup(sherd_error());
    if (!why)
        return SHERD_ENOMEM;
    struct file_watch before = comm_beat_with_files(r->engine->comm);
    int older = ckpt_find_older(path, r->config->run.dir, r->found.text);
    file_watch(before);
    if (older == SHERD_OK) {
        log_warn("skipping checkpoint %s: %s", r->found.text, why);
        text_add(&r->damaged, "%s\n", r->found.text);
    } else if (older != SHERD_ENOTFOUND && older != SHERD_ECORRUPT) {
        st = older;
    } else {
        st = status_adopt(SHERD_ECORRUPT, why);
        st = status_context(st,
            "no checkpoint in %s is whole; copy this file back, or start a new run in another run.dir",
            r->config->run.dir);
    }
    mem_free(why);
    return st;
}

/* Rank 0 looks, so that all ranks take the same; a refusal is that of all ranks, not of one that others miss.
 */
static int find(struct resume *r, int (*look)(struct resume *, char **))
{
    char *path = NULL;
    struct found *found = &r->found;
    if (r->rank == 0) {
        found->status = look(r, &path);
        if (path && strlen(path) >= PATH_BYTES)
            found->status = SHERD_FAIL(SHERD_EINVAL, "%s: the path is too long", path);
        snprintf(found->text, sizeof(found->text), "%s",
            found->status != SHERD_OK ? sherd_error()
            : path                    ? path
                                      : "");
        mem_free(path);
    }
    SHERD_TRY(comm_host_broadcast(r->engine->comm, found, sizeof(*found), 0));
    return found->status == SHERD_OK ? SHERD_OK : status_adopt(found->status, found->text);
}

/* Loads what was found, or what is whole behind it. No rank goes by its own status, with which it would leave
 * alone where the file of another is damaged. */
static int load(struct resume *r)
{
    for (;;) {
        int why, st = engine_load(r->engine, r->found.text);
        st = comm_agree_why(r->engine->comm, st, &why);
        if (why == SHERD_OK)
            return replica_check(r->engine);
        if (why != SHERD_ECORRUPT)
            return st;
        SHERD_TRY(find(r, look_for_older));
    }
}

/* Takes what was passed over out of the way: it has the numbers of steps that are saved again. */
static int put_damaged_aside(struct text *damaged)
{
    char *line, *end;
    int st = SHERD_OK;
    if (damaged->failed)
        return SHERD_ENOMEM;
    for (line = damaged->data; st == SHERD_OK && line && (end = strchr(line, '\n')); line = end + 1) {
        *end = '\0';
        st = ckpt_put_aside(line);
    }
    return st;
}

static int say(struct resume *r)
{
    const struct sherd_engine *e = r->engine;
    SHERD_TRY(put_damaged_aside(&r->damaged));
    struct file_watch before = comm_beat_with_files(e->comm);
    int st = ckpt_put_passed_aside(r->config->run.dir, r->found.text);
    file_watch(before);
    SHERD_TRY(st);
    log_info("resumed from %s: step %lld, %lld samples seen", r->found.text, (long long)e->step,
        (long long)e->samples_seen);
    return tell_changes(r);
}

int resume_run(struct sherd_engine *engine, const struct sherd_config *config, const struct tokens_mark *data,
    int *found)
{
    struct resume r = {
        .engine = engine, .config = config, .data = data, .rank = sherd_comm_rank(engine->comm)
    };
    *found = 0;
    int st = find(&r, look_for_first);
    if (st == SHERD_OK && r.found.text[0]) {
        st = load(&r);
        if (st == SHERD_OK)
            st = comm_agree(engine->comm, r.rank == 0 ? say(&r) : SHERD_OK);
        *found = 1;
    } else if (st == SHERD_OK && r.rank == 0 && config->run.resume == SHERD_RESUME_AUTO) {
        log_info("nothing to resume in %s: starting at step 1", config->run.dir);
    }
    text_finish(&r.damaged);
    return st;
}
