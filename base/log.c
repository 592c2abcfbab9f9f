/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The log sink of the process and the rank prefix of the thread. A line is built in a fixed buffer and
 * handed over whole, so that lines of several threads do not mix.
 */
#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define LINE_BYTES 4608 /* an error text, its place and its prefixes */

static pthread_mutex_t sink_lock = PTHREAD_MUTEX_INITIALIZER;
static sherd_log_fn sink_fn; /* NULL = stderr */
static void *sink_ctx;
static atomic_int sink_level = SHERD_LOG_INFO;

static _Thread_local int rank_plus_one; /* 0 = no prefix */

void sherd_log_set(sherd_log_fn fn, void *ctx, enum sherd_log_level max_level)
{
    pthread_mutex_lock(&sink_lock);
    sink_fn = fn;
    sink_ctx = ctx;
    atomic_store(&sink_level, (int)max_level);
    pthread_mutex_unlock(&sink_lock);
}

void log_rank(int rank)
{
    rank_plus_one = rank < 0 ? 0 : rank + 1;
}

static void to_stderr(enum sherd_log_level level, const char *text)
{
    static const char *const prefix[] = { "error: ", "warning: ", "", "debug: " };
    char line[LINE_BYTES + 16];
    int n = snprintf(line, sizeof(line), "%s%s\n", prefix[level], text);
    fwrite(line, 1, (size_t)n, stderr);
}

void log_line(enum sherd_log_level level, const char *format, ...)
{
    if ((int)level > atomic_load_explicit(&sink_level, memory_order_relaxed))
        return;
    int saved = errno;
    char text[LINE_BYTES];
    int at = rank_plus_one ? snprintf(text, sizeof(text), "[rank %d] ", rank_plus_one - 1) : 0;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text + at, sizeof(text) - (size_t)at, format, args);
    va_end(args);
    if (n < 0)
        snprintf(text + at, sizeof(text) - (size_t)at, "(a log line that could not be formatted)");
    else if ((size_t)(at + n) >= sizeof(text))
        memcpy(text + sizeof(text) - 4, "...", 4);

    pthread_mutex_lock(&sink_lock);
    sherd_log_fn fn = sink_fn;
    void *ctx = sink_ctx;
    pthread_mutex_unlock(&sink_lock);
    if (fn)
        fn(ctx, level, text);
    else
        to_stderr(level, text);
    errno = saved;
}
