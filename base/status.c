/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Status names and the thread's error text: a fixed buffer, so that reporting a failure never allocates.
 * Also the small tables of sherd/base.h (element types, version).
 */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"

#define ERROR_BYTES 4096

static _Thread_local char error_text[ERROR_BYTES];
static _Thread_local unsigned error_count;

#define STRINGIZE_(x) #x
#define STRINGIZE(x) STRINGIZE_(x)

const char *sherd_status_name(int status)
{
    switch (status) {
    case SHERD_OK:
        return "OK";
#define XX(name, code, text)                                                                                 \
    case code:                                                                                               \
        return "E" #name;
        SHERD_STATUS_MAP(XX)
#undef XX
    default:
        return "?";
    }
}

const char *sherd_status_text(int status)
{
    switch (status) {
    case SHERD_OK:
        return "success";
#define XX(name, code, text)                                                                                 \
    case code:                                                                                               \
        return text;
        SHERD_STATUS_MAP(XX)
#undef XX
    default:
        return "unknown status";
    }
}

const char *sherd_error(void)
{
    return error_text;
}

const char *sherd_version(void)
{
    return STRINGIZE(SHERD_VERSION_MAJOR) "." STRINGIZE(SHERD_VERSION_MINOR) "." STRINGIZE(SHERD_VERSION_PATCH);
}

/* The arguments may point into the old text, so the new one is made beside it. */
static void set_text(const char *format, va_list args)
{
    char text[ERROR_BYTES];
    if (vsnprintf(text, sizeof(text), format, args) < 0)
        snprintf(text, sizeof(text), "(an error text that could not be formatted: %s)", format);
    memcpy(error_text, text, strlen(text) + 1);
    error_count++;
}

unsigned status_count(void)
{
    return error_count;
}

int sherd_fail_at(int status, const char *file, int line, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    set_text(format, args);
    va_end(args);
    log_debug("%s:%d: %s: %s", file, line, sherd_status_name(status), error_text);
    return status;
}

int sherd_fail(int status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    set_text(format, args);
    va_end(args);
    log_debug("%s: %s", sherd_status_name(status), error_text);
    return status;
}

int status_context(int status, const char *format, ...)
{
    if (status == SHERD_OK)
        return status;
    char old[ERROR_BYTES];
    memcpy(old, error_text, strlen(error_text) + 1);
    va_list args;
    va_start(args, format);
    set_text(format, args);
    va_end(args);
    size_t len = strlen(error_text);
    snprintf(error_text + len, sizeof(error_text) - len, ": %s", old);
    return status;
}

int status_adopt(int status, const char *text)
{
    size_t len = strnlen(text, ERROR_BYTES - 1);
    memmove(error_text, text, len);
    error_text[len] = '\0';
    error_count++;
    return status;
}

size_t sherd_dtype_bytes(enum sherd_dtype type)
{
    switch (type) {
#define XX(name, number, bytes, text, st_text)                                                               \
    case SHERD_##name:                                                                                       \
        return bytes;
        SHERD_DTYPE_MAP(XX)
#undef XX
    default:
        return 0;
    }
}

const char *sherd_dtype_name(enum sherd_dtype type)
{
    switch (type) {
#define XX(name, number, bytes, text, st_text)                                                               \
    case SHERD_##name:                                                                                       \
        return text;
        SHERD_DTYPE_MAP(XX)
#undef XX
    default:
        return "?";
    }
}
