/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Work that is kept and launched again, on the CPU: a list of calls with copies of their arguments. Saves the
 * CPU little; it is here so that what stands above the seam can be tested where there is no GPU.
 */
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "device/cpu/cpu.h"

struct cpu_graph {
    struct cpu_call *calls;
    int n, cap;
    struct arena args;
};

int cpu_keep(struct sherd_queue *queue, const struct cpu_call *call)
{
    struct cpu_graph *g = ((struct cpu *)queue->dev->impl)->graph;
    SHERD_TRY(mem_grow(&g->calls, &g->cap, g->n + 1, sizeof(*g->calls)));
    struct cpu_call *kept = &g->calls[g->n];
    *kept = *call;
    kept->queue = queue;
    kept->args = NULL;
    if (call->bytes) {
        void *copy = arena_zalloc(&g->args, 1, call->bytes);
        if (!copy)
            return SHERD_ENOMEM;
        memcpy(copy, call->args, call->bytes);
        kept->args = copy;
    }
    g->n++;
    return SHERD_OK;
}

int cpu_capture_begin(struct sherd_queue *queue)
{
    struct cpu *cpu = queue->dev->impl;
    cpu->graph = mem_zalloc(1, sizeof(*cpu->graph));
    return cpu->graph ? SHERD_OK : SHERD_ENOMEM;
}

int cpu_capture_end(struct sherd_queue *queue, void **graph)
{
    struct cpu *cpu = queue->dev->impl;
    *graph = cpu->graph;
    cpu->graph = NULL;
    return SHERD_OK;
}

static int call_again(const struct cpu_call *call)
{
    switch (call->kind) {
    case CPU_CALL_OP:
        return cpu_queue_op(call->queue, call->op, call->args, call->bytes);
    case CPU_CALL_HOST:
        return cpu_queue_submit(call->queue, call->host, call->args, call->bytes);
    case CPU_CALL_RECORD:
        return cpu_event_record(call->event, call->queue);
    case CPU_CALL_WAIT:
        return cpu_event_wait(call->queue, call->event);
    }
    return SHERD_BUG("cpu graph: call %d", (int)call->kind);
}

int cpu_graph_launch(struct sherd_queue *queue, void *graph)
{
    const struct cpu_graph *g = graph;
    (void)queue; /* every call has its own */
    for (int i = 0; i < g->n; i++)
        SHERD_TRY(call_again(&g->calls[i]));
    return SHERD_OK;
}

void cpu_graph_destroy(struct sherd_device *dev, void *graph)
{
    struct cpu_graph *g = graph;
    (void)dev;
    arena_finish(&g->args);
    mem_free(g->calls);
    mem_free(g);
}
