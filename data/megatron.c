/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The index of Megatron's token files. Its arrays are not aligned. The sequences must follow one another in
 * the .bin without gaps, as Megatron's own builders write them: then the file is the stream.
 */
#include "data/format.h"

#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "base/text.h"

#define MAGIC "MMIDIDX\0"
#define MAGIC_BYTES 9 /* with both zeros */
#define HEADER 34

static char *with_ending(const char *path, const char *ending)
{
    size_t n = strlen(path);
    if (text_ends(path, ".bin") || text_ends(path, ".idx"))
        n -= 4;
    return mem_printf("%.*s%s", (int)n, path, ending);
}

char *megatron_index(const char *path)
{
    char *index = with_ending(path, ".idx");
    if (index && file_exists(index))
        return index;
    mem_free(index);
    return NULL;
}

char *megatron_tokens(const char *index)
{
    return with_ending(index, ".bin");
}

static uint64_t get(const uint8_t *p, int bytes)
{
    uint64_t v = 0;
    for (int i = 0; i < bytes; i++)
        v |= (uint64_t)p[i] << 8 * i;
    return v;
}

static int read_type(struct token_file *file, int code, const char *name)
{
    static const struct {
        int width, is_signed;
    } types[] = { { 0, 0 }, { 1, 0 }, { 1, 1 }, { 2, 1 }, { 4, 1 }, { 8, 1 }, { 0, 0 }, { 0, 0 }, { 2, 0 } };
    if (code < 0 || code >= (int)ARRAY_LEN(types) || types[code].width == 0)
        return SHERD_FAIL(
            SHERD_EFORMAT, "%s: byte 17: type %d is no whole number (1 to 5, or 8)", name, code);
    file->width = types[code].width;
    file->is_signed = types[code].is_signed;
    return SHERD_OK;
}

/* Lengths and places of all sequences: each begins where the one before ends. */
static int check_sequences(const struct token_file *file, const uint8_t *index, uint64_t n, const char *name,
    uint64_t bytes, int64_t *tokens)
{
    const uint8_t *lengths = index + HEADER, *places = lengths + 4 * n;
    uint64_t at = 0;
    for (uint64_t i = 0; i < n; i++) {
        int32_t length = (int32_t)get(lengths + 4 * i, 4);
        uint64_t place = get(places + 8 * i, 8);
        if (length < 0)
            return SHERD_FAIL(SHERD_EFORMAT, "%s: byte %llu: sequence %llu has %d tokens", name,
                (unsigned long long)(HEADER + 4 * i), (unsigned long long)i, length);
        if (place != at)
            return SHERD_FAIL(SHERD_EFORMAT,
                "%s: byte %llu: sequence %llu begins at byte %llu of the tokens, but the one before ends at %llu; "
                "sequences that do not follow one another are not read",
                name, (unsigned long long)(HEADER + 4 * n + 8 * i), (unsigned long long)i,
                (unsigned long long)place, (unsigned long long)at);
        at += (uint64_t)length * (uint64_t)file->width;
    }
    if (at != bytes)
        return SHERD_FAIL(SHERD_EFORMAT, "%s: its sequences make %llu bytes, but %s has %llu", name,
            (unsigned long long)at, file->path, (unsigned long long)bytes);
    *tokens = (int64_t)(at / (uint64_t)file->width);
    return SHERD_OK;
}

/* Documents begin at 0 and end at the last sequence. */
static int check_documents(
    const uint8_t *list, uint64_t documents, uint64_t sequences, uint64_t offset, const char *name)
{
    uint64_t before = 0;
    for (uint64_t i = 0; i < documents; i++) {
        uint64_t d = get(list + 8 * i, 8);
        if (i == 0 ? d != 0 : d < before || d > sequences)
            return SHERD_FAIL(SHERD_EFORMAT, "%s: byte %llu: document %llu begins at sequence %llu of %llu",
                name, (unsigned long long)(offset + 8 * i), (unsigned long long)i, (unsigned long long)d,
                (unsigned long long)sequences);
        before = d;
    }
    if (documents > 0 && before != sequences)
        return SHERD_FAIL(SHERD_EFORMAT, "%s: byte %llu: the last document ends at sequence %llu of %llu",
            name, (unsigned long long)(offset + 8 * (documents - 1)), (unsigned long long)before,
            (unsigned long long)sequences);
    return SHERD_OK;
}

int megatron_parse(
    struct token_file *file, const uint8_t *index, size_t index_bytes, const char *name, uint64_t bytes)
{
    if (index_bytes < HEADER || memcmp(index, MAGIC, MAGIC_BYTES) != 0)
        return SHERD_FAIL(SHERD_EFORMAT,
            "%s: byte 0: not the index of a Megatron token file, which begins with MMIDIDX%s", name,
            index_bytes < HEADER ? " and has at least 34 bytes" : "");
    uint64_t version = get(index + 9, 8), n = get(index + 18, 8), documents = get(index + 26, 8);
    if (version != 1)
        return SHERD_FAIL(SHERD_EFORMAT, "%s: byte 9: version %llu, but only version 1 is known", name,
            (unsigned long long)version);
    SHERD_TRY(read_type(file, index[17], name));
    uint64_t room = index_bytes - HEADER;
    if (n > room / 12 || documents > (room - 12 * n) / 8)
        return SHERD_FAIL(SHERD_EFORMAT,
            "%s: byte 18: %llu sequences and %llu documents do not fit in the %zu bytes of the file", name,
            (unsigned long long)n, (unsigned long long)documents, index_bytes);
    uint64_t end = HEADER + 12 * n + 8 * documents;
    if (index_bytes != end && index_bytes != end + n) /* one more byte a sequence: modes */
        return SHERD_FAIL(
            SHERD_EFORMAT, "%s: byte %llu: something was appended", name, (unsigned long long)end);
    file->offset = 0;
    SHERD_TRY(check_sequences(file, index, n, name, bytes, &file->n));
    return check_documents(index + HEADER + 12 * n, documents, n, HEADER + 12 * n, name);
}

static int is_megatron(const struct token_file *file)
{
    char *index = megatron_index(file->path);
    int yes = index != NULL;
    mem_free(index);
    return yes;
}

static int read_megatron(struct token_file *file)
{
    struct file_map map;
    char *index = megatron_index(file->path);
    if (!index)
        return SHERD_FAIL(SHERD_EFORMAT,
            "%s: there is no .idx beside it, which says what is in a Megatron file", file->path);
    int st = file_map(&map, index);
    if (st == SHERD_OK) {
        st = megatron_parse(file, map.data, map.bytes, index, file->map.bytes);
        file_unmap(&map);
    }
    mem_free(index);
    return st;
}

const struct format_ops format_megatron = { "megatron", SHERD_DATA_MEGATRON, 0, is_megatron, read_megatron };
