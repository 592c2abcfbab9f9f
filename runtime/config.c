/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * From a YAML tree and overrides, by the rows of keys.c, to struct sherd_config; noting where each value
 * came from. Strict: what is not understood is refused.
 */
#include "runtime/config.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "runtime/keys.h"

#define PATH_BYTES 128 /* longer keys are unknown anyway */

const char CONFIG_DEFAULT[] = "default", CONFIG_DERIVED[] = "derived", CONFIG_SET[] = "--set";
static const char BY_PROGRAM[] = "set by the program";

static int index_of(const struct key *key)
{
    return (int)(key - key_at(0));
}

/* The value of a key as a text that lives in the arena. */
static int render(
    const struct sherd_config *config, const struct key *key, struct arena *arena, const char **out)
{
    struct text t = { 0 };
    char *s;
    key_print(key, config, &t);
    SHERD_TRY(text_take(&t, &s));
    *out = arena_strdup(arena, s);
    mem_free(s);
    return *out ? SHERD_OK : SHERD_ENOMEM;
}

int config_note(struct sherd_config *config, const struct key *key, const char *where)
{
    struct config_origin *origin = config->origin;
    if (!origin)
        return SHERD_OK;
    struct config_source *from = &origin->from[index_of(key)];
    SHERD_TRY(render(config, key, &origin->arena, &from->value));
    from->where = where;
    return SHERD_OK;
}

int config_where(const struct sherd_config *config, const struct key *key, const char **where)
{
    const struct config_origin *origin = config->origin;
    *where = BY_PROGRAM;
    if (!origin)
        return SHERD_OK;
    const struct config_source *from = &origin->from[index_of(key)];
    struct text t = { 0 };
    char *now;
    key_print(key, config, &t);
    SHERD_TRY(text_take(&t, &now));
    if (strcmp(now, from->value) == 0)
        *where = from->where;
    mem_free(now);
    return SHERD_OK;
}

int config_fail_at(const struct sherd_config *config, const char *path, int status)
{
    const struct config_origin *origin = config->origin;
    if (!origin)
        return status_context(status, "%s", path);
    const char *where = origin->from[index_of(key_find(path))].where;
    if (where == CONFIG_DEFAULT || where == CONFIG_DERIVED)
        where = origin->name;
    return status_context(status, "%s: %s", where, path);
}

/* Zero but for an origin: no value, no source. */
static int init(struct sherd_config *out, const char *name)
{
    struct config_origin *origin =
        mem_zalloc(1, sizeof(*origin) + (size_t)key_count() * sizeof(origin->from[0]));
    *out = (struct sherd_config){ .origin = origin };
    if (!origin)
        return SHERD_ENOMEM;
    origin->name = arena_strdup(&origin->arena, name);
    return origin->name ? SHERD_OK : SHERD_ENOMEM;
}

void sherd_config_free(struct sherd_config *config)
{
    if (!config)
        return;
    struct config_origin *origin = config->origin;
    if (origin)
        arena_finish(&origin->arena);
    mem_free(origin);
    *config = (struct sherd_config){ 0 };
}

static int set_defaults(struct sherd_config *config)
{
    struct config_origin *origin = config->origin;
    for (int i = 0; i < key_count(); i++) {
        SHERD_TRY(key_set_default(key_at(i), config, &origin->arena));
        SHERD_TRY(config_note(config, key_at(i), CONFIG_DEFAULT));
    }
    return SHERD_OK;
}

/* "file:line: " or "--set: " before the text of a failure. */
static int in_file(const struct sherd_config *config, int line, int status)
{
    const struct config_origin *origin = config->origin;
    return line > 0 ? status_context(status, "%s:%d", origin->name, line)
                    : status_context(status, "%s", CONFIG_SET);
}

static int unknown(const struct sherd_config *config, int line, const char *path)
{
    const char *near = key_suggest(path);
    return in_file(config, line,
        SHERD_FAIL(SHERD_ECONFIG, "%s: unknown key%s%s%s", path, near ? "; did you mean " : "",
            near ? near : "; configs/reference.yaml lists all keys", near ? "?" : ""));
}

/* One value for one key; line 0 for an override. */
static int take(struct sherd_config *config, const struct key *key, const struct yaml_node *value, int line)
{
    struct config_origin *origin = config->origin;
    const char *before = origin->from[index_of(key)].where, *where = CONFIG_SET;
    if (line > 0 && before != CONFIG_DEFAULT)
        return in_file(config, line,
            SHERD_FAIL(SHERD_ECONFIG, "%s: given twice, first at %s; remove one", key->path, before));
    int at = line, st = key_set(key, config, value, &origin->arena, &at);
    if (st != SHERD_OK)
        return st == SHERD_ECONFIG ? in_file(config, line > 0 ? at : 0, st) : st;
    if (line > 0) {
        where = arena_printf(&origin->arena, "%s:%d", origin->name, line);
        if (!where)
            return SHERD_ENOMEM;
    }
    return config_note(config, key, where);
}

/* All members of a map; `section` is NULL at the top. */
static int take_map(struct sherd_config *config, const struct yaml_node *map, const char *section)
{
    for (const struct yaml_node *n = map->first; n; n = n->next) {
        char path[PATH_BYTES];
        snprintf(path, sizeof(path), "%s%s%s", section ? section : "", section ? "." : "", n->key);
        const struct key *key = key_find(path);
        if (key) {
            SHERD_TRY(take(config, key, n, n->line));
            continue;
        }
        if (section || !key_find_section(path))
            return unknown(config, n->line, path);
        if (n->kind == YAML_MAP)
            SHERD_TRY(take_map(config, n, n->key));
        else if (!yaml_is_null(n))
            return in_file(config, n->line,
                SHERD_FAIL(SHERD_ECONFIG,
                    "%s: is a section, with its keys below it and further to the right; it takes no value",
                    path));
    }
    return SHERD_OK;
}

static int take_file(struct sherd_config *config, const char *text, size_t bytes, const char *name)
{
    struct yaml_tree tree;
    SHERD_TRY(yaml_tree_read(&tree, text, bytes, name));
    int st = SHERD_OK;
    if (tree.root->kind == YAML_MAP)
        st = take_map(config, tree.root, NULL);
    else
        st = in_file(config, tree.root->line,
            SHERD_FAIL(SHERD_ECONFIG,
                "settings are sections with keys, as \"shard:\" and below it \"  stage: 1\"; this "
                "is a %s",
                tree.root->kind == YAML_LIST ? "list" : "text"));
    yaml_tree_finish(&tree);
    return st;
}

/* Lists and quoted texts are YAML; everything else is taken as it is, as a plain value. */
static int take_value(struct sherd_config *config, const struct key *key, const char *value)
{
    int yaml = strchr("[\"'", value[0]) != NULL && value[0];
    struct text t = { 0 };
    char *text;
    if (yaml)
        text_add(&t, "%s", value);
    else
        key_quote(value, &t);
    SHERD_TRY(text_take(&t, &text));
    char name[PATH_BYTES + 8];
    snprintf(name, sizeof(name), "--set %s", key->path);
    struct yaml_tree tree = { 0 };
    int st = SHERD_OK;
    SHERD_TRY_OUT(yaml_tree_read(&tree, text, strlen(text), name));
    if (!yaml)
        tree.root->quoted = 0;
    SHERD_TRY_OUT(take(config, key, tree.root, 0));
out:
    yaml_tree_finish(&tree);
    mem_free(text);
    return st;
}

/* "key.path=value", with or without blanks around either. */
static int take_override(struct sherd_config *config, const char *s)
{
    char path[PATH_BYTES];
    const char *equals = strchr(s, '=');
    while (isspace((unsigned char)*s))
        s++;
    if (!equals || s >= equals)
        return in_file(
            config, 0, SHERD_FAIL(SHERD_ECONFIG, "'%s' is not key.path=value, as shard.stage=2", s));
    size_t n = (size_t)(equals - s);
    while (n > 0 && isspace((unsigned char)s[n - 1]))
        n--;
    snprintf(path, sizeof(path), "%.*s", (int)MIN(n, sizeof(path)), s);
    const struct key *key = key_find(path);
    if (!key && key_find_section(path))
        return in_file(config, 0,
            SHERD_FAIL(SHERD_ECONFIG, "%s: is a section; set its keys, as %s.%s=...", path, path,
                key_name(key_first(path))));
    if (!key)
        return unknown(config, 0, path);
    const char *value = equals + 1;
    while (isspace((unsigned char)*value))
        value++;
    n = strlen(value);
    while (n > 0 && isspace((unsigned char)value[n - 1]))
        n--;
    char *trimmed =
        mem_printf("%.*s", (int)MIN(n, YAML_TEXT_BYTES + 1), value); /* too long: refused as YAML */
    if (!trimmed)
        return SHERD_ENOMEM;
    int st = take_value(config, key, trimmed);
    mem_free(trimmed);
    return st;
}

int sherd_config_parse(struct sherd_config *out, const char *text, size_t bytes, const char *name,
    const char *const *overrides, int n, int world)
{
    int st = init(out, name);
    if (st != SHERD_OK)
        goto out;
    SHERD_TRY_OUT(set_defaults(out));
    SHERD_TRY_OUT(take_file(out, text, bytes, name));
    for (int i = 0; i < n; i++)
        SHERD_TRY_OUT(take_override(out, overrides[i]));
    SHERD_TRY_OUT(config_settle(out));
    if (world != 0)
        SHERD_TRY_OUT(config_derive_batch(out, world));
out:
    if (st != SHERD_OK)
        sherd_config_free(out);
    return st;
}

int sherd_config_load(
    struct sherd_config *out, const char *path, const char *const *overrides, int n, int world)
{
    char *text;
    size_t bytes;
    *out = (struct sherd_config){ 0 };
    SHERD_TRY(file_read_text(&text, &bytes, path, YAML_TEXT_BYTES));
    int st = sherd_config_parse(out, text, bytes, path, overrides, n, world);
    mem_free(text);
    return st;
}

int sherd_config_default(struct sherd_config *out)
{
    return sherd_config_parse(out, "", 0, "defaults", NULL, 0, 0);
}

/* Copies what the field points to into the arena. */
static int copy_texts(const struct key *key, struct sherd_config *config, struct arena *arena)
{
    void *field = (char *)config + key->offset;
    char **text = field;
    struct sherd_texts *texts = field;
    if (key->type == KEY_TEXT && *text) {
        *text = arena_strdup(arena, *text);
        return *text ? SHERD_OK : SHERD_ENOMEM;
    }
    if (key->type != KEY_TEXTS)
        return SHERD_OK;
    char **items = arena_zalloc(arena, (size_t)texts->n, sizeof(*items));
    if (!items)
        return SHERD_ENOMEM;
    for (int i = 0; i < texts->n; i++) {
        items[i] = arena_strdup(arena, texts->items[i]);
        if (!items[i])
            return SHERD_ENOMEM;
    }
    texts->items = items;
    return SHERD_OK;
}

/* Copies the source of a value; the three constants stay what they are. */
static int copy_source(struct sherd_config *out, const struct sherd_config *in, const struct key *key)
{
    struct config_origin *origin = out->origin;
    const char *where;
    SHERD_TRY(config_where(in, key, &where));
    if (where != CONFIG_DEFAULT && where != CONFIG_DERIVED && where != CONFIG_SET && where != BY_PROGRAM) {
        where = arena_strdup(&origin->arena, where);
        if (!where)
            return SHERD_ENOMEM;
    }
    return config_note(out, key, where);
}

int config_copy(struct sherd_config *out, const struct sherd_config *in)
{
    const struct config_origin *from = in->origin;
    int st = init(out, from ? from->name : "settings");
    if (st != SHERD_OK)
        goto out;
    void *origin = out->origin;
    *out = *in;
    out->origin = origin;
    for (int i = 0; i < key_count(); i++) {
        SHERD_TRY_OUT(copy_texts(key_at(i), out, &((struct config_origin *)origin)->arena));
        SHERD_TRY_OUT(copy_source(out, in, key_at(i)));
    }
out:
    if (st != SHERD_OK)
        sherd_config_free(out);
    return st;
}
