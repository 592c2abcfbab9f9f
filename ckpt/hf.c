/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Opening and reading a model folder: see ckpt/hf.h.
 */
#include "ckpt/hf.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/status.h"
#include "base/text.h"
#include "ckpt/format.h"
#include "ckpt/theirs.h"

#define INDEX_BYTES ((size_t)256 << 20)

static int order_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int order_tensors(const void *a, const void *b)
{
    return strcmp(((const struct hf_tensor *)a)->name, ((const struct hf_tensor *)b)->name);
}

int hf_is_model(const char *dir)
{
    return file_has(dir, CKPT_MODEL_FILE) || file_has(dir, CKPT_MODEL_INDEX);
}

/* ---- the index ---- */

static int map_files(struct arena *arena, const char ***files, int *n, json_t *map, const char *name)
{
    const char *tensor, *file;
    json_t *value;
    size_t count = json_object_size(map), used = 0;
    const char **all = arena_zalloc(arena, count + 1, sizeof(*all));
    if (!all)
        return SHERD_ENOMEM;
    json_object_foreach(map, tensor, value)
    {
        file = json_string_value(value);
        if (!file || !file[0] || strchr(file, '/') || !text_ends(file, ".safetensors"))
            return SHERD_FAIL(SHERD_EFORMAT,
                "%s: tensor '%s' must lie in a .safetensors file of the same folder, not in %s%s%s", name,
                tensor, file ? "'" : "", file ? file : "what is no text", file ? "'" : "");
        all[used++] = file;
    }
    qsort(all, used, sizeof(*all), order_texts);
    *n = 0;
    for (size_t i = 0; i < used; i++) {
        if (*n && !strcmp(all[*n - 1], all[i]))
            continue;
        all[*n] = arena_strdup(arena, all[i]);
        if (!all[(*n)++])
            return SHERD_ENOMEM;
    }
    *files = all;
    return SHERD_OK;
}

int hf_index_files(struct arena *arena, const char ***files, int *n, int64_t *n_tensors, const char *text,
    size_t bytes, const char *name)
{
    json_t *root, *map;
    SHERD_TRY(json_parse(&root, text, bytes, name));
    int st = json_get_object(root, "weight_map", name, &map);
    if (st == SHERD_OK && json_object_size(map) == 0)
        st = SHERD_FAIL(SHERD_EFORMAT, "%s: 'weight_map' lists no tensors", name);
    if (st == SHERD_OK) {
        *n_tensors = (int64_t)json_object_size(map);
        st = map_files(arena, files, n, map, name);
    }
    json_decref(root);
    return st;
}

/* Every tensor that the index lists lies where it says. */
static int check_index(const struct hf_model *m, const char *text, size_t bytes, const char *name)
{
    json_t *root, *map, *value;
    const char *tensor;
    SHERD_TRY(json_parse(&root, text, bytes, name));
    int st = json_get_object(root, "weight_map", name, &map);
    if (st != SHERD_OK)
        goto out;
    json_object_foreach(map, tensor, value)
    {
        const struct hf_tensor *t = hf_find(m, tensor);
        if (!t || strcmp(m->files[t->file].name, json_string_value(value)))
            SHERD_TRY_OUT(SHERD_FAIL(SHERD_EFORMAT,
                "%s: tensor '%s' is missing in %s, where the index has it; is the file of another "
                "model, or of another download?",
                m->path, tensor, json_string_value(value)));
    }
out:
    json_decref(root);
    return st;
}

/* ---- opening ---- */

static int use_file(struct hf_model *m, int i, char **path)
{
    *path = mem_printf("%s/%s", m->path, m->files[i].name);
    if (!*path)
        return SHERD_ENOMEM;
    if (m->fd_file == i)
        return SHERD_OK;
    int fd = m->fd;
    m->fd = m->fd_file = -1;
    SHERD_TRY(file_close(fd, m->path));
    SHERD_TRY(file_open_read(&m->fd, *path));
    m->fd_file = i;
    return SHERD_OK;
}

static int read_headers(struct hf_model *m, const char *const *names, int n)
{
    m->files = arena_zalloc(&m->arena, (size_t)n, sizeof(*m->files));
    if (!m->files)
        return SHERD_ENOMEM;
    for (int i = 0; i < n; i++) {
        char *path = NULL;
        m->files[i].name = names[i];
        int st = use_file(m, i, &path);
        if (st == SHERD_OK)
            st = st_read(&m->files[i].header, m->fd, path);
        mem_free(path);
        SHERD_TRY(st);
        m->n_files = i + 1;
        m->n_tensors += m->files[i].header.n;
        m->bytes_read += m->files[i].header.bytes;
    }
    return SHERD_OK;
}

static int list_tensors(struct hf_model *m)
{
    int n = 0;
    m->tensors = arena_zalloc(&m->arena, (size_t)m->n_tensors + 1, sizeof(*m->tensors));
    if (!m->tensors)
        return SHERD_ENOMEM;
    for (int i = 0; i < m->n_files; i++) {
        const struct st_header *h = &m->files[i].header;
        for (int k = 0; k < h->n; k++)
            m->tensors[n++] = (struct hf_tensor){ h->entries[k].name, i, &h->entries[k] };
    }
    qsort(m->tensors, (size_t)n, sizeof(*m->tensors), order_tensors);
    for (int i = 1; i < n; i++) {
        const struct hf_tensor *a = &m->tensors[i - 1], *b = &m->tensors[i];
        if (!strcmp(a->name, b->name))
            return SHERD_FAIL(SHERD_EFORMAT, "%s: tensor '%s' is in two files, %s and %s", m->path, a->name,
                m->files[a->file].name, m->files[b->file].name);
    }
    return SHERD_OK;
}

static int open_index(struct hf_model *m, const char *dir)
{
    const char **files;
    char *path = mem_printf("%s/%s", dir, CKPT_MODEL_INDEX), *text = NULL;
    size_t bytes;
    int n, st = path ? SHERD_OK : SHERD_ENOMEM;
    int64_t listed;
    if (st == SHERD_OK)
        st = file_read_text(&text, &bytes, path, INDEX_BYTES);
    if (st == SHERD_OK)
        st = hf_index_files(&m->arena, &files, &n, &listed, text, bytes, path);
    if (st == SHERD_OK) {
        m->bytes_read += bytes;
        st = read_headers(m, files, n);
    }
    if (st == SHERD_OK)
        st = list_tensors(m);
    if (st == SHERD_OK)
        st = check_index(m, text, bytes, path);
    mem_free(text);
    mem_free(path);
    return st;
}

/* As transformers: one file counts before an index. */
static int open_files(struct hf_model *m, const char *dir)
{
    static const char *const one[] = { CKPT_MODEL_FILE };
    if (file_has(dir, CKPT_MODEL_FILE)) {
        SHERD_TRY(read_headers(m, one, 1));
        return list_tensors(m);
    }
    if (file_has(dir, CKPT_MODEL_INDEX))
        return open_index(m, dir);
    if (!file_is_dir(dir))
        return SHERD_FAIL(SHERD_ENOTFOUND, "%s: there is no such folder", dir);
    char theirs[CKPT_THEIRS_BYTES];
    ckpt_theirs(theirs, dir);
    return SHERD_FAIL(
        SHERD_ENOTFOUND, "%s: neither " CKPT_MODEL_FILE " nor " CKPT_MODEL_INDEX "%s", dir, theirs);
}

int hf_open(struct hf_model **out, const char *dir)
{
    struct hf_model *m = mem_zalloc(1, sizeof(*m));
    *out = NULL;
    if (!m)
        return SHERD_ENOMEM;
    m->fd = m->fd_file = -1;
    m->path = arena_strdup(&m->arena, dir);
    int st = m->path ? open_files(m, dir) : SHERD_ENOMEM;
    if (st == SHERD_OK)
        *out = m;
    else
        hf_close(m);
    return st;
}

void hf_close(struct hf_model *m)
{
    if (!m)
        return;
    for (int i = 0; i < m->n_files; i++)
        st_finish(&m->files[i].header);
    if (m->fd >= 0)
        (void)file_close(m->fd, m->path);
    arena_finish(&m->arena);
    mem_free(m);
}

/* ---- reading ---- */

const struct hf_tensor *hf_find(const struct hf_model *m, const char *name)
{
    const struct hf_tensor key = { .name = name };
    return bsearch(&key, m->tensors, (size_t)m->n_tensors, sizeof(key), order_tensors);
}

const struct hf_tensor *hf_find_any(const struct hf_model *m, const char *name)
{
    const struct hf_tensor *found = hf_find(m, name);
    const char *dot = strchr(name, '.');
    return found || !dot ? found : hf_find(m, dot + 1);
}

int hf_read(struct hf_model *m, const struct hf_tensor *t, int64_t first, int64_t n, void *out)
{
    size_t size = sherd_dtype_bytes(t->entry->type);
    char *path = NULL;
    int st = use_file(m, t->file, &path);
    if (st == SHERD_OK)
        st = file_pread(m->fd, out, (size_t)n * size, t->entry->begin + (uint64_t)first * size, path);
    if (st == SHERD_OK)
        m->bytes_read += (uint64_t)n * size;
    else
        status_context(st, "tensor '%s'", t->name);
    mem_free(path);
    return st;
}
