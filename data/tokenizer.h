/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * A tokenizer: text to ids and back. Bytes alone, or the tokenizer.json of a byte-level BPE (tokjson.c reads
 * it). Immutable once open, so threads share it, each with an encoder of its own.
 */
#ifndef SHERD_DATA_TOKENIZER_H
#define SHERD_DATA_TOKENIZER_H

#include <sherd/data.h>

#include "base/mem.h"
#include "base/text.h"
#include "data/bpe.h"
#include "data/pretok.h"

#define TOKENIZER_BYTES "bytes"
#define TOKENIZER_JSON "tokenizer.json"
#define TOKENIZER_MOST ((size_t)512 << 20) /* bytes of the file */
#define BYTES_END 256                      /* of the tokenizer of bytes: ends a document */

/* A text that is one token wherever it stands. */
struct added_token {
    const char *text;
    size_t bytes;
    int32_t id;
    int lstrip, rstrip; /* takes the white space before, after it along */
    int normalized;     /* looked for after NFC, not before */
    int special;        /* no text of a document */
};

struct sherd_tokenizer {
    struct arena arena;
    struct bpe bpe;
    enum pretok pretok;
    int plain;                 /* of bytes: no words, no merges */
    int compose;               /* NFC */
    int prefix_space;          /* a space is put before text that begins with none */
    struct added_token *added; /* longer ones first */
    int n_added;
    int first_added[2][257]; /* by normalized and first byte: from where in `order` */
    int *order;
    int32_t *before, *after; /* ids that a template puts around a document */
    int n_before, n_after;
    const char *file; /* it was read from; NULL: none */
    int32_t end;      /* ends a document; -1 = none known */
};

/* A file, a folder that holds tokenizer.json, or "bytes". */
int tokenizer_open(struct sherd_tokenizer **out, const char *path);
/* The same from memory. */
int tokenizer_parse(struct sherd_tokenizer **out, const char *text, size_t bytes, const char *name);
void tokenizer_close(struct sherd_tokenizer *tokenizer); /* NULL is fine */
/* Bytes of a token; NULL and 0 for an id that is none. */
const uint8_t *tokenizer_token(const struct sherd_tokenizer *t, int32_t id, size_t *bytes);
/* 1 if text may be cut between "x\n" and "y", neither a space, and encoded in parts. */
int tokenizer_cuts(const struct sherd_tokenizer *t);

/* One thread's encoder. Zero-initialize but for the tokenizer. */
struct encoder {
    const struct sherd_tokenizer *tokenizer;
    struct bpe_work work; /* work.ids[0..n) is what has been encoded */
    struct text composed;
};
/* Appends the ids of a text. EFORMAT "byte N: not UTF-8". */
int encoder_add(struct encoder *e, const uint8_t *text, size_t bytes);
void encoder_finish(struct encoder *e);

/* tokjson.c: fills an empty tokenizer from the root object; `name` for messages. */
int tokjson_read(struct sherd_tokenizer *t, const char *text, size_t bytes, const char *name);

#endif
