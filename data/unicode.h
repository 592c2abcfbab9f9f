/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * As much of Unicode as tokenizers ask for: UTF-8, the classes of code points, and composition (NFC).
 */
#ifndef SHERD_DATA_UNICODE_H
#define SHERD_DATA_UNICODE_H

#include "base/text.h"

enum unicode_class { UNICODE_OTHER, UNICODE_LETTER, UNICODE_NUMBER, UNICODE_SPACE };
enum unicode_class unicode_class_of(uint32_t c);

/* Bytes at the start of s that are well-formed UTF-8: n if all are. */
size_t utf8_valid(const uint8_t *s, size_t n);
/* The code point at s, which is well-formed and not at its end; *bytes of it. */
uint32_t utf8_get(const uint8_t *s, int *bytes);
/* Writes 1 to 4 bytes, returns how many. */
int utf8_put(uint32_t c, uint8_t out[4]);

/* 1: the text is in form NFC for sure; 0: composing it will show. */
int unicode_is_composed(const uint8_t *s, size_t n);
/* Appends the text in form NFC. Its size may be over that of s. */
int unicode_compose(const uint8_t *s, size_t n, struct text *out);

/* Tables, flat, `rows` each (unicode_tables.c). */
extern const uint32_t unicode_letters[], unicode_numbers[], unicode_marks[], unicode_single[], unicode_pair[],
    unicode_composed[];
extern const int unicode_letters_rows, unicode_numbers_rows, unicode_marks_rows, unicode_single_rows,
    unicode_pair_rows, unicode_composed_rows;

#endif
