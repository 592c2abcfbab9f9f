/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What differs between two checkpoints or model folders, in any mix: tensor after tensor, as F32, in two
 * fixed buffers.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "ckpt/match.h"
#include "ckpt/open.h"

#define PIECE_ELEMS ((int64_t)1 << 20)

/* One of the two. */
struct side {
    const char *dir;
    struct sherd_ckpt *ckpt; /* or: */
    struct hf_model *model;
};

/* A tensor of a side. */
struct thing {
    const char *name, *alias;
    enum sherd_dtype type;
    const int64_t *shape;
    int dims;
    int64_t elems;
    int frozen;
};

struct diff {
    const struct sherd_diff_desc *desc;
    struct sherd_diff_result *out;
    struct side a, b;
    float *x, *y; /* PIECE_ELEMS each */
    void *raw;    /* PIECE_ELEMS of the widest type */
};

/* ---- sides ---- */

static int open_side(struct side *s, const char *dir)
{
    s->dir = dir;
    if (hf_is_model(dir))
        return hf_open(&s->model, dir);
    char *path;
    SHERD_TRY(sherd_ckpt_find(&path, dir));
    int st = sherd_ckpt_open(&s->ckpt, path);
    mem_free(path);
    if (st == SHERD_OK)
        st = ckpt_check_headers(s->ckpt, CKPT_WEIGHTS);
    return st;
}

static void close_side(struct side *s)
{
    sherd_ckpt_close(s->ckpt);
    hf_close(s->model);
}

static int count(const struct side *s)
{
    return s->ckpt ? s->ckpt->manifest.n_tensors : s->model->n_tensors;
}

static struct thing thing_at(const struct side *s, int i)
{
    if (s->ckpt) {
        const struct manifest_tensor *t = &s->ckpt->manifest.tensors[i];
        return (struct thing){ t->name, t->alias, t->type, t->shape, t->dims, t->elems, t->frozen };
    }
    const struct st_entry *e = s->model->tensors[i].entry;
    return (struct thing){ e->name, NULL, e->type, e->shape, e->dims, e->elems, 0 };
}

static int find_exact(const struct side *s, const char *name)
{
    if (s->ckpt)
        return manifest_find(&s->ckpt->manifest, name);
    const struct hf_tensor *t = hf_find(s->model, name);
    return t ? (int)(t - s->model->tensors) : -1;
}

/* By its name, or with or without the first word that a bare GPT-2 leaves away. */
static int find_name(const struct side *s, const char *name)
{
    static const char *const words[] = { "transformer.", "model." };
    const char *dot = strchr(name, '.');
    int i = find_exact(s, name);
    if (i < 0 && dot)
        i = find_exact(s, dot + 1);
    for (size_t w = 0; w < ARRAY_LEN(words) && i < 0; w++) {
        char longer[512];
        snprintf(longer, sizeof(longer), "%s%s", words[w], name);
        i = find_exact(s, longer);
    }
    return i;
}

static int find(const struct side *s, const struct thing *t)
{
    int i = find_name(s, t->name);
    return i < 0 && t->alias ? find_name(s, t->alias) : i;
}

/* Elements as F32. */
static int read_elems(
    struct diff *d, struct side *s, const char *what, int i, int64_t first, int64_t n, float *out)
{
    if (s->ckpt)
        return sherd_ckpt_read(s->ckpt, what, i, first, n, out);
    const struct hf_tensor *t = &s->model->tensors[i];
    if (!st_convertible(t->entry->type))
        return SHERD_FAIL(SHERD_EUNSUPPORTED,
            "%s: tensor '%s' is stored as %s; F32, BF16 and F16 can be compared", s->dir, t->name,
            t->entry->type_name);
    SHERD_TRY(hf_read(s->model, t, first, n, d->raw));
    st_convert(out, SHERD_F32, d->raw, t->entry->type, n, NULL);
    return SHERD_OK;
}

/* ---- values ---- */

/* The place of a float in the order of all floats; -0 and 0 are one. */
static int64_t rank_of(float f)
{
    int32_t bits;
    memcpy(&bits, &f, sizeof(bits));
    return bits < 0 ? -(int64_t)(bits & INT32_MAX) : bits;
}

static void compare_one(struct sherd_diff_item *item, float a, float b)
{
    if (isnan(a) || isnan(b)) {
        item->max_ulps = -1;
        item->max_abs = item->max_rel = NAN;
        return;
    }
    double off = fabs((double)a - (double)b), size = fmax(fabs((double)a), fabs((double)b));
    int64_t ulps = llabs(rank_of(a) - rank_of(b));
    item->max_abs = fmax(item->max_abs, off);
    item->max_rel = fmax(item->max_rel, size > 0 ? off / size : 0);
    if (item->max_ulps >= 0 && ulps > item->max_ulps)
        item->max_ulps = ulps;
}

static void compare_piece(struct sherd_diff_item *item, const float *x, const float *y, int64_t at, int64_t n)
{
    if (memcmp(x, y, (size_t)n * sizeof(*x)) == 0)
        return;
    for (int64_t i = 0; i < n; i++) {
        if (memcmp(&x[i], &y[i], sizeof(*x)) == 0)
            continue;
        if (item->n_different++ == 0)
            item->first = at + i;
        compare_one(item, x[i], y[i]);
    }
}

static void tell(struct diff *d, const struct sherd_diff_item *item)
{
    d->out->compared++;
    d->out->elems += item->kind == SHERD_DIFF_VALUES ? item->elems : 0;
    d->out->different += item->kind != SHERD_DIFF_VALUES || item->n_different > 0;
    if (d->desc->item)
        d->desc->item(d->desc->ctx, item);
}

static int compare_values(struct diff *d, const char *what, int i, int k)
{
    struct thing a = thing_at(&d->a, i), b = thing_at(&d->b, k);
    int weight = !strcmp(what, CKPT_WEIGHT);
    struct sherd_diff_item item = { .kind = SHERD_DIFF_VALUES,
        .name = a.name,
        .what = what,
        .a_type = weight ? a.type : SHERD_F32,
        .b_type = weight ? b.type : SHERD_F32,
        .elems = a.elems };
    for (int64_t at = 0; at < a.elems; at += PIECE_ELEMS) {
        int64_t n = MIN(a.elems - at, PIECE_ELEMS);
        SHERD_TRY(read_elems(d, &d->a, what, i, at, n, d->x));
        SHERD_TRY(read_elems(d, &d->b, what, k, at, n, d->y));
        compare_piece(&item, d->x, d->y, at, n);
    }
    tell(d, &item);
    return SHERD_OK;
}

static int compare_weight(struct diff *d, int i, int k)
{
    struct thing a = thing_at(&d->a, i), b = thing_at(&d->b, k);
    char a_shape[ST_SHAPE_BYTES], b_shape[ST_SHAPE_BYTES];
    if (a.dims == b.dims && !memcmp(a.shape, b.shape, (size_t)a.dims * sizeof(*a.shape)))
        return compare_values(d, CKPT_WEIGHT, i, k);
    tell(d, &(struct sherd_diff_item){ .kind = SHERD_DIFF_SHAPE,
                .name = a.name,
                .what = CKPT_WEIGHT,
                .a_type = a.type,
                .b_type = b.type,
                .a_text = st_shape_text(a.shape, a.dims, a_shape),
                .b_text = st_shape_text(b.shape, b.dims, b_shape) });
    return SHERD_OK;
}

/* A state that one side lacks, or of a tensor that is frozen in one. */
static void tell_missing(struct diff *d, enum sherd_diff_kind kind, const char *name, const char *what)
{
    tell(d, &(struct sherd_diff_item){ .kind = kind, .name = name, .what = what });
}

static int compare_weights(struct diff *d)
{
    for (int i = 0; i < count(&d->a); i++) {
        struct thing t = thing_at(&d->a, i);
        int k = find(&d->b, &t);
        if (k >= 0)
            SHERD_TRY(compare_weight(d, i, k));
        else if (!match_is_buffer(t.name))
            tell_missing(d, SHERD_DIFF_ONLY_A, t.name, CKPT_WEIGHT);
    }
    for (int k = 0; k < count(&d->b); k++) {
        struct thing t = thing_at(&d->b, k);
        int i = find(&d->a, &t);
        if (i < 0 && !match_is_buffer(t.name))
            tell_missing(d, SHERD_DIFF_ONLY_B, t.name, CKPT_WEIGHT);
        struct thing other = i < 0 ? t : thing_at(&d->a, i);
        if (i >= 0 && find(&d->b, &other) != k) /* a second copy of a tied tensor */
            SHERD_TRY(compare_weight(d, i, k));
    }
    return SHERD_OK;
}

/* ---- what only checkpoints have ---- */

static int compare_state(struct diff *d, const char *what)
{
    for (int i = 0; i < count(&d->a); i++) {
        struct thing a = thing_at(&d->a, i);
        int k = find(&d->b, &a);
        if (k < 0)
            continue;
        struct thing b = thing_at(&d->b, k);
        if (a.elems == b.elems && !a.frozen && !b.frozen)
            SHERD_TRY(compare_values(d, what, i, k));
        else if (a.frozen != b.frozen)
            tell_missing(d, a.frozen ? SHERD_DIFF_ONLY_B : SHERD_DIFF_ONLY_A, a.name, what);
    }
    return SHERD_OK;
}

static int compare_states(struct diff *d)
{
    const struct manifest *a = &d->a.ckpt->manifest, *b = &d->b.ckpt->manifest;
    for (int i = 0; i < a->meta.n_states; i++) {
        if (manifest_state(b, a->meta.states[i]) >= 0)
            SHERD_TRY(compare_state(d, a->meta.states[i]));
        else
            tell_missing(d, SHERD_DIFF_ONLY_A, "(all trained tensors)", a->meta.states[i]);
    }
    for (int i = 0; i < b->meta.n_states; i++) {
        if (manifest_state(a, b->meta.states[i]) < 0)
            tell_missing(d, SHERD_DIFF_ONLY_B, "(all trained tensors)", b->meta.states[i]);
    }
    return SHERD_OK;
}

static void compare_texts(struct diff *d, const char *name, const char *a, const char *b)
{
    if (!strcmp(a, b))
        d->out->compared++;
    else
        tell(d, &(struct sherd_diff_item){
                    .kind = SHERD_DIFF_TEXT, .name = name, .what = "", .a_text = a, .b_text = b });
}

static void compare_numbers(struct diff *d, const char *name, int64_t a, int64_t b)
{
    char x[24], y[24];
    snprintf(x, sizeof(x), "%lld", (long long)a);
    snprintf(y, sizeof(y), "%lld", (long long)b);
    compare_texts(d, name, x, y);
}

/* World and stage say how it was saved, not what: they may differ. */
static void compare_meta(struct diff *d)
{
    const struct ckpt_meta *a = &d->a.ckpt->manifest.meta, *b = &d->b.ckpt->manifest.meta;
    compare_numbers(d, "step", a->step, b->step);
    compare_numbers(d, "tokens_seen", a->tokens_seen, b->tokens_seen);
    compare_numbers(d, "samples_seen", a->samples_seen, b->samples_seen);
    compare_numbers(d, "seed", (int64_t)a->seed, (int64_t)b->seed);
    compare_texts(d, "optimizer", a->optimizer ? a->optimizer : "", b->optimizer ? b->optimizer : "");
}

static int compare(struct diff *d)
{
    SHERD_TRY(open_side(&d->a, d->desc->a));
    SHERD_TRY(open_side(&d->b, d->desc->b));
    d->x = mem_aligned(64, (size_t)PIECE_ELEMS * sizeof(float));
    d->y = mem_aligned(64, (size_t)PIECE_ELEMS * sizeof(float));
    d->raw = mem_aligned(64, (size_t)PIECE_ELEMS * sizeof(float));
    if (!d->x || !d->y || !d->raw)
        return SHERD_ENOMEM;
    int states = !d->desc->weights_only && d->a.ckpt && d->b.ckpt;
    if (states)
        compare_meta(d);
    SHERD_TRY(compare_weights(d));
    return states ? compare_states(d) : SHERD_OK;
}

int sherd_diff(const struct sherd_diff_desc *desc, struct sherd_diff_result *out)
{
    struct diff d = { .desc = desc, .out = out };
    if (!desc->a || !desc->b)
        return SHERD_FAIL(SHERD_EINVAL, "diff: two folders are needed");
    *out = (struct sherd_diff_result){ 0 };
    int st = compare(&d);
    close_side(&d.a);
    close_side(&d.b);
    mem_free(d.x);
    mem_free(d.y);
    mem_free(d.raw);
    return st;
}
