/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Safetensors files: reading and checking a header, and writing a file as a stream. Strict: everything that
 * the reference reader refuses is refused, and duplicate names too. Knows nothing of checkpoints.
 */
#ifndef SHERD_CKPT_SAFETENSORS_H
#define SHERD_CKPT_SAFETENSORS_H

#include <sherd/base.h>

#include "base/mem.h"

#define ST_MAX_HEADER UINT64_C(100000000) /* bytes of JSON */

struct st_entry {
    const char *name;
    const char *type_name; /* "F32", as in the file */
    enum sherd_dtype type; /* NONE for types that sherd does not compute with */
    int dims;
    const int64_t *shape;
    int64_t elems;
    uint64_t begin, end; /* bytes from the start of the file */
};

/* One member of "__metadata__". */
struct st_meta {
    const char *key, *value;
};

struct st_header {
    struct arena arena; /* owns all below */
    int n, n_meta;
    struct st_entry *entries; /* in the order of the bytes */
    const struct st_entry **by_name;
    struct st_meta *meta;
    uint64_t bytes; /* header with its length: where tensors begin */
};

/* Checks the first bytes of a file: at least its header must be in `data`; file_bytes is the size of the
 * whole file and `name` what messages call it. EFORMAT says what is wrong and with which tensor. */
int st_parse(struct st_header *out, const void *data, size_t bytes, uint64_t file_bytes, const char *name);
/* Reads and checks the header of an open file. */
int st_read(struct st_header *out, int fd, const char *path);
void st_finish(struct st_header *header);

/* NULL where there is none. */
const struct st_entry *st_find(const struct st_header *header, const char *name);
const char *st_meta_find(const struct st_header *header, const char *key);

/* The type as safetensors calls it; NULL for NONE. */
const char *st_type_name(enum sherd_dtype type);
enum sherd_dtype st_type_find(const char *name); /* NONE for unknown ones */

/* "[101, 24]", for messages; "[101, ...]" where there is no room. Returns buf. */
#define ST_SHAPE_BYTES 96
const char *st_shape_text(const int64_t *shape, int dims, char buf[ST_SHAPE_BYTES]);

/* What a file to be written holds, in the order of the bytes. */
struct st_item {
    const char *name;
    enum sherd_dtype type;
    int dims;
    const int64_t *shape;
};

/* The text of the header with its length, padded to 8 bytes with spaces; mem_free it. *file_bytes is the
 * size that the whole file will have. */
int st_header_text(char **out, size_t *bytes, uint64_t *file_bytes, const struct st_item *items, int n,
    const struct st_meta *meta, int n_meta);

/* y[n] = x[n] in another type (F32, BF16, F16), to nearest even. *overflow, if not NULL, becomes the index of
 * the first finite value that is infinite in y's type, or -1. Types may be equal. */
void st_convert(
    void *y, enum sherd_dtype y_type, const void *x, enum sherd_dtype x_type, int64_t n, int64_t *overflow);
/* The same for weights of a model that is to run: floats become bf16 as updates round their masters, of two
 * as near the one farther from zero, so that a frozen tensor has the bits that it was trained to. */
void st_convert_weights(
    void *y, enum sherd_dtype y_type, const void *x, enum sherd_dtype x_type, int64_t n, int64_t *overflow);
int st_convertible(enum sherd_dtype type); /* 1 for F32, BF16, F16 */
/* 1 if no value in `bytes` bytes of one of these types, at any address, is infinite or not a number. */
int st_finite(const void *data, size_t bytes, enum sherd_dtype type);

#endif
