/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Pieces of tensors: see ckpt/piece.h.
 */
#include "ckpt/piece.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/status.h"
#include "ckpt/views.h"

/* A piece that is not the whole tensor is one-dimensional. */
static int add_piece(struct piece_list *list, const struct ckpt_job *job, const struct shard_view *view,
    const struct shard_span *span)
{
    const struct shard_tensor *t = &job->layout->tensors[span->tensor];
    struct st_item *item = &list->items[list->n];
    struct piece *piece = &list->pieces[list->n++];
    size_t size = sherd_dtype_bytes(view->type);
    piece->tensor = t;
    piece->first = span->first;
    piece->elems = span->elems;
    size_t at = (size_t)(span->offset - view->first);
    piece->data = (const char *)view->data + at * (view->halves ? sizeof(uint16_t) : size);
    piece->halves = view->halves;
    piece->low = view->low ? view->low + at : NULL;
    piece->bytes = (size_t)span->elems * size;
    item->type = view->type;
    item->name =
        strcmp(view->what, CKPT_WEIGHT) ? arena_printf(&list->arena, "%s/%s", t->name, view->what) : t->name;
    if (!item->name)
        return SHERD_ENOMEM;
    item->dims = span->elems == t->elems ? t->dims : 1;
    item->shape = span->elems == t->elems ? t->shape : &piece->elems;
    return SHERD_OK;
}

/* This rank's pieces of one segment. */
static int add_segment(struct piece_list *list, const struct ckpt_job *job, const char *what,
    size_t type_bytes, int unit, enum shard_segment segment, struct shard_span *spans)
{
    const struct shard_view *view = views_find(job, what, unit, segment);
    int64_t slice = layout_slice(job->layout, unit, segment), first = slice * sherd_comm_rank(job->comm);
    if (!slice || sherd_dtype_bytes(view->type) != type_bytes)
        return SHERD_OK;
    int n = layout_spans(job->layout, unit, segment, first, first + slice, spans, job->layout->n_tensors);
    for (int i = 0; i < n; i++)
        SHERD_TRY(add_piece(list, job, view, &spans[i]));
    return SHERD_OK;
}

static int add_all(
    struct piece_list *list, const struct ckpt_job *job, enum ckpt_kind kind, struct shard_span *spans)
{
    for (int u = 0; u < job->layout->n_units && kind == CKPT_WEIGHTS; u++) {
        SHERD_TRY(add_segment(list, job, CKPT_WEIGHT, 4, u, SHARD_TRAINED, spans));
        SHERD_TRY(add_segment(list, job, CKPT_WEIGHT, 4, u, SHARD_FROZEN, spans));
    }
    for (int u = 0; u < job->layout->n_units && kind == CKPT_WEIGHTS; u++)
        SHERD_TRY(add_segment(list, job, CKPT_WEIGHT, 2, u, SHARD_FROZEN, spans));
    for (int i = 0; i < job->meta.n_states && kind == CKPT_STATES; i++) {
        for (int u = 0; u < job->layout->n_units; u++)
            SHERD_TRY(add_segment(list, job, job->meta.states[i], 4, u, SHARD_TRAINED, spans));
    }
    return SHERD_OK;
}

/* {"name": {"shape": [...], "saved_offsets": [first]}} for the entries that are not whole tensors. */
static int spans_text(struct piece_list *list, const char **out)
{
    int bad = 0;
    char *text = NULL;
    json_t *root = json_object();
    for (int i = 0; i < list->n; i++) {
        const struct piece *p = &list->pieces[i];
        json_t *shape;
        if (p->elems == p->tensor->elems)
            continue;
        shape = json_array();
        for (int d = 0; d < p->tensor->dims; d++)
            bad |= json_array_append_new(shape, json_integer(p->tensor->shape[d])) != 0;
        json_t *span = json_pack("{s:o, s:[I]}", "shape", shape, "saved_offsets", (json_int_t)p->first);
        bad |= json_object_set_new(root, list->items[i].name, span) != 0;
    }
    int st = bad || !root ? SHERD_FAIL(SHERD_EFORMAT, "a tensor has a name that is not UTF-8")
                          : json_print(&text, root, 0);
    json_decref(root);
    SHERD_TRY(st);
    *out = arena_strdup(&list->arena, text);
    mem_free(text);
    return *out ? SHERD_OK : SHERD_ENOMEM;
}

static int fill_meta(struct piece_list *list, const struct ckpt_job *job)
{
    const char *spans, *step = arena_printf(&list->arena, "%lld", (long long)job->meta.step);
    const char *rank = arena_printf(&list->arena, "%d", sherd_comm_rank(job->comm));
    const char *world = arena_printf(&list->arena, "%d", job->layout->world);
    if (!step || !rank || !world)
        return SHERD_ENOMEM;
    SHERD_TRY(spans_text(list, &spans));
    const struct st_meta meta[PIECE_META] = {
        { CKPT_META_FORMAT, CKPT_META_FORMAT_VALUE },
        { CKPT_META_SHERD, sherd_version() },
        { CKPT_META_STEP, step },
        { CKPT_META_RANK, rank },
        { CKPT_META_WORLD, world },
        { CKPT_META_SPANS, spans },
    };
    memcpy(list->meta, meta, sizeof(meta));
    return SHERD_OK;
}

/* No rank has more pieces of a state than there are tensors. */
static int alloc_list(struct piece_list *list, const struct ckpt_job *job, struct shard_span **spans)
{
    size_t n = (size_t)job->layout->n_tensors * (size_t)MAX(1, job->meta.n_states);
    list->pieces = arena_zalloc(&list->arena, n, sizeof(*list->pieces));
    list->items = arena_zalloc(&list->arena, n, sizeof(*list->items));
    *spans = arena_zalloc(&list->arena, (size_t)job->layout->n_tensors, sizeof(**spans));
    return list->pieces && list->items && *spans ? SHERD_OK : SHERD_ENOMEM;
}

int piece_list_init(struct piece_list *list, const struct ckpt_job *job, enum ckpt_kind kind)
{
    struct shard_span *spans;
    *list = (struct piece_list){ 0 };
    int st = alloc_list(list, job, &spans);
    if (st == SHERD_OK)
        st = add_all(list, job, kind, spans);
    if (st == SHERD_OK)
        st = fill_meta(list, job);
    if (st == SHERD_OK)
        st = st_header_text(&list->header, &list->header_bytes, &list->file_bytes, list->items, list->n,
            list->meta, PIECE_META);
    if (st != SHERD_OK) {
        piece_list_finish(list);
        return st;
    }
    uint64_t at = list->header_bytes;
    for (int i = 0; i < list->n; at += list->pieces[i].bytes, i++)
        list->pieces[i].offset = at;
    return SHERD_OK;
}

void piece_list_finish(struct piece_list *list)
{
    arena_finish(&list->arena);
    mem_free(list->header);
    *list = (struct piece_list){ 0 };
}

static int by_model(const void *a, const void *b)
{
    const struct shard_tensor *x = *(const struct shard_tensor *const *)a;
    const struct shard_tensor *y = *(const struct shard_tensor *const *)b;
    if (x->unit != y->unit)
        return x->unit - y->unit;
    return x->param != y->param ? x->param - y->param : (x > y) - (x < y);
}

static int fill_tensor(
    struct manifest *m, struct manifest_tensor *out, const struct ckpt_job *job, const struct shard_tensor *t)
{
    int64_t slice = layout_slice(job->layout, t->unit, t->segment);
    int first_rank = (int)(t->offset / slice), last_rank = (int)((t->offset + t->elems - 1) / slice);
    out->name = t->name;
    out->alias = t->alias;
    out->type = views_find(job, CKPT_WEIGHT, t->unit, t->segment)->type;
    memcpy(out->shape, t->shape, sizeof(out->shape));
    out->dims = t->dims;
    out->elems = t->elems;
    out->frozen = t->segment == SHARD_FROZEN;
    out->no_decay = (t->flags & SHERD_NO_DECAY) != 0;
    out->n_spans = last_rank - first_rank + 1;
    out->spans = arena_zalloc(&m->arena, (size_t)out->n_spans, sizeof(*out->spans));
    if (!out->spans)
        return SHERD_ENOMEM;
    for (int i = 0; i < out->n_spans; i++) {
        int64_t begin = MAX(t->offset, slice * (first_rank + i));
        int64_t end = MIN(t->offset + t->elems, slice * (first_rank + i + 1));
        out->spans[i] = (struct manifest_span){ first_rank + i, begin - t->offset, end - begin };
    }
    return SHERD_OK;
}

int piece_tensors(struct manifest *m, const struct ckpt_job *job)
{
    int n = job->layout->n_tensors;
    const struct shard_tensor **order = arena_zalloc(&m->arena, (size_t)n, sizeof(*order));
    m->tensors = arena_zalloc(&m->arena, (size_t)n, sizeof(*m->tensors));
    if (!order || !m->tensors)
        return SHERD_ENOMEM;
    for (int i = 0; i < n; i++)
        order[i] = &job->layout->tensors[i];
    qsort(order, (size_t)n, sizeof(*order), by_model);
    m->n_tensors = n;
    for (int i = 0; i < n; i++)
        SHERD_TRY(fill_tensor(m, &m->tensors[i], job, order[i]));
    return SHERD_OK;
}
