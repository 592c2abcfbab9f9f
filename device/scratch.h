/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * How operations cut their work where the cut shows in the scratch or in the bits: pure functions of the
 * sizes, the same on every device and for any number of threads. Called by scratch.c and by the kinds.
 */
#ifndef SHERD_DEVICE_SCRATCH_H
#define SHERD_DEVICE_SCRATCH_H

#include "base/status.h"

/* Sums over rows are taken in blocks of rows, each block into cols floats of scratch. */
#define SCRATCH_MIN_ROWS 16
#define SCRATCH_MAX_ROW_BLOCKS 128

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

#endif
