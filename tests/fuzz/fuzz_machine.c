/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Device files: refused with a text that names the file, or every figure is one that can be divided by.
 */
#include "tests/fuzz/fuzz.h"

#include <math.h>
#include <string.h>

#include <sherd/forecast.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct sherd_machine m;
    sherd_log_set(NULL, NULL, SHERD_LOG_ERROR);
    int st = sherd_machine_parse(&m, (const char *)data, bytes, "fuzz");
    if (st != SHERD_OK) {
        FUZZ_CHECK(st == SHERD_EFORMAT);
        FUZZ_CHECK(strncmp(sherd_error(), "fuzz", 4) == 0);
        return 0;
    }
    FUZZ_CHECK(m.n_matmul >= 1 && m.n_matmul <= SHERD_MACHINE_CLASSES && m.memory_rate >= 1 && m.gpus >= 1);
    FUZZ_CHECK(m.library_bytes <= m.memory && m.attention_forward >= 1 && m.attention_backward >= 1);
    for (int i = 0; i < m.n_matmul; i++)
        FUZZ_CHECK(m.matmul[i].rate >= 1 && isfinite(m.matmul[i].rate));
    for (int l = 0; l < SHERD_LINKS; l++) {
        double s = sherd_collective_seconds(&m, &(struct sherd_place){ 2, l + 1 }, SHERD_ALL_GATHER, 1e6);
        FUZZ_CHECK(m.link[l][0].rate <= 0 || (m.link[0][0].rate <= 0 && l > 0) || (isfinite(s) && s > 0));
    }
    return 0;
}
