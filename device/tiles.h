/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Tiles of matrix products: which of them would keep a GPU's multiprocessors busy for the shortest time, by
 * the waves they need. Called by device/cuda/matmul_near.c. Knows sizes only, nothing of CUDA.
 */
#ifndef SHERD_DEVICE_TILES_H
#define SHERD_DEVICE_TILES_H

#include <stdint.h>

/* `id` is cuBLASLt's number of it; rows and columns are its own too, so columns of our c first. */
struct tile {
    uint16_t id, rows, cols;
};

/* NULL for one that is not listed: those with both sides from 128 on are, up to 256 x 192 elements, the float
 * sums of which fit into the registers of a multiprocessor. */
const struct tile *tile_find(uint32_t id);
/* Elements that each multiprocessor goes through for an output of rows x cols, with something for the edges
 * of each tile. */
int64_t tile_cost(const struct tile *tile, int64_t rows, int64_t cols, int multiprocessors);
/* Those that cost at most `limit`, the cheapest first, and of equal ones as they are numbered; how many of
 * `most`. */
int tiles_within(
    int64_t limit, int64_t rows, int64_t cols, int multiprocessors, const struct tile **out, int most);

#endif
