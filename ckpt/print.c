/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The text of a manifest: see ckpt/manifest.h. Members one a line, each file and each tensor on a line of
 * its own; the same manifest gives the same bytes.
 */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/status.h"
#include "base/text.h"
#include "ckpt/manifest.h"
#include "ckpt/safetensors.h"

/* Takes over `value`; a member that could not be made is seen when the object is complete. */
static void set(json_t *object, const char *key, json_t *value, int *bad)
{
    *bad |= json_object_set_new(object, key, value) != 0;
}

static int set_object_text(json_t *object, const char *key, const char *text, int *bad)
{
    json_t *value;
    if (!text)
        return SHERD_OK;
    int st = json_parse(&value, text, strlen(text), key);
    if (st != SHERD_OK)
        return status_context(st, "checkpoint member '%s' is not a JSON object", key);
    set(object, key, value, bad);
    return SHERD_OK;
}

static int done(const json_t *object, int bad, const char *what)
{
    if (object && !bad)
        return SHERD_OK;
    return SHERD_FAIL(SHERD_EFORMAT, "manifest: %s could not be written: are its texts UTF-8?", what);
}

/* All members but the lists. */
static int print_head(char **out, const struct manifest *m)
{
    const struct ckpt_meta *meta = &m->meta;
    char seed[24], run[24];
    int bad = 0, st = SHERD_OK;
    json_t *head = json_object(), *states = json_array();
    snprintf(seed, sizeof(seed), "%llu", (unsigned long long)meta->seed);
    set(head, "format", json_string(CKPT_FORMAT), &bad);
    set(head, "version", json_integer(m->block ? CKPT_VERSION : 1), &bad);
    set(head, "sherd", json_string(sherd_version()), &bad);
    set(head, "step", json_integer(meta->step), &bad);
    set(head, "stage", json_integer(meta->stage), &bad);
    set(head, "world", json_integer(m->world), &bad);
    set(head, "tokens_seen", json_integer(meta->tokens_seen), &bad);
    set(head, "samples_seen", json_integer(meta->samples_seen), &bad);
    if (meta->skipped) {
        set(head, "skipped_steps", json_integer(meta->skipped), &bad);
        set(head, "skipped_in_row", json_integer(meta->skipped_in_row), &bad);
    }
    if (meta->scale > 0)
        set(head, "loss_scale",
            json_pack("{s:f, s:I, s:I}", "value", meta->scale, "hysteresis",
                (json_int_t)meta->scale_hysteresis, "good_steps", (json_int_t)meta->scale_good),
            &bad);
    set(head, "seed", json_string(seed), &bad);
    if (meta->run) {
        snprintf(run, sizeof(run), "%016llx", (unsigned long long)meta->run);
        set(head, "run", json_string(run), &bad);
    }
    if (m->block || meta->nonfinite)
        set(head, "finite", json_boolean(!meta->nonfinite), &bad);
    if (meta->has_loss)
        set(head, "val_loss", json_real(meta->loss), &bad);
    if (m->block)
        set(head, "block", json_integer((json_int_t)m->block), &bad);
    set(head, "param_type", json_string(st_type_name(meta->param_type)), &bad);
    set(head, "optimizer", json_string(meta->optimizer), &bad);
    for (int i = 0; i < meta->n_states; i++)
        bad |= json_array_append_new(states, json_string(meta->states[i])) != 0;
    set(head, "states", states, &bad);
    SHERD_TRY_OUT(set_object_text(head, "model", meta->export_json, &bad));
    SHERD_TRY_OUT(set_object_text(head, "extra", meta->extra, &bad));
    SHERD_TRY_OUT(done(head, bad, "its head"));
    SHERD_TRY_OUT(json_print(out, head, 2));
out:
    json_decref(head);
    return st;
}

/* Adds a line with a value, which it takes over. */
static int put_line(struct text *t, json_t *object, int bad, const char *what, int last)
{
    char *line = NULL;
    int st = done(object, bad, what);
    if (st == SHERD_OK)
        st = json_print(&line, object, 0);
    if (st == SHERD_OK)
        text_add(t, "    %s%s\n", line, last ? "" : ",");
    mem_free(line);
    json_decref(object);
    return st;
}

/* 16 hex digits a block, one after another. */
static int set_blocks(json_t *object, const struct manifest_file *f, uint64_t block, int *bad)
{
    size_t n = (size_t)ckpt_blocks(f->bytes, block);
    char *hex = mem_zalloc(16 * n + 1, 1);
    if (!hex)
        return SHERD_ENOMEM;
    for (size_t i = 0; i < n; i++)
        snprintf(hex + 16 * i, 17, "%016llx", (unsigned long long)f->blocks[i]);
    set(object, "blocks", json_string(hex), bad);
    mem_free(hex);
    return SHERD_OK;
}

static int put_file(struct text *t, const struct manifest_file *f, uint64_t block, int last)
{
    int bad = 0, st = SHERD_OK;
    json_t *object = json_object();
    set(object, "name", json_string(f->name), &bad);
    set(object, "rank", json_integer(f->rank), &bad);
    set(object, "bytes", json_integer((json_int_t)f->bytes), &bad);
    set(object, "xxh3", json_string(f->sum), &bad);
    if (block)
        st = set_blocks(object, f, block, &bad);
    if (st == SHERD_OK)
        return put_line(t, object, bad, f->name, last);
    json_decref(object);
    return st;
}

static int put_tensor(struct text *t, const struct manifest_tensor *tensor, int last)
{
    int bad = 0;
    json_t *object = json_object(), *shape = json_array(), *spans = json_array();
    for (int i = 0; i < tensor->dims; i++)
        bad |= json_array_append_new(shape, json_integer(tensor->shape[i])) != 0;
    for (int i = 0; i < tensor->n_spans; i++) {
        const struct manifest_span *s = &tensor->spans[i];
        bad |= json_array_append_new(
                   spans, json_pack("[i, I, I]", s->rank, (json_int_t)s->first, (json_int_t)s->elems)) != 0;
    }
    set(object, "name", json_string(tensor->name), &bad);
    if (tensor->alias)
        set(object, "alias", json_string(tensor->alias), &bad);
    set(object, "type", json_string(st_type_name(tensor->type)), &bad);
    set(object, "shape", shape, &bad);
    if (tensor->frozen)
        set(object, "frozen", json_true(), &bad);
    if (tensor->no_decay)
        set(object, "no_decay", json_true(), &bad);
    set(object, "spans", spans, &bad);
    return put_line(t, object, bad, tensor->name, last);
}

/* Bytes of an object's text without its closing brace and the line break before it. */
static size_t open_end(const char *object)
{
    size_t len = (size_t)(strrchr(object, '}') - object);
    while (len && object[len - 1] == '\n')
        len--;
    return len;
}

int manifest_print(char **out, const struct manifest *m)
{
    struct text t = { 0 };
    char *head = NULL, tail[MANIFEST_TAIL_BYTES] = "\n}\n";
    int st = SHERD_OK;
    SHERD_TRY_OUT(print_head(&head, m));
    text_put(&t, head, open_end(head));
    text_add(&t, ",\n  \"files\": [\n");
    for (int i = 0; i < m->n_files; i++)
        SHERD_TRY_OUT(put_file(&t, &m->files[i], m->block, i == m->n_files - 1));
    text_add(&t, "  ],\n  \"tensors\": [\n");
    for (int i = 0; i < m->n_tensors; i++)
        SHERD_TRY_OUT(put_tensor(&t, &m->tensors[i], i == m->n_tensors - 1));
    text_add(&t, "  ]");
    if (m->block && t.data)
        manifest_tail(tail, t.data, t.len);
    text_add(&t, "%s", tail);
    SHERD_TRY_OUT(text_take(&t, out));
out:
    text_finish(&t);
    mem_free(head);
    return st;
}
