/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The JSON files of a model folder: a config.json is refused with a text that names it, or its model can be
 * asked for; an index is refused, or lists files of one folder, in order, each once.
 */
#include "tests/fuzz/fuzz.h"

#include <string.h>

#include <sherd/model.h>
#include "base/mem.h"
#include "base/status.h"
#include "ckpt/hf.h"

static void config(const char *text, size_t bytes)
{
    struct sherd_model_config c;
    int st = sherd_model_config_json(&c, text, bytes, "fuzz");
    if (st != SHERD_OK) {
        FUZZ_CHECK(st == SHERD_EFORMAT || st == SHERD_EUNSUPPORTED);
        FUZZ_CHECK(strncmp(sherd_error(), "fuzz:", 5) == 0);
        return;
    }
    FUZZ_CHECK(c.family && c.vocab >= 0 && c.layers >= 0 && (c.tied == 0 || c.tied == 1));
    struct sherd_model *model = NULL;
    if (c.layers <= 8) /* more only take time */
        FUZZ_CHECK((sherd_model_build(&model, &c) == SHERD_OK) == (model != NULL));
    sherd_model_destroy(model);
}

static void index_files(const char *text, size_t bytes)
{
    struct arena arena = { 0 };
    const char **files;
    int n;
    int64_t n_tensors;
    if (hf_index_files(&arena, &files, &n, &n_tensors, text, bytes, "fuzz") == SHERD_OK) {
        FUZZ_CHECK(n > 0 && n <= n_tensors);
        for (int i = 0; i < n; i++) {
            FUZZ_CHECK(files[i][0] && !strchr(files[i], '/'));
            FUZZ_CHECK(i == 0 || strcmp(files[i - 1], files[i]) < 0);
        }
    } else {
        FUZZ_CHECK(strncmp(sherd_error(), "fuzz:", 5) == 0);
    }
    arena_finish(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    sherd_log_set(NULL, NULL, SHERD_LOG_ERROR);
    config((const char *)data, bytes);
    index_files((const char *)data, bytes);
    return 0;
}
