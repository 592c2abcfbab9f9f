/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Classes by binary search in tables of runs; composition by decomposing, ordering marks and composing again,
 * as the standard has it (UAX #15).
 */
#include "data/unicode.h"

#include <stdlib.h>

#include "base/mem.h"
#include "base/status.h"

#define HANGUL 0xac00
#define HANGUL_L 0x1100
#define HANGUL_V 0x1161
#define HANGUL_T 0x11a7 /* the one before the first */
#define HANGUL_LS 19
#define HANGUL_VS 21
#define HANGUL_TS 28
#define HANGUL_ALL (HANGUL_LS * HANGUL_VS * HANGUL_TS)
#define FIRST_CHANGED 0xc0 /* below it nothing decomposes, combines or composes */

/* The row of a table whose first column is the last one <= c; NULL before the first. */
static const uint32_t *row_of(const uint32_t *table, int rows, int columns, uint32_t c)
{
    int low = 0, high = rows;
    while (low < high) {
        int mid = low + (high - low) / 2;
        if (table[mid * columns] <= c)
            low = mid + 1;
        else
            high = mid;
    }
    return low > 0 ? table + (low - 1) * columns : NULL;
}

static int in_runs(const uint32_t *table, int rows, uint32_t c)
{
    const uint32_t *row = row_of(table, rows, 2, c);
    return row && c <= row[1];
}

static int is_space(uint32_t c)
{
    return c == ' ' || (c >= 9 && c <= 13) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
           c == 0x3000;
}

enum unicode_class unicode_class_of(uint32_t c)
{
    if (is_space(c))
        return UNICODE_SPACE;
    if (c < 128) {
        if ((c | 32) >= 'a' && (c | 32) <= 'z')
            return UNICODE_LETTER;
        return c >= '0' && c <= '9' ? UNICODE_NUMBER : UNICODE_OTHER;
    }
    if (in_runs(unicode_letters, unicode_letters_rows, c))
        return UNICODE_LETTER;
    return in_runs(unicode_numbers, unicode_numbers_rows, c) ? UNICODE_NUMBER : UNICODE_OTHER;
}

/* Bytes of the well-formed code point at s, 0 if there is none: no surrogates, nothing longer than it need
 * be, nothing above 10FFFF. */
static int well_formed(const uint8_t *s, size_t n)
{
    uint8_t low = 0x80, high = 0xbf;
    if (s[0] < 0x80)
        return 1;
    int size = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4 || n < (size_t)size)
        return 0;
    if (s[0] == 0xe0)
        low = 0xa0;
    if (s[0] == 0xed)
        high = 0x9f;
    if (s[0] == 0xf0)
        low = 0x90;
    if (s[0] == 0xf4)
        high = 0x8f;
    if (s[1] < low || s[1] > high)
        return 0;
    for (int i = 2; i < size; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    return size;
}

size_t utf8_valid(const uint8_t *s, size_t n)
{
    size_t at = 0;
    while (at < n) {
        int size = well_formed(s + at, n - at);
        if (size == 0)
            break;
        at += (size_t)size;
    }
    return at;
}

uint32_t utf8_get(const uint8_t *s, int *bytes)
{
    if (s[0] < 0x80) {
        *bytes = 1;
        return s[0];
    }
    *bytes = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    uint32_t c = s[0] & (0x7fu >> *bytes);
    for (int i = 1; i < *bytes; i++)
        c = c << 6 | (s[i] & 0x3f);
    return c;
}

int utf8_put(uint32_t c, uint8_t out[4])
{
    static const uint8_t lead[] = { 0, 0, 0xc0, 0xe0, 0xf0 };
    int size = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (int i = size - 1; i > 0; i--, c >>= 6)
        out[i] = (uint8_t)(0x80 | (c & 0x3f));
    out[0] = (uint8_t)(lead[size] | c);
    return size;
}

static uint32_t mark_class(uint32_t c)
{
    const uint32_t *row = row_of(unicode_marks, unicode_marks_rows, 3, c);
    return row && c <= row[1] ? row[2] : 0;
}

/* The row of a table that begins with c, or NULL. */
static const uint32_t *exact(const uint32_t *table, int rows, int columns, uint32_t c)
{
    const uint32_t *row = row_of(table, rows, columns, c);
    return row && row[0] == c ? row : NULL;
}

/* What a and b compose to; 0 if they do not. */
static uint32_t compose_pair(uint32_t a, uint32_t b)
{
    if (a - HANGUL_L < HANGUL_LS && b - HANGUL_V < HANGUL_VS)
        return HANGUL + ((a - HANGUL_L) * HANGUL_VS + (b - HANGUL_V)) * HANGUL_TS;
    if (a - HANGUL < HANGUL_ALL && (a - HANGUL) % HANGUL_TS == 0 && b > HANGUL_T && b < HANGUL_T + HANGUL_TS)
        return a + (b - HANGUL_T);
    int low = 0, high = unicode_composed_rows;
    while (low < high) {
        int mid = low + (high - low) / 2;
        const uint32_t *row = unicode_pair + 3 * unicode_composed[mid];
        if (row[1] == a && row[2] == b)
            return row[0];
        if (row[1] < a || (row[1] == a && row[2] < b))
            low = mid + 1;
        else
            high = mid;
    }
    return 0;
}

/* Where nothing decomposes for good, combines or is the second half of anything: most of all text. */
static const uint32_t plain[][2] = { { 0, 0x2ff }, { 0x400, 0x482 }, { 0x2010, 0x2029 }, { 0x3001, 0x3029 },
    { 0x3041, 0x3096 }, { 0x309b, 0x30ff }, { 0x3400, 0x9fff }, { HANGUL, HANGUL + HANGUL_ALL - 1 },
    { 0xff01, 0xff60 }, { 0x1f300, 0x1faff } };

int unicode_is_composed(const uint8_t *s, size_t n)
{
    int bytes;
    for (size_t at = 0; at < n; at += (size_t)bytes) {
        uint32_t c = utf8_get(s + at, &bytes);
        size_t i = 0;
        while (i < ARRAY_LEN(plain) && (c < plain[i][0] || c > plain[i][1]))
            i++;
        if (i == ARRAY_LEN(plain))
            return 0;
    }
    return 1;
}

/* Code points on their way, with their combining classes. */
struct points {
    uint32_t *c;
    int n, cap;
};

static int point_add(struct points *p, uint32_t c)
{
    SHERD_TRY(mem_grow(&p->c, &p->cap, p->n + 1, sizeof(*p->c)));
    p->c[p->n++] = c;
    return SHERD_OK;
}

static int decompose(struct points *p, uint32_t c)
{
    const uint32_t *row;
    if (c < FIRST_CHANGED)
        return point_add(p, c);
    if (c - HANGUL < HANGUL_ALL) {
        uint32_t i = c - HANGUL;
        SHERD_TRY(point_add(p, HANGUL_L + i / (HANGUL_VS * HANGUL_TS)));
        SHERD_TRY(point_add(p, HANGUL_V + i / HANGUL_TS % HANGUL_VS));
        return i % HANGUL_TS ? point_add(p, HANGUL_T + i % HANGUL_TS) : SHERD_OK;
    }
    if ((row = exact(unicode_single, unicode_single_rows, 2, c)))
        return decompose(p, row[1]);
    if ((row = exact(unicode_pair, unicode_pair_rows, 3, c))) {
        SHERD_TRY(decompose(p, row[1]));
        return decompose(p, row[2]);
    }
    return point_add(p, c);
}

static int by_class(const void *a, const void *b)
{
    const uint32_t *x = a, *y = b; /* class, place, code point */
    if (x[0] != y[0])
        return x[0] < y[0] ? -1 : 1;
    return x[1] < y[1] ? -1 : x[1] > y[1];
}

/* Puts every run of marks into the order of their classes, equal ones as they stood. */
static int order_marks(struct points *p)
{
    uint32_t *keys = NULL;
    int cap = 0, st = SHERD_OK;
    for (int i = 0; i < p->n; i++) {
        int n = 0;
        while (i + n < p->n && mark_class(p->c[i + n]))
            n++;
        if (n < 2) {
            i += n;
            continue;
        }
        SHERD_TRY_OUT(mem_grow(&keys, &cap, 3 * n, sizeof(*keys)));
        for (int k = 0; k < n; k++) {
            keys[3 * k] = mark_class(p->c[i + k]);
            keys[3 * k + 1] = (uint32_t)k;
            keys[3 * k + 2] = p->c[i + k];
        }
        qsort(keys, (size_t)n, 3 * sizeof(*keys), by_class);
        for (int k = 0; k < n; k++)
            p->c[i + k] = keys[3 * k + 2];
        i += n;
    }
out:
    mem_free(keys);
    return st;
}

/* Composes in place: each code point with the last starter before it, unless one between is in the way. */
static void compose_points(struct points *p)
{
    int starter = -1, n = 0;
    uint32_t last = 0; /* class of the one kept last after the starter */
    for (int i = 0; i < p->n; i++) {
        uint32_t c = p->c[i], class = mark_class(c), whole = 0;
        int near = starter == n - 1;
        if (starter >= 0 && (near || (last != 0 && last < class)))
            whole = compose_pair(p->c[starter], c);
        if (whole) {
            p->c[starter] = whole;
            continue;
        }
        if (class == 0)
            starter = n;
        last = class;
        p->c[n++] = c;
    }
    p->n = n;
}

int unicode_compose(const uint8_t *s, size_t n, struct text *out)
{
    struct points p = { 0 };
    int st = SHERD_OK, bytes;
    for (size_t at = 0; at < n; at += (size_t)bytes)
        SHERD_TRY_OUT(decompose(&p, utf8_get(s + at, &bytes)));
    SHERD_TRY_OUT(order_marks(&p));
    compose_points(&p);
    for (int i = 0; i < p.n; i++) {
        uint8_t one[4];
        text_put(out, (const char *)one, (size_t)utf8_put(p.c[i], one));
    }
    if (out->failed)
        st = MEM_OUT("composing %zu bytes of text", n);
out:
    mem_free(p.c);
    return st;
}
