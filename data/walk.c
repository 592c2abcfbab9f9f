/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Which files a path stands for: see data/walk.h.
 */
#include "data/walk.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/text.h"
#include "data/data.h"

#define MAX_DEPTH 64 /* folders in folders */

static const char *const skip_text[WALK_SKIPS] = { "hidden", "empty", "binary", "not named .bin",
    "not a file", "folder of token files" };

/* All files of a set speak one language: bytes and token ids must not mix. */
static int check_mix(const struct walk *w, const struct token_file *file)
{
    if (w->n_files == 0)
        return SHERD_OK;
    const struct token_file *head = &w->files[0];
    if ((head->format == SHERD_DATA_BYTES) == (file->format == SHERD_DATA_BYTES))
        return SHERD_OK;
    return SHERD_FAIL(SHERD_ECONFIG,
        "%s: %s looks like %s but %s like %s; say which one is meant with data.format (%s)", w->what,
        head->path, format_find(head->format)->name, file->path, format_find(file->format)->name,
        format_names);
}

/* Text by default: what is no text is passed over in a folder, and refused where it is named, unless bytes
 * are asked for. */
static int check_text(struct walk *w, const struct token_file *file, int in_folder, int *pass)
{
    const char *stranger = format_no_text(file);
    *pass = in_folder && stranger;
    if (*pass)
        w->skipped[WALK_BINARY]++;
    else if (stranger && w->format == SHERD_DATA_AUTO)
        return SHERD_FAIL(SHERD_ECONFIG,
            "%s: %s is %s: neither text nor tokens that are known; write its texts as lines of JSON for `sherd "
            "tokenize --field NAME`, or set data.format: bytes to train on its bytes as they are",
            w->what, file->path, stranger);
    if (!stranger && !w->quiet && !w->texts && !w->told_json &&
        (text_ends(file->path, ".jsonl") || text_ends(file->path, ".ndjson"))) {
        w->told_json = 1;
        log_warn(
            "%s: %s holds lines of JSON, which are trained on as they stand, with braces and names; `sherd "
            "tokenize --field NAME` takes the texts alone",
            w->what, file->path);
    }
    return SHERD_OK;
}

/* Takes a regular file into the set; in_folder = found by walking, where the wrong kind is passed over. */
static int add_file(struct walk *w, const char *path, int in_folder)
{
    int st = SHERD_OK, pass = 0;
    const struct format_ops *format = format_find(w->format);
    if (in_folder && w->format != SHERD_DATA_AUTO && w->format != SHERD_DATA_BYTES &&
        !text_ends(path, ".bin")) {
        w->skipped[WALK_NAME]++;
        return SHERD_OK;
    }
    struct token_file file = { 0 };
    SHERD_TRY(file_map(&file.map, path));
    if (file.map.bytes == 0 && (in_folder || !format || !format->has_header)) {
        w->skipped[WALK_EMPTY]++;
        goto out;
    }
    file.path = mem_strdup(path);
    if (!file.path) {
        st = SHERD_ENOMEM;
        goto out;
    }
    if (!format)
        format = format_guess(&file);
    file.format = format->format;
    if (file.format == SHERD_DATA_BYTES)
        SHERD_TRY_OUT(check_text(w, &file, in_folder, &pass));
    if (pass)
        goto out;
    SHERD_TRY_OUT(format->read(&file));
    SHERD_TRY_OUT(check_mix(w, &file));
    SHERD_TRY_OUT(mem_grow(&w->files, &w->cap, w->n_files + 1, sizeof(*w->files)));
    file.first = w->count;
    w->count += file.n;
    w->files[w->n_files++] = file;
    return SHERD_OK;
out:
    file_unmap(&file.map);
    mem_free(file.path);
    return st;
}

static int read_set(struct token_set *out, const char *list)
{
    char *text;
    size_t bytes;
    SHERD_TRY(file_read_text(&text, &bytes, list, SET_BYTES));
    int st = set_parse(out, text, bytes, list);
    mem_free(text);
    return st;
}

/* The files that tokens.json lists, which were written with one vocabulary and have their numbers of tokens.
 */
static int add_set(struct walk *w, const char *folder, const char *list)
{
    struct token_set set;
    int st = SHERD_OK;
    SHERD_TRY(read_set(&set, list));
    if (w->vocab > 0 && set.vocab > w->vocab)
        st = SHERD_FAIL(SHERD_ECONFIG,
            "%s: %s: these tokens are of a vocabulary of %lld, but model.vocab is %lld; set it to %lld or more",
            w->what, list, (long long)set.vocab, (long long)w->vocab, (long long)set.vocab);
    for (int i = 0; i < set.n && st == SHERD_OK; i++) {
        char *path = mem_printf("%s/%s", folder, set.names[i]);
        int64_t before = w->count;
        st = path ? add_file(w, path, 0) : SHERD_ENOMEM;
        if (st == SHERD_OK && w->count - before != set.counts[i])
            st = SHERD_FAIL(SHERD_EFORMAT, "%s: %lld tokens, but %s says %lld", path,
                (long long)(w->count - before), list, (long long)set.counts[i]);
        mem_free(path);
    }
    set_finish(&set);
    return st;
}

/* Whether the folder is one of token files. A tokens.json of another kind is text as any other. */
static int is_set(const char *list, int *yes)
{
    struct token_set set;
    int st = read_set(&set, list);
    *yes = st == SHERD_OK;
    if (*yes)
        set_finish(&set);
    return st == SHERD_EFORMAT ? SHERD_OK : st;
}

/* Where bytes are wanted, token files would be passed over as binary and what lies beside them be trained on.
 * A folder of them that was named is refused; below one of text it is passed over. */
static int pass_set(struct walk *w, const char *folder, const char *list, int depth, int *yes)
{
    SHERD_TRY(is_set(list, yes));
    if (!*yes)
        return SHERD_OK;
    if (depth == 0 && w->texts)
        return SHERD_FAIL(SHERD_ECONFIG, "%s: %s holds token files, which are made already; name the text",
            w->what, folder);
    if (depth == 0)
        return SHERD_FAIL(SHERD_ECONFIG,
            "%s: %s holds token files, but data.format is bytes; set it to auto, or name the text itself",
            w->what, folder);
    if (!w->quiet)
        log_warn("%s: %s holds token files%s: passed over", w->what, folder,
            w->texts ? "" : ", and data.format is bytes");
    w->skipped[WALK_SET]++;
    return SHERD_OK;
}

/* What `sherd tokenize` has not ended is not all of the text, though the files before are whole. */
static int refuse_part(const struct walk *w, const char *path)
{
    const char *slash = strrchr(path, '/');
    if (w->format == SHERD_DATA_BYTES || !text_starts(slash ? slash + 1 : path, SHARD_NAME) ||
        !text_ends(path, SHARD_PART))
        return SHERD_OK;
    return SHERD_FAIL(SHERD_ECONFIG,
        "%s: %s: `sherd tokenize` is at work here, or was stopped; wait for it, or take the folder away and run it "
        "again",
        w->what, path);
}

/* A data set as the library `datasets` saves it: its rows are binary, and of the text beside them nothing is
 * to be learnt. */
static int refuse_dataset(const struct walk *w, const char *folder)
{
    if (w->format != SHERD_DATA_AUTO && w->format != SHERD_DATA_BYTES)
        return SHERD_OK;
    if (!file_has(folder, "state.json") || !file_has(folder, "dataset_info.json"))
        return SHERD_OK;
    return SHERD_FAIL(SHERD_ECONFIG,
        "%s: %s is a data set as `datasets` saves it; write its texts as lines of JSON, "
        "load_from_disk(...).to_json(\"texts.jsonl\"), for `sherd tokenize --field NAME`",
        w->what, folder);
}

static int walk_folder(struct walk *w, const char *folder, int depth);

/* One entry of a folder. A link to a file counts as the file; links to folders are not followed, so that a
 * walk always ends. */
static int walk_entry(struct walk *w, const char *path, int depth)
{
    struct stat link, target;
    if (lstat(path, &link) != 0 || stat(path, &target) != 0) {
        if (!w->quiet)
            log_warn("%s: %s: cannot be looked at (broken link?), passed over", w->what, path);
        w->skipped[WALK_KIND]++;
        return SHERD_OK;
    }
    if (S_ISDIR(link.st_mode))
        return walk_folder(w, path, depth + 1);
    if (S_ISREG(target.st_mode)) {
        SHERD_TRY(refuse_part(w, path));
        return add_file(w, path, 1);
    }
    w->skipped[WALK_KIND]++;
    return SHERD_OK;
}

static int walk_folder(struct walk *w, const char *folder, int depth)
{
    int st = SHERD_OK, n = 0;
    char **names = NULL;
    if (depth > MAX_DEPTH)
        return SHERD_FAIL(SHERD_EIO, "%s: %s: more than %d folders deep", w->what, folder, MAX_DEPTH);
    char *list = mem_printf("%s/" SET_JSON, folder);
    if (!list)
        return SHERD_ENOMEM;
    int done = (w->format == SHERD_DATA_AUTO || w->format == SHERD_DATA_LLMC) && file_exists(list);
    if (done)
        st = add_set(w, folder, list);
    else if (w->format == SHERD_DATA_BYTES && file_exists(list))
        st = pass_set(w, folder, list, depth, &done);
    mem_free(list);
    if (done || st != SHERD_OK)
        return st;
    SHERD_TRY(refuse_dataset(w, folder));
    SHERD_TRY(file_list(&names, &n, folder));
    for (int i = 0; i < n && st == SHERD_OK; i++) {
        if (names[i][0] == '.') {
            w->skipped[WALK_HIDDEN]++;
            continue;
        }
        const char *slash = text_ends(folder, "/") ? "" : "/";
        char *path = mem_printf("%s%s%s", folder, slash, names[i]);
        st = path ? walk_entry(w, path, depth) : SHERD_ENOMEM;
        mem_free(path);
    }
    file_list_free(names, n);
    return st;
}

/* PREFIX and PREFIX.idx stand for PREFIX.bin. */
static int add_megatron(struct walk *w, const char *index)
{
    char *path = megatron_tokens(index);
    int st = path ? add_file(w, path, 0) : SHERD_ENOMEM;
    mem_free(path);
    return st;
}

int walk_path(struct walk *w, const char *path)
{
    struct stat info;
    int there = stat(path, &info) == 0, why = there ? 0 : errno;
    if ((!there || text_ends(path, ".idx")) &&
        (w->format == SHERD_DATA_AUTO || w->format == SHERD_DATA_MEGATRON)) {
        char *index = megatron_index(path);
        int st = index ? add_megatron(w, index) : SHERD_OK;
        mem_free(index);
        if (index)
            return st;
    }
    if (why != 0 && why != ENOENT && why != ENOTDIR)
        return SHERD_FAIL(
            SHERD_EIO, "%s: cannot look at '%s': %s%s", w->what, path, strerror(why), file_way_out(why));
    if (!there)
        return SHERD_FAIL(SHERD_ENOTFOUND,
            "%s: %s: no such file or folder (paths count from where the program was started)%s", w->what,
            path, strpbrk(path, "*?[") ? "; patterns are not expanded: name the folder" : "");
    if (S_ISDIR(info.st_mode))
        return walk_folder(w, path, 0);
    if (S_ISREG(info.st_mode))
        return add_file(w, path, 0);
    return SHERD_FAIL(SHERD_EIO, "%s: %s: neither a file nor a folder", w->what, path);
}

/* "; passed over: 2 hidden, 1 empty", or nothing. */
static void add_skipped(const struct walk *w, struct text *line)
{
    int kinds = 0;
    for (int k = 0; k < WALK_SKIPS; k++)
        if (w->skipped[k])
            text_add(line, "%s%lld %s", kinds++ ? ", " : "; passed over: ", (long long)w->skipped[k],
                skip_text[k]);
}

void walk_report(const struct walk *w)
{
    struct text line = { 0 };
    char count[32], *out = NULL;
    add_skipped(w, &line);
    enum sherd_log_level level = line.len && w->strict && !w->quiet ? SHERD_LOG_WARN : SHERD_LOG_INFO;
    if (text_take(&line, &out) == SHERD_OK)
        log_line(level, "%s: %d file%s, %s tokens (%s)%s", w->what, w->n_files, w->n_files == 1 ? "" : "s",
            text_commas(w->count, count), w->n_files ? format_find(w->files[0].format)->name : "-",
            out ? out : "");
    mem_free(out);
}

void walk_free(struct token_file *files, int n)
{
    for (int i = 0; i < n; i++) {
        file_unmap(&files[i].map);
        mem_free(files[i].path);
    }
    mem_free(files);
}

void walk_finish(struct walk *w)
{
    walk_free(w->files, w->n_files);
}

/* The paths of the files, which they give up. */
static int take_paths(struct walk *w, char ***out)
{
    *out = mem_zalloc((size_t)w->n_files + 1, sizeof(**out));
    for (int i = 0; *out && i < w->n_files; i++) {
        (*out)[i] = w->files[i].path;
        w->files[i].path = NULL;
    }
    return *out ? SHERD_OK : SHERD_ENOMEM;
}

int tokens_texts(char ***out, int *n, const char *folder)
{
    struct text line = { 0 };
    struct walk w = { .what = "tokenize", .format = SHERD_DATA_BYTES, .texts = 1 };
    *out = NULL;
    *n = 0;
    int st = walk_folder(&w, folder, 0);
    add_skipped(&w, &line);
    const char *skipped = line.data ? line.data : "";
    if (st == SHERD_OK && w.n_files == 0)
        st = SHERD_FAIL(SHERD_ENOTFOUND, "%s: no text in it%s", folder, skipped);
    if (st != SHERD_OK)
        goto out;
    log_info("tokenize: %s: %d file%s of text%s", folder, w.n_files, w.n_files == 1 ? "" : "s", skipped);
    SHERD_TRY_OUT(take_paths(&w, out));
    *n = w.n_files;
out:
    text_finish(&line);
    walk_finish(&w);
    return st;
}
