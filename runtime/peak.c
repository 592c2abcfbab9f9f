/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What devices can compute at best: dense products of 16 bits, as their makers state it.
 */
#include <string.h>

#include "base/status.h"
#include "runtime/meter.h"

double meter_peak(const char *model, enum sherd_dtype type)
{
    static const struct {
        const char *part; /* of the model's name; longer names before those they contain */
        double tflops;
    } known[] = { { "GB200", 2500 }, { "B200", 2250 }, { "H200", 989 }, { "H100 PCIe", 756 },
        { "H100 NVL", 835 }, { "H100", 989 }, { "H20", 148 }, { "A100", 312 } };
    for (size_t i = 0; i < ARRAY_LEN(known) && type != SHERD_F32; i++)
        if (strstr(model, known[i].part))
            return known[i].tflops;
    return 0;
}
