/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * An open checkpoint and how its bytes are read; and the step folders of a run. Used by load, merge, find
 * and keep; knows nothing of ranks that run now.
 */
#ifndef SHERD_CKPT_OPEN_H
#define SHERD_CKPT_OPEN_H

#include "ckpt/manifest.h"
#include "ckpt/safetensors.h"

struct parts;

struct sherd_ckpt {
    char *path;
    struct manifest manifest;
    struct st_header **headers; /* by file, read when first needed; NULL before */
    int fd, fd_file;            /* the file read last; -1 */
    void *staging;              /* CKPT_STAGING_BYTES, made when first needed */
    /* Bytes [begin, end) of a file, whole blocks whose sums were right. */
    struct {
        const char *data;
        char *own; /* CKPT_STAGING_BYTES, made when first needed */
        int file;
        uint64_t begin, end;
        struct parts *parts; /* borrowed: where the next windows come from, if they are the next parts */
    } window;
    uint64_t bytes_read; /* from the disk: headers, the manifest, blocks */
};

/* Text of a step folder's manifest; ENOTFOUND says that the save was not finished. mem_free it. */
int ckpt_manifest_text(char **text, size_t *bytes, const char *path);
/* As sherd_ckpt_open with the manifest's text at hand; no other file is looked at. */
int ckpt_open_text(struct sherd_ckpt **out, const char *path, const char *text, size_t bytes);
/* Every listed file is there and has its size. */
int ckpt_check_files(const struct sherd_ckpt *ckpt);
/* Recomputes the sums of files first, first + stride, ... that are of one of `kinds` (bit 1 << kind). */
#define CKPT_ALL_KINDS ((1u << CKPT_KINDS) - 1u)
int ckpt_verify_files(struct sherd_ckpt *ckpt, unsigned kinds, int first, int stride);

/* 1 if whatever is read is checked on the way, by the sums of blocks; 0 for older versions, whose files have
 * only a sum as a whole. */
static inline int ckpt_checks_reads(const struct sherd_ckpt *ckpt)
{
    return ckpt->manifest.block > 0;
}
/* Makes file `i` the open one. *path is the caller's to free, also on failure. */
int ckpt_use_file(struct sherd_ckpt *ckpt, int i, char **path);
/* Bytes [offset, offset + bytes) of a file. Reads whole blocks, checks their sums and keeps the last ones:
 * what is asked for in the order of the file is read once. ECORRUPT names the file and the place. */
int ckpt_fetch(struct sherd_ckpt *ckpt, int file, uint64_t offset, size_t bytes, void *out);
/* The same without a copy: *n of the bytes, at least one element, at *out until the next call. Only where
 * ckpt_checks_reads. */
int ckpt_peek(struct sherd_ckpt *ckpt, int file, uint64_t offset, size_t bytes, const void **out, size_t *n);
/* Bytes [begin, end) of an open file, whole blocks but for the last of the file, to memory at a multiple of
 * FILE_DIRECT_ALIGN. Many go past the page cache. */
int ckpt_read_blocks(int fd, char *to, uint64_t begin, uint64_t end, const char *path);
/* Bytes [begin, end) of a file, whole blocks but for the last of the file, are what was saved. */
int ckpt_check_blocks(const struct sherd_ckpt *ckpt, int file, uint64_t begin, uint64_t end, const char *data,
    const char *path);
/* Where an element of a tensor lies: its file, the offset there, and how many elements follow it in the same
 * piece, itself included. */
int ckpt_locate(
    struct sherd_ckpt *ckpt, int state, int tensor, int64_t element, int *file, uint64_t *offset, int64_t *n);

/* Reads the headers of all files of a kind and checks them against the manifest. */
int ckpt_check_headers(struct sherd_ckpt *ckpt, enum ckpt_kind kind);

/* ckpt->staging is there. */
int ckpt_staging(struct sherd_ckpt *ckpt);

/* A step folder of a run. */
struct ckpt_step {
    int64_t step;
    int aside; /* was being replaced when its run died */
    char name[CKPT_NAME_BYTES];
};
/* The step folders below dir by descending number, complete or not; mem_free *out. ENOTFOUND if dir is no
 * folder. */
int ckpt_list_steps(struct ckpt_step **out, int *n, const char *dir);
/* What decides whether a checkpoint stays. */
struct ckpt_note {
    uint64_t run;
    int nonfinite, has_loss;
    double loss;
};
/* OK if the step folder is complete; the text says why not. note may be NULL. */
int ckpt_check_step(const char *dir, const struct ckpt_step *step, struct ckpt_note *note);
/* 1 for failures that mean that the checkpoint is broken; others (no memory, a newer version, a disk that
 * cannot be read) say nothing of it and are never a reason to pass it over or to remove it. */
static inline int ckpt_is_broken(int status)
{
    return status == SHERD_EFORMAT || status == SHERD_ENOTFOUND;
}
void ckpt_step_name(char out[CKPT_NAME_BYTES], const char *prefix, int64_t step);

/* "dir/name"; mem_free it. */
static inline char *ckpt_join(const char *dir, const char *name)
{
    return mem_printf("%s/%s", dir, name);
}

#endif
