/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The part of text that needs nothing but C: nearest word; sizes, counts and times for people. Both the
 * library and the program have it, so that they say the same.
 */
#ifndef SHERD_BASE_TEXT_PLAIN_H
#define SHERD_BASE_TEXT_PLAIN_H

#include <stdint.h>

/* The word of `words` nearest to s by edit distance, if near enough to suggest; else NULL. */
const char *text_nearest(const char *s, const char *const *words, int n);

/* "1.50 GB" (decimal, three digits), "12,345"; written to buf, returned. */
const char *text_human_bytes(double bytes, char buf[32]);
const char *text_commas(int64_t n, char buf[32]);
/* "1h02m", "3m07s", "12s" */
const char *text_human_seconds(double seconds, char buf[32]);
/* The same with tenths below a minute, and in thousandths below a second: "3.3s", "40ms". What something
 * took. */
const char *text_took(double seconds, char buf[32]);

#endif
