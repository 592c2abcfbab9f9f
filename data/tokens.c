/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The stream that token files make together: opening it, and reading from it. Which files they are says
 * data/walk.h. Files must not be truncated while they are in use.
 */
#include "data/data.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/sum.h"
#include "data/format.h"
#include "data/walk.h"

/* A mark is made of so many tokens in so many places, the first of them at the beginning. */
#define MARK_TOKENS 16
#define MARK_PLACES 64

struct tokens {
    struct token_file *files;
    int n_files;
    int64_t count, vocab;
    int64_t *sources; /* the token each path begins with, and the end */
};

static int check_count(const struct walk *w, const struct tokens_desc *desc)
{
    if (w->count > 0)
        return SHERD_OK;
    return SHERD_FAIL(SHERD_ECONFIG,
        "%s: no tokens in %s%s; check data.format and what the log says was passed over", desc->what,
        desc->paths[0], desc->n_paths > 1 ? " and the other paths" : "");
}

static int check_bytes(const struct walk *w)
{
    const struct token_file *head = &w->files[0];
    if (w->vocab <= 0 || w->vocab >= 256 || head->format != SHERD_DATA_BYTES)
        return SHERD_OK;
    return SHERD_FAIL(SHERD_ECONFIG, "%s: %s is read as bytes, which need model.vocab >= 256, but it is %lld",
        w->what, head->path, (long long)w->vocab);
}

/* sources[i + 1] is where path i ends in the stream. */
static int find_all(struct walk *w, const struct tokens_desc *desc, int64_t *sources)
{
    for (int i = 0; i < desc->n_paths; i++) {
        SHERD_TRY(walk_path(w, desc->paths[i]));
        sources[i + 1] = w->count;
    }
    walk_report(w);
    SHERD_TRY(check_count(w, desc));
    return check_bytes(w);
}

int tokens_open(struct tokens **out, const struct tokens_desc *desc)
{
    struct walk w = { .what = desc->what,
        .format = desc->format,
        .vocab = desc->vocab,
        .quiet = desc->quiet,
        .strict = desc->strict };
    *out = NULL;
    if (desc->n_paths < 1)
        return SHERD_FAIL(SHERD_ECONFIG, "%s: no path given; name at least one file or folder", desc->what);
    struct tokens *t = mem_zalloc(1, sizeof(*t));
    int64_t *sources = mem_zalloc((size_t)desc->n_paths + 1, sizeof(*sources));
    int st = t && sources ? find_all(&w, desc, sources) : SHERD_ENOMEM;
    if (st != SHERD_OK) {
        walk_finish(&w);
        mem_free(sources);
        mem_free(t);
        return st;
    }
    *t = (struct tokens){ w.files, w.n_files, w.count, w.vocab, sources };
    *out = t;
    return SHERD_OK;
}

void tokens_close(struct tokens *tokens)
{
    if (!tokens)
        return;
    walk_free(tokens->files, tokens->n_files);
    mem_free(tokens->sources);
    mem_free(tokens);
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
