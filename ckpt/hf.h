/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * A model folder as other libraries have it: model.safetensors, or several files and their index. Opening
 * reads the headers; tensors are read by ranges. Knows nothing of checkpoints, ranks or what a tensor is for.
 */
#ifndef SHERD_CKPT_HF_H
#define SHERD_CKPT_HF_H

#include "ckpt/safetensors.h"

struct hf_tensor {
    const char *name;
    int file;
    const struct st_entry *entry;
};

struct hf_file {
    const char *name;
    struct st_header header;
};

struct hf_model {
    struct arena arena; /* owns the texts and lists */
    const char *path;
    struct hf_file *files;
    int n_files;
    struct hf_tensor *tensors; /* sorted by name */
    int n_tensors;
    int fd, fd_file;     /* the file read last; -1 */
    uint64_t bytes_read; /* headers, index and tensors */
};

/* 1 if the folder holds the files of such a model. */
int hf_is_model(const char *dir);

/* ENOTFOUND, EFORMAT or EIO name the file, and the tensor that the index lists and no file holds, or that two
 * files hold. */
int hf_open(struct hf_model **out, const char *dir);
void hf_close(struct hf_model *model); /* NULL is fine */

/* By its exact name; NULL if there is none. */
const struct hf_tensor *hf_find(const struct hf_model *model, const char *name);
/* The same, also by the name without its first word, as files of a bare GPT-2 have it ("h.0.ln_1.weight"). */
const struct hf_tensor *hf_find_any(const struct hf_model *model, const char *name);

/* Elements [first, first + n) as they are stored. */
int hf_read(struct hf_model *model, const struct hf_tensor *tensor, int64_t first, int64_t n, void *out);

/* The files that an index lists, in the order of their names, each once, texts in the arena; and the number
 * of tensors. EFORMAT for a name that is a path. For tests of their own. */
int hf_index_files(struct arena *arena, const char ***files, int *n, int64_t *n_tensors, const char *text,
    size_t bytes, const char *name);

#endif
