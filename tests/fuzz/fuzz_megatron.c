/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Indexes of Megatron from anywhere: what is taken has as many tokens as its file has bytes for.
 */
#include "tests/fuzz/fuzz.h"

#include <string.h>

#include "base/status.h"
#include "data/format.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static char path[] = "x.bin";
    for (uint64_t size = 0; size <= 40; size += 10) {
        struct token_file file = { .path = path };
        int st = megatron_parse(&file, data, bytes, "x.idx", size);
        if (st == SHERD_OK)
            FUZZ_CHECK(file.n >= 0 && (uint64_t)file.n * (uint64_t)file.width == size);
        else
            FUZZ_CHECK(st == SHERD_EFORMAT && strstr(sherd_error(), "x.idx"));
    }
    return 0;
}
