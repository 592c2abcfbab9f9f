/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Loading: see ckpt/ckpt.h. Rank 0 reads the manifest and looks at the files, all ranks compare it with their
 * layout, then each reads the ranges that its views need, in the order of the files, so that no block is read
 * twice and a thread can read ahead. Nothing here depends on the world or stage that wrote the checkpoint.
 */
#include "ckpt/ckpt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sherd/ops.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/text.h"
#include "ckpt/parts.h"
#include "ckpt/views.h"

/* A piece of a file and where its values go. */
struct read {
    int file;
    uint64_t offset;
    int64_t elems;
    const struct shard_view *view;
    int64_t to;                      /* element of the view */
    enum sherd_dtype type, from;     /* in the view, in the file */
    const struct manifest_tensor *t; /* for messages */
};

struct load {
    struct ckpt_job *job;
    const char *path;
    int rank;
    struct sherd_ckpt *ckpt;
    int *stored;              /* by tensor of the layout: tensor of the manifest */
    struct shard_span *spans; /* as many as tensors */
    struct read *reads;
    int n_reads, cap_reads;
    struct part *parts; /* what is read of the files, in order */
    int n_parts, cap_parts;
};

static int open_first(struct load *l, char **text, uint64_t *bytes)
{
    size_t n;
    SHERD_TRY(ckpt_manifest_text(text, &n, l->path));
    *bytes = n;
    SHERD_TRY(ckpt_open_text(&l->ckpt, l->path, *text, n));
    return ckpt_check_files(l->ckpt);
}

static int open_all(struct load *l)
{
    struct sherd_comm *comm = l->job->comm;
    char *text = NULL;
    uint64_t bytes = 0;
    int st = comm_agree(comm, l->rank ? SHERD_OK : open_first(l, &text, &bytes));
    if (st != SHERD_OK)
        goto out;
    SHERD_TRY_OUT(comm_host_broadcast(comm, &bytes, sizeof(bytes), 0));
    if (l->rank)
        text = mem_zalloc((size_t)bytes + 1, 1);
    SHERD_TRY_OUT(comm_agree(comm, text ? SHERD_OK : SHERD_ENOMEM));
    SHERD_TRY_OUT(comm_host_broadcast(comm, text, (size_t)bytes, 0));
    if (l->rank)
        st = ckpt_open_text(&l->ckpt, l->path, text, (size_t)bytes);
    st = comm_agree(comm, st);
out:
    mem_free(text);
    return st;
}

/* The model's tensor t is stored as s: as what else is it tied? */
static int match_alias(const struct load *l, const struct shard_tensor *t, const struct manifest_tensor *s)
{
    const char *other = strcmp(t->name, s->name) ? s->name : s->alias;
    if (!t->alias && !other)
        return SHERD_OK;
    if (t->alias && other && !strcmp(t->alias, other))
        return SHERD_OK;
    if (!other)
        return SHERD_FAIL(SHERD_EFORMAT,
            "%s: tensor '%s' is tied to '%s' in this model, but not in the checkpoint: load "
            "it with a model that is not tied",
            l->path, t->name, t->alias);
    return SHERD_FAIL(SHERD_EFORMAT,
        "%s: tensor '%s' is tied to '%s' in the checkpoint, but %s%s in this model: load it "
        "with a model that is tied alike",
        l->path, t->name, other, t->alias ? "to " : "not tied", t->alias ? t->alias : "");
}

static int match_tensor(const struct load *l, int i)
{
    const struct manifest *m = &l->ckpt->manifest;
    const struct shard_tensor *t = &l->job->layout->tensors[i];
    char has[ST_SHAPE_BYTES], wants[ST_SHAPE_BYTES];
    int k = manifest_find(m, t->name);
    if (k < 0)
        return SHERD_FAIL(SHERD_EFORMAT,
            "%s: tensor '%s' of this model is missing in the checkpoint; was it written by "
            "another model?",
            l->path, t->name);
    const struct manifest_tensor *s = &m->tensors[k];
    SHERD_TRY(match_alias(l, t, s));
    if (s->dims != t->dims || memcmp(s->shape, t->shape, (size_t)t->dims * sizeof(*t->shape)))
        return SHERD_FAIL(SHERD_EFORMAT,
            "%s: tensor '%s' has shape %s in the checkpoint and %s in this model: load it "
            "with the model that wrote it",
            l->path, t->name, st_shape_text(s->shape, s->dims, has), st_shape_text(t->shape, t->dims, wants));
    l->stored[i] = k;
    return SHERD_OK;
}

/* Nothing in the checkpoint is left over. */
static int match_rest(const struct load *l)
{
    const struct manifest *m = &l->ckpt->manifest;
    int left = m->n_tensors - l->job->layout->n_tensors;
    for (int k = 0; k < m->n_tensors && left > 0; k++) {
        const struct manifest_tensor *s = &m->tensors[k];
        if (layout_find(l->job->layout, s->name) < 0)
            return SHERD_FAIL(SHERD_EFORMAT,
                "%s: the checkpoint has %d tensor%s that this model lacks, the first is '%s': "
                "load it with the model that wrote it",
                l->path, left, left > 1 ? "s" : "", s->name);
    }
    if (left)
        return SHERD_FAIL(SHERD_EFORMAT, "%s: %d tensors in the checkpoint, %d in this model", l->path,
            m->n_tensors, l->job->layout->n_tensors);
    return SHERD_OK;
}

/* 1 if a view of that state is wanted. */
static int wants_state(const struct load *l, const char *what)
{
    for (int i = 0; i < l->job->n_views; i++) {
        if (!strcmp(l->job->views[i].what, what))
            return 1;
    }
    return 0;
}

/* 1 if there are views of any state. */
static int wants_states(const struct load *l)
{
    for (int i = 0; i < l->job->n_views; i++) {
        if (strcmp(l->job->views[i].what, CKPT_WEIGHT) != 0)
            return 1;
    }
    return 0;
}

/* Tensors that are trained now and were trained then must find their states, and leave none behind. */
static int match_states(const struct load *l)
{
    const struct manifest *m = &l->ckpt->manifest;
    const struct manifest_tensor *both = NULL;
    for (int i = 0; i < l->job->layout->n_tensors && !both; i++) {
        const struct manifest_tensor *s = &m->tensors[l->stored[i]];
        if (l->job->layout->tensors[i].segment == SHARD_TRAINED && !s->frozen)
            both = s;
    }
    const char *optimizer = l->job->meta.optimizer; /* of this run */
    if (both && m->meta.n_states == 0 && wants_states(l) && optimizer &&
        !strcmp(optimizer, m->meta.optimizer))
        return SHERD_FAIL(SHERD_EFORMAT,
            "%s holds weights and no optimizer states, so no run can go on from it: `sherd merge` it, and "
            "start a new run with model.from",
            l->path);
    for (int i = 0; i < l->job->n_views && both; i++) {
        const char *what = l->job->views[i].what;
        if (strcmp(what, CKPT_WEIGHT) && manifest_state(m, what) < 0)
            return SHERD_FAIL(SHERD_EFORMAT,
                "%s: optimizer state '%s' (of tensor '%s' and others) is missing; the "
                "checkpoint was written with %s: train on with that, or start anew from its merged weights",
                l->path, what, both->name, m->meta.optimizer);
    }
    for (int i = 0; i < m->meta.n_states && both; i++) {
        if (!wants_state(l, m->meta.states[i]))
            return SHERD_FAIL(SHERD_EFORMAT,
                "%s: the checkpoint has optimizer state '%s' (of tensor '%s' and others), "
                "which this run does not use; it was written with %s: train on with that, or start anew from "
                "its "
                "merged weights",
                l->path, m->meta.states[i], both->name, m->meta.optimizer);
    }
    return SHERD_OK;
}

static int match(struct load *l)
{
    const struct shard_layout *layout = l->job->layout;
    SHERD_TRY(views_check(l->job, NULL, 0));
    l->stored = mem_zalloc((size_t)layout->n_tensors, sizeof(*l->stored));
    l->spans = mem_zalloc((size_t)layout->n_tensors, sizeof(*l->spans));
    if (!l->stored || !l->spans)
        return SHERD_ENOMEM;
    for (int i = 0; i < layout->n_tensors; i++)
        SHERD_TRY(match_tensor(l, i));
    SHERD_TRY(match_rest(l));
    return match_states(l);
}

/* What is not simply read is said once, by rank 0. */
static void tell(const struct load *l)
{
    int thawed = 0, froze = 0, converted = 0;
    const char *first_thawed = "", *first_frozen = "", *first_converted = "";
    for (int i = l->job->layout->n_tensors - 1; i >= 0 && l->rank == 0; i--) {
        const struct shard_tensor *t = &l->job->layout->tensors[i];
        const struct manifest_tensor *s = &l->ckpt->manifest.tensors[l->stored[i]];
        if (s->frozen && t->segment == SHARD_TRAINED)
            thawed++, first_thawed = t->name;
        if (!s->frozen && t->segment == SHARD_FROZEN)
            froze++, first_frozen = t->name;
        if (s->type != views_find(l->job, CKPT_WEIGHT, t->unit, t->segment)->type)
            converted++, first_converted = t->name;
    }
    if (thawed)
        log_info(
            "tensors frozen when saved and trained now, whose optimizer states start at zero: %d (the first: %s)",
            thawed, first_thawed);
    if (froze)
        log_info(
            "tensors trained when saved and frozen now, whose optimizer states are left: %d (the first: %s)",
            froze, first_frozen);
    if (converted)
        log_info("tensors converted to another type than they are stored in: %d (the first: %s)", converted,
            first_converted);
}

/* Where the elements of a span of a view lie. */
static int plan_span(struct load *l, const struct shard_view *view, const struct shard_span *span, int state)
{
    const struct manifest_tensor *t = &l->ckpt->manifest.tensors[l->stored[span->tensor]];
    for (int64_t at = 0; at < span->elems;) {
        struct read r = { .view = view,
            .to = span->offset - view->first + at,
            .type = view->type,
            .from = state < 0 ? t->type : SHERD_F32,
            .t = t };
        SHERD_TRY(ckpt_locate(
            l->ckpt, state, l->stored[span->tensor], span->first + at, &r.file, &r.offset, &r.elems));
        r.elems = MIN(r.elems, span->elems - at);
        SHERD_TRY(mem_grow(&l->reads, &l->cap_reads, l->n_reads + 1, sizeof(*l->reads)));
        l->reads[l->n_reads++] = r;
        at += r.elems;
    }
    return SHERD_OK;
}

/* States of what was frozen when it was saved begin at zero. */
static int zero_span(struct ferry *ferry, const struct shard_view *view, const struct shard_span *span)
{
    return ferry_zero(ferry, view, span->offset - view->first, span->elems);
}

static int plan_view(struct load *l, struct ferry *ferry, const struct shard_view *v)
{
    const struct shard_layout *layout = l->job->layout;
    const struct manifest *m = &l->ckpt->manifest;
    int state = strcmp(v->what, CKPT_WEIGHT) ? manifest_state(m, v->what) : -1;
    int is_weight = !strcmp(v->what, CKPT_WEIGHT);
    int n =
        layout_spans(layout, v->unit, v->segment, v->first, v->first + v->elems, l->spans, layout->n_tensors);
    for (int k = 0; k < n; k++) {
        if (!is_weight && m->tensors[l->stored[l->spans[k].tensor]].frozen)
            SHERD_TRY(zero_span(ferry, v, &l->spans[k]));
        else
            SHERD_TRY(plan_span(l, v, &l->spans[k], state));
    }
    return SHERD_OK;
}

static int by_place(const void *a, const void *b)
{
    const struct read *x = a, *y = b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* n elements at a place of a file to the host buffer, in the view's type. */
static int read_part(struct load *l, struct ferry *ferry, const struct read *r, uint64_t offset, int64_t n)
{
    size_t size = sherd_dtype_bytes(r->from);
    int64_t overflow;
    if (r->from == r->type)
        return ckpt_fetch(l->ckpt, r->file, offset, (size_t)n * size, ferry->host);
    SHERD_TRY(ckpt_staging(l->ckpt));
    SHERD_TRY(ckpt_fetch(l->ckpt, r->file, offset, (size_t)n * size, l->ckpt->staging));
    st_convert_weights(ferry->host, r->type, l->ckpt->staging, r->from, n, &overflow);
    if (overflow >= 0)
        return SHERD_FAIL(SHERD_ENONFINITE,
            "%s: tensor '%s', %lld elements behind byte %llu of its file: a value is too large for %s: use "
            "another type",
            l->path, r->t->name, (long long)overflow, (unsigned long long)offset, sherd_dtype_name(r->type));
    return SHERD_OK;
}

/* As it lies in the file: straight from where it was checked. */
static int copy_one(struct load *l, struct ferry *ferry, const struct read *r)
{
    size_t size = sherd_dtype_bytes(r->from);
    for (int64_t at = 0; at < r->elems;) {
        const void *from;
        size_t n;
        SHERD_TRY(ckpt_peek(
            l->ckpt, r->file, r->offset + (uint64_t)at * size, (size_t)(r->elems - at) * size, &from, &n));
        SHERD_TRY(ferry_from(ferry, r->view, r->to + at, from, (int64_t)(n / size)));
        at += (int64_t)(n / size);
        comm_beat(l->job->comm);
    }
    return SHERD_OK;
}

static int read_one(struct load *l, struct ferry *ferry, const struct read *r)
{
    if (ckpt_checks_reads(l->ckpt) && r->from == r->type && !r->view->halves) {
        int st = copy_one(l, ferry, r);
        return st == SHERD_OK ? st : status_context(st, "tensor '%s'", r->t->name);
    }
    int64_t most = (int64_t)(CKPT_STAGING_BYTES / sizeof(float));
    size_t from = sherd_dtype_bytes(r->from);
    for (int64_t at = 0; at < r->elems; at += most) {
        int64_t n = MIN(r->elems - at, most);
        int st = read_part(l, ferry, r, r->offset + (uint64_t)at * from, n);
        if (st == SHERD_OK)
            st = ferry_in(ferry, r->view, r->to + at, n);
        if (st != SHERD_OK)
            return status_context(st, "tensor '%s'", r->t->name);
        comm_beat(l->job->comm);
    }
    return SHERD_OK;
}

/* The blocks that the reads need, in their order; what lies in blocks without a gap is got from the disk
 * together. */
static int plan_parts(struct load *l)
{
    const struct manifest *m = &l->ckpt->manifest;
    for (int i = 0; i < l->n_reads;) {
        int file = l->reads[i].file;
        uint64_t at = l->reads[i].offset / m->block * m->block, end = at;
        for (; i < l->n_reads && l->reads[i].file == file; i++) {
            const struct read *r = &l->reads[i];
            if (end > at && r->offset / m->block > (end - 1) / m->block + 1)
                break;
            end = MAX(end, r->offset + (uint64_t)r->elems * sherd_dtype_bytes(r->from));
        }
        end = MIN((end + m->block - 1) / m->block * m->block, m->files[file].bytes);
        for (; at < end; at += CKPT_STAGING_BYTES) {
            SHERD_TRY(mem_grow(&l->parts, &l->cap_parts, l->n_parts + 1, sizeof(*l->parts)));
            l->parts[l->n_parts++] = (struct part){ file, at, MIN(at + CKPT_STAGING_BYTES, end) };
        }
    }
    return SHERD_OK;
}

/* With a single part nothing is read while another is looked at. */
static int start_parts(struct load *l)
{
    if (!ckpt_checks_reads(l->ckpt))
        return SHERD_OK;
    SHERD_TRY(plan_parts(l));
    return l->n_parts < 2 ? SHERD_OK
                          : parts_create(&l->ckpt->window.parts, l->ckpt, l->job->dev, l->parts, l->n_parts);
}

static int load_views(struct load *l)
{
    struct ferry ferry;
    SHERD_TRY(ferry_init(&ferry, l->job->dev));
    int st = SHERD_OK;
    for (int i = 0; i < l->job->n_views && st == SHERD_OK; i++)
        st = plan_view(l, &ferry, &l->job->views[i]);
    if (l->n_reads > 1)
        qsort(l->reads, (size_t)l->n_reads, sizeof(*l->reads), by_place);
    if (st == SHERD_OK)
        st = start_parts(l);
    for (int i = 0; i < l->n_reads && st == SHERD_OK; i++)
        st = read_one(l, &ferry, &l->reads[i]);
    parts_destroy(l->ckpt->window.parts);
    l->ckpt->window.parts = NULL;
    l->ckpt->window.file = -1; /* what lay there went with it */
    SHERD_KEEP(st, sherd_queue_sync(ferry.queue));
    ferry_finish(&ferry);
    return st;
}

/* The manifest fits the model: what does not fit the manifest is damage. */
static int damaged(int status)
{
    return status == SHERD_EFORMAT || status == SHERD_ENOTFOUND ? SHERD_ECORRUPT : status;
}

/* Blocks are checked as they are read. Files of older versions have one sum each: after the structure, whose
 * faults are told by name, the ranks together take the sums of all files, each of its share. */
static int load(struct load *l)
{
    struct sherd_comm *comm = l->job->comm;
    SHERD_TRY(open_all(l));
    SHERD_TRY(comm_agree(comm, match(l)));
    tell(l);
    SHERD_TRY(comm_agree(comm, damaged(load_views(l))));
    if (ckpt_checks_reads(l->ckpt))
        return SHERD_OK;
    return comm_agree(
        comm, damaged(ckpt_verify_files(l->ckpt, CKPT_ALL_KINDS, l->rank, sherd_comm_size(comm))));
}

int ckpt_load(struct ckpt_job *job, const char *path)
{
    struct load l = { .job = job, .path = path, .rank = sherd_comm_rank(job->comm) };
    char bytes[32], took[32];
    double start = clock_seconds();
    struct file_watch before = comm_beat_with_files(job->comm);
    int st = load(&l);
    file_watch(before);
    if (st == SHERD_OK) {
        job->meta = l.ckpt->manifest.meta;
        job->meta.optimizer = job->meta.export_json = job->meta.extra = NULL;
        job->meta.states = NULL;
        job->meta.n_states = 0;
        job->bytes_read = l.ckpt->bytes_read;
        if (l.rank == 0)
            log_info("loaded %s: %s by rank 0 in %s", path, text_human_bytes((double)job->bytes_read, bytes),
                text_took(clock_seconds() - start, took));
    }
    sherd_ckpt_close(l.ckpt);
    mem_free(l.stored);
    mem_free(l.spans);
    mem_free(l.reads);
    mem_free(l.parts);
    return st;
}
