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
#include "tools/settings.h"

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

static int print_effective(const struct sherd_config *config, int json)
{
    char *text;
    int st = json ? sherd_config_json(config, &text) : sherd_config_print(config, &text);
    if (st != SHERD_OK)
        return out_fail(st);
    printf("%s%s", text, json ? "\n" : "");
    free(text);
    return EXIT_OK;
}

int cmd_config(int argc, char **argv)
{
    int reference = 0, json = 0;
    int64_t ranks = 0;
    struct settings settings = { 0 };
    struct sherd_config config;
    const struct arg args[] = {
        { "ranks", ARG_INT, &ranks, "N", "also check the batch arithmetic for N ranks", .min = 1,
            .max = 65536 },
        SETTINGS_ARGS(&settings),
        { "json", ARG_FLAG, &json, NULL, "print JSON" },
        { "reference", ARG_FLAG, &reference, NULL, "list every key with its default and meaning" },
    };
    const struct command command = { "config", "CONFIG", 0, 1,
        "Checks a configuration and prints the settings in effect, with where each came from.",
        "CONFIG is sherd's own YAML, a DeepSpeed JSON or an Accelerate YAML. What becomes of the keys of those\n"
        "two is told in comments at the top. With --reference no file is needed.",
        args, COUNT_OF(args) };
    const char *path;
    int code = args_parse(&command, argc, argv, &path);
    if (code >= 0)
        return code;
    if (reference && path)
        return args_mistake("config", "--reference takes no file");
    if (!reference && !path)
        return args_mistake("config", "'sherd config' needs CONFIG or --reference");
    if (reference)
        return print_reference();
    int st = settings_load(&config, &settings, path, (int)ranks);
    if (st != SHERD_OK) {
        out_fail(st);
        return EXIT_USAGE;
    }
    code = print_effective(&config, json);
    sherd_config_free(&config);
    return code;
}
