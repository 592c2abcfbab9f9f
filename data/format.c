/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Telling the format of a token file, and reading and writing the header of llm.c.
 */
#include "data/format.h"

#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "base/text.h"

#define LLMC_U16 20240520
#define LLMC_U32 20240801
#define BINARY_PROBE 8192 /* bytes looked at for a NUL */

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

const char *format_name(enum sherd_format format)
{
    switch (format) {
    case SHERD_DATA_AUTO:
        return "auto";
    case SHERD_DATA_BYTES:
        return "bytes";
    case SHERD_DATA_LLMC:
        return "llmc";
    case SHERD_DATA_U16:
        return "u16";
    case SHERD_DATA_MEGATRON:
        return "megatron";
    }
    return "?";
}

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

enum sherd_format format_guess(const struct token_file *file)
{
    int32_t magic = magic_of(&file->map);
    if (magic == LLMC_U16 || magic == LLMC_U32 || other_llmc(magic))
        return SHERD_DATA_LLMC;
    if (!text_ends(file->path, ".bin"))
        return SHERD_DATA_BYTES;
    char *index = megatron_index(file->path);
    mem_free(index);
    return index ? SHERD_DATA_MEGATRON : SHERD_DATA_U16;
}

/* Files that hold data sets, arrays or models, or texts that are packed. */
static const struct {
    const char *magic, *text;
} strangers[] = {
    { "PAR1", "a Parquet file" },
    { "ARROW1", "an Arrow file" },
    { "\x93NUMPY", "an array of NumPy" },
    { "\x1f\x8b", "packed by gzip" },
    { "\x28\xb5\x2f\xfd", "packed by zstd" },
    { "BZh", "packed by bzip2" },
    { "\xfd"
      "7zXZ",
        "packed by xz" },
    { "PK\x03\x04", "a zip archive, as PyTorch saves as well" },
    { "%PDF-", "a PDF" },
};

const char *format_no_text(const struct token_file *file)
{
    const uint8_t *data = file->map.data;
    size_t bytes = file->map.bytes, probe = MIN(bytes, (size_t)BINARY_PROBE);
    for (size_t i = 0; i < ARRAY_LEN(strangers); i++) {
        size_t n = strlen(strangers[i].magic);
        if (bytes >= n && memcmp(data, strangers[i].magic, n) == 0)
            return strangers[i].text;
    }
    return memchr(data, 0, probe) ? "a binary file" : NULL;
}

static int read_llmc_header(struct token_file *file)
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

int format_read(struct token_file *file)
{
    if (file->format == SHERD_DATA_LLMC)
        return read_llmc_header(file);
    if (file->format == SHERD_DATA_MEGATRON)
        return read_megatron(file);
    file->width = file->format == SHERD_DATA_U16 ? 2 : 1;
    file->offset = 0;
    if (file->map.bytes % (size_t)file->width != 0)
        return SHERD_FAIL(SHERD_EFORMAT, "%s: %zu bytes is not a whole number of 16 bit tokens", file->path,
            file->map.bytes);
    file->n = (int64_t)(file->map.bytes / (size_t)file->width);
    return SHERD_OK;
}

void format_llmc_header(uint8_t out[LLMC_HEADER], int width, int64_t n)
{
    const int64_t words[] = { width == 2 ? LLMC_U16 : LLMC_U32, width == 2 ? 1 : 7, n };
    memset(out, 0, LLMC_HEADER);
    for (int i = 0; i < 12; i++)
        out[i] = (uint8_t)(words[i / 4] >> 8 * (i % 4));
}
