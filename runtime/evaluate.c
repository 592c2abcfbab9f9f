/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * An evaluation apart from training: weights from a folder, data, one pass. Everything is frozen, so that the
 * plan has forward alone.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <sherd/ckpt.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "runtime/carry.h"
#include "runtime/evaluation.h"
#include "runtime/reading.h"
#include "runtime/resume.h"

#define MODEL_STEP (-1) /* result.step of a model folder */

struct pass {
    const struct sherd_evaluate_desc *desc;
    struct sherd_evaluate_result *out; /* rank 0 tells the others from where, and whether that is a model */
    struct sherd_config config;        /* a copy in which everything is frozen and the batch is known */
    char every[2], *frozen[1];         /* its model.freeze */
    struct sherd_model *model;
    struct sherd_engine *engine;
    struct reading data;
    struct evaluation evaluation;
    int rank, world;
};

/* --- the weights, found by rank 0 before anything is allocated --- */

static int set_from(struct pass *p, const char *path)
{
    size_t most = sizeof(p->out->from);
    return snprintf(p->out->from, most, "%s", path) < (int)most
               ? SHERD_OK
               : SHERD_FAIL(SHERD_EINVAL, "%s: the path is too long", path);
}

static int find_checkpoint(struct pass *p, const char *from)
{
    char *path;
    SHERD_TRY(sherd_ckpt_find(&path, from));
    int st = set_from(p, path);
    mem_free(path);
    return st;
}

/* What the data must be: text or tokens of the tokenizer in the folder of the model, or of the run. */
static int check_tokens(const struct pass *p)
{
    const char *from = p->out->from, *slash = strrchr(from, '/');
    int is_model = p->out->step == MODEL_STEP;
    char *folder = is_model ? mem_strdup(from)
                   : slash  ? mem_printf("%.*s", (int)MAX(slash - from, 1), from)
                            : mem_strdup(".");
    int st = folder ? reading_check_eval(&p->data, &p->config, folder) : SHERD_ENOMEM;
    if (st == SHERD_OK)
        st = carry_compare_val(&p->config, "the model", folder);
    mem_free(folder);
    return st;
}

/* A figure of other settings than those of the run is no figure of that run. */
static int warn_settings(const struct pass *p)
{
    struct text line = { 0 };
    int st = resume_other_loss(&line, p->out->from, &p->config);
    if (st != SHERD_OK && st != SHERD_ENOMEM) {
        log_warn("whether the settings are those it was saved with is not known: %s", sherd_error());
        st = SHERD_OK;
    }
    if (line.data)
        log_warn("%s: %s", p->out->from, line.data);
    text_finish(&line);
    return st;
}

static int find_weights(struct pass *p)
{
    const char *from = p->desc->from ? p->desc->from : p->config.run.dir;
    if (!file_is_dir(from) && !p->desc->from)
        return CONFIG_FAIL(&p->config, "run.dir",
            "there is no folder %s, and so no checkpoint in it (paths count from where the program was started)",
            from);
    if (!file_is_dir(from))
        return SHERD_FAIL(SHERD_ENOTFOUND,
            "%s: there is no such folder; name that of a run, of a step, or of a Hugging Face model", from);
    if (sherd_weights_found(from)) {
        p->out->step = MODEL_STEP;
        SHERD_TRY(set_from(p, from));
        return check_tokens(p);
    }
    SHERD_TRY(find_checkpoint(p, from));
    SHERD_TRY(check_tokens(p));
    return warn_settings(p);
}

/* --- the pass --- */

/* The sizes of a step are of no concern: any number of ranks will do where the micro-batch is given. */
static int settle_batch(struct sherd_config *c, int world)
{
    if (c->batch.micro <= 0)
        return config_derive_batch(c, world);
    c->batch.accum = 1;
    c->batch.global = c->batch.micro * world;
    return SHERD_OK;
}

static int make_config(struct pass *p)
{
    SHERD_TRY(config_copy(&p->config, p->desc->config));
    strcpy(p->every, "*");
    p->frozen[0] = p->every;
    p->config.model.freeze = (struct sherd_texts){ p->frozen, 1 };
    return settle_batch(&p->config, p->world);
}

/* What every rank can do alone. */
static int prepare(struct pass *p)
{
    SHERD_TRY(make_config(p));
    SHERD_TRY(sherd_config_model(&p->model, &p->config));
    SHERD_TRY(reading_open_eval(&p->data, &p->config, p->rank, p->world));
    SHERD_TRY(evaluation_init(&p->evaluation, &p->config, &p->data.eval));
    p->evaluation.progress = p->desc->progress;
    p->evaluation.ctx = p->desc->ctx;
    return p->rank == 0 ? find_weights(p) : SHERD_OK;
}

static int load(struct pass *p)
{
    struct sherd_engine *e = p->engine;
    SHERD_TRY(comm_host_broadcast(e->comm, p->out, sizeof(*p->out), 0));
    if (p->out->step == MODEL_STEP)
        return sherd_engine_import(e, p->out->from, NULL);
    SHERD_TRY(sherd_engine_load(e, p->out->from));
    p->out->step = e->step;
    return SHERD_OK;
}

static int run(struct pass *p)
{
    struct evaluation_result result;
    struct sherd_evaluate_result *out = p->out;
    double began = clock_seconds();
    SHERD_TRY(evaluation_run(&p->evaluation, p->engine, &result));
    out->loss = result.loss;
    out->tokens = result.tokens;
    out->samples = eval_windows(&p->data.eval, p->evaluation.limit);
    out->there = p->data.eval.sampler.windows;
    out->seconds = clock_seconds() - began;
    if (out->tokens == 0)
        return CONFIG_FAIL(&p->config, "data.end",
            "there is no loss: all that is evaluated on follows this token; is it the one that ends documents?");
    if (!isfinite(out->loss))
        return SHERD_FAIL(SHERD_ENONFINITE,
            "%s: the loss over %lld tokens is not a finite number; `sherd verify` tells whether the weights are",
            out->from, (long long)out->tokens);
    return SHERD_OK;
}

int sherd_evaluate(const struct sherd_evaluate_desc *desc, struct sherd_evaluate_result *out)
{
    if (!desc || !desc->config || !desc->device || !out)
        return SHERD_FAIL(SHERD_EINVAL,
            "an evaluation needs a config, a device and a place for the result: desc, config, device or out is NULL");
    struct pass p = { .desc = desc,
        .out = out,
        .rank = desc->comm ? sherd_comm_rank(desc->comm) : 0,
        .world = desc->comm ? sherd_comm_size(desc->comm) : 1 };
    int st = watch_start(desc->comm, "init: settings and data");
    *out = (struct sherd_evaluate_result){ 0 };
    if (st == SHERD_OK)
        st = prepare(&p);
    if (desc->comm)
        st = comm_agree(desc->comm, st);
    if (st != SHERD_OK)
        goto out;
    SHERD_TRY_OUT(sherd_engine_create_blank(
        &p.engine, &(struct sherd_engine_desc){
                       .config = &p.config, .model = p.model, .device = desc->device, .comm = desc->comm }));
    SHERD_TRY_OUT(reading_compare(&p.data, p.engine->comm));
    SHERD_TRY_OUT(load(&p));
    st = run(&p);
out:
    sherd_engine_destroy(p.engine);
    sherd_model_destroy(p.model);
    reading_finish(&p.data);
    evaluation_finish(&p.evaluation);
    sherd_config_free(&p.config);
    return st;
}
