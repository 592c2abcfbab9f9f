/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Saving and loading the state of an engine: the collective side of checkpoints (the rest is in
 * sherd/ckpt.h). A checkpoint does not depend on the stage: whatever a rank holds whole, it writes its own
 * slice of. Knows nothing of optimizers or models: states are named views over a layout.
 */
#ifndef SHERD_CKPT_CKPT_H
#define SHERD_CKPT_CKPT_H

#include <sherd/ckpt.h>
#include "comm/ops.h"
#include "shard/layout.h"

/* What the manifest holds beside tensors. Texts are borrowed when saving; after ckpt_load they are NULL. */
struct ckpt_meta {
    int stage;
    int64_t step, tokens_seen, samples_seen;
    uint64_t seed;
    enum sherd_dtype param_type;
    const char *optimizer;
    const char *const *states; /* names of the optimizer states */
    int n_states;
    const char *export_json; /* config.json for exports, or NULL */
    const char *extra;       /* JSON object, or NULL */
};

/* The views hold at least this rank's slice of every segment: the weight of each, and for TRAINED segments
 * the optimizer states. Saving writes the slice, loading fills the views, be they the slice or more. Weights
 * of TRAINED segments and states are F32. */
struct ckpt_job {
    const struct shard_layout *layout;
    const struct shard_view *views;
    int n_views;
    struct sherd_comm *comm;
    struct sherd_device *dev;
    struct ckpt_meta meta; /* save: to write; load: as read */
    uint64_t bytes_read;   /* load: by this rank, with headers and manifest */
};

/* Collective. Writes `dir`/step-%08d: all ranks write into a folder with a temporary name, sync and sum
 * their files, agree, rank 0 writes the manifest, one rename makes the checkpoint exist; then `dir`/latest.
 * On failure every rank gets a status, the temporary folder is removed and older checkpoints are intact. */
int ckpt_save(const struct ckpt_job *job, const char *dir);

/* Collective. Fills the views from a step folder written at any world and stage; each rank reads only what
 * it needs. Every tensor must be there with the right shape, nothing may be left over; missing states of a
 * tensor that was frozen when saved start at zero, with a log line; a frozen tensor that is stored in another
 * type than its view has is converted. Padding is left alone. Sets job->meta and job->bytes_read. */
int ckpt_load(struct ckpt_job *job, const char *path);

/* Removes all but the newest `keep` complete checkpoints of dir, and temporary folders left by a run that
 * died; keep = 0 keeps all checkpoints. One rank calls it. */
int ckpt_rotate(const char *dir, int64_t keep);

#endif
