/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Token files: finding them, telling their format, mapping them, and reading the stream they make together.
 * Files must not be truncated while they are in use.
 */
#include "data/data.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/sum.h"
#include "base/text.h"
#include "data/format.h"

#define MAX_DEPTH 64 /* folders in folders */

/* A mark is made of so many tokens in so many places, the first of them at the beginning. */
#define MARK_TOKENS 16
#define MARK_PLACES 64

/* Why entries of folders were passed over. */
enum skip { SKIP_HIDDEN, SKIP_EMPTY, SKIP_BINARY, SKIP_NAME, SKIP_KIND, SKIP_SET, SKIPS };
static const char *const skip_text[SKIPS] = { "hidden", "empty", "binary", "not named .bin", "not a file",
    "folder of token files" };

struct tokens {
    const char *what; /* borrowed during tokens_open only */
    enum sherd_format format;
    struct token_file *files;
    int n_files, cap;
    int64_t count, vocab;
    int quiet, told_json;
    int texts;        /* files are listed, to be tokenized, and not trained on as they are */
    int64_t *sources; /* [n_sources + 1]: the token each path begins with, and the end */
    int n_sources;
    int64_t skipped[SKIPS];
};

/* All files of a set speak one language: bytes and token ids must not mix. */
static int check_mix(const struct tokens *t, const struct token_file *file)
{
    if (t->n_files == 0)
        return SHERD_OK;
    const struct token_file *head = &t->files[0];
    if ((head->format == SHERD_DATA_BYTES) == (file->format == SHERD_DATA_BYTES))
        return SHERD_OK;
    return SHERD_FAIL(SHERD_ECONFIG,
        "%s: %s looks like %s but %s like %s; say which one is meant with data.format (bytes, llmc, u16 or megatron)",
        t->what, head->path, format_name(head->format), file->path, format_name(file->format));
}

/* Text by default: what is no text is passed over in a folder, and refused where it is named, unless bytes
 * are asked for. */
static int check_text(struct tokens *t, const struct token_file *file, int in_folder, int *pass)
{
    const char *stranger = format_no_text(file);
    *pass = in_folder && stranger;
    if (*pass)
        t->skipped[SKIP_BINARY]++;
    else if (stranger && t->format == SHERD_DATA_AUTO)
        return SHERD_FAIL(SHERD_ECONFIG,
            "%s: %s is %s: neither text nor tokens that are known; write its texts as lines of JSON for `sherd "
            "tokenize --field NAME`, or set data.format: bytes to train on its bytes as they are",
            t->what, file->path, stranger);
    if (!stranger && !t->quiet && !t->texts && !t->told_json &&
        (text_ends(file->path, ".jsonl") || text_ends(file->path, ".ndjson"))) {
        t->told_json = 1;
        log_warn(
            "%s: %s holds lines of JSON, which are trained on as they stand, with braces and names; `sherd "
            "tokenize --field NAME` takes the texts alone",
            t->what, file->path);
    }
    return SHERD_OK;
}

/* Takes a regular file into the set; in_folder = found by walking, where the wrong kind is passed over. */
static int add_file(struct tokens *t, const char *path, int in_folder)
{
    int st = SHERD_OK, pass = 0;
    if (in_folder && t->format != SHERD_DATA_AUTO && t->format != SHERD_DATA_BYTES &&
        !text_ends(path, ".bin")) {
        t->skipped[SKIP_NAME]++;
        return SHERD_OK;
    }
    struct token_file file = { .format = t->format };
    SHERD_TRY(file_map(&file.map, path));
    if (file.map.bytes == 0 && (in_folder || t->format != SHERD_DATA_LLMC)) {
        t->skipped[SKIP_EMPTY]++;
        goto out;
    }
    file.path = mem_strdup(path);
    if (!file.path) {
        st = SHERD_ENOMEM;
        goto out;
    }
    if (file.format == SHERD_DATA_AUTO)
        file.format = format_guess(&file);
    if (file.format == SHERD_DATA_BYTES)
        SHERD_TRY_OUT(check_text(t, &file, in_folder, &pass));
    if (pass)
        goto out;
    SHERD_TRY_OUT(format_read(&file));
    SHERD_TRY_OUT(check_mix(t, &file));
    SHERD_TRY_OUT(mem_grow(&t->files, &t->cap, t->n_files + 1, sizeof(*t->files)));
    file.first = t->count;
    t->count += file.n;
    t->files[t->n_files++] = file;
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
static int add_set(struct tokens *t, const char *folder, const char *list)
{
    struct token_set set;
    int st = SHERD_OK;
    SHERD_TRY(read_set(&set, list));
    if (t->vocab > 0 && set.vocab > t->vocab)
        st = SHERD_FAIL(SHERD_ECONFIG,
            "%s: %s: these tokens are of a vocabulary of %lld, but model.vocab is %lld; set it to %lld or more",
            t->what, list, (long long)set.vocab, (long long)t->vocab, (long long)set.vocab);
    for (int i = 0; i < set.n && st == SHERD_OK; i++) {
        char *path = mem_printf("%s/%s", folder, set.names[i]);
        int64_t before = t->count;
        st = path ? add_file(t, path, 0) : SHERD_ENOMEM;
        if (st == SHERD_OK && t->count - before != set.counts[i])
            st = SHERD_FAIL(SHERD_EFORMAT, "%s: %lld tokens, but %s says %lld", path,
                (long long)(t->count - before), list, (long long)set.counts[i]);
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
static int pass_set(struct tokens *t, const char *folder, const char *list, int depth, int *yes)
{
    SHERD_TRY(is_set(list, yes));
    if (!*yes)
        return SHERD_OK;
    if (depth == 0 && t->texts)
        return SHERD_FAIL(SHERD_ECONFIG, "%s: %s holds token files, which are made already; name the text",
            t->what, folder);
    if (depth == 0)
        return SHERD_FAIL(SHERD_ECONFIG,
            "%s: %s holds token files, but data.format is bytes; set it to auto, or name the text itself",
            t->what, folder);
    if (!t->quiet)
        log_warn("%s: %s holds token files%s: passed over", t->what, folder,
            t->texts ? "" : ", and data.format is bytes");
    t->skipped[SKIP_SET]++;
    return SHERD_OK;
}

/* What `sherd tokenize` has not ended is not all of the text, though the files before are whole. */
static int refuse_part(const struct tokens *t, const char *path)
{
    const char *slash = strrchr(path, '/');
    if (t->format == SHERD_DATA_BYTES || !text_starts(slash ? slash + 1 : path, SHARD_NAME) ||
        !text_ends(path, SHARD_PART))
        return SHERD_OK;
    return SHERD_FAIL(SHERD_ECONFIG,
        "%s: %s: `sherd tokenize` is at work here, or was stopped; wait for it, or take the folder away and run it "
        "again",
        t->what, path);
}

/* A data set as the library `datasets` saves it: its rows are binary, and of the text beside them nothing is
 * to be learnt. */
static int refuse_dataset(const struct tokens *t, const char *folder)
{
    if (t->format != SHERD_DATA_AUTO && t->format != SHERD_DATA_BYTES)
        return SHERD_OK;
    if (!file_has(folder, "state.json") || !file_has(folder, "dataset_info.json"))
        return SHERD_OK;
    return SHERD_FAIL(SHERD_ECONFIG,
        "%s: %s is a data set as `datasets` saves it; write its texts as lines of JSON, "
        "load_from_disk(...).to_json(\"texts.jsonl\"), for `sherd tokenize --field NAME`",
        t->what, folder);
}

static int walk(struct tokens *t, const char *folder, int depth);

/* One entry of a folder. A link to a file counts as the file; links to folders are not followed, so that a
 * walk always ends. */
static int walk_entry(struct tokens *t, const char *path, int depth)
{
    struct stat link, target;
    if (lstat(path, &link) != 0 || stat(path, &target) != 0) {
        if (!t->quiet)
            log_warn("%s: %s: cannot be looked at (broken link?), passed over", t->what, path);
        t->skipped[SKIP_KIND]++;
        return SHERD_OK;
    }
    if (S_ISDIR(link.st_mode))
        return walk(t, path, depth + 1);
    if (S_ISREG(target.st_mode)) {
        SHERD_TRY(refuse_part(t, path));
        return add_file(t, path, 1);
    }
    t->skipped[SKIP_KIND]++;
    return SHERD_OK;
}

static int walk(struct tokens *t, const char *folder, int depth)
{
    int st = SHERD_OK, n = 0;
    char **names = NULL;
    if (depth > MAX_DEPTH)
        return SHERD_FAIL(SHERD_EIO, "%s: %s: more than %d folders deep", t->what, folder, MAX_DEPTH);
    char *list = mem_printf("%s/" SET_JSON, folder);
    if (!list)
        return SHERD_ENOMEM;
    int done = (t->format == SHERD_DATA_AUTO || t->format == SHERD_DATA_LLMC) && file_exists(list);
    if (done)
        st = add_set(t, folder, list);
    else if (t->format == SHERD_DATA_BYTES && file_exists(list))
        st = pass_set(t, folder, list, depth, &done);
    mem_free(list);
    if (done || st != SHERD_OK)
        return st;
    SHERD_TRY(refuse_dataset(t, folder));
    SHERD_TRY(file_list(&names, &n, folder));
    for (int i = 0; i < n && st == SHERD_OK; i++) {
        if (names[i][0] == '.') {
            t->skipped[SKIP_HIDDEN]++;
            continue;
        }
        const char *slash = text_ends(folder, "/") ? "" : "/";
        char *path = mem_printf("%s%s%s", folder, slash, names[i]);
        st = path ? walk_entry(t, path, depth) : SHERD_ENOMEM;
        mem_free(path);
    }
    file_list_free(names, n);
    return st;
}

/* PREFIX and PREFIX.idx stand for PREFIX.bin. */
static int add_megatron(struct tokens *t, const char *index)
{
    char *path = megatron_tokens(index);
    int st = path ? add_file(t, path, 0) : SHERD_ENOMEM;
    mem_free(path);
    return st;
}

static int add_path(struct tokens *t, const char *path)
{
    struct stat info;
    int there = stat(path, &info) == 0;
    if ((!there || text_ends(path, ".idx")) &&
        (t->format == SHERD_DATA_AUTO || t->format == SHERD_DATA_MEGATRON)) {
        char *index = megatron_index(path);
        int st = index ? add_megatron(t, index) : SHERD_OK;
        mem_free(index);
        if (index)
            return st;
    }
    if (!there)
        return SHERD_FAIL(SHERD_ENOTFOUND,
            "%s: %s: no such file or folder (paths count from where the program was started)%s", t->what,
            path, strpbrk(path, "*?[") ? "; patterns are not expanded: name the folder" : "");
    if (S_ISDIR(info.st_mode))
        return walk(t, path, 0);
    if (S_ISREG(info.st_mode))
        return add_file(t, path, 0);
    return SHERD_FAIL(SHERD_EIO, "%s: %s: neither a file nor a folder", t->what, path);
}

/* "; passed over: 2 hidden, 1 empty", or nothing. */
static void add_skipped(const struct tokens *t, struct text *line)
{
    int kinds = 0;
    for (int k = 0; k < SKIPS; k++)
        if (t->skipped[k])
            text_add(line, "%s%lld %s", kinds++ ? ", " : "; passed over: ", (long long)t->skipped[k],
                skip_text[k]);
}

static void report(const struct tokens *t)
{
    struct text line = { 0 };
    char count[32], *out = NULL;
    add_skipped(t, &line);
    if (text_take(&line, &out) == SHERD_OK)
        log_info("%s: %d file%s, %s tokens (%s)%s", t->what, t->n_files, t->n_files == 1 ? "" : "s",
            text_commas(t->count, count), t->n_files ? format_name(t->files[0].format) : "-", out ? out : "");
    mem_free(out);
}

int tokens_open(struct tokens **out, const struct tokens_desc *desc)
{
    int st = SHERD_OK;
    *out = NULL;
    struct tokens *t = mem_zalloc(1, sizeof(*t));
    if (!t)
        return SHERD_ENOMEM;
    t->what = desc->what;
    t->format = desc->format;
    t->vocab = desc->vocab;
    t->quiet = desc->quiet;
    if (desc->n_paths < 1) {
        st = SHERD_FAIL(SHERD_ECONFIG, "%s: no path given; name at least one file or folder", desc->what);
        goto out;
    }
    t->sources = mem_zalloc((size_t)desc->n_paths + 1, sizeof(*t->sources));
    if (!t->sources) {
        st = SHERD_ENOMEM;
        goto out;
    }
    for (int i = 0; i < desc->n_paths; i++) {
        SHERD_TRY_OUT(add_path(t, desc->paths[i]));
        t->sources[++t->n_sources] = t->count;
    }
    report(t);
    if (t->count == 0) {
        st = SHERD_FAIL(SHERD_ECONFIG,
            "%s: no tokens in %s%s; check data.format and what the log says was passed over", desc->what,
            desc->paths[0], desc->n_paths > 1 ? " and the other paths" : "");
        goto out;
    }
    if (t->vocab > 0 && t->vocab < 256 && tokens_are_bytes(t)) {
        st = SHERD_FAIL(SHERD_ECONFIG,
            "%s: %s is read as bytes, which need model.vocab >= 256, but it is %lld", desc->what,
            t->files[0].path, (long long)t->vocab);
        goto out;
    }
    t->what = NULL;
    *out = t;
    return SHERD_OK;
out:
    tokens_close(t);
    return st;
}

void tokens_close(struct tokens *tokens)
{
    if (!tokens)
        return;
    for (int i = 0; i < tokens->n_files; i++) {
        file_unmap(&tokens->files[i].map);
        mem_free(tokens->files[i].path);
    }
    mem_free(tokens->files);
    mem_free(tokens->sources);
    mem_free(tokens);
}

/* The paths of the files, which they give up. */
static int take_paths(struct tokens *t, char ***out)
{
    *out = mem_zalloc((size_t)t->n_files + 1, sizeof(**out));
    for (int i = 0; *out && i < t->n_files; i++) {
        (*out)[i] = t->files[i].path;
        t->files[i].path = NULL;
    }
    return *out ? SHERD_OK : SHERD_ENOMEM;
}

int tokens_texts(char ***out, int *n, const char *folder)
{
    struct text line = { 0 };
    struct tokens *t = mem_zalloc(1, sizeof(*t));
    *out = NULL;
    *n = 0;
    if (!t)
        return SHERD_ENOMEM;
    t->what = "tokenize";
    t->format = SHERD_DATA_BYTES;
    t->texts = 1;
    int st = walk(t, folder, 0);
    add_skipped(t, &line);
    const char *skipped = line.data ? line.data : "";
    if (st == SHERD_OK && t->n_files == 0)
        st = SHERD_FAIL(SHERD_ENOTFOUND, "%s: no text in it%s", folder, skipped);
    if (st != SHERD_OK)
        goto out;
    log_info("tokenize: %s: %d file%s of text%s", folder, t->n_files, t->n_files == 1 ? "" : "s", skipped);
    SHERD_TRY_OUT(take_paths(t, out));
    *n = t->n_files;
out:
    text_finish(&line);
    tokens_close(t);
    return st;
}

int64_t tokens_count(const struct tokens *tokens)
{
    return tokens->count;
}

int tokens_are_bytes(const struct tokens *tokens)
{
    return tokens->files[0].format == SHERD_DATA_BYTES;
}

struct place {
    dev_t device;
    ino_t number;
};

static int by_place(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    if (x->device != y->device)
        return x->device < y->device ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

/* Where a file lies; one that is gone since lies nowhere. */
static struct place place_of(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 ? (struct place){ info.st_dev, info.st_ino } : (struct place){ 0 };
}

int tokens_shared(const struct tokens *a, const struct tokens *b, const char **path)
{
    struct place *places = mem_zalloc((size_t)a->n_files, sizeof(*places));
    *path = NULL;
    if (!places)
        return SHERD_ENOMEM;
    for (int i = 0; i < a->n_files; i++)
        places[i] = place_of(a->files[i].path);
    qsort(places, (size_t)a->n_files, sizeof(*places), by_place);
    for (int i = 0; i < b->n_files && !*path; i++) {
        struct place place = place_of(b->files[i].path);
        if (place.number && bsearch(&place, places, (size_t)a->n_files, sizeof(*places), by_place))
            *path = b->files[i].path;
    }
    mem_free(places);
    return SHERD_OK;
}

void tokens_source(const struct tokens *tokens, int i, int64_t *first, int64_t *n)
{
    *first = tokens->sources[i];
    *n = tokens->sources[i + 1] - tokens->sources[i];
}

int tokens_windows(const struct tokens *tokens, int64_t seq, int64_t *out)
{
    *out = 0;
    if (seq < 1)
        return SHERD_FAIL(SHERD_ECONFIG, "batch.seq: %lld, must be at least 1", (long long)seq);
    if (tokens->count < seq + 1)
        return SHERD_FAIL(SHERD_ECONFIG,
            "%s%s: %lld tokens are too few for one sample of batch.seq + 1 = %lld; give more data or a "
            "smaller "
            "batch.seq",
            tokens->files[0].path, tokens->n_files > 1 ? " and the files after it" : "",
            (long long)tokens->count, (long long)seq + 1);
    *out = (tokens->count - 1) / seq;
    return SHERD_OK;
}

/* Index of the file that holds token `at` of the stream. Empty token files hold none. */
static int find_file(const struct tokens *t, int64_t at)
{
    int low = 0, high = t->n_files - 1;
    while (low < high) {
        int mid = low + (high - low + 1) / 2;
        if (t->files[mid].first <= at)
            low = mid;
        else
            high = mid - 1;
    }
    return low;
}

/* One token, as far as a vocabulary may reach; -1 for what no id can be. */
static int64_t token_at(const struct token_file *file, const uint8_t *p)
{
    uint64_t id = 0;
    int bits = 8 * file->width;
    for (int k = 0; k < file->width; k++)
        id |= (uint64_t)p[k] << 8 * k;
    if ((file->is_signed && id >> (bits - 1)) || id > INT32_MAX)
        return -1;
    return (int64_t)id;
}

/* Where token `at` of a file stands. */
static const uint8_t *token_place(const struct token_file *file, int64_t at)
{
    return file->map.data + file->offset + (uint64_t)at * (uint64_t)file->width;
}

/* The value as it stands in the file, for a message. */
static long long raw_token(const struct token_file *file, const uint8_t *p)
{
    uint64_t id = 0;
    for (int k = 0; k < file->width; k++)
        id |= (uint64_t)p[k] << 8 * k;
    if (file->is_signed && file->width < 8 && id >> (8 * file->width - 1))
        return (long long)id - (1LL << 8 * file->width);
    return (long long)id;
}

/* n tokens of one file from its token `at` on. */
static int read_file(const struct token_file *file, int64_t vocab, int64_t at, int64_t n, int32_t *out)
{
    const uint8_t *p = token_place(file, at);
    int64_t limit = vocab > 0 ? vocab : (int64_t)INT32_MAX + 1;
    for (int64_t i = 0; i < n; i++, p += file->width) {
        int64_t id = token_at(file, p);
        if (id < 0 || id >= limit)
            return SHERD_FAIL(SHERD_EFORMAT,
                "%s: byte %llu: token %lld is outside the vocabulary of %lld (model.vocab); wrong data.format or another "
                "tokenizer?",
                file->path, (unsigned long long)(p - file->map.data), raw_token(file, p), (long long)limit);
        out[i] = (int32_t)id;
    }
    return SHERD_OK;
}

struct tokens_mark tokens_mark(const struct tokens *tokens)
{
    int64_t some[MARK_TOKENS];
    uint64_t sum = 0;
    struct tokens_mark mark = { .count = tokens->count };
    for (int k = 0; k < MARK_PLACES; k++) {
        int64_t at = tokens->count / MARK_PLACES * k, n = MIN(tokens->count - at, MARK_TOKENS);
        for (int64_t i = 0; i < n; i++) {
            const struct token_file *file = &tokens->files[find_file(tokens, at + i)];
            some[i] = token_at(file, token_place(file, at + i - file->first));
        }
        sum = sum_hash64(some, (size_t)n * sizeof(*some), sum);
    }
    snprintf(mark.sum, sizeof(mark.sum), "%016llx", (unsigned long long)sum);
    return mark;
}

int tokens_read(const struct tokens *tokens, int64_t first, int64_t n, int32_t *out)
{
    if (first < 0 || n < 0 || n > tokens->count || first > tokens->count - n)
        return SHERD_BUG(
            "tokens [%lld, +%lld) of %lld", (long long)first, (long long)n, (long long)tokens->count);
    for (int f = n > 0 ? find_file(tokens, first) : 0; n > 0; f++) {
        const struct token_file *file = &tokens->files[f];
        int64_t at = first - file->first, part = MIN(n, file->n - at);
        SHERD_TRY(read_file(file, tokens->vocab, at, part, out));
        out += part;
        first += part;
        n -= part;
    }
    return SHERD_OK;
}
