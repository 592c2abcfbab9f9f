/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Devices by name, and the public wrappers: check at the edge, count, call through the table of the kind.
 */
#include "device/ops.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/lanes.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "device/plugin.h"

const size_t op_arg_bytes[OP_COUNT] = {
#define XX(name) sizeof(struct sherd_##name),
    SHERD_OPS(XX)
#undef XX
};

const char *const op_names[OP_COUNT] = {
#define XX(name) #name,
    SHERD_OPS(XX)
#undef XX
};

/* Kinds, by the part of the name before ':'. A kind is in this library, or in a plugin that is opened when
 * asked for, so that one build serves machines with and without its hardware and drivers. */
static const struct {
    const char *name;
    const struct dev_ops *ops;
    const char *plugin;
    const char *hint;
} kinds[] = {
    { "cpu", &dev_cpu, NULL, NULL },
    { "cuda", NULL, "libsherd-cuda.so",
        "use device cpu, or install an NVIDIA driver, CUDA and a build with -Dcuda=enabled" },
};

static const struct plugin_host plugin_host = PLUGIN_HOST_INIT;

/* The folder of the file that this code is in, with '/'; empty if unknown. */
static void own_folder(char *out, size_t bytes)
{
    Dl_info info;
    const char *slash = dladdr(kinds, &info) && info.dli_fname ? strrchr(info.dli_fname, '/') : NULL;
    int n = slash ? (int)(slash - info.dli_fname) + 1 : 0;
    snprintf(out, bytes, "%.*s", n, n ? info.dli_fname : "");
}

void *device_library(const char *file, int how)
{
    char path[4096];
    own_folder(path, sizeof(path));
    size_t n = strlen(path);
    snprintf(path + n, sizeof(path) - n, "%s", file);
    /* one that is there and cannot be opened is not looked for elsewhere: dlerror says what it lacks */
    return dlopen(access(path, F_OK) == 0 ? path : file, RTLD_NOW | how | RTLD_NODELETE);
}

static int load_plugin(const struct dev_ops **out, const char *name, const char *file, const char *hint)
{
    void *plugin = device_library(file, RTLD_LOCAL);
    if (!plugin)
        return SHERD_FAIL(
            SHERD_EUNSUPPORTED, "device '%s' cannot be used here: %s; %s", name, dlerror(), hint);
    plugin_device_fn *get = NULL;
    void *symbol = dlsym(plugin, PLUGIN_DEVICE);
    memcpy(&get, &symbol, sizeof(get));
    dlclose(plugin);
    *out = get ? get(&plugin_host) : NULL;
    if (!*out)
        return SHERD_FAIL(SHERD_EUNSUPPORTED,
            "device '%s': %s is not of this build of sherd (%s); build and install both together", name, file,
            sherd_version());
    return SHERD_OK;
}

const char *device_kind(int i)
{
    return i >= 0 && i < (int)ARRAY_LEN(kinds) ? kinds[i].name : NULL;
}

static int unknown(const char *name)
{
    char all[128] = "";
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        size_t len = strlen(all);
        snprintf(all + len, sizeof(all) - len, "%s%s", i ? ", " : "", kinds[i].name);
    }
    return SHERD_FAIL(
        SHERD_EINVAL, "unknown device '%s': there are %s; a GPU may have a number, as cuda:1", name, all);
}

static int find_kind(const struct dev_ops **out, const char *name)
{
    size_t n = strcspn(name, ":");
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        if (strlen(kinds[i].name) != n || strncmp(kinds[i].name, name, n) != 0)
            continue;
        *out = kinds[i].ops;
        return *out ? SHERD_OK : load_plugin(out, name, kinds[i].plugin, kinds[i].hint);
    }
    return unknown(name);
}

/* ---- the device ---- */

/* What is allocated, so that freeing counts too. */
struct device_blocks {
    pthread_mutex_t lock;
    struct block {
        const void *at;
        size_t bytes;
    } * items;
    int n, cap;
};

int sherd_device_open(struct sherd_device **out, const struct sherd_device_desc *desc)
{
    if (!out || !desc)
        return SHERD_FAIL(SHERD_EINVAL, "sherd_device_open: out or desc is NULL");
    struct sherd_device_desc full = *desc;
    full.name = full.name ? full.name : "cpu";
    const struct dev_ops *ops = NULL;
    struct sherd_device *dev = NULL;
    int st = SHERD_OK;
    if (strlen(full.name) >= sizeof(dev->name))
        return unknown(full.name);
    if (full.threads < 0)
        return SHERD_FAIL(SHERD_EINVAL, "device %s: %d threads, use 1 or more, or 0 for one per core",
            full.name, full.threads);
    SHERD_TRY(find_kind(&ops, full.name));
    dev = mem_zalloc(1, sizeof(*dev));
    if (!dev)
        return SHERD_ENOMEM;
    dev->ops = ops;
    dev->threads = full.threads ? full.threads : lanes_cores();
    snprintf(dev->name, sizeof(dev->name), "%s", full.name);
    dev->blocks = mem_zalloc(1, sizeof(*dev->blocks));
    if (!dev->blocks) {
        st = SHERD_ENOMEM;
        goto out;
    }
    pthread_mutex_init(&dev->blocks->lock, NULL);
    SHERD_TRY_OUT(ops->open(dev, &full));
    *out = dev;
    return SHERD_OK;
out:
    if (dev->blocks)
        pthread_mutex_destroy(&dev->blocks->lock);
    mem_free(dev->blocks);
    mem_free(dev);
    return st;
}

void sherd_device_close(struct sherd_device *dev)
{
    if (!dev)
        return;
    if (dev->blocks->n > 0)
        log_warn("device %s is closed while %d of its allocations are held", dev->name, dev->blocks->n);
    dev->ops->close(dev);
    pthread_mutex_destroy(&dev->blocks->lock);
    mem_free(dev->blocks->items);
    mem_free(dev->blocks);
    mem_free(dev);
}

const char *sherd_device_name(const struct sherd_device *dev)
{
    return dev->name;
}

int sherd_device_memory(struct sherd_device *dev, size_t *total, size_t *available)
{
    return dev->ops->memory(dev, total, available);
}

int sherd_device_describe(struct sherd_device *dev, char *buf, size_t bytes)
{
    if (!dev || !buf || bytes == 0)
        return SHERD_FAIL(SHERD_EINVAL, "sherd_device_describe: dev or buf is NULL, or there are 0 bytes");
    return dev->ops->describe(dev, buf, bytes);
}

int sherd_device_bus(const char *name, char *buf, size_t bytes)
{
    const struct dev_ops *ops = NULL;
    if (!name || !buf || bytes == 0)
        return SHERD_FAIL(SHERD_EINVAL, "sherd_device_bus: name or buf is NULL, or there are 0 bytes");
    buf[0] = '\0';
    SHERD_TRY(find_kind(&ops, name));
    return ops->bus ? ops->bus(name, buf, bytes) : SHERD_OK;
}

/* ---- memory ---- */

/* Under the lock, with room already made. */
static void count_block(struct sherd_device *dev, const void *at, size_t bytes)
{
    struct device_blocks *blocks = dev->blocks;
    blocks->items[blocks->n++] = (struct block){ at, bytes };
    uint64_t held = __atomic_add_fetch(&dev->bytes, bytes, __ATOMIC_RELAXED);
    __atomic_add_fetch(&dev->allocs, 1, __ATOMIC_RELAXED);
    if (held > __atomic_load_n(&dev->peak_bytes, __ATOMIC_RELAXED))
        __atomic_store_n(&dev->peak_bytes, held, __ATOMIC_RELAXED);
}

int sherd_device_alloc(struct sherd_device *dev, void **out, size_t bytes)
{
    struct device_blocks *blocks = dev->blocks;
    pthread_mutex_lock(&blocks->lock);
    int st = mem_grow(&blocks->items, &blocks->cap, blocks->n + 1, sizeof(*blocks->items));
    if (st == SHERD_OK)
        st = dev->ops->alloc(dev, out, bytes);
    if (st == SHERD_OK)
        count_block(dev, *out, bytes);
    pthread_mutex_unlock(&blocks->lock);
    return st;
}

void sherd_device_free(struct sherd_device *dev, void *p)
{
    if (!p)
        return;
    struct device_blocks *blocks = dev->blocks;
    pthread_mutex_lock(&blocks->lock);
    for (int i = blocks->n - 1; i >= 0; i--) {
        if (blocks->items[i].at == p) {
            __atomic_sub_fetch(&dev->bytes, blocks->items[i].bytes, __ATOMIC_RELAXED);
            blocks->items[i] = blocks->items[--blocks->n];
            break;
        }
    }
    pthread_mutex_unlock(&blocks->lock);
    dev->ops->free(dev, p);
}

int sherd_host_alloc(struct sherd_device *dev, void **out, size_t bytes)
{
    return dev->ops->host_alloc(dev, out, bytes);
}

void sherd_host_free(struct sherd_device *dev, void *p)
{
    if (p)
        dev->ops->host_free(dev, p);
}

void sherd_device_read(const struct sherd_device *dev, struct sherd_device_counters *out)
{
    out->allocs = __atomic_load_n(&dev->allocs, __ATOMIC_RELAXED);
    out->bytes = __atomic_load_n(&dev->bytes, __ATOMIC_RELAXED);
    out->peak_bytes = __atomic_load_n(&dev->peak_bytes, __ATOMIC_RELAXED);
    out->library_bytes = __atomic_load_n(&dev->library_bytes, __ATOMIC_RELAXED);
    out->ops = __atomic_load_n(&dev->op_calls, __ATOMIC_RELAXED) +
               __atomic_load_n(&dev->apart_calls, __ATOMIC_RELAXED);
    out->flops = dev->flops;
}

/* ---- order ---- */

int sherd_queue_create(struct sherd_queue **out, struct sherd_device *dev, enum sherd_queue_kind kind)
{
    if (kind != SHERD_QUEUE_COMPUTE && kind != SHERD_QUEUE_SIDE && kind != SHERD_QUEUE_LATE)
        return SHERD_FAIL(SHERD_EINVAL, "queue: kind %d is none of COMPUTE, SIDE and LATE", (int)kind);
    struct sherd_queue *queue = mem_zalloc(1, sizeof(*queue));
    if (!queue)
        return SHERD_ENOMEM;
    queue->dev = dev;
    queue->kind = kind;
    int st = dev->ops->queue_create(queue);
    if (st != SHERD_OK) {
        mem_free(queue);
        return st;
    }
    *out = queue;
    return SHERD_OK;
}

void sherd_queue_destroy(struct sherd_queue *queue)
{
    if (!queue)
        return;
    queue->dev->ops->queue_destroy(queue);
    mem_free(queue);
}

int sherd_queue_sync(struct sherd_queue *queue)
{
    return queue->dev->ops->queue_sync(queue);
}

int device_will_multiply(struct sherd_queue *queue)
{
    const struct dev_ops *ops = queue->dev->ops;
    return ops->queue_multiplies ? ops->queue_multiplies(queue) : SHERD_OK;
}

struct sherd_device *sherd_queue_device(struct sherd_queue *queue)
{
    return queue->dev;
}

int sherd_event_create(struct sherd_event **out, struct sherd_device *dev)
{
    struct sherd_event *event = mem_zalloc(1, sizeof(*event));
    if (!event)
        return SHERD_ENOMEM;
    event->dev = dev;
    int st = dev->ops->event_create(event);
    if (st != SHERD_OK) {
        mem_free(event);
        return st;
    }
    *out = event;
    return SHERD_OK;
}

void sherd_event_destroy(struct sherd_event *event)
{
    if (!event)
        return;
    event->dev->ops->event_destroy(event);
    mem_free(event);
}

static int same_device(const char *call, const struct sherd_event *event, const struct sherd_queue *queue)
{
    return event->dev == queue->dev
               ? SHERD_OK
               : SHERD_FAIL(SHERD_EINVAL, "%s: the event is of another device than the queue", call);
}

int sherd_event_record(struct sherd_event *event, struct sherd_queue *queue)
{
    SHERD_TRY(same_device("event_record", event, queue));
    return event->dev->ops->event_record(event, queue);
}

int sherd_event_wait(struct sherd_queue *queue, struct sherd_event *event)
{
    SHERD_TRY(same_device("event_wait", event, queue));
    struct device_probe *probe = queue->apart ? NULL : queue->dev->probe;
    if (!probe)
        return event->dev->ops->event_wait(queue, event);
    SHERD_TRY(probe->begin(probe, queue, &(struct probe_span){ .kind = PROBE_WAIT, .name = "wait" }));
    SHERD_TRY(event->dev->ops->event_wait(queue, event));
    return probe->end(probe, queue);
}

int sherd_event_sync(struct sherd_event *event)
{
    return event->dev->ops->event_sync(event);
}

int sherd_event_elapsed(struct sherd_event *from, struct sherd_event *to, double *ms)
{
    return from->dev->ops->event_elapsed(from, to, ms);
}

int device_stamp(struct sherd_event *event, struct sherd_queue *queue)
{
    SHERD_TRY(same_device("event_stamp", event, queue));
    return event->dev->ops->event_stamp(event, queue);
}

/* ---- work that is kept ---- */

int device_captures(const struct sherd_device *dev)
{
    return dev->ops->capture_begin != NULL;
}

int device_capture_begin(struct sherd_queue *queue)
{
    return queue->dev->ops->capture_begin(queue);
}

int device_capture_end(struct sherd_queue *queue, void **graph)
{
    return queue->dev->ops->capture_end(queue, graph);
}

int device_graph_launch(struct sherd_queue *queue, void *graph)
{
    return queue->dev->ops->graph_launch(queue, graph);
}

void device_graph_destroy(struct sherd_device *dev, void *graph)
{
    if (graph)
        dev->ops->graph_destroy(dev, graph);
}

/* ---- operations ---- */

static int call_op(struct sherd_queue *queue, enum op_index op, const void *args)
{
    if (!queue || !args)
        return SHERD_FAIL(SHERD_EINVAL, "%s: %s is NULL", op_names[op], queue ? "the argument" : "the queue");
    SHERD_TRY(op_check[op](args));
    struct sherd_device *dev = queue->dev;
    if (!dev->ops->op[op])
        return SHERD_FAIL(SHERD_EUNSUPPORTED, "%s: device %s cannot do it", op_names[op], dev->name);
    __atomic_add_fetch(queue->apart ? &dev->apart_calls : &dev->op_calls, 1, __ATOMIC_RELAXED);
    double flops = op_flops(op, args);
    if (flops > 0)
        dev->flops += flops;
    struct device_probe *probe = queue->apart ? NULL : dev->probe;
    if (!probe || !probe->ops)
        return dev->ops->op[op](queue, args);
    struct probe_span span = { .kind = PROBE_OP, .name = op_names[op], .op = op, .args = args };
    SHERD_TRY(probe->begin(probe, queue, &span));
    SHERD_TRY(dev->ops->op[op](queue, args));
    return probe->end(probe, queue);
}

#define XX(name)                                                                                             \
    int sherd_##name(struct sherd_queue *queue, const struct sherd_##name *a)                                \
    {                                                                                                        \
        return call_op(queue, OP_##name, a);                                                                 \
    }
SHERD_OPS(XX)
#undef XX
