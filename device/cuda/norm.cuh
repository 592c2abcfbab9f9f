/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What the two directions of LayerNorm and RMSNorm share.
 */
#ifndef SHERD_DEVICE_CUDA_NORM_CUH
#define SHERD_DEVICE_CUDA_NORM_CUH

#include "device/cuda/util.cuh"

#define MAX_THREADS 512
#define HELD (MAX_THREADS * WIDE * 2) /* columns: two packs a thread */
#define PER_WARP (32 * WIDE)          /* columns: one pack a thread */

/* Elements before a row: see struct sherd_norm_forward. */
static __device__ __forceinline__ int64_t row_start(int64_t row, int64_t cols, int64_t run, int64_t pitch)
{
    return run ? row / run * pitch + row % run * cols : (int64_t)((uint64_t)(uint32_t)row * (uint32_t)cols);
}

/* An output from h = (x - mean) * rstd: one form for forward and for backward's y, so that the bits are the
 * same. */
static __device__ __forceinline__ float normed(float h, float w, float b)
{
    return fmaf(h, w, b);
}

#endif
