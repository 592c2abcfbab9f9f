/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The training loop: batch, step, report, evaluate, save, stop. All ranks run it side by side; rank 0 speaks.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "device/ops.h"
#include "model/model.h"
#include "runtime/carry.h"
#include "runtime/config.h"
#include "runtime/engine.h"
#include "runtime/evaluation.h"
#include "runtime/meter.h"
#include "runtime/reading.h"
#include "runtime/resume.h"
#include "runtime/saving.h"

struct run {
    const struct sherd_train_desc *desc;
    struct sherd_config config; /* a copy, with the batch derived and train.steps known */
    struct sherd_model *model;
    struct sherd_engine *engine;
    struct reading data;
    int told_nothing;          /* that a step had no targets */
    struct sherd_batch *micro; /* of a step, over what was read ahead */
    struct evaluation evaluation;
    struct meter meter;
    struct saving saving;
    char *extra; /* JSON kept in every checkpoint */
    int rank, world;
};

/* Batch i over a row of tokens and one of targets. */
static void set_batch(struct run *r, int64_t i, const int32_t *rows)
{
    int64_t row = r->config.batch.micro * r->config.batch.seq;
    r->micro[i] = (struct sherd_batch){ rows + 2 * i * row, rows + (2 * i + 1) * row, r->config.batch.micro };
}

static int alloc_batches(struct run *r)
{
    if (r->data.evaluates)
        SHERD_TRY(evaluation_init(&r->evaluation, &r->config, &r->data.eval));
    r->evaluation.stop = r->desc->stop;
    r->evaluation.ctx = r->desc->ctx;
    r->micro = mem_zalloc((size_t)feed_accum(&r->data.feed), sizeof(*r->micro));
    return r->micro ? reading_start(&r->data) : SHERD_ENOMEM;
}

/* The settings as a config that can be trained with: one by epochs names no steps, which the data give. */
static int print_settings(char **yaml, const struct run *r)
{
    struct sherd_config c = r->config;
    if (r->data.feed.total > 0)
        c.train.steps = 0;
    return sherd_config_print(&c, yaml);
}

/* {"config": "<the effective settings as YAML>", "steps": of the run, also where it goes by epochs,
 * "data": {"tokens": number, "sum": "16 hex digits"}} */
static int make_extra(struct run *r)
{
    char *yaml = NULL;
    SHERD_TRY(print_settings(&yaml, r));
    json_t *object =
        json_pack("{s:s, s:I, s:{s:I, s:s}}", "config", yaml, "steps", (json_int_t)r->config.train.steps,
            "data", "tokens", (json_int_t)r->data.mark.count, "sum", r->data.mark.sum);
    int st = object ? json_print(&r->extra, object, 0) : MEM_OUT("the run's settings");
    json_decref(object);
    mem_free(yaml);
    return st;
}

/* The settings beside the run's checkpoints. A start that is refused leaves those of the run that is there.
 */
static int write_config(const struct run *r)
{
    char *yaml = NULL, *path = NULL;
    SHERD_TRY(print_settings(&yaml, r));
    path = mem_printf("%s/config.yaml", r->config.run.dir);
    int st = path ? file_write_atomic(path, yaml, strlen(yaml)) : SHERD_ENOMEM;
    mem_free(path);
    mem_free(yaml);
    return st;
}

/* What became of the keys of another system's file: all of it once, and where it stands when a run goes on.
 */
static void say_remarks(const struct sherd_config *config, int resumed)
{
    const struct config_origin *origin = config->origin;
    char *text, *line, *end;
    if (resumed && origin && origin->foreign)
        log_info("settings from %s: %s/config.yaml tells what became of its keys, as does `sherd config`",
            origin->foreign, config->run.dir);
    if (resumed || sherd_config_remarks(config, &text) != SHERD_OK)
        return;
    for (line = text; (end = strchr(line, '\n')); line = end + 1) {
        *end = '\0';
        log_info("%s", line);
    }
    mem_free(text);
}

/* What the model that is trained on asks for, and does not get. */
static void say_dropout(const struct sherd_config *config)
{
    const struct config_origin *origin = config->origin;
    char *text = NULL;
    if (!origin || !origin->from_json || model_dropout(&text, origin->from_json) != SHERD_OK)
        return;
    if (text[0])
        log_info("model.from asks for dropout (%s); it is trained without", text);
    mem_free(text);
}

static void say_start(struct run *r)
{
    struct sherd_config *c = &r->config;
    struct sherd_memory m;
    char a[32], b[32], device[128];
    const struct sherd_device *dev = r->desc->device;
    const struct plan *p = &r->engine->plan;
    sherd_engine_memory(r->engine, &m);
    log_info("model %s: %s parameters, %s of them trained, in %d units", c->model.family,
        text_commas(p->layout.params, a),
        p->layout.trained == p->layout.params ? "all" : text_commas(p->layout.trained, b), p->spec->n_units);
    say_dropout(c);
    snprintf(device, sizeof(device), "%s%s%s%s", dev->name, dev->model[0] ? " (" : "", dev->model,
        dev->model[0] ? ")" : "");
    log_info(
        "%s (stage %d) over %d rank%s on %s; weights %s, masters %s, optimizer state %s, gradients on the wire %s",
        p->stage->name, p->stage->number, r->world, r->world == 1 ? "" : "s", device,
        sherd_dtype_name(c->dtype.param), c->dtype.master == SHERD_MASTER_SPLIT ? "split" : "f32",
        sherd_dtype_name(c->dtype.state), sherd_dtype_name(c->dtype.reduce));
    if (r->world == 1 && p->stage->number > 0)
        log_info(
            "one rank alone: stage %d has nobody to shard over, and trains all the same", p->stage->number);
    log_info("memory of one rank: %s; see `sherd plan` for what it is",
        text_human_bytes((double)sherd_memory_total(&m), a));
    log_info("batch: %lld sequences = %lld micro x %lld accum x %d rank%s, of %lld tokens; %lld step%s",
        (long long)c->batch.global, (long long)c->batch.micro, (long long)feed_accum(&r->data.feed), r->world,
        r->world == 1 ? "" : "s", (long long)c->batch.seq, (long long)c->train.steps,
        c->train.steps == 1 ? "" : "s");
}

/* From the newest checkpoint, from other weights, or from the seed. */
static int set_weights(struct run *r)
{
    int resumed;
    SHERD_TRY(resume_run(r->engine, &r->config, &r->data.mark, &resumed));
    if (r->rank == 0)
        say_remarks(&r->config, resumed);
    if (resumed)
        return SHERD_OK;
    return config_has_from(&r->config) ? sherd_engine_import(r->engine, r->config.model.from, NULL)
                                       : engine_init_weights(r->engine);
}

static int save(struct run *r, int last)
{
    int st = saving_save(&r->saving, last);
    meter_mark(&r->meter);
    return st;
}

/* A loss that is no number is none by which checkpoints are kept. */
static int report_eval(struct run *r, int64_t step, double loss, int64_t tokens)
{
    if (tokens == 0)
        log_warn(
            "step %lld | there is no validation loss: none of the validation data's tokens is learnt from",
            (long long)step);
    else if (!isfinite(loss))
        log_warn("step %lld | the validation loss is not a finite number, over %lld tokens", (long long)step,
            (long long)tokens);
    else
        log_info(
            "step %lld | validation loss %.4f over %lld tokens", (long long)step, loss, (long long)tokens);
    return meter_eval(&r->meter, step, loss, tokens);
}

/* An evaluation may be long, so it is left when a rank is asked to stop: *stop. */
static int evaluate(struct run *r, int *stop)
{
    struct evaluation_result result;
    int64_t step = r->engine->step;
    SHERD_TRY(evaluation_run(&r->evaluation, r->engine, &result));
    int st = SHERD_OK;
    *stop = result.stopped;
    if (!result.stopped)
        saving_loss(&r->saving, result.loss);
    if (r->rank == 0 && result.stopped)
        log_info("step %lld: the evaluation is left, the run was asked to stop", (long long)step);
    else if (r->rank == 0)
        st = report_eval(r, step, result.loss, result.tokens);
    meter_mark(&r->meter);
    return st;
}

/* Names a rank that holds the others up. */
static void say_slow(struct run *r)
{
    struct text line = { 0 };
    watch_slow(r->engine, &line);
    if (line.data)
        log_info("%s", line.data);
    text_finish(&line);
}

static int open_meter(struct run *r)
{
    const struct sherd_config *c = &r->config;
    double peak =
        c->log.peak_tflops > 0 ? c->log.peak_tflops : meter_peak(r->desc->device->model, c->dtype.param);
    return meter_init(&r->meter, &(struct meter_desc){ .dir = c->run.dir,
                                     .jsonl = c->log.jsonl,
                                     .tensorboard = c->log.tensorboard,
                                     .scaled = c->dtype.param == SHERD_F16,
                                     .steps = c->train.steps,
                                     .world = r->world,
                                     .goes_on = c->save.on_failure == SHERD_FAILURE_CONTINUE,
                                     .flops = model_flops(r->model, c->batch.seq),
                                     .peak = peak * 1e12 });
}

static int start_meter(struct run *r)
{
    struct sherd_memory memory;
    sherd_engine_memory(r->engine, &memory);
    if (r->engine->step > 0)
        SHERD_TRY(meter_resume(&r->meter, r->engine->step));
    return meter_start(
        &r->meter, r->engine->step, r->engine->plan.stage->number, r->engine->plan.layout.params, &memory);
}

/* A batch without targets changes weights by their decay alone, and looks like a loss of 0. */
static void say_nothing_learnt(struct run *r, const struct sherd_step_stats *stats)
{
    if (stats->tokens == 0 && !r->told_nothing)
        log_warn("step %lld: none of its tokens is learnt from%s; this is said once", (long long)stats->step,
            r->config.data.end >= 0 ? ": each follows data.end, is that the id that ends documents?" : "");
    r->told_nothing |= stats->tokens == 0;
}

static int report(struct run *r, const struct sherd_step_stats *stats, const uint64_t sent[SHERD_COLLECTIVES])
{
    struct text line = { 0 };
    if (r->rank != 0)
        return SHERD_OK;
    say_nothing_learnt(r, stats);
    int st = meter_step(&r->meter, stats, sent, &line);
    if (r->desc->progress && line.data)
        r->desc->progress(r->desc->ctx, line.data);
    if (exposed_line(&r->config, stats->step)) {
        log_info("%s", line.data ? line.data : "no memory for the progress line");
        meter_mark(&r->meter);
        say_slow(r);
    }
    text_finish(&line);
    return st;
}

/* Tells what was timed; the rest of the run is not. */
static int end_profile(struct run *r)
{
    struct profile *p = r->engine->profile;
    int st = profile_write(p);
    for (int i = 0; i < p->n_steps && r->rank == 0 && st == SHERD_OK; i++)
        st = meter_exposed(&r->meter, p->steps[i].step, 1e-3 * p->steps[i].busy, 1e-3 * p->steps[i].exposed,
            1e-3 * p->steps[i].idle);
    profile_destroy(r->engine->profile);
    r->engine->profile = NULL;
    meter_mark(&r->meter);
    return st;
}

/* What libraries take shows once every operation and collective of a step has been called. */
static void tell_libraries(const struct run *r)
{
    char a[32];
    struct sherd_device_counters c;
    sherd_device_read(r->engine->dev, &c);
    if (r->rank == 0 && c.library_bytes > 0)
        log_info("libraries and queues of the device have taken %s of its memory besides",
            text_human_bytes((double)c.library_bytes, a));
}

/* One optimizer step. A rank whose data cannot be read takes everybody with it, by name. */
static int one_step(struct run *r)
{
    struct sherd_step_stats stats;
    uint64_t before[SHERD_COLLECTIVES], sent[SHERD_COLLECTIVES];
    int64_t accum = feed_accum(&r->data.feed), cursor = r->engine->samples_seen;
    const int32_t *rows;
    int st = watch_part(r->engine, WATCH_DATA, "data");
    if (st == SHERD_OK)
        st = ahead_take(r->data.ahead, cursor, &rows);
    if (st != SHERD_OK)
        return step_give_up(r->engine, st);
    for (int64_t m = 0; m < accum; m++)
        set_batch(r, m, rows);
    r->engine->flag = r->desc->stop && r->desc->stop(r->desc->ctx);
    engine_sent(r->engine, before);
    SHERD_TRY(sherd_engine_step(r->engine, r->micro, (int)accum, &stats));
    engine_sent(r->engine, sent);
    for (int i = 0; i < SHERD_COLLECTIVES; i++)
        sent[i] -= before[i];
    SHERD_TRY(report(r, &stats, sent));
    return profile_full(r->engine->profile) ? end_profile(r) : SHERD_OK;
}

static int due(int64_t step, int64_t every)
{
    return every > 0 && step % every == 0;
}

static int loop(struct run *r)
{
    struct sherd_engine *e = r->engine;
    int64_t before = e->step;
    while (e->step < r->config.train.steps) {
        SHERD_TRY(one_step(r));
        if (e->step == before + 1)
            tell_libraries(r);
        SHERD_TRY(saving_poll(&r->saving));
        int stop = e->host_scalars[SCALAR_FLAG] > 0;
        if (r->data.evaluates &&
            (due(e->step, r->config.train.eval_every) || e->step == r->config.train.steps) && !stop)
            SHERD_TRY(evaluate(r, &stop));
        int last = stop || e->step == r->config.train.steps;
        int saves = r->config.save.what != SHERD_SAVE_NOTHING;
        if (saves && (due(e->step, r->config.save.every) || last))
            SHERD_TRY(save(r, last));
        if (stop)
            return SHERD_FAIL(SHERD_ESTOPPED, "stopped on request after step %lld; %s", (long long)e->step,
                saves ? "saved, `--resume` goes on from there" : "nothing was saved (save.what)");
    }
    return e->profile ? end_profile(r) : SHERD_OK;
}

/* What every rank can do alone; the others learn of a failure at comm_agree. */
static int prepare(struct run *r)
{
    SHERD_TRY(config_copy(&r->config, r->desc->config));
    SHERD_TRY(config_check_train(&r->config));
    SHERD_TRY(config_derive_batch(&r->config, r->world));
    SHERD_TRY(sherd_config_model(&r->model, &r->config));
    SHERD_TRY(reading_open(&r->data, &r->config, r->rank, r->world));
    if (r->rank == 0) {
        SHERD_TRY(file_mkdirs(r->config.run.dir));
        SHERD_TRY(saving_own(r->config.run.dir));
        SHERD_TRY(saving_lock(&r->saving, r->config.run.dir));
    }
    return alloc_batches(r);
}

/* Ends a save that was begun before a step failed on all ranks alike; the step's own text is kept. */
static int end_save(struct run *r, int st)
{
    char *text = mem_strdup(sherd_error());
    if (saving_end(&r->saving) != SHERD_OK)
        log_error("%s", sherd_error());
    st = text ? status_adopt(st, text) : st;
    mem_free(text);
    return st;
}

int sherd_train(const struct sherd_train_desc *desc)
{
    if (!desc || !desc->config || !desc->device)
        return SHERD_FAIL(SHERD_EINVAL, "a run needs a config and a device: desc, config or device is NULL");
    struct run r = { .desc = desc,
        .config = *desc->config,
        .rank = desc->comm ? sherd_comm_rank(desc->comm) : 0,
        .world = desc->comm ? sherd_comm_size(desc->comm) : 1,
        .saving = { .lock = -1 },
        .meter = METER_NONE };
    int why = SHERD_OK, st = watch_start(desc->comm, "init: settings and data");
    if (st == SHERD_OK)
        st = prepare(&r);
    if (desc->comm)
        st = comm_agree_why(desc->comm, st, &why);
    if (st != SHERD_OK)
        goto out;
    SHERD_TRY_OUT(sherd_engine_create_blank(
        &r.engine, &(struct sherd_engine_desc){
                       .config = &r.config, .model = r.model, .device = desc->device, .comm = desc->comm }));
    SHERD_TRY_OUT(reading_compare(&r.data, r.engine->comm));
    SHERD_TRY_OUT(plan_check_trained(&r.engine->plan)); /* the same on all ranks */
    st = make_extra(&r);
    if (st == SHERD_OK && r.rank == 0)
        st = open_meter(&r);
    SHERD_TRY_OUT(comm_agree(r.engine->comm, st));
    if (r.rank == 0)
        say_start(&r);
    SHERD_TRY_OUT(saving_place(r.engine, &r.config));
    SHERD_TRY_OUT(set_weights(&r));
    st = r.rank == 0 ? write_config(&r) : SHERD_OK;
    if (r.rank == 0 && st == SHERD_OK)
        st = start_meter(&r);
    if (r.rank == 0 && st == SHERD_OK)
        st = carry_files(&r.config);
    SHERD_TRY_OUT(comm_agree(r.engine->comm, st));
    if (r.rank == 0 && r.engine->step >= r.config.train.steps)
        log_info("the checkpoint is at step %lld, train.steps is %lld: nothing to do",
            (long long)r.engine->step, (long long)r.config.train.steps);
    if (r.config.profile.on)
        SHERD_TRY_OUT(comm_agree(r.engine->comm, profile_create(&r.engine->profile, r.engine, &r.config)));
    SHERD_TRY_OUT(saving_init(&r.saving, r.engine, &r.config, &r.meter, r.extra));
    meter_mark(&r.meter);
    st = loop(&r);
    if (st == SHERD_ENONFINITE) /* of all ranks at once: a save that was begun is still good */
        st = end_save(&r, st);
out:
    /* refused by one rank before all began: the folder may be that of a run which is at work */
    if (st != SHERD_OK && (why == SHERD_OK || watch_records(why)))
        st = watch_record(desc->comm, desc->config->run.dir, st);
    meter_finish(&r.meter);
    sherd_engine_destroy(r.engine);
    sherd_model_destroy(r.model);
    reading_finish(&r.data);
    mem_free(r.micro);
    evaluation_finish(&r.evaluation);
    mem_free(r.extra);
    saving_unlock(&r.saving);
    sherd_config_free(&r.config);
    return st;
}
