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

#include <sherd/comm.h>

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
    XX(mem_grow)                                                                                             \
    XX(mem_realloc)                                                                                          \
    XX(mem_free)                                                                                             \
    XX(sherd_device_alloc)                                                                                   \
    XX(sherd_device_free)                                                                                    \
    XX(sherd_comm_barrier)

/* Bytes of all that both sides lay out for themselves, and the operations known: an old plugin of the same
 * version must not be taken for a new one. The table of communicators is comm.c's to compare. */
enum plugin_size {
    PLUGIN_SIZE_HOST,
    PLUGIN_SIZE_DEV_OPS,
    PLUGIN_SIZE_DEVICE,
    PLUGIN_SIZE_QUEUE,
    PLUGIN_SIZE_EVENT,
    PLUGIN_SIZE_OPS,
    PLUGIN_SIZES = PLUGIN_SIZE_OPS + OP_COUNT
};

struct plugin_host {
    uint32_t count, sizes[PLUGIN_SIZES]; /* must be the plugin's own, as must the version */
#define XX(name) __typeof__(name) *name;
    PLUGIN_HOST(XX)
#undef XX
};

#define PLUGIN_LEND(name) .name = name,
#define PLUGIN_SIZE_OF(name) [PLUGIN_SIZE_OPS + OP_##name] = sizeof(struct sherd_##name),
#define PLUGIN_SIZES_INIT                                                                                    \
    {                                                                                                        \
        [PLUGIN_SIZE_HOST] = sizeof(struct plugin_host), [PLUGIN_SIZE_DEV_OPS] = sizeof(struct dev_ops),     \
        [PLUGIN_SIZE_DEVICE] = sizeof(struct sherd_device),                                                  \
        [PLUGIN_SIZE_QUEUE] = sizeof(struct sherd_queue), [PLUGIN_SIZE_EVENT] = sizeof(struct sherd_event),  \
        SHERD_OPS(PLUGIN_SIZE_OF)                                                                            \
    }
#define PLUGIN_HOST_INIT                                                                                     \
    {                                                                                                        \
        .count = PLUGIN_SIZES, .sizes = PLUGIN_SIZES_INIT, PLUGIN_HOST(PLUGIN_LEND)                          \
    }

/* What libsherd-cuda.so shows, found with dlsym. `host` must live as long as the process. NULL when the
 * plugin was built from other headers or for another version of sherd. */
typedef const struct dev_ops *plugin_device_fn(const struct plugin_host *host);
#define PLUGIN_DEVICE "sherd_plugin_device"

#endif
