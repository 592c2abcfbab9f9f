/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * For config.sh: prints the reference of all keys, or with arguments loads each file.
 */
#include <stdio.h>
#include <stdlib.h>

#include <sherd/config.h>
#include "base/mem.h"

int main(int argc, char **argv)
{
    char *text;
    if (argc < 2) {
        if (sherd_config_reference(&text) != SHERD_OK) {
            fprintf(stderr, "%s\n", sherd_error());
            return 1;
        }
        fputs(text, stdout);
        mem_free(text);
        return 0;
    }
    int failed = 0;
    for (int i = 1; i < argc; i++) {
        struct sherd_config config;
        if (sherd_config_load(&config, argv[i], NULL, 0, 2) != SHERD_OK) {
            fprintf(stderr, "%s\n", sherd_error());
            failed = 1;
        }
        sherd_config_free(&config);
    }
    return failed;
}
