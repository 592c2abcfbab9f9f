/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Saving: see ckpt/ckpt.h. Every rank walks the same way:
 *   plan, agree | rank 0: check, make the temporary folder, agree | write and sync files, agree |
 *   rank 0: manifest, rename, agree
 * Until the rename nothing that a reader looks at has changed.
 */
#include "ckpt/ckpt.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/status.h"
#include "base/text.h"
#include "ckpt/open.h"
#include "ckpt/piece.h"
#include "ckpt/views.h"

/* What a rank tells the others about its files. */
struct report {
    uint64_t bytes[CKPT_KINDS];
    char sum[CKPT_KINDS][SUM_TEXT_BYTES];
    char pad[6];
};

struct save {
    const struct ckpt_job *job;
    const char *dir;
    int rank, world, n_kinds;
    struct piece_list lists[CKPT_KINDS];
    struct report *reports;     /* of all ranks */
    uint64_t total;             /* bytes of all files */
    char token[17];             /* makes names of this save unlike those of a dead one */
    char name[CKPT_NAME_BYTES]; /* of the temporary folder */
    char *temp, *final;
};

/* Rank 0: an older checkpoint in this place must be one of the same run. */
static int check_place(const struct save *s)
{
    struct sherd_ckpt *old;
    const struct shard_layout *layout = s->job->layout;
    if (!file_exists(s->final))
        return SHERD_OK;
    int st = sherd_ckpt_open(&old, s->final);
    if (ckpt_is_broken(st)) {
        log_warn("replacing %s, which is not complete: %s", s->final, sherd_error());
        return SHERD_OK;
    }
    SHERD_TRY(st);
    const struct manifest *m = &old->manifest;
    int same = m->meta.seed == s->job->meta.seed && m->n_tensors == layout->n_tensors;
    for (int i = 0; same && i < layout->n_tensors; i++) {
        int k = manifest_find(m, layout->tensors[i].name);
        same = k >= 0 && m->tensors[k].elems == layout->tensors[i].elems;
    }
    sherd_ckpt_close(old);
    if (!same)
        return SHERD_FAIL(SHERD_EEXISTS,
            "%s holds a checkpoint of another run (its seed or model differ); save to "
            "another folder or move it away",
            s->final);
    return SHERD_OK;
}

static int check_space(const struct save *s)
{
    char need[32], has[32];
    uint64_t available, manifest = 4096 + 256 * ((uint64_t)s->job->layout->n_tensors + (uint64_t)s->world);
    SHERD_TRY(file_free_space(&available, s->dir));
    if (available < s->total + manifest)
        return SHERD_FAIL(SHERD_EIO,
            "%s: a checkpoint needs %s, but only %s are free on that file system: free some, "
            "keep fewer checkpoints, or save elsewhere",
            s->dir, text_human_bytes((double)(s->total + manifest), need),
            text_human_bytes((double)available, has));
    return SHERD_OK;
}

static int make_token(char token[17])
{
    uint64_t bits;
    if (getrandom(&bits, sizeof(bits), 0) != (ssize_t)sizeof(bits))
        return SHERD_FAIL(SHERD_EIO, "the system gave no random number for the name of a folder");
    snprintf(token, 17, "%016llx", (unsigned long long)bits);
    return SHERD_OK;
}

/* Rank 0. */
static int begin(struct save *s)
{
    char name[CKPT_NAME_BYTES];
    SHERD_TRY(file_mkdirs(s->dir));
    SHERD_TRY(check_place(s));
    SHERD_TRY(check_space(s));
    SHERD_TRY(make_token(s->token));
    ckpt_step_name(name, CKPT_TEMP_PREFIX, s->job->meta.step);
    snprintf(s->name, sizeof(s->name), "%.40s-%s", name, s->token);
    s->temp = ckpt_join(s->dir, s->name);
    return s->temp ? file_mkdirs(s->temp) : SHERD_ENOMEM;
}

static int write_file(struct save *s, enum ckpt_kind kind, struct ferry *ferry)
{
    char name[CKPT_NAME_BYTES];
    struct st_writer w;
    const struct piece_list *list = &s->lists[kind];
    manifest_file_name(name, kind, s->rank, s->world);
    char *path = ckpt_join(s->temp, name);
    if (!path)
        return SHERD_ENOMEM;
    int st = st_writer_open(&w, path, list->items, list->n, list->meta, PIECE_META);
    mem_free(path);
    SHERD_TRY(st);
    for (int i = 0; i < list->n && st == SHERD_OK; i++) {
        const struct piece *p = &list->pieces[i];
        for (size_t at = 0; at < p->bytes && st == SHERD_OK; at += CKPT_STAGING_BYTES) {
            size_t m = MIN(p->bytes - at, CKPT_STAGING_BYTES);
            st = ferry_out(ferry, p->data + at, m);
            if (st == SHERD_OK)
                st = st_writer_put(&w, ferry->host, m);
        }
    }
    if (st == SHERD_OK)
        return st_writer_finish(&w, s->reports[s->rank].sum[kind]);
    st_writer_abort(&w);
    return st;
}

static int write_files(struct save *s)
{
    struct ferry ferry;
    if (!s->temp)
        s->temp = ckpt_join(s->dir, s->name);
    if (!s->temp)
        return SHERD_ENOMEM;
    if (!file_is_dir(s->temp))
        return SHERD_FAIL(SHERD_EIO,
            "rank %d cannot see %s, made by rank 0: the folder of checkpoints must lie on "
            "storage that all ranks share",
            s->rank, s->temp);
    SHERD_TRY(ferry_init(&ferry, s->job->dev));
    int st = SHERD_OK;
    for (int k = 0; k < s->n_kinds && st == SHERD_OK; k++)
        st = write_file(s, k, &ferry);
    if (st == SHERD_OK)
        st = file_sync_dir(s->temp);
    ferry_finish(&ferry);
    return st;
}

static int fill_files(struct manifest *m, const struct save *s)
{
    m->n_files = s->world * s->n_kinds;
    m->files = arena_zalloc(&m->arena, (size_t)m->n_files, sizeof(*m->files));
    if (!m->files)
        return SHERD_ENOMEM;
    for (int i = 0; i < m->n_files; i++) {
        struct manifest_file *f = &m->files[i];
        char name[CKPT_NAME_BYTES];
        f->kind = (enum ckpt_kind)(i / s->world);
        f->rank = i % s->world;
        f->bytes = s->reports[f->rank].bytes[f->kind];
        memcpy(f->sum, s->reports[f->rank].sum[f->kind], SUM_TEXT_BYTES);
        manifest_file_name(name, f->kind, f->rank, s->world);
        f->name = arena_strdup(&m->arena, name);
        if (!f->name)
            return SHERD_ENOMEM;
    }
    return SHERD_OK;
}

/* Rank 0: the text of the manifest; it is read again at once, so that nothing unreadable is ever written. */
static int make_manifest(const struct save *s, char **text)
{
    struct manifest m = { .version = CKPT_VERSION, .world = s->world, .meta = s->job->meta }, again;
    int st = fill_files(&m, s);
    if (st == SHERD_OK)
        st = piece_tensors(&m, s->job);
    if (st == SHERD_OK)
        st = manifest_print(text, &m);
    manifest_finish(&m);
    SHERD_TRY(st);
    st = manifest_parse(&again, *text, strlen(*text), CKPT_MANIFEST);
    if (st == SHERD_OK)
        manifest_finish(&again);
    return st;
}

/* The temporary folder takes its place; what was there goes aside first and is removed last. */
static int swap_in(const struct save *s)
{
    char name[CKPT_NAME_BYTES], aside_name[CKPT_NAME_BYTES];
    if (!file_exists(s->final)) {
        SHERD_TRY(file_rename(s->temp, s->final));
        return file_sync_dir(s->dir);
    }
    ckpt_step_name(name, CKPT_ASIDE_PREFIX, s->job->meta.step);
    snprintf(aside_name, sizeof(aside_name), "%.40s-%s", name, s->token);
    char *aside = ckpt_join(s->dir, aside_name);
    if (!aside)
        return SHERD_ENOMEM;
    int st = file_rename(s->final, aside);
    if (st == SHERD_OK) {
        st = file_rename(s->temp, s->final);
        if (st != SHERD_OK)
            SHERD_KEEP(st, file_rename(aside, s->final));
        SHERD_KEEP(st, file_sync_dir(s->dir));
        if (st == SHERD_OK)
            st = file_remove_tree(aside);
    }
    mem_free(aside);
    return st;
}

/* `latest` helps people; nothing reads it, so that failing to write it fails nothing. */
static void write_latest(const struct save *s)
{
    char text[CKPT_NAME_BYTES];
    char *path = ckpt_join(s->dir, CKPT_LATEST);
    ckpt_step_name(text, CKPT_STEP_PREFIX, s->job->meta.step);
    strcat(text, "\n");
    if (!path || file_write_atomic(path, text, strlen(text)) != SHERD_OK)
        log_warn("the pointer to the latest checkpoint was not written: %s", sherd_error());
    mem_free(path);
}

/* Rank 0. */
static int commit(const struct save *s)
{
    char *text = NULL, *path = ckpt_join(s->temp, CKPT_MANIFEST);
    int st = path ? make_manifest(s, &text) : SHERD_ENOMEM;
    if (st == SHERD_OK)
        st = file_write_atomic(path, text, strlen(text));
    if (st == SHERD_OK)
        st = swap_in(s);
    if (st == SHERD_OK)
        write_latest(s);
    mem_free(text);
    mem_free(path);
    return st;
}

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

/* This rank's files, up to their sizes. */
static int plan(struct save *s)
{
    const struct ckpt_job *job = s->job;
    SHERD_TRY(views_check(job, job->meta.states, job->meta.n_states));
    if (job->meta.step < 0 || job->meta.step > CKPT_MAX_STEP || s->world > CKPT_MAX_WORLD)
        return SHERD_FAIL(SHERD_EUNSUPPORTED, "checkpoints hold steps up to %lld and up to %d ranks",
            (long long)CKPT_MAX_STEP, CKPT_MAX_WORLD);
    SHERD_TRY(check_json(job->meta.export_json, "model"));
    SHERD_TRY(check_json(job->meta.extra, "extra"));
    s->reports = mem_zalloc((size_t)s->world, sizeof(*s->reports));
    char name[CKPT_NAME_BYTES];
    ckpt_step_name(name, CKPT_STEP_PREFIX, job->meta.step);
    s->final = ckpt_join(s->dir, name);
    if (!s->reports || !s->final)
        return SHERD_ENOMEM;
    s->n_kinds = job->meta.n_states && job->layout->trained ? 2 : 1;
    for (int k = 0; k < s->n_kinds; k++) {
        SHERD_TRY(piece_list_init(&s->lists[k], job, k));
        s->reports[s->rank].bytes[k] = s->lists[k].file_bytes;
    }
    return SHERD_OK;
}

static int gather_reports(struct save *s)
{
    struct report mine = s->reports[s->rank];
    SHERD_TRY(comm_host_gather(s->job->comm, s->reports, &mine, sizeof(mine)));
    s->total = 0;
    for (int r = 0; r < s->world; r++) {
        for (int k = 0; k < CKPT_KINDS; k++)
            s->total += s->reports[r].bytes[k];
    }
    return SHERD_OK;
}

static int save(struct save *s)
{
    struct sherd_comm *comm = s->job->comm;
    SHERD_TRY(comm_agree(comm, plan(s)));
    SHERD_TRY(gather_reports(s));
    SHERD_TRY(comm_agree(comm, s->rank ? SHERD_OK : begin(s)));
    SHERD_TRY(comm_host_broadcast(comm, s->name, sizeof(s->name), 0));
    SHERD_TRY(comm_agree(comm, write_files(s)));
    SHERD_TRY(gather_reports(s));
    return comm_agree(comm, s->rank ? SHERD_OK : commit(s));
}

/* Removes what a failed save left, keeping the text of the failure. */
static void clean_up(const struct save *s, int status)
{
    char *text = mem_strdup(sherd_error());
    if (s->temp && file_remove_tree(s->temp) != SHERD_OK)
        log_warn("%s was not removed: %s", s->temp, sherd_error());
    if (text)
        status_adopt(status, text);
    mem_free(text);
}

int ckpt_save(const struct ckpt_job *job, const char *dir)
{
    struct save s = {
        .job = job, .dir = dir, .rank = sherd_comm_rank(job->comm), .world = sherd_comm_size(job->comm)
    };
    char bytes[32], took[32];
    double start = clock_seconds();
    int st = save(&s);
    if (st != SHERD_OK && s.rank == 0)
        clean_up(&s, st);
    else if (s.rank == 0)
        log_info("saved %s: %s in %s", s.final, text_human_bytes((double)s.total, bytes),
            text_human_seconds(clock_seconds() - start, took));
    for (int k = 0; k < CKPT_KINDS; k++)
        piece_list_finish(&s.lists[k]);
    mem_free(s.reports);
    mem_free(s.temp);
    mem_free(s.final);
    return st;
}
