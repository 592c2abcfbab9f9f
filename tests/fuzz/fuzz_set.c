/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * tokens.json from anywhere: names of files stay within their folder, and numbers add up.
 */
#include "tests/fuzz/fuzz.h"

#include <string.h>

#include "base/status.h"
#include "data/format.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct token_set set;
    int64_t sum = 0;
    int st = set_parse(&set, (const char *)data, bytes, "tokens.json");
    if (st != SHERD_OK) {
        FUZZ_CHECK(st == SHERD_EFORMAT && strstr(sherd_error(), "tokens.json"));
        return 0;
    }
    for (int i = 0; i < set.n; i++) {
        FUZZ_CHECK(set.names[i][0] && set.names[i][0] != '.' && !strchr(set.names[i], '/'));
        sum += set.counts[i];
    }
    FUZZ_CHECK(sum == set.tokens && set.vocab > 0);
    set_finish(&set);
    return 0;
}
