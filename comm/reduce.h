/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Sums and maxima over the ranks' copies of an array, in rank order.
 * Called by comm/shm.c; knows nothing of shared memory.
 */
#ifndef SHERD_COMM_REDUCE_H
#define SHERD_COMM_REDUCE_H

#include "comm/ops.h"

/* out[n] = src[0] op src[1] op ... src[ranks - 1], from left to right: half types are added in float and
 * rounded once, integers wrap. A maximum with a NaN is NaN. out may be one of the sources, but not overlap
 * one otherwise. */
void reduce_ranks(
    void *out, const void *const *src, int ranks, int64_t n, enum sherd_dtype type, enum sherd_reduce reduce);

#endif
