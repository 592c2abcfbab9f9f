/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * A device (the CPU, a GPU): its memory, queues of ordered work, and events between queues.
 * Called by the engine and by model authors; the mathematics stands in sherd/ops.h.
 * Knows nothing of ranks, shards or models.
 */
#ifndef SHERD_DEVICE_H
#define SHERD_DEVICE_H

#include <sherd/base.h>

#ifdef __cplusplus
extern "C" {
#endif

struct sherd_device;
struct sherd_queue;
struct sherd_event;

struct sherd_device_desc {
    const char *name; /* "cpu", "cuda" or "cuda:N"; NULL means "cpu" */
    int threads;      /* of the host, for mathematics of the CPU and for initial values; 0 = one per core */
    /* GPU: time the ways to do each matrix product at its first use and keep the choice in this folder for
     * later runs ("" = only for this one). NULL: the library's own first choice, the same at every run. */
    const char *tune;
    int async; /* CPU: side queues get a thread of their own, so that communication overlaps */
};

/* Opens a device. The caller owns *out; everything made from it must be freed first.
 * EINVAL for an unknown name, EUNSUPPORTED where this machine or build lacks the device, with the reason. */
SHERD_API int sherd_device_open(struct sherd_device **out, const struct sherd_device_desc *desc);
SHERD_API void sherd_device_close(struct sherd_device *dev); /* NULL is fine */

SHERD_API const char *sherd_device_name(const struct sherd_device *dev);
/* Total and free bytes of the device's memory (the host's for "cpu"). */
SHERD_API int sherd_device_memory(struct sherd_device *dev, size_t *total, size_t *available);

/* What it is and whom it reaches, in words: "NVIDIA H200, PCI 0000:1B:00.0, peer access to 7 of 7 other
 * GPUs". Written to buf. */
SHERD_API int sherd_device_describe(struct sherd_device *dev, char *buf, size_t bytes);

/* Where the device of this name is on the host's bus: "0000:1b:00.0", as the system's own names, or "" for
 * one that is on none, as "cpu". The device need not be open: a process may want to be near to it before it
 * has threads. Fails as sherd_device_open does. */
SHERD_API int sherd_device_bus(const char *name, char *buf, size_t bytes);

/* Device memory, aligned to 256 bytes, contents undefined. ENOMEM names the size asked for. */
SHERD_API int sherd_device_alloc(struct sherd_device *dev, void **out, size_t bytes);
SHERD_API void sherd_device_free(struct sherd_device *dev, void *p);
/* Host memory that the device copies to and from at full speed (pinned for a GPU). */
SHERD_API int sherd_host_alloc(struct sherd_device *dev, void **out, size_t bytes);
SHERD_API void sherd_host_free(struct sherd_device *dev, void *p);

enum sherd_queue_kind {
    SHERD_QUEUE_COMPUTE, /* the mathematics; on the CPU it runs at once in the calling thread */
    SHERD_QUEUE_SIDE,    /* communication and copies: high priority; on the CPU a thread if desc.async */
    SHERD_QUEUE_LATE,    /* mathematics that fills gaps: low priority; on the CPU as SIDE */
};

/* Work on one queue runs in order; between queues only events order. */
SHERD_API int sherd_queue_create(
    struct sherd_queue **out, struct sherd_device *dev, enum sherd_queue_kind kind);
SHERD_API void sherd_queue_destroy(struct sherd_queue *queue);
/* Waits until all work on the queue is done; returns the first error of that work. */
SHERD_API int sherd_queue_sync(struct sherd_queue *queue);
SHERD_API struct sherd_device *sherd_queue_device(struct sherd_queue *queue);

/* An event marks a place in a queue. Waiting for an event that was never recorded does nothing. */
SHERD_API int sherd_event_create(struct sherd_event **out, struct sherd_device *dev);
SHERD_API void sherd_event_destroy(struct sherd_event *event);
SHERD_API int sherd_event_record(struct sherd_event *event, struct sherd_queue *queue);
/* Later work on `queue` waits for the event as recorded last before this call. */
SHERD_API int sherd_event_wait(struct sherd_queue *queue, struct sherd_event *event);
/* The host waits. */
SHERD_API int sherd_event_sync(struct sherd_event *event);
/* Milliseconds between two recorded and finished events. */
SHERD_API int sherd_event_elapsed(struct sherd_event *from, struct sherd_event *to, double *ms);

struct sherd_device_counters {
    uint64_t allocs;     /* device allocations made since the device was opened */
    uint64_t bytes;      /* device bytes held now */
    uint64_t peak_bytes; /* most device bytes ever held */
    /* Device bytes that libraries (NCCL, cuBLAS, cuDNN) and queues took for themselves since the device was
     * opened, by how much less was free after their set-up and first uses; others who use the GPU meanwhile
     * disturb it. Not in `bytes`. */
    uint64_t library_bytes;
    uint64_t ops; /* operations submitted */
    double flops; /* multiply-adds of matmul and attention counted twice, as usual */
};
SHERD_API void sherd_device_read(const struct sherd_device *dev, struct sherd_device_counters *out);

#ifdef __cplusplus
}
#endif
#endif
