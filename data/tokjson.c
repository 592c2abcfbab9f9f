/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Reading tokenizer.json. Everything in the file that could change an id is either understood or refused by
 * its name; what is of no influence on ids (decoders of other kinds apart) is passed over.
 */
#include "data/tokenizer.h"

#include <string.h>

#include "base/json.h"
#include "base/log.h"
#include "base/status.h"
#include "data/unicode.h"

#define ID_MOST ((int64_t)1 << 24)
#define TOKEN_MOST 4096 /* bytes of a token in the file */
#define ALPHABET 0x180  /* letters that stand for bytes are below it */

struct reading {
    struct sherd_tokenizer *t;
    const char *name;          /* of the file */
    int16_t byte_of[ALPHABET]; /* the byte that a letter stands for, -1 = none */
    int splits, levels;        /* pre-tokenizers of each kind met */
};

static int refuse(const struct reading *r, const char *where, const char *what, const char *value)
{
    return SHERD_FAIL(SHERD_EUNSUPPORTED,
        "%s: %s: %s '%.200s' is not known here; tokenizers are byte-level BPE as GPT-2, Llama 3 and Qwen 2 and 3 have it",
        r->name, where, what, value);
}

static const char *type_of(const json_t *object)
{
    const char *type = json_string_value(json_object_get(object, "type"));
    return type ? type : "without a type";
}

/* The letters that GPT-2 wrote bytes as: printable Latin-1 is itself, the others follow from 256 on. */
static void make_alphabet(struct reading *r)
{
    int next = 256;
    for (int i = 0; i < ALPHABET; i++)
        r->byte_of[i] = -1;
    for (int b = 0; b < 256; b++) {
        int itself = (b >= 33 && b <= 126) || (b >= 161 && b != 173);
        r->byte_of[itself ? b : next++] = (int16_t)b;
    }
}

/* Bytes that a token of the vocabulary stands for, in `out`, which is as long as its text; -1 if it has
 * letters outside the alphabet. */
static int64_t token_bytes(const struct reading *r, const char *text, size_t bytes, uint8_t *out)
{
    int64_t n = 0;
    int one;
    for (size_t at = 0; at < bytes; at += (size_t)one) {
        uint32_t c = utf8_get((const uint8_t *)text + at, &one);
        if (c >= ALPHABET || r->byte_of[c] < 0)
            return -1;
        out[n++] = (uint8_t)r->byte_of[c];
    }
    return n;
}

static int read_id(const struct reading *r, const json_t *value, const char *what, int32_t *out)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) >= ID_MOST)
        return SHERD_FAIL(SHERD_EFORMAT, "%s: the id of '%.60s' must be a whole number from 0 to %lld",
            r->name, what, (long long)ID_MOST - 1);
    *out = (int32_t)json_integer_value(value);
    return SHERD_OK;
}

static int is_added(const struct sherd_tokenizer *t, int32_t id)
{
    for (int i = 0; i < t->n_added; i++)
        if (t->added[i].id == id)
            return 1;
    return 0;
}

/* What an id is called in the file. */
struct entry {
    const char *text;
    size_t bytes;
};

static int fill_pool(struct reading *r, const struct entry *entries, uint64_t total)
{
    struct bpe *b = &r->t->bpe;
    uint64_t at = 0;
    b->pool = mem_zalloc(total + 1, 1);
    if (!b->pool)
        return SHERD_ENOMEM;
    for (int32_t id = 0; id < b->vocab; id++) {
        b->at[id] = at;
        if (!entries[id].text)
            continue;
        int64_t n = token_bytes(r, entries[id].text, entries[id].bytes, b->pool + at);
        if (n < 0 && !is_added(r->t, id))
            return refuse(r, "model.vocab", "the token", entries[id].text);
        at += n > 0 ? (uint64_t)n : 0;
    }
    b->at[b->vocab] = at;
    return SHERD_OK;
}

static int read_vocab(struct reading *r, json_t *vocab)
{
    struct bpe *b = &r->t->bpe;
    struct entry *entries = NULL;
    const char *key;
    json_t *value;
    uint64_t total = 0;
    int32_t id = 0, most = 0;
    int st = SHERD_OK;
    json_object_foreach(vocab, key, value)
    {
        SHERD_TRY(read_id(r, value, key, &id));
        most = MAX(most, id + 1);
    }
    for (int i = 0; i < r->t->n_added; i++)
        most = MAX(most, r->t->added[i].id + 1);
    b->vocab = most;
    b->at = mem_zalloc((size_t)most + 1, sizeof(*b->at));
    entries = mem_zalloc((size_t)most, sizeof(*entries));
    if (!b->at || !entries) {
        st = SHERD_ENOMEM;
        goto out;
    }
    json_object_foreach(vocab, key, value)
    {
        size_t bytes = strlen(key);
        id = (int32_t)json_integer_value(value);
        if (entries[id].text) {
            st = SHERD_FAIL(SHERD_EFORMAT, "%s: model.vocab: '%.60s' and '%.60s' have the same id %d",
                r->name, entries[id].text, key, id);
            goto out;
        }
        entries[id] = (struct entry){ key, bytes };
        total += bytes;
    }
    SHERD_TRY_OUT(fill_pool(r, entries, total));
out:
    mem_free(entries);
    return st;
}

/* The id of a part of a merge, by its text in the file. */
static int part_id(const struct reading *r, const json_t *vocab, int i, const char *text, int32_t *out)
{
    const json_t *value = json_object_get(vocab, text);
    if (!value)
        return SHERD_FAIL(SHERD_EFORMAT, "%s: model.merges: line %d: '%.60s' is not in the vocabulary",
            r->name, i + 1, text);
    *out = (int32_t)json_integer_value(value);
    return SHERD_OK;
}

/* "a b", or ["a", "b"]. */
static int read_merge(struct reading *r, const json_t *vocab, int i, const json_t *value)
{
    struct bpe_merge *m = &r->t->bpe.merges[i];
    const char *left = json_string_value(value), *right, *space;
    char parts[TOKEN_MOST], whole[TOKEN_MOST];
    if (left) {
        space = strchr(left, ' ');
        right = space ? space + 1 : "";
    } else {
        left = json_string_value(json_array_get(value, 0));
        right = json_string_value(json_array_get(value, 1));
        space = left ? left + strlen(left) : NULL;
    }
    if (!space || !right || !right[0] || space == left ||
        (json_is_array(value) && json_array_size(value) != 2))
        return SHERD_FAIL(SHERD_EFORMAT, "%s: model.merges: line %d must be two tokens", r->name, i + 1);
    size_t left_bytes = (size_t)(space - left), right_bytes = strlen(right);
    if (left_bytes + right_bytes >= TOKEN_MOST)
        return SHERD_FAIL(SHERD_EFORMAT, "%s: model.merges: line %d: a token of %zu bytes", r->name, i + 1,
            left_bytes + right_bytes);
    memcpy(parts, left, left_bytes);
    parts[left_bytes] = '\0';
    memcpy(whole, left, left_bytes);
    memcpy(whole + left_bytes, right, right_bytes + 1);
    SHERD_TRY(part_id(r, vocab, i, parts, &m->left));
    SHERD_TRY(part_id(r, vocab, i, right, &m->right));
    return part_id(r, vocab, i, whole, &m->into);
}

static int read_merges(struct reading *r, const json_t *vocab, const json_t *merges)
{
    struct bpe *b = &r->t->bpe;
    size_t n = json_array_size(merges);
    if (n > (size_t)ID_MOST)
        return SHERD_FAIL(SHERD_EFORMAT, "%s: model.merges: %zu lines are too many", r->name, n);
    b->merges = mem_zalloc(n, sizeof(*b->merges));
    if (!b->merges)
        return SHERD_ENOMEM;
    b->n_merges = (int)n;
    for (int i = 0; i < b->n_merges; i++)
        SHERD_TRY(read_merge(r, vocab, i, json_array_get(merges, (size_t)i)));
    return SHERD_OK;
}

static int off(const json_t *value)
{
    return !value || json_is_null(value) || json_is_false(value) ||
           (json_is_string(value) && json_string_length(value) == 0) ||
           (json_is_number(value) && json_number_value(value) == 0);
}

static int read_model(struct reading *r, const json_t *root)
{
    static const char *const unknown[] = { "dropout", "continuing_subword_prefix", "end_of_word_suffix",
        "byte_fallback" };
    json_t *model, *vocab, *merges;
    SHERD_TRY(json_get_object(root, "model", r->name, &model));
    const json_t *type = json_object_get(model, "type");
    if (type && strcmp(type_of(model), "BPE") != 0)
        return refuse(r, "model", "the type", type_of(model));
    for (size_t i = 0; i < ARRAY_LEN(unknown); i++)
        if (!off(json_object_get(model, unknown[i])))
            return refuse(r, "model", "the setting", unknown[i]);
    SHERD_TRY(json_get_object(model, "vocab", r->name, &vocab));
    SHERD_TRY(json_get_array(model, "merges", r->name, &merges));
    r->t->bpe.whole_first = json_is_true(json_object_get(model, "ignore_merges"));
    SHERD_TRY(read_vocab(r, vocab));
    return read_merges(r, vocab, merges);
}

static int read_normalizer(struct reading *r, const json_t *value)
{
    size_t i;
    const json_t *one;
    if (!value || json_is_null(value))
        return SHERD_OK;
    if (strcmp(type_of(value), "NFC") == 0) {
        r->t->compose = 1;
        return SHERD_OK;
    }
    if (strcmp(type_of(value), "Sequence") != 0)
        return refuse(r, "normalizer", "the type", type_of(value));
    const json_t *list = json_object_get(value, "normalizers");
    for (i = 0; i < json_array_size(list); i++) {
        one = json_array_get(list, i);
        if (strcmp(type_of(one), "NFC") != 0)
            return refuse(r, "normalizer", "the type", type_of(one));
        r->t->compose = 1;
    }
    return SHERD_OK;
}

static int read_split(struct reading *r, const json_t *value)
{
    const json_t *pattern = json_object_get(value, "pattern");
    const char *regex = json_string_value(json_object_get(pattern, "Regex"));
    const char *behavior = json_string_value(json_object_get(value, "behavior"));
    if (r->splits++ || r->levels)
        return refuse(r, "pre_tokenizer", "one more", "Split");
    if (!regex)
        return refuse(r, "pre_tokenizer", "a Split by", "String");
    if (!behavior || strcmp(behavior, "Isolated") != 0)
        return refuse(r, "pre_tokenizer", "the behavior", behavior ? behavior : "none");
    if (!off(json_object_get(value, "invert")))
        return refuse(r, "pre_tokenizer", "the setting", "invert");
    int family = pretok_find(regex);
    if (family < 0)
        return refuse(r, "pre_tokenizer", "the expression", regex);
    r->t->pretok = (enum pretok)family;
    return SHERD_OK;
}

static int read_level(struct reading *r, const json_t *value)
{
    const json_t *regex = json_object_get(value, "use_regex");
    int cuts = !regex || json_is_true(regex),
        prefix = json_is_true(json_object_get(value, "add_prefix_space"));
    if (r->levels++)
        return refuse(r, "pre_tokenizer", "one more", "ByteLevel");
    if (cuts == (r->splits > 0))
        return refuse(r, "pre_tokenizer", "ByteLevel with use_regex", cuts ? "true after Split" : "false");
    if (prefix && !cuts)
        return refuse(r, "pre_tokenizer", "ByteLevel after Split with", "add_prefix_space");
    r->t->prefix_space = prefix;
    return SHERD_OK;
}

static int read_pretokenizer(struct reading *r, const json_t *value)
{
    const char *type = type_of(value);
    if (!value || json_is_null(value))
        return refuse(r, "pre_tokenizer", "the type", "null");
    if (strcmp(type, "ByteLevel") == 0)
        return read_level(r, value);
    if (strcmp(type, "Split") == 0)
        return read_split(r, value);
    if (strcmp(type, "Sequence") != 0)
        return refuse(r, "pre_tokenizer", "the type", type);
    const json_t *list = json_object_get(value, "pretokenizers");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *one = json_array_get(list, i);
        if (strcmp(type_of(one), "Sequence") == 0)
            return refuse(r, "pre_tokenizer", "within a Sequence the type", "Sequence");
        SHERD_TRY(read_pretokenizer(r, one));
    }
    if (!r->levels)
        return refuse(r, "pre_tokenizer", "a Sequence without", "ByteLevel");
    return SHERD_OK;
}

static int read_added_token(struct reading *r, const json_t *value, struct added_token *out)
{
    const json_t *text = json_object_get(value, "content");
    struct text composed = { 0 };
    char *copy = NULL;
    if (!json_is_string(text) || json_string_length(text) == 0)
        return SHERD_FAIL(SHERD_EFORMAT, "%s: added_tokens: each needs a text, 'content'", r->name);
    const char *s = json_string_value(text);
    SHERD_TRY(read_id(r, json_object_get(value, "id"), s, &out->id));
    if (json_is_true(json_object_get(value, "single_word")))
        return refuse(r, "added_tokens", "single_word of", s);
    out->lstrip = json_is_true(json_object_get(value, "lstrip"));
    out->rstrip = json_is_true(json_object_get(value, "rstrip"));
    out->special = json_is_true(json_object_get(value, "special"));
    out->normalized = json_is_true(json_object_get(value, "normalized"));
    if (out->normalized && r->t->compose)
        SHERD_TRY(unicode_compose((const uint8_t *)s, json_string_length(text), &composed));
    else
        text_put(&composed, s, json_string_length(text));
    out->bytes = composed.len;
    SHERD_TRY(text_take(&composed, &copy));
    out->text = arena_strdup(&r->t->arena, copy);
    mem_free(copy);
    return out->text ? SHERD_OK : SHERD_ENOMEM;
}

static int read_added(struct reading *r, const json_t *list)
{
    size_t n = json_array_size(list);
    if (n > 65536)
        return SHERD_FAIL(SHERD_EFORMAT, "%s: added_tokens: %zu are too many", r->name, n);
    r->t->added = arena_zalloc(&r->t->arena, n, sizeof(*r->t->added));
    if (!r->t->added)
        return SHERD_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        SHERD_TRY(read_added_token(r, json_array_get(list, i), &r->t->added[i]));
        r->t->n_added++;
    }
    return SHERD_OK;
}

/* Ids that a special token of a template stands for, at the end of a list in the arena. */
static int add_ids(struct reading *r, const json_t *template, const char *id, int32_t **list, int *n)
{
    const json_t *tokens = json_object_get(json_object_get(template, "special_tokens"), id);
    const json_t *ids = json_object_get(tokens, "ids");
    size_t more = json_array_size(ids);
    if (more == 0 || more > 64 || *n > 64)
        return SHERD_FAIL(SHERD_EFORMAT, "%s: post_processor: no ids for '%.60s'", r->name, id);
    int32_t *grown = arena_zalloc(&r->t->arena, (size_t)*n + more, sizeof(*grown));
    if (!grown)
        return SHERD_ENOMEM;
    if (*n > 0)
        memcpy(grown, *list, (size_t)*n * sizeof(*grown));
    for (size_t i = 0; i < more; i++)
        SHERD_TRY(read_id(r, json_array_get(ids, i), id, &grown[(*n)++]));
    *list = grown;
    return SHERD_OK;
}

static int read_template(struct reading *r, const json_t *value)
{
    const json_t *list = json_object_get(value, "single");
    int seen = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *piece = json_array_get(list, i), *special = json_object_get(piece, "SpecialToken");
        const char *id = json_string_value(json_object_get(special, "id"));
        if (json_object_get(piece, "Sequence")) {
            seen++;
            continue;
        }
        if (!id)
            return refuse(r, "post_processor", "a piece of", "TemplateProcessing");
        SHERD_TRY(add_ids(
            r, value, id, seen ? &r->t->after : &r->t->before, seen ? &r->t->n_after : &r->t->n_before));
    }
    return seen == 1 ? SHERD_OK : refuse(r, "post_processor", "a template without one", "Sequence");
}

static int read_post(struct reading *r, const json_t *value, int depth)
{
    if (!value || json_is_null(value) || strcmp(type_of(value), "ByteLevel") == 0)
        return SHERD_OK;
    if (strcmp(type_of(value), "TemplateProcessing") == 0)
        return r->t->n_before || r->t->n_after ? refuse(r, "post_processor", "one more", type_of(value))
                                               : read_template(r, value);
    if (strcmp(type_of(value), "Sequence") != 0 || depth > 0)
        return refuse(r, "post_processor", "the type", type_of(value));
    const json_t *list = json_object_get(value, "processors");
    for (size_t i = 0; i < json_array_size(list); i++)
        SHERD_TRY(read_post(r, json_array_get(list, i), depth + 1));
    return SHERD_OK;
}

static int read_decoder(const struct reading *r, const json_t *value)
{
    if (!value || json_is_null(value) || strcmp(type_of(value), "ByteLevel") == 0)
        return SHERD_OK;
    return refuse(r, "decoder", "the type", type_of(value));
}

static int read_root(struct reading *r, const json_t *root)
{
    SHERD_TRY(read_normalizer(r, json_object_get(root, "normalizer")));
    SHERD_TRY(read_added(r, json_object_get(root, "added_tokens")));
    SHERD_TRY(read_pretokenizer(r, json_object_get(root, "pre_tokenizer")));
    SHERD_TRY(read_post(r, json_object_get(root, "post_processor"), 0));
    SHERD_TRY(read_decoder(r, json_object_get(root, "decoder")));
    SHERD_TRY(read_model(r, root));
    if (!off(json_object_get(root, "truncation")))
        log_warn("%s: truncation is not applied: text is encoded whole", r->name);
    return SHERD_OK;
}

/* Bytes that stand in no UTF-8 text need no token. */
static int utf8_has(int b)
{
    return b != 0xc0 && b != 0xc1 && b <= 0xf4;
}

/* What the file lacks, once its parts are read. */
static int check(const struct reading *r)
{
    const struct sherd_tokenizer *t = r->t;
    for (int i = 0; i < t->n_before + t->n_after; i++) {
        int32_t id = i < t->n_before ? t->before[i] : t->after[i - t->n_before];
        if (id >= t->bpe.vocab)
            return SHERD_FAIL(
                SHERD_EFORMAT, "%s: post_processor: there is no token with the id %d", r->name, id);
    }
    for (int b = 0; b < 256; b++)
        if (t->bpe.byte[b] < 0 && utf8_has(b))
            return SHERD_FAIL(SHERD_EUNSUPPORTED,
                "%s: model.vocab: the byte 0x%02x has no token, so not every text can be written", r->name,
                b);
    return SHERD_OK;
}

int tokjson_read(struct sherd_tokenizer *t, const char *text, size_t bytes, const char *name)
{
    struct reading r = { .t = t, .name = name };
    json_t *root = NULL;
    int bad = 0;
    make_alphabet(&r);
    SHERD_TRY(json_parse(&root, text, bytes, name));
    int st = read_root(&r, root);
    json_decref(root);
    SHERD_TRY(st);
    st = bpe_index(&t->bpe, &bad);
    if (st == SHERD_EINVAL)
        return SHERD_FAIL(SHERD_EFORMAT, "%s: model.merges: line %d is there twice", name, bad + 1);
    SHERD_TRY(st);
    for (int b = 0; b < 256; b++)
        t->bpe.byte[b] = bpe_find(&t->bpe, &(uint8_t){ (uint8_t)b }, 1);
    return check(&r);
}
