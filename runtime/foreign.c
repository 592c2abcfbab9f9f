/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The walk over another system's file, and what its translate() is made of: see runtime/foreign.h.
 */
#include "runtime/foreign.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/file.h"
#include "runtime/keys.h"

static const struct foreign_system *const systems[] = { &foreign_deepspeed, &foreign_accelerate };

int foreign_fail_at(const struct foreign *f, const struct foreign_item *item, int status)
{
    return status_context(status, "%s:%d: %s", f->name, item->node->line, item->path);
}

#define REFUSED_BYTES 3400 /* of an error text, which has 4096 */
#define ONE_BYTES 1000     /* of them for one: a value may be of any length */

int foreign_keep(struct config_origin *origin, int status)
{
    struct config_refused *r = &origin->refused;
    if (status != SHERD_ECONFIG)
        return status;
    size_t bytes = strlen(sherd_error());
    r->n++;
    if (r->lines.len + MIN(bytes, ONE_BYTES) <= REFUSED_BYTES)
        text_add(&r->lines, "\n%.*s%s", ONE_BYTES, sherd_error(), bytes > ONE_BYTES ? "..." : "");
    else
        r->left++;
    return SHERD_OK;
}

int foreign_tell(const struct config_origin *origin)
{
    const struct config_refused *r = &origin->refused;
    const char *all = r->lines.data;
    if (r->n == 0)
        return SHERD_OK;
    if (!all || r->lines.failed)
        return MEM_OUT("the list of what is refused");
    if (r->left > 0)
        return SHERD_FAIL(SHERD_ECONFIG, "%s: %d settings cannot be taken:%s\nand %d more", origin->name,
            r->n, all, r->left);
    if (r->n == 1) /* is told as it is */
        return SHERD_FAIL(SHERD_ECONFIG, "%s", all + 1);
    return SHERD_FAIL(SHERD_ECONFIG, "%s: %d settings cannot be taken:%s", origin->name, r->n, all);
}

const char *foreign_where(struct foreign *f, const struct foreign_item *item)
{
    return arena_printf(&f->origin->arena, "%s:%d", f->name, item->node->line);
}

int foreign_remark(struct foreign *f, enum config_remark_kind kind, const char *key, const char *format, ...)
{
    char text[512];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof(text), format, list);
    va_end(list);
    struct arena *arena = &f->origin->arena;
    struct config_remark *r = arena_zalloc(arena, 1, sizeof(*r)), **end = &f->origin->remarks;
    if (!r)
        return SHERD_ENOMEM;
    *r = (struct config_remark){ kind, arena_strdup(arena, key), arena_strdup(arena, text), NULL };
    if (!r->key || !r->text)
        return SHERD_ENOMEM;
    while (*end)
        end = &(*end)->next;
    *end = r;
    return SHERD_OK;
}

/* --- values --- */

static const struct foreign_item *given(const struct foreign *f, const char *path)
{
    const struct foreign_item *i = f->items;
    while (i && strcmp(i->row, path) != 0)
        i = i->next;
    return i;
}

const struct foreign_item *foreign_get(const struct foreign *f, const char *path)
{
    const struct foreign_item *item = given(f, path);
    return item && !item->refused ? item : NULL;
}

int foreign_refused(const struct foreign *f, const char *path)
{
    const struct foreign_item *item = given(f, path);
    return item && item->refused;
}

int foreign_is_auto(const struct foreign_item *item)
{
    return item->node->kind == YAML_VALUE && strcmp(item->node->value, "auto") == 0;
}

/* Python's readers of YAML take True and TRUE as well. */
static int read_bool(const struct yaml_node *node, int *out)
{
    static const char *const words[] = { "false", "true", "no", "yes", "off", "on" };
    for (int i = 0; i < (int)ARRAY_LEN(words); i++)
        if (node->kind == YAML_VALUE && !node->quoted && strcasecmp(node->value, words[i]) == 0) {
            *out = i % 2;
            return 1;
        }
    return 0;
}

int foreign_bool(const struct foreign_item *item)
{
    int b = 0;
    read_bool(item->node, &b);
    return b;
}

double foreign_real(const struct foreign_item *item)
{
    double d = 0;
    text_double(item->node->value, &d);
    return d;
}

static int has_type(enum foreign_type type, const struct yaml_node *n)
{
    int b;
    int64_t i;
    double d;
    switch (type) {
    case FOREIGN_BOOL:
        return read_bool(n, &b);
    case FOREIGN_INT:
        return n->kind == YAML_VALUE && !n->quoted && text_int(n->value, &i) == SHERD_OK;
    case FOREIGN_REAL:
        return n->kind == YAML_VALUE && !n->quoted && text_double(n->value, &d) == SHERD_OK;
    case FOREIGN_TEXT:
        return n->kind == YAML_VALUE;
    case FOREIGN_LIST:
        for (const struct yaml_node *v = n->first; n->kind == YAML_LIST && v; v = v->next)
            if (v->kind != YAML_VALUE)
                return 0;
        return n->kind == YAML_LIST;
    case FOREIGN_ANY:
        break;
    }
    return 1;
}

static const char *type_name(enum foreign_type type)
{
    static const char *const names[] = { "true or false", "a whole number", "a number", "a text",
        "a list of plain values", "" };
    return names[type];
}

/* How a value looks in a message. */
static const char *shown(const struct yaml_node *n)
{
    return n->kind == YAML_LIST ? "a list" : n->kind == YAML_MAP ? "a block of keys" : n->value;
}

/* --- into the config --- */

int foreign_agree(struct sherd_config *config, const struct key *key, const struct yaml_node *value,
    const char *where, const char *theirs)
{
    struct config_origin *origin = config->origin;
    struct config_source *from = config_source_of(config, key);
    const char *before = from->value, *first = from->where;
    int line, st = key_set(key, config, value, &origin->arena, &line);
    if (st != SHERD_OK)
        return st == SHERD_ECONFIG ? status_context(st, "%s: %s", where, theirs) : st;
    SHERD_TRY(config_note(config, key, where));
    from->theirs = theirs;
    if (first != CONFIG_DEFAULT && strcmp(before, from->value) != 0)
        return SHERD_FAIL(SHERD_ECONFIG, "%s: %s: makes %s %s, but it is %s at %s; remove one of the two",
            where, theirs, key->path, from->value, before, first);
    return SHERD_OK;
}

static int offer(
    struct foreign *f, const struct foreign_item *item, const struct key *key, const struct yaml_node *value)
{
    const char *where = foreign_where(f, item);
    return where ? foreign_agree(f->config, key, value, where, item->path) : SHERD_ENOMEM;
}

int foreign_put(struct foreign *f, const struct foreign_item *item, const char *ours, const char *value)
{
    struct yaml_node node = { .kind = YAML_VALUE, .line = item->node->line, .value = value };
    return offer(f, item, key_find(ours), &node);
}

int foreign_default(struct foreign *f, const char *ours, const char *value)
{
    const struct key *key = key_find(ours);
    struct config_source *from = config_source_of(f->config, key);
    struct yaml_node node = { .kind = YAML_VALUE, .value = value };
    int line;
    if (from->where != CONFIG_DEFAULT || from->asked || f->origin->refused.n > 0)
        return SHERD_OK;
    const char *where = arena_printf(&f->origin->arena, "default of %s", f->system->name);
    if (!where)
        return SHERD_ENOMEM;
    SHERD_TRY(key_set(key, f->config, &node, &f->origin->arena, &line));
    return config_note(f->config, key, where);
}

int foreign_ask(struct foreign *f, const struct foreign_item *item, const char *ours)
{
    struct config_source *from = config_source_of(f->config, key_find(ours));
    from->asked = foreign_where(f, item);
    from->theirs = item->path;
    return from->asked ? SHERD_OK : SHERD_ENOMEM;
}

/* --- the walk --- */

static int is_block_row(const char *row, const char *path)
{
    size_t n = strlen(path);
    return strncmp(row, path, n) == 0 && row[n] == '.';
}

static int has_children(const struct foreign_system *s, const char *path)
{
    for (int i = 0; i < s->n; i++)
        if (is_block_row(s->keys[i].path, path))
            return 1;
    return 0;
}

static const struct foreign_key *find(const struct foreign_system *s, const char *path)
{
    for (int i = 0; i < s->n; i++) {
        const char *row = s->keys[i].path;
        size_t n = strlen(row);
        if (strcmp(row, path) == 0 || (row[n - 1] == '*' && strncmp(row, path, n - 1) == 0 && path[n - 1]))
            return &s->keys[i];
    }
    return NULL;
}

/* `path` as in the table, the item's as in the file: a prefix that the table does without goes before the
 * proposal. */
static int unknown(const struct foreign *f, const char *path, const struct foreign_item *item)
{
    const char *written = item->path, *dot = strrchr(path, '.'), *last = strrchr(written, '.'), *near = NULL;
    size_t block = dot ? (size_t)(dot - path) + 1 : 0, given = last ? (size_t)(last - written) + 1 : 0;
    size_t prefix = strlen(written + given) - MIN(strlen(path + block), strlen(written + given));
    const char *names[256];
    char heads[256][48];
    int n = 0;
    for (int i = 0; i < f->system->n && n < (int)ARRAY_LEN(names); i++) {
        const char *row = f->system->keys[i].path;
        if (strncmp(row, path, block) != 0)
            continue;
        snprintf(heads[n], sizeof(heads[n]), "%.*s", (int)strcspn(row + block, "."), row + block);
        names[n] = heads[n];
        n += n == 0 || strcmp(heads[n], heads[n - 1]) != 0;
    }
    near = text_nearest(path + block, names, n);
    for (int i = 0; i < f->system->n && !near; i++) { /* the same name in another block */
        const char *row = f->system->keys[i].path, *other = strrchr(row, '.');
        if (other && strcmp(other + 1, path + block) == 0)
            return FOREIGN_FAIL(f, item, "%s has no such key; did you mean %s?", f->system->name, row);
    }
    return FOREIGN_FAIL(f, item, "%s has no such key%s%.*s%s%s", f->system->name,
        near ? "; did you mean " : "; remove it", near ? (int)(given + prefix) : 0, written, near ? near : "",
        near ? "?" : "");
}

/* Whether the value is one of "a|b|c". */
static int is_word(const struct yaml_node *n, const char *words)
{
    for (const char *w = words; *w; w += strcspn(w, "|"), w += *w == '|') {
        size_t len = strcspn(w, "|");
        double a, b;
        char one[64];
        snprintf(one, sizeof(one), "%.*s", (int)len, w);
        if (n->kind == YAML_VALUE &&
            (strcasecmp(n->value, one) == 0 ||
                (text_double(n->value, &a) == SHERD_OK && text_double(one, &b) == SHERD_OK && a == b)))
            return 1;
    }
    return 0;
}

static int take_only(struct foreign *f, const struct foreign_item *item)
{
    const struct foreign_key *key = item->key;
    int b = 0, flag = read_bool(item->node, &b);
    struct yaml_node plain = { .kind = YAML_VALUE, .value = b ? "true" : "false" };
    if (is_word(flag ? &plain : item->node, key->ours))
        return foreign_remark(f, CONFIG_IDLE, item->path, "%s is what happens here", shown(item->node));
    return FOREIGN_FAIL(f, item, "%s%scannot be honoured: %s",
        item->node->kind == YAML_VALUE ? item->node->value : "", item->node->kind == YAML_VALUE ? " " : "",
        key->text);
}

static int take_auto(struct foreign *f, const struct foreign_item *item)
{
    const struct foreign_key *key = item->key;
    int harmless = key->how == FOREIGN_NOTE || (key->how == FOREIGN_ONLY && key->ours[0]);
    int open = key->flags & FOREIGN_AUTO || (harmless && strchr(key->path, '.'));
    if (!open)
        return FOREIGN_FAIL(f, item, "nothing fills in \"auto\" here; give %s",
            key->type == FOREIGN_TEXT ? "a value" : type_name(key->type));
    if (key->how == FOREIGN_SET)
        return foreign_ask(f, item, key->ours);
    if (key->how == FOREIGN_ONLY)
        return foreign_remark(f, CONFIG_CHOSEN, item->path, "%.*s", (int)strcspn(key->ours, "|"), key->ours);
    if (key->how == FOREIGN_NOTE)
        return foreign_remark(f, CONFIG_IDLE, item->path, "%s", key->text);
    return SHERD_OK;
}

static int take_item(struct foreign *f, const struct foreign_item *item)
{
    const struct foreign_key *key = item->key;
    int b;
    if (foreign_is_auto(item))
        return take_auto(f, item);
    if (!has_type(key->type, item->node))
        return FOREIGN_FAIL(f, item, "must be %s, not %s%s%s", type_name(key->type),
            item->node->quoted ? "the text \"" : "", shown(item->node), item->node->quoted ? "\"" : "");
    switch (key->how) {
    case FOREIGN_SET:
        if (key_find(key->ours)->flags & KEY_ZERO && foreign_real(item) <= 0)
            return FOREIGN_FAIL(f, item, "must be above 0, not %s", shown(item->node));
        if (read_bool(item->node, &b))
            return foreign_put(f, item, key->ours, b ? "true" : "false");
        return offer(f, item, key_find(key->ours), item->node);
    case FOREIGN_ONLY:
        return take_only(f, item);
    case FOREIGN_NOTE:
        return foreign_remark(f, CONFIG_IDLE, item->path, "%s", key->text);
    case FOREIGN_CODE:
        break;
    }
    return SHERD_OK;
}

/* An item for the node, at the end of the list. */
static int add_item(struct foreign *f, const char *row, const char *written, const struct yaml_node *node,
    struct foreign_item **out)
{
    const struct foreign_item alone = { .path = node->key, .node = node };
    struct foreign_item **end = &f->items;
    for (; *end; end = &(*end)->next)
        if (strcmp((*end)->row, row) == 0)
            return FOREIGN_FAIL(
                f, &alone, "given twice, under another name in line %d; remove one", (*end)->node->line);
    struct arena *arena = &f->origin->arena;
    struct foreign_item *item = arena_zalloc(arena, 1, sizeof(*item));
    if (!item)
        return SHERD_ENOMEM;
    *item = (struct foreign_item){ arena_strdup(arena, written), arena_strdup(arena, row), node,
        find(f->system, row), 0, NULL };
    if (!item->path || !item->row)
        return SHERD_ENOMEM;
    *end = *out = item;
    return SHERD_OK;
}

static void join(char *out, const char *block, const char *key)
{
    snprintf(out, FOREIGN_PATH_BYTES, "%s%s%s", block, block[0] ? "." : "", key);
}

static int walk(struct foreign *f, const struct yaml_node *map, const char *block, const char *given);

static int is_told(const struct foreign *f, const struct yaml_node *n)
{
    for (int i = 0; i < f->n_told; i++)
        if (f->told[i] == n)
            return 1;
    return 0;
}

/* One key of a block. */
static int walk_key(struct foreign *f, const struct yaml_node *n, const char *block, const char *given)
{
    char path[FOREIGN_PATH_BYTES], written[FOREIGN_PATH_BYTES];
    const struct foreign_item alone = { .path = n->key, .node = n }, whole = { .path = written, .node = n };
    struct foreign_item *item = NULL;
    if (strchr(n->key, '.'))
        return FOREIGN_FAIL(f, &alone, "no key of %s has a dot; write a block in a block", f->system->name);
    join(path, block, n->key);
    join(written, given, n->key);
    f->system->canonical(path);
    const struct foreign_key *key = find(f->system, path);
    int children = has_children(f->system, path);
    if (!key && !children)
        return unknown(f, path, &whole);
    if (yaml_is_null(n) || (f->system->empty_is_none && n->kind == YAML_MAP && !n->first))
        return SHERD_OK;
    SHERD_TRY(add_item(f, path, written, n, &item));
    if (n->kind == YAML_MAP && children)
        return walk(f, n, path, written);
    int st = key ? take_item(f, item) : FOREIGN_FAIL(f, item, "is a block of keys, not %s", shown(n));
    item->refused = st == SHERD_ECONFIG;
    return st;
}

/* Over the keys of a block, whose name in the table is `block`, and `given` in the file. */
static int walk(struct foreign *f, const struct yaml_node *map, const char *block, const char *given)
{
    for (const struct yaml_node *n = map->first; n; n = n->next)
        if (!is_told(f, n))
            FOREIGN_TRY(f, walk_key(f, n, block, given));
    return SHERD_OK;
}

/* How many keys at the top of the file a system knows. */
static int known(const struct foreign_system *s, const struct yaml_node *root)
{
    int n = 0;
    for (const struct yaml_node *k = root->first; k; k = k->next)
        n += strchr(k->key, '.') == NULL && (find(s, k->key) || has_children(s, k->key));
    return n;
}

const struct foreign_system *foreign_detect(const struct yaml_node *root, const char *name)
{
    const struct foreign_system *best = NULL;
    if (root->kind != YAML_MAP)
        return NULL;
    for (const struct yaml_node *n = root->first; n; n = n->next)
        if (key_find_section(n->key) || key_find(n->key))
            return NULL;
    for (size_t s = 0; s < ARRAY_LEN(systems); s++)
        if (known(systems[s], root) > (best ? known(best, root) : 0))
            best = systems[s];
    /* A JSON of DeepSpeed's is usual; one of Trainer's arguments is told by our keys. */
    int ours = root->first && key_suggest(root->first->key);
    return best ? best : text_ends(name, ".json") && !ours ? &foreign_deepspeed : NULL;
}

int foreign_take(struct sherd_config *config, const struct foreign_system *system,
    const struct yaml_node *root, const char *name)
{
    struct config_origin *origin = config->origin;
    struct foreign f = {
        .config = config, .origin = origin, .system = system, .name = arena_strdup(&origin->arena, name)
    };
    if (root->kind != YAML_MAP)
        return SHERD_FAIL(SHERD_ECONFIG, "%s:%d: %s settings are a map of keys, not %s", name, root->line,
            system->name, shown(root));
    if (!f.name)
        return SHERD_ENOMEM;
    origin->foreign = origin->foreign
                          ? arena_printf(&origin->arena, "%s; %s, %s", origin->foreign, system->name, name)
                          : arena_printf(&origin->arena, "%s, %s", system->name, name);
    if (!origin->foreign)
        return SHERD_ENOMEM;
    SHERD_TRY(system->first ? system->first(&f, root) : SHERD_OK);
    SHERD_TRY(walk(&f, root, "", ""));
    FOREIGN_TRY(&f, system->translate(&f));
    return SHERD_OK;
}

int foreign_load(
    struct sherd_config *config, const struct foreign_system *system, const char *path, const char *named)
{
    char *text;
    size_t bytes;
    struct yaml_tree tree;
    int st = file_read_text(&text, &bytes, path, YAML_TEXT_BYTES);
    if (st != SHERD_OK)
        return st == SHERD_ENOMEM ? st : status_context(SHERD_ECONFIG, "%s", named);
    if (text_ends(path, ".json"))
        bytes = foreign_plain_json(text, bytes);
    st = yaml_tree_read(&tree, text, bytes, path);
    mem_free(text);
    if (st != SHERD_OK)
        return st;
    st = foreign_take(config, system, tree.root, path);
    yaml_tree_finish(&tree);
    return st;
}
