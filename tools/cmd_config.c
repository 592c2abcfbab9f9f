/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * sherd config: the effective settings of a file, or the reference of all keys.
 */
#include <stdio.h>
#include <stdlib.h>

#include "tools/args.h"
#include "tools/commands.h"
#include "tools/out.h"

static int print_reference(void)
{
    char *text;
    int st = sherd_config_reference(&text);
    if (st != SHERD_OK)
        return out_fail(st);
    fputs(text, stdout);
    free(text);
    return EXIT_OK;
}

static int print_effective(const char *path, const struct arg_list *set, int ranks)
{
    struct sherd_config config;
    char *text = NULL;
    int st = sherd_config_load(&config, path, set->items, set->n, ranks);
    if (st != SHERD_OK) {
        out_fail(st);
        return EXIT_USAGE;
    }
    st = sherd_config_print(&config, &text);
    sherd_config_free(&config);
    if (st != SHERD_OK)
        return out_fail(st);
    fputs(text, stdout);
    free(text);
    return EXIT_OK;
}

int cmd_config(int argc, char **argv)
{
    int reference = 0;
    int64_t ranks = 0;
    struct arg_list set = { 0 };
    const struct arg args[] = {
        { "ranks", ARG_INT, &ranks, "N", "also check the batch arithmetic for N ranks", .min = 1,
            .max = 65536 },
        { "set", ARG_LIST, &set, "KEY=VALUE", "use this instead of what the file says; may be repeated" },
        { "reference", ARG_FLAG, &reference, NULL, "list every key with its default and meaning" },
    };
    const struct command command = { "config", "CONFIG", 0, 1,
        "Checks a configuration and prints the settings in effect, with where each came from.",
        "With --reference no file is needed.", args, COUNT_OF(args) };
    const char *path;
    int code = args_parse(&command, argc, argv, &path);
    if (code >= 0)
        return code;
    if (reference && path)
        return args_mistake("config", "--reference takes no file");
    if (!reference && !path)
        return args_mistake("config", "'sherd config' needs CONFIG or --reference");
    return reference ? print_reference() : print_effective(path, &set, (int)ranks);
}
