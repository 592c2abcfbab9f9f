/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * One value of one key: from YAML to its field with all checks, and back.
 */
#include <float.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "runtime/keys.h"

#define SHOWN_BYTES 60 /* of a wrong value in a message */

static void *field_of(const struct key *key, struct sherd_config *config)
{
    return (char *)config + key->offset;
}

static const void *field_in(const struct key *key, const struct sherd_config *config)
{
    return (const char *)config + key->offset;
}

const char *key_word(const struct key *key, int i)
{
    if (key->choices)
        return key->choices[i].name;
    return key->word ? key->word(i) : NULL;
}

/* Position of s among the words, or -1. */
static int word_find(const struct key *key, const char *s)
{
    for (int i = 0; key_word(key, i); i++)
        if (strcmp(key_word(key, i), s) == 0)
            return i;
    return -1;
}

static const char *word_nearest(const struct key *key, const char *s)
{
    const char *words[16];
    int n = 0;
    for (; n < (int)ARRAY_LEN(words) && key_word(key, n); n++)
        words[n] = key_word(key, n);
    return text_nearest(s, words, n);
}

/* Another name of 0, or NULL. */
static const char *zero_word(const struct key *key)
{
    return key->flags & KEY_ZERO ? "auto" : key->flags & KEY_DYNAMIC ? "dynamic" : NULL;
}

static void allowed_range(const struct key *key, const char *what, struct text *out)
{
    const char *from = key->flags & KEY_ABOVE ? "above" : "from";
    const char *to = key->flags & KEY_ABOVE ? "up to" : "to";
    text_add(out, "%s %s %.10g %s %.10g", what, from, key->min, key->flags & KEY_BELOW ? "to below" : to,
        key->max);
}

/* Appends what is allowed, "a whole number from 0 to 3". */
static void say_allowed(const struct key *key, struct text *out)
{
    switch (key->type) {
    case KEY_INT:
        allowed_range(key, "a whole number", out);
        break;
    case KEY_REAL:
        allowed_range(key, "a number", out);
        break;
    case KEY_SECONDS:
        allowed_range(key, "a time in seconds, or as 90s, 10m, 2h,", out);
        break;
    case KEY_BOOL:
        text_add(out, "true or false");
        break;
    case KEY_CHOICE:
    case KEY_TEXT:
        text_add(out, key_word(key, 0) ? "one of " : "a text");
        for (int i = 0; key_word(key, i); i++)
            text_add(out, "%s%s", i ? ", " : "", key_word(key, i));
        break;
    case KEY_TEXTS:
        text_add(out, "a list of texts, [a, b]");
        break;
    }
    if (key->flags & (KEY_ZERO | KEY_AUTO))
        text_add(out, ", or auto");
    else if (zero_word(key))
        text_add(out, ", or %s", zero_word(key));
}

/* "key: must be ..., not ...", with the nearest word if the key has words. */
static int refuse(const struct key *key, const struct yaml_node *value)
{
    struct text allowed = { 0 };
    char *must;
    say_allowed(key, &allowed);
    SHERD_TRY(text_take(&allowed, &must));
    int st;
    if (value->kind != YAML_VALUE)
        st = SHERD_FAIL(SHERD_ECONFIG, "%s: must be %s, not a %s", key->path, must,
            value->kind == YAML_LIST ? "list" : "map");
    else if (yaml_is_null(value))
        st = SHERD_FAIL(SHERD_ECONFIG, "%s: has no value; it must be %s", key->path, must);
    else if (value->quoted && key->type < KEY_CHOICE)
        st = SHERD_FAIL(SHERD_ECONFIG, "%s: must be %s, not the text \"%.*s\"; remove the quotes", key->path,
            must, SHOWN_BYTES, value->value);
    else {
        const char *near = word_nearest(key, value->value);
        st = SHERD_FAIL(SHERD_ECONFIG, "%s: must be %s, not '%.*s'%s%s%s", key->path, must, SHOWN_BYTES,
            value->value, near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
    }
    mem_free(must);
    return st;
}

static int in_range(const struct key *key, double v)
{
    if (key->flags & KEY_ABOVE ? v <= key->min : v < key->min)
        return 0;
    return key->flags & KEY_BELOW ? v < key->max : v <= key->max;
}

/* Stores a number, true/false or word; EINVAL (no text) if it is not one of this key. */
static int set_plain(const struct key *key, void *field, const char *s)
{
    int64_t i;
    double d;
    int automatic = key->flags & (KEY_ZERO | KEY_AUTO) && strcmp(s, "auto") == 0;
    switch (key->type) {
    case KEY_INT:
        if (automatic)
            i = key->flags & KEY_ZERO ? 0 : KEY_UNSET;
        else if (text_int(s, &i) != SHERD_OK || !in_range(key, (double)i))
            return SHERD_EINVAL;
        *(int64_t *)field = i;
        return SHERD_OK;
    case KEY_REAL:
    case KEY_SECONDS:
        if (zero_word(key) && strcmp(s, zero_word(key)) == 0) {
            *(double *)field = 0;
            return SHERD_OK;
        }
        SHERD_TRY(key->type == KEY_REAL ? text_double(s, &d) : text_seconds(s, &d));
        if (!in_range(key, d))
            return SHERD_EINVAL;
        *(double *)field = d;
        return SHERD_OK;
    case KEY_BOOL:
        if (automatic)
            *(int *)field = KEY_UNSET;
        else
            SHERD_TRY(text_bool(s, field));
        return SHERD_OK;
    case KEY_CHOICE:
        if (word_find(key, s) < 0)
            return SHERD_EINVAL;
        *(int *)field = key->choices[word_find(key, s)].value;
        return SHERD_OK;
    case KEY_TEXT:
    case KEY_TEXTS:
        break;
    }
    return SHERD_EINVAL;
}

static int set_text(const struct key *key, char **field, const struct yaml_node *value, struct arena *arena)
{
    if (!value->value[0] || (key_word(key, 0) && word_find(key, value->value) < 0))
        return refuse(key, value);
    char *s = arena_strdup(arena, value->value);
    if (!s)
        return SHERD_ENOMEM;
    *field = s;
    return SHERD_OK;
}

/* A list, or one text as a list of one. */
static int set_texts(const struct key *key, struct sherd_texts *field, const struct yaml_node *value,
    struct arena *arena, int *line)
{
    const struct yaml_node *first = value->kind == YAML_LIST ? value->first : value;
    int n = 0;
    for (const struct yaml_node *v = first; v; v = value->kind == YAML_LIST ? v->next : NULL, n++)
        if (v->kind != YAML_VALUE) {
            *line = v->line;
            return SHERD_FAIL(SHERD_ECONFIG, "%s: entry %d is a %s, not a text; write [a, b]", key->path,
                n + 1, v->kind == YAML_LIST ? "list" : "map");
        } else if (yaml_is_null(v) || !v->value[0]) {
            *line = v->line;
            return SHERD_FAIL(
                SHERD_ECONFIG, "%s: entry %d is empty; give a text or remove it", key->path, n + 1);
        }
    struct sherd_texts texts = { arena_zalloc(arena, (size_t)n, sizeof(char *)), n };
    if (!texts.items)
        return SHERD_ENOMEM;
    for (int i = 0; i < n; i++, first = first->next) {
        texts.items[i] = arena_strdup(arena, first->value);
        if (!texts.items[i])
            return SHERD_ENOMEM;
    }
    *field = texts;
    return SHERD_OK;
}

int key_set(const struct key *key, struct sherd_config *config, const struct yaml_node *value,
    struct arena *arena, int *line)
{
    void *field = field_of(key, config);
    *line = value->line;
    int list = value->kind == YAML_LIST && key->type == KEY_TEXTS;
    if ((value->kind != YAML_VALUE && !list) || yaml_is_null(value))
        return refuse(key, value);
    if (key->type == KEY_TEXTS)
        return set_texts(key, field, value, arena, line);
    if (key->type == KEY_TEXT)
        return set_text(key, field, value, arena);
    if (value->quoted && key->type != KEY_CHOICE)
        return refuse(key, value);
    return set_plain(key, field, value->value) == SHERD_OK ? SHERD_OK : refuse(key, value);
}

int key_set_default(const struct key *key, struct sherd_config *config, struct arena *arena)
{
    int line;
    struct yaml_node value = { .kind = key->type == KEY_TEXTS ? YAML_LIST : YAML_VALUE,
        .value = key->initial };
    return key_set(key, config, &value, arena, &line);
}

/* Bytes of the UTF-8 character at s, and the character; 1 and 0 if it is none: it is refused when read back.
 */
static int utf8(const char *s, unsigned *out)
{
    const unsigned char *p = (const unsigned char *)s;
    int n = p[0] < 0x80 ? 1 : p[0] < 0xc2 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : p[0] < 0xf5 ? 4 : 0;
    unsigned c = n == 1 ? p[0] : p[0] & (0x7fu >> n);
    for (int i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80)
            n = 0;
        else
            c = c << 6 | (p[i] & 0x3fu);
    }
    *out = n ? c : 0;
    return n ? n : 1;
}

/* Whether a character may stand in a quoted text as it is: not the controls, ends of lines and the byte order
 * mark, which readers of YAML change or refuse. */
static int printable(unsigned c)
{
    return (c >= 0x20 && c < 0x7f) || (c >= 0xa0 && c < 0xd800 && c != 0x2028 && c != 0x2029) ||
           (c >= 0xe000 && c < 0xfffe && c != 0xfeff) || c >= 0x10000;
}

void key_quote(const char *s, struct text *out)
{
    static const char safe[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-+*";
    int plain = s[0] && s[0] != '-' && s[0] != '*' && s[strspn(s, safe)] == '\0';
    if (plain && strcmp(s, "null") != 0) {
        text_add(out, "%s", s);
        return;
    }
    unsigned c;
    text_add(out, "\"");
    for (int n; *s; s += n) {
        n = utf8(s, &c);
        if (c == '"' || c == '\\')
            text_add(out, "\\%c", (int)c);
        else if (c && !printable(c))
            text_add(out, "\\u%04x", c);
        else
            text_put(out, s, (size_t)n);
    }
    text_add(out, "\"");
}

/* The shortest form that reads back as the same number, with a point in every locale. */
static void print_real(double v, struct text *out)
{
    char s[40];
    if (v > -1e9 && v < 1e9 && v == (double)(int64_t)v) {
        text_add(out, "%lld", (long long)v);
        return;
    }
    for (int digits = 1; digits <= DBL_DECIMAL_DIG; digits++) {
        double back = 0;
        snprintf(s, sizeof(s), "%.*g", digits, v);
        for (char *p = s; *p; p++)
            if (*p == ',')
                *p = '.';
        if (text_double(s, &back) == SHERD_OK && back == v)
            break;
    }
    text_add(out, "%s", s);
}

void key_print(const struct key *key, const struct sherd_config *config, struct text *out)
{
    const void *field = field_in(key, config);
    const struct sherd_texts *texts = field;
    switch (key->type) {
    case KEY_INT:
        if (*(const int64_t *)field == 0 && key->flags & KEY_ZERO)
            text_add(out, "auto");
        else
            text_add(out, "%lld", (long long)*(const int64_t *)field);
        break;
    case KEY_REAL:
    case KEY_SECONDS:
        if (*(const double *)field <= 0 && zero_word(key))
            text_add(out, "%s", zero_word(key));
        else
            print_real(*(const double *)field, out);
        break;
    case KEY_BOOL:
        text_add(out, "%s", *(const int *)field ? "true" : "false");
        break;
    case KEY_CHOICE:
        for (const struct key_choice *c = key->choices; c->name; c++)
            if (c->value == *(const int *)field)
                text_add(out, "%s", c->name);
        break;
    case KEY_TEXT: {
        const char *const *s = field;
        key_quote(*s ? *s : "", out);
        break;
    }
    case KEY_TEXTS:
        text_add(out, "[");
        for (int i = 0; i < texts->n; i++) {
            text_add(out, "%s", i ? ", " : "");
            key_quote(texts->items[i], out);
        }
        text_add(out, "]");
        break;
    }
}

static int may_be(const struct key *key, const void *field)
{
    const char *const *s = field;
    int64_t i;
    double d;
    switch (key->type) {
    case KEY_INT:
        i = *(const int64_t *)field;
        return (i == 0 && key->flags & KEY_ZERO) || (i == KEY_UNSET && key->flags & KEY_AUTO) ||
               in_range(key, (double)i);
    case KEY_REAL:
    case KEY_SECONDS:
        d = *(const double *)field;
        return (d == 0 && zero_word(key)) || in_range(key, d);
    case KEY_CHOICE:
        for (const struct key_choice *c = key->choices; c->name; c++)
            if (c->value == *(const int *)field)
                return 1;
        return 0;
    case KEY_TEXT:
        return *s && (!key_word(key, 0) || word_find(key, *s) >= 0);
    case KEY_BOOL:
    case KEY_TEXTS:
        break;
    }
    return 1;
}

int key_check(const struct key *key, const struct sherd_config *config)
{
    struct text must = { 0 }, is = { 0 };
    char *a = NULL, *b = NULL;
    if (may_be(key, field_in(key, config)))
        return SHERD_OK;
    say_allowed(key, &must);
    if (key->type == KEY_CHOICE)
        text_add(&is, "%d", *(const int *)field_in(key, config));
    else
        key_print(key, config, &is);
    int st = text_take(&must, &a);
    SHERD_KEEP(st, text_take(&is, &b));
    if (st == SHERD_OK)
        st = SHERD_FAIL(SHERD_ECONFIG, "%s: must be %s, not %s", key->path, a, b);
    mem_free(a);
    mem_free(b);
    return st;
}
