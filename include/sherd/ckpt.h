/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Checkpoints and model folders as files: find, open, list, read a slice, verify, compare, merge. No device
 * and no rank is needed. The format is described to the byte in docs/format.md.
 */
#ifndef SHERD_CKPT_H
#define SHERD_CKPT_H

#include <sherd/base.h>

#ifdef __cplusplus
extern "C" {
#endif

struct sherd_ckpt;

/* Finds the newest complete checkpoint below a run folder (or takes a step folder as it is), skipping
 * incomplete ones with a warning each that says why. *path is freed by the caller; ENOTFOUND says where was
 * looked, ECORRUPT that there are steps and none of them is complete. */
SHERD_API int sherd_ckpt_find(char **path, const char *dir);

/* Opens a step folder: reads the manifest, checks that every file is there with its size. */
SHERD_API int sherd_ckpt_open(struct sherd_ckpt **out, const char *path);
SHERD_API void sherd_ckpt_close(struct sherd_ckpt *ckpt); /* NULL is fine */

struct sherd_ckpt_info {
    int version, world, stage;
    int64_t step, tokens_seen, samples_seen;
    int n_tensors, n_files;
    const char *optimizer; /* "adamw" */
    const char *extra;     /* JSON object given at save, or NULL */
};
SHERD_API void sherd_ckpt_info_of(const struct sherd_ckpt *ckpt, struct sherd_ckpt_info *out);

struct sherd_ckpt_tensor {
    const char *name;
    const char *alias; /* second name of a tied tensor, or NULL */
    enum sherd_dtype type;
    int64_t shape[4];
    int dims;
    int64_t elems;
    int frozen;
    int n_spans; /* pieces it lies in */
};
/* The i-th tensor, in the order of the model; borrowed texts live as long as the ckpt. */
SHERD_API int sherd_ckpt_tensor_at(const struct sherd_ckpt *ckpt, int i, struct sherd_ckpt_tensor *out);

/* One piece: elements [first, first + elems) of the tensor lie in file, written by rank. */
struct sherd_ckpt_span {
    const char *file;
    int rank;
    int64_t first, elems;
};
SHERD_API int sherd_ckpt_span_at(
    const struct sherd_ckpt *ckpt, int tensor, int i, struct sherd_ckpt_span *out);

/* Reads elements [first, first + n) of a tensor as F32. what = "weight" or an optimizer state ("adam.m").
 * EFORMAT/EIO name file and tensor. */
SHERD_API int sherd_ckpt_read(
    struct sherd_ckpt *ckpt, const char *what, int tensor, int64_t first, int64_t n, float *out);

/* Reads every byte once: sums of files and blocks, headers against the manifest (which lists each element of
 * each tensor exactly once), and values. ECORRUPT names the first file that differs, ENONFINITE the last
 * tensor with a value that is infinite or no number, where all else is sound. */
SHERD_API int sherd_ckpt_verify(struct sherd_ckpt *ckpt);

/* A model folder: model.safetensors, or several files and their index. */
SHERD_API int sherd_weights_found(const char *dir); /* 1 if dir is one */
struct sherd_weights_info {
    int n_files, n_tensors;
    int64_t elems;
};
struct sherd_model_spec;
/* Index and headers, values that are infinite or no number (ENONFINITE), and with a spec (of config.json, see
 * sherd_model_config_json; or NULL) that no tensor is missing, left over or of another shape, and that tied
 * ones are equal (EFORMAT by name). */
SHERD_API int sherd_weights_verify(
    const char *dir, const struct sherd_model_spec *spec, struct sherd_weights_info *info);

/* What one tensor or state is in two checkpoints or model folders. */
enum sherd_diff_kind {
    SHERD_DIFF_VALUES, /* compared; n_different may be 0 */
    SHERD_DIFF_SHAPE,  /* of another shape: values are not compared */
    SHERD_DIFF_ONLY_A,
    SHERD_DIFF_ONLY_B,
    SHERD_DIFF_TEXT, /* a number or text of two checkpoints: step, optimizer, ... */
};
struct sherd_diff_item {
    enum sherd_diff_kind kind;
    const char *name;                  /* of the tensor, or of what is told by text */
    const char *what;                  /* "weight" or an optimizer state */
    enum sherd_dtype a_type, b_type;   /* as stored; values are compared as F32 */
    int64_t elems, n_different, first; /* by bits; first is the index of the first that differs */
    double max_abs, max_rel;           /* of |a - b|, and of that by the larger of |a| and |b| */
    int64_t max_ulps;            /* floats between a and b, both ends counted once; -1 if one is no number */
    const char *a_text, *b_text; /* of SHERD_DIFF_TEXT, and shapes of SHERD_DIFF_SHAPE */
};
struct sherd_diff_desc {
    const char *a, *b;                                           /* run folder, step folder or model folder */
    int weights_only;                                            /* neither states nor texts */
    void (*item)(void *ctx, const struct sherd_diff_item *item); /* for each thing compared, or NULL */
    void *ctx;
};
struct sherd_diff_result {
    int compared, different; /* tensors, states and texts */
    int64_t elems;
};
/* Tensors are matched by name or alias. States and texts are compared between two checkpoints. */
SHERD_API int sherd_diff(const struct sherd_diff_desc *desc, struct sherd_diff_result *out);

struct sherd_merge_desc {
    const char *from;      /* run or step folder */
    const char *to;        /* folder to make; must not hold a model already unless overwrite */
    enum sherd_dtype type; /* of the output; NONE = the type the model was trained in */
    uint64_t shard_bytes;  /* largest file; 0 = 5 GB (decimal) */
    int overwrite;
    int aliases;      /* also write the second name of tied tensors */
    const char *with; /* copy tokenizer files and generation_config.json from this folder; NULL = the run's */
};
struct sherd_merge_result {
    int files, tensors;
    int64_t params;
    uint64_t bytes;
    double seconds;
};
/* Streams a checkpoint of any stage and world into a safetensors model folder; memory stays below a fixed
 * buffer however large the model. */
SHERD_API int sherd_merge(const struct sherd_merge_desc *desc, struct sherd_merge_result *out);

#ifdef __cplusplus
}
#endif
#endif
