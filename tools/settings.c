/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Options of the command line as settings.
 */
#include "tools/settings.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void settings_add(struct settings *s, const char *source, const char *format, ...)
{
    va_list list, again;
    va_start(list, format);
    va_copy(again, list);
    int n = vsnprintf(NULL, 0, format, list);
    char *text = n >= 0 ? malloc((size_t)n + 1) : NULL;
    if (text)
        vsnprintf(text, (size_t)n + 1, format, again);
    va_end(again);
    va_end(list);
    if (s->n_options == SETTINGS_OPTIONS) {
        free(text);
        return;
    }
    s->made[s->n_options] = text;
    s->options[s->n_options++] = (struct sherd_option){ text, source };
}

/* "key=[a, b]", each in quotes. */
void settings_add_paths(struct settings *s, const char *source, const char *key, const struct arg_list *paths)
{
    size_t bytes = strlen(key) + 4, at;
    for (int i = 0; i < paths->n; i++)
        bytes += 2 * strlen(paths->items[i]) + 4;
    char *text = paths->n > 0 ? malloc(bytes) : NULL;
    if (!text)
        return;
    at = (size_t)sprintf(text, "%s=[", key);
    for (int i = 0; i < paths->n; i++) {
        at += (size_t)sprintf(text + at, i ? ", \"" : "\"");
        for (const char *p = paths->items[i]; *p; p++) {
            if (*p == '"' || *p == '\\')
                text[at++] = '\\';
            text[at++] = *p;
        }
        text[at++] = '"';
    }
    strcpy(text + at, "]");
    settings_add(s, source, "%s", text);
    free(text);
}

int settings_load(struct sherd_config *out, struct settings *s, const char *path, int ranks)
{
    struct sherd_config_desc desc = { .path = path,
        .model = s->model,
        .model_source = "--model",
        .options = s->options,
        .overrides = s->set.items,
        .n_overrides = s->set.n,
        .world = ranks };
    int st = SHERD_OK;
    settings_add_paths(s, "--data", "data.train", &s->data);
    settings_add_paths(s, "--val", "data.val", &s->val);
    desc.n_options = s->n_options;
    for (int i = 0; i < s->n_options; i++)
        if (!s->options[i].setting)
            st = sherd_fail(SHERD_ENOMEM, "no memory for %s", s->options[i].source);
    *out = (struct sherd_config){ 0 };
    if (st == SHERD_OK)
        st = sherd_config_read(out, &desc);
    for (int i = 0; i < s->n_options; i++)
        free(s->made[i]);
    s->n_options = 0;
    return st;
}
