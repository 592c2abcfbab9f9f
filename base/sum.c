/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * XXH3 by xxHash, inlined, so that the state's layout is that of the code that uses it and its memory comes
 * through our own door.
 */
#include "base/sum.h"

#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/mem.h"
#include "base/status.h"

struct sum {
    XXH3_state_t state;
};

int sum_create(struct sum **out)
{
    struct sum *sum = mem_aligned(_Alignof(struct sum), sizeof(*sum));
    if (!sum)
        return SHERD_ENOMEM;
    memset(sum, 0, sizeof(*sum));
    XXH3_128bits_reset(&sum->state);
    *out = sum;
    return SHERD_OK;
}

void sum_destroy(struct sum *sum)
{
    mem_free(sum);
}

void sum_add(struct sum *sum, const void *data, size_t bytes)
{
    if (bytes)
        XXH3_128bits_update(&sum->state, data, bytes);
}

void sum_text(const struct sum *sum, char out[SUM_TEXT_BYTES])
{
    static const char digits[] = "0123456789abcdef";
    XXH128_canonical_t bytes;
    XXH128_canonicalFromHash(&bytes, XXH3_128bits_digest(&sum->state));
    for (size_t i = 0; i < sizeof(bytes.digest); i++) {
        out[2 * i] = digits[bytes.digest[i] >> 4];
        out[2 * i + 1] = digits[bytes.digest[i] & 15];
    }
    out[SUM_TEXT_BYTES - 1] = '\0';
}

uint64_t sum_hash64(const void *data, size_t bytes, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, bytes, seed);
}

/* Four bits at a time, reflected polynomial 0x82f63b78. */
uint32_t sum_crc32c(const void *data, size_t bytes)
{
    static const uint32_t table[16] = { 0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc,
        0x5125dad3, 0x61c69362, 0x7198540d, 0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9, 0xc38d26c4,
        0xd3d3e1ab, 0xe330a81a, 0xf36e6f75 };
    const uint8_t *p = data;
    uint32_t crc = 0xffffffff;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= p[i];
        crc = crc >> 4 ^ table[crc & 15];
        crc = crc >> 4 ^ table[crc & 15];
    }
    return ~crc;
}
