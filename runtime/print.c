/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Settings as YAML: the effective ones with their sources, and the reference of all keys.
 */
#include <string.h>

#include "base/json.h"
#include "runtime/config.h"
#include "runtime/keys.h"

#define COMMENT_COLUMN 26

/* "  name: value" and blanks up to the comment; `value` is what has been appended since `start`. */
static void pad(struct text *t, size_t start)
{
    size_t n = t->len - start;
    text_add(t, "%*s# ", (int)(n + 1 < COMMENT_COLUMN ? COMMENT_COLUMN - n : 1), "");
}

/* A text that may come from a file: what ends a line, or no reader takes, would end the comment. */
static void in_line(struct text *t, const char *s)
{
    for (size_t n = 1; *s; s += n) {
        const unsigned char *p = (const unsigned char *)s;
        int breaks = p[0] == 0xe2 && p[1] == 0x80 && (p[2] == 0xa8 || p[2] == 0xa9);
        int control = p[0] < 0x20 || p[0] == 0x7f || (p[0] == 0xc2 && p[1] < 0xa0);
        n = breaks ? 3 : control && p[0] == 0xc2 && p[1] ? 2 : 1;
        text_put(t, breaks || control ? "?" : s, breaks || control ? 1 : n);
    }
}

static void comment(struct text *t, const char *s)
{
    in_line(t, s);
    text_add(t, "\n");
}

/* One remark, after its title if it is the first of its kind. */
static void remark(struct text *t, const char *start, const char **title, const char *key)
{
    if (*title)
        text_add(t, "%s%s\n", start, *title);
    *title = NULL;
    text_add(t, "%s  ", start);
    in_line(t, key);
}

/* Whether any key of the model was set, by a file or on the command line. */
static int names_model(const struct config_origin *origin)
{
    for (int i = 0; i < key_count(); i++)
        if (strncmp(key_at(i)->path, "model.", 6) == 0 && origin->from[i].where != CONFIG_DEFAULT &&
            origin->from[i].where != CONFIG_DERIVED)
            return 1;
    return 0;
}

/* The remarks, and the keys that were asked for as "auto", each line beginning with `start`. */
static void add_remarks(const struct sherd_config *config, const char *start, struct text *t)
{
    static const char *const titles[] = {
        "\"auto\", chosen here:", "without influence on results here:", "to know:"
    };
    const struct config_origin *origin = config->origin;
    if (!origin || !origin->foreign)
        return;
    text_add(t, "%sFrom ", start);
    comment(t, origin->foreign);
    for (int kind = CONFIG_CHOSEN; kind <= CONFIG_DIFFERENT; kind++) {
        const char *title = titles[kind];
        for (int i = 0; kind == CONFIG_CHOSEN && i < key_count(); i++) {
            if (!origin->from[i].asked)
                continue;
            remark(t, start, &title, origin->from[i].theirs);
            text_add(t, " = ");
            key_print(key_at(i), config, t);
            text_add(t, " (%s, ", key_at(i)->path);
            in_line(t, origin->from[i].where);
            text_add(t, ")\n");
        }
        for (const struct config_remark *r = origin->remarks; r; r = r->next) {
            if (r->kind != (enum config_remark_kind)kind)
                continue;
            remark(t, start, &title, r->key);
            text_add(t, kind == CONFIG_CHOSEN ? " = " : ": ");
            comment(t, r->text);
        }
        if (kind == CONFIG_DIFFERENT && !names_model(origin)) {
            remark(t, start, &title, "model");
            text_add(t,
                ": none is named, so it is the small default one; --model FOLDER takes one of Hugging Face\n");
        }
    }
}

int sherd_config_remarks(const struct sherd_config *config, char **out)
{
    struct text t = { 0 };
    add_remarks(config, "", &t);
    return text_take(&t, out);
}

/* "x.yaml:7", with the key of another system that it stood under. */
static void source(struct text *t, const struct config_source *from, const char *where)
{
    if (from && from->asked && (where == CONFIG_DEFAULT || where == CONFIG_DERIVED)) {
        text_add(t, "auto at ");
        in_line(t, from->asked);
        text_add(t, ", ");
    }
    in_line(t, where);
    if (from && from->theirs && !from->asked && where == from->where) {
        text_add(t, " ");
        in_line(t, from->theirs);
    }
    text_add(t, "\n");
}

int sherd_config_print(const struct sherd_config *config, char **out)
{
    struct text t = { 0 };
    int st = SHERD_OK;
    text_add(&t, CONFIG_PRINTED ", each with where it comes from.\n");
    add_remarks(config, "# ", &t);
    for (int s = 0; key_section_at(s); s++) {
        text_add(&t, "%s:\n", key_section_at(s)->name);
        for (int i = 0; i < key_count(); i++) {
            const struct key *key = key_at(i);
            const char *where;
            if (!key_in_section(key, key_section_at(s)->name))
                continue;
            SHERD_TRY_OUT(config_where(config, key, &where));
            size_t start = t.len;
            text_add(&t, "  %s: ", key_name(key));
            key_print(key, config, &t);
            pad(&t, start);
            source(&t, config_source_of(config, key), where);
        }
    }
    return text_take(&t, out);
out:
    text_finish(&t);
    return st;
}

/* The value as JSON; what is "auto" until other things are known is that text. */
static json_t *json_value(const struct key *key, const struct sherd_config *config)
{
    const void *field = (const char *)config + key->offset;
    const struct sherd_texts *texts = field;
    struct text t = { 0 };
    char *s;
    json_t *value = NULL;
    if ((key->type == KEY_REAL || key->type == KEY_SECONDS) &&
        (!(key->flags & KEY_ZERO) || *(const double *)field > 0))
        return json_real(*(const double *)field);
    if (key->type == KEY_BOOL)
        return json_boolean(*(const int *)field);
    if (key->type == KEY_TEXT)
        return json_string(*(const char *const *)field);
    if (key->type == KEY_INT && (*(const int64_t *)field != 0 || !(key->flags & KEY_ZERO)))
        return json_integer(*(const int64_t *)field);
    if (key->type == KEY_TEXTS) {
        value = json_array();
        for (int i = 0; i < texts->n; i++)
            json_array_append_new(value, json_string(texts->items[i]));
        return value;
    }
    key_print(key, config, &t);
    if (text_take(&t, &s) == SHERD_OK) {
        value = json_string(s);
        mem_free(s);
    }
    return value;
}

int sherd_config_json(const struct sherd_config *config, char **out)
{
    json_t *settings = json_object(), *root = NULL;
    struct text t = { 0 };
    char *s;
    int st = SHERD_OK;
    for (int i = 0; i < key_count() && st == SHERD_OK; i++) {
        const struct key *key = key_at(i);
        const char *where;
        SHERD_TRY_OUT(config_where(config, key, &where));
        source(&t, config_source_of(config, key), where);
        SHERD_TRY_OUT(text_take(&t, &s));
        s[strcspn(s, "\n")] = '\0';
        if (json_object_set_new(settings, key->path,
                json_pack("{s:o, s:s}", "value", json_value(key, config), "source", s)) != 0)
            st =
                SHERD_FAIL(SHERD_ENOMEM, "%s: cannot be written as JSON (no memory, or no UTF-8)", key->path);
        mem_free(s);
    }
    SHERD_TRY_OUT(st);
    add_remarks(config, "", &t);
    SHERD_TRY_OUT(text_take(&t, &s));
    root = json_pack("{s:s, s:O, s:s}", "version", sherd_version(), "settings", settings, "remarks", s);
    mem_free(s);
    st = root ? json_print(out, root, 1) : MEM_OUT("the settings as JSON");
out:
    text_finish(&t);
    json_decref(settings);
    json_decref(root);
    return st;
}

/* What may stand here, where a reader would ask: "cpu | cuda: ", and bounds that a number may not reach. */
static void meaning(const struct key *key, struct text *t)
{
    const char *word;
    for (int i = 0; (word = key_word(key, i)); i++)
        text_add(t, "%s%s", i ? " | " : "", word);
    text_add(t, "%s%s", key_word(key, 0) ? ": " : "", key->help);
    if (key->flags & KEY_BELOW)
        text_add(t, "; below %.10g", key->max);
    if (key->flags & KEY_ABOVE)
        text_add(t, "; above %.10g", key->min);
    text_add(t, "\n");
}

int sherd_config_reference(char **out)
{
    struct text t = { 0 };
    text_add(&t,
        "# Every setting of sherd, with its default and its meaning. A config needs only the lines that\n"
        "# differ, and may be empty. Any setting can also be given as --set key.path=value. Besides these,\n"
        "# deepspeed: FILE.json and accelerate: FILE.yaml take the settings of other systems (docs/deepspeed.md).\n"
        "# This file is generated (sherd config --reference); a test compares it with the program.\n");
    for (int s = 0; key_section_at(s); s++) {
        const struct key_section *section = key_section_at(s);
        text_add(&t, "\n# %s\n%s:\n", section->help, section->name);
        for (int i = 0; i < key_count(); i++) {
            const struct key *key = key_at(i);
            if (!key_in_section(key, section->name))
                continue;
            size_t start = t.len;
            text_add(&t, "  %s: %s", key_name(key), key->initial);
            pad(&t, start);
            meaning(key, &t);
        }
    }
    return text_take(&t, out);
}
