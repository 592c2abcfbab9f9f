/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What the files of the CPU kind share: its device, its operations, and the hooks for tests. Included by
 * device/cpu/ and by tests, by nobody else.
 */
#ifndef SHERD_DEVICE_CPU_CPU_H
#define SHERD_DEVICE_CPU_CPU_H

#include <stdatomic.h>

#include "device/cpu/pool.h"
#include "device/ops.h"

struct cpu {
    struct cpu_pool *pool;
    int async;
    _Atomic int delay_us;
    struct cpu_graph *graph; /* work is kept here, not done; NULL = it is done */
};

/* The operations. A failure of the work stays with the queue until it is synchronized. */
typedef int (*cpu_op)(struct cpu_lane *lane, const void *args);
#define XX(name) int cpu_##name(struct cpu_lane *lane, const void *args);
SHERD_OPS(XX)
#undef XX

/* Elements of one task of element-wise operations. */
#define CPU_TASK_ELEMS 32768

static inline int64_t cpu_tasks(int64_t n, int64_t task)
{
    return (n + task - 1) / task;
}

/* Rows of one task, so that it has some CPU_TASK_ELEMS elements. */
static inline int64_t cpu_task_rows(int64_t cols)
{
    return cols >= CPU_TASK_ELEMS ? 1 : CPU_TASK_ELEMS / cols;
}

/* blas.c: before the first product of a lane. The BLAS library is opened and has buffers for the lane's
 * thread and its pool's, or it fails: ENOMEM says what it takes. Given back with the lane, and with the pool.
 */
int cpu_blas_join(struct cpu_lane *lane);
void cpu_blas_leave(const struct cpu_lane *lane);
void cpu_blas_leave_pool(struct cpu_pool *pool);

/* c[m,n] = alpha op(a) op(b) + beta c in the calling thread, row-major with leading dimensions. beta 0 does
 * not read c. The lane of the operation has joined. */
void cpu_sgemm(int trans_a, int trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
    int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc);

/* out[cols] = (overwrite) or += the sum of partial[blocks][stride] over the blocks, in order. */
int cpu_add_partials(struct cpu_lane *lane, void *out, enum sherd_dtype type, const float *partial,
    int64_t blocks, int64_t stride, int64_t cols, int overwrite);

/* queue.c: rows of the table. */
int cpu_queue_create(struct sherd_queue *queue);
void cpu_queue_destroy(struct sherd_queue *queue);
int cpu_queue_multiplies(struct sherd_queue *queue);
int cpu_queue_sync(struct sherd_queue *queue);
int cpu_queue_submit(struct sherd_queue *queue, int (*fn)(void *args), const void *args, size_t bytes);
int cpu_queue_op(struct sherd_queue *queue, cpu_op op, const void *args, size_t bytes);
int cpu_event_create(struct sherd_event *event);
void cpu_event_destroy(struct sherd_event *event);
int cpu_event_record(struct sherd_event *event, struct sherd_queue *queue);
int cpu_event_wait(struct sherd_queue *queue, struct sherd_event *event);
int cpu_event_sync(struct sherd_event *event);
int cpu_event_elapsed(struct sherd_event *from, struct sherd_event *to, double *ms);

/* graph.c: calls that are kept, with a copy of `bytes` bytes of arguments. */
struct cpu_call {
    enum { CPU_CALL_OP, CPU_CALL_HOST, CPU_CALL_RECORD, CPU_CALL_WAIT } kind;
    struct sherd_queue *queue;
    cpu_op op;
    int (*host)(void *args);
    struct sherd_event *event;
    const void *args;
    size_t bytes;
};
int cpu_keep(struct sherd_queue *queue, const struct cpu_call *call);
int cpu_capture_begin(struct sherd_queue *queue);
int cpu_capture_end(struct sherd_queue *queue, void **graph);
int cpu_graph_launch(struct sherd_queue *queue, void *graph);
void cpu_graph_destroy(struct sherd_device *dev, void *graph);

/* For tests: every operation and host function on side queues of this device first waits so long. */
void cpu_test_delay(struct sherd_device *dev, int us);

#endif
