/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The first seam: what a kind of device must provide. One table per kind; device/device.c checks arguments
 * and counts, then calls through the table. Adding an operation: one row in SHERD_OPS, one struct, one check
 * in device/check.c, its bytes in device/cost.c, one function per kind. Adding a kind: one table and one row
 * in device/device.c.
 */
#ifndef SHERD_DEVICE_OPS_H
#define SHERD_DEVICE_OPS_H

#include <sherd/device.h>
#include <sherd/ops.h>

enum op_index {
#define XX(name) OP_##name,
    SHERD_OPS(XX)
#undef XX
        OP_COUNT
};

/* Bytes of the argument struct of each operation, by op_index; and its name. */
extern const size_t op_arg_bytes[OP_COUNT];
extern const char *const op_names[OP_COUNT];

/* Work on a queue: `args` is the operation's struct, valid during the call only. */
typedef int (*op_fn)(struct sherd_queue *queue, const void *args);

struct comm_ops;

struct dev_ops {
    const char *kind; /* "cpu" */
    int behind;       /* works behind the host's back, so that work which is kept saves time */
    int (*open)(struct sherd_device *dev, const struct sherd_device_desc *desc);
    void (*close)(struct sherd_device *dev);
    int (*memory)(struct sherd_device *dev, size_t *total, size_t *available);
    int (*describe)(struct sherd_device *dev, char *buf, size_t bytes);
    int (*bus)(const char *name, char *buf, size_t bytes); /* see sherd_device_bus; NULL: on none */
    int (*alloc)(struct sherd_device *dev, void **out, size_t bytes); /* 256-byte aligned */
    void (*free)(struct sherd_device *dev, void *p);
    int (*host_alloc)(struct sherd_device *dev, void **out, size_t bytes);
    void (*host_free)(struct sherd_device *dev, void *p);
    int (*queue_create)(struct sherd_queue *queue); /* dev and kind are set */
    void (*queue_destroy)(struct sherd_queue *queue);
    /* The queue will multiply: what that takes of the host is taken now, not in the middle of the work. NULL:
     * it takes nothing. */
    int (*queue_multiplies)(struct sherd_queue *queue);
    int (*queue_sync)(struct sherd_queue *queue);
    int (*event_create)(struct sherd_event *event); /* dev is set */
    void (*event_destroy)(struct sherd_event *event);
    int (*event_record)(struct sherd_event *event, struct sherd_queue *queue);
    int (*event_wait)(struct sherd_queue *queue, struct sherd_event *event);
    int (*event_sync)(struct sherd_event *event);
    int (*event_elapsed)(struct sherd_event *from, struct sherd_event *to, double *ms);
    /* As event_record, for the time alone; in captured work the time of each launch. */
    int (*event_stamp)(struct sherd_event *event, struct sherd_queue *queue);
    /* Work that is kept and launched again as a whole; all three NULL where the device cannot. From
     * capture_begin on, work of `queue`, and of queues that wait for its events, is not done but kept, with
     * its arguments, until capture_end gives it as *graph. Before, all queues must be idle; before the end,
     * `queue` must wait for the others. Events that were recorded outside are taken as reached inside, and
     * the other way round: a launch is ordered by its queue alone. Where capturing fails, nothing of it is
     * left. */
    int (*capture_begin)(struct sherd_queue *queue);
    int (*capture_end)(struct sherd_queue *queue, void **graph);
    int (*graph_launch)(struct sherd_queue *queue, void *graph);
    void (*graph_destroy)(struct sherd_device *dev, void *graph);
    /* Runs a host function in queue order with a copy of `args`. NULL where the device cannot (then comm
     * for that device must not need it). */
    int (*submit)(struct sherd_queue *queue, int (*fn)(void *args), const void *args, size_t bytes);
    /* How ranks on such devices talk, see comm/ops.h; NULL: over shared memory, by `submit`. */
    const struct comm_ops *comm;
    op_fn op[OP_COUNT];
};

/* A span of a queue's work, as a profiler is shown it. `args` is the operation's struct, valid during the
 * call; `bytes` of a collective are one rank's part. */
enum probe_kind { PROBE_PART, PROBE_WAIT, PROBE_COLLECTIVE, PROBE_OP };
struct probe_span {
    enum probe_kind kind;
    const char *name; /* constant */
    enum op_index op;
    const void *args;
    uint64_t bytes;
};

/* Somebody who times the work: spans of one queue nest. Called by the thread that submits. */
struct device_probe {
    int ops; /* every operation is wanted, not only waits and collectives */
    int (*begin)(struct device_probe *probe, struct sherd_queue *queue, const struct probe_span *span);
    int (*end)(struct device_probe *probe, struct sherd_queue *queue);
};

struct sherd_device {
    const struct dev_ops *ops;
    char name[32];
    char model[64];               /* of the hardware, "NVIDIA H200"; "" when that says nothing */
    void *impl;                   /* the kind's own */
    int threads;                  /* of the host that are there for this device, at least 1 */
    struct device_probe *probe;   /* NULL: nobody looks, which costs nothing; borrowed */
    struct device_blocks *blocks; /* sizes of the allocations held, for the counters; device.c's own */
    /* counters, atomic */
    uint64_t allocs, bytes, peak_bytes;
    uint64_t op_calls, apart_calls; /* of queues that are not apart, and of those that are */
    uint64_t library_bytes;         /* the kind's to add to */
    double flops;                   /* written by the thread that submits; read at rest */
};

struct sherd_queue {
    struct sherd_device *dev;
    enum sherd_queue_kind kind;
    int apart; /* its work is another thread's than the one that submits steps: no probe sees it, and it is
                  never part of what is kept */
    void *impl;
};

struct sherd_event {
    struct sherd_device *dev;
    void *impl;
};

/* Before a queue's first work, so that it is refused now rather than fails later for want of memory. */
int device_will_multiply(struct sherd_queue *queue);

/* The seam's entries of the same names; those of captures only where device_captures says that there are any.
 */
int device_captures(const struct sherd_device *dev);
int device_capture_begin(struct sherd_queue *queue);
int device_capture_end(struct sherd_queue *queue, void **graph);
int device_graph_launch(struct sherd_queue *queue, void *graph);
void device_graph_destroy(struct sherd_device *dev, void *graph); /* NULL is fine */
int device_stamp(struct sherd_event *event, struct sherd_queue *queue);

/* Argument checks at the edge, by op_index: OK or EINVAL with the operation and field named. */
extern int (*const op_check[OP_COUNT])(const void *args);
/* Floating-point operations of a call, 0 where not counted. */
double op_flops(enum op_index op, const void *args);
/* Bytes that a call must read and write at least, each operand once; 0 where not counted. */
double op_bytes(enum op_index op, const void *args);
/* The sizes of a call for people: "16384x5632x2048 nt bf16". */
void op_shape(enum op_index op, const void *args, char out[48]);

/* The kinds, in device/device.c; their names in order, NULL past the end. */
const char *device_kind(int i);

/* Opens a library beside this one, or else where the system looks; it stays loaded. how = RTLD_LOCAL or
 * RTLD_GLOBAL. NULL: dlerror() says why. */
void *device_library(const char *file, int how);
extern const struct dev_ops dev_cpu;
/* Does nothing, has operations only: see device/dry.c. */
extern const struct dev_ops dev_dry;

#endif
