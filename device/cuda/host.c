/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The plugin's door: what the program lends (device/plugin.h) under the names the rest of the plugin calls,
 * and the one function it shows. The table is written once, before any device is opened.
 */
#include "device/plugin.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "device/cuda/kind.h"

static const struct plugin_host *host;

#define TEXT_BYTES 4096
#define STRINGIZE_(x) #x
#define STRINGIZE(x) STRINGIZE_(x)
#define BUILT_FOR                                                                                            \
    STRINGIZE(SHERD_VERSION_MAJOR) "." STRINGIZE(SHERD_VERSION_MINOR) "." STRINGIZE(SHERD_VERSION_PATCH)

int sherd_fail_at(int status, const char *file, int line, const char *format, ...)
{
    char text[TEXT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return host->sherd_fail_at(status, file, line, "%s", text);
}

void log_line(enum sherd_log_level level, const char *format, ...)
{
    char text[TEXT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    host->log_line(level, "%s", text);
}

const char *sherd_error(void)
{
    return host->sherd_error();
}

const char *sherd_status_name(int status)
{
    return host->sherd_status_name(status);
}

size_t sherd_dtype_bytes(enum sherd_dtype type)
{
    return host->sherd_dtype_bytes(type);
}

const char *sherd_dtype_name(enum sherd_dtype type)
{
    return host->sherd_dtype_name(type);
}

int status_adopt(int status, const char *text)
{
    return host->status_adopt(status, text);
}

void *mem_zalloc(size_t n, size_t size)
{
    return host->mem_zalloc(n, size);
}

int mem_grow(void *items, int *cap, int need, size_t size)
{
    return host->mem_grow(items, cap, need, size);
}

void *mem_realloc(void *p, size_t n, size_t size)
{
    return host->mem_realloc(p, n, size);
}

void mem_free(void *p)
{
    host->mem_free(p);
}

int sherd_device_alloc(struct sherd_device *dev, void **out, size_t bytes)
{
    return host->sherd_device_alloc(dev, out, bytes);
}

void sherd_device_free(struct sherd_device *dev, void *p)
{
    host->sherd_device_free(dev, p);
}

int sherd_comm_barrier(struct sherd_comm *comm)
{
    return host->sherd_comm_barrier(comm);
}

plugin_device_fn sherd_plugin_device;

/* The two were built apart, so nothing is trusted before the sizes agree. */
SHERD_API const struct dev_ops *sherd_plugin_device(const struct plugin_host *lent)
{
    static const uint32_t sizes[] = PLUGIN_SIZES_INIT;
    if (lent->count != PLUGIN_SIZES || memcmp(lent->sizes, sizes, sizeof(sizes)) != 0 ||
        strcmp(lent->sherd_version(), BUILT_FOR) != 0)
        return NULL;
    host = lent;
    return &dev_cuda;
}
