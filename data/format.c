/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The table of formats, the two that have no header, and what is no text.
 */
#include "data/format.h"

#include <string.h>

#include "base/status.h"
#include "base/text.h"

#define BINARY_PROBE 8192 /* bytes looked at for a NUL */

static int is_bytes(const struct token_file *file)
{
    return !text_ends(file->path, ".bin");
}

static int is_any(const struct token_file *file)
{
    (void)file;
    return 1;
}

static int read_bare(struct token_file *file)
{
    file->width = file->format == SHERD_DATA_U16 ? 2 : 1;
    file->offset = 0;
    if (file->map.bytes % (size_t)file->width != 0)
        return SHERD_FAIL(SHERD_EFORMAT, "%s: %zu bytes is not a whole number of 16 bit tokens", file->path,
            file->map.bytes);
    file->n = (int64_t)(file->map.bytes / (size_t)file->width);
    return SHERD_OK;
}

static const struct format_ops format_bytes = { "bytes", SHERD_DATA_BYTES, 0, is_bytes, read_bare };
static const struct format_ops format_u16 = { "u16", SHERD_DATA_U16, 0, is_any, read_bare };

/* In the order in which files are asked whether they are of it; the last takes any. */
static const struct format_ops *const table[] = { &format_llmc, &format_bytes, &format_megatron,
    &format_u16 };
const char format_names[] = "bytes, llmc, u16 or megatron";

const struct format_ops *format_find(enum sherd_format format)
{
    for (size_t i = 0; i < ARRAY_LEN(table); i++)
        if (table[i]->format == format)
            return table[i];
    return NULL;
}

const struct format_ops *format_guess(const struct token_file *file)
{
    size_t i = 0;
    while (!table[i]->is(file))
        i++;
    return table[i];
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
