/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * sherd inspect: what a checkpoint holds, and which rank wrote which part of it.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/text_plain.h"
#include "tools/args.h"
#include "tools/commands.h"
#include "tools/out.h"

static int64_t total_elems(const struct sherd_ckpt *ckpt, int n_tensors)
{
    int64_t sum = 0;
    struct sherd_ckpt_tensor t;
    for (int i = 0; i < n_tensors; i++)
        if (sherd_ckpt_tensor_at(ckpt, i, &t) == SHERD_OK)
            sum += t.elems;
    return sum;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Sorted names of the regular files of a folder, ended by NULL; NULL when it cannot be read. */
static char **list_files(const char *path)
{
    DIR *dir = opendir(path);
    char **names = calloc(1, sizeof(*names));
    int n = 0;
    for (struct dirent *e; dir && names && (e = readdir(dir));) {
        struct stat info;
        if (fstatat(dirfd(dir), e->d_name, &info, 0) != 0 || !S_ISREG(info.st_mode))
            continue;
        char **more = realloc(names, (size_t)(n + 2) * sizeof(*names));
        if (!more)
            break;
        names = more;
        names[n] = strdup(e->d_name);
        n += names[n] != NULL;
        names[n] = NULL;
    }
    if (dir)
        closedir(dir);
    if (names)
        qsort(names, (size_t)n, sizeof(*names), by_name);
    return names;
}

static void free_names(char **names)
{
    for (int i = 0; names && names[i]; i++)
        free(names[i]);
    free(names);
}

static int64_t file_bytes(const char *folder, const char *name)
{
    char path[4096];
    struct stat info;
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return stat(path, &info) == 0 ? (int64_t)info.st_size : -1;
}

static void print_summary(const char *path, const struct sherd_ckpt_info *info, int64_t elems)
{
    char a[32], b[32], c[32];
    printf("%s\n", path);
    printf("  step       %s (%s tokens, %s samples)\n", text_commas(info->step, a),
        text_commas(info->tokens_seen, b), text_commas(info->samples_seen, c));
    printf("  written by %d rank%s at stage %d, format version %d\n", info->world,
        info->world == 1 ? "" : "s", info->stage, info->version);
    printf("  optimizer  %s\n", info->optimizer ? info->optimizer : "none");
    printf("  weights    %s in %d tensors\n", text_commas(elems, a), info->n_tensors);
    printf("  files      %d\n", info->n_files);
}

static void print_tensors(const struct sherd_ckpt *ckpt, int n)
{
    struct sherd_ckpt_tensor t;
    struct sherd_ckpt_span s;
    char shape[96];
    printf("\n%-48s %-5s %-20s ranges held by ranks\n", "tensor", "type", "shape");
    for (int i = 0; i < n; i++) {
        if (sherd_ckpt_tensor_at(ckpt, i, &t) != SHERD_OK)
            continue;
        printf("%-48s %-5s %-20s", t.name, sherd_dtype_name(t.type), out_shape(t.shape, t.dims, shape));
        for (int k = 0; k < t.n_spans; k++)
            if (sherd_ckpt_span_at(ckpt, i, k, &s) == SHERD_OK)
                printf(" %d:[%lld, %lld)", s.rank, (long long)s.first, (long long)(s.first + s.elems));
        printf("%s%s%s\n", t.frozen ? " frozen" : "", t.alias ? " also called " : "", t.alias ? t.alias : "");
    }
}

static int print_files(const char *path)
{
    char buf[32];
    char **names = list_files(path);
    if (!names) {
        fprintf(stderr, "sherd: %s: cannot be listed\n", path);
        return EXIT_FAILED;
    }
    printf("\n%-48s %12s\n", "file", "size");
    for (int i = 0; names[i]; i++)
        printf("%-48s %12s\n", names[i], text_human_bytes((double)file_bytes(path, names[i]), buf));
    free_names(names);
    return EXIT_OK;
}

static json_t *tensor_json(const struct sherd_ckpt *ckpt, int i)
{
    struct sherd_ckpt_tensor t;
    struct sherd_ckpt_span s;
    if (sherd_ckpt_tensor_at(ckpt, i, &t) != SHERD_OK)
        return NULL;
    json_t *shape = json_array(), *spans = json_array();
    for (int d = 0; d < t.dims; d++)
        json_array_append_new(shape, json_integer((json_int_t)t.shape[d]));
    for (int k = 0; k < t.n_spans; k++)
        if (sherd_ckpt_span_at(ckpt, i, k, &s) == SHERD_OK)
            json_array_append_new(spans, json_pack("{s:s, s:i, s:I, s:I}", "file", s.file, "rank", s.rank,
                                             "first", (json_int_t)s.first, "elems", (json_int_t)s.elems));
    json_t *out =
        json_pack("{s:s, s:s, s:o, s:I, s:b, s:o}", "name", t.name, "dtype", sherd_dtype_name(t.type),
            "shape", shape, "elems", (json_int_t)t.elems, "frozen", t.frozen, "spans", spans);
    if (t.alias)
        json_object_set_new(out, "alias", json_string(t.alias));
    return out;
}

static int print_json(const char *path, const struct sherd_ckpt *ckpt, const struct sherd_ckpt_info *info,
    int tensors, int files)
{
    json_t *root = json_pack("{s:s, s:i, s:I, s:i, s:i, s:I, s:I, s:s?, s:i, s:i, s:I}", "path", path,
        "version", info->version, "step", (json_int_t)info->step, "world", info->world, "stage", info->stage,
        "tokens_seen", (json_int_t)info->tokens_seen, "samples_seen", (json_int_t)info->samples_seen,
        "optimizer", info->optimizer, "n_tensors", info->n_tensors, "n_files", info->n_files, "params",
        (json_int_t)total_elems(ckpt, info->n_tensors));
    if (info->extra)
        json_object_set_new(root, "extra", json_loads(info->extra, 0, NULL));
    if (tensors) {
        json_t *list = json_array();
        for (int i = 0; i < info->n_tensors; i++)
            json_array_append_new(list, tensor_json(ckpt, i));
        json_object_set_new(root, "tensors", list);
    }
    if (files) {
        json_t *list = json_array();
        char **names = list_files(path);
        for (int i = 0; names && names[i]; i++)
            json_array_append_new(list,
                json_pack("{s:s, s:I}", "name", names[i], "bytes", (json_int_t)file_bytes(path, names[i])));
        free_names(names);
        json_object_set_new(root, "files", list);
    }
    return out_json(root);
}

static int inspect(const char *dir, int tensors, int files, int json)
{
    char *path = NULL;
    struct sherd_ckpt *ckpt = NULL;
    struct sherd_ckpt_info info;
    if (sherd_weights_found(dir))
        return out_refuse(
            "%s is a model, not a checkpoint: 'sherd verify' checks it, 'sherd diff' compares it, and "
            "any safetensors viewer lists it",
            dir);
    int code = EXIT_OK, st = sherd_ckpt_find(&path, dir);
    if (st == SHERD_OK)
        st = sherd_ckpt_open(&ckpt, path);
    if (st != SHERD_OK) {
        code = out_fail(st);
        goto out;
    }
    sherd_ckpt_info_of(ckpt, &info);
    if (json) {
        code = print_json(path, ckpt, &info, tensors, files);
        goto out;
    }
    print_summary(path, &info, total_elems(ckpt, info.n_tensors));
    if (tensors)
        print_tensors(ckpt, info.n_tensors);
    if (files)
        code = print_files(path);
out:
    sherd_ckpt_close(ckpt);
    free(path);
    return code;
}

int cmd_inspect(int argc, char **argv)
{
    int tensors = 0, files = 0, json = 0;
    const struct arg args[] = {
        { "tensors", ARG_FLAG, &tensors, NULL, "list the tensors and who holds which range of them" },
        { "files", ARG_FLAG, &files, NULL, "list the files with their sizes" },
        { "json", ARG_FLAG, &json, NULL, "print JSON" },
    };
    const struct command command = { "inspect", "DIR", 1, 1,
        "Shows what a checkpoint holds: step, ranks, stage, tensors, files.",
        "DIR is a run folder (its newest complete checkpoint is taken) or one step folder.", args,
        COUNT_OF(args) };
    const char *dir;
    int code = args_parse(&command, argc, argv, &dir);
    return code >= 0 ? code : inspect(dir, tensors, files, json);
}
