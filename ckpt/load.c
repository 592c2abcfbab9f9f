/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Loading: see ckpt/ckpt.h. Rank 0 reads the manifest and looks at the files, all ranks compare it with their
 * layout, then each reads the ranges that its views need. Nothing here depends on the world or stage that
 * wrote the checkpoint.
 */
#include "ckpt/ckpt.h"

#include <stdio.h>
#include <string.h>

#include <sherd/ops.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/text.h"
#include "ckpt/open.h"
#include "ckpt/views.h"

struct load {
    struct ckpt_job *job;
    const char *path;
    int rank;
    struct sherd_ckpt *ckpt;
    int *stored;              /* by tensor of the layout: tensor of the manifest */
    struct shard_span *spans; /* as many as tensors */
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

/* "[101, 24]" */
static const char *shape_text(const int64_t *shape, int dims, char buf[96])
{
    size_t at = 0;
    for (int i = 0; i < dims; i++)
        at += (size_t)snprintf(buf + at, 96 - at, "%s%lld", i ? ", " : "[", (long long)shape[i]);
    snprintf(buf + at, 96 - at, "]");
    return buf;
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
    char has[96], wants[96];
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
            l->path, t->name, shape_text(s->shape, s->dims, has), shape_text(t->shape, t->dims, wants));
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

/* Elements [first, first + n) of a stored tensor to the host buffer, in the view's type. */
static int read_part(struct load *l, struct ferry *ferry, enum sherd_dtype type, int state, int tensor,
    int64_t first, int64_t n)
{
    const struct manifest_tensor *s = &l->ckpt->manifest.tensors[tensor];
    int64_t overflow;
    if (state >= 0 || s->type == type)
        return ckpt_read_raw(l->ckpt, state, tensor, first, n, ferry->host);
    SHERD_TRY(ckpt_staging(l->ckpt));
    SHERD_TRY(ckpt_read_raw(l->ckpt, -1, tensor, first, n, l->ckpt->staging));
    st_convert(ferry->host, type, l->ckpt->staging, s->type, n, &overflow);
    if (overflow >= 0)
        return SHERD_FAIL(SHERD_ENONFINITE,
            "%s: tensor '%s', element %lld is too large for %s: use another type", l->path, s->name,
            (long long)(first + overflow), sherd_dtype_name(type));
    return SHERD_OK;
}

static int load_span(
    struct load *l, struct ferry *ferry, const struct shard_view *view, const struct shard_span *span)
{
    int tensor = l->stored[span->tensor];
    int state = strcmp(view->what, CKPT_WEIGHT) ? manifest_state(&l->ckpt->manifest, view->what) : -1;
    size_t size = sherd_dtype_bytes(view->type);
    char *to = (char *)view->data + (size_t)(span->offset - view->first) * size;
    if (strcmp(view->what, CKPT_WEIGHT) && l->ckpt->manifest.tensors[tensor].frozen) {
        SHERD_TRY(sherd_fill(ferry->queue, &(struct sherd_fill){ to, (size_t)span->elems * size, 0 }));
        return sherd_queue_sync(ferry->queue);
    }
    int64_t most = (int64_t)(CKPT_STAGING_BYTES / sizeof(float));
    for (int64_t at = 0; at < span->elems; at += most) {
        int64_t n = MIN(span->elems - at, most);
        SHERD_TRY(read_part(l, ferry, view->type, state, tensor, span->first + at, n));
        SHERD_TRY(ferry_in(ferry, to + (size_t)at * size, (size_t)n * size));
    }
    return SHERD_OK;
}

static int load_views(struct load *l)
{
    const struct shard_layout *layout = l->job->layout;
    struct ferry ferry;
    SHERD_TRY(ferry_init(&ferry, l->job->dev));
    int st = SHERD_OK;
    for (int i = 0; i < l->job->n_views && st == SHERD_OK; i++) {
        const struct shard_view *v = &l->job->views[i];
        int n = layout_spans(
            layout, v->unit, v->segment, v->first, v->first + v->elems, l->spans, layout->n_tensors);
        for (int k = 0; k < n && st == SHERD_OK; k++)
            st = load_span(l, &ferry, v, &l->spans[k]);
    }
    ferry_finish(&ferry);
    return st;
}

/* What is wrong with a file's structure is told first, by name; then the ranks together take the sums of all
 * files, each of its share, so that no changed byte is trained on. */
static int load(struct load *l)
{
    struct sherd_comm *comm = l->job->comm;
    SHERD_TRY(open_all(l));
    SHERD_TRY(comm_agree(comm, match(l)));
    tell(l);
    SHERD_TRY(comm_agree(comm, load_views(l)));
    return comm_agree(comm, ckpt_verify_files(l->ckpt, CKPT_ALL_KINDS, l->rank, sherd_comm_size(comm)));
}

int ckpt_load(struct ckpt_job *job, const char *path)
{
    struct load l = { .job = job, .path = path, .rank = sherd_comm_rank(job->comm) };
    char bytes[32], took[32];
    double start = clock_seconds();
    int st = load(&l);
    if (st == SHERD_OK) {
        job->meta = l.ckpt->manifest.meta;
        job->meta.optimizer = job->meta.export_json = job->meta.extra = NULL;
        job->meta.states = NULL;
        job->meta.n_states = 0;
        job->bytes_read = l.ckpt->bytes_read;
        if (l.rank == 0)
            log_info("loaded %s: %s by rank 0 in %s", path, text_human_bytes((double)job->bytes_read, bytes),
                text_human_seconds(clock_seconds() - start, took));
    }
    sherd_ckpt_close(l.ckpt);
    mem_free(l.stored);
    mem_free(l.spans);
    return st;
}
