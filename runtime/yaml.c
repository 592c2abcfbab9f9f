/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * libyaml's events to the tree of runtime/yaml.h. The only file that includes <yaml.h>.
 */
#include "runtime/yaml.h"

#include <string.h>
#include <yaml.h>

#include "base/status.h"
#include "base/text.h"

struct reader {
    yaml_parser_t parser;
    yaml_event_t event; /* the one being looked at; of type YAML_NO_EVENT when there is none */
    struct arena *arena;
    const char *name; /* of the file, for messages */
    const char *text;
    size_t bytes;
    int depth;
};

#define FAIL_AT(r, line, ...) fail_at(r, line, SHERD_FAIL(SHERD_ECONFIG, __VA_ARGS__))

static int fail_at(const struct reader *r, size_t line, int status)
{
    return status_context(status, "%s:%zu", r->name, line);
}

/* Whether the white space that line `line` (from 0) begins with holds a tab. */
static int tab_indent(const struct reader *r, size_t line)
{
    const char *p = r->text, *end = r->text + r->bytes;
    for (; p < end && line > 0; p++)
        line -= *p == '\n';
    while (p < end && *p == ' ')
        p++;
    return p < end && *p == '\t';
}

/* What libyaml found wrong, as our text. */
static int syntax_fail(const struct reader *r)
{
    const yaml_parser_t *p = &r->parser;
    const char *problem = p->problem ? p->problem : "it cannot be read";
    if (p->error == YAML_MEMORY_ERROR)
        return MEM_OUT("reading %s", r->name);
    if (p->error == YAML_READER_ERROR) {
        size_t line = 1;
        for (size_t i = 0; i < p->problem_offset && i < r->bytes; i++)
            line += r->text[i] == '\n';
        return FAIL_AT(r, line, "not a text in UTF-8: %s at byte %zu", problem, p->problem_offset);
    }
    size_t line = p->problem_mark.line;
    if (tab_indent(r, line))
        return FAIL_AT(r, line + 1, "a tab in the indentation; YAML takes only spaces there");
    const char *what = text_ends(r->name, ".json") ? "JSON" : "YAML";
    if (p->context && strstr(p->context, "alias"))
        return FAIL_AT(r, line + 1,
            "not valid %s: what begins with * stands in quotes: '*.weight', in column %zu", what,
            p->problem_mark.column + 1);
    if (p->context && p->context_mark.line != line)
        return FAIL_AT(r, line + 1, "not valid %s: %s, %s that began in line %zu", what, problem, p->context,
            p->context_mark.line + 1);
    return FAIL_AT(r, line + 1, "not valid %s: %s, in column %zu", what, problem, p->problem_mark.column + 1);
}

/* Goes on to the next event. */
static int advance(struct reader *r)
{
    yaml_event_delete(&r->event);
    r->event = (yaml_event_t){ 0 };
    if (!yaml_parser_parse(&r->parser, &r->event))
        return syntax_fail(r);
    return SHERD_OK;
}

/* Anchors and tags change what a reader must think of; settings need neither. */
static int plain(const struct reader *r, const yaml_char_t *anchor, const yaml_char_t *tag)
{
    size_t line = r->event.start_mark.line + 1;
    if (anchor)
        return FAIL_AT(
            r, line, "anchor '&%s': anchors are not taken; write the value out", (const char *)anchor);
    if (tag)
        return FAIL_AT(r, line, "tag '%s': tags are not taken; remove it", (const char *)tag);
    return SHERD_OK;
}

/* The text of the scalar being looked at. */
static int scalar(struct reader *r, const char **out)
{
    const yaml_event_t *e = &r->event;
    const char *value = (const char *)e->data.scalar.value;
    SHERD_TRY(plain(r, e->data.scalar.anchor, e->data.scalar.tag));
    if (strlen(value) != e->data.scalar.length)
        return FAIL_AT(r, e->start_mark.line + 1, "a value with a zero byte in it; remove the \\0");
    *out = arena_strdup(r->arena, value);
    return *out ? SHERD_OK : SHERD_ENOMEM;
}

static int read_node(struct reader *r, struct yaml_node **out);

static int read_list(struct reader *r, struct yaml_node *list)
{
    struct yaml_node **end = &list->first;
    for (;; end = &(*end)->next) {
        SHERD_TRY(advance(r));
        if (r->event.type == YAML_SEQUENCE_END_EVENT)
            return SHERD_OK;
        SHERD_TRY(read_node(r, end));
    }
}

static int read_map(struct reader *r, struct yaml_node *map)
{
    struct yaml_node **end = &map->first;
    for (;; end = &(*end)->next) {
        SHERD_TRY(advance(r));
        if (r->event.type == YAML_MAPPING_END_EVENT)
            return SHERD_OK;
        size_t line = r->event.start_mark.line + 1;
        if (r->event.type != YAML_SCALAR_EVENT)
            return FAIL_AT(r, line, "a key must be a plain word");
        const char *key;
        SHERD_TRY(scalar(r, &key));
        for (const struct yaml_node *n = map->first; n; n = n->next)
            if (strcmp(n->key, key) == 0)
                return FAIL_AT(r, line, "%s: given twice, first in line %d; remove one", key, n->line);
        SHERD_TRY(advance(r));
        struct yaml_node *node;
        SHERD_TRY(read_node(r, &node));
        node->key = key;
        node->line = (int)line;
        *end = node;
    }
}

/* The node that the current event begins. */
static int read_node(struct reader *r, struct yaml_node **out)
{
    const yaml_event_t *e = &r->event;
    struct yaml_node *node = arena_zalloc(r->arena, 1, sizeof(*node));
    if (!node)
        return SHERD_ENOMEM;
    *out = node;
    size_t line = e->start_mark.line + 1;
    node->line = (int)line;
    if (e->type == YAML_ALIAS_EVENT)
        return FAIL_AT(r, line,
            "alias '*%s': aliases are not taken; write the value out, or put a text that begins with * in quotes",
            (const char *)e->data.alias.anchor);
    if (e->type == YAML_SCALAR_EVENT) {
        node->quoted = e->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
        return scalar(r, &node->value);
    }
    if (++r->depth > YAML_TEXT_DEPTH)
        return FAIL_AT(r, line, "nested deeper than %d levels", YAML_TEXT_DEPTH);
    if (e->type == YAML_SEQUENCE_START_EVENT) {
        node->kind = YAML_LIST;
        SHERD_TRY(plain(r, e->data.sequence_start.anchor, e->data.sequence_start.tag));
        SHERD_TRY(read_list(r, node));
    } else if (e->type == YAML_MAPPING_START_EVENT) {
        node->kind = YAML_MAP;
        SHERD_TRY(plain(r, e->data.mapping_start.anchor, e->data.mapping_start.tag));
        SHERD_TRY(read_map(r, node));
    } else {
        return SHERD_BUG("%s:%zu: event %d begins no node", r->name, line, (int)e->type);
    }
    r->depth--;
    return SHERD_OK;
}

/* The one document of the text, or none. */
static int read_stream(struct reader *r, struct yaml_node **out)
{
    SHERD_TRY(advance(r)); /* the start of the stream */
    SHERD_TRY(advance(r));
    if (r->event.type == YAML_STREAM_END_EVENT) {
        *out = arena_zalloc(r->arena, 1, sizeof(**out));
        if (!*out)
            return SHERD_ENOMEM;
        **out = (struct yaml_node){ .kind = YAML_MAP, .line = 1 };
        return SHERD_OK;
    }
    SHERD_TRY(advance(r)); /* past the start of the document */
    SHERD_TRY(read_node(r, out));
    SHERD_TRY(advance(r)); /* the end of the document */
    SHERD_TRY(advance(r));
    if (r->event.type != YAML_STREAM_END_EVENT)
        return FAIL_AT(r, r->event.start_mark.line + 1, "a second document begins; one file holds one");
    if (yaml_is_null(*out))
        **out = (struct yaml_node){ .kind = YAML_MAP, .line = (*out)->line };
    return SHERD_OK;
}

int yaml_tree_read(struct yaml_tree *out, const char *text, size_t bytes, const char *name)
{
    *out = (struct yaml_tree){ 0 };
    if (bytes > YAML_TEXT_BYTES)
        return SHERD_FAIL(SHERD_ECONFIG,
            "%s: %zu bytes are too many for settings, %d are the most; is it the right file?", name, bytes,
            YAML_TEXT_BYTES);
    struct reader r = { .arena = &out->arena, .name = name, .text = text, .bytes = bytes };
    if (!yaml_parser_initialize(&r.parser))
        return MEM_OUT("reading %s", name);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, bytes);
    int st = read_stream(&r, &out->root);
    yaml_event_delete(&r.event);
    yaml_parser_delete(&r.parser);
    if (st != SHERD_OK)
        yaml_tree_finish(out);
    return st;
}

void yaml_tree_finish(struct yaml_tree *tree)
{
    arena_finish(&tree->arena);
    tree->root = NULL;
}

const struct yaml_node *yaml_member(const struct yaml_node *map, const char *key)
{
    const struct yaml_node *n = map && map->kind == YAML_MAP ? map->first : NULL;
    while (n && strcmp(n->key, key) != 0)
        n = n->next;
    return n;
}

int yaml_is_null(const struct yaml_node *node)
{
    return node->kind == YAML_VALUE && !node->quoted &&
           (node->value[0] == '\0' || strcmp(node->value, "~") == 0 || strcmp(node->value, "null") == 0);
}
