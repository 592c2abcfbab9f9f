/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Algorithms that are none of the library's answers to a product: its first answer with other tiles, where
 * their waves promise more than those of all answers, in pairs of blocks. Asking whether the library takes
 * one costs microseconds; calling it costs milliseconds, since its code is loaded.
 */
#include "device/cuda/matmul_plan.h"

#include "base/status.h"
#include "device/tiles.h"

#define PROMISING 0.98 /* of the cost of the best answer's tile: what costs more is not looked at */
#define LOOKED_AT 8    /* tiles: the library may not take each */

uint32_t plan_setting(const cublasLtMatmulAlgo_t *algo, cublasLtMatmulAlgoConfigAttributes_t name)
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

int plan_takes(
    cublasLtHandle_t handle, struct plan *p, const cublasLtMatmulAlgo_t *algo, size_t room, size_t *used)
{
    cublasLtMatmulHeuristicResult_t result = { 0 };
    int taken = cublasLtMatmulAlgoCheck(handle, &p->desc, &p->b, &p->a, &p->c, &p->c, algo, &result) ==
                CUBLAS_STATUS_SUCCESS;
    if (used)
        *used = taken ? result.workspaceSize : 0;
    return taken && result.workspaceSize <= room;
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

/* A pair of blocks shares what lies along the longer side of both. Of the custom options that the library
 * takes, two as a rule, its own answers have the highest for pairs of 1 x 2 and the lowest for 2 x 1; so had
 * the fastest here. */
static int settle(
    cublasLtHandle_t handle, struct plan *p, cublasLtMatmulAlgo_t *algo, const struct tile *tile, size_t room)
{
    const int wide = tile->cols > tile->rows;
    const uint16_t pair = wide ? CUBLASLT_CLUSTER_SHAPE_2x1x1 : CUBLASLT_CLUSTER_SHAPE_1x2x1;
    const int32_t customs = plan_customs(algo);
    for (int32_t i = 0; i <= customs; i++)
        if (plan_with_tile(algo, tile->id, pair, (uint32_t)(wide ? i : customs - i)) &&
            plan_takes(handle, p, algo, room, NULL) && all_aligned(algo, &p->key))
            return 1;
    return 0;
}

/* The least cost of the answers' tiles; 0 where there is none to go by. */
static int64_t least_cost(
    const struct plan_key *key, const cublasLtMatmulHeuristicResult_t *answers, int n, int multiprocessors)
{
    int64_t least = 0;
    for (int i = 0; i < n; i++) {
        const struct tile *tile = tile_find(plan_setting(&answers[i].algo, CUBLASLT_ALGO_CONFIG_TILE_ID));
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
    if (plan_setting(&answers[0].algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM) > 1)
        return 0; /* its waves are others */
    int64_t limit = (int64_t)(PROMISING * (double)least_cost(&p->key, answers, n, multiprocessors));
    int looked_at = tiles_within(limit, p->key.n, p->key.m, multiprocessors, tiles, LOOKED_AT);
    for (int i = 0; i < looked_at && found < most; i++) {
        out[found] = answers[0].algo;
        found += settle(handle, p, &out[found], tiles[i], room);
    }
    return found;
}
