/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Token files: finding them, telling their format, mapping them, and reading the stream they make together.
 * Files must not be truncated while they are in use.
 */
#include "data/data.h"

#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/text.h"

#define LLMC_HEADER 1024 /* bytes: 256 int32 */
#define LLMC_U16 20240520
#define LLMC_U32 20240801
#define BINARY_PROBE 8192 /* bytes looked at for a NUL */
#define MAX_DEPTH 64      /* folders in folders */

/* Files of the same family that are no token files; their first word tells. */
static const struct {
    int32_t magic;
    const char *text;
} llmc_others[] = {
    { 20240326, "a model" },
    { 20240327, "a debug state" },
    { 20240522, "an evaluation set" },
    { 20240527, "an optimizer state" },
};

struct token_file {
    char *path;
    struct file_map map;
    enum sherd_format format;
    int width;        /* bytes of a token */
    uint64_t offset;  /* of the first token in the file */
    int64_t first, n; /* place in the stream, tokens */
};

/* Why entries of folders were passed over. */
enum skip { SKIP_HIDDEN, SKIP_EMPTY, SKIP_BINARY, SKIP_NAME, SKIP_KIND, SKIPS };
static const char *const skip_text[SKIPS] = { "hidden", "empty", "binary", "not named .bin", "not a file" };

struct tokens {
    const char *what; /* borrowed during tokens_open only */
    enum sherd_format format;
    struct token_file *files;
    int n_files, cap;
    int64_t count, vocab;
    int64_t skipped[SKIPS];
};

static const char *format_name(enum sherd_format format)
{
    switch (format) {
    case SHERD_DATA_AUTO:
        return "auto";
    case SHERD_DATA_BYTES:
        return "bytes";
    case SHERD_DATA_LLMC:
        return "llmc";
    case SHERD_DATA_U16:
        return "u16";
    }
    return "?";
}

static int32_t read_i32(const uint8_t *p)
{
    return (int32_t)((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
}

static int32_t magic_of(const struct file_map *map)
{
    return map->bytes >= 4 ? read_i32(map->data) : 0;
}

static const char *other_llmc(int32_t magic)
{
    for (size_t i = 0; i < ARRAY_LEN(llmc_others); i++)
        if (llmc_others[i].magic == magic)
            return llmc_others[i].text;
    return NULL;
}

static enum sherd_format guess_format(const struct token_file *file)
{
    int32_t magic = magic_of(&file->map);
    if (magic == LLMC_U16 || magic == LLMC_U32 || other_llmc(magic))
        return SHERD_DATA_LLMC;
    return text_ends(file->path, ".bin") ? SHERD_DATA_U16 : SHERD_DATA_BYTES;
}

static int read_llmc_header(struct token_file *file)
{
    const uint8_t *data = file->map.data;
    int32_t magic = magic_of(&file->map);
    const char *other = other_llmc(magic);
    if (other)
        return SHERD_FAIL(
            SHERD_EFORMAT, "%s: byte 0: magic %d is that of %s, not of tokens", file->path, magic, other);
    if (file->map.bytes < LLMC_HEADER)
        return SHERD_FAIL(SHERD_EFORMAT, "%s: %zu bytes, but an llmc token file has a header of %d bytes",
            file->path, file->map.bytes, LLMC_HEADER);
    if (magic != LLMC_U16 && magic != LLMC_U32)
        return SHERD_FAIL(SHERD_EFORMAT,
            "%s: byte 0: magic %d, expected %d (16 bit tokens) or %d (32 bit); for bare 16 bit tokens set "
            "data.format: u16",
            file->path, magic, LLMC_U16, LLMC_U32);
    int32_t version = read_i32(data + 4), expected = magic == LLMC_U16 ? 1 : 7;
    if (version != expected)
        return SHERD_FAIL(SHERD_EFORMAT, "%s: byte 4: version %d, but only version %d of magic %d is known",
            file->path, version, expected, magic);
    int32_t n = read_i32(data + 8);
    if (n < 0)
        return SHERD_FAIL(SHERD_EFORMAT, "%s: byte 8: token count %d is negative", file->path, n);
    file->width = magic == LLMC_U16 ? 2 : 4;
    file->offset = LLMC_HEADER;
    file->n = n;
    uint64_t need = LLMC_HEADER + (uint64_t)n * (uint64_t)file->width;
    if (file->map.bytes != need)
        return SHERD_FAIL(SHERD_EFORMAT,
            "%s: byte 8: %d tokens of %d bytes make %llu bytes with the header, but the file has %zu: %s",
            file->path, n, file->width, (unsigned long long)need, file->map.bytes,
            file->map.bytes < need ? "it was cut short" : "something was appended");
    return SHERD_OK;
}

static int read_header(struct token_file *file)
{
    if (file->format == SHERD_DATA_LLMC)
        return read_llmc_header(file);
    file->width = file->format == SHERD_DATA_U16 ? 2 : 1;
    file->offset = 0;
    if (file->map.bytes % (size_t)file->width != 0)
        return SHERD_FAIL(SHERD_EFORMAT, "%s: %zu bytes is not a whole number of 16 bit tokens", file->path,
            file->map.bytes);
    file->n = (int64_t)(file->map.bytes / (size_t)file->width);
    return SHERD_OK;
}

/* All files of a set speak one language: bytes and token ids must not mix. */
static int check_mix(const struct tokens *t, const struct token_file *file)
{
    if (t->n_files == 0)
        return SHERD_OK;
    const struct token_file *head = &t->files[0];
    if ((head->format == SHERD_DATA_BYTES) == (file->format == SHERD_DATA_BYTES))
        return SHERD_OK;
    return SHERD_FAIL(SHERD_ECONFIG,
        "%s: %s looks like %s but %s like %s; say which one is meant with data.format (bytes, llmc or u16)",
        t->what, head->path, format_name(head->format), file->path, format_name(file->format));
}

/* Takes a regular file into the set; in_folder = found by walking, where the wrong kind is passed over. */
static int add_file(struct tokens *t, const char *path, int in_folder)
{
    int st = SHERD_OK;
    if (in_folder && (t->format == SHERD_DATA_LLMC || t->format == SHERD_DATA_U16) &&
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
        file.format = guess_format(&file);
    if (in_folder && file.format == SHERD_DATA_BYTES &&
        memchr(file.map.data, 0, MIN(file.map.bytes, (size_t)BINARY_PROBE))) {
        t->skipped[SKIP_BINARY]++;
        goto out;
    }
    SHERD_TRY_OUT(read_header(&file));
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

static int walk(struct tokens *t, const char *folder, int depth);

/* One entry of a folder. A link to a file counts as the file; links to folders are not followed, so that a
 * walk always ends. */
static int walk_entry(struct tokens *t, const char *path, int depth)
{
    struct stat link, target;
    if (lstat(path, &link) != 0 || stat(path, &target) != 0) {
        log_warn("%s: %s: cannot be looked at (broken link?), passed over", t->what, path);
        t->skipped[SKIP_KIND]++;
        return SHERD_OK;
    }
    if (S_ISDIR(link.st_mode))
        return walk(t, path, depth + 1);
    if (S_ISREG(target.st_mode))
        return add_file(t, path, 1);
    t->skipped[SKIP_KIND]++;
    return SHERD_OK;
}

static int walk(struct tokens *t, const char *folder, int depth)
{
    int st = SHERD_OK, n = 0;
    char **names = NULL;
    if (depth > MAX_DEPTH)
        return SHERD_FAIL(SHERD_EIO, "%s: %s: more than %d folders deep", t->what, folder, MAX_DEPTH);
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

static int add_path(struct tokens *t, const char *path)
{
    struct stat info;
    if (stat(path, &info) != 0)
        return SHERD_FAIL(SHERD_ENOTFOUND,
            "%s: %s: no such file or folder (paths count from where the program "
            "was started)",
            t->what, path);
    if (S_ISDIR(info.st_mode))
        return walk(t, path, 0);
    if (S_ISREG(info.st_mode))
        return add_file(t, path, 0);
    return SHERD_FAIL(SHERD_EIO, "%s: %s: neither a file nor a folder", t->what, path);
}

static void report(const struct tokens *t)
{
    struct text line = { 0 };
    char count[32], *out = NULL;
    int kinds = 0;
    for (int k = 0; k < SKIPS; k++)
        if (t->skipped[k])
            text_add(&line, "%s%lld %s", kinds++ ? ", " : "; passed over: ", (long long)t->skipped[k],
                skip_text[k]);
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
    if (desc->n_paths < 1) {
        st = SHERD_FAIL(SHERD_ECONFIG, "%s: no path given; name at least one file or folder", desc->what);
        goto out;
    }
    for (int i = 0; i < desc->n_paths; i++)
        SHERD_TRY_OUT(add_path(t, desc->paths[i]));
    report(t);
    if (t->count == 0) {
        st = SHERD_FAIL(SHERD_ECONFIG,
            "%s: no tokens in %s%s; check data.format and what the log says was passed over", desc->what,
            desc->paths[0], desc->n_paths > 1 ? " and the other paths" : "");
        goto out;
    }
    if (t->vocab > 0 && t->vocab < 256 && t->files[0].format == SHERD_DATA_BYTES) {
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
    mem_free(tokens);
}

int64_t tokens_count(const struct tokens *tokens)
{
    return tokens->count;
}

int tokens_files(const struct tokens *tokens)
{
    return tokens->n_files;
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

/* n tokens of one file from its token `at` on. */
static int read_file(const struct token_file *file, int64_t vocab, int64_t at, int64_t n, int32_t *out)
{
    const uint8_t *p = file->map.data + file->offset + (uint64_t)at * (uint64_t)file->width;
    int64_t limit = vocab > 0 ? vocab : (int64_t)INT32_MAX + 1;
    for (int64_t i = 0; i < n; i++, p += file->width) {
        uint32_t id = p[0];
        if (file->width >= 2)
            id |= (uint32_t)p[1] << 8;
        if (file->width == 4)
            id |= (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
        if (id >= limit)
            return SHERD_FAIL(SHERD_EFORMAT,
                "%s: byte %llu: token %u is outside the vocabulary of %lld (model.vocab); wrong data.format "
                "or "
                "another tokenizer?",
                file->path, (unsigned long long)(p - file->map.data), id, (long long)limit);
        out[i] = (int32_t)id;
    }
    return SHERD_OK;
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
