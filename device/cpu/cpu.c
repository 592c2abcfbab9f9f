/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The CPU as a device: its table, its memory.
 */
#include "device/cpu/cpu.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/lanes.h"
#include "base/mem.h"
#include "base/status.h"

#define MAX_THREADS 512 /* OpenBLAS has room for so many callers at once */
#define ALIGN_BYTES 256
#define HUGE_BYTES ((size_t)2 << 20) /* a large page of x86-64 and most others */

static int open_cpu(struct sherd_device *dev, const struct sherd_device_desc *desc)
{
    if (strcmp(dev->name, "cpu") != 0)
        return SHERD_FAIL(SHERD_EINVAL, "device '%s': there is only one cpu, call it cpu", dev->name);
    if (desc->threads > MAX_THREADS)
        return SHERD_FAIL(SHERD_EINVAL, "device cpu: %d threads, use 1 to %d, or 0 for one per core",
            desc->threads, MAX_THREADS);
    struct cpu *cpu = mem_zalloc(1, sizeof(*cpu));
    if (!cpu)
        return SHERD_ENOMEM;
    cpu->async = desc->async;
    int threads = MIN(dev->threads, MAX_THREADS);
    int st = cpu_pool_create(&cpu->pool, threads);
    if (st != SHERD_OK) {
        mem_free(cpu);
        return st;
    }
    dev->impl = cpu;
    return SHERD_OK;
}

static void close_cpu(struct sherd_device *dev)
{
    struct cpu *cpu = dev->impl;
    cpu_blas_leave_pool(cpu->pool);
    cpu_pool_destroy(cpu->pool);
    mem_free(cpu);
}

static int memory(struct sherd_device *dev, size_t *total, size_t *available)
{
    (void)dev;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    *total = (size_t)sysconf(_SC_PHYS_PAGES) * page;
    *available = (size_t)mem_available();
    return SHERD_OK;
}

static int describe(struct sherd_device *dev, char *buf, size_t bytes)
{
    const struct cpu *cpu = dev->impl;
    int threads = cpu_pool_threads(cpu->pool);
    snprintf(buf, bytes, "%d thread%s, %d cores to run on", threads, threads == 1 ? "" : "s", lanes_cores());
    return SHERD_OK;
}

/* Large blocks ask for large pages: streaming over them is faster. */
static int alloc(struct sherd_device *dev, void **out, size_t bytes)
{
    int huge = bytes >= 4 * HUGE_BYTES;
    void *p = mem_aligned(huge ? HUGE_BYTES : ALIGN_BYTES, bytes);
    if (!p)
        return status_context(SHERD_ENOMEM, "device %s", dev->name);
    if (huge)
        madvise(p, bytes, MADV_HUGEPAGE);
    *out = p;
    return SHERD_OK;
}

static void release(struct sherd_device *dev, void *p)
{
    (void)dev;
    mem_free(p);
}

void cpu_test_delay(struct sherd_device *dev, int us)
{
    struct cpu *cpu = dev->impl;
    atomic_store(&cpu->delay_us, us);
}

#define XX(name)                                                                                             \
    static int queue_##name(struct sherd_queue *queue, const void *args)                                     \
    {                                                                                                        \
        return cpu_queue_op(queue, cpu_##name, args, sizeof(struct sherd_##name));                           \
    }
SHERD_OPS(XX)
#undef XX

const struct dev_ops dev_cpu = {
    .kind = "cpu",
    .open = open_cpu,
    .close = close_cpu,
    .memory = memory,
    .describe = describe,
    .alloc = alloc,
    .free = release,
    .host_alloc = alloc,
    .host_free = release,
    .queue_create = cpu_queue_create,
    .queue_destroy = cpu_queue_destroy,
    .queue_multiplies = cpu_queue_multiplies,
    .queue_sync = cpu_queue_sync,
    .event_create = cpu_event_create,
    .event_destroy = cpu_event_destroy,
    .event_record = cpu_event_record,
    .event_wait = cpu_event_wait,
    .event_sync = cpu_event_sync,
    .event_elapsed = cpu_event_elapsed,
    .event_stamp = cpu_event_record,
    .capture_begin = cpu_capture_begin,
    .capture_end = cpu_capture_end,
    .graph_launch = cpu_graph_launch,
    .graph_destroy = cpu_graph_destroy,
    .submit = cpu_queue_submit,
    .op = {
#define XX(name) [OP_##name] = queue_##name,
        SHERD_OPS(XX)
#undef XX
    },
};
