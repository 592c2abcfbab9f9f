/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The manifest: which logical tensors a checkpoint holds and which file holds which of their elements. A pure
 * data structure with its text form; touches no file. A manifest that was parsed is consistent: every
 * element of every tensor lies in exactly one span, and every span's files are listed.
 */
#ifndef SHERD_CKPT_MANIFEST_H
#define SHERD_CKPT_MANIFEST_H

#include "base/mem.h"
#include "base/sum.h"
#include "ckpt/ckpt.h"
#include "ckpt/format.h"

#define MANIFEST_SUM "sum"     /* the last member: XXH3-64 of all bytes before its comma */
#define MANIFEST_TAIL_BYTES 33 /* ",\n  \"sum\": \"0123456789abcdef\"\n}\n" and NUL */

/* Elements [first, first + elems) of a tensor lie in the files of `rank`. */
struct manifest_span {
    int rank;
    int64_t first, elems;
};

struct manifest_tensor {
    const char *name, *alias; /* alias may be NULL */
    enum sherd_dtype type;    /* of the weight as stored; states are always F32 */
    int64_t shape[SHERD_MAX_DIMS];
    int dims;
    int64_t elems;
    int frozen, no_decay;
    struct manifest_span *spans; /* ascending, without holes */
    int n_spans;
};

struct manifest_file {
    const char *name;
    int rank;
    enum ckpt_kind kind;
    uint64_t bytes;
    char sum[SUM_TEXT_BYTES];
    const uint64_t *blocks; /* XXH3-64 of each block, ckpt_blocks() many; NULL before CKPT_VERSION_BLOCKS */
};

/* A name or alias and its tensor. */
struct manifest_name {
    const char *name;
    int tensor;
};

struct manifest {
    struct arena arena; /* owns what a parsed manifest points to */
    int version, world;
    const char *sherd; /* version of the writer */
    uint64_t block;    /* bytes; 0 before CKPT_VERSION_BLOCKS */
    struct ckpt_meta meta;
    struct manifest_file *files;
    int n_files;
    int *file_of[CKPT_KINDS]; /* by rank: index of a file, or -1; set by manifest_index */
    struct manifest_tensor *tensors;
    int n_tensors;
    struct manifest_name *names; /* sorted; set by manifest_index */
    int n_names;
};

/* EFORMAT names the file, the tensor and what is wrong; EUNSUPPORTED for a newer version. On failure *out is
 * finished. */
int manifest_parse(struct manifest *out, const char *text, size_t bytes, const char *name);
/* mem_free the text. */
int manifest_print(char **out, const struct manifest *m);
void manifest_finish(struct manifest *m);
/* The end of a manifest with the sum of the text before it. */
void manifest_tail(char out[MANIFEST_TAIL_BYTES], const char *text, size_t bytes);

/* Index of the tensor with that name or alias; -1 if there is none. */
int manifest_find(const struct manifest *m, const char *name);
/* Index of a state's name; -1 if there is none. */
int manifest_state(const struct manifest *m, const char *what);
/* "weights-00000-of-00004.safetensors" */
void manifest_file_name(char out[CKPT_NAME_BYTES], enum ckpt_kind kind, int rank, int world);

#endif
