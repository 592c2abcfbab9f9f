/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Which tensor of a model folder is which of a model: see ckpt/match.h.
 */
#include "ckpt/match.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/text.h"

int match_is_buffer(const char *name)
{
    return text_ends(name, ".attn.bias") || text_ends(name, ".attn.masked_bias") ||
           text_ends(name, "rotary_emb.inv_freq");
}

static int check_tensor(const struct hf_model *model, const struct shard_tensor *t, const struct hf_tensor *s)
{
    const struct st_entry *e = s->entry;
    char has[ST_SHAPE_BYTES], wants[ST_SHAPE_BYTES];
    if (e->dims != t->dims || memcmp(e->shape, t->shape, (size_t)t->dims * sizeof(*t->shape)))
        return SHERD_FAIL(SHERD_EFORMAT,
            "%s: tensor '%s' has shape %s, this model needs %s: does config.json belong to these files?",
            model->path, s->name, st_shape_text(e->shape, e->dims, has),
            st_shape_text(t->shape, t->dims, wants));
    if (!st_convertible(e->type))
        return SHERD_FAIL(SHERD_EUNSUPPORTED,
            "%s: tensor '%s' is stored as %s; sherd reads F32, BF16 and F16", model->path, s->name,
            e->type_name);
    return SHERD_OK;
}

static int match_tensor(struct match *m, const struct shard_layout *layout, int i)
{
    const struct shard_tensor *t = &layout->tensors[i];
    const struct hf_tensor *own = hf_find_any(m->model, t->name);
    const struct hf_tensor *other = t->alias ? hf_find_any(m->model, t->alias) : NULL;
    if (!own && !other)
        return SHERD_FAIL(SHERD_EFORMAT, "%s: tensor '%s' is missing%s", m->model->path, t->name,
            !strcmp(t->name, "lm_head.weight")
                ? ": config.json says that it is not tied to the embedding (tie_word_embeddings)"
                : "; do these files belong to this config.json?");
    m->source[i] = own ? own : other;
    m->second[i] = own && other ? other : NULL;
    SHERD_TRY(check_tensor(m->model, t, m->source[i]));
    return m->second[i] ? check_tensor(m->model, t, m->second[i]) : SHERD_OK;
}

static int order(const void *a, const void *b)
{
    const struct hf_tensor *x = *(const struct hf_tensor *const *)a, *y = *(const struct hf_tensor *const *)b;
    return x < y ? -1 : x > y;
}

/* Every tensor of the files has its place. */
static int match_rest(const struct match *m, const struct shard_layout *layout)
{
    int n = 0, n_tensors = layout->n_tensors;
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
        if ((k == n || used[k] != t) && !match_is_buffer(t->name))
            st = SHERD_FAIL(SHERD_EFORMAT,
                "%s: tensor '%s' of %s has no place in the model that config.json describes", m->model->path,
                t->name, m->model->files[t->file].name);
    }
    mem_free(used);
    return st;
}

int match_init(struct match *m, const struct hf_model *model, const struct shard_layout *layout)
{
    size_t n = (size_t)layout->n_tensors;
    *m = (struct match){ .model = model };
    m->source = mem_zalloc(n, sizeof(*m->source));
    m->second = mem_zalloc(n, sizeof(*m->second));
    int st = m->source && m->second ? SHERD_OK : SHERD_ENOMEM;
    for (int i = 0; i < layout->n_tensors && st == SHERD_OK; i++)
        st = match_tensor(m, layout, i);
    if (st == SHERD_OK)
        st = match_rest(m, layout);
    if (st != SHERD_OK)
        match_finish(m);
    return st;
}

void match_finish(struct match *m)
{
    mem_free(m->source);
    mem_free(m->second);
    *m = (struct match){ 0 };
}

int match_differ(const struct match *m, int tensor)
{
    return SHERD_FAIL(SHERD_EFORMAT,
        "%s: '%s' and '%s' are tied by config.json, but differ: set tie_word_embeddings to false there, or "
        "remove one of them",
        m->model->path, m->source[tensor]->name, m->second[tensor]->name);
}
