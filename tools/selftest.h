/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What one rank can find out about its device alone. See tools/cmd_selftest.c for what ranks find out
 * together.
 */
#ifndef SHERD_TOOLS_SELFTEST_H
#define SHERD_TOOLS_SELFTEST_H

#include <sherd/sherd.h>

#define FINDING_BYTES 250

/* What a check came to, on one rank; travels as it lies in memory. */
struct finding {
    int32_t wrong;     /* 0 = sound */
    int32_t has_value; /* value is a figure of this check */
    double value;      /* GB/s */
    char text[FINDING_BYTES];
};

/* Each fills *out, and fails only where nothing further can be tried. `bytes` of device memory are used. */
int selftest_device(struct sherd_device *dev, struct finding *out);
int selftest_memory(struct sherd_device *dev, size_t bytes, struct finding *out);
int selftest_matmul(struct sherd_device *dev, struct finding *out);

#endif
