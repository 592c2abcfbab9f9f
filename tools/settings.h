/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Settings from a file and the command line, the same for every command that reads CONFIG: --set, --model,
 * --data, --val.
 */
#ifndef SHERD_TOOLS_SETTINGS_H
#define SHERD_TOOLS_SETTINGS_H

#include <sherd/sherd.h>

#include "tools/args.h"

#define SETTINGS_OPTIONS 8

struct settings {
    const char *model;
    struct arg_list data, val, set;
    struct sherd_option options[SETTINGS_OPTIONS];
    char *made[SETTINGS_OPTIONS]; /* their texts */
    int n_options;
};

/* Rows for a command's table. */
#define SETTINGS_ARGS(s)                                                                                       \
    { "set", ARG_LIST, &(s)->set, "KEY=VALUE", "use this instead of what the file says; may be repeated" },    \
        { "model", ARG_TEXT, &(s)->model, "PATH",                                                              \
            "the model: the section model of this .yaml file, or a Hugging\nFace model folder (model.from)" }, \
        { "data", ARG_LIST, &(s)->data, "PATH", "train on this file or folder; may be repeated" },             \
    {                                                                                                          \
        "val", ARG_LIST, &(s)->val, "PATH", "evaluate on this file or folder; may be repeated"                 \
    }

/* Adds "key=value" in the name of an option, "--resume". Failures are remembered and told by settings_load.
 */
void settings_add(struct settings *s, const char *source, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The same with a list of paths, if there are any. */
void settings_add_paths(
    struct settings *s, const char *source, const char *key, const struct arg_list *paths);
/* Reads everything together. The config is the caller's, what settings_add made is freed. */
int settings_load(struct sherd_config *out, struct settings *s, const char *path, int ranks);

#endif
