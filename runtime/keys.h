/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The settings as a table, one row a key: where it lies in struct sherd_config, what it may be, its default
 * and its meaning. Everything else about a key follows from its row: reading, printing, the reference, and
 * what messages say. To add a key: a field in sherd/config.h and a row in keys.c.
 */
#ifndef SHERD_RUNTIME_KEYS_H
#define SHERD_RUNTIME_KEYS_H

#include <sherd/config.h>
#include "base/mem.h"
#include "base/text.h"
#include "runtime/yaml.h"

enum key_type {
    KEY_INT,     /* int64_t */
    KEY_REAL,    /* double */
    KEY_SECONDS, /* double; written as 90, 90s, 10m, 2h */
    KEY_BOOL,    /* int */
    KEY_CHOICE,  /* an enum; one of `choices` */
    KEY_TEXT,    /* char *, not empty; one of word(0), word(1), ... when there is such a function */
    KEY_TEXTS,   /* struct sherd_texts; a list, or one text */
};

enum key_flags {
    KEY_ABOVE = 1,    /* REAL, SECONDS: min itself is not allowed */
    KEY_BELOW = 2,    /* REAL, SECONDS: max itself is not allowed */
    KEY_ZERO = 4,     /* INT, REAL: "auto" is another name of 0 */
    KEY_AUTO = 8,     /* INT, BOOL: "auto" is KEY_UNSET until config.c has chosen a value */
    KEY_DYNAMIC = 16, /* REAL: "dynamic" is another name of 0 */
};

#define KEY_UNSET (-1)
#define KEY_MANY 1e15 /* max of an INT that has no natural bound: exact as a double, far from overflow */

struct key_choice {
    const char *name; /* NULL ends the list */
    int value;
};

struct key {
    const char *path; /* "shard.stage" */
    enum key_type type;
    unsigned flags;
    size_t offset; /* of the field in struct sherd_config */
    double min, max;
    const struct key_choice *choices;
    const char *(*word)(int i);
    const char *initial; /* the default, as it would stand in a file */
    const char *help;    /* one line */
};

/* A first level of the file: "shard". */
struct key_section {
    const char *name;
    const char *help;
};

/* NULL past the end; the keys of a section stand together, in the order of the sections. */
const struct key *key_at(int i);
const struct key_section *key_section_at(int i);
int key_count(void);

/* Exact match or NULL. */
const struct key *key_find(const char *path);
const struct key_section *key_find_section(const char *name);
/* The first key of a section. */
const struct key *key_first(const char *section);
/* Whether the key stands in the section; its name there, "stage", is key_name(key). */
int key_in_section(const struct key *key, const char *section);
const char *key_name(const struct key *key);
/* The key that someone who wrote `path` may have meant, also when it has that name elsewhere or in other
 * systems; NULL if none comes near. Returns the path of a key or the name of a section. */
const char *key_suggest(const char *path);

/* Stores a value in the field of the key. Texts are kept in the arena. ECONFIG "key: must be ..., not ...";
 * *line is then the line of the fault. */
int key_set(const struct key *key, struct sherd_config *config, const struct yaml_node *value,
    struct arena *arena, int *line);
/* Whether the field holds what the key may be, for a config that a program has filled in: ECONFIG "key: must
 * be ..., not ...". Texts of free choice are not looked at. */
int key_check(const struct key *key, const struct sherd_config *config);
int key_set_default(const struct key *key, struct sherd_config *config, struct arena *arena);
/* Appends the value of the field as it would stand in a file. */
void key_print(const struct key *key, const struct sherd_config *config, struct text *out);
/* The i-th word the key may be; NULL past the end, or when any value of its type will do. */
const char *key_word(const struct key *key, int i);
/* Appends a text as a YAML value, in quotes where it needs them. */
void key_quote(const char *s, struct text *out);

#endif
