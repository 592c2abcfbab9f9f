/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Tokenizers against what the `tokenizers` package made of the same texts (tools/gold_tokenizers.py), what is
 * refused by name, UTF-8, and composition.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/status.h"
#include "data/tokenizer.h"
#include "data/unicode.h"

static const char *const kinds[] = { "gpt2", "llama3", "qwen" };

static char *golden(const char *name)
{
    const char *folder = getenv("GOLDEN");
    char *path = mem_printf("%s/tokenizers/%s.json", folder ? folder : "tests/golden", name);
    assert_non_null(path);
    return path;
}

static struct sherd_tokenizer *open_golden(const char *kind)
{
    struct sherd_tokenizer *t;
    char *path = golden(kind);
    if (tokenizer_open(&t, path) != SHERD_OK)
        fail_msg("%s", sherd_error());
    mem_free(path);
    return t;
}

static void compare(const struct sherd_tokenizer *t, const char *kind, const json_t *one)
{
    const json_t *text = json_array_get(one, 0), *want = json_array_get(one, 1);
    int32_t *ids;
    int64_t n;
    assert_int_equal(
        sherd_tokenizer_encode(t, json_string_value(text), json_string_length(text), 0, &ids, &n), SHERD_OK);
    assert_int_equal(n, json_array_size(want));
    for (int64_t i = 0; i < n; i++)
        if (ids[i] != json_integer_value(json_array_get(want, (size_t)i)))
            fail_msg("%s: '%.200s': token %lld is %d", kind, json_string_value(text), (long long)i, ids[i]);
    free(ids);
}

static void ids_are_those_of_the_package(void **state)
{
    (void)state;
    char *path = golden("cases");
    json_t *root;
    assert_int_equal(json_parse_file(&root, path, 1 << 24), SHERD_OK);
    for (size_t k = 0; k < ARRAY_LEN(kinds); k++) {
        struct sherd_tokenizer *t = open_golden(kinds[k]);
        const json_t *list = json_object_get(root, kinds[k]);
        assert_true(json_array_size(list) > 100);
        for (size_t i = 0; i < json_array_size(list); i++)
            compare(t, kinds[k], json_array_get(list, i));
        tokenizer_close(t);
    }
    json_decref(root);
    mem_free(path);
}

/* Tokens put together give the text back, and the whole text has what the template puts before it. */
static void tokens_give_the_text_back(void **state)
{
    (void)state;
    static const char text[] = "Two words, caf\xc3\xa9\n\n\xf0\x9f\x99\x82 <|end_of_text|> 2026";
    struct sherd_tokenizer *t = open_golden("llama3");
    struct text got = { 0 };
    int32_t *ids;
    int64_t n;
    const uint8_t *bytes;
    size_t size;
    assert_int_equal(sherd_tokenizer_encode(t, text, strlen(text), 1, &ids, &n), SHERD_OK);
    assert_int_equal(ids[0], sherd_tokenizer_find(t, "<|begin_of_text|>"));
    for (int64_t i = 1; i < n; i++) {
        assert_int_equal(sherd_tokenizer_token(t, ids[i], &bytes, &size), SHERD_OK);
        text_put(&got, (const char *)bytes, size);
    }
    assert_int_equal(got.len, strlen(text));
    assert_memory_equal(got.data, text, got.len);
    assert_int_equal(sherd_tokenizer_end(t), sherd_tokenizer_find(t, "<|end_of_text|>"));
    assert_int_equal(
        sherd_tokenizer_token(t, (int32_t)sherd_tokenizer_vocab(t), &bytes, &size), SHERD_EINVAL);
    assert_int_equal(sherd_tokenizer_find(t, "no such token"), -1);
    text_finish(&got);
    free(ids);
    tokenizer_close(t);
}

static void bytes_need_no_file(void **state)
{
    (void)state;
    struct sherd_tokenizer *t;
    int32_t *ids;
    int64_t n;
    assert_int_equal(sherd_tokenizer_open(&t, "bytes"), SHERD_OK);
    assert_int_equal(sherd_tokenizer_vocab(t), 257);
    assert_int_equal(sherd_tokenizer_end(t), 256);
    assert_int_equal(sherd_tokenizer_encode(t, "a\xff", 2, 1, &ids, &n), SHERD_OK);
    assert_int_equal(n, 2);
    assert_int_equal(ids[0], 'a');
    assert_int_equal(ids[1], 255);
    free(ids);
    sherd_tokenizer_close(t);
}

/* The file with one text put in place of another. */
static int parse_changed(struct sherd_tokenizer **t, const char *kind, const char *from, const char *to)
{
    char *path = golden(kind), *text;
    size_t bytes;
    assert_int_equal(file_read_text(&text, &bytes, path, 1 << 24), SHERD_OK);
    char *at = strstr(text, from);
    if (!at)
        fail_msg("no '%s' in %s", from, kind);
    char *changed = mem_printf("%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    assert_non_null(changed);
    int st = tokenizer_parse(t, changed, strlen(changed), "x.json");
    mem_free(changed);
    mem_free(text);
    mem_free(path);
    return st;
}

/* That must be refused, and the message must hold `words`. */
static void refuse(const char *kind, const char *from, const char *to, const char *words)
{
    struct sherd_tokenizer *t;
    assert_true(parse_changed(&t, kind, from, to) != SHERD_OK);
    assert_null(t);
    if (!strstr(sherd_error(), words) || !strstr(sherd_error(), "x.json"))
        fail_msg("'%s' lacks '%s'", sherd_error(), words);
}

static void other_kinds_are_refused_by_name(void **state)
{
    (void)state;
    refuse("gpt2", "\"type\":\"BPE\"", "\"type\":\"Unigram\"", "the type 'Unigram'");
    refuse("gpt2", "\"byte_fallback\":false", "\"byte_fallback\":true", "'byte_fallback'");
    refuse("gpt2", "\"use_regex\":true", "\"use_regex\":false", "use_regex 'false'");
    refuse("gpt2", "\"pre_tokenizer\":{\"type\":\"ByteLevel\"", "\"pre_tokenizer\":{\"type\":\"Metaspace\"",
        "pre_tokenizer: the type 'Metaspace'");
    refuse("llama3", "{1,3}", "{1,2}", "the expression");
    refuse("llama3", "\"behavior\":\"Isolated\"", "\"behavior\":\"Removed\"", "'Removed'");
    refuse("qwen", "{\"type\":\"NFC\"}", "{\"type\":\"NFKC\"}", "normalizer: the type 'NFKC'");
    refuse("qwen", "\"single_word\":false", "\"single_word\":true", "single_word");
    refuse(
        "qwen", "\"decoder\":{\"type\":\"ByteLevel\"", "\"decoder\":{\"type\":\"WordPiece\"", "'WordPiece'");
    refuse("gpt2", "\"A\":", "\"\\u65e5\":", "the token");
    refuse("gpt2", "\"merges\":[", "\"merges\":[[\"q\",\"zz\"],", "line 1: 'zz' is not in the vocabulary");
    refuse("gpt2", "\"merges\":[", "\"merges\":[\"qq\",", "line 1 must be two tokens");
}

/* GPT-NeoX's has no tokens for the bytes that UTF-8 does not use. */
static void every_byte_of_text_needs_a_token(void **state)
{
    (void)state;
    struct sherd_tokenizer *t;
    assert_int_equal(parse_changed(&t, "gpt2", "\"\\u00c0\":", "\"\\u00c0\\u00c0\":"), SHERD_OK);
    tokenizer_close(t);
    assert_int_equal(parse_changed(&t, "gpt2", "\"\\u00f5\":", "\"\\u00f5\\u00f5\":"), SHERD_OK);
    tokenizer_close(t);
    refuse("gpt2", "\"\\u0100\":", "\"\\u0100\\u0100\":", "model.vocab: the byte 0x00 has no token");
    refuse("gpt2", "\"\\u00f4\":", "\"\\u00f4\\u00f4\":", "model.vocab: the byte 0xf4 has no token");
}

static size_t valid(const char *s)
{
    return utf8_valid((const uint8_t *)s, strlen(s));
}

static void utf8_is_checked_to_the_byte(void **state)
{
    (void)state;
    assert_int_equal(valid("abc\xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82"), 12);
    assert_int_equal(valid("ab\xc0\x80"), 2);         /* longer than need be */
    assert_int_equal(valid("ab\xe0\x9f\xbf"), 2);     /* the same */
    assert_int_equal(valid("ab\xed\xa0\x80"), 2);     /* a surrogate */
    assert_int_equal(valid("ab\xf4\x90\x80\x80"), 2); /* above 10FFFF */
    assert_int_equal(valid("ab\xe2\x82"), 2);         /* cut short */
    struct sherd_tokenizer *t = open_golden("gpt2");
    int32_t *ids;
    int64_t n;
    assert_int_equal(sherd_tokenizer_encode(t, "ab\xff", 3, 0, &ids, &n), SHERD_EFORMAT);
    assert_non_null(strstr(sherd_error(), "byte 2: 0xff"));
    assert_null(ids);
    tokenizer_close(t);
}

/* What the quick look calls composed does not change, alone or after a letter. */
static void what_looks_composed_is(void **state)
{
    (void)state;
    int looked = 0;
    for (uint32_t c = 1; c < 0x20000; c++) {
        uint8_t s[8] = { 'e' };
        size_t n = 1 + (size_t)utf8_put(c, s + 1);
        struct text out = { 0 };
        if ((c >= 0xd800 && c < 0xe000) || !unicode_is_composed(s, n))
            continue;
        assert_int_equal(unicode_compose(s, n, &out), SHERD_OK);
        assert_int_equal(out.len, n);
        assert_memory_equal(out.data, s, n);
        text_finish(&out);
        looked++;
    }
    assert_true(looked > 30000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_are_those_of_the_package),
        cmocka_unit_test(tokens_give_the_text_back),
        cmocka_unit_test(bytes_need_no_file),
        cmocka_unit_test(other_kinds_are_refused_by_name),
        cmocka_unit_test(every_byte_of_text_needs_a_token),
        cmocka_unit_test(utf8_is_checked_to_the_byte),
        cmocka_unit_test(what_looks_composed_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
