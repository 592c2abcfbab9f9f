/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * A config from anywhere: what is refused has a text that names the file, what is taken prints and reads back
 * as the same config. The last line, if it begins with "#set ", is an override as well.
 */
#include "tests/fuzz/fuzz.h"

#include <string.h>

#include "base/status.h"
#include "runtime/config.h"
#include "runtime/keys.h"
#include "runtime/yaml.h"

static char *value_of(const struct key *key, const struct sherd_config *config)
{
    struct text t = { 0 };
    char *s;
    key_print(key, config, &t);
    FUZZ_CHECK(text_take(&t, &s) == SHERD_OK);
    return s;
}

static void expect_equal(const struct sherd_config *a, const struct sherd_config *b)
{
    for (int i = 0; i < key_count(); i++) {
        char *x = value_of(key_at(i), a), *y = value_of(key_at(i), b);
        FUZZ_CHECK(strcmp(x, y) == 0);
        mem_free(x);
        mem_free(y);
    }
}

/* The config, printed, is the same config; so is a copy. */
static void round_trip(const struct sherd_config *config, int world)
{
    struct sherd_config again;
    char *text;
    FUZZ_CHECK(sherd_config_print(config, &text) == SHERD_OK);
    if (strlen(text) <= YAML_TEXT_BYTES) {
        FUZZ_CHECK(sherd_config_parse(&again, text, strlen(text), "again", NULL, 0, world) == SHERD_OK);
        expect_equal(config, &again);
        sherd_config_free(&again);
    }
    FUZZ_CHECK(config_copy(&again, config) == SHERD_OK);
    expect_equal(config, &again);
    sherd_config_free(&again);
    mem_free(text);
}

static void try_world(const char *text, size_t bytes, const char *set, int world)
{
    struct sherd_config config;
    int st = sherd_config_parse(&config, text, bytes, "fuzz", &set, set ? 1 : 0, world);
    if (st == SHERD_OK) {
        round_trip(&config, world);
        FUZZ_CHECK(world == 0 || config.batch.global == config.batch.micro * config.batch.accum * world);
    } else {
        FUZZ_CHECK(st == SHERD_ECONFIG);
        FUZZ_CHECK(
            strncmp(sherd_error(), "fuzz:", 5) == 0 || (set && strncmp(sherd_error(), "--set", 5) == 0));
        FUZZ_CHECK(config.origin == NULL);
    }
    sherd_config_free(&config);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char mark[] = "#set ";
    char *text = mem_zalloc(bytes + 1, 1), *set = NULL;
    FUZZ_CHECK(text != NULL);
    if (bytes)
        memcpy(text, data, bytes);
    for (size_t i = bytes; i-- > 0 && !set;)
        if (i + strlen(mark) <= bytes && memcmp(text + i, mark, strlen(mark)) == 0)
            set = text + i + strlen(mark);
    for (int world = 0; world <= 3; world += 3)
        try_world(text, bytes, set, world);
    mem_free(text);
    return 0;
}
