/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * OpenBLAS behind the table of device/cpu/blas_shim.h.
 */
#include "device/cpu/blas_shim.h"

#include <cblas.h>

/* OpenBLAS shows these but declares them in no header: the buffer of one product, kept when it is freed. */
extern void *blas_memory_alloc(int place);
extern void blas_memory_free(void *buffer);

static void start(void)
{
    openblas_set_num_threads(1);
}

static int take(void **held, int n)
{
    int taken = 0;
    while (taken < n && (held[taken] = blas_memory_alloc(0)) != NULL)
        taken++;
    for (int i = 0; i < taken; i++)
        blas_memory_free(held[i]);
    return taken;
}

static void sgemm(int trans_a, int trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
    int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc)
{
    cblas_sgemm(CblasRowMajor, trans_a ? CblasTrans : CblasNoTrans, trans_b ? CblasTrans : CblasNoTrans,
        (blasint)m, (blasint)n, (blasint)k, alpha, a, (blasint)lda, b, (blasint)ldb, beta, c, (blasint)ldc);
}

__attribute__((visibility("default"))) extern const struct blas_shim sherd_blas_shim;
const struct blas_shim sherd_blas_shim = {
    .version = BLAS_SHIM_VERSION, .start = start, .take = take, .sgemm = sgemm
};
