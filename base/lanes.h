/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Work that is shared out among threads once and then over. For work that comes back every few microseconds
 * there is device/cpu/pool.h.
 */
#ifndef SHERD_BASE_LANES_H
#define SHERD_BASE_LANES_H

#include <stdint.h>

#define LANES_MOST 256

/* Cores that this process may use. */
int lanes_cores(void);

/* One task on lane `lane`, which does one at a time. */
typedef void (*lanes_fn)(void *ctx, int64_t task, int lane);

/* Runs tasks 0 to n-1, each once, in any order, on lanes 0 to lanes-1 (LANES_MOST at most); the caller is
 * lane 0. Threads that cannot be started leave their share to the others. Returns when all tasks are done. */
void lanes_run(int lanes, int64_t n, lanes_fn fn, void *ctx);

#endif
