/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Importing: the weights of a model folder into the views of an engine. Each rank reads the headers and then
 * only the ranges that its views need.
 */
#include <string.h>

#include <sherd/ops.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/sum.h"
#include "base/text.h"
#include "ckpt/match.h"
#include "ckpt/views.h"

/* A mark is made of so many values in the middle of so many tensors. */
#define MARK_VALUES 16
#define MARK_TENSORS 64

#define PIECE_ELEMS ((int64_t)(CKPT_STAGING_BYTES / sizeof(float)))

struct import {
    const struct ckpt_job *job;
    struct hf_model *model;
    struct match match;
    struct shard_span *spans; /* as many as tensors */
    void *raw, *raw2;         /* CKPT_STAGING_BYTES each */
};

static int match(struct import *m, const char *dir)
{
    SHERD_TRY(views_check(m->job, NULL, 0));
    SHERD_TRY(hf_open(&m->model, dir));
    SHERD_TRY(match_init(&m->match, m->model, m->job->layout));
    m->spans = mem_zalloc((size_t)m->job->layout->n_tensors, sizeof(*m->spans));
    m->raw = mem_aligned(4096, CKPT_STAGING_BYTES);
    m->raw2 = mem_aligned(4096, CKPT_STAGING_BYTES);
    return m->spans && m->raw && m->raw2 ? SHERD_OK : SHERD_ENOMEM;
}

/* Elements [first, first + n) in the view's type to the host. */
static int read_part(
    struct import *m, int tensor, int64_t first, int64_t n, enum sherd_dtype type, void *host)
{
    const struct hf_tensor *s = m->match.source[tensor], *second = m->match.second[tensor];
    int64_t overflow;
    SHERD_TRY(hf_read(m->model, s, first, n, m->raw));
    st_convert_weights(host, type, m->raw, s->entry->type, n, &overflow);
    if (overflow >= 0)
        return SHERD_FAIL(SHERD_ENONFINITE,
            "%s: tensor '%s', element %lld is too large for %s: use another dtype.param", m->model->path,
            s->name, (long long)(first + overflow), sherd_dtype_name(type));
    if (!second)
        return SHERD_OK;
    SHERD_TRY(hf_read(m->model, second, first, n, m->raw2));
    if (second->entry->type != s->entry->type ||
        memcmp(m->raw, m->raw2, (size_t)n * sherd_dtype_bytes(s->entry->type)) != 0)
        return match_differ(&m->match, tensor);
    return SHERD_OK;
}

static int read_view(struct import *m, struct ferry *ferry, const struct shard_view *v)
{
    const struct shard_layout *layout = m->job->layout;
    int n =
        layout_spans(layout, v->unit, v->segment, v->first, v->first + v->elems, m->spans, layout->n_tensors);
    for (int k = 0; k < n; k++) {
        const struct shard_span *span = &m->spans[k];
        for (int64_t at = 0; at < span->elems; at += PIECE_ELEMS) {
            int64_t elems = MIN(span->elems - at, PIECE_ELEMS);
            SHERD_TRY(read_part(m, span->tensor, span->first + at, elems, v->type, ferry->host));
            SHERD_TRY(ferry_in(ferry, v, span->offset - v->first + at, elems));
        }
    }
    return SHERD_OK;
}

static int read_views(struct import *m)
{
    struct ferry ferry;
    SHERD_TRY(ferry_init(&ferry, m->job->dev));
    int st = SHERD_OK;
    for (int i = 0; i < m->job->n_views && st == SHERD_OK; i++) {
        if (!strcmp(m->job->views[i].what, CKPT_WEIGHT))
            st = read_view(m, &ferry, &m->job->views[i]);
    }
    ferry_finish(&ferry);
    return st;
}

/* What shows that two folders hold the same model without reading all of it: names and shapes, and some
 * values of some tensors. */
static int mark(struct import *m, uint64_t *out)
{
    struct hf_model *model = m->model;
    uint64_t sum = 0, before = model->bytes_read;
    for (int i = 0; i < model->n_tensors; i++) {
        const struct hf_tensor *t = &model->tensors[i];
        sum = sum_hash64(t->name, strlen(t->name), sum);
        sum = sum_hash64(t->entry->shape, (size_t)t->entry->dims * sizeof(*t->entry->shape), sum);
    }
    int n_marks = MIN(model->n_tensors, MARK_TENSORS);
    for (int k = 0; k < n_marks; k++) {
        const struct hf_tensor *t = &model->tensors[(int64_t)k * model->n_tensors / n_marks];
        int64_t n = MIN(t->entry->elems, MARK_VALUES);
        SHERD_TRY(hf_read(model, t, (t->entry->elems - n) / 2, n, m->raw));
        sum = sum_hash64(m->raw, (size_t)n * sherd_dtype_bytes(t->entry->type), sum);
    }
    model->bytes_read = before; /* looked at, and read where it is needed */
    *out = sum;
    return SHERD_OK;
}

/* Collective: each rank reads its own part, so all have to see the same files. */
static int compare(struct import *m, const char *dir)
{
    uint64_t mine = 0, first;
    SHERD_TRY(comm_agree(m->job->comm, mark(m, &mine)));
    first = mine;
    SHERD_TRY(comm_host_broadcast(m->job->comm, &first, sizeof(first), 0));
    int st = first == mine
                 ? SHERD_OK
                 : SHERD_FAIL(SHERD_ECONFIG,
                       "%s: rank %d sees other weights there than rank 0: all ranks must read the same "
                       "model, so copy it anew to this host",
                       dir, sherd_comm_rank(m->job->comm));
    return comm_agree(m->job->comm, st);
}

int ckpt_import(struct ckpt_job *job, const char *dir)
{
    struct import m = { .job = job };
    char bytes[32], took[32];
    double start = clock_seconds();
    struct file_watch before = comm_beat_with_files(job->comm);
    int st = comm_agree(job->comm, match(&m, dir));
    if (st == SHERD_OK)
        st = compare(&m, dir);
    if (st == SHERD_OK)
        st = comm_agree(job->comm, read_views(&m));
    file_watch(before);
    if (st == SHERD_OK) {
        job->bytes_read = m.model->bytes_read;
        if (sherd_comm_rank(job->comm) == 0)
            log_info("weights of %s: %d tensors in %d file%s, %s read by rank 0 in %s", dir,
                m.model->n_tensors, m.model->n_files, m.model->n_files == 1 ? "" : "s",
                text_human_bytes((double)job->bytes_read, bytes),
                text_human_seconds(clock_seconds() - start, took));
    }
    hf_close(m.model);
    match_finish(&m.match);
    mem_free(m.spans);
    mem_free(m.raw);
    mem_free(m.raw2);
    return st;
}
