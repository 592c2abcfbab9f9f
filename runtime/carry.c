/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Files that go along with a run: see runtime/carry.h.
 */
#include "runtime/carry.h"

#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "ckpt/companions.h"
#include "runtime/config.h"

/* The folder that a path of the data lies in, or is; mem_free it. */
static char *folder_of(const char *path)
{
    const char *slash = file_is_dir(path) ? NULL : strrchr(path, '/');
    return file_is_dir(path) ? mem_strdup(path)
           : slash           ? mem_printf("%.*s", (int)MAX(slash - path, 1), path)
                             : mem_strdup(".");
}

static int holds(char **folders, int n, const char *folder)
{
    for (int i = 0; i < n; i++)
        if (strcmp(folders[i], folder) == 0)
            return 1;
    return 0;
}

/* The folders of the paths, each once, however many files of one are named; file_list_free them. */
static int list_folders(char ***out, int *n, const struct sherd_texts *paths)
{
    int cap = 0, st = SHERD_OK;
    *out = NULL;
    *n = 0;
    for (int i = 0; i < paths->n && st == SHERD_OK; i++) {
        char *folder = folder_of(paths->items[i]);
        st = folder ? mem_grow(out, &cap, *n + 1, sizeof(**out)) : SHERD_ENOMEM;
        if (st == SHERD_OK && !holds(*out, *n, folder))
            (*out)[(*n)++] = folder;
        else
            mem_free(folder);
    }
    if (st != SHERD_OK)
        file_list_free(*out, *n);
    return st;
}

/* Whether a folder has a tokenizer that is not the one in `data`. */
static int has_other(const char *folder, const char *data)
{
    return strcmp(folder, data) != 0 && file_has(folder, COMPANION_TOKENIZER) &&
           !companions_same_file(data, folder, COMPANION_TOKENIZER);
}

/* The first folder of the data with a tokenizer, NULL if there is none; mem_free it. */
static int find_data(const struct sherd_config *c, char **out)
{
    char **folders;
    int n;
    *out = NULL;
    SHERD_TRY(list_folders(&folders, &n, &c->data.train));
    for (int i = 0; i < n; i++) {
        if (!*out && file_has(folders[i], COMPANION_TOKENIZER)) {
            *out = folders[i];
            folders[i] = NULL;
        } else if (*out && has_other(folders[i], *out)) {
            log_warn("data.train: %s and %s have tokenizers that differ: are their tokens of one kind?", *out,
                folders[i]);
        }
    }
    file_list_free(folders, n);
    return SHERD_OK;
}

/* Tokens to evaluate on that are another tokenizer's have a loss that says nothing. */
int carry_compare_val(const struct sherd_config *c, const char *whose, const char *folder)
{
    char **folders;
    int n;
    if (!file_has(folder, COMPANION_TOKENIZER))
        return SHERD_OK;
    SHERD_TRY(list_folders(&folders, &n, &c->data.val));
    for (int i = 0; i < n; i++)
        if (has_other(folders[i], folder))
            log_warn(
                "data.val: the tokenizer in %s is not that of %s, in %s: the validation loss is of other "
                "tokens than the model knows",
                folders[i], whose, folder);
    file_list_free(folders, n);
    return SHERD_OK;
}

/* The tokenizer of the data is what the model learns; what lies beside a model belongs to its own. */
int carry_files(const struct sherd_config *c)
{
    const char *from = config_has_from(c) ? c->model.from : NULL;
    char *data;
    int n, st = SHERD_OK;
    SHERD_TRY(find_data(c, &data));
    int differ = data && from && has_other(from, data);
    if (differ)
        log_warn("data.train: the tokenizer in %s is not that of model.from, %s: the model will not know "
                 "what these tokens mean",
            data, from);
    if (data)
        st = carry_compare_val(c, "data.train", data);
    if (st == SHERD_OK && from && !differ)
        st = companions_copy(from, c->run.dir, &n);
    if (st == SHERD_OK && data)
        st = companions_copy_file(data, c->run.dir, COMPANION_TOKENIZER);
    mem_free(data);
    return st;
}
