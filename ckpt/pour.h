/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Pouring the weights of a checkpoint into one safetensors file, piece of the file after piece, by several
 * threads: each finds where the elements of its piece lie, reads and checks just these, converts and writes
 * them. Memory is two buffers a thread, and the page cache is left alone where the system allows it.
 */
#ifndef SHERD_CKPT_POUR_H
#define SHERD_CKPT_POUR_H

#include "ckpt/open.h"

#define POUR_THREADS 3
#define POUR_BYTES ((uint64_t)16 << 20) /* written at a time */

/* A tensor of the checkpoint and its name in the file. */
struct pour_item {
    const char *name;
    int tensor;
};

/* Makes the file with the items in order, all of one type, and syncs it. The checkpoint's headers have been
 * checked; where its reads are not checked on the way (ckpt_checks_reads), neither are these. ENONFINITE
 * names a finite value that the type cannot hold. *bytes becomes the size of the file. */
int pour_file(struct sherd_ckpt *ckpt, const char *path, const struct pour_item *items, int n,
    enum sherd_dtype type, uint64_t *bytes);

#endif
