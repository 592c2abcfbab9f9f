/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Merging: see sherd/ckpt.h. Only weights files are read. Tensors stand in the order of the model. All files
 * are made in a folder of their own and then come to be at once: renamed into a folder that held no model,
 * the index last; or, with what else the target holds, exchanged with it as a whole.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/status.h"
#include "base/text.h"
#include "ckpt/companions.h"
#include "ckpt/pour.h"
#include "ckpt/swap.h"

/* One tensor to write; an alias is a second one with the same source. */
struct out_tensor {
    const char *name;
    int tensor, file;
    uint64_t bytes;
};

struct merge {
    const struct sherd_merge_desc *desc;
    struct sherd_ckpt *ckpt;
    enum sherd_dtype type;
    struct out_tensor *tensors;
    int n_tensors, n_files;
    int64_t params;
    uint64_t total_bytes; /* of tensors */
    uint64_t file_bytes;  /* of safetensors files */
    char *temp;           /* where the files are made */
    char *run;            /* the folder that the checkpoint lies in */
    int replaces;         /* the target holds a model */
    int made;             /* the target was not there */
};

static void file_name(char out[CKPT_NAME_BYTES], int file, int n_files)
{
    if (n_files == 1)
        snprintf(out, CKPT_NAME_BYTES, "%s", CKPT_MODEL_FILE);
    else
        snprintf(out, CKPT_NAME_BYTES, CKPT_MODEL_SHARD_FORMAT, file + 1, n_files);
}

/* 1 for names that a model of some number of files has: what a merge writes, or wrote before. */
static int is_model_file(const char *name)
{
    int a, b, end = 0;
    if (!strcmp(name, CKPT_MODEL_FILE) || !strcmp(name, CKPT_MODEL_INDEX))
        return 1;
    return sscanf(name, "model-%5d-of-%5d.safetensors%n", &a, &b, &end) == 2 && end && !name[end];
}

/* Which file each tensor goes to: files fill up in order; a tensor above the limit gets one of its own at
 * once, before the one that is being filled. */
static int split_files(struct merge *m)
{
    uint64_t limit = m->desc->shard_bytes ? m->desc->shard_bytes : CKPT_SHARD_BYTES, filled = 0;
    int *number = mem_zalloc((size_t)m->n_tensors + 1, sizeof(*number)), open = -1;
    if (!number)
        return SHERD_ENOMEM;
    /* `open` is a stand-in for the file being filled; its number is known when it is closed. */
    int n_open = 0;
    for (int i = 0; i < m->n_tensors; i++) {
        uint64_t bytes = m->tensors[i].bytes;
        if (bytes > limit) {
            m->tensors[i].file = m->n_files++;
            continue;
        }
        if (open >= 0 && filled + bytes > limit) {
            number[open] = m->n_files++;
            open = -1;
        }
        if (open < 0) {
            open = n_open++;
            filled = 0;
        }
        filled += bytes;
        m->tensors[i].file = -1 - open;
    }
    if (open >= 0)
        number[open] = m->n_files++;
    for (int i = 0; i < m->n_tensors; i++) {
        if (m->tensors[i].file < 0)
            m->tensors[i].file = number[-1 - m->tensors[i].file];
    }
    mem_free(number);
    if (m->n_files > CKPT_MAX_SHARDS)
        return SHERD_FAIL(SHERD_EINVAL,
            "files of %llu bytes would make %d of them; names end at %d: allow larger files",
            (unsigned long long)limit, m->n_files, CKPT_MAX_SHARDS);
    return SHERD_OK;
}

static int plan(struct merge *m)
{
    const struct manifest *man = &m->ckpt->manifest;
    m->type = m->desc->type == SHERD_DTYPE_NONE ? man->meta.param_type : m->desc->type;
    if (!st_convertible(m->type))
        return SHERD_FAIL(
            SHERD_EINVAL, "merge: type %s is none of f32, bf16, f16", sherd_dtype_name(m->type));
    SHERD_TRY(ckpt_check_headers(m->ckpt, CKPT_WEIGHTS));
    m->tensors = mem_zalloc(2 * (size_t)man->n_tensors, sizeof(*m->tensors));
    if (!m->tensors)
        return SHERD_ENOMEM;
    for (int i = 0; i < man->n_tensors; i++) {
        const struct manifest_tensor *t = &man->tensors[i];
        uint64_t bytes = (uint64_t)t->elems * sherd_dtype_bytes(m->type);
        for (int k = 0; k < 1 + (t->alias && m->desc->aliases); k++) {
            m->tensors[m->n_tensors++] = (struct out_tensor){ k ? t->alias : t->name, i, 0, bytes };
            m->total_bytes += bytes;
        }
        m->params += t->elems;
    }
    if (!m->n_tensors)
        return SHERD_FAIL(SHERD_EFORMAT, "%s: the checkpoint holds no tensors", m->ckpt->path);
    return split_files(m);
}

/* A name in the target that a model brings with it. */
static int is_ours(const struct merge *m, const char *name)
{
    return is_model_file(name) || (m->ckpt->manifest.meta.export_json && !strcmp(name, CKPT_MODEL_CONFIG));
}

/* A folder with checkpoints that also holds a model is taken for the model by all that reads either. */
static int refuse_checkpoints(const struct merge *m)
{
    const char *to = m->desc->to;
    struct ckpt_step *steps = NULL;
    int n, st = SHERD_OK;
    if (!file_is_dir(to))
        return SHERD_FAIL(SHERD_EEXISTS, "%s is a file: name a folder for the model", to);
    SHERD_TRY(ckpt_list_steps(&steps, &n, to));
    if (n > 0 || file_has(to, CKPT_MANIFEST))
        st = SHERD_FAIL(SHERD_EEXISTS,
            "%s holds %s (%s), and a model beside that would be taken for it: choose another folder, as %s/model",
            to, n > 0 ? "the checkpoints of a run" : "a checkpoint", n > 0 ? steps[0].name : CKPT_MANIFEST,
            to);
    mem_free(steps);
    return st;
}

/* What stands in the target already. */
static int look_at_target(struct merge *m)
{
    char **names;
    int n, st = SHERD_OK;
    SHERD_TRY(file_list(&names, &n, m->desc->to));
    for (int i = 0; i < n && st == SHERD_OK; i++) {
        m->replaces |= is_ours(m, names[i]);
        if (is_ours(m, names[i]) && !m->desc->overwrite)
            st = SHERD_FAIL(SHERD_EEXISTS,
                "%s already holds a model (%s): choose another folder, or --overwrite", m->desc->to,
                names[i]);
    }
    file_list_free(names, n);
    return st;
}

static int check_target(struct merge *m)
{
    char need[32], has[32];
    uint64_t available;
    m->made = !file_exists(m->desc->to);
    if (!m->made) {
        SHERD_TRY(refuse_checkpoints(m));
        SHERD_TRY(look_at_target(m));
    }
    if (m->replaces)
        SHERD_TRY(swap_name(&m->temp, m->desc->to));
    else
        m->temp = ckpt_join(m->desc->to, CKPT_MERGE_TEMP);
    if (!m->temp)
        return SHERD_ENOMEM;
    SHERD_TRY(file_remove_tree(m->temp));
    SHERD_TRY(file_free_space(&available, m->desc->to));
    if (available < m->total_bytes)
        return SHERD_FAIL(SHERD_EIO,
            "%s: the merged model needs %s, but only %s are free on that file system: free some, "
            "merge elsewhere, or to a smaller type",
            m->desc->to, text_human_bytes((double)m->total_bytes, need),
            text_human_bytes((double)available, has));
    return file_mkdirs(m->temp);
}

static int write_file(struct merge *m, int file, struct pour_item *items)
{
    char name[CKPT_NAME_BYTES];
    uint64_t bytes;
    int n = 0;
    for (int i = 0; i < m->n_tensors; i++) {
        if (m->tensors[i].file == file)
            items[n++] = (struct pour_item){ m->tensors[i].name, m->tensors[i].tensor };
    }
    file_name(name, file, m->n_files);
    char *path = ckpt_join(m->temp, name);
    int st = path ? pour_file(m->ckpt, path, items, n, m->type, &bytes) : SHERD_ENOMEM;
    mem_free(path);
    m->file_bytes += st == SHERD_OK ? bytes : 0;
    return st;
}

/* Text with a line break at its end, into a file below the temporary folder. */
static int write_json(const struct merge *m, const char *name, const json_t *value)
{
    char *text = NULL, *line = NULL, *path = ckpt_join(m->temp, name);
    int fd = -1, st = path ? json_print_neat(&text, value) : SHERD_ENOMEM;
    if (st == SHERD_OK) {
        line = mem_printf("%s\n", text);
        st = line ? file_open_new(&fd, path) : SHERD_ENOMEM;
    }
    if (st == SHERD_OK) {
        st = file_pwrite(fd, line, strlen(line), 0, path);
        SHERD_KEEP(st, file_sync(fd, path));
        SHERD_KEEP(st, file_close(fd, path));
    }
    mem_free(text);
    mem_free(line);
    mem_free(path);
    return st;
}

static int write_config(const struct merge *m)
{
    static const char *const torch[] = {
        [SHERD_F32] = "float32", [SHERD_BF16] = "bfloat16", [SHERD_F16] = "float16"
    };
    const char *text = m->ckpt->manifest.meta.export_json;
    json_t *config;
    if (!text) {
        log_info("the checkpoint holds no model config: no " CKPT_MODEL_CONFIG " is written");
        return SHERD_OK;
    }
    SHERD_TRY(json_parse(&config, text, strlen(text), CKPT_MANIFEST));
    int st = SHERD_OK;
    json_object_del(config, "dtype"); /* newer readers prefer it */
    if (json_object_set_new(config, "torch_dtype", json_string(torch[m->type])))
        st = MEM_OUT("%s", CKPT_MODEL_CONFIG);
    if (st == SHERD_OK)
        st = write_json(m, CKPT_MODEL_CONFIG, config);
    json_decref(config);
    return st;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct out_tensor *)a)->name, ((const struct out_tensor *)b)->name);
}

/* Sorts m->tensors: nothing is written after it. */
static int write_index(const struct merge *m)
{
    char name[CKPT_NAME_BYTES];
    json_t *map = json_object(), *root;
    int bad = !map;
    qsort(m->tensors, (size_t)m->n_tensors, sizeof(*m->tensors), by_name);
    for (int i = 0; i < m->n_tensors && !bad; i++) {
        file_name(name, m->tensors[i].file, m->n_files);
        bad = json_object_set_new(map, m->tensors[i].name, json_string(name));
    }
    root =
        json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)m->total_bytes, "weight_map", map);
    int st = bad || !root ? MEM_OUT("%s", CKPT_MODEL_INDEX) : write_json(m, CKPT_MODEL_INDEX, root);
    json_decref(root);
    return st;
}

static int move(const struct merge *m, const char *name)
{
    char *from = ckpt_join(m->temp, name), *to = ckpt_join(m->desc->to, name);
    int st = from && to ? file_rename(from, to) : SHERD_ENOMEM;
    mem_free(from);
    mem_free(to);
    return st;
}

/* Of the folder that is named, or else of the run that the checkpoint is of. */
static int take_companions(const struct merge *m)
{
    int n = 0;
    if (!m->desc->with)
        return companions_copy(m->run, m->temp, &n);
    SHERD_TRY(companions_copy(m->desc->with, m->temp, &n));
    return n > 0 ? SHERD_OK
                 : SHERD_FAIL(SHERD_ENOTFOUND,
                       "%s holds neither tokenizer nor generation_config.json: name the folder of the model "
                       "that the training started from",
                       m->desc->with);
}

/* Into a folder that holds no model: all files but the index, which makes it one, and that last. */
static int move_all(const struct merge *m)
{
    char **names;
    int n, st = SHERD_OK;
    SHERD_TRY(file_list(&names, &n, m->temp));
    for (int i = 0; i < n && st == SHERD_OK; i++) {
        if (strcmp(names[i], CKPT_MODEL_INDEX) != 0)
            st = move(m, names[i]);
    }
    file_list_free(names, n);
    if (st == SHERD_OK && m->n_files > 1)
        st = move(m, CKPT_MODEL_INDEX);
    return st;
}

static int put_in_place(const struct merge *m)
{
    SHERD_TRY(file_sync_dir(m->temp));
    if (m->replaces)
        return swap_folders(m->temp, m->desc->to, is_model_file);
    SHERD_TRY(move_all(m));
    SHERD_TRY(file_remove_tree(m->temp));
    return file_sync_dir(m->desc->to);
}

static int write_all(struct merge *m)
{
    struct pour_item *items = mem_zalloc((size_t)m->n_tensors, sizeof(*items));
    if (!items)
        return SHERD_ENOMEM;
    int st = SHERD_OK;
    for (int i = 0; i < m->n_files && st == SHERD_OK; i++)
        st = write_file(m, i, items);
    mem_free(items);
    SHERD_TRY(st);
    SHERD_TRY(write_config(m));
    SHERD_TRY(take_companions(m));
    if (m->n_files > 1)
        SHERD_TRY(write_index(m));
    return put_in_place(m);
}

/* mem_free it. */
static char *folder_around(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? mem_printf("%.*s", (int)MAX(slash - path, 1), path) : mem_strdup(".");
}

/* A merge that fails leaves nothing; the error is kept. */
static void clean_up(const struct merge *m, int status)
{
    char *text = mem_strdup(sherd_error());
    if (m->temp)
        (void)file_remove_tree(m->temp);
    if (m->made)
        (void)file_remove_tree(m->desc->to);
    if (text)
        status_adopt(status, text);
    mem_free(text);
}

static int merge(struct merge *m)
{
    char *from = NULL;
    SHERD_TRY(sherd_ckpt_find(&from, m->desc->from));
    int st = sherd_ckpt_open(&m->ckpt, from);
    m->run = folder_around(from);
    mem_free(from);
    if (!m->run)
        return SHERD_ENOMEM;
    SHERD_TRY(st);
    SHERD_TRY(plan(m));
    st = check_target(m);
    if (st == SHERD_OK && !ckpt_checks_reads(m->ckpt))
        st = ckpt_verify_files(m->ckpt, 1u << CKPT_WEIGHTS, 0, 1);
    if (st == SHERD_OK)
        st = write_all(m);
    if (st != SHERD_OK)
        clean_up(m, st);
    return st;
}

int sherd_merge(const struct sherd_merge_desc *desc, struct sherd_merge_result *out)
{
    struct merge m = { .desc = desc };
    double start = clock_seconds();
    if (!desc || !desc->from || !desc->to || !*desc->to)
        return SHERD_FAIL(SHERD_EINVAL, "merge: both a checkpoint and a folder to write to are needed");
    int st = merge(&m);
    if (st == SHERD_OK && out)
        *out = (struct sherd_merge_result){ m.n_files, m.n_tensors, m.params, m.file_bytes,
            clock_seconds() - start };
    sherd_ckpt_close(m.ckpt);
    mem_free(m.tensors);
    mem_free(m.temp);
    mem_free(m.run);
    return st;
}
