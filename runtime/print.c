/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Settings as YAML: the effective ones with their sources, and the reference of all keys.
 */
#include <string.h>

#include "runtime/config.h"
#include "runtime/keys.h"

#define COMMENT_COLUMN 26

/* "  name: value" and blanks up to the comment; `value` is what has been appended since `start`. */
static void pad(struct text *t, size_t start)
{
    size_t n = t->len - start;
    text_add(t, "%*s# ", (int)(n + 1 < COMMENT_COLUMN ? COMMENT_COLUMN - n : 1), "");
}

/* A comment cannot hold the end of a line. */
static void comment(struct text *t, const char *s)
{
    for (; *s; s++)
        text_put(t, (unsigned char)*s < 0x20 || *s == 0x7f ? "?" : s, 1);
    text_add(t, "\n");
}

int sherd_config_print(const struct sherd_config *config, char **out)
{
    struct text t = { 0 };
    int st = SHERD_OK;
    text_add(&t, "# Effective settings, each with where it comes from.\n");
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
            comment(&t, where);
        }
    }
    return text_take(&t, out);
out:
    text_finish(&t);
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
        "# differ, and may be empty. Any setting can also be given as --set key.path=value.\n"
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
