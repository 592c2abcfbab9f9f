/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The expressions' alternatives, tried in their order. What Unicode says of letter case makes U+017F an "s".
 */
#include "data/pretok.h"

#include <string.h>

#include "base/status.h"
#include "data/unicode.h"

#define LONG_S 0x17f

static const struct {
    const char *pattern;
    int digits; /* of one word; 0 = any number of them */
} families[PRETOK_FAMILIES] = {
    [PRETOK_GPT2] = { "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
        0 },
    [PRETOK_LLAMA3] = { "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
                        "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
        3 },
    [PRETOK_QWEN] = { "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
                      "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
        1 },
};

int pretok_find(const char *pattern)
{
    for (int i = 0; i < PRETOK_FAMILIES; i++)
        if (strcmp(pattern, families[i].pattern) == 0)
            return i;
    return -1;
}

static enum unicode_class class_at(const uint8_t *s, int *bytes)
{
    return unicode_class_of(utf8_get(s, bytes));
}

/* The end of a run of one class from `at` on, of at most `most` code points unless that is 0. */
static size_t run_end(const uint8_t *s, size_t at, size_t n, enum unicode_class class, int most)
{
    int bytes;
    for (int k = 0; at < n && (most == 0 || k < most) && class_at(s + at, &bytes) == class; k++)
        at += (size_t)bytes;
    return at;
}

/* \s+(?!\S)|\s+ : all of the spaces at the end of the text, else all but the last, which is left to the word
 * after it; a single one is a word. */
static size_t spaces(const uint8_t *s, size_t n)
{
    size_t end = run_end(s, 0, n, UNICODE_SPACE, 0), last = end - 1;
    while ((s[last] & 0xc0) == 0x80)
        last--;
    return end == n || last == 0 ? end : last;
}

/* 's|'t|'re|'ve|'m|'ll|'d at s; 0 if there is none. */
static size_t contraction(const uint8_t *s, size_t n, int any_case)
{
    static const char *const ends[] = { "s", "t", "re", "ve", "m", "ll", "d" };
    int bytes;
    if (s[0] != '\'' || n < 2)
        return 0;
    if (any_case && utf8_get(s + 1, &bytes) == LONG_S)
        return 1 + (size_t)bytes;
    for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
        size_t k = 0;
        while (ends[i][k] && k + 1 < n && (uint8_t)ends[i][k] == (any_case ? s[k + 1] | 32 : s[k + 1]))
            k++;
        if (!ends[i][k])
            return k + 1;
    }
    return 0;
}

static size_t next_gpt2(const uint8_t *s, size_t n)
{
    int bytes;
    size_t found = contraction(s, n, 0), at = s[0] == ' ' && n > 1;
    if (found)
        return found;
    enum unicode_class class = class_at(s + at, &bytes);
    return class == UNICODE_SPACE ? spaces(s, n) : run_end(s, at, n, class, 0);
}

static int is_line_end(uint8_t c)
{
    return c == '\r' || c == '\n';
}

/* \s*[\r\n]+ : up to the last line end among the spaces at s; 0 if they have none. */
static size_t lines(const uint8_t *s, size_t n)
{
    size_t end = run_end(s, 0, n, UNICODE_SPACE, 0);
    while (end > 0 && !is_line_end(s[end - 1]))
        end--;
    return end;
}

static size_t next_llama(const uint8_t *s, size_t n, int digits)
{
    int bytes, next;
    size_t found = contraction(s, n, 1);
    if (found)
        return found;
    enum unicode_class class = class_at(s, &bytes);
    if (class == UNICODE_LETTER)
        return run_end(s, 0, n, class, 0);
    if (class == UNICODE_NUMBER)
        return run_end(s, 0, n, class, digits);
    size_t after = (size_t)bytes;
    if (!is_line_end(s[0]) && after < n && class_at(s + after, &next) == UNICODE_LETTER)
        return run_end(s, after, n, UNICODE_LETTER, 0);
    size_t at = s[0] == ' ' && n > 1;
    if (class_at(s + at, &next) == UNICODE_OTHER) {
        at = run_end(s, at, n, UNICODE_OTHER, 0);
        while (at < n && is_line_end(s[at]))
            at++;
        return at;
    }
    found = lines(s, n);
    return found ? found : spaces(s, n);
}

size_t pretok_next(enum pretok family, const uint8_t *s, size_t n)
{
    return family == PRETOK_GPT2 ? next_gpt2(s, n) : next_llama(s, n, families[family].digits);
}
