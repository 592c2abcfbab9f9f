/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Names, version and limits of a checkpoint on disk: the only place where they stand. docs/format.md
 * describes the same to the byte.
 */
#ifndef SHERD_CKPT_FORMAT_H
#define SHERD_CKPT_FORMAT_H

#include <stdint.h>

#define CKPT_FORMAT "sherd-checkpoint" /* member "format" of the manifest */
#define CKPT_VERSION 2                 /* written; readers refuse newer ones */
#define CKPT_VERSION_BLOCKS 2          /* from this one on files have sums of blocks */

#define CKPT_MANIFEST "manifest.json"
#define CKPT_LATEST "latest"
#define CKPT_WEIGHT "weight" /* what a tensor's own values are called, beside the names of states */

/* Folders. A step folder appears by one rename; the others are leftovers of a run that died: a save that was
 * not finished, and a step folder that was being replaced. */
#define CKPT_STEP_PREFIX "step-"
#define CKPT_TEMP_PREFIX ".tmp-step-"
#define CKPT_ASIDE_PREFIX ".old-step-"
#define CKPT_STEP_DIGITS 8
#define CKPT_MAX_STEP INT64_C(999999999999)

#define CKPT_MAX_WORLD 99999
#define CKPT_MAX_MANIFEST ((size_t)1 << 30)
#define CKPT_NAME_BYTES 64 /* of any file or folder name above, with NUL */

/* Files of a rank: kind, rank and world. */
enum ckpt_kind { CKPT_WEIGHTS, CKPT_STATES, CKPT_KINDS };
#define CKPT_FILE_FORMAT "%s-%05d-of-%05d.safetensors"
#define CKPT_WEIGHTS_WORD "weights"
#define CKPT_STATES_WORD "states"

/* Members of "__metadata__" in a rank's file. "spans" maps the entries that are pieces of a tensor to
 * {"shape": of the whole, "saved_offsets": [first element, row-major]}. */
#define CKPT_META_FORMAT "format"
#define CKPT_META_FORMAT_VALUE "pt"
#define CKPT_META_SHERD "sherd"
#define CKPT_META_STEP "step"
#define CKPT_META_RANK "rank"
#define CKPT_META_WORLD "world"
#define CKPT_META_SPANS "spans"

/* Merged models. */
#define CKPT_MODEL_FILE "model.safetensors"
#define CKPT_MODEL_SHARD_FORMAT "model-%05d-of-%05d.safetensors"
#define CKPT_MODEL_INDEX "model.safetensors.index.json"
#define CKPT_MODEL_CONFIG "config.json"
#define CKPT_MERGE_TEMP ".tmp-merge"
#define CKPT_SHARD_BYTES UINT64_C(5000000000)
#define CKPT_MAX_SHARDS 99999

/* Files are summed in blocks, so that who reads a part can check that part. All files of a checkpoint have
 * blocks of one size: a power of two, the smallest with which none has more than CKPT_BLOCKS_WANTED. */
#define CKPT_BLOCK_LEAST ((uint64_t)4096)
#define CKPT_BLOCK_MOST ((uint64_t)2 << 20)
#define CKPT_BLOCKS_WANTED 4096
static inline uint64_t ckpt_block_bytes(uint64_t largest_file)
{
    uint64_t block = CKPT_BLOCK_LEAST;
    while (block < CKPT_BLOCK_MOST && largest_file > block * CKPT_BLOCKS_WANTED)
        block *= 2;
    return block;
}
static inline uint64_t ckpt_blocks(uint64_t file_bytes, uint64_t block)
{
    return file_bytes / block + (file_bytes % block != 0);
}

/* What is written at a time: a multiple of any block. */
#define CKPT_SLAB_BYTES ((size_t)2 << 20)

/* Buffers: the memory of a load, merge or verify beside headers and the manifest. */
#define CKPT_STAGING_BYTES ((size_t)8 << 20)

#endif
