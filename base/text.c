/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Text: builder, strict parsers that do not depend on the locale, patterns.
 */
#include "base/text.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "base/status.h"

#define NUMBER_BYTES 64 /* longest number that the parsers read */

/* Room for `more` bytes and a NUL. */
static int reserve(struct text *t, size_t more)
{
    if (t->failed || more > SIZE_MAX / 4 || t->len > SIZE_MAX / 4) {
        t->failed = 1;
        return 0;
    }
    size_t need = t->len + more + 1;
    if (need <= t->cap)
        return 1;
    size_t cap = MAX(MAX(need, t->cap * 2), 128);
    char *data = mem_realloc(t->data, cap, 1);
    if (!data) {
        t->failed = 1;
        return 0;
    }
    t->data = data;
    t->cap = cap;
    return 1;
}

void text_add(struct text *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0) {
        t->failed = 1;
        return;
    }
    if (!reserve(t, (size_t)n))
        return;
    va_start(args, format);
    vsnprintf(t->data + t->len, (size_t)n + 1, format, args);
    va_end(args);
    t->len += (size_t)n;
}

void text_put(struct text *t, const char *s, size_t bytes)
{
    if (!reserve(t, bytes))
        return;
    if (bytes)
        memcpy(t->data + t->len, s, bytes);
    t->len += bytes;
    t->data[t->len] = '\0';
}

int text_take(struct text *t, char **out)
{
    if (!t->data)
        text_put(t, "", 0);
    if (t->failed) {
        size_t len = t->len;
        text_finish(t);
        return MEM_OUT("a text of more than %zu bytes", len);
    }
    *out = t->data;
    *t = (struct text){ 0 };
    return SHERD_OK;
}

void text_finish(struct text *t)
{
    mem_free(t->data);
    *t = (struct text){ 0 };
}

#define MORE_BYTES sizeof(" and 2147483647 more")

/* The end that counts is written again for every entry that finds no room. */
void text_list_add(struct text_list *list, const char *format, ...)
{
    char *at = list->buf + list->len;
    size_t left = list->bytes - list->len, comma = list->len ? 2 : 0;
    va_list args;
    assert(list->bytes >= MORE_BYTES);
    if (list->more == 0 && left > comma + MORE_BYTES) {
        va_start(args, format);
        int n = vsnprintf(at + comma, left - comma, format, args);
        va_end(args);
        if (n >= 0 && comma + (size_t)n + MORE_BYTES <= left) {
            memcpy(at, ", ", comma);
            list->len += comma + (size_t)n;
            return;
        }
    }
    list->more++;
    snprintf(at, left, "%s%d more", comma ? " and " : "", list->more);
}

/* A decimal number as written: sign, all digits without the point, and the power of ten they are scaled by.
 * Digits may have single underscores between them. */
struct number {
    char digits[NUMBER_BYTES];
    int n_digits;
    int exponent;
    int negative;
};

/* Reads digits (with underscores) to the number; returns how many, -1 for a misplaced underscore or too many.
 */
static int scan_digits(const char **s, struct number *num)
{
    int n = 0;
    for (const char *p = *s;; p++) {
        if (*p == '_' && n > 0 && isdigit((unsigned char)p[1]))
            continue;
        if (!isdigit((unsigned char)*p)) {
            *s = p;
            return *p == '_' ? -1 : n;
        }
        if (num->n_digits == NUMBER_BYTES - 1)
            return -1;
        num->digits[num->n_digits++] = *p;
        n++;
    }
}

/* Reads the number at the start of s; *end is what follows it. */
static int scan_number(const char *s, struct number *num, const char **end)
{
    *num = (struct number){ 0 };
    if (*s == '-' || *s == '+')
        num->negative = *s++ == '-';
    int whole = scan_digits(&s, num), fraction = 0;
    if (whole < 0)
        return SHERD_EINVAL;
    if (*s == '.') {
        s++;
        fraction = scan_digits(&s, num);
        if (fraction < 0)
            return SHERD_EINVAL;
    }
    if (whole + fraction == 0)
        return SHERD_EINVAL;
    if (*s == 'e' || *s == 'E') {
        s++;
        int negative = *s == '-';
        s += *s == '-' || *s == '+';
        int n = 0;
        for (; isdigit((unsigned char)*s); s++, n++)
            num->exponent = MIN(num->exponent * 10 + (*s - '0'), 100000);
        if (n == 0)
            return SHERD_EINVAL;
        num->exponent = negative ? -num->exponent : num->exponent;
    }
    num->exponent -= fraction;
    *end = s;
    return SHERD_OK;
}

/* The magnitude of the number, if it is a whole number that fits. */
static int exact(const struct number *num, uint64_t *out)
{
    int n = num->n_digits, exponent = num->exponent;
    __extension__ unsigned __int128 v = 0; /* ten times a 64-bit number fits */
    while (n > 0 && exponent < 0 && num->digits[n - 1] == '0')
        n--, exponent++;
    for (int i = 0; i < n; i++) {
        v = v * 10 + (unsigned)(num->digits[i] - '0');
        if (v > UINT64_MAX)
            return SHERD_EINVAL;
    }
    for (; exponent > 0 && v > 0 && v <= UINT64_MAX; exponent--)
        v *= 10;
    if (v > UINT64_MAX)
        return SHERD_EINVAL;
    if (exponent < 0 && v > 0) /* digits behind the point */
        return SHERD_EINVAL;
    *out = (uint64_t)v;
    return SHERD_OK;
}

static int finite_value(const struct number *num, double unit, double *out)
{
    char text[NUMBER_BYTES + 16];
    snprintf(text, sizeof(text), "%s%se%d", num->negative ? "-" : "", num->digits, num->exponent);
    errno = 0;
    double v = strtod(text, NULL); /* digits and an exponent only: the same in every locale */
    if (isinf(v) || (v == 0 && errno == ERANGE) || isinf(v * unit))
        return SHERD_EINVAL;
    *out = v * unit;
    return SHERD_OK;
}

int text_int(const char *s, int64_t *out)
{
    struct number num;
    const char *end;
    uint64_t v;
    SHERD_TRY(scan_number(s, &num, &end));
    if (*end)
        return SHERD_EINVAL;
    SHERD_TRY(exact(&num, &v));
    if (v > (uint64_t)INT64_MAX + (uint64_t)num.negative)
        return SHERD_EINVAL;
    *out = num.negative ? (int64_t)(0 - v) : (int64_t)v;
    return SHERD_OK;
}

int text_double(const char *s, double *out)
{
    struct number num;
    const char *end;
    SHERD_TRY(scan_number(s, &num, &end));
    return *end ? SHERD_EINVAL : finite_value(&num, 1, out);
}

int text_seconds(const char *s, double *out)
{
    struct number num;
    const char *end;
    double unit = 1;
    SHERD_TRY(scan_number(s, &num, &end));
    switch (*end) {
    case 's':
        end++;
        break;
    case 'm':
        unit = 60, end++;
        break;
    case 'h':
        unit = 3600, end++;
        break;
    case 'd':
        unit = 86400, end++;
        break;
    default:
        break;
    }
    return *end || num.negative ? SHERD_EINVAL : finite_value(&num, unit, out);
}

int text_bool(const char *s, int *out)
{
    static const char *const words[2][3] = { { "false", "no", "off" }, { "true", "yes", "on" } };
    for (int v = 0; v < 2; v++)
        for (int i = 0; i < 3; i++)
            if (strcasecmp(s, words[v][i]) == 0) {
                *out = v;
                return SHERD_OK;
            }
    return SHERD_EINVAL;
}

int text_match(const char *pattern, const char *s)
{
    const char *star = NULL, *resume = NULL; /* where to go on when the text after the last * fails */
    while (*s) {
        if (*pattern == '*') {
            star = ++pattern;
            resume = s;
        } else if (*pattern == *s) {
            pattern++, s++;
        } else if (star) {
            pattern = star;
            s = ++resume;
        } else {
            return 0;
        }
    }
    while (*pattern == '*')
        pattern++;
    return *pattern == '\0';
}

int text_starts(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

int text_ends(const char *s, const char *suffix)
{
    size_t n = strlen(s), m = strlen(suffix);
    return n >= m && strcmp(s + n - m, suffix) == 0;
}
