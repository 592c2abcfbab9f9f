/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * How operations cut their work where the cut shows in the scratch or in the bits: pure functions of the
 * sizes, the same on every device and for any number of threads. Called by scratch.c and by the kinds.
 */
#ifndef SHERD_DEVICE_SCRATCH_H
#define SHERD_DEVICE_SCRATCH_H

#include "base/status.h"

/* Sums over rows are taken in blocks of rows, each block into cols floats of scratch. Blocks are what keeps a
 * GPU busy: four for each of 132 multiprocessors. GPUs take fewer where that is faster, by the sizes and the
 * alignment alone. */
#define SCRATCH_MIN_ROWS 16
#define SCRATCH_MAX_ROW_BLOCKS 528

static inline int64_t scratch_block_rows(int64_t rows)
{
    return MAX((rows + SCRATCH_MAX_ROW_BLOCKS - 1) / SCRATCH_MAX_ROW_BLOCKS, SCRATCH_MIN_ROWS);
}

static inline int64_t scratch_row_blocks(int64_t rows)
{
    return (rows + scratch_block_rows(rows) - 1) / scratch_block_rows(rows);
}

/* square_sum takes blocks of this many elements, each into one double of scratch. */
#define SCRATCH_SUM_ELEMS 65536

static inline int64_t scratch_sum_blocks(int64_t n)
{
    return (n + SCRATCH_SUM_ELEMS - 1) / SCRATCH_SUM_ELEMS;
}

/* cuDNN's attention wants room: forward a little; backward the gradients of each q head's k and v (bf16), the
 * dot products of out and dout (float) and, in one order, the gradients of the scores (bf16, T rounded up to
 * its tiles), in any order sums of dq (float). The smallest run is one kv head with its q heads, over one
 * sequence; as many as fit in SCRATCH_ATTENTION_BYTES are run at once.
 */
#define SCRATCH_ATTENTION_BYTES ((int64_t)512 << 20)
#define SCRATCH_ATTENTION_SMALL 1024

static inline int64_t scratch_attention_backward(
    int64_t batch, int64_t seq, int64_t heads, int64_t kv_heads, int64_t head_dim, int any_order)
{
    int64_t tiles = round_up(seq, 128), own = any_order ? 4 * head_dim : 2 * tiles;
    int64_t run = heads / kv_heads * (tiles * own + seq * (4 * head_dim + 4));
    return MIN(run * batch * kv_heads, MAX(run, SCRATCH_ATTENTION_BYTES)) + SCRATCH_ATTENTION_SMALL;
}

#endif
