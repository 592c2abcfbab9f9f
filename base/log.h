/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Log lines: level, optional rank prefix, one callback for the whole process.
 */
#ifndef SHERD_BASE_LOG_H
#define SHERD_BASE_LOG_H

#include <sherd/base.h>

void log_line(enum sherd_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_line(SHERD_LOG_ERROR, __VA_ARGS__)
#define log_warn(...) log_line(SHERD_LOG_WARN, __VA_ARGS__)
#define log_info(...) log_line(SHERD_LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_line(SHERD_LOG_DEBUG, __VA_ARGS__)

/* Lines of this thread carry "[rank R] " from now on; a negative rank removes it. */
void log_rank(int rank);

#endif
