/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Which tensor of a model folder is which of a model. Names decide, never order; nothing may be missing,
 * nothing left over, and shapes must be equal.
 */
#ifndef SHERD_CKPT_MATCH_H
#define SHERD_CKPT_MATCH_H

#include "ckpt/hf.h"
#include "shard/layout.h"

/* Both by tensor of the layout. */
struct match {
    const struct hf_model *model;
    const struct hf_tensor **source;
    const struct hf_tensor **second; /* the files' own copy of a tied tensor, or NULL */
};

/* EFORMAT names the tensor that is missing, left over, or of another shape; EUNSUPPORTED a type. On failure
 * *m is finished. The model stays. */
int match_init(struct match *m, const struct hf_model *model, const struct shard_layout *layout);
void match_finish(struct match *m);

/* 1 for tensors that files have and models do not need: masks and angles that follow from the sizes. */
int match_is_buffer(const char *name);

/* EFORMAT for a tied tensor whose two copies hold other values. */
int match_differ(const struct match *m, int tensor);

#endif
