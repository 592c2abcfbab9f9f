/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Models: the check of a spec, its deep copy, freezing.
 */
#include "model/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

int64_t model_param_elems(const struct sherd_param *param)
{
    int64_t elems = 1;
    for (int i = 0; i < param->dims; i++)
        elems *= param->shape[i];
    return elems;
}

/* ---- check ---- */

static int check_shape(const struct sherd_param *p, const char *unit)
{
    if (p->dims < 1 || p->dims > SHERD_MAX_DIMS)
        return SHERD_FAIL(SHERD_EINVAL, "unit '%s', parameter '%s': dims is %d, must be 1 to %d", unit,
            p->name, p->dims, SHERD_MAX_DIMS);
    int64_t elems = 1;
    for (int i = 0; i < p->dims; i++) {
        if (p->shape[i] < 1)
            return SHERD_FAIL(SHERD_EINVAL,
                "unit '%s', parameter '%s': shape[%d] is %lld, must be at least 1", unit, p->name, i,
                (long long)p->shape[i]);
        if (__builtin_mul_overflow(elems, p->shape[i], &elems) || elems > INT64_MAX / 16)
            return SHERD_FAIL(
                SHERD_EINVAL, "unit '%s', parameter '%s': the shape has too many elements", unit, p->name);
    }
    return SHERD_OK;
}

static int check_parts(const struct sherd_param *p, const char *unit)
{
    if (!p->parts != !p->n_parts || p->n_parts < 0)
        return SHERD_FAIL(SHERD_EINVAL,
            "unit '%s', parameter '%s': parts and n_parts (%d) must both be given or neither", unit, p->name,
            p->n_parts);
    int64_t rows = 0;
    for (int i = 0; i < p->n_parts; i++) {
        if (!p->parts[i].name || !p->parts[i].name[0])
            return SHERD_FAIL(
                SHERD_EINVAL, "unit '%s', parameter '%s': part %d has no name", unit, p->name, i);
        if (p->parts[i].rows < 1 || p->parts[i].rows > p->shape[0] - rows)
            return SHERD_FAIL(SHERD_EINVAL,
                "unit '%s', parameter '%s': part '%s' has %lld rows, of %lld of the parameter's %lld that "
                "are left",
                unit, p->name, p->parts[i].name, (long long)p->parts[i].rows, (long long)(p->shape[0] - rows),
                (long long)p->shape[0]);
        rows += p->parts[i].rows;
    }
    if (p->parts && rows != p->shape[0])
        return SHERD_FAIL(SHERD_EINVAL,
            "unit '%s', parameter '%s': the parts have %lld rows in all, the parameter %lld", unit, p->name,
            (long long)rows, (long long)p->shape[0]);
    if (p->parts && p->alias)
        return SHERD_FAIL(SHERD_EINVAL,
            "unit '%s', parameter '%s': a parameter with parts cannot have an alias", unit, p->name);
    return SHERD_OK;
}

static int check_param(const struct sherd_param *p, const char *unit, int i)
{
    if (!p->name || !p->name[0])
        return SHERD_FAIL(SHERD_EINVAL, "unit '%s': parameter %d has no name", unit, i);
    SHERD_TRY(check_shape(p, unit));
    if (p->init != SHERD_INIT_ZERO && p->init != SHERD_INIT_ONE && p->init != SHERD_INIT_NORMAL)
        return SHERD_FAIL(SHERD_EINVAL, "unit '%s', parameter '%s': init is %d, which is no SHERD_INIT value",
            unit, p->name, (int)p->init);
    if (!isfinite(p->std) || p->std < 0)
        return SHERD_FAIL(SHERD_EINVAL,
            "unit '%s', parameter '%s': std is %g, must be finite and not negative", unit, p->name,
            (double)p->std);
    if (p->flags & ~(unsigned)(SHERD_NO_DECAY | SHERD_FROZEN))
        return SHERD_FAIL(
            SHERD_EINVAL, "unit '%s', parameter '%s': unknown flags 0x%x", unit, p->name, p->flags);
    return check_parts(p, unit);
}

static int check_layer(const struct sherd_model_spec *spec, int i)
{
    const struct sherd_layer *layer = &spec->layers[i];
    if (!layer->name || !layer->name[0])
        return SHERD_FAIL(SHERD_EINVAL, "layer %d has no name", i);
    for (int j = 0; j < i; j++) {
        if (strcmp(spec->layers[j].name, layer->name) == 0)
            return SHERD_FAIL(SHERD_EINVAL, "two layers have the name '%s'", layer->name);
    }
    if (layer->unit < 0 || layer->unit >= spec->n_units)
        return SHERD_FAIL(SHERD_EINVAL, "layer '%s': unit is %d, must be 0 to %d", layer->name, layer->unit,
            spec->n_units - 1);
    const struct sherd_layer_ops *ops = layer->ops;
    if (!ops || !ops->kind || !ops->sizes || !ops->forward || !ops->backward)
        return SHERD_FAIL(
            SHERD_EINVAL, "layer '%s': ops must have kind, sizes, forward and backward", layer->name);
    return SHERD_OK;
}

static int check_unit(const struct sherd_model_spec *spec, int i)
{
    const struct sherd_unit *unit = &spec->units[i];
    if (!unit->name || !unit->name[0])
        return SHERD_FAIL(SHERD_EINVAL, "unit %d has no name", i);
    for (int j = 0; j < i; j++) {
        if (strcmp(spec->units[j].name, unit->name) == 0)
            return SHERD_FAIL(SHERD_EINVAL, "two units have the name '%s'", unit->name);
    }
    if (!unit->params || unit->n_params < 1)
        return SHERD_FAIL(SHERD_EINVAL,
            "unit '%s' has no parameters; a layer without parameters may name another layer's unit",
            unit->name);
    for (int j = 0; j < unit->n_params; j++)
        SHERD_TRY(check_param(&unit->params[j], unit->name, j));
    for (int j = 0; j < spec->n_layers; j++) {
        if (spec->layers[j].unit == i)
            return SHERD_OK;
    }
    return SHERD_FAIL(
        SHERD_EINVAL, "unit '%s' is used by no layer; drop it or name it in a layer", unit->name);
}

/* The names of parameter p: 0 its own, then its alias and parts; NULL past the end. */
static const char *name_at(const struct sherd_param *p, int i)
{
    if (i == 0)
        return p->name;
    if (p->alias)
        return i == 1 ? p->alias : NULL;
    return i <= p->n_parts ? p->parts[i - 1].name : NULL;
}

static int order_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Names of tensors, with aliases, are unique over the model. */
static int check_names(const struct sherd_model_spec *spec)
{
    const char **names = NULL;
    int n = 0, cap = 0, st = SHERD_OK;
    for (int i = 0; i < spec->n_units; i++) {
        for (int j = 0; j < spec->units[i].n_params; j++) {
            const char *name = NULL;
            for (int k = 0; (name = name_at(&spec->units[i].params[j], k)); k++) {
                SHERD_TRY_OUT(mem_grow(&names, &cap, n + 1, sizeof(*names)));
                names[n++] = name;
            }
        }
    }
    qsort(names, (size_t)n, sizeof(*names), order_names);
    for (int i = 1; i < n; i++) {
        if (strcmp(names[i - 1], names[i]) == 0)
            SHERD_TRY_OUT(SHERD_FAIL(SHERD_EINVAL, "two tensors have the name '%s'", names[i]));
    }
out:
    mem_free(names);
    return st;
}

int model_check_spec(const struct sherd_model_spec *spec)
{
    if (!spec->units || spec->n_units < 1)
        return SHERD_FAIL(SHERD_EINVAL, "the model has no units");
    if (!spec->layers || spec->n_layers < 1)
        return SHERD_FAIL(SHERD_EINVAL, "the model has no layers");
    if (spec->vocab < 0 || spec->vocab > INT32_MAX)
        return SHERD_FAIL(
            SHERD_EINVAL, "the model's vocab is %lld, must be 0 to %d", (long long)spec->vocab, INT32_MAX);
    for (int i = 0; i < spec->n_layers; i++)
        SHERD_TRY(check_layer(spec, i));
    for (int i = 0; i < spec->n_units; i++)
        SHERD_TRY(check_unit(spec, i));
    return check_names(spec);
}

/* ---- copy ---- */

/* NULL stays NULL; a failed copy is remembered. */
static const char *copy_text(struct arena *arena, const char *s, int *failed)
{
    const char *copy = s ? arena_strdup(arena, s) : NULL;
    *failed |= s && !copy;
    return copy;
}

static void copy_param(struct arena *arena, struct sherd_param *p, int *failed)
{
    p->name = copy_text(arena, p->name, failed);
    p->alias = copy_text(arena, p->alias, failed);
    if (!p->parts)
        return;
    struct sherd_part *parts = arena_zalloc(arena, (size_t)p->n_parts, sizeof(*parts));
    *failed |= !parts;
    for (int i = 0; i < p->n_parts && parts; i++) {
        parts[i].name = copy_text(arena, p->parts[i].name, failed);
        parts[i].rows = p->parts[i].rows;
    }
    p->parts = parts;
}

static int copy_spec(struct arena *arena, struct sherd_model_spec *out, const struct sherd_model_spec *spec)
{
    int failed = 0;
    *out = *spec;
    struct sherd_unit *units = arena_zalloc(arena, (size_t)spec->n_units, sizeof(*units));
    struct sherd_layer *layers = arena_zalloc(arena, (size_t)spec->n_layers, sizeof(*layers));
    if (!units || !layers)
        return SHERD_ENOMEM;
    for (int i = 0; i < spec->n_units; i++) {
        const struct sherd_unit *from = &spec->units[i];
        struct sherd_param *params = arena_zalloc(arena, (size_t)from->n_params, sizeof(*params));
        if (!params)
            return SHERD_ENOMEM;
        memcpy(params, from->params, (size_t)from->n_params * sizeof(*params));
        for (int j = 0; j < from->n_params; j++)
            copy_param(arena, &params[j], &failed);
        units[i] = (struct sherd_unit){ copy_text(arena, from->name, &failed), params, from->n_params };
    }
    for (int i = 0; i < spec->n_layers; i++) {
        layers[i] = spec->layers[i];
        layers[i].name = copy_text(arena, spec->layers[i].name, &failed);
    }
    out->units = units;
    out->layers = layers;
    out->export_json = copy_text(arena, spec->export_json, &failed);
    return failed ? SHERD_ENOMEM : SHERD_OK;
}

int64_t model_count(const struct sherd_model_spec *spec)
{
    int64_t n = 0;
    for (int i = 0; i < spec->n_units; i++) {
        for (int j = 0; j < spec->units[i].n_params; j++)
            n += model_param_elems(&spec->units[i].params[j]);
    }
    return n;
}

int sherd_model_create(struct sherd_model **out, const struct sherd_model_spec *spec)
{
    if (!out || !spec)
        return SHERD_FAIL(SHERD_EINVAL, "sherd_model_create: out or spec is NULL");
    SHERD_TRY(model_check_spec(spec));
    int st = SHERD_OK;
    struct sherd_model *model = mem_zalloc(1, sizeof(*model));
    if (!model)
        return SHERD_ENOMEM;
    SHERD_TRY_OUT(copy_spec(&model->arena, &model->spec, spec));
    model->params = model_count(spec);
    *out = model;
    return SHERD_OK;
out:
    sherd_model_destroy(model);
    return st;
}

void sherd_model_destroy(struct sherd_model *model)
{
    if (!model)
        return;
    arena_finish(&model->arena);
    mem_free(model);
}

const struct sherd_model_spec *sherd_model_spec_of(const struct sherd_model *model)
{
    return &model->spec;
}

int64_t sherd_model_params(const struct sherd_model *model)
{
    return model->params;
}

/* ---- freeze ---- */

/* 1 matches, 0 does not, negative: only some parts match. */
static int match_param(const struct sherd_param *p, const char *pattern)
{
    int parts = 0;
    for (int i = 0; i < p->n_parts; i++)
        parts += text_match(pattern, p->parts[i].name);
    if (text_match(pattern, p->name) || (p->alias && text_match(pattern, p->alias)) ||
        (parts && parts == p->n_parts))
        return 1;
    return parts ? -1 : 0;
}

int model_freeze(struct sherd_model *model, const char *pattern)
{
    struct sherd_model_spec *spec = &model->spec;
    struct sherd_unit *units = arena_zalloc(&model->arena, (size_t)spec->n_units, sizeof(*units));
    if (!units)
        return SHERD_ENOMEM;
    int matched = 0;
    for (int i = 0; i < spec->n_units; i++) {
        units[i] = spec->units[i];
        size_t n = (size_t)units[i].n_params;
        struct sherd_param *params = arena_zalloc(&model->arena, n, sizeof(*params));
        if (!params)
            return SHERD_ENOMEM;
        memcpy(params, units[i].params, n * sizeof(*params));
        for (size_t j = 0; j < n; j++) {
            int match = match_param(&params[j], pattern);
            if (match < 0)
                return SHERD_FAIL(SHERD_ECONFIG,
                    "model.freeze: '%s' matches only some parts of '%s', which can only be frozen together; "
                    "use "
                    "a pattern that matches all, from '%s' to '%s'",
                    pattern, params[j].name, params[j].parts[0].name,
                    params[j].parts[params[j].n_parts - 1].name);
            if (match)
                params[j].flags |= SHERD_FROZEN;
            matched += match;
        }
        units[i].params = params;
    }
    if (!matched)
        return SHERD_FAIL(SHERD_ECONFIG,
            "model.freeze: no tensor matches '%s'; names look like '%s', and * stands for any text", pattern,
            spec->units[0].params[0].name);
    spec->units = units;
    return SHERD_OK;
}

/* What a function of a layer has returned. `before` is the status_count() of before the call, so that no old
 * text is taken for a reason. */
static int returned(const struct sherd_layer *layer, const char *function, int status, unsigned before)
{
    if (status == SHERD_OK)
        return status;
    if (strcmp(sherd_status_name(status), "?") == 0)
        return SHERD_FAIL(SHERD_EINVAL,
            "%s of layer %s returned %d, which is no status: return SHERD_OK, or sherd_fail() with a SHERD_E code",
            function, layer->name, status);
    if (status_count() == before)
        return SHERD_FAIL(status, "%s of layer %s: %s, and no reason was given by sherd_fail()", function,
            layer->name, sherd_status_text(status));
    return status_context(status, "%s of layer %s", function, layer->name);
}

int model_layer_sizes(
    const struct sherd_layer *layer, const struct sherd_layer_plan *plan, struct sherd_layer_sizes *out)
{
    unsigned before = status_count();
    return returned(layer, "sizes", layer->ops->sizes(layer->arg, plan, out), before);
}

int model_layer_forward(const struct sherd_layer *layer, struct sherd_run *run)
{
    unsigned before = status_count();
    return returned(layer, "forward", layer->ops->forward(run), before);
}

int model_layer_backward(const struct sherd_layer *layer, struct sherd_run *run)
{
    unsigned before = status_count();
    return returned(layer, "backward", layer->ops->backward(run), before);
}
