/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Cutting text into the words inside which a byte-level BPE merges. Each family has one regular expression,
 * known here by its text and run as a hand-written machine.
 */
#ifndef SHERD_DATA_PRETOK_H
#define SHERD_DATA_PRETOK_H

#include <stddef.h>
#include <stdint.h>

enum pretok { PRETOK_GPT2, PRETOK_LLAMA3, PRETOK_QWEN, PRETOK_FAMILIES };

/* The family whose expression this is, or -1. */
int pretok_find(const char *pattern);

/* Bytes of the first word of s: n > 0 bytes of well-formed UTF-8 from the end of the last word to the end of
 * the text. */
size_t pretok_next(enum pretok family, const uint8_t *s, size_t n);

#endif
