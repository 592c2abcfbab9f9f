/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Saving: see ckpt/ckpt.h. Every rank walks the same way:
 *   plan, agree | rank 0: check, make the temporary folder, agree | stream the files to disk, agree |
 *   rank 0: manifest, rename, rotation, agree
 * The third and the fourth part go on beside the caller.
 */
#include "ckpt/save.h"

#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/status.h"
#include "base/text.h"
#include "ckpt/open.h"
#include "ckpt/views.h"

#define HEADER_GROWTH 64 /* bytes, as steps get more digits */

struct ckpt_saver {
    struct sherd_comm *comm;
    struct stream *stream;
    enum { IDLE, WRITING, COMMITTING } phase;
    struct ckpt_times times;
    int *busy; /* of all ranks */
    struct save save;
};

/* ---- planning ---- */

/* What is kept as JSON is JSON: better known before gigabytes are written. */
static int check_json(const char *text, const char *what)
{
    json_t *object;
    if (!text)
        return SHERD_OK;
    int st = json_parse(&object, text, strlen(text), what);
    if (st != SHERD_OK)
        return status_context(st, "checkpoint member '%s' must be a JSON object", what);
    json_decref(object);
    return SHERD_OK;
}

static int copy(struct manifest *m, const char **text)
{
    if (!*text)
        return SHERD_OK;
    *text = arena_strdup(&m->arena, *text);
    return *text ? SHERD_OK : SHERD_ENOMEM;
}

/* The job's texts may be gone when the manifest is written. */
static int copy_meta(struct manifest *m, const struct ckpt_job *job)
{
    m->meta = job->meta;
    m->meta.nonfinite = 0;
    const char **states = arena_zalloc(&m->arena, (size_t)job->meta.n_states, sizeof(*states));
    if (!states)
        return SHERD_ENOMEM;
    for (int i = 0; i < job->meta.n_states; i++) {
        states[i] = job->meta.states[i];
        SHERD_TRY(copy(m, &states[i]));
    }
    m->meta.states = states;
    SHERD_TRY(copy(m, &m->meta.optimizer));
    SHERD_TRY(copy(m, &m->meta.export_json));
    return copy(m, &m->meta.extra);
}

static int plan_lists(struct save *s, const struct ckpt_job *job)
{
    SHERD_TRY(views_check(job, job->meta.states, job->meta.n_states));
    s->reports = mem_zalloc((size_t)s->world, sizeof(*s->reports));
    if (!s->reports)
        return SHERD_ENOMEM;
    s->n_kinds = job->meta.n_states && job->layout->trained ? 2 : 1;
    for (int k = 0; k < s->n_kinds; k++) {
        SHERD_TRY(piece_list_init(&s->lists[k], job, k));
        s->files[k].list = &s->lists[k];
        s->reports[s->rank].bytes[k] = s->lists[k].file_bytes;
    }
    return SHERD_OK;
}

/* This rank's files, up to their sizes. */
static int plan(struct save *s, const struct ckpt_job *job, const char *dir)
{
    char name[CKPT_NAME_BYTES];
    if (job->meta.step < 0 || job->meta.step > CKPT_MAX_STEP || s->world > CKPT_MAX_WORLD)
        return SHERD_FAIL(SHERD_EUNSUPPORTED, "checkpoints hold steps up to %lld and up to %d ranks",
            (long long)CKPT_MAX_STEP, CKPT_MAX_WORLD);
    SHERD_TRY(check_json(job->meta.export_json, "model"));
    SHERD_TRY(check_json(job->meta.extra, "extra"));
    s->dir = mem_strdup(dir);
    if (!s->dir)
        return SHERD_ENOMEM;
    ckpt_step_name(name, CKPT_STEP_PREFIX, job->meta.step);
    s->final = ckpt_join(s->dir, name);
    if (!s->final)
        return SHERD_ENOMEM;
    SHERD_TRY(plan_lists(s, job));
    s->manifest.version = CKPT_VERSION;
    s->manifest.world = s->world;
    SHERD_TRY(copy_meta(&s->manifest, job));
    return s->rank == 0 ? piece_tensors(&s->manifest, job) : SHERD_OK;
}

static int gather_reports(struct save *s, struct sherd_comm *comm)
{
    struct save_report mine = s->reports[s->rank];
    uint64_t largest = 0;
    SHERD_TRY(comm_host_gather(comm, s->reports, &mine, sizeof(mine)));
    s->total = 0;
    for (int r = 0; r < s->world; r++) {
        for (int k = 0; k < CKPT_KINDS; k++) {
            s->total += s->reports[r].bytes[k];
            largest = MAX(largest, s->reports[r].bytes[k]);
        }
    }
    s->block = ckpt_block_bytes(largest);
    s->most_blocks = ckpt_blocks(largest, s->block);
    return SHERD_OK;
}

static int alloc_blocks(struct save *s)
{
    s->blocks = mem_zalloc((size_t)(s->world * s->n_kinds) * (size_t)s->most_blocks, sizeof(*s->blocks));
    if (!s->blocks)
        return SHERD_ENOMEM;
    for (int k = 0; k < s->n_kinds; k++)
        s->files[k].blocks = save_blocks(s, s->rank, k);
    return SHERD_OK;
}

static int see_folder(struct save *s)
{
    char name[CKPT_NAME_BYTES];
    if (!s->temp)
        s->temp = ckpt_join(s->dir, s->name);
    if (!s->temp)
        return SHERD_ENOMEM;
    SHERD_TRY(save_see(s->temp));
    for (int k = 0; k < s->n_kinds; k++) {
        manifest_file_name(name, (enum ckpt_kind)k, s->rank, s->world);
        s->files[k].path = ckpt_join(s->temp, name);
        if (!s->files[k].path)
            return SHERD_ENOMEM;
    }
    return SHERD_OK;
}

static int prepare(struct save *s, struct sherd_comm *comm, const struct ckpt_job *job, const char *dir)
{
    SHERD_TRY(comm_agree(comm, plan(s, job, dir)));
    SHERD_TRY(gather_reports(s, comm));
    int st = alloc_blocks(s);
    if (st == SHERD_OK && s->rank == 0)
        st = save_begin(s);
    SHERD_TRY(comm_agree(comm, st));
    SHERD_TRY(comm_host_broadcast(comm, s->name, sizeof(s->name), 0));
    return comm_agree(comm, see_folder(s));
}

static void save_finish(struct save *s)
{
    for (int k = 0; k < CKPT_KINDS; k++) {
        piece_list_finish(&s->lists[k]);
        mem_free(s->files[k].path);
    }
    manifest_finish(&s->manifest);
    mem_free(s->reports);
    mem_free(s->blocks);
    mem_free((char *)(uintptr_t)s->dir);
    mem_free(s->temp);
    mem_free(s->final);
    *s = (struct save){ 0 };
}

/* ---- the way of a save ---- */

/* What it took; nobody fails for that. */
static void take_times(struct ckpt_saver *saver)
{
    struct save *s = &saver->save;
    struct fill_times fill;
    if (fill_read(stream_fill(saver->stream), &fill) != SHERD_OK)
        log_warn("how long training waited for a save is not known: %s", sherd_error());
    saver->times = (struct ckpt_times){ .step = s->manifest.meta.step,
        .bytes = s->total,
        .copied_bytes = fill.bytes,
        .seconds = clock_seconds() - s->start,
        .begin_seconds = s->begun - s->start,
        .copy_seconds = fill.copied,
        .wait_seconds = fill.waited };
}

/* The save is over, well or not. */
static int end(struct ckpt_saver *saver, int st)
{
    struct save *s = &saver->save;
    char bytes[32], took[32];
    if (st == SHERD_OK)
        take_times(saver);
    if (st != SHERD_OK && s->rank == 0) {
        struct file_watch before = comm_beat_with_files(saver->comm);
        save_clean_up(s, st);
        file_watch(before);
    } else if (s->rank == 0) {
        log_info("saved %s: %s in %s", s->final, text_human_bytes((double)s->total, bytes),
            text_took(saver->times.seconds, took));
        if (s->manifest.meta.nonfinite)
            log_warn("%s holds values that are infinite or not a number: it is kept, and never resumed from "
                     "by itself",
                s->final);
    }
    char *text = st == SHERD_OK ? NULL : mem_strdup(sherd_error());
    save_finish(s);
    saver->phase = IDLE;
    if (text)
        status_adopt(st, text);
    mem_free(text);
    return st;
}

/* All ranks' files are on disk: what rank 0 needs for the manifest. */
static int gather_sums(struct save *s, struct sherd_comm *comm)
{
    size_t n = (size_t)s->n_kinds * (size_t)s->most_blocks;
    for (int k = 0; k < s->n_kinds; k++) {
        memcpy(s->reports[s->rank].sum[k], s->files[k].sum, SUM_TEXT_BYTES);
        if (s->files[k].nonfinite)
            log_warn("%s has values that are infinite or not a number", s->files[k].nonfinite);
        s->reports[s->rank].nonfinite |= s->files[k].nonfinite != NULL;
    }
    SHERD_TRY(gather_reports(s, comm));
    return comm_host_gather(comm, s->blocks, save_blocks(s, s->rank, 0), n * sizeof(*s->blocks));
}

static int commit(void *ctx)
{
    return save_commit(ctx);
}

/* The next phase; every rank's stream is at rest. */
static int advance(struct ckpt_saver *saver)
{
    struct save *s = &saver->save;
    int st = comm_agree(saver->comm, stream_wait(saver->stream));
    if (st != SHERD_OK || saver->phase == COMMITTING)
        return end(saver, st);
    st = gather_sums(s, saver->comm);
    if (st != SHERD_OK)
        return end(saver, st);
    saver->phase = COMMITTING;
    if (s->rank == 0)
        stream_run(saver->stream, commit, s);
    return SHERD_OK;
}

int ckpt_saver_create(
    struct ckpt_saver **out, struct sherd_comm *comm, struct sherd_device *dev, uint64_t buffer)
{
    struct ckpt_saver *saver = mem_zalloc(1, sizeof(*saver));
    if (!saver)
        return SHERD_ENOMEM;
    saver->comm = comm;
    saver->times.step = -1;
    saver->busy = mem_zalloc((size_t)sherd_comm_size(comm), sizeof(*saver->busy));
    int st = saver->busy ? stream_create(&saver->stream, dev, buffer, WRITE_ANY) : SHERD_ENOMEM;
    if (st != SHERD_OK) {
        ckpt_saver_destroy(saver);
        return st;
    }
    stream_tell(saver->stream, comm);
    *out = saver;
    return SHERD_OK;
}

void ckpt_saver_destroy(struct ckpt_saver *saver)
{
    if (!saver)
        return;
    stream_destroy(saver->stream);
    save_finish(&saver->save);
    mem_free(saver->busy);
    mem_free(saver);
}

const struct ckpt_times *ckpt_saver_times(const struct ckpt_saver *saver)
{
    return &saver->times;
}

uint64_t ckpt_saver_memory(const struct ckpt_saver *saver)
{
    return stream_memory(saver->stream);
}

const char *ckpt_saver_writer(const struct ckpt_saver *saver)
{
    return stream_writer(saver->stream);
}

struct sherd_queue *ckpt_saver_queue(const struct ckpt_saver *saver)
{
    return fill_queue(stream_fill(saver->stream));
}

int ckpt_saver_await(struct ckpt_saver *saver, int unit, struct sherd_queue *queue)
{
    return fill_await(stream_fill(saver->stream), unit, queue);
}

int ckpt_saver_start(
    struct ckpt_saver *saver, const struct ckpt_job *job, const char *dir, const struct ckpt_keep *keep)
{
    struct save *s = &saver->save;
    if (saver->phase != IDLE)
        return SHERD_FAIL(SHERD_EINVAL, "a save is under way: wait for it before the next is started");
    *s = (struct save){
        .rank = sherd_comm_rank(saver->comm), .world = sherd_comm_size(saver->comm), .start = clock_seconds()
    };
    if (keep) {
        s->keep = *keep;
        s->rotates = 1;
    }
    struct file_watch before = comm_beat_with_files(saver->comm);
    int st = prepare(s, saver->comm, job, dir);
    file_watch(before);
    if (st != SHERD_OK)
        return end(saver, st);
    saver->phase = WRITING;
    stream_start(saver->stream, s->files, s->n_kinds, job->layout->n_units, s->block, s->temp);
    s->begun = clock_seconds();
    return SHERD_OK;
}

int ckpt_saver_poll(struct ckpt_saver *saver, int *busy)
{
    int any = 0, st = SHERD_OK;
    *busy = 0;
    if (saver->phase == IDLE)
        return SHERD_OK;
    int mine = stream_busy(saver->stream);
    SHERD_TRY(comm_host_gather(saver->comm, saver->busy, &mine, sizeof(mine)));
    for (int r = 0; r < saver->save.world; r++)
        any |= saver->busy[r];
    if (!any)
        st = advance(saver);
    *busy = saver->phase != IDLE;
    return st;
}

int ckpt_saver_wait(struct ckpt_saver *saver)
{
    int st = SHERD_OK;
    while (saver->phase != IDLE && st == SHERD_OK)
        st = advance(saver);
    return st;
}

int ckpt_save(const struct ckpt_job *job, const char *dir)
{
    struct ckpt_saver *saver = NULL;
    int st = comm_agree(job->comm, ckpt_saver_create(&saver, job->comm, job->dev, 0));
    if (st == SHERD_OK)
        st = ckpt_saver_start(saver, job, dir, NULL);
    if (st == SHERD_OK)
        st = ckpt_saver_wait(saver);
    ckpt_saver_destroy(saver);
    return st;
}

int ckpt_job_bytes(const struct ckpt_job *job, uint64_t *mine, uint64_t *all)
{
    struct save s = { .rank = sherd_comm_rank(job->comm), .world = sherd_comm_size(job->comm) };
    int st = comm_agree(job->comm, plan_lists(&s, job));
    if (st == SHERD_OK)
        st = gather_reports(&s, job->comm);
    if (st == SHERD_OK) {
        *mine = 0;
        for (int k = 0; k < s.n_kinds; k++)
            *mine += (uint64_t)round_up((int64_t)s.lists[k].file_bytes + HEADER_GROWTH, CKPT_SLAB_BYTES);
        *all = s.total;
    }
    save_finish(&s);
    return st;
}
