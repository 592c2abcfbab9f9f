/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Text as tokens: the tokenizers of models, and turning files of text into token files once, which training
 * then reads (data.train). Knows nothing of models.
 */
#ifndef SHERD_DATA_H
#define SHERD_DATA_H

#include <sherd/base.h>

#ifdef __cplusplus
extern "C" {
#endif

struct sherd_tokenizer;

/* `path` is a tokenizer.json, a folder that holds one, or "bytes": every byte is a token, and 256 ends a
 * document. EUNSUPPORTED names what in the file is of another kind than byte-level BPE. */
SHERD_API int sherd_tokenizer_open(struct sherd_tokenizer **out, const char *path);
SHERD_API void sherd_tokenizer_close(struct sherd_tokenizer *tokenizer); /* NULL is fine */
/* The largest id + 1. */
SHERD_API int64_t sherd_tokenizer_vocab(const struct sherd_tokenizer *tokenizer);
/* The id of a token by its text, -1 if there is none; and that which ends a document by default. */
SHERD_API int32_t sherd_tokenizer_find(const struct sherd_tokenizer *tokenizer, const char *token);
SHERD_API int32_t sherd_tokenizer_end(const struct sherd_tokenizer *tokenizer);
/* Text (UTF-8) to ids; `whole` also puts what the tokenizer puts before a text (Llama 3: one token). Caller
 * frees *out with free. EFORMAT names the byte that is not UTF-8. */
SHERD_API int sherd_tokenizer_encode(const struct sherd_tokenizer *tokenizer, const char *text, size_t bytes,
    int whole, int32_t **out, int64_t *n);
/* The bytes of one token, borrowed; EINVAL for an id that is none. They need not be whole characters. */
SHERD_API int sherd_tokenizer_token(
    const struct sherd_tokenizer *tokenizer, int32_t id, const uint8_t **out, size_t *bytes);

struct sherd_tokenize_desc {
    const struct sherd_tokenizer *tokenizer;
    const char *const *paths; /* text files, or with `field` JSON lines; each text file is one document. Of
                                 folders what data.train takes as text, in the same order */
    int n_paths;
    const char *field; /* of the object in each line: its text is a document. NULL = plain text */
    const char *to;    /* folder to make, or empty */
    int32_t end;       /* put after each document; -1 = none */
    int64_t shard;     /* tokens of one file; 0 = 100 million */
    int threads;       /* 0 = all cores; the files are the same whatever it is */
};
struct sherd_tokenize_result {
    int files;
    int64_t documents, tokens;
    uint64_t bytes; /* of text read */
    double seconds;
};
/* Writes tokens-000001.bin, ..., with the header of llm.c, and tokens.json, which says what they are and is
 * written last. EFORMAT names file and byte, or line, of what is not UTF-8 or JSON. */
SHERD_API int sherd_tokenize(const struct sherd_tokenize_desc *desc, struct sherd_tokenize_result *out);

#ifdef __cplusplus
}
#endif
#endif
