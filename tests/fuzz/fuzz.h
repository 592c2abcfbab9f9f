/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What a fuzz target is: one function over any bytes, which returns 0 and must neither crash, leak, hang nor
 * break its own FUZZ_CHECKs. Driven by libFuzzer or by replay.c.
 */
#ifndef SHERD_TESTS_FUZZ_FUZZ_H
#define SHERD_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Unlike assert, stays in release builds. */
#define FUZZ_CHECK(x)                                                                                        \
    do {                                                                                                     \
        if (!(x)) {                                                                                          \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #x);                           \
            abort();                                                                                         \
        }                                                                                                    \
    } while (0)

#endif
