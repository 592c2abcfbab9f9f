/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Rank 0's part of a save: see ckpt/save.h. Until the rename nothing that a reader looks at has changed.
 */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/status.h"
#include "base/text.h"
#include "ckpt/open.h"
#include "ckpt/save.h"

static int same_run(const struct manifest *old, const struct manifest *new)
{
    if (old->meta.run && new->meta.run)
        return old->meta.run == new->meta.run;
    int same = old->meta.seed == new->meta.seed && old->n_tensors == new->n_tensors;
    for (int i = 0; same && i < new->n_tensors; i++) {
        int k = manifest_find(old, new->tensors[i].name);
        same = k >= 0 && old->tensors[k].elems == new->tensors[i].elems;
    }
    return same;
}

/* An older checkpoint in this place must be one of the same run. One that lacks something, or holds values
 * that are not finite, is put aside: nobody went on from it, and somebody may want to know why. */
static int check_place(const struct save *s)
{
    struct sherd_ckpt *old;
    if (!file_exists(s->final))
        return SHERD_OK;
    int st = sherd_ckpt_open(&old, s->final);
    if (ckpt_is_broken(st)) {
        log_warn("%s is not complete: %s", s->final, sherd_error());
        return ckpt_put_aside(s->final);
    }
    SHERD_TRY(st);
    int same = same_run(&old->manifest, &s->manifest), nonfinite = old->manifest.meta.nonfinite;
    sherd_ckpt_close(old);
    if (!same)
        return SHERD_FAIL(SHERD_EEXISTS,
            "%s holds a checkpoint of another run (its seed, model or settings differ); save to "
            "another folder or move it away",
            s->final);
    return nonfinite ? ckpt_put_aside(s->final) : SHERD_OK;
}

/* What would go after this save goes before it where room is short. */
static int check_space(const struct save *s)
{
    char need[32], has[32];
    uint64_t available, manifest = 4096 + 256 * ((uint64_t)s->manifest.n_tensors + (uint64_t)s->world) +
                                   17 * (s->total / s->block);
    SHERD_TRY(file_free_space(&available, s->dir));
    if (available < s->total + manifest && s->rotates) {
        struct ckpt_keep keep = s->keep;
        keep.newest -= keep.newest > 1; /* one of those is to come; but the last one stays */
        SHERD_TRY(ckpt_rotate(s->dir, &keep, s->manifest.meta.run));
        SHERD_TRY(file_free_space(&available, s->dir));
    }
    if (available < s->total + manifest)
        return SHERD_FAIL(SHERD_EIO,
            "%s: a checkpoint needs %s, but only %s are free on that file system: free some, "
            "keep fewer checkpoints, or save elsewhere",
            s->dir, text_human_bytes((double)(s->total + manifest), need),
            text_human_bytes((double)available, has));
    return SHERD_OK;
}

int save_begin(struct save *s)
{
    char name[CKPT_NAME_BYTES];
    SHERD_TRY(file_mkdirs(s->dir));
    SHERD_TRY(check_place(s));
    SHERD_TRY(check_space(s));
    SHERD_TRY(save_token(s->token));
    ckpt_step_name(name, CKPT_TEMP_PREFIX, s->manifest.meta.step);
    snprintf(s->name, sizeof(s->name), "%.40s-%s", name, s->token);
    s->temp = ckpt_join(s->dir, s->name);
    return s->temp ? file_mkdirs(s->temp) : SHERD_ENOMEM;
}

static int fill_files(struct save *s)
{
    struct manifest *m = &s->manifest;
    m->block = s->block;
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
        f->blocks = save_blocks(s, f->rank, (int)f->kind);
        memcpy(f->sum, s->reports[f->rank].sum[f->kind], SUM_TEXT_BYTES);
        m->meta.nonfinite |= s->reports[f->rank].nonfinite;
        manifest_file_name(name, f->kind, f->rank, s->world);
        f->name = arena_strdup(&m->arena, name);
        if (!f->name)
            return SHERD_ENOMEM;
    }
    return SHERD_OK;
}

/* The text of the manifest; it is read again at once, so that nothing unreadable is ever written. */
static int make_manifest(struct save *s, char **text)
{
    struct manifest again;
    SHERD_TRY(fill_files(s));
    SHERD_TRY(manifest_print(text, &s->manifest));
    SHERD_TRY(manifest_parse(&again, *text, strlen(*text), CKPT_MANIFEST));
    manifest_finish(&again);
    return SHERD_OK;
}

/* The temporary folder takes its place; what was there goes aside first and is removed last. */
static int swap_in(const struct save *s)
{
    char name[CKPT_NAME_BYTES], aside_name[CKPT_NAME_BYTES];
    if (!file_exists(s->final)) {
        SHERD_TRY(file_rename(s->temp, s->final));
        return file_sync_dir(s->dir);
    }
    ckpt_step_name(name, CKPT_ASIDE_PREFIX, s->manifest.meta.step);
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
    ckpt_step_name(text, CKPT_STEP_PREFIX, s->manifest.meta.step);
    strcat(text, "\n");
    if (!path || file_write_atomic(path, text, strlen(text)) != SHERD_OK)
        log_warn("the pointer to the latest checkpoint was not written: %s", sherd_error());
    mem_free(path);
}

int save_commit(struct save *s)
{
    char *text = NULL, *path = ckpt_join(s->temp, CKPT_MANIFEST);
    int st = path ? make_manifest(s, &text) : SHERD_ENOMEM;
    if (st == SHERD_OK)
        st = file_write_atomic(path, text, strlen(text));
    if (st == SHERD_OK)
        st = swap_in(s);
    mem_free(text);
    mem_free(path);
    SHERD_TRY(st);
    write_latest(s);
    /* The checkpoint is there: failing to remove old ones loses nothing, and the next rotation tries again.
     */
    if (s->rotates && ckpt_rotate(s->dir, &s->keep, s->manifest.meta.run) != SHERD_OK)
        log_warn("old checkpoints were not all removed: %s", sherd_error());
    return SHERD_OK;
}

void save_clean_up(const struct save *s, int status)
{
    char *text = mem_strdup(sherd_error());
    if (s->temp && file_remove_tree(s->temp) != SHERD_OK)
        log_warn("%s was not removed: %s", s->temp, sherd_error());
    if (text)
        status_adopt(status, text);
    mem_free(text);
}
