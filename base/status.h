/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * How failures travel: a negative status up the stack, one text kept in the thread.
 * The text is written once, where the failure happened; callers may put a prefix before it, nobody
 * overwrites it.
 */
#ifndef SHERD_BASE_STATUS_H
#define SHERD_BASE_STATUS_H

#include <sherd/base.h>

/* Sets the thread's error text and evaluates to the status. */
#define SHERD_FAIL(status, ...) sherd_fail_at(status, __FILE__, __LINE__, __VA_ARGS__)
int sherd_fail_at(int status, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* A state that our own code should have made impossible: EINTERNAL with text, never an abort. */
#define SHERD_BUG(...) sherd_fail_at(SHERD_EINTERNAL, __FILE__, __LINE__, __VA_ARGS__)

/* Puts "prefix: " before the error text; evaluates to the status given. */
int status_context(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Failures that this thread has had: whether a function has set a text is told by two of these. */
unsigned status_count(void);

/* Replaces the error text with another thread's or rank's. */
int status_adopt(int status, const char *text);

/* Three forms, no fourth: return, go to `out` with st set, keep the first error and go on. */
#define SHERD_TRY(x)                                                                                         \
    do {                                                                                                     \
        int try_st_ = (x);                                                                                   \
        if (try_st_ != SHERD_OK)                                                                             \
            return try_st_;                                                                                  \
    } while (0)
#define SHERD_TRY_OUT(x)                                                                                     \
    do {                                                                                                     \
        st = (x);                                                                                            \
        if (st != SHERD_OK)                                                                                  \
            goto out;                                                                                        \
    } while (0)
#define SHERD_KEEP(st, x)                                                                                    \
    do {                                                                                                     \
        int keep_st_ = (x);                                                                                  \
        if ((st) == SHERD_OK)                                                                                \
            (st) = keep_st_;                                                                                 \
    } while (0)

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

/* x rounded up to a multiple of `to` (to > 0). */
static inline int64_t round_up(int64_t x, int64_t to)
{
    return (x + to - 1) / to * to;
}

#endif
