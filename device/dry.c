/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Operations that do nothing: with a probe on the device, what a layer would do can be looked at without
 * memory, hardware or data. It has operations only; nobody opens it by name.
 */
#include "device/ops.h"

static int nothing(struct sherd_queue *queue, const void *args)
{
    (void)queue;
    (void)args;
    return SHERD_OK;
}

const struct dev_ops dev_dry = {
    .kind = "dry",
    .op = {
#define XX(name) [OP_##name] = nothing,
        SHERD_OPS(XX)
#undef XX
    },
};
