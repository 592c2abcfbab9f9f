/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The maker: specs built piece by piece in an arena, with names printed on the way.
 */
#include "model/model.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/status.h"

#define MAX_PARTS 3
#define NAME_BYTES 256

/* The name as a text of the arena; NULL, and the maker failed, without memory. */
static const char *print_name(struct maker *m, const char *format, va_list args)
{
    char name[NAME_BYTES];
    vsnprintf(name, sizeof(name), format, args);
    const char *copy = arena_strdup(m->arena, name);
    m->failed |= !copy;
    return copy;
}

void maker_init(struct maker *m, struct arena *arena, int max_units, int max_layers)
{
    *m = (struct maker){ .arena = arena, .max_units = max_units, .max_layers = max_layers };
    m->units = arena_zalloc(arena, (size_t)max_units, sizeof(*m->units));
    m->layers = arena_zalloc(arena, (size_t)max_layers, sizeof(*m->layers));
    m->failed = !m->units || !m->layers;
}

void maker_unit(struct maker *m, int max_params, const char *name, ...)
{
    if (m->failed)
        return;
    assert(m->n_units < m->max_units);
    va_list args;
    va_start(args, name);
    struct sherd_unit *unit = &m->units[m->n_units++];
    unit->name = print_name(m, name, args);
    va_end(args);
    m->max_params = max_params;
    m->params = arena_zalloc(m->arena, (size_t)max_params, sizeof(*m->params));
    m->failed |= !m->params;
    unit->params = m->params;
}

static struct sherd_param *last_param(struct maker *m)
{
    int n = m->units[m->n_units - 1].n_params;
    assert(n > 0);
    return &m->params[n - 1];
}

static void add_param(struct maker *m, struct sherd_param param, const char *format, va_list args)
{
    if (m->failed)
        return;
    struct sherd_unit *unit = &m->units[m->n_units - 1];
    assert(unit->n_params < m->max_params);
    param.name = print_name(m, format, args);
    m->params[unit->n_params++] = param;
}

void maker_vector(struct maker *m, enum sherd_init init, int64_t elems, const char *name, ...)
{
    va_list args;
    va_start(args, name);
    add_param(m, (struct sherd_param){ .shape = { elems }, .dims = 1, .init = init, .flags = SHERD_NO_DECAY },
        name, args);
    va_end(args);
}

void maker_matrix(struct maker *m, float std, int64_t rows, int64_t cols, const char *name, ...)
{
    va_list args;
    va_start(args, name);
    add_param(m,
        (struct sherd_param){ .shape = { rows, cols }, .dims = 2, .init = SHERD_INIT_NORMAL, .std = std },
        name, args);
    va_end(args);
}

void maker_part(struct maker *m, int64_t rows, const char *name, ...)
{
    if (m->failed)
        return;
    struct sherd_param *param = last_param(m);
    struct sherd_part *parts = arena_zalloc(m->arena, MAX_PARTS, sizeof(*parts));
    m->failed |= !parts;
    if (m->failed)
        return;
    assert(param->n_parts < MAX_PARTS);
    for (int i = 0; i < param->n_parts; i++)
        parts[i] = param->parts[i];
    va_list args;
    va_start(args, name);
    parts[param->n_parts++] = (struct sherd_part){ .name = print_name(m, name, args), .rows = rows };
    va_end(args);
    param->parts = parts;
}

void maker_alias(struct maker *m, const char *alias)
{
    if (!m->failed)
        last_param(m)->alias = alias;
}

void maker_layer(
    struct maker *m, int unit, const struct sherd_layer_ops *ops, const void *arg, const char *name, ...)
{
    if (m->failed)
        return;
    assert(m->n_layers < m->max_layers);
    va_list args;
    va_start(args, name);
    m->layers[m->n_layers++] =
        (struct sherd_layer){ .name = print_name(m, name, args), .unit = unit, .ops = ops, .arg = arg };
    va_end(args);
}

int maker_take(struct maker *m, struct sherd_model_spec *spec)
{
    if (m->failed)
        return SHERD_ENOMEM; /* the arena has set the text */
    spec->units = m->units;
    spec->n_units = m->n_units;
    spec->layers = m->layers;
    spec->n_layers = m->n_layers;
    return SHERD_OK;
}

const char *model_float_text(float value, char buf[32])
{
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(buf, 32, "%.*g", digits, (double)value);
        if (strtof(buf, NULL) == value)
            break;
    }
    return buf;
}
