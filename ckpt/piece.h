/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What one rank writes: the pieces of tensors that lie in its slices, in the order of its files; and the
 * same for all ranks as the manifest lists it. Pure arithmetic on the layout.
 */
#ifndef SHERD_CKPT_PIECE_H
#define SHERD_CKPT_PIECE_H

#include "ckpt/manifest.h"
#include "ckpt/safetensors.h"

#define PIECE_META 6

/* Elements [first, first + elems) of a tensor. */
struct piece {
    const struct shard_tensor *tensor;
    int64_t first, elems;
    const char *data;   /* device memory */
    int halves;         /* data and low are halves of floats, as in the view */
    const int16_t *low; /* may be NULL */
    size_t bytes;       /* in the file */
    uint64_t offset;    /* there */
};

/* One file to write. */
struct piece_list {
    struct arena arena; /* owns all below */
    int n;
    struct piece *pieces;
    struct st_item *items; /* as the header of the file lists the pieces */
    struct st_meta meta[PIECE_META];
    char *header; /* the first bytes of the file, up to the pieces' */
    size_t header_bytes;
    uint64_t file_bytes;
};

/* Wider types first, so that every piece is aligned to its type; then states in turn, then the layout's
 * order. The job's views must have been checked. */
int piece_list_init(struct piece_list *list, const struct ckpt_job *job, enum ckpt_kind kind);
void piece_list_finish(struct piece_list *list);

/* Fills m->tensors in the order of the model, with the spans of all ranks. */
int piece_tensors(struct manifest *m, const struct ckpt_job *job);

#endif
