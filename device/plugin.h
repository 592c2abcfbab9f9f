/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What a device plugin borrows from the program that opens it: the thread's error text, the log, host memory.
 * The library hides its internals, and a test program has none to show, so the plugin neither links nor
 * looks them up: the opener hands over one table (see docs/design.md). To lend one more: one row here and
 * one function in device/cuda/host.c.
 */
#ifndef SHERD_DEVICE_PLUGIN_H
#define SHERD_DEVICE_PLUGIN_H

#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "device/ops.h"

#define PLUGIN_HOST(XX)                                                                                      \
    XX(sherd_version)                                                                                        \
    XX(sherd_fail_at)                                                                                        \
    XX(sherd_error)                                                                                          \
    XX(sherd_status_name)                                                                                    \
    XX(sherd_dtype_bytes)                                                                                    \
    XX(sherd_dtype_name)                                                                                     \
    XX(status_adopt)                                                                                         \
    XX(log_line)                                                                                             \
    XX(mem_zalloc)                                                                                           \
    XX(mem_realloc)                                                                                          \
    XX(mem_free)                                                                                             \
    XX(sherd_device_alloc)                                                                                   \
    XX(sherd_device_free)

struct plugin_host {
    size_t bytes; /* of this struct, and */
    int op_count; /* the operations known: both must be the plugin's own, as must the version */
#define XX(name) __typeof__(name) *name;
    PLUGIN_HOST(XX)
#undef XX
};

#define PLUGIN_LEND(name) .name = name,
#define PLUGIN_HOST_INIT                                                                                     \
    {                                                                                                        \
        .bytes = sizeof(struct plugin_host), .op_count = OP_COUNT, PLUGIN_HOST(PLUGIN_LEND)                  \
    }

/* What libsherd-cuda.so shows, found with dlsym. `host` must live as long as the process. NULL when the
 * plugin was built for another version of sherd. */
typedef const struct dev_ops *plugin_device_fn(const struct plugin_host *host);
#define PLUGIN_DEVICE "sherd_plugin_device"

#endif
