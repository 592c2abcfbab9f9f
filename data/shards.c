/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Text files to token files. Text is cut into pieces where cutting changes nothing; threads encode a bounded
 * number of pieces at a time and they are written in their order, so the number of threads shows nowhere.
 */
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/lanes.h"
#include "base/status.h"
#include "data/data.h"
#include "data/format.h"
#include "data/tokenizer.h"
#include "data/unicode.h"

#define PIECE_BYTES ((size_t)1 << 20)
#define PIECES_PER_THREAD 4
#define SHARD_TOKENS ((int64_t)100000000)
#define SHARD_MOST ((int64_t)INT32_MAX)
#define OUT_BYTES ((size_t)1 << 20)

struct piece {
    const char *path; /* borrowed */
    const uint8_t *text;
    size_t bytes;
    uint64_t offset;      /* of text in its file */
    int first, last;      /* of its document */
    struct file_map done; /* mapped file to let go of after this piece */
    int32_t *ids;
    int n, st;
    char *error;
};

struct job {
    const struct sherd_tokenize_desc *desc;
    struct encoder *encoders; /* one for each thread */
    int threads;
    struct piece *pieces;
    int n_pieces;
    /* reading */
    char **paths; /* files, those of folders in their places */
    int n_paths, cap_paths;
    int path;            /* the next file */
    struct file_map map; /* of the file being cut */
    size_t at;
    /* writing */
    int fd, width;
    uint8_t *out;
    size_t out_bytes;
    uint64_t written; /* bytes in the file */
    int64_t in_shard, shard;
    char *part;
    json_t *files;
    struct sherd_tokenize_result *result;
};

/* Whether a character that is no space ends at s[at], or begins there. */
static int solid_before(const uint8_t *s, size_t at)
{
    size_t from = at - 1;
    int bytes;
    while (from > 0 && at - from < 4 && (s[from] & 0xc0) == 0x80)
        from--;
    return utf8_valid(s + from, at - from) == at - from &&
           unicode_class_of(utf8_get(s + from, &bytes)) != UNICODE_SPACE;
}

static int solid_at(const uint8_t *s, size_t at, size_t n)
{
    int bytes = 4;
    return utf8_valid(s + at, MIN(n - at, (size_t)4)) > 0 &&
           unicode_class_of(utf8_get(s + at, &bytes)) != UNICODE_SPACE;
}

/* Bytes of a piece that begins at s: the whole rest, or up to a place where words end on both sides. */
static size_t piece_size(const struct job *job, const uint8_t *s, size_t n)
{
    const uint8_t *line;
    int cuts = job->desc->field || tokenizer_cuts(job->desc->tokenizer);
    for (size_t at = PIECE_BYTES; cuts && at < n; at = (size_t)(line - s) + 1) {
        line = memchr(s + at, '\n', n - at);
        if (!line || line + 1 == s + n)
            break;
        size_t cut = (size_t)(line - s) + 1;
        if (job->desc->field || (solid_before(s, cut - 1) && solid_at(s, cut, n)))
            return cut;
    }
    return n;
}

/* Takes the next piece off the files; *found is 0 after the last. */
static int next_piece(struct job *job, struct piece *piece, int *found)
{
    *found = 0;
    while (job->at == job->map.bytes) {
        file_unmap(&job->map);
        job->map = (struct file_map){ 0 };
        job->at = 0;
        if (job->path == job->n_paths)
            return SHERD_OK;
        SHERD_TRY(file_map(&job->map, job->paths[job->path++]));
        job->result->bytes += job->map.bytes;
    }
    size_t left = job->map.bytes - job->at, n = piece_size(job, job->map.data + job->at, left);
    *piece = (struct piece){ .path = job->paths[job->path - 1],
        .text = job->map.data + job->at,
        .bytes = n,
        .offset = job->at,
        .first = job->at == 0,
        .last = n == left };
    job->at += n;
    if (piece->last) {
        piece->done = job->map;
        job->map = (struct file_map){ 0 };
        job->at = 0;
    }
    *found = 1;
    return SHERD_OK;
}

static int begin_document(struct encoder *e)
{
    for (int i = 0; i < e->tokenizer->n_before; i++)
        SHERD_TRY(bpe_push(&e->work, e->tokenizer->before[i]));
    return SHERD_OK;
}

/* A text that ends in the end token already gets no second one. */
static int end_document(struct encoder *e, int32_t end)
{
    for (int i = 0; i < e->tokenizer->n_after; i++)
        SHERD_TRY(bpe_push(&e->work, e->tokenizer->after[i]));
    if (end < 0 || (e->work.n > 0 && e->work.ids[e->work.n - 1] == end))
        return SHERD_OK;
    return bpe_push(&e->work, end);
}

static int encode_text(struct encoder *e, const struct piece *p, int32_t end)
{
    size_t good = e->tokenizer->plain ? p->bytes : utf8_valid(p->text, p->bytes);
    if (good < p->bytes)
        return SHERD_FAIL(SHERD_EFORMAT,
            "%s: byte %llu: 0x%02x is not UTF-8 here; convert the file first, as iconv does, or use the tokenizer of "
            "bytes",
            p->path, (unsigned long long)(p->offset + good), p->text[good]);
    if (p->first)
        SHERD_TRY(begin_document(e));
    SHERD_TRY(encoder_add(e, p->text, p->bytes));
    return p->last ? end_document(e, end) : SHERD_OK;
}

/* Of a place in a piece, counted from 1 in its file, of which all up to there is mapped. */
static int64_t line_number(const struct piece *p, const uint8_t *at)
{
    int64_t n = 1;
    const uint8_t *s = p->text - p->offset;
    while ((s = memchr(s, '\n', (size_t)(at - s))) != NULL) {
        n++;
        s++;
    }
    return n;
}

/* Lines are counted where there is something to complain of. */
static int parse_line(json_t **out, const struct piece *p, const uint8_t *line, size_t n)
{
    int st = json_parse(out, (const char *)line, n, p->path);
    return st == SHERD_EFORMAT ? json_parse_line(out, (const char *)line, n, p->path, line_number(p, line))
                               : st;
}

static int encode_line(
    struct encoder *e, const struct piece *p, const uint8_t *line, size_t n, const char *field, int32_t end)
{
    json_t *object;
    SHERD_TRY(parse_line(&object, p, line, n));
    const json_t *text = json_object_get(object, field);
    int st = SHERD_OK;
    if (!json_is_string(text))
        st = SHERD_FAIL(SHERD_EFORMAT, "%s:%lld: the object has no text '%s'", p->path,
            (long long)line_number(p, line), field);
    if (st == SHERD_OK && json_string_length(text) > 0) {
        st = begin_document(e);
        if (st == SHERD_OK)
            st = encoder_add(e, (const uint8_t *)json_string_value(text), json_string_length(text));
        if (st == SHERD_OK)
            st = end_document(e, end);
    }
    json_decref(object);
    return st;
}

static int encode_lines(struct encoder *e, const struct piece *p, const char *field, int32_t end)
{
    for (size_t at = 0; at < p->bytes;) {
        const uint8_t *line = p->text + at, *stop = memchr(line, '\n', p->bytes - at);
        size_t n = stop ? (size_t)(stop - line) : p->bytes - at, blank = 0;
        while (blank < n && (line[blank] == ' ' || line[blank] == '\r' || line[blank] == '\t'))
            blank++;
        if (blank < n)
            SHERD_TRY(encode_line(e, p, line, n, field, end));
        at += n + 1;
    }
    return SHERD_OK;
}

static void encode_piece(const struct job *job, struct encoder *e, struct piece *p)
{
    const struct sherd_tokenize_desc *d = job->desc;
    p->st = d->field ? encode_lines(e, p, d->field, d->end) : encode_text(e, p, d->end);
    if (p->st != SHERD_OK)
        p->error = mem_strdup(sherd_error());
    p->ids = e->work.ids;
    p->n = e->work.n;
    e->work.ids = NULL;
    e->work.n = e->work.cap = 0;
}

static void encode_task(void *ctx, int64_t i, int lane)
{
    struct job *job = ctx;
    encode_piece(job, &job->encoders[lane], &job->pieces[i]);
}

static int flush(struct job *job)
{
    SHERD_TRY(file_pwrite(job->fd, job->out, job->out_bytes, job->written, job->part));
    job->written += job->out_bytes;
    job->out_bytes = 0;
    return SHERD_OK;
}

static int open_shard(struct job *job)
{
    job->part = mem_printf("%s/" SHARD_NAME "%06d" SHARD_PART, job->desc->to, job->result->files + 1);
    if (!job->part)
        return SHERD_ENOMEM;
    SHERD_TRY(file_open_new(&job->fd, job->part));
    job->written = LLMC_HEADER;
    job->in_shard = 0;
    return SHERD_OK;
}

/* The name that readers know comes last. */
static int close_shard(struct job *job)
{
    uint8_t head[LLMC_HEADER];
    int st = SHERD_OK;
    if (job->fd < 0)
        return SHERD_OK;
    format_llmc_header(head, job->width, job->in_shard);
    SHERD_TRY(flush(job));
    SHERD_TRY(file_pwrite(job->fd, head, sizeof(head), 0, job->part));
    SHERD_TRY(file_sync(job->fd, job->part));
    int fd = job->fd;
    job->fd = -1;
    SHERD_TRY(file_close(fd, job->part));
    char *name = mem_printf(SHARD_NAME "%06d.bin", ++job->result->files);
    char *path = name ? mem_printf("%s/%s", job->desc->to, name) : NULL;
    st = path ? file_rename(job->part, path) : SHERD_ENOMEM;
    if (st == SHERD_OK && json_array_append_new(job->files,
                              json_pack("{s:s,s:I}", "name", name, "tokens", (json_int_t)job->in_shard)))
        st = MEM_OUT("the list of files");
    mem_free(name);
    mem_free(path);
    mem_free(job->part);
    job->part = NULL;
    return st;
}

static int write_ids(struct job *job, const int32_t *ids, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (job->fd < 0)
            SHERD_TRY(open_shard(job));
        if (job->out_bytes + 4 > OUT_BYTES)
            SHERD_TRY(flush(job));
        for (int k = 0; k < job->width; k++)
            job->out[job->out_bytes++] = (uint8_t)((uint32_t)ids[i] >> 8 * k);
        job->result->documents += ids[i] == job->desc->end;
        if (++job->in_shard == job->shard)
            SHERD_TRY(close_shard(job));
    }
    job->result->tokens += n;
    return SHERD_OK;
}

/* Writes what was encoded, in order; the first piece that failed speaks. */
static int write_pieces(struct job *job)
{
    int st = SHERD_OK;
    for (int i = 0; i < job->n_pieces; i++) {
        struct piece *p = &job->pieces[i];
        if (st == SHERD_OK && p->st != SHERD_OK)
            st = p->error ? status_adopt(p->st, p->error) : p->st;
        if (st == SHERD_OK)
            st = write_ids(job, p->ids, p->n);
        mem_free(p->ids);
        mem_free(p->error);
        file_unmap(&p->done);
    }
    job->n_pieces = 0;
    return st;
}

static int convert(struct job *job)
{
    int found = 1, st = SHERD_OK;
    while (found && st == SHERD_OK) {
        while (st == SHERD_OK && found && job->n_pieces < job->threads * PIECES_PER_THREAD) {
            st = next_piece(job, &job->pieces[job->n_pieces], &found);
            job->n_pieces += st == SHERD_OK && found;
        }
        if (st == SHERD_OK)
            lanes_run(job->threads, job->n_pieces, encode_task, job);
        else
            for (int i = 0; i < job->n_pieces; i++)
                job->pieces[i].st = st;
        SHERD_KEEP(st, write_pieces(job));
    }
    SHERD_TRY(st);
    if (job->result->tokens == 0)
        return SHERD_FAIL(SHERD_ENOTFOUND, "%s%s: no text in it", job->desc->paths[0],
            job->desc->n_paths > 1 ? " and the other files" : "");
    return close_shard(job);
}

/* The tokenizer goes along, so that what is trained on the tokens can be asked in text. */
static int copy_tokenizer(const struct job *job)
{
    char *text = NULL, *path = NULL;
    size_t bytes;
    if (!job->desc->tokenizer->file)
        return SHERD_OK;
    int st = file_read_text(&text, &bytes, job->desc->tokenizer->file, TOKENIZER_MOST);
    if (st == SHERD_OK) {
        path = mem_printf("%s/" TOKENIZER_JSON, job->desc->to);
        st = path ? file_write_atomic(path, text, bytes) : SHERD_ENOMEM;
    }
    mem_free(text);
    mem_free(path);
    return st;
}

static int write_list(struct job *job)
{
    char *text = NULL, *line = NULL, *path = NULL;
    const struct sherd_tokenize_result *r = job->result;
    int st = SHERD_OK;
    json_t *list = json_pack("{s:s,s:i,s:s,s:I,s:i,s:I,s:I,s:O}", "format", SET_FORMAT, "version",
        SET_VERSION, "tokenizer", job->desc->tokenizer->plain ? TOKENIZER_BYTES : TOKENIZER_JSON, "vocab",
        (json_int_t)job->desc->tokenizer->bpe.vocab, "end", (int)job->desc->end, "documents",
        (json_int_t)r->documents, "tokens", (json_int_t)r->tokens, "files", job->files);
    if (!list)
        return MEM_OUT("the list of files");
    SHERD_TRY_OUT(json_print(&text, list, 1));
    line = mem_printf("%s\n", text);
    path = mem_printf("%s/" SET_JSON, job->desc->to);
    st = line && path ? file_write_atomic(path, line, strlen(line)) : SHERD_ENOMEM;
out:
    json_decref(list);
    mem_free(text);
    mem_free(line);
    mem_free(path);
    return st;
}

static int make_folder(const char *path, int *made)
{
    char **names;
    int n;
    *made = !file_exists(path);
    if (*made)
        return file_mkdirs(path);
    SHERD_TRY(file_list(&names, &n, path));
    file_list_free(names, n);
    if (n > 0)
        return SHERD_FAIL(SHERD_EEXISTS, "%s: the folder is not empty; name a new one", path);
    return SHERD_OK;
}

static int check(const struct sherd_tokenize_desc *d)
{
    if (!d->paths || d->n_paths < 1 || !d->tokenizer || !d->to || d->shard < 0 || d->shard > SHARD_MOST ||
        d->threads < 0)
        return SHERD_FAIL(SHERD_EINVAL,
            "tokenize: a tokenizer, files and a folder are needed, shards up to %lld tokens",
            (long long)SHARD_MOST);
    if (d->end >= d->tokenizer->bpe.vocab)
        return SHERD_FAIL(
            SHERD_EINVAL, "tokenize: the vocabulary has no token %d to end documents with", d->end);
    for (int i = 0; i < d->n_paths; i++)
        if (!file_exists(d->paths[i]))
            return SHERD_FAIL(SHERD_ENOTFOUND, "%s: no such file or folder", d->paths[i]);
    return SHERD_OK;
}

static int add_file(struct job *job, const char *path)
{
    char *own = mem_strdup(path);
    int st =
        own ? mem_grow(&job->paths, &job->cap_paths, job->n_paths + 1, sizeof(*job->paths)) : SHERD_ENOMEM;
    if (st == SHERD_OK)
        job->paths[job->n_paths++] = own;
    else
        mem_free(own);
    return st;
}

/* Before anything is written: the folder to make may lie in one that is read. */
static int list_files(struct job *job)
{
    for (int i = 0; i < job->desc->n_paths; i++) {
        const char *path = job->desc->paths[i];
        char **names = NULL;
        int n = 0, st = SHERD_OK;
        if (!file_is_dir(path)) {
            SHERD_TRY(add_file(job, path));
            continue;
        }
        SHERD_TRY(tokens_texts(&names, &n, path));
        for (int k = 0; k < n && st == SHERD_OK; k++)
            st = add_file(job, names[k]);
        file_list_free(names, n);
        SHERD_TRY(st);
    }
    return SHERD_OK;
}

static int start(struct job *job)
{
    job->threads = MIN(job->desc->threads ? job->desc->threads : lanes_cores(), LANES_MOST);
    job->shard = job->desc->shard ? job->desc->shard : SHARD_TOKENS;
    job->width = job->desc->tokenizer->bpe.vocab > 65536 ? 4 : 2;
    job->encoders = mem_zalloc((size_t)job->threads, sizeof(*job->encoders));
    job->pieces = mem_zalloc((size_t)job->threads * PIECES_PER_THREAD, sizeof(*job->pieces));
    job->out = mem_zalloc(OUT_BYTES, 1);
    job->files = json_array();
    if (!job->encoders || !job->pieces || !job->out)
        return SHERD_ENOMEM;
    if (!job->files)
        return MEM_OUT("the list of files");
    for (int i = 0; i < job->threads; i++)
        job->encoders[i].tokenizer = job->desc->tokenizer;
    return SHERD_OK;
}

static void finish(struct job *job)
{
    for (int i = 0; job->encoders && i < job->threads; i++)
        encoder_finish(&job->encoders[i]);
    file_close(job->fd, job->part ? job->part : "");
    file_unmap(&job->map);
    file_list_free(job->paths, job->n_paths);
    mem_free(job->encoders);
    mem_free(job->pieces);
    mem_free(job->out);
    mem_free(job->part);
    json_decref(job->files);
}

/* What a failed run leaves is taken away, in a folder that was empty before. */
static void clear(const char *path, int made)
{
    char **names, *file;
    int n;
    if (made) {
        file_remove_tree(path);
        return;
    }
    if (file_list(&names, &n, path) != SHERD_OK)
        return;
    for (int i = 0; i < n; i++) {
        file = mem_printf("%s/%s", path, names[i]);
        if (file)
            file_remove_tree(file);
        mem_free(file);
    }
    file_list_free(names, n);
}

int sherd_tokenize(const struct sherd_tokenize_desc *desc, struct sherd_tokenize_result *out)
{
    struct job job = { .desc = desc, .fd = -1, .result = out };
    double begin = clock_seconds();
    int made = 0, st;
    if (!desc || !out)
        return SHERD_FAIL(SHERD_EINVAL, "sherd_tokenize: desc or out is NULL");
    *out = (struct sherd_tokenize_result){ 0 };
    SHERD_TRY(check(desc));
    st = list_files(&job);
    if (st == SHERD_OK)
        st = make_folder(desc->to, &made);
    if (st != SHERD_OK) {
        finish(&job);
        return st;
    }
    st = start(&job);
    if (st == SHERD_OK)
        st = convert(&job);
    if (st == SHERD_OK)
        st = copy_tokenizer(&job);
    if (st == SHERD_OK)
        st = write_list(&job);
    finish(&job);
    if (st != SHERD_OK) {
        char *text = mem_strdup(sherd_error());
        clear(desc->to, made);
        st = text ? status_adopt(st, text) : st;
        mem_free(text);
    }
    if (st == SHERD_EIO)
        st = status_context(
            st, "%s: not made (of %d bytes a token), and nothing is left of it", desc->to, job.width);
    out->seconds = clock_seconds() - begin;
    return st;
}
