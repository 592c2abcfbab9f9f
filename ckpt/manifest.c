/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Reading a manifest: see ckpt/manifest.h; writing it is in ckpt/print.c. Everything is checked here, so
 * that nobody after it has to.
 */
#include "ckpt/manifest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/status.h"
#include "base/text.h"
#include "ckpt/safetensors.h"

#define MAX_INT INT64_C(0x7fffffffffffffff)

void manifest_file_name(char out[CKPT_NAME_BYTES], enum ckpt_kind kind, int rank, int world)
{
    snprintf(out, CKPT_NAME_BYTES, CKPT_FILE_FORMAT,
        kind == CKPT_WEIGHTS ? CKPT_WEIGHTS_WORD : CKPT_STATES_WORD, rank, world);
}

static int copy_text(struct manifest *m, const char *text, const char **out)
{
    *out = arena_strdup(&m->arena, text);
    return *out ? SHERD_OK : SHERD_ENOMEM;
}

/* Flags are left out where they are false. */
static int get_flag(const json_t *object, const char *key, const char *where, int *out)
{
    const json_t *value = json_object_get(object, key);
    if (value && !json_is_boolean(value))
        return SHERD_FAIL(SHERD_EFORMAT, "%s: member '%s' must be true or false", where, key);
    *out = json_is_true(value);
    return SHERD_OK;
}

/* An optional object, kept as compact text. */
static int get_object_text(
    struct manifest *m, const json_t *root, const char *key, const char *where, const char **out)
{
    json_t *object;
    char *text;
    *out = NULL;
    if (!json_object_get(root, key))
        return SHERD_OK;
    SHERD_TRY(json_get_object(root, key, where, &object));
    SHERD_TRY(json_print(&text, object, 0));
    int st = copy_text(m, text, out);
    mem_free(text);
    return st;
}

static int parse_version(struct manifest *m, const json_t *root, const char *name)
{
    const char *format, *writer = json_string_value(json_object_get(root, "sherd"));
    int64_t version;
    SHERD_TRY(json_get_text(root, "format", name, &format));
    if (strcmp(format, CKPT_FORMAT))
        return SHERD_FAIL(SHERD_EFORMAT, "%s: format is '%s', expected '" CKPT_FORMAT "'", name, format);
    SHERD_TRY(json_get_int(root, "version", 1, MAX_INT, name, &version));
    if (version > CKPT_VERSION)
        return SHERD_FAIL(SHERD_EUNSUPPORTED,
            "%s: format version %lld was written by sherd %s; this is sherd %s, which reads versions up to "
            "%d: "
            "use the newer sherd",
            name, (long long)version, writer ? writer : "(newer)", sherd_version(), CKPT_VERSION);
    m->version = (int)version;
    SHERD_TRY(json_get_text(root, "sherd", name, &writer));
    return copy_text(m, writer, &m->sherd);
}

static int parse_states(struct manifest *m, const json_t *root, const char *name)
{
    json_t *states;
    SHERD_TRY(json_get_array(root, "states", name, &states));
    int n = (int)json_array_size(states);
    const char **names = arena_zalloc(&m->arena, (size_t)n, sizeof(*names));
    if (!names)
        return SHERD_ENOMEM;
    for (int i = 0; i < n; i++) {
        const char *state = json_string_value(json_array_get(states, (size_t)i));
        if (!state || !*state || strchr(state, '/') || !strcmp(state, CKPT_WEIGHT))
            return SHERD_FAIL(SHERD_EFORMAT,
                "%s: states[%d] must be a name without '/', other than '" CKPT_WEIGHT "'", name, i);
        for (int k = 0; k < i; k++) {
            if (!strcmp(names[k], state))
                return SHERD_FAIL(SHERD_EFORMAT, "%s: state '%s' is listed twice", name, state);
        }
        SHERD_TRY(copy_text(m, state, &names[i]));
    }
    m->meta.states = names;
    m->meta.n_states = n;
    return SHERD_OK;
}

/* 16 hex digits. */
static int parse_hex(const char *text, uint64_t *out)
{
    uint64_t value = 0;
    for (int i = 0; i < 16; i++) {
        const char *digits = "0123456789abcdef", *at = text[i] ? strchr(digits, text[i]) : NULL;
        if (!at)
            return 0;
        value = value << 4 | (uint64_t)(at - digits);
    }
    *out = value;
    return 1;
}

/* What came with the second version: the run, how good and how sound the values are, the size of blocks. */
static int parse_second(struct manifest *m, const json_t *root, const char *name)
{
    struct ckpt_meta *meta = &m->meta;
    const json_t *run = json_object_get(root, "run"), *loss = json_object_get(root, "val_loss");
    const json_t *finite = json_object_get(root, "finite");
    int64_t block;
    if (run && (json_string_length(run) != 16 || !parse_hex(json_string_value(run), &meta->run)))
        return SHERD_FAIL(SHERD_EFORMAT, "%s: run must be 16 hex digits", name);
    if (loss && !json_is_number(loss))
        return SHERD_FAIL(SHERD_EFORMAT, "%s: val_loss must be a number", name);
    if (finite && !json_is_boolean(finite))
        return SHERD_FAIL(SHERD_EFORMAT, "%s: member 'finite' must be true or false", name);
    meta->has_loss = loss != NULL;
    meta->loss = json_number_value(loss);
    meta->nonfinite = json_is_false(finite);
    if (m->version < CKPT_VERSION_BLOCKS)
        return SHERD_OK;
    SHERD_TRY(json_get_int(root, "block", (int64_t)CKPT_BLOCK_LEAST, (int64_t)CKPT_BLOCK_MOST, name, &block));
    if (block & (block - 1))
        return SHERD_FAIL(
            SHERD_EFORMAT, "%s: block must be a power of two, not %lld", name, (long long)block);
    m->block = (uint64_t)block;
    return SHERD_OK;
}

/* The dynamic loss scale, if there is one. */
static int parse_scale(struct ckpt_meta *meta, const json_t *scale, const char *name)
{
    if (!scale)
        return SHERD_OK;
    meta->scale = json_number_value(json_object_get(scale, "value"));
    if (!(meta->scale > 0 && meta->scale <= 0x1p60))
        return SHERD_FAIL(
            SHERD_EFORMAT, "%s: loss_scale must be an object with a value above 0, up to 2^60", name);
    SHERD_TRY(json_get_int(scale, "hysteresis", 1, MAX_INT, name, &meta->scale_hysteresis));
    return json_get_int(scale, "good_steps", 0, MAX_INT, name, &meta->scale_good);
}

static int parse_head(struct manifest *m, const json_t *root, const char *name)
{
    struct ckpt_meta *meta = &m->meta;
    const char *seed, *type, *optimizer;
    int64_t stage, world;
    char again[24];
    SHERD_TRY(parse_version(m, root, name));
    SHERD_TRY(json_get_int(root, "step", 0, CKPT_MAX_STEP, name, &meta->step));
    SHERD_TRY(json_get_int(root, "stage", 0, 3, name, &stage));
    SHERD_TRY(json_get_int(root, "world", 1, CKPT_MAX_WORLD, name, &world));
    SHERD_TRY(json_get_int(root, "tokens_seen", 0, MAX_INT, name, &meta->tokens_seen));
    SHERD_TRY(json_get_int(root, "samples_seen", 0, MAX_INT, name, &meta->samples_seen));
    if (json_object_get(root, "skipped_steps")) {
        SHERD_TRY(json_get_int(root, "skipped_steps", 0, meta->step, name, &meta->skipped));
        SHERD_TRY(json_get_int(root, "skipped_in_row", 0, meta->skipped, name, &meta->skipped_in_row));
    }
    SHERD_TRY(parse_scale(meta, json_object_get(root, "loss_scale"), name));
    SHERD_TRY(json_get_text(root, "seed", name, &seed));
    SHERD_TRY(json_get_text(root, "param_type", name, &type));
    SHERD_TRY(json_get_text(root, "optimizer", name, &optimizer));
    meta->stage = (int)stage;
    m->world = (int)world;
    meta->seed = strtoull(seed, NULL, 10);
    snprintf(again, sizeof(again), "%llu", (unsigned long long)meta->seed);
    if (strcmp(seed, again))
        return SHERD_FAIL(SHERD_EFORMAT, "%s: seed must be a text of decimal digits, not '%s'", name, seed);
    meta->param_type = st_type_find(type);
    if (!st_convertible(meta->param_type))
        return SHERD_FAIL(SHERD_EFORMAT, "%s: param_type '%s' is none of F32, BF16, F16", name, type);
    SHERD_TRY(copy_text(m, optimizer, &meta->optimizer));
    SHERD_TRY(parse_second(m, root, name));
    SHERD_TRY(get_object_text(m, root, "model", name, &meta->export_json));
    SHERD_TRY(get_object_text(m, root, "extra", name, &meta->extra));
    return parse_states(m, root, name);
}

static int parse_blocks(struct manifest *m, struct manifest_file *f, const json_t *object, const char *where)
{
    const char *text;
    if (!m->block)
        return SHERD_OK;
    SHERD_TRY(json_get_text(object, "blocks", where, &text));
    uint64_t n = ckpt_blocks(f->bytes, m->block), has = strlen(text);
    if (has % 16 || has / 16 != n)
        return SHERD_FAIL(
            SHERD_EFORMAT, "%s: blocks must be %llu times 16 hex digits", where, (unsigned long long)n);
    uint64_t *blocks = arena_zalloc(&m->arena, (size_t)n, sizeof(*blocks));
    if (!blocks)
        return SHERD_ENOMEM;
    for (uint64_t i = 0; i < n; i++) {
        if (!parse_hex(text + 16 * i, &blocks[i]))
            return SHERD_FAIL(SHERD_EFORMAT, "%s: blocks must be hex digits only", where);
    }
    f->blocks = blocks;
    return SHERD_OK;
}

static int parse_file(struct manifest *m, const json_t *object, int i, const char *name)
{
    struct manifest_file *f = &m->files[i];
    const char *file, *sum;
    char where[512], expected[CKPT_NAME_BYTES];
    int64_t rank, bytes;
    snprintf(where, sizeof(where), "%s: files[%d]", name, i);
    if (!json_is_object(object))
        return SHERD_FAIL(SHERD_EFORMAT, "%s must be an object", where);
    SHERD_TRY(json_get_text(object, "name", where, &file));
    SHERD_TRY(json_get_int(object, "rank", 0, m->world - 1, where, &rank));
    SHERD_TRY(json_get_int(object, "bytes", 0, MAX_INT, where, &bytes));
    SHERD_TRY(json_get_text(object, "xxh3", where, &sum));
    if (strlen(sum) != SUM_TEXT_BYTES - 1 || strspn(sum, "0123456789abcdef") != SUM_TEXT_BYTES - 1)
        return SHERD_FAIL(SHERD_EFORMAT, "%s: xxh3 must be %d hex digits", where, SUM_TEXT_BYTES - 1);
    f->kind = text_starts(file, CKPT_WEIGHTS_WORD) ? CKPT_WEIGHTS : CKPT_STATES;
    f->rank = (int)rank;
    f->bytes = (uint64_t)bytes;
    memcpy(f->sum, sum, SUM_TEXT_BYTES);
    SHERD_TRY(parse_blocks(m, f, object, where));
    manifest_file_name(expected, f->kind, f->rank, m->world);
    if (strcmp(file, expected))
        return SHERD_FAIL(SHERD_EFORMAT, "%s: name '%s' should be '%s'", where, file, expected);
    int *slot = &m->file_of[f->kind][f->rank];
    if (*slot >= 0)
        return SHERD_FAIL(SHERD_EFORMAT, "%s: '%s' is listed twice", where, file);
    *slot = i;
    return copy_text(m, file, &f->name);
}

static int parse_files(struct manifest *m, const json_t *root, const char *name)
{
    json_t *files;
    SHERD_TRY(json_get_array(root, "files", name, &files));
    m->n_files = (int)json_array_size(files);
    if (m->n_files > CKPT_KINDS * m->world)
        return SHERD_FAIL(
            SHERD_EFORMAT, "%s: %d files are too many for a world of %d", name, m->n_files, m->world);
    m->files = arena_zalloc(&m->arena, (size_t)m->n_files, sizeof(*m->files));
    if (!m->files)
        return SHERD_ENOMEM;
    for (int k = 0; k < CKPT_KINDS; k++) {
        m->file_of[k] = arena_zalloc(&m->arena, (size_t)m->world, sizeof(int));
        if (!m->file_of[k])
            return SHERD_ENOMEM;
        for (int r = 0; r < m->world; r++)
            m->file_of[k][r] = -1;
    }
    for (int i = 0; i < m->n_files; i++)
        SHERD_TRY(parse_file(m, json_array_get(files, (size_t)i), i, name));
    return SHERD_OK;
}

/* [[rank, first, elems], ...]: ascending and without holes from 0 to the tensor's end. */
static int parse_spans(struct manifest *m, struct manifest_tensor *t, const json_t *object, const char *where)
{
    json_t *spans;
    int64_t at = 0;
    SHERD_TRY(json_get_array(object, "spans", where, &spans));
    t->n_spans = (int)json_array_size(spans);
    t->spans = arena_zalloc(&m->arena, (size_t)t->n_spans, sizeof(*t->spans));
    if (!t->spans)
        return SHERD_ENOMEM;
    for (int i = 0; i < t->n_spans; i++) {
        const json_t *span = json_array_get(spans, (size_t)i);
        int64_t v[3];
        for (size_t k = 0; k < 3; k++) {
            const json_t *number = json_array_get(span, k);
            if (json_array_size(span) != 3 || !json_is_integer(number))
                return SHERD_FAIL(SHERD_EFORMAT, "%s: spans[%d] must be [rank, first, elems]", where, i);
            v[k] = json_integer_value(number);
        }
        if (v[0] < 0 || v[0] >= m->world || m->file_of[CKPT_WEIGHTS][v[0]] < 0)
            return SHERD_FAIL(SHERD_EFORMAT, "%s: spans[%d]: there is no weights file of rank %lld", where, i,
                (long long)v[0]);
        if (!t->frozen && m->meta.n_states && m->file_of[CKPT_STATES][v[0]] < 0)
            return SHERD_FAIL(SHERD_EFORMAT, "%s: spans[%d]: there is no states file of rank %lld", where, i,
                (long long)v[0]);
        if (v[1] != at || v[2] <= 0 || v[2] > t->elems - at)
            return SHERD_FAIL(SHERD_EFORMAT,
                "%s: spans[%d] is [%lld, +%lld): elements from %lld to %lld would lie in no file or in two",
                where, i, (long long)v[1], (long long)v[2], (long long)at, (long long)t->elems);
        t->spans[i] = (struct manifest_span){ (int)v[0], v[1], v[2] };
        at += v[2];
    }
    if (at != t->elems)
        return SHERD_FAIL(SHERD_EFORMAT, "%s: elements from %lld to %lld are in no file", where,
            (long long)at, (long long)t->elems);
    return SHERD_OK;
}

static int parse_shape(struct manifest_tensor *t, const json_t *object, const char *where)
{
    json_t *shape;
    SHERD_TRY(json_get_array(object, "shape", where, &shape));
    if (json_array_size(shape) < 1 || json_array_size(shape) > SHERD_MAX_DIMS)
        return SHERD_FAIL(SHERD_EFORMAT, "%s: shape must have 1 to %d dimensions", where, SHERD_MAX_DIMS);
    t->dims = (int)json_array_size(shape);
    t->elems = 1;
    for (int i = 0; i < t->dims; i++) {
        const json_t *dim = json_array_get(shape, (size_t)i);
        t->shape[i] = json_integer_value(dim);
        if (!json_is_integer(dim) || t->shape[i] < 1 ||
            __builtin_mul_overflow(t->elems, t->shape[i], &t->elems) || t->elems > MAX_INT / 8)
            return SHERD_FAIL(SHERD_EFORMAT, "%s: dimension %d of the shape is no size", where, i);
    }
    return SHERD_OK;
}

static int parse_tensor(struct manifest *m, const json_t *object, int i, const char *name)
{
    struct manifest_tensor *t = &m->tensors[i];
    const char *text;
    char where[512];
    snprintf(where, sizeof(where), "%s: tensors[%d]", name, i);
    if (!json_is_object(object))
        return SHERD_FAIL(SHERD_EFORMAT, "%s must be an object", where);
    SHERD_TRY(json_get_text(object, "name", where, &text));
    SHERD_TRY(copy_text(m, text, &t->name));
    snprintf(where, sizeof(where), "%s: tensor '%s'", name, t->name);
    if (json_object_get(object, "alias")) {
        SHERD_TRY(json_get_text(object, "alias", where, &text));
        SHERD_TRY(copy_text(m, text, &t->alias));
    }
    SHERD_TRY(json_get_text(object, "type", where, &text));
    t->type = st_type_find(text);
    if (!st_convertible(t->type))
        return SHERD_FAIL(SHERD_EFORMAT, "%s: type '%s' is none of F32, BF16, F16", where, text);
    SHERD_TRY(get_flag(object, "frozen", where, &t->frozen));
    SHERD_TRY(get_flag(object, "no_decay", where, &t->no_decay));
    if (!t->frozen && t->type != SHERD_F32)
        return SHERD_FAIL(SHERD_EFORMAT, "%s: a trained tensor must be stored as F32, not %s", where, text);
    SHERD_TRY(parse_shape(t, object, where));
    return parse_spans(m, t, object, where);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct manifest_name *)a)->name, ((const struct manifest_name *)b)->name);
}

static int index_names(struct manifest *m, const char *name)
{
    m->names = arena_zalloc(&m->arena, 2 * (size_t)m->n_tensors, sizeof(*m->names));
    if (!m->names)
        return SHERD_ENOMEM;
    for (int i = 0; i < m->n_tensors; i++) {
        m->names[m->n_names++] = (struct manifest_name){ m->tensors[i].name, i };
        if (m->tensors[i].alias)
            m->names[m->n_names++] = (struct manifest_name){ m->tensors[i].alias, i };
    }
    qsort(m->names, (size_t)m->n_names, sizeof(*m->names), by_name);
    for (int i = 1; i < m->n_names; i++) {
        if (!strcmp(m->names[i - 1].name, m->names[i].name))
            return SHERD_FAIL(SHERD_EFORMAT, "%s: tensor '%s' is listed twice", name, m->names[i].name);
    }
    return SHERD_OK;
}

static int parse_tensors(struct manifest *m, const json_t *root, const char *name)
{
    json_t *tensors;
    SHERD_TRY(json_get_array(root, "tensors", name, &tensors));
    m->n_tensors = (int)json_array_size(tensors);
    m->tensors = arena_zalloc(&m->arena, (size_t)m->n_tensors, sizeof(*m->tensors));
    if (!m->tensors)
        return SHERD_ENOMEM;
    for (int i = 0; i < m->n_tensors; i++)
        SHERD_TRY(parse_tensor(m, json_array_get(tensors, (size_t)i), i, name));
    return index_names(m, name);
}

void manifest_tail(char out[MANIFEST_TAIL_BYTES], const char *text, size_t bytes)
{
    snprintf(out, MANIFEST_TAIL_BYTES, ",\n  \"" MANIFEST_SUM "\": \"%016llx\"\n}\n",
        (unsigned long long)sum_hash64(text, bytes, 0));
}

/* Whether the text is the one that was written, where it has a sum. Comes last: what else is wrong says more.
 */
static int check_sum(const json_t *root, const char *text, size_t bytes, const char *name)
{
    char tail[MANIFEST_TAIL_BYTES];
    if (!json_object_get(root, MANIFEST_SUM))
        return SHERD_OK;
    manifest_tail(tail, text, 0);
    size_t len = strlen(tail);
    if (bytes >= len) {
        manifest_tail(tail, text, bytes - len);
        if (!memcmp(text + bytes - len, tail, len))
            return SHERD_OK;
    }
    return SHERD_FAIL(SHERD_EFORMAT,
        "%s was changed after it was saved: it does not fit its '" MANIFEST_SUM "'; use another checkpoint",
        name);
}

int manifest_parse(struct manifest *out, const char *text, size_t bytes, const char *name)
{
    json_t *root = NULL;
    *out = (struct manifest){ 0 };
    SHERD_TRY(json_parse(&root, text, bytes, name));
    int st = parse_head(out, root, name);
    if (st == SHERD_OK)
        st = parse_files(out, root, name);
    if (st == SHERD_OK)
        st = parse_tensors(out, root, name);
    if (st == SHERD_OK)
        st = check_sum(root, text, bytes, name);
    json_decref(root);
    if (st != SHERD_OK)
        manifest_finish(out);
    return st;
}

void manifest_finish(struct manifest *m)
{
    arena_finish(&m->arena);
    *m = (struct manifest){ 0 };
}

int manifest_find(const struct manifest *m, const char *name)
{
    struct manifest_name key = { .name = name }, *found = NULL;
    if (m->n_names)
        found = bsearch(&key, m->names, (size_t)m->n_names, sizeof(*m->names), by_name);
    return found ? found->tensor : -1;
}

int manifest_state(const struct manifest *m, const char *what)
{
    for (int i = 0; i < m->meta.n_states; i++) {
        if (!strcmp(m->meta.states[i], what))
            return i;
    }
    return -1;
}
