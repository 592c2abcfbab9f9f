/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Encoding: added tokens are found first, what lies between them is brought into its form, cut into words,
 * and each word merged. Also the public functions around it.
 */
#include "data/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/status.h"
#include "data/unicode.h"

static int start(struct sherd_tokenizer **out)
{
    *out = mem_zalloc(1, sizeof(**out));
    if (!*out)
        return SHERD_ENOMEM;
    (*out)->end = -1;
    return SHERD_OK;
}

static int longer_first(const void *a, const void *b, void *ctx)
{
    const struct added_token *added = ctx, *x = &added[*(const int *)a], *y = &added[*(const int *)b];
    int cx = (unsigned char)x->text[0], cy = (unsigned char)y->text[0];
    if (x->normalized != y->normalized)
        return x->normalized - y->normalized;
    if (cx != cy)
        return cx - cy;
    if (x->bytes != y->bytes)
        return x->bytes > y->bytes ? -1 : 1;
    return x < y ? -1 : x > y;
}

/* Orders added tokens by pass, first byte and size, and notes where each byte's begin. */
static int index_added(struct sherd_tokenizer *t)
{
    t->order = arena_zalloc(&t->arena, (size_t)t->n_added, sizeof(*t->order));
    if (!t->order)
        return SHERD_ENOMEM;
    for (int i = 0; i < t->n_added; i++)
        t->order[i] = i;
    qsort_r(t->order, (size_t)t->n_added, sizeof(*t->order), longer_first, t->added);
    for (int pass = 0, at = 0; pass < 2; pass++)
        for (int c = 0; c <= 256; c++) {
            t->first_added[pass][c] = at;
            while (c < 256 && at < t->n_added && t->added[t->order[at]].normalized == pass &&
                   (unsigned char)t->added[t->order[at]].text[0] == c)
                at++;
        }
    return SHERD_OK;
}

/* Once bpe, added and the rest are there: the ways to find things. */
static int build_index(struct sherd_tokenizer *t)
{
    static const char *const ends[] = { "<|endoftext|>", "<|end_of_text|>", "</s>" };
    SHERD_TRY(index_added(t));
    for (size_t i = 0; i < ARRAY_LEN(ends) && t->end < 0; i++)
        t->end = sherd_tokenizer_find(t, ends[i]);
    return SHERD_OK;
}

int tokenizer_parse(struct sherd_tokenizer **out, const char *text, size_t bytes, const char *name)
{
    struct sherd_tokenizer *t;
    SHERD_TRY(start(&t));
    int st = tokjson_read(t, text, bytes, name);
    if (st == SHERD_OK)
        st = build_index(t);
    if (st != SHERD_OK) {
        tokenizer_close(t);
        t = NULL;
    }
    *out = t;
    return st;
}

static int open_bytes(struct sherd_tokenizer **out)
{
    int bad, st;
    SHERD_TRY(start(out));
    struct bpe *b = &(*out)->bpe;
    (*out)->plain = 1;
    (*out)->end = BYTES_END;
    b->vocab = BYTES_END + 1;
    b->pool = mem_zalloc(BYTES_END, 1);
    b->at = mem_zalloc(BYTES_END + 2, sizeof(*b->at));
    st = b->pool && b->at ? SHERD_OK : SHERD_ENOMEM;
    for (int i = 0; i <= BYTES_END && st == SHERD_OK; i++) {
        b->at[i] = (uint64_t)i;
        if (i < BYTES_END)
            b->pool[i] = (uint8_t)i;
    }
    if (st == SHERD_OK) {
        b->at[BYTES_END + 1] = BYTES_END;
        st = bpe_index(b, &bad);
    }
    if (st != SHERD_OK) {
        tokenizer_close(*out);
        *out = NULL;
    }
    return st;
}

/* What the folder lacks, and what there is instead. */
static int no_file(const char *folder)
{
    return SHERD_FAIL(SHERD_ENOTFOUND, "%s: there is no " TOKENIZER_JSON "%s", folder,
        file_has(folder, "vocab.json")
            ? ", only the older vocab.json and merges.txt; transformers writes it: "
              "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)"
            : "; name a tokenizer.json or the folder of one, or \"bytes\"");
}

int tokenizer_open(struct sherd_tokenizer **out, const char *path)
{
    char *file = NULL, *text = NULL;
    size_t bytes;
    int st = SHERD_OK;
    *out = NULL;
    if (strcmp(path, TOKENIZER_BYTES) == 0)
        return open_bytes(out);
    file = file_is_dir(path) ? mem_printf("%s/" TOKENIZER_JSON, path) : mem_strdup(path);
    if (!file)
        return SHERD_ENOMEM;
    if (file_is_dir(path) && !file_exists(file))
        st = no_file(path);
    else if (!file_exists(file))
        st = SHERD_FAIL(SHERD_ENOTFOUND,
            "%s: there is no such file or folder; name a " TOKENIZER_JSON
            " or the folder of one (nothing is downloaded), or \"bytes\"",
            path);
    if (st == SHERD_OK)
        st = file_read_text(&text, &bytes, file, TOKENIZER_MOST);
    if (st == SHERD_OK)
        st = tokenizer_parse(out, text, bytes, file);
    if (st == SHERD_OK && !((*out)->file = arena_strdup(&(*out)->arena, file))) {
        tokenizer_close(*out);
        *out = NULL;
        st = SHERD_ENOMEM;
    }
    mem_free(text);
    mem_free(file);
    return st;
}

void tokenizer_close(struct sherd_tokenizer *t)
{
    if (!t)
        return;
    bpe_finish(&t->bpe);
    arena_finish(&t->arena);
    mem_free(t);
}

int32_t sherd_tokenizer_find(const struct sherd_tokenizer *t, const char *token)
{
    size_t n = strlen(token);
    for (int i = 0; i < t->n_added; i++)
        if (t->added[i].bytes == n && memcmp(t->added[i].text, token, n) == 0)
            return t->added[i].id;
    return bpe_find(&t->bpe, (const uint8_t *)token, n);
}

const uint8_t *tokenizer_token(const struct sherd_tokenizer *t, int32_t id, size_t *bytes)
{
    *bytes = 0;
    if (id < 0 || id >= t->bpe.vocab)
        return NULL;
    for (int i = 0; i < t->n_added; i++)
        if (t->added[i].id == id) {
            *bytes = t->added[i].bytes;
            return (const uint8_t *)t->added[i].text;
        }
    *bytes = (size_t)(t->bpe.at[id + 1] - t->bpe.at[id]);
    return t->bpe.pool + t->bpe.at[id];
}

int tokenizer_cuts(const struct sherd_tokenizer *t)
{
    if (t->prefix_space)
        return 0;
    for (int i = 0; i < t->n_added; i++)
        if (t->added[i].lstrip || memchr(t->added[i].text, '\n', t->added[i].bytes))
            return 0;
    return 1;
}

static int encode_words(struct encoder *e, const uint8_t *s, size_t n)
{
    const struct sherd_tokenizer *t = e->tokenizer;
    while (n > 0) {
        size_t word = pretok_next(t->pretok, s, n);
        SHERD_TRY(bpe_word(&t->bpe, &e->work, s, word));
        s += word;
        n -= word;
    }
    return SHERD_OK;
}

/* Text without added tokens, in its form. */
static int encode_plain(struct encoder *e, const uint8_t *s, size_t n)
{
    struct text spaced = { 0 };
    if (n == 0)
        return SHERD_OK;
    if (!e->tokenizer->prefix_space || s[0] == ' ')
        return encode_words(e, s, n);
    text_put(&spaced, " ", 1);
    text_put(&spaced, (const char *)s, n);
    int st = spaced.failed ? SHERD_ENOMEM : encode_words(e, (const uint8_t *)spaced.data, spaced.len);
    text_finish(&spaced);
    return st;
}

/* The longest added token of the pass that begins at s, or NULL. */
static const struct added_token *added_at(
    const struct sherd_tokenizer *t, int pass, const uint8_t *s, size_t n)
{
    for (int i = t->first_added[pass][s[0]]; i < t->first_added[pass][s[0] + 1]; i++) {
        const struct added_token *a = &t->added[t->order[i]];
        if (a->bytes <= n && memcmp(a->text, s, a->bytes) == 0)
            return a;
    }
    return NULL;
}

static size_t spaces_before(const uint8_t *s, size_t at, size_t least)
{
    int bytes;
    while (at > least) {
        size_t one = at - 1;
        while (one > least && (s[one] & 0xc0) == 0x80)
            one--;
        if (unicode_class_of(utf8_get(s + one, &bytes)) != UNICODE_SPACE)
            break;
        at = one;
    }
    return at;
}

static size_t spaces_after(const uint8_t *s, size_t at, size_t n)
{
    int bytes;
    while (at < n && unicode_class_of(utf8_get(s + at, &bytes)) == UNICODE_SPACE)
        at += (size_t)bytes;
    return at;
}

static int encode_pass(struct encoder *e, int pass, const uint8_t *s, size_t n);

/* What lies between the added tokens of a pass goes to the next one. */
static int encode_rest(struct encoder *e, int pass, const uint8_t *s, size_t n)
{
    const struct sherd_tokenizer *t = e->tokenizer;
    if (n == 0)
        return SHERD_OK;
    if (pass == 1)
        return encode_plain(e, s, n);
    if (!t->compose || unicode_is_composed(s, n))
        return encode_pass(e, 1, s, n);
    e->composed.len = 0;
    SHERD_TRY(unicode_compose(s, n, &e->composed));
    return encode_pass(e, 1, (const uint8_t *)e->composed.data, e->composed.len);
}

static int encode_pass(struct encoder *e, int pass, const uint8_t *s, size_t n)
{
    const struct sherd_tokenizer *t = e->tokenizer;
    size_t done = 0;
    if (t->first_added[pass][0] == t->first_added[pass][256])
        return encode_rest(e, pass, s, n);
    for (size_t at = 0; at < n;) {
        const struct added_token *a = added_at(t, pass, s + at, n - at);
        if (!a) {
            at++;
            continue;
        }
        size_t from = a->lstrip ? spaces_before(s, at, done) : at, to = at + a->bytes;
        SHERD_TRY(encode_rest(e, pass, s + done, from > done ? from - done : 0));
        SHERD_TRY(bpe_push(&e->work, a->id));
        at = to;
        done = a->rstrip ? spaces_after(s, to, n) : to;
        at = MAX(at, done);
    }
    return encode_rest(e, pass, s + done, n - done);
}

int encoder_add(struct encoder *e, const uint8_t *text, size_t bytes)
{
    if (e->tokenizer->plain) {
        for (size_t i = 0; i < bytes; i++)
            SHERD_TRY(bpe_push(&e->work, text[i]));
        return SHERD_OK;
    }
    size_t good = utf8_valid(text, bytes);
    if (good < bytes)
        return SHERD_FAIL(SHERD_EFORMAT,
            "byte %zu: 0x%02x is not UTF-8 here; convert the text first, as iconv does, or use the tokenizer of bytes",
            good, text[good]);
    return encode_pass(e, 0, text, bytes);
}

void encoder_finish(struct encoder *e)
{
    bpe_work_finish(&e->work);
    text_finish(&e->composed);
}

int sherd_tokenizer_open(struct sherd_tokenizer **out, const char *path)
{
    return tokenizer_open(out, path);
}

void sherd_tokenizer_close(struct sherd_tokenizer *tokenizer)
{
    tokenizer_close(tokenizer);
}

int64_t sherd_tokenizer_vocab(const struct sherd_tokenizer *tokenizer)
{
    return tokenizer->bpe.vocab;
}

int32_t sherd_tokenizer_end(const struct sherd_tokenizer *tokenizer)
{
    return tokenizer->end;
}

int sherd_tokenizer_encode(
    const struct sherd_tokenizer *t, const char *text, size_t bytes, int whole, int32_t **out, int64_t *n)
{
    struct encoder e = { .tokenizer = t };
    int st = SHERD_OK;
    *out = NULL;
    for (int i = 0; i < t->n_before && whole; i++)
        SHERD_TRY_OUT(bpe_push(&e.work, t->before[i]));
    SHERD_TRY_OUT(encoder_add(&e, (const uint8_t *)text, bytes));
    if (!e.work.ids)
        SHERD_TRY_OUT(mem_grow(&e.work.ids, &e.work.cap, 1, sizeof(*e.work.ids)));
    *out = e.work.ids;
    *n = e.work.n;
    e.work.ids = NULL;
out:
    encoder_finish(&e);
    return st;
}

int sherd_tokenizer_token(const struct sherd_tokenizer *t, int32_t id, const uint8_t **out, size_t *bytes)
{
    *out = tokenizer_token(t, id, bytes);
    if (!*out)
        return SHERD_FAIL(SHERD_EINVAL, "there is no token %d: the vocabulary has %d", id, t->bpe.vocab);
    return SHERD_OK;
}
