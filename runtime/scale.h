/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The loss scale of f16: gradients are computed so many times larger, or small ones would be lost. It falls
 * when a gradient overflows and rises after a while without; each rank follows it alone, from norms that all
 * know, so all have the same.
 */
#ifndef SHERD_RUNTIME_SCALE_H
#define SHERD_RUNTIME_SCALE_H

#include <sherd/config.h>

struct scale {
    double value;       /* 1 unless weights are f16 */
    int dynamic;        /* the rest is for this */
    int64_t hysteresis; /* overflows up to the next fall, that one included */
    int64_t good;       /* steps since the last overflow, or the start */
};

void scale_init(struct scale *scale, const struct sherd_config *config);
/* A step overflowed. 0: the scale is as small as it may be, and nothing has changed. */
int scale_overflow(struct scale *scale, const struct sherd_config *config);
/* A step was taken. */
void scale_good(struct scale *scale, const struct sherd_config *config);

#endif
