/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * tokens.json: the token files of a folder, and the vocabulary they were written with.
 */
#include "data/format.h"

#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/status.h"

static int read_file(struct token_set *set, const json_t *value, const char *name)
{
    const char *file;
    int64_t tokens;
    SHERD_TRY(json_get_text(value, "name", name, &file));
    SHERD_TRY(json_get_int(value, "tokens", 0, INT32_MAX, name, &tokens));
    if (file[0] == '\0' || file[0] == '.' || strchr(file, '/'))
        return SHERD_FAIL(
            SHERD_EFORMAT, "%s: files: '%.100s' is not the name of a file of this folder", name, file);
    set->names[set->n] = mem_strdup(file);
    if (!set->names[set->n])
        return SHERD_ENOMEM;
    set->counts[set->n++] = tokens;
    set->tokens += tokens;
    return SHERD_OK;
}

static int read_set(struct token_set *set, const json_t *root, const char *name)
{
    const char *format;
    int64_t version, tokens;
    json_t *files;
    SHERD_TRY(json_get_text(root, "format", name, &format));
    if (strcmp(format, SET_FORMAT) != 0)
        return SHERD_FAIL(SHERD_EFORMAT, "%s: format '%.60s', expected " SET_FORMAT, name, format);
    SHERD_TRY(json_get_int(root, "version", 1, INT32_MAX, name, &version));
    if (version != SET_VERSION)
        return SHERD_FAIL(SHERD_EFORMAT,
            "%s: version %lld, but only version %d is known; a newer sherd wrote it", name,
            (long long)version, SET_VERSION);
    SHERD_TRY(json_get_int(root, "vocab", 1, INT32_MAX, name, &set->vocab));
    SHERD_TRY(json_get_int(root, "tokens", 0, INT64_MAX, name, &tokens));
    SHERD_TRY(json_get_array(root, "files", name, &files));
    size_t n = json_array_size(files);
    set->names = mem_zalloc(n, sizeof(*set->names));
    set->counts = mem_zalloc(n, sizeof(*set->counts));
    if (!set->names || !set->counts)
        return SHERD_ENOMEM;
    for (size_t i = 0; i < n; i++)
        SHERD_TRY(read_file(set, json_array_get(files, i), name));
    if (set->tokens != tokens)
        return SHERD_FAIL(SHERD_EFORMAT, "%s: the files have %lld tokens, but 'tokens' is %lld", name,
            (long long)set->tokens, (long long)tokens);
    return SHERD_OK;
}

int set_parse(struct token_set *out, const char *text, size_t bytes, const char *name)
{
    json_t *root;
    *out = (struct token_set){ 0 };
    SHERD_TRY(json_parse(&root, text, bytes, name));
    int st = read_set(out, root, name);
    json_decref(root);
    if (st != SHERD_OK)
        set_finish(out);
    return st;
}

void set_finish(struct token_set *set)
{
    for (int i = 0; i < set->n; i++)
        mem_free(set->names[i]);
    mem_free(set->names);
    mem_free(set->counts);
    *set = (struct token_set){ 0 };
}
