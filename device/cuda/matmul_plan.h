/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * A matrix product as cuBLASLt is asked for it: which calls can share an algorithm, the descriptors, what an
 * algorithm may do, and one run. What lies beside the library's answers is in matmul_near.c. Called by
 * matmul.c, which chooses, and by what measures the choice. Knows nothing of queues.
 */
#ifndef SHERD_DEVICE_CUDA_MATMUL_PLAN_H
#define SHERD_DEVICE_CUDA_MATMUL_PLAN_H

#include <cublasLt.h>

#include <sherd/ops.h>

/* All that an algorithm depends on. No padding: compared and hashed as bytes. */
struct plan_key {
    int32_t m, n, k;
    int32_t lda, ldc;
    uint8_t trans_a, trans_b, type, c_type;
    uint8_t bias, beta, in_place, workspace; /* each 0 or 1 */
    uint8_t align_a, align_b, align_c, align_d;
    uint8_t used, unused[3];
};

struct plan {
    struct plan_key key;
    int plain; /* the library has no algorithm: our own kernel */
    cublasLtMatmulDescOpaque_t desc;
    cublasLtMatrixLayoutOpaque_t a, b, c; /* c and d share a layout */
    cublasLtMatmulAlgo_t algo;
};

/* Work space: device memory and its size, or NULL and 0. */
struct plan_room {
    void *at;
    size_t bytes;
};

struct plan_key plan_key_of(const struct sherd_matmul *a, int workspace);
/* Fills the descriptors from the key. */
int plan_describe(struct plan *plan);
/* What the library is to heed in its answers: only algorithms that give the same bits at every run. */
int plan_prefer(cublasLtMatmulPreferenceOpaque_t *pref, const struct plan_key *key, size_t workspace);
/* Enqueues a's product by `algo`, its result to `out`, which may be a->c. Writes into the plan's descriptor.
 */
int plan_run(cublasLtHandle_t handle, struct plan *plan, const cublasLtMatmulAlgo_t *algo,
    const struct sherd_matmul *a, void *out, struct plan_room room, cudaStream_t stream);

/* matmul_near.c: up to `most` algorithms beside the library's `n` answers, one or more, that promise to be
 * faster on so many multiprocessors, the most promising first. The same for the same product, GPU and
 * library. */
int plan_neighbours(cublasLtHandle_t handle, struct plan *plan,
    const cublasLtMatmulHeuristicResult_t *answers, int n, size_t room, int multiprocessors,
    cublasLtMatmulAlgo_t *out, int most);
/* Sets an algorithm; 0 where it cannot be set so. What it is set to, of settings of 32 bits. Its highest
 * custom option. Does the library take it for this product, with so much work space? *used, unless NULL, is
 * what it wants of that, 0 where it is not taken at all. */
int plan_with_tile(cublasLtMatmulAlgo_t *algo, uint32_t tile, uint16_t cluster, uint32_t custom);
uint32_t plan_setting(const cublasLtMatmulAlgo_t *algo, cublasLtMatmulAlgoConfigAttributes_t name);
int32_t plan_customs(const cublasLtMatmulAlgo_t *algo);
int plan_takes(
    cublasLtHandle_t handle, struct plan *plan, const cublasLtMatmulAlgo_t *algo, size_t room, size_t *used);

/* OK, or EDEVICE with the library's name and text of the error. */
int plan_check_at(cublasStatus_t status, const char *what, const char *file, int line);
#define LT_CHECK(call) plan_check_at(call, #call, __FILE__, __LINE__)
#define LT_TRY(call) SHERD_TRY(LT_CHECK(call))

#endif
