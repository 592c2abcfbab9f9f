/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * One NVIDIA GPU as a device: opening it, its memory, the names of CUDA's errors, and the table of what it
 * does. Every call enters its device first, because the current device belongs to the thread and a process
 * may hold several ranks.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <nccl.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "device/cuda/kind.h"
#include "device/cuda/launch.h"
#include "device/cuda/queue.h"

#define MARGIN_BYTES ((size_t)16 << 20) /* free memory beyond what is asked: then another thing failed */

struct cuda_device *cuda_device(const struct sherd_device *dev)
{
    return dev->impl;
}

int cuda_check_at(cudaError_t err, const char *what, const char *file, int line)
{
    if (err == cudaSuccess)
        return SHERD_OK;
    (void)cudaGetLastError(); /* so that the next launch does not report it again */
    return sherd_fail_at(
        SHERD_EDEVICE, file, line, "%s: %s (%s)", what, cudaGetErrorString(err), cudaGetErrorName(err));
}

int cuda_launched_at(const char *op, const char *file, int line)
{
    return cuda_check_at(cudaGetLastError(), op, file, line);
}

int cuda_unsupported(const char *op, enum sherd_dtype type)
{
    return SHERD_FAIL(
        SHERD_EUNSUPPORTED, "%s: a GPU does not have this operation in %s", op, sherd_dtype_name(type));
}

int cuda_current(const struct sherd_device *dev)
{
    return CUDA_CHECK(cudaSetDevice(cuda_device(dev)->index));
}

/* ---- the device ---- */

/* "cuda" is GPU 0 of those visible, "cuda:N" the one numbered N. */
static int parse_index(const char *name, int *index)
{
    *index = 0;
    if (strcmp(name, "cuda") == 0)
        return SHERD_OK;
    char *end = NULL;
    long n =
        strncmp(name, "cuda:", 5) == 0 && name[5] >= '0' && name[5] <= '9' ? strtol(name + 5, &end, 10) : -1;
    if (n < 0 || n > 4096 || *end)
        return SHERD_FAIL(SHERD_EINVAL, "there is no device '%s'; use cuda, or cuda:N with N from 0", name);
    *index = (int)n;
    return SHERD_OK;
}

static int find_gpu(const char *name, int *index)
{
    int count = 0;
    SHERD_TRY(parse_index(name, index));
    cudaError_t err = cudaGetDeviceCount(&count);
    if (err != cudaSuccess || count == 0) {
        (void)cudaGetLastError();
        return SHERD_FAIL(SHERD_EUNSUPPORTED,
            "device '%s': no usable NVIDIA GPU here: %s; check nvidia-smi, or use cpu", name,
            err == cudaSuccess ? "none is visible (CUDA_VISIBLE_DEVICES?)" : cudaGetErrorString(err));
    }
    if (*index >= count)
        return SHERD_FAIL(SHERD_EINVAL, "device '%s': only %d GPU%s visible here, numbered from 0", name,
            count, count == 1 ? " is" : "s are");
    return SHERD_OK;
}

/* A plugin built for other architectures only would fail at its first kernel; say so at once. */
static int check_arch(const char *name, struct cuda_device *cd)
{
    int major = 0, minor = 0, arch = 0, driver = 0;
    CUDA_TRY(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, cd->index));
    CUDA_TRY(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, cd->index));
    CUDA_TRY(cudaDriverGetVersion(&driver));
    cudaError_t err = cuda_probe(&arch);
    /* No older GPU runs such code, and older drivers cannot record such a launch. */
    cd->early = arch >= 900 && driver >= 12030;
    if (err == cudaSuccess)
        return SHERD_OK;
    (void)cudaGetLastError();
    return SHERD_FAIL(SHERD_EUNSUPPORTED,
        "device '%s': this GPU has compute capability %d.%d and the plugin holds no code for it (%s); build sherd with "
        "-Dgpu_arch=%d%d",
        name, major, minor, cudaGetErrorString(err), major, minor);
}

static int cuda_open(struct sherd_device *dev, const struct sherd_device_desc *desc)
{
    int st = SHERD_OK, index = 0;
    SHERD_TRY(find_gpu(dev->name, &index));
    struct cuda_device *cd = mem_zalloc(1, sizeof(*cd));
    if (!cd)
        return SHERD_ENOMEM;
    cd->index = index;
    SHERD_TRY_OUT(CUDA_CHECK(cudaSetDevice(index)));
    SHERD_TRY_OUT(check_arch(dev->name, cd));
    struct cudaDeviceProp about;
    SHERD_TRY_OUT(CUDA_CHECK(cudaGetDeviceProperties(&about, index)));
    SHERD_TRY_OUT(matmul_open(cd, &about, desc->tune));
    snprintf(dev->model, sizeof(dev->model), "%.63s", about.name);
    dev->impl = cd;
    return SHERD_OK;
out:
    mem_free(cd);
    return st;
}

static void cuda_close(struct sherd_device *dev)
{
    struct cuda_device *cd = dev->impl;
    CUDA_WARN(cudaSetDevice(cd->index));
    if (cd->attention_close)
        cd->attention_close(cd->attention);
    matmul_close(cd);
    mem_free(cd);
}

static int cuda_memory(struct sherd_device *dev, size_t *total, size_t *available)
{
    SHERD_TRY(cuda_current(dev));
    CUDA_TRY(cudaMemGetInfo(available, total));
    return SHERD_OK;
}

/* Whom collectives may reach without the host. */
static int count_peers(int index, int *reached, int *others)
{
    int count = 0;
    CUDA_TRY(cudaGetDeviceCount(&count));
    *reached = 0;
    *others = count - 1;
    for (int i = 0; i < count; i++) {
        int can = 0;
        if (i != index)
            CUDA_TRY(cudaDeviceCanAccessPeer(&can, index, i));
        *reached += can;
    }
    return SHERD_OK;
}

static int cuda_describe(struct sherd_device *dev, char *buf, size_t bytes)
{
    const struct cuda_device *cd = dev->impl;
    struct cudaDeviceProp prop;
    char pci[32] = "?";
    int reached, others;
    SHERD_TRY(cuda_current(dev));
    CUDA_TRY(cudaGetDeviceProperties(&prop, cd->index));
    CUDA_TRY(cudaDeviceGetPCIBusId(pci, sizeof(pci), cd->index));
    SHERD_TRY(count_peers(cd->index, &reached, &others));
    snprintf(buf, bytes, "%s, PCI %s, peer access to %d of %d other GPU%s", prop.name, pci, reached, others,
        others == 1 ? "" : "s");
    return SHERD_OK;
}

/* Makes no context, and so no threads. */
static int cuda_bus(const char *name, char *buf, size_t bytes)
{
    int index = 0;
    SHERD_TRY(find_gpu(name, &index));
    CUDA_TRY(cudaDeviceGetPCIBusId(buf, (int)MIN(bytes, INT_MAX), index));
    for (char *p = buf; *p; p++)
        if (*p >= 'A' && *p <= 'F')
            *p = (char)(*p - 'A' + 'a');
    return SHERD_OK;
}

/* ---- memory ---- */

/* Device memory is NCCL's (mapped memory, or cudaMalloc's where that is switched off): communicators can
 * prepare for no other, see sherd_comm_expose. It comes in steps of 2 MiB, which few and large regions do not
 * feel.
 */
int cuda_alloc(struct sherd_device *dev, void **out, size_t bytes)
{
    size_t total = 0, available = 0;
    SHERD_TRY(cuda_current(dev));
    ncclResult_t r = ncclMemAlloc(out, MAX(bytes, 1));
    if (r == ncclSuccess)
        return SHERD_OK;
    *out = NULL;
    (void)cudaGetLastError();
    if (cudaMemGetInfo(&available, &total) != cudaSuccess)
        (void)cudaGetLastError();
    if (available > bytes + MARGIN_BYTES)
        return SHERD_FAIL(SHERD_EDEVICE, "%s: %zu bytes of device memory, %zu are free: %s", dev->name, bytes,
            available, ncclGetLastError(NULL));
    return SHERD_FAIL(SHERD_ENOMEM, "%s: no room for %zu bytes of device memory: %zu of %zu are free",
        dev->name, bytes, available, total);
}

void cuda_free(struct sherd_device *dev, void *p)
{
    CUDA_WARN(cudaSetDevice(cuda_device(dev)->index));
    ncclResult_t r = p ? ncclMemFree(p) : ncclSuccess;
    if (r != ncclSuccess)
        log_warn("%s: freeing memory: %s", dev->name, ncclGetErrorString(r));
}

int cuda_host_alloc(struct sherd_device *dev, void **out, size_t bytes)
{
    SHERD_TRY(cuda_current(dev));
    cudaError_t err = cudaHostAlloc(out, MAX(bytes, 1), cudaHostAllocPortable);
    if (err == cudaErrorMemoryAllocation) {
        *out = NULL;
        (void)cudaGetLastError();
        return SHERD_FAIL(SHERD_ENOMEM, "%s: %zu bytes of host memory could not be pinned", dev->name, bytes);
    }
    return CUDA_CHECK(err);
}

void cuda_host_free(struct sherd_device *dev, void *p)
{
    CUDA_WARN(cudaSetDevice(cuda_device(dev)->index));
    if (p)
        CUDA_WARN(cudaFreeHost(p));
}

size_t cuda_room(const struct sherd_device *dev)
{
    size_t total = 0, available = 0;
    CUDA_WARN(cudaSetDevice(cuda_device(dev)->index));
    CUDA_WARN(cudaMemGetInfo(&available, &total));
    return available;
}

/* Wraps around where more is free than before: of the sum, only the end counts. */
void cuda_took(struct sherd_device *dev, size_t before)
{
    __atomic_add_fetch(&dev->library_bytes, (uint64_t)before - cuda_room(dev), __ATOMIC_RELAXED);
}

/* ---- operations that CUDA itself has ---- */

int cuda_copy(struct sherd_queue *queue, const void *args)
{
    const struct sherd_copy *a = args;
    cudaStream_t stream = cuda_enter(queue);
    if (a->bytes == 0)
        return SHERD_OK;
    if (a->rows > 1)
        return CUDA_CHECK(cudaMemcpy2DAsync(
            a->dst, a->pitch, a->src, a->pitch, a->bytes, (size_t)a->rows, cudaMemcpyDefault, stream));
    return CUDA_CHECK(cudaMemcpyAsync(a->dst, a->src, a->bytes, cudaMemcpyDefault, stream));
}

int cuda_fill(struct sherd_queue *queue, const void *args)
{
    const struct sherd_fill *a = args;
    cudaStream_t stream = cuda_enter(queue);
    return a->bytes ? CUDA_CHECK(cudaMemsetAsync(a->dst, a->byte, a->bytes, stream)) : SHERD_OK;
}

const struct dev_ops dev_cuda = {
    .kind = "cuda",
    .behind = 1,
    .open = cuda_open,
    .close = cuda_close,
    .memory = cuda_memory,
    .describe = cuda_describe,
    .bus = cuda_bus,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .host_alloc = cuda_host_alloc,
    .host_free = cuda_host_free,
    .queue_create = cuda_queue_create,
    .queue_destroy = cuda_queue_destroy,
    .queue_sync = cuda_queue_sync,
    .event_create = cuda_event_create,
    .event_destroy = cuda_event_destroy,
    .event_record = cuda_event_record,
    .event_wait = cuda_event_wait,
    .event_sync = cuda_event_sync,
    .event_elapsed = cuda_event_elapsed,
    .event_stamp = cuda_event_stamp,
    .capture_begin = cuda_capture_begin,
    .capture_end = cuda_capture_end,
    .graph_launch = cuda_graph_launch,
    .graph_destroy = cuda_graph_destroy,
    .submit = NULL,
    .comm = &comm_nccl,
    .op = {
#define XX(name) [OP_##name] = cuda_##name,
        SHERD_OPS(XX)
#undef XX
    },
};
