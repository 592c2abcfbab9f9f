/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Files of measured choices from anywhere: what is taken is as many lines as the file has, all of it found
 * again.
 */
#include "tests/fuzz/fuzz.h"

#include <string.h>

#include "base/status.h"
#include "device/choices.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct choices choices = { 0 };
    int st = choices_parse(&choices, (const char *)data, bytes, "file"), lines = 0;
    for (size_t i = 0; i < bytes; i++)
        lines += data[i] == '\n';
    FUZZ_CHECK(st == SHERD_OK || (st == SHERD_EFORMAT && strstr(sherd_error(), "file:")));
    FUZZ_CHECK(st != SHERD_OK || choices.n == lines - 1);
    for (int i = 0; i < choices.n; i++)
        FUZZ_CHECK(choices_find(&choices, choices.at[i].key));
    choices_close(&choices);
    return 0;
}
