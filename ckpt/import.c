/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Importing: the weights of a model folder into the views of an engine. Each rank reads the headers and then
 * only the ranges that its views need. Names decide, never order; nothing may be missing, nothing left over.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sherd/ops.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/text.h"
#include "ckpt/hf.h"
#include "ckpt/views.h"

#define PIECE_ELEMS ((int64_t)(CKPT_STAGING_BYTES / sizeof(float)))

struct import {
    const struct ckpt_job *job;
    struct hf_model *model;
    const struct hf_tensor **source; /* by tensor of the layout */
    const struct hf_tensor **second; /* the file's own copy of a tied tensor, or NULL */
    struct shard_span *spans;        /* as many as tensors */
    void *raw, *raw2;                /* CKPT_STAGING_BYTES each */
};

/* Tensors that files have and models do not need: masks and angles that follow from the sizes. */
static int is_buffer(const char *name)
{
    return text_ends(name, ".attn.bias") || text_ends(name, ".attn.masked_bias") ||
           text_ends(name, "rotary_emb.inv_freq");
}

static const char *shape_text(const int64_t *shape, int dims, char buf[96])
{
    size_t at = 0;
    buf[0] = '\0';
    for (int i = 0; i < dims && at < 96; i++)
        at += (size_t)snprintf(buf + at, 96 - at, "%s%lld", i ? ", " : "", (long long)shape[i]);
    return buf;
}

static int check_tensor(const struct import *m, const struct shard_tensor *t, const struct hf_tensor *s)
{
    const struct st_entry *e = s->entry;
    char has[96], wants[96];
    if (e->dims != t->dims || memcmp(e->shape, t->shape, (size_t)t->dims * sizeof(*t->shape)))
        return SHERD_FAIL(SHERD_EFORMAT,
            "%s: tensor '%s' has shape [%s], this model needs [%s]: does config.json belong to these files?",
            m->model->path, s->name, shape_text(e->shape, e->dims, has),
            shape_text(t->shape, t->dims, wants));
    if (!st_convertible(e->type))
        return SHERD_FAIL(SHERD_EUNSUPPORTED,
            "%s: tensor '%s' is stored as %s; sherd reads F32, BF16 and F16", m->model->path, s->name,
            e->type_name);
    return SHERD_OK;
}

static int match_tensor(struct import *m, int i)
{
    const struct shard_tensor *t = &m->job->layout->tensors[i];
    const struct hf_tensor *own = hf_find_any(m->model, t->name);
    const struct hf_tensor *other = t->alias ? hf_find_any(m->model, t->alias) : NULL;
    if (!own && !other)
        return SHERD_FAIL(SHERD_EFORMAT, "%s: tensor '%s' is missing%s", m->model->path, t->name,
            !strcmp(t->name, "lm_head.weight")
                ? ": config.json says that it is not tied to the embedding (tie_word_embeddings)"
                : "; do these files belong to this config.json?");
    m->source[i] = own ? own : other;
    m->second[i] = own && other ? other : NULL;
    SHERD_TRY(check_tensor(m, t, m->source[i]));
    return m->second[i] ? check_tensor(m, t, m->second[i]) : SHERD_OK;
}

static int order(const void *a, const void *b)
{
    const struct hf_tensor *x = *(const struct hf_tensor *const *)a, *y = *(const struct hf_tensor *const *)b;
    return x < y ? -1 : x > y;
}

/* Every tensor of the files has its place. */
static int match_rest(const struct import *m)
{
    int n = 0, n_tensors = m->job->layout->n_tensors;
    const struct hf_tensor **used = mem_zalloc(2 * (size_t)n_tensors + 1, sizeof(*used));
    if (!used)
        return SHERD_ENOMEM;
    for (int i = 0; i < n_tensors; i++) {
        used[n++] = m->source[i];
        if (m->second[i])
            used[n++] = m->second[i];
    }
    qsort(used, (size_t)n, sizeof(*used), order);
    int st = SHERD_OK;
    for (int i = 0, k = 0; i < m->model->n_tensors && st == SHERD_OK; i++) {
        const struct hf_tensor *t = &m->model->tensors[i];
        while (k < n && used[k] < t)
            k++;
        if ((k == n || used[k] != t) && !is_buffer(t->name))
            st = SHERD_FAIL(SHERD_EFORMAT,
                "%s: tensor '%s' of %s has no place in the model that config.json describes", m->model->path,
                t->name, m->model->files[t->file].name);
    }
    mem_free(used);
    return st;
}

static int match(struct import *m, const char *dir)
{
    int n = m->job->layout->n_tensors;
    SHERD_TRY(views_check(m->job, NULL, 0));
    SHERD_TRY(hf_open(&m->model, dir));
    m->source = mem_zalloc((size_t)n, sizeof(*m->source));
    m->second = mem_zalloc((size_t)n, sizeof(*m->second));
    m->spans = mem_zalloc((size_t)n, sizeof(*m->spans));
    m->raw = mem_aligned(4096, CKPT_STAGING_BYTES);
    m->raw2 = mem_aligned(4096, CKPT_STAGING_BYTES);
    if (!m->source || !m->second || !m->spans || !m->raw || !m->raw2)
        return SHERD_ENOMEM;
    for (int i = 0; i < n; i++)
        SHERD_TRY(match_tensor(m, i));
    return match_rest(m);
}

/* Elements [first, first + n) in the view's type to the host. */
static int read_part(
    struct import *m, int tensor, int64_t first, int64_t n, enum sherd_dtype type, void *host)
{
    const struct hf_tensor *s = m->source[tensor], *second = m->second[tensor];
    int64_t overflow;
    SHERD_TRY(hf_read(m->model, s, first, n, m->raw));
    st_convert(host, type, m->raw, s->entry->type, n, &overflow);
    if (overflow >= 0)
        return SHERD_FAIL(SHERD_ENONFINITE,
            "%s: tensor '%s', element %lld is too large for %s: use another dtype.param", m->model->path,
            s->name, (long long)(first + overflow), sherd_dtype_name(type));
    if (!second)
        return SHERD_OK;
    SHERD_TRY(hf_read(m->model, second, first, n, m->raw2));
    if (second->entry->type != s->entry->type ||
        memcmp(m->raw, m->raw2, (size_t)n * sherd_dtype_bytes(s->entry->type)) != 0)
        return SHERD_FAIL(SHERD_EFORMAT,
            "%s: '%s' and '%s' are tied by config.json, but differ: set tie_word_embeddings to false there, "
            "or remove one of them",
            m->model->path, s->name, second->name);
    return SHERD_OK;
}

static int read_view(struct import *m, struct ferry *ferry, const struct shard_view *v)
{
    const struct shard_layout *layout = m->job->layout;
    size_t size = sherd_dtype_bytes(v->type);
    int n =
        layout_spans(layout, v->unit, v->segment, v->first, v->first + v->elems, m->spans, layout->n_tensors);
    for (int k = 0; k < n; k++) {
        const struct shard_span *span = &m->spans[k];
        char *to = (char *)v->data + (size_t)(span->offset - v->first) * size;
        for (int64_t at = 0; at < span->elems; at += PIECE_ELEMS) {
            int64_t elems = MIN(span->elems - at, PIECE_ELEMS);
            SHERD_TRY(read_part(m, span->tensor, span->first + at, elems, v->type, ferry->host));
            SHERD_TRY(ferry_in(ferry, to + (size_t)at * size, (size_t)elems * size));
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

int ckpt_import(struct ckpt_job *job, const char *dir)
{
    struct import m = { .job = job };
    char bytes[32], took[32];
    double start = clock_seconds();
    int st = comm_agree(job->comm, match(&m, dir));
    if (st == SHERD_OK)
        st = comm_agree(job->comm, read_views(&m));
    if (st == SHERD_OK) {
        job->bytes_read = m.model->bytes_read;
        if (sherd_comm_rank(job->comm) == 0)
            log_info("weights of %s: %d tensors in %d file%s, %s read by rank 0 in %s", dir,
                m.model->n_tensors, m.model->n_files, m.model->n_files == 1 ? "" : "s",
                text_human_bytes((double)job->bytes_read, bytes),
                text_human_seconds(clock_seconds() - start, took));
    }
    hf_close(m.model);
    mem_free(m.source);
    mem_free(m.second);
    mem_free(m.spans);
    mem_free(m.raw);
    mem_free(m.raw2);
    return st;
}
