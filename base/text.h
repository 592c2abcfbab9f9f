/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Text: a growing builder, strict parsers, patterns.
 */
#ifndef SHERD_BASE_TEXT_H
#define SHERD_BASE_TEXT_H

#include <sherd/base.h>

#include "base/text_plain.h"

/* A growing string; zero-initialize. A failed growth is remembered and reported by text_take. */
struct text {
    char *data;
    size_t len, cap;
    int failed;
};
void text_add(struct text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
void text_put(struct text *t, const char *s, size_t bytes);
/* Hands the string over (mem_free it) and resets the builder; ENOMEM if any growth failed. */
int text_take(struct text *t, char **out);
void text_finish(struct text *t);

/* A list for a message, in a buffer of fixed size: "a, b and 3 more" where no more fits. Begins as
 * { .buf = buf, .bytes = sizeof(buf) } over an empty string. */
struct text_list {
    char *buf;
    size_t bytes, len;
    int more;
};
void text_list_add(struct text_list *list, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Whole string or nothing: 0 and *out on success, EINVAL (no error text set) otherwise. Integers accept
 * "1000", "1_000" and exact floats "5e8"; durations accept s, m, h, d, default seconds. NaN and infinity are
 * refused. */
int text_int(const char *s, int64_t *out);
int text_double(const char *s, double *out);
int text_seconds(const char *s, double *out);
/* true/false, yes/no, on/off. */
int text_bool(const char *s, int *out);

/* Shell-like pattern with * only; whole string must match. */
int text_match(const char *pattern, const char *s);
int text_starts(const char *s, const char *prefix);
int text_ends(const char *s, const char *suffix);

#endif
