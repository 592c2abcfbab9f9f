/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * A YAML text as a small tree with line numbers. Called by runtime/config.c; knows no key of sherd.
 * The part of YAML that is taken: maps, lists, plain values. Anchors, aliases, tags, repeated
 * keys and further documents are refused with file, line and a sentence.
 */
#ifndef SHERD_RUNTIME_YAML_H
#define SHERD_RUNTIME_YAML_H

#include "base/mem.h"

#define YAML_TEXT_BYTES (256 * 1024) /* longest text that is read */
#define YAML_TEXT_DEPTH 8            /* deepest nesting of maps and lists */

enum yaml_kind { YAML_VALUE, YAML_LIST, YAML_MAP };

struct yaml_node {
    enum yaml_kind kind;
    int line;          /* where it begins, from 1; of a member of a map: the line of its key */
    int quoted;        /* VALUE: stood in quotes or as a block, so it is a text whatever it looks like */
    const char *key;   /* as a member of a map, else NULL */
    const char *value; /* VALUE; "" when nothing stood there */
    struct yaml_node *first, *next; /* members of a map or list in their order; the next beside this one */
};

struct yaml_tree {
    struct arena arena;
    struct yaml_node *root; /* never NULL; a text of nothing but comments is an empty map */
};

/* ECONFIG "name:line: ..."; out is empty then. The tree keeps nothing of text. */
int yaml_tree_read(struct yaml_tree *out, const char *text, size_t bytes, const char *name);
void yaml_tree_finish(struct yaml_tree *tree);

/* The member of a map, NULL if there is none, or no map. */
const struct yaml_node *yaml_member(const struct yaml_node *map, const char *key);
/* No value: nothing, ~ or null, not in quotes. */
int yaml_is_null(const struct yaml_node *node);

#endif
