/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Sums of files and hashes of things: XXH3-128 and XXH3-64 (xxHash).
 */
#ifndef SHERD_BASE_SUM_H
#define SHERD_BASE_SUM_H

#include <sherd/base.h>

#define SUM_TEXT_BYTES 33 /* 32 hex digits and NUL */

struct sum; /* a running XXH3-128 */
int sum_create(struct sum **out);
void sum_destroy(struct sum *sum);
void sum_add(struct sum *sum, const void *data, size_t bytes);
/* Canonical (big-endian) hex of the sum so far. */
void sum_text(const struct sum *sum, char out[SUM_TEXT_BYTES]);

/* CRC-32C (Castagnoli), as in TFRecord files. */
uint32_t sum_crc32c(const void *data, size_t bytes);

uint64_t sum_hash64(const void *data, size_t bytes, uint64_t seed);

#endif
