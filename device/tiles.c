/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * See tiles.h. A product of R x C tiles on P multiprocessors takes as many waves as tiles / P, rounded up: a
 * last wave of a few tiles takes as long as a full one. So what counts is waves x the time of one tile, which
 * is about its area, and something for its edges, whose operands it fetches.
 */
#include "device/tiles.h"

#include <stddef.h>

#include "base/status.h"

#define EDGE 16 /* elements' time for each row and column of a tile */

/* Of cuBLASLt's cublasLtMatmulTile_t, whose numbers stay from version to version. */
static const struct tile tiles[] = {
    { 20, 128, 128 },
    { 23, 128, 256 },
    { 24, 256, 128 },
    { 29, 128, 160 },
    { 30, 160, 128 },
    { 31, 192, 128 },
    { 32, 128, 192 },
    { 176, 128, 320 },
    { 177, 128, 384 },
    { 179, 136, 128 },
    { 180, 136, 192 },
    { 181, 136, 256 },
    { 182, 136, 320 },
    { 184, 144, 128 },
    { 185, 144, 192 },
    { 186, 144, 256 },
    { 187, 144, 320 },
    { 189, 152, 128 },
    { 190, 152, 192 },
    { 191, 152, 256 },
    { 192, 152, 320 },
    { 194, 160, 192 },
    { 195, 160, 256 },
    { 197, 168, 128 },
    { 198, 168, 192 },
    { 199, 168, 256 },
    { 201, 176, 128 },
    { 202, 176, 192 },
    { 203, 176, 256 },
    { 205, 184, 128 },
    { 206, 184, 192 },
    { 207, 184, 256 },
    { 209, 192, 192 },
    { 210, 192, 256 },
    { 212, 200, 128 },
    { 213, 200, 192 },
    { 215, 208, 128 },
    { 216, 208, 192 },
    { 218, 216, 128 },
    { 219, 216, 192 },
    { 221, 224, 128 },
    { 222, 224, 192 },
    { 224, 232, 128 },
    { 225, 232, 192 },
    { 227, 240, 128 },
    { 228, 240, 192 },
    { 230, 248, 128 },
    { 231, 248, 192 },
    { 232, 256, 192 },
    { 234, 264, 128 },
    { 236, 272, 128 },
    { 238, 280, 128 },
    { 240, 288, 128 },
    { 242, 296, 128 },
    { 244, 304, 128 },
    { 246, 312, 128 },
    { 248, 320, 128 },
    { 250, 328, 128 },
    { 252, 336, 128 },
    { 254, 344, 128 },
    { 256, 352, 128 },
    { 258, 360, 128 },
    { 260, 368, 128 },
    { 262, 376, 128 },
    { 264, 384, 128 },
    { 405, 128, 136 },
    { 406, 128, 144 },
    { 407, 128, 152 },
    { 408, 128, 168 },
    { 409, 128, 176 },
    { 410, 128, 184 },
    { 411, 128, 200 },
    { 412, 128, 208 },
    { 413, 128, 216 },
    { 414, 128, 224 },
    { 415, 128, 232 },
    { 416, 128, 240 },
    { 417, 128, 248 },
    { 418, 128, 264 },
    { 419, 128, 272 },
    { 420, 128, 280 },
    { 421, 128, 288 },
    { 422, 128, 296 },
    { 423, 128, 304 },
    { 424, 128, 312 },
    { 425, 128, 328 },
    { 426, 128, 336 },
    { 427, 128, 344 },
    { 428, 128, 352 },
    { 429, 128, 360 },
    { 430, 128, 368 },
    { 431, 128, 376 },
    { 462, 192, 136 },
    { 463, 192, 144 },
    { 464, 192, 152 },
    { 465, 192, 160 },
    { 466, 192, 168 },
    { 467, 192, 176 },
    { 468, 192, 184 },
    { 469, 192, 200 },
    { 470, 192, 208 },
    { 471, 192, 216 },
    { 472, 192, 224 },
    { 473, 192, 232 },
    { 474, 192, 240 },
    { 475, 192, 248 },
    { 499, 256, 136 },
    { 500, 256, 144 },
    { 501, 256, 152 },
    { 502, 256, 160 },
    { 503, 256, 168 },
    { 504, 256, 176 },
    { 505, 256, 184 },
    { 528, 320, 136 },
    { 529, 320, 144 },
    { 530, 320, 152 },
};

const struct tile *tile_find(uint32_t id)
{
    for (size_t i = 0; i < ARRAY_LEN(tiles); i++)
        if (tiles[i].id == id)
            return &tiles[i];
    return NULL;
}

static int64_t pieces(int64_t whole, int64_t piece)
{
    return (whole + piece - 1) / piece;
}

int64_t tile_cost(const struct tile *tile, int64_t rows, int64_t cols, int multiprocessors)
{
    int64_t n = pieces(rows, tile->rows) * pieces(cols, tile->cols);
    return pieces(n, multiprocessors) * (tile->rows * tile->cols + EDGE * (tile->rows + tile->cols));
}

int tiles_within(
    int64_t limit, int64_t rows, int64_t cols, int multiprocessors, const struct tile **out, int most)
{
    int n = 0;
    for (size_t i = 0; i < ARRAY_LEN(tiles); i++) {
        int64_t cost = tile_cost(&tiles[i], rows, cols, multiprocessors);
        int at = n;
        while (at > 0 && cost < tile_cost(out[at - 1], rows, cols, multiprocessors))
            at--;
        if (cost > limit || at == most)
            continue;
        n += n < most;
        for (int k = n - 1; k > at; k--)
            out[k] = out[k - 1];
        out[at] = &tiles[i];
    }
    return n;
}
