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
#include "runtime/foreign.h"
#include "runtime/keys.h"

#define PATH_BYTES 128 /* longer keys are unknown anyway */

const char CONFIG_DEFAULT[] = "default", CONFIG_DERIVED[] = "derived", CONFIG_SET[] = "--set";
const char CONFIG_PROGRAM[] = "set by the program", CONFIG_ARGUMENT[] = "argument of the program";

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

struct config_source *config_source_of(const struct sherd_config *config, const struct key *key)
{
    struct config_origin *origin = config->origin;
    return origin ? &origin->from[index_of(key)] : NULL;
}

int config_note(struct sherd_config *config, const struct key *key, const char *where)
{
    struct config_origin *origin = config->origin;
    if (!origin)
        return SHERD_OK;
    struct config_source *from = &origin->from[index_of(key)];
    SHERD_TRY(render(config, key, &origin->arena, &from->value));
    from->where = where;
    from->theirs = from->asked ? from->theirs : NULL;
    return SHERD_OK;
}

int config_where(const struct sherd_config *config, const struct key *key, const char **where)
{
    const struct config_origin *origin = config->origin;
    *where = CONFIG_PROGRAM;
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
    const struct config_source *from = &origin->from[index_of(key_find(path))];
    const char *where = from->where;
    if (where == CONFIG_ARGUMENT)
        return status;
    if (where == CONFIG_DEFAULT || where == CONFIG_DERIVED)
        where = from->asked ? from->asked : origin->name;
    if (from->theirs && where != CONFIG_SET)
        return status_context(status, "%s: %s (%s)", where, from->theirs, path);
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
    origin->reading = origin->name;
    return origin->name ? SHERD_OK : SHERD_ENOMEM;
}

void sherd_config_free(struct sherd_config *config)
{
    if (!config)
        return;
    struct config_origin *origin = config->origin;
    if (origin) {
        arena_finish(&origin->arena);
        text_finish(&origin->refused.lines);
    }
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

/* "file:line: ", or "--set: " for line 0, before the text of a failure. */
static int in_file(const struct sherd_config *config, int line, int status)
{
    const struct config_origin *origin = config->origin;
    if (origin->reading == CONFIG_ARGUMENT)
        return status;
    return line > 0 ? status_context(status, "%s:%d", origin->reading, line)
                    : status_context(status, "%s", origin->reading);
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
    const char *before = origin->from[index_of(key)].where, *where = origin->reading;
    if (line > 0 && before != CONFIG_DEFAULT)
        return in_file(config, line,
            SHERD_FAIL(SHERD_ECONFIG, "%s: given twice, first at %s; remove one", key->path, before));
    int at = line, st = key_set(key, config, value, &origin->arena, &at);
    if (st != SHERD_OK)
        return st == SHERD_ECONFIG ? in_file(config, line > 0 ? at : 0, st) : st;
    if (line > 0) {
        where = arena_printf(&origin->arena, "%s:%d", origin->reading, line);
        if (!where)
            return SHERD_ENOMEM;
    }
    return config_note(config, key, where);
}

/* A block of another system's settings in a file of sherd's, or the name of such a file. */
static const struct foreign_system *system_of(const struct yaml_node *n)
{
    return strcmp(n->key, "deepspeed") == 0    ? &foreign_deepspeed
           : strcmp(n->key, "accelerate") == 0 ? &foreign_accelerate
                                               : NULL;
}

/* They come after the file's own settings, with which they must agree. */
static int take_systems(struct sherd_config *config, const struct yaml_node *root)
{
    struct config_origin *origin = config->origin;
    for (const struct yaml_node *n = root->first; n; n = n->next) {
        const struct foreign_system *system = system_of(n);
        if (!system)
            continue;
        if (n->kind == YAML_MAP) {
            SHERD_TRY(foreign_take(config, system, n, origin->name));
        } else if (n->kind == YAML_VALUE && n->value[0] && !yaml_is_null(n)) {
            const char *named = arena_printf(&origin->arena, "%s:%d: %s", origin->reading, n->line, n->key);
            SHERD_TRY(
                foreign_keep(origin, named ? foreign_load(config, system, n->value, named) : SHERD_ENOMEM));
        } else {
            return in_file(config, n->line,
                SHERD_FAIL(SHERD_ECONFIG, "%s: must be the name of a file, or a block of %s's keys", n->key,
                    system->name));
        }
    }
    return SHERD_OK;
}

/* All members of a map; `section` is NULL at the top. */
static int take_map(struct sherd_config *config, const struct yaml_node *map, const char *section)
{
    for (const struct yaml_node *n = map->first; n; n = n->next) {
        char path[PATH_BYTES];
        snprintf(path, sizeof(path), "%s%s%s", section ? section : "", section ? "." : "", n->key);
        const struct key *key = key_find(path);
        if (key)
            SHERD_TRY(take(config, key, n, n->line));
        if (key || (!section && system_of(n)))
            continue;
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

/* The tree of a text; comments in JSON, which many files have, are passed over. */
static int read_tree(struct yaml_tree *tree, const char *text, size_t bytes, const char *name)
{
    if (!text_ends(name, ".json"))
        return yaml_tree_read(tree, text, bytes, name);
    char *copy = mem_zalloc(bytes + 1, 1);
    if (!copy)
        return SHERD_ENOMEM;
    memcpy(copy, text, bytes);
    bytes = foreign_plain_json(copy, bytes);
    int st = yaml_tree_read(tree, copy, bytes, name);
    mem_free(copy);
    return st;
}

static int take_file(struct sherd_config *config, const char *text, size_t bytes, const char *name)
{
    struct yaml_tree tree;
    SHERD_TRY(read_tree(&tree, text, bytes, name));
    int st = SHERD_OK;
    const struct foreign_system *system = foreign_detect(tree.root, name);
    if (system)
        st = foreign_take(config, system, tree.root, name);
    else if (tree.root->kind == YAML_MAP) {
        st = take_map(config, tree.root, NULL);
        if (st == SHERD_OK)
            st = take_systems(config, tree.root);
    } else
        st = in_file(config, tree.root->line,
            SHERD_FAIL(SHERD_ECONFIG,
                "settings are sections with keys, as \"shard:\" and below it \"  stage: 1\"; this "
                "is a %s",
                tree.root->kind == YAML_LIST ? "list" : "text"));
    yaml_tree_finish(&tree);
    return st == SHERD_OK ? foreign_tell(config->origin) : st;
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
    char name[PATH_BYTES + 64];
    const struct config_origin *origin = config->origin;
    snprintf(name, sizeof(name), "%.60s %s", origin->reading, key->path);
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

/* The section model of another file. */
static int take_model(struct sherd_config *config, const char *path)
{
    struct config_origin *origin = config->origin;
    struct yaml_tree tree;
    char *text;
    size_t bytes;
    SHERD_TRY(file_read_text(&text, &bytes, path, YAML_TEXT_BYTES));
    int st = yaml_tree_read(&tree, text, bytes, path);
    mem_free(text);
    SHERD_TRY(st);
    origin->reading = arena_strdup(&origin->arena, path);
    const struct yaml_node *n = yaml_member(tree.root, "model");
    if (!origin->reading)
        st = SHERD_ENOMEM;
    else if (!n || n->kind != YAML_MAP)
        st = SHERD_FAIL(SHERD_ECONFIG, "%s: has no section model, with keys such as model.width", path);
    else
        st = take_map(config, n, "model");
    yaml_tree_finish(&tree);
    return st;
}

static int take_options(struct sherd_config *config, const struct sherd_config_desc *desc)
{
    struct config_origin *origin = config->origin;
    for (int i = 0; i < desc->n_options; i++) {
        origin->reading = arena_strdup(&origin->arena, desc->options[i].source);
        SHERD_TRY(origin->reading ? take_override(config, desc->options[i].setting) : SHERD_ENOMEM);
    }
    origin->reading = CONFIG_SET;
    for (int i = 0; i < desc->n_overrides; i++)
        SHERD_TRY(take_override(config, desc->overrides[i]));
    return SHERD_OK;
}

/* The folder of a Hugging Face model. */
static int take_folder(struct sherd_config *config, const char *path)
{
    char *setting = mem_printf("model.from=%s", path);
    int st = setting ? take_override(config, setting) : SHERD_ENOMEM;
    mem_free(setting);
    return st;
}

static int take_model_of(struct sherd_config *config, const char *path, const char *source)
{
    struct config_origin *origin = config->origin;
    origin->reading = source ? arena_strdup(&origin->arena, source) : CONFIG_ARGUMENT;
    if (!origin->reading)
        return SHERD_ENOMEM;
    if (!file_exists(path))
        return in_file(config, 0,
            SHERD_FAIL(SHERD_ENOTFOUND,
                "%s: no such file or folder; name a .yaml file with a section model, or the folder of a Hugging "
                "Face model (nothing is downloaded)",
                path));
    return file_is_dir(path) ? take_folder(config, path) : take_model(config, path);
}

/* `text` is what desc->path holds. A text that comes from no file names folders that need not be there: then
 * `import` is 0. */
static int parse(struct sherd_config *out, const char *text, size_t bytes,
    const struct sherd_config_desc *desc, int import)
{
    int st = init(out, desc->path);
    if (st != SHERD_OK)
        goto out;
    SHERD_TRY_OUT(set_defaults(out));
    SHERD_TRY_OUT(take_file(out, text, bytes, desc->path));
    if (desc->model)
        SHERD_TRY_OUT(take_model_of(out, desc->model, desc->model_source));
    SHERD_TRY_OUT(take_options(out, desc));
    if (import)
        SHERD_TRY_OUT(config_import(out));
    SHERD_TRY_OUT(config_settle(out));
    if (desc->world != 0)
        SHERD_TRY_OUT(config_derive_batch(out, desc->world));
    SHERD_TRY_OUT(accelerate_settle(out, desc->world));
out:
    if (st != SHERD_OK)
        sherd_config_free(out);
    return st;
}

int sherd_config_parse(struct sherd_config *out, const char *text, size_t bytes, const char *name,
    const char *const *overrides, int n, int world)
{
    if (!out || (!text && bytes) || !name)
        return SHERD_FAIL(SHERD_EINVAL, "sherd_config_parse: out, text or name is NULL");
    return parse(out, text, bytes,
        &(struct sherd_config_desc){ .path = name, .overrides = overrides, .n_overrides = n, .world = world },
        0);
}

int sherd_config_read(struct sherd_config *out, const struct sherd_config_desc *desc)
{
    char *text;
    size_t bytes;
    if (!out || !desc)
        return SHERD_FAIL(SHERD_EINVAL, "sherd_config_read: out or desc is NULL");
    *out = (struct sherd_config){ 0 };
    if (!desc->path) {
        struct sherd_config_desc unnamed = *desc;
        unnamed.path = "settings";
        return parse(out, "", 0, &unnamed, 1);
    }
    if (file_is_dir(desc->path))
        return SHERD_FAIL(SHERD_ECONFIG,
            "%s is a folder, and settings are a file; the folder of a Hugging Face model goes to --model",
            desc->path);
    if (text_ends(desc->path, ".toml"))
        return SHERD_FAIL(SHERD_ECONFIG,
            "%s: TOML is not read; settings are YAML, as in configs/, or the JSON of DeepSpeed", desc->path);
    SHERD_TRY(file_read_text(&text, &bytes, desc->path, YAML_TEXT_BYTES));
    int st = parse(out, text, bytes, desc, 1);
    mem_free(text);
    return st;
}

int sherd_config_load(
    struct sherd_config *out, const char *path, const char *const *overrides, int n, int world)
{
    return sherd_config_read(
        out, &(struct sherd_config_desc){
                 .path = path, .overrides = overrides, .n_overrides = n, .world = world });
}

int sherd_config_default(struct sherd_config *out)
{
    if (!out)
        return SHERD_FAIL(SHERD_EINVAL, "sherd_config_default: out is NULL");
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

/* Keeps NULL and the constants what they are. */
static int keep_text(struct arena *arena, const char **text)
{
    const char *s = *text;
    if (!s || s == CONFIG_DEFAULT || s == CONFIG_DERIVED || s == CONFIG_SET || s == CONFIG_PROGRAM ||
        s == CONFIG_ARGUMENT)
        return SHERD_OK;
    *text = arena_strdup(arena, s);
    return *text ? SHERD_OK : SHERD_ENOMEM;
}

static int copy_source(struct sherd_config *out, const struct sherd_config *in, const struct key *key)
{
    struct config_origin *origin = out->origin;
    const struct config_source *from = config_source_of(in, key);
    struct config_source *to = config_source_of(out, key);
    const char *where;
    SHERD_TRY(config_where(in, key, &where));
    SHERD_TRY(keep_text(&origin->arena, &where));
    SHERD_TRY(config_note(out, key, where));
    to->theirs = from ? from->theirs : NULL;
    to->asked = from ? from->asked : NULL;
    SHERD_TRY(keep_text(&origin->arena, &to->theirs));
    return keep_text(&origin->arena, &to->asked);
}

static int copy_remarks(struct config_origin *out, const struct config_origin *in)
{
    struct config_remark **end = &out->remarks;
    out->foreign = in->foreign;
    SHERD_TRY(keep_text(&out->arena, &out->foreign));
    for (const struct config_remark *r = in->remarks; r; r = r->next, end = &(*end)->next) {
        *end = arena_zalloc(&out->arena, 1, sizeof(**end));
        if (!*end)
            return SHERD_ENOMEM;
        **end = (struct config_remark){ r->kind, r->key, r->text, NULL };
        SHERD_TRY(keep_text(&out->arena, &(*end)->key));
        SHERD_TRY(keep_text(&out->arena, &(*end)->text));
    }
    return SHERD_OK;
}

int config_copy(struct sherd_config *out, const struct sherd_config *in)
{
    const struct config_origin *from = in->origin;
    int st = init(out, from ? from->name : "settings");
    if (st != SHERD_OK)
        goto out;
    struct config_origin *origin = out->origin;
    *out = *in;
    out->origin = origin;
    if (from)
        SHERD_TRY_OUT(copy_remarks(origin, from));
    if (from && from->from_json) {
        origin->from_json = arena_strdup(&origin->arena, from->from_json);
        SHERD_TRY_OUT(origin->from_json ? SHERD_OK : SHERD_ENOMEM);
    }
    for (int i = 0; i < key_count(); i++) {
        SHERD_TRY_OUT(copy_texts(key_at(i), out, &origin->arena));
        SHERD_TRY_OUT(copy_source(out, in, key_at(i)));
    }
out:
    if (st != SHERD_OK)
        sherd_config_free(out);
    return st;
}
