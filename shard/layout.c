/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Names to offsets: see shard/layout.h.
 */
#include "shard/layout.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"

static int64_t param_elems(const struct sherd_param *p)
{
    int64_t n = 1;
    for (int d = 0; d < p->dims; d++)
        n *= p->shape[d];
    return n;
}

/* The tensors of one parameter: itself, or one for each part. */
static void add_tensors(struct shard_layout *layout, const struct sherd_param *p, int unit, int param,
    enum shard_segment segment, int64_t offset)
{
    int n = p->n_parts ? p->n_parts : 1;
    int64_t row = param_elems(p) / p->shape[0];
    for (int i = 0; i < n; i++) {
        struct shard_tensor *t = &layout->tensors[layout->n_tensors++];
        t->name = p->n_parts ? p->parts[i].name : p->name;
        t->alias = p->n_parts ? NULL : p->alias;
        t->unit = unit;
        t->param = param;
        t->segment = segment;
        t->offset = offset;
        t->dims = p->dims;
        memcpy(t->shape, p->shape, sizeof(t->shape));
        if (p->n_parts)
            t->shape[0] = p->parts[i].rows;
        t->elems = t->shape[0] * row;
        t->flags = p->flags;
        offset += t->elems;
    }
}

static void lay_unit(struct shard_layout *layout, const struct sherd_unit *unit, int u)
{
    struct shard_unit_layout *ul = &layout->units[u];
    ul->name = unit->name;
    ul->n_params = unit->n_params;
    ul->first_tensor = layout->n_tensors;
    for (int s = 0; s < SHARD_SEGMENTS; s++) {
        int64_t at = 0;
        for (int p = 0; p < unit->n_params; p++) {
            const struct sherd_param *param = &unit->params[p];
            enum shard_segment segment = param->flags & SHERD_FROZEN ? SHARD_FROZEN : SHARD_TRAINED;
            if ((int)segment != s)
                continue;
            ul->param_offset[p] = at;
            ul->param_segment[p] = segment;
            add_tensors(layout, param, u, p, segment, at);
            at = round_up(at + param_elems(param), SHARD_ALIGN);
            layout->params += param_elems(param);
            layout->trained += segment == SHARD_TRAINED ? param_elems(param) : 0;
        }
        ul->elems[s] = round_up(at, (int64_t)layout->world * SHARD_ALIGN);
    }
    ul->n_tensors = layout->n_tensors - ul->first_tensor;
}

int layout_init(struct shard_layout *layout, const struct sherd_model_spec *spec, int world)
{
    assert(world > 0);
    *layout = (struct shard_layout){ .world = world, .n_units = spec->n_units };
    int n_tensors = 0, st = SHERD_OK;
    layout->units = mem_zalloc((size_t)spec->n_units, sizeof(*layout->units));
    if (!layout->units)
        return SHERD_ENOMEM;
    for (int u = 0; u < spec->n_units; u++) {
        const struct sherd_unit *unit = &spec->units[u];
        for (int p = 0; p < unit->n_params; p++)
            n_tensors += unit->params[p].n_parts ? unit->params[p].n_parts : 1;
        layout->units[u].param_offset = mem_zalloc((size_t)unit->n_params, sizeof(int64_t));
        layout->units[u].param_segment = mem_zalloc((size_t)unit->n_params, sizeof(enum shard_segment));
        if (!layout->units[u].param_offset || !layout->units[u].param_segment)
            st = SHERD_ENOMEM;
    }
    layout->tensors = mem_zalloc((size_t)n_tensors, sizeof(*layout->tensors));
    if (!layout->tensors || st != SHERD_OK) {
        layout_finish(layout);
        return SHERD_ENOMEM;
    }
    for (int u = 0; u < spec->n_units; u++)
        lay_unit(layout, &spec->units[u], u);
    assert(layout->n_tensors == n_tensors);
    return SHERD_OK;
}

void layout_finish(struct shard_layout *layout)
{
    if (!layout)
        return;
    for (int u = 0; layout->units && u < layout->n_units; u++) {
        mem_free(layout->units[u].param_offset);
        mem_free(layout->units[u].param_segment);
    }
    mem_free(layout->units);
    mem_free(layout->tensors);
    *layout = (struct shard_layout){ 0 };
}

int layout_spans(const struct shard_layout *layout, int unit, enum shard_segment segment, int64_t begin,
    int64_t end, struct shard_span *out, int cap)
{
    const struct shard_unit_layout *ul = &layout->units[unit];
    int n = 0;
    for (int i = ul->first_tensor; i < ul->first_tensor + ul->n_tensors; i++) {
        const struct shard_tensor *t = &layout->tensors[i];
        int64_t from = MAX(begin, t->offset), to = MIN(end, t->offset + t->elems);
        if (t->segment != segment || from >= to)
            continue;
        if (n < cap)
            out[n] = (struct shard_span){ i, from - t->offset, from, to - from };
        n++;
    }
    return n;
}

int layout_find(const struct shard_layout *layout, const char *name)
{
    for (int i = 0; i < layout->n_tensors; i++) {
        const struct shard_tensor *t = &layout->tensors[i];
        if (!strcmp(t->name, name) || (t->alias && !strcmp(t->alias, name)))
            return i;
    }
    return -1;
}
