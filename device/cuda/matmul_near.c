/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Algorithms that are none of the library's answers to a product: its first answer with other tiles, where
 * their waves promise more than those of all answers. Of a tile the library has few settings compiled, so
 * each is asked for in pairs of blocks and alone, with all custom options, until it takes one. Asking takes
 * microseconds; trying one takes milliseconds, since its code is loaded.
 */
#include "device/cuda/matmul_plan.h"

#include "base/status.h"
#include "device/tiles.h"

#define PROMISING 0.97 /* of the cost of the best answer's tile: what costs more is not looked at */
#define LOOKED_AT 16   /* tiles, most of which the library has no code for */

static uint32_t setting(const cublasLtMatmulAlgo_t *algo, cublasLtMatmulAlgoConfigAttributes_t name)
{
    uint32_t value = 0;
    size_t written;
    (void)cublasLtMatmulAlgoConfigGetAttribute(algo, name, &value, sizeof(value), &written);
    return value;
}

static int aligned(
    const cublasLtMatmulAlgo_t *algo, cublasLtMatmulAlgoCapAttributes_t name, uint8_t power_of_two)
{
    uint32_t bytes = 0;
    size_t written;
    return cublasLtMatmulAlgoCapGetAttribute(algo, name, &bytes, sizeof(bytes), &written) ==
               CUBLAS_STATUS_SUCCESS &&
           bytes <= 1u << power_of_two;
}

/* The library's check knows nothing of addresses. Its first operand is our b. */
static int all_aligned(const cublasLtMatmulAlgo_t *algo, const struct plan_key *key)
{
    return aligned(algo, CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_A_BYTES, key->align_b) &&
           aligned(algo, CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_B_BYTES, key->align_a) &&
           aligned(algo, CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_C_BYTES, key->align_c) &&
           aligned(algo, CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_D_BYTES, key->align_d);
}

int plan_takes(cublasLtHandle_t handle, struct plan *p, const cublasLtMatmulAlgo_t *algo, size_t room)
{
    cublasLtMatmulHeuristicResult_t result = { 0 };
    return cublasLtMatmulAlgoCheck(handle, &p->desc, &p->b, &p->a, &p->c, &p->c, algo, &result) ==
               CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= room;
}

int plan_with_tile(cublasLtMatmulAlgo_t *algo, uint32_t tile, uint16_t cluster, uint32_t custom)
{
    return cublasLtMatmulAlgoConfigSetAttribute(algo, CUBLASLT_ALGO_CONFIG_TILE_ID, &tile, sizeof(tile)) ==
               CUBLAS_STATUS_SUCCESS &&
           cublasLtMatmulAlgoConfigSetAttribute(algo, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, &cluster,
               sizeof(cluster)) == CUBLAS_STATUS_SUCCESS &&
           cublasLtMatmulAlgoConfigSetAttribute(
               algo, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, &custom, sizeof(custom)) == CUBLAS_STATUS_SUCCESS;
}

int32_t plan_customs(const cublasLtMatmulAlgo_t *algo)
{
    int32_t most = 0;
    size_t written;
    (void)cublasLtMatmulAlgoCapGetAttribute(
        algo, CUBLASLT_ALGO_CAP_CUSTOM_OPTION_MAX, &most, sizeof(most), &written);
    return most;
}

/* A pair of blocks shares what lies along the longer side of both. */
static int settle(
    cublasLtHandle_t handle, struct plan *p, cublasLtMatmulAlgo_t *algo, const struct tile *tile, size_t room)
{
    const int wide = tile->cols > tile->rows;
    const uint16_t clusters[] = { wide ? CUBLASLT_CLUSTER_SHAPE_2x1x1 : CUBLASLT_CLUSTER_SHAPE_1x2x1,
        wide ? CUBLASLT_CLUSTER_SHAPE_1x2x1 : CUBLASLT_CLUSTER_SHAPE_2x1x1, CUBLASLT_CLUSTER_SHAPE_1x1x1 };
    const int32_t customs = plan_customs(algo);
    for (size_t i = 0; i < ARRAY_LEN(clusters); i++)
        for (int32_t custom = 0; custom <= customs; custom++)
            if (plan_with_tile(algo, tile->id, clusters[i], (uint32_t)custom) &&
                plan_takes(handle, p, algo, room) && all_aligned(algo, &p->key))
                return 1;
    return 0;
}

/* The least cost of the answers' tiles; 0 where there is none to go by. */
static int64_t least_cost(
    const struct plan_key *key, const cublasLtMatmulHeuristicResult_t *answers, int n, int multiprocessors)
{
    int64_t least = 0;
    for (int i = 0; i < n; i++) {
        const struct tile *tile = tile_find(setting(&answers[i].algo, CUBLASLT_ALGO_CONFIG_TILE_ID));
        int64_t cost = tile ? tile_cost(tile, key->n, key->m, multiprocessors) : 0;
        if (cost > 0 && (least == 0 || cost < least))
            least = cost;
    }
    return least;
}

int plan_neighbours(cublasLtHandle_t handle, struct plan *p, const cublasLtMatmulHeuristicResult_t *answers,
    int n, size_t room, int multiprocessors, cublasLtMatmulAlgo_t *out, int most)
{
    const struct tile *tiles[LOOKED_AT];
    int found = 0;
    if (setting(&answers[0].algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM) > 1)
        return 0; /* its waves are others */
    int64_t limit = (int64_t)(PROMISING * (double)least_cost(&p->key, answers, n, multiprocessors));
    int looked_at = tiles_within(limit, p->key.n, p->key.m, multiprocessors, tiles, LOOKED_AT);
    for (int i = 0; i < looked_at && found < most; i++) {
        out[found] = answers[0].algo;
        found += settle(handle, p, &out[found], tiles[i], room);
    }
    return found;
}
