/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * When a run saves, and what becomes of it: see runtime/saving.h. Writing itself is ckpt/'s matter.
 */
#include "runtime/saving.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/text.h"
#include "ckpt/format.h"
#include "ckpt/hf.h"
#include "runtime/config.h"
#include "runtime/watch.h"

#define LOCK_FILE ".lock"
#define RECORD_BYTES ((size_t)16 << 20) /* of a file that a run writes beside its checkpoints */

/* Written whole beside checkpoints, by this run alone. */
static const char *const records[] = { "config.yaml", "metrics.jsonl", WATCH_RECORD };

int saving_lock(struct saving *s, const char *dir)
{
    char *path = mem_printf("%s/" LOCK_FILE, dir);
    int st = path ? file_lock(&s->lock, path) : SHERD_ENOMEM;
    if (st == SHERD_EEXISTS)
        st = status_context(
            st, "another run writes into %s: wait for it, stop it, or choose another run.dir", dir);
    if (st == SHERD_EUNSUPPORTED) {
        log_warn("%s: nothing keeps a second run from writing here", sherd_error());
        st = SHERD_OK;
    }
    mem_free(path);
    return st;
}

/* Whether `dir/name` is there, and begins with other words; some of these in `words`. */
static int look_at(
    const char *dir, const char *name, const char *begin, char words[40], int *there, int *other)
{
    char *path = mem_printf("%s/%s", dir, name), *text = NULL;
    *there = *other = 0;
    if (!path)
        return SHERD_ENOMEM;
    int st = file_exists(path) ? file_read_text(&text, NULL, path, RECORD_BYTES) : SHERD_OK;
    if (text) {
        *there = 1;
        *other = !text_starts(text, begin);
        snprintf(words, 40, "%.*s", (int)strcspn(text, "\r\n"), text);
    }
    mem_free(text);
    mem_free(path);
    return st;
}

int saving_own(const char *dir)
{
    char words[40];
    int run, step, other;
    SHERD_TRY(look_at(dir, "config.yaml", CONFIG_PRINTED, words, &run, &other));
    if (other)
        return SHERD_FAIL(SHERD_ECONFIG,
            "run.dir: %s/config.yaml was not written by a run, which keeps its settings under that name: move the "
            "file, or name another folder",
            dir);
    SHERD_TRY(look_at(dir, CKPT_LATEST, CKPT_STEP_PREFIX, words, &step, &other));
    if (other)
        return SHERD_FAIL(SHERD_ECONFIG,
            "run.dir: %s/" CKPT_LATEST
            " is that of another program ('%s'), and a run would write over it: name "
            "another folder",
            dir, words);
    if (!run && !step && hf_is_model(dir))
        return SHERD_FAIL(SHERD_ECONFIG,
            "run.dir: %s is the folder of a model, whose files a run would mix with its own: name another folder",
            dir);
    return SHERD_OK;
}

void saving_unlock(struct saving *s)
{
    (void)file_close(s->lock, LOCK_FILE);
    s->lock = -1;
}

/* Checkpoints that will lie in the folder at once, with the one that is being written. */
static int64_t count_kept(const struct saving *s)
{
    const struct sherd_config *c = s->config;
    int64_t steps = c->train.steps,
            saves = c->save.every ? steps / c->save.every + (steps % c->save.every > 0) : 1;
    if (c->save.keep == 0)
        return saves;
    int64_t kept = c->save.keep + c->save.keep_best + 1;
    if (c->save.keep_every)
        kept += steps / c->save.keep_every;
    return MIN(kept, saves);
}

static void tell_need(const struct saving *s, const struct engine_save_room *room)
{
    char one[32], need[32], has[32];
    uint64_t each = room->all, available;
    int64_t n = count_kept(s);
    double total = (double)each * (double)n;
    int known = file_free_space(&available, s->config->run.dir) == SHERD_OK;
    log_info("checkpoints: %s each, up to %lld at once: %s%s%s", text_human_bytes((double)each, one),
        (long long)n, text_human_bytes(total, need), known ? "; free there: " : "",
        known ? text_human_bytes((double)available, has) : "");
    if (known && total > (double)available)
        log_warn("%s has less room than the checkpoints of this run will take (those that lie there already "
                 "count for it): free some, or set save.keep lower",
            s->config->run.dir);
}

/* By what they are written, and through how much memory. */
static void tell_way(const struct saving *s, const struct engine_save_room *room)
{
    char memory[32], state[32];
    const char *writer = ckpt_saver_writer(s->engine->saver);
    text_human_bytes((double)room->memory, memory);
    if (!s->config->save.async)
        log_info("checkpoints are written by %s", writer);
    else if (room->memory >= room->state)
        log_info("checkpoints are written beside training by %s, through %s of host memory a rank", writer,
            memory);
    else
        log_info(
            "checkpoints are written beside training by %s, through %s of host memory a rank; its state takes "
            "%s, and the update after a save waits until the rest is written (%s)",
            writer, memory, text_human_bytes((double)room->state, state),
            s->config->save.buffer ? "save.buffer" : "more than half of what is free would be needed");
}

int saving_place(struct sherd_engine *engine, const struct sherd_config *config)
{
    if (config->save.what == SHERD_SAVE_NOTHING)
        return SHERD_OK;
    struct file_watch before = comm_beat_with_files(engine->comm);
    int st = ckpt_check_shared(engine->comm, config->run.dir);
    file_watch(before);
    return st;
}

/* What a run that died left. */
static int clear_away(const char *dir)
{
    SHERD_TRY(ckpt_tidy(dir));
    for (size_t i = 0; i < ARRAY_LEN(records); i++)
        SHERD_TRY(file_clear_temps(dir, records[i]));
    return SHERD_OK;
}

int saving_init(struct saving *s, struct sherd_engine *engine, const struct sherd_config *config,
    struct meter *meter, const char *extra)
{
    struct engine_save_room room = { 0 };
    uint64_t buffer = 0;
    s->engine = engine;
    s->config = config;
    s->meter = meter;
    s->extra = extra;
    s->loss_step = s->told = -1;
    s->keep = (struct ckpt_keep){ config->save.keep, config->save.keep_every, config->save.keep_best };
    if (config->save.async)
        buffer = config->save.buffer ? (uint64_t)config->save.buffer << 20 : ENGINE_SAVE_AUTO;
    struct file_watch before = comm_beat_with_files(engine->comm);
    int st = sherd_comm_rank(engine->comm) == 0 ? clear_away(config->run.dir) : SHERD_OK;
    file_watch(before);
    SHERD_TRY(comm_agree(engine->comm, st));
    SHERD_TRY(engine_save_prepare(engine, buffer, &room));
    if (sherd_comm_rank(engine->comm) != 0)
        return SHERD_OK;
    if (config->save.what == SHERD_SAVE_NOTHING) {
        log_info("nothing will be saved (save.what)");
        return SHERD_OK;
    }
    tell_need(s, &room);
    tell_way(s, &room);
    return SHERD_OK;
}

void saving_loss(struct saving *s, double loss)
{
    s->loss_step = s->engine->step;
    s->loss = loss;
}

/* "2.3 ms" */
static const char *brief(double seconds, char buf[32])
{
    snprintf(buf, 32, seconds < 1 ? "%.1f ms" : "%.0f ms", 1e3 * seconds);
    return buf;
}

/* What the save that has just ended took, by rank 0, once. */
static int tell_times(struct saving *s)
{
    char still[32], begin[32], wait[32], copied[32], copy[32];
    const struct ckpt_times *t = ckpt_saver_times(s->engine->saver);
    if (t->step < 0 || t->step == s->told || sherd_comm_rank(s->engine->comm) != 0)
        return SHERD_OK;
    s->told = t->step;
    if (s->beside)
        log_info(
            "step %lld: training stood still for %s to begin its save (%s of them its own) and %s before "
            "updates; %s copied in %s",
            (long long)t->step, brief(s->still, still), brief(t->begin_seconds, begin),
            brief(t->wait_seconds, wait), text_human_bytes((double)t->copied_bytes, copied),
            brief(t->copy_seconds, copy));
    return meter_save(s->meter, t, s->still);
}

/* A save has ended, or goes on: a failure is the run's, or a warning. */
static int settle(struct saving *s, int st, int last)
{
    if (st == SHERD_OK)
        return tell_times(s);
    st = status_context(st, "the checkpoint of step %lld was not written", (long long)s->step);
    if (last || s->config->save.on_failure == SHERD_FAILURE_STOP)
        return st;
    log_warn("%s; training goes on", sherd_error());
    return SHERD_OK;
}

int saving_poll(struct saving *s)
{
    int busy;
    return settle(s, sherd_engine_save_poll(s->engine, &busy), 0);
}

int saving_end(struct saving *s)
{
    return settle(s, sherd_engine_save_wait(s->engine), 0);
}

int saving_save(struct saving *s, int last)
{
    struct sherd_engine *e = s->engine;
    double start = clock_seconds();
    int before = saving_end(s);
    if (before != SHERD_OK && !last)
        return before;
    if (before != SHERD_OK)
        log_warn("%s; step %lld is saved all the same", sherd_error(), (long long)e->step);
    s->step = e->step;
    struct engine_save save = { .dir = s->config->run.dir,
        .extra = s->extra,
        .keep = &s->keep,
        .has_loss = s->loss_step == e->step && isfinite(s->loss),
        .loss = s->loss };
    int st = engine_save_start(e, &save);
    int waits = st == SHERD_OK && (last || !s->config->save.async);
    if (waits)
        st = sherd_engine_save_wait(e);
    s->still = clock_seconds() - start;
    s->beside = !waits;
    if (st == SHERD_OK && !waits && sherd_comm_rank(e->comm) == 0)
        log_info("step %lld is being saved", (long long)e->step);
    return settle(s, st, last);
}
