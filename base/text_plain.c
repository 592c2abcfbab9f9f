/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Nearest word; sizes, counts and times for people. The program has a copy of its own, so this leans on the C
 * library alone.
 */
#include "base/text_plain.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h" /* macros */

#define WORD_BYTES 96 /* longest word that is compared for nearness */

/* Insertions, deletions, replacements and swaps of neighbours; case does not count. */
static int distance(const char *a, int n, const char *b, int m)
{
    int rows[3][WORD_BYTES + 1];
    int *two = rows[0], *one = rows[1], *now = rows[2];
    for (int j = 0; j <= m; j++)
        one[j] = j;
    for (int i = 1; i <= n; i++) {
        now[0] = i;
        for (int j = 1; j <= m; j++) {
            int x = tolower((unsigned char)a[i - 1]), y = tolower((unsigned char)b[j - 1]);
            int d = MIN(MIN(one[j], now[j - 1]) + 1, one[j - 1] + (x != y));
            if (i > 1 && j > 1 && x == tolower((unsigned char)b[j - 2]) &&
                y == tolower((unsigned char)a[i - 2]))
                d = MIN(d, two[j - 2] + 1);
            now[j] = d;
        }
        int *spare = two;
        two = one, one = now, now = spare;
    }
    return one[m];
}

const char *text_nearest(const char *s, const char *const *words, int n)
{
    size_t len = strlen(s);
    if (len > WORD_BYTES)
        return NULL;
    int best = MAX((int)len / 3, 1) + 1; /* a third of the letters may be wrong */
    const char *nearest = NULL;
    for (int i = 0; i < n; i++) {
        size_t m = strlen(words[i]);
        if (m > WORD_BYTES)
            continue;
        int d = distance(s, (int)len, words[i], (int)m);
        if (d < best && d < (int)MAX(len, m)) {
            best = d;
            nearest = words[i];
        }
    }
    return nearest;
}

const char *text_human_bytes(double bytes, char buf[32])
{
    static const char *const units[] = { "B", "kB", "MB", "GB", "TB", "PB", "EB" };
    size_t i = 0;
    for (; fabs(bytes) >= 999.5 && i + 1 < ARRAY_LEN(units); i++)
        bytes /= 1000;
    int digits = i == 0 || fabs(bytes) >= 99.95 ? 0 : fabs(bytes) >= 9.995 ? 1 : 2;
    snprintf(buf, 32, "%.*f %s", digits, bytes, units[i]);
    return buf;
}

const char *text_commas(int64_t n, char buf[32])
{
    char digits[24];
    uint64_t v = n < 0 ? 0 - (uint64_t)n : (uint64_t)n;
    int len = snprintf(digits, sizeof(digits), "%llu", (unsigned long long)v);
    char *p = buf;
    if (n < 0)
        *p++ = '-';
    for (int i = 0; i < len; i++) {
        if (i > 0 && (len - i) % 3 == 0)
            *p++ = ',';
        *p++ = digits[i];
    }
    *p = '\0';
    return buf;
}

const char *text_human_seconds(double seconds, char buf[32])
{
    if (!(seconds >= 0 && seconds < 1e12)) {
        snprintf(buf, 32, "?");
        return buf;
    }
    long long s = llround(seconds);
    if (s >= 86400)
        snprintf(buf, 32, "%lldd%02lldh", s / 86400, s / 3600 % 24);
    else if (s >= 3600)
        snprintf(buf, 32, "%lldh%02lldm", s / 3600, s / 60 % 60);
    else if (s >= 60)
        snprintf(buf, 32, "%lldm%02llds", s / 60, s % 60);
    else
        snprintf(buf, 32, "%llds", s);
    return buf;
}

const char *text_took(double seconds, char buf[32])
{
    if (!(seconds >= 0 && seconds < 59.95))
        return text_human_seconds(seconds, buf);
    if (seconds >= 0.9995)
        snprintf(buf, 32, "%.1fs", seconds);
    else if (seconds >= 0.001)
        snprintf(buf, 32, "%.0fms", 1e3 * seconds);
    else
        snprintf(buf, 32, "under 1ms");
    return buf;
}
