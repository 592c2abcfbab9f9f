/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What every part of sherd speaks: status codes, error text, element types, the log.
 * Called by everybody; knows nothing of tensors in motion, devices or ranks.
 */
#ifndef SHERD_BASE_H
#define SHERD_BASE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SHERD_API __attribute__((visibility("default")))

#define SHERD_VERSION_MAJOR 0
#define SHERD_VERSION_MINOR 1
#define SHERD_VERSION_PATCH 0

/* Every function that can fail returns one of these: 0, or a negative code. The text of the failure,
 * with the file, key, tensor or rank it concerns, is in sherd_error(). */
#define SHERD_STATUS_MAP(XX)                                                                                 \
    XX(NOMEM, -1, "out of memory")                                                                           \
    XX(INVAL, -2, "invalid argument")                                                                        \
    XX(CONFIG, -3, "invalid configuration")                                                                  \
    XX(IO, -4, "input/output error")                                                                         \
    XX(FORMAT, -5, "malformed file")                                                                         \
    XX(CORRUPT, -6, "file contents do not match their sum")                                                  \
    XX(NOTFOUND, -7, "not found")                                                                            \
    XX(EXISTS, -8, "already exists")                                                                         \
    XX(DEVICE, -9, "device error")                                                                           \
    XX(COMM, -10, "communication error")                                                                     \
    XX(PEER, -11, "another rank failed")                                                                     \
    XX(TIMEOUT, -12, "timed out")                                                                            \
    XX(NONFINITE, -13, "non-finite value")                                                                   \
    XX(UNSUPPORTED, -14, "not supported here")                                                               \
    XX(INTERNAL, -15, "internal error")                                                                      \
    XX(STOPPED, -16, "stopped on request")                                                                   \
    XX(DIVERGED, -17, "ranks do not hold the same")

enum sherd_status {
    SHERD_OK = 0,
#define XX(name, code, text) SHERD_E##name = code,
    SHERD_STATUS_MAP(XX)
#undef XX
};

/* Short name ("ENOMEM") and general text of a status; both are static strings. */
SHERD_API const char *sherd_status_name(int status);
SHERD_API const char *sherd_status_text(int status);

/* Text of the last failure in this thread; never NULL, valid until the next failure in this thread. */
SHERD_API const char *sherd_error(void);
/* Sets that text (printf style) and returns the status given: how layers of a model of your own fail. */
SHERD_API int sherd_fail(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* "0.1.0", the version of the library in use (the macros are those of the header in use). */
SHERD_API const char *sherd_version(void);

/* Element types. The numbers are internal; files name types by text. */
#define SHERD_DTYPE_MAP(XX)                                                                                  \
    XX(F32, 1, 4, "f32", "F32")                                                                              \
    XX(BF16, 2, 2, "bf16", "BF16")                                                                           \
    XX(F16, 3, 2, "f16", "F16")                                                                              \
    XX(F64, 4, 8, "f64", "F64")                                                                              \
    XX(I32, 5, 4, "i32", "I32")                                                                              \
    XX(I64, 6, 8, "i64", "I64")                                                                              \
    XX(U8, 7, 1, "u8", "U8")

enum sherd_dtype {
    SHERD_DTYPE_NONE = 0,
#define XX(name, number, bytes, text, st_text) SHERD_##name = number,
    SHERD_DTYPE_MAP(XX)
#undef XX
};

/* Bytes of one element; 0 for an unknown type. */
SHERD_API size_t sherd_dtype_bytes(enum sherd_dtype type);
/* "bf16"; "?" for an unknown type. */
SHERD_API const char *sherd_dtype_name(enum sherd_dtype type);

enum sherd_log_level { SHERD_LOG_ERROR, SHERD_LOG_WARN, SHERD_LOG_INFO, SHERD_LOG_DEBUG };

/* Where log lines go. `text` has no newline. The default prints to stderr. NULL restores the default.
 * The callback may be called from any thread. */
typedef void (*sherd_log_fn)(void *ctx, enum sherd_log_level level, const char *text);
SHERD_API void sherd_log_set(sherd_log_fn fn, void *ctx, enum sherd_log_level max_level);

#ifdef __cplusplus
}
#endif
#endif
