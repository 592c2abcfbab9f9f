/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The token files of llm.c: a header of 256 int32, then 16 or 32 bit tokens.
 */
#include "data/format.h"

#include <string.h>

#include "base/status.h"

#define LLMC_U16 20240520
#define LLMC_U32 20240801

/* Files of the same family that are no token files; their first word tells. */
static const struct {
    int32_t magic;
    const char *text;
} llmc_others[] = {
    { 20240326, "a model" },
    { 20240327, "a debug state" },
    { 20240522, "an evaluation set" },
    { 20240527, "an optimizer state" },
};

static int32_t read_i32(const uint8_t *p)
{
    return (int32_t)((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
}

static int32_t magic_of(const struct file_map *map)
{
    return map->bytes >= 4 ? read_i32(map->data) : 0;
}

static const char *other_llmc(int32_t magic)
{
    for (size_t i = 0; i < ARRAY_LEN(llmc_others); i++)
        if (llmc_others[i].magic == magic)
            return llmc_others[i].text;
    return NULL;
}

static int is_llmc(const struct token_file *file)
{
    int32_t magic = magic_of(&file->map);
    return magic == LLMC_U16 || magic == LLMC_U32 || other_llmc(magic);
}

static int read_llmc(struct token_file *file)
{
    const uint8_t *data = file->map.data;
    int32_t magic = magic_of(&file->map);
    const char *other = other_llmc(magic);
    if (other)
        return SHERD_FAIL(
            SHERD_EFORMAT, "%s: byte 0: magic %d is that of %s, not of tokens", file->path, magic, other);
    if (file->map.bytes < LLMC_HEADER)
        return SHERD_FAIL(SHERD_EFORMAT, "%s: %zu bytes, but an llmc token file has a header of %d bytes",
            file->path, file->map.bytes, LLMC_HEADER);
    if (magic != LLMC_U16 && magic != LLMC_U32)
        return SHERD_FAIL(SHERD_EFORMAT,
            "%s: byte 0: magic %d, expected %d (16 bit tokens) or %d (32 bit); for bare 16 bit tokens set "
            "data.format: u16",
            file->path, magic, LLMC_U16, LLMC_U32);
    int32_t version = read_i32(data + 4), expected = magic == LLMC_U16 ? 1 : 7;
    if (version != expected)
        return SHERD_FAIL(SHERD_EFORMAT, "%s: byte 4: version %d, but only version %d of magic %d is known",
            file->path, version, expected, magic);
    int32_t n = read_i32(data + 8);
    if (n < 0)
        return SHERD_FAIL(SHERD_EFORMAT, "%s: byte 8: token count %d is negative", file->path, n);
    file->width = magic == LLMC_U16 ? 2 : 4;
    file->offset = LLMC_HEADER;
    file->n = n;
    uint64_t need = LLMC_HEADER + (uint64_t)n * (uint64_t)file->width;
    if (file->map.bytes != need)
        return SHERD_FAIL(SHERD_EFORMAT,
            "%s: byte 8: %d tokens of %d bytes make %llu bytes with the header, but the file has %zu: %s",
            file->path, n, file->width, (unsigned long long)need, file->map.bytes,
            file->map.bytes < need ? "it was cut short" : "something was appended");
    return SHERD_OK;
}

const struct format_ops format_llmc = { "llmc", SHERD_DATA_LLMC, 1, is_llmc, read_llmc };

void format_llmc_header(uint8_t out[LLMC_HEADER], int width, int64_t n)
{
    const int64_t words[] = { width == 2 ? LLMC_U16 : LLMC_U32, width == 2 ? 1 : 7, n };
    memset(out, 0, LLMC_HEADER);
    for (int i = 0; i < 12; i++)
        out[i] = (uint8_t)(words[i / 4] >> 8 * (i % 4));
}
