/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Formats of token files: what the header of each says, and the list that `sherd tokenize` leaves in a
 * folder. walk.c finds the files, tokens.c makes one stream of them.
 */
#ifndef SHERD_DATA_FORMAT_H
#define SHERD_DATA_FORMAT_H

#include <sherd/config.h>

#include "base/file.h"

#define LLMC_HEADER 1024 /* bytes: 256 int32 */

struct token_file {
    char *path;
    struct file_map map;
    enum sherd_format format;
    int width;        /* bytes of a token, little endian: 1, 2, 4 or 8 */
    int is_signed;    /* below 0 is no token */
    uint64_t offset;  /* of the first token in the file */
    int64_t first, n; /* place in the stream, tokens */
};

/* A format: a file of its own where there is something to parse, and one row of the table in format.c. */
struct format_ops {
    const char *name; /* its word in data.format */
    enum sherd_format format;
    int has_header;                           /* an empty file that was named is broken */
    int (*is)(const struct token_file *file); /* by content and name; asked unless a row before says yes */
    int (*read)(struct token_file *file);     /* fills width, offset and n; EFORMAT names file and byte */
};

/* The rows that are not format.c's own. */
extern const struct format_ops format_llmc, format_megatron;
/* All of them, for messages. */
extern const char format_names[];

/* NULL for auto. */
const struct format_ops *format_find(enum sherd_format format);
const struct format_ops *format_guess(const struct token_file *file);
/* What a file that is taken for text is instead, by its first bytes, as "a Parquet file"; NULL for text. */
const char *format_no_text(const struct token_file *file);

/* The header of a file of n tokens of 2 or 4 bytes. */
void format_llmc_header(uint8_t out[LLMC_HEADER], int width, int64_t n);

/* Megatron: PREFIX.bin holds the tokens and PREFIX.idx what they are. The path of the .idx that belongs to
 * this path: PREFIX, PREFIX.bin or PREFIX.idx; mem_free it. NULL if there is none, or no memory. */
char *megatron_index(const char *path);
/* The same with .bin. */
char *megatron_tokens(const char *index);
/* Takes width and number from an index, for tokens in `bytes` bytes. `name` for messages. */
int megatron_parse(
    struct token_file *file, const uint8_t *index, size_t index_bytes, const char *name, uint64_t bytes);

#define SET_JSON "tokens.json"
#define SHARD_NAME "tokens-" /* begins the names of its files */
#define SHARD_PART ".part"   /* ends the name of the one that is being written */
#define SET_FORMAT "sherd-tokens"
#define SET_VERSION 1
#define SET_BYTES ((size_t)64 << 20)

/* What tokens.json says. Zero-initialize; set_finish frees. */
struct token_set {
    int64_t vocab, tokens;
    char **names; /* of the files, in order */
    int64_t *counts;
    int n;
};
int set_parse(struct token_set *out, const char *text, size_t bytes, const char *name);
void set_finish(struct token_set *set);

#endif
