/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * DeepSpeed's JSON and Accelerate's YAML from anywhere, as files of their own and as blocks of a YAML: what
 * is refused has a text that names the file, what is taken prints and reads back as the same settings.
 */
#include "tests/fuzz/fuzz.h"

#include <string.h>

#include "base/status.h"
#include "runtime/foreign.h"
#include "runtime/keys.h"

static char *value_of(const struct key *key, const struct sherd_config *config)
{
    struct text t = { 0 };
    char *s;
    key_print(key, config, &t);
    FUZZ_CHECK(text_take(&t, &s) == SHERD_OK);
    return s;
}

static void round_trip(const struct sherd_config *config, int world)
{
    struct sherd_config again, copy;
    char *yaml, *json;
    FUZZ_CHECK(sherd_config_json(config, &json) == SHERD_OK);
    FUZZ_CHECK(sherd_config_print(config, &yaml) == SHERD_OK);
    FUZZ_CHECK(config_copy(&copy, config) == SHERD_OK);
    if (strlen(yaml) <= YAML_TEXT_BYTES) {
        FUZZ_CHECK(sherd_config_parse(&again, yaml, strlen(yaml), "again", NULL, 0, world) == SHERD_OK);
        for (int i = 0; i < key_count(); i++) {
            char *a = value_of(key_at(i), config), *b = value_of(key_at(i), &again);
            FUZZ_CHECK(strcmp(a, b) == 0);
            mem_free(a);
            mem_free(b);
        }
        sherd_config_free(&again);
    }
    sherd_config_free(&copy);
    mem_free(yaml);
    mem_free(json);
}

static void try_as(const char *text, size_t bytes, const char *name, int world)
{
    struct sherd_config config;
    int st = sherd_config_parse(&config, text, bytes, name, NULL, 0, world);
    if (st == SHERD_OK) {
        round_trip(&config, world);
    } else {
        FUZZ_CHECK(st == SHERD_ECONFIG);
        FUZZ_CHECK(strncmp(sherd_error(), name, strlen(name)) == 0);
        FUZZ_CHECK(config.origin == NULL);
    }
    sherd_config_free(&config);
}

/* The same tree as a block of a file of sherd's; names of files in it are not followed. */
static void try_block(const char *text, size_t bytes, const struct foreign_system *system)
{
    struct yaml_tree tree;
    struct sherd_config config;
    if (yaml_tree_read(&tree, text, bytes, "fuzz") != SHERD_OK)
        return;
    FUZZ_CHECK(sherd_config_default(&config) == SHERD_OK);
    int st = foreign_take(&config, system, tree.root, "fuzz");
    FUZZ_CHECK(st == SHERD_OK || (st == SHERD_ECONFIG && sherd_error()[0]));
    sherd_config_free(&config);
    yaml_tree_finish(&tree);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *text = mem_zalloc(bytes + 1, 1);
    FUZZ_CHECK(text != NULL);
    if (bytes)
        memcpy(text, data, bytes);
    if (!strstr(text, "config_file") && !strstr(text, "deepspeed:") && !strstr(text, "accelerate:")) {
        try_as(text, bytes, "fuzz.json", 2);
        try_as(text, bytes, "fuzz.yaml", 0);
        try_block(text, bytes, &foreign_deepspeed);
        try_block(text, bytes, &foreign_accelerate);
    }
    mem_free(text);
    return 0;
}
