/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Threads for the mathematics of the CPU kind. A job is n tasks whose sizes come from the problem and never
 * from the number of threads, so that results do not depend on it. The calling thread takes part.
 * Knows nothing of queues and operations.
 */
#ifndef SHERD_DEVICE_CPU_POOL_H
#define SHERD_DEVICE_CPU_POOL_H

#include <sherd/base.h>

struct cpu_pool;

/* Scratch of one thread: grows at first use, then stays. */
struct cpu_panel {
    void *data;
    size_t bytes;
};

/* Where a caller stands: one for each queue, used by one thread at a time. */
struct cpu_lane {
    struct cpu_pool *pool;
    int side;       /* runs its tasks alone rather than wait when the pool is busy */
    int multiplies; /* there are buffers for products of its thread; blas.c's */
    struct cpu_panel panel;
};

/* `panel` has the bytes that cpu_parallel was asked for, aligned to 64; contents undefined. */
typedef void (*cpu_task)(const void *ctx, int64_t task, void *panel);

int cpu_pool_create(struct cpu_pool **out, int threads); /* threads >= 1, the caller's included */
void cpu_pool_destroy(struct cpu_pool *pool);
int cpu_pool_threads(const struct cpu_pool *pool);
int *cpu_pool_multiplies(struct cpu_pool *pool); /* as that of a lane, for all threads but callers' */
void cpu_lane_finish(struct cpu_lane *lane);

/* Runs fn for tasks 0..n_tasks-1 in any order and returns when all are done. Tasks must not call it. Fails
 * only when panels cannot grow, before any task has run. */
int cpu_parallel(struct cpu_lane *lane, cpu_task fn, const void *ctx, int64_t n_tasks, size_t panel_bytes);

#endif
