/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * JSON as others write it, made into what the reader of YAML takes: see runtime/foreign.h.
 */
#include <ctype.h>
#include <string.h>

#include "runtime/foreign.h"

/* Where the comment that begins at i ends; i when none begins there. */
static size_t comment_end(const char *text, size_t bytes, size_t i)
{
    if (i + 1 >= bytes || text[i] != '/' || (text[i + 1] != '/' && text[i + 1] != '*'))
        return i;
    int line = text[i + 1] == '/';
    for (size_t k = i + 2; k < bytes; k++) {
        if (line && text[k] == '\n')
            return k;
        if (!line && text[k] == '/' && text[k - 1] == '*' && k > i + 2)
            return k + 1;
    }
    return bytes;
}

/* The number of an escape of four hex digits (backslash, u) at `at`, -1 where there is none. */
static int escaped_unit(const char *text, size_t bytes, size_t at)
{
    int unit = 0;
    if (at + 6 > bytes || text[at] != '\\' || text[at + 1] != 'u')
        return -1;
    for (size_t i = at + 2; i < at + 6; i++) {
        int c = tolower((unsigned char)text[i]);
        if (!isxdigit(c))
            return -1;
        unit = unit * 16 + (c <= '9' ? c - '0' : c - 'a' + 10);
    }
    return unit;
}

/* JSON writes a character beyond 16 bits as two escapes, which YAML does not know: they become the character.
 * Returns the bytes that the text has then. */
static size_t join_pair(char *text, size_t bytes, size_t at)
{
    int high = escaped_unit(text, bytes, at), low = high >= 0 ? escaped_unit(text, bytes, at + 6) : -1;
    if (high < 0xd800 || high > 0xdbff || low < 0xdc00 || low > 0xdfff)
        return bytes;
    uint32_t c = 0x10000u + ((uint32_t)(high - 0xd800) << 10) + (uint32_t)(low - 0xdc00);
    const uint8_t utf8[] = { (uint8_t)(0xf0 | c >> 18), (uint8_t)(0x80 | (c >> 12 & 63)),
        (uint8_t)(0x80 | (c >> 6 & 63)), (uint8_t)(0x80 | (c & 63)) };
    memcpy(text + at, utf8, sizeof(utf8));
    memmove(text + at + sizeof(utf8), text + at + 12, bytes - at - 12);
    return bytes - 12 + sizeof(utf8);
}

size_t foreign_plain_json(char *text, size_t bytes)
{
    char quote = 0;
    for (size_t i = 0; i < bytes; i++) {
        size_t end = quote ? i : comment_end(text, bytes, i);
        for (; i < end; i++)
            if (text[i] != '\n')
                text[i] = ' ';
        if (i >= bytes)
            break;
        if (quote == '"' && text[i] == '\\')
            bytes = join_pair(text, bytes, i);
        if (quote && text[i] == '\\')
            i++;
        else if (quote ? text[i] == quote : text[i] == '"' || text[i] == '\'')
            quote = quote ? 0 : text[i];
    }
    return bytes;
}
