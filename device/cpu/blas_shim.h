/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What device/cpu/blas.c needs of OpenBLAS, as one table in a library of its own: loading OpenBLAS starts
 * threads and takes address space, so it is opened when a CPU multiplies, and not by all who link sherd.
 * Names nothing of sherd's: the shim links to OpenBLAS and nothing else.
 */
#ifndef SHERD_DEVICE_CPU_BLAS_SHIM_H
#define SHERD_DEVICE_CPU_BLAS_SHIM_H

#include <stddef.h>
#include <stdint.h>

#define BLAS_SHIM_VERSION 1
#define BLAS_SHIM_FILE "libsherd-openblas.so"
#define BLAS_SHIM_TABLE "sherd_blas_shim"

/* Address space of one product under way; OpenBLAS keeps it for the next. It asks again and again, without an
 * end, when there is none, so it must be there beforehand. */
#define BLAS_BUFFER_BYTES ((size_t)128 << 20)

struct blas_shim {
    int version;
    /* Keeps OpenBLAS from spreading a product over threads of its own. */
    void (*start)(void);
    /* Makes OpenBLAS keep buffers for n products at once; held has room for n. Returns how many it has. */
    int (*take)(void **held, int n);
    /* c[m,n] = alpha op(a) op(b) + beta c, row-major, in the calling thread. */
    void (*sgemm)(int trans_a, int trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
        int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc);
};

#endif
