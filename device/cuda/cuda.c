/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * One NVIDIA GPU as a device: memory, streams, events, and the names of CUDA's errors. Every call enters its
 * device first, because the current device belongs to the thread and a process may hold several ranks.
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

#define FAULT_BYTES 256                 /* of the fault words, behind the workspace */
#define MARGIN_BYTES ((size_t)16 << 20) /* free memory beyond what is asked: then another thing failed */

struct cuda_device *cuda_device(const struct sherd_device *dev)
{
    return dev->impl;
}

struct cuda_queue *cuda_queue(const struct sherd_queue *queue)
{
    return queue->impl;
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

/* Where nothing can be returned. */
#define CUDA_WARN(call)                                                                                      \
    do {                                                                                                     \
        cudaError_t warn_err_ = (call);                                                                      \
        if (warn_err_ != cudaSuccess) {                                                                      \
            (void)cudaGetLastError();                                                                        \
            log_warn("%s: %s", #call, cudaGetErrorString(warn_err_));                                        \
        }                                                                                                    \
    } while (0)

static int enter(const struct sherd_device *dev)
{
    return CUDA_CHECK(cudaSetDevice(cuda_device(dev)->index));
}

cudaStream_t cuda_enter(const struct sherd_queue *queue)
{
    CUDA_WARN(
        cudaSetDevice(cuda_device(queue->dev)->index)); /* a launch on the wrong device fails by itself */
    return cuda_queue(queue)->stream;
}

unsigned long long *cuda_fault_word(
    const struct sherd_queue *queue, enum cuda_fault fault, int64_t vocab, int64_t seq)
{
    struct cuda_queue *cq = cuda_queue(queue);
    cq->vocab[fault] = vocab;
    if (fault == CUDA_FAULT_TOKEN)
        cq->seq = seq;
    return cq->faults + fault;
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
static int check_arch(const char *name, int index)
{
    int major = 0, minor = 0;
    CUDA_TRY(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index));
    CUDA_TRY(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index));
    cudaError_t err = cuda_probe();
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
    SHERD_TRY_OUT(check_arch(dev->name, index));
    SHERD_TRY_OUT(matmul_open(cd, desc->tune));
    struct cudaDeviceProp about;
    SHERD_TRY_OUT(CUDA_CHECK(cudaGetDeviceProperties(&about, index)));
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
    SHERD_TRY(enter(dev));
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
    SHERD_TRY(enter(dev));
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
static int cuda_alloc(struct sherd_device *dev, void **out, size_t bytes)
{
    size_t total = 0, available = 0;
    SHERD_TRY(enter(dev));
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

static void cuda_free(struct sherd_device *dev, void *p)
{
    CUDA_WARN(cudaSetDevice(cuda_device(dev)->index));
    ncclResult_t r = p ? ncclMemFree(p) : ncclSuccess;
    if (r != ncclSuccess)
        log_warn("%s: freeing memory: %s", dev->name, ncclGetErrorString(r));
}

static int cuda_host_alloc(struct sherd_device *dev, void **out, size_t bytes)
{
    SHERD_TRY(enter(dev));
    cudaError_t err = cudaHostAlloc(out, MAX(bytes, 1), cudaHostAllocPortable);
    if (err == cudaErrorMemoryAllocation) {
        *out = NULL;
        (void)cudaGetLastError();
        return SHERD_FAIL(SHERD_ENOMEM, "%s: %zu bytes of host memory could not be pinned", dev->name, bytes);
    }
    return CUDA_CHECK(err);
}

static void cuda_host_free(struct sherd_device *dev, void *p)
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

/* ---- queues ---- */

static void cuda_queue_destroy(struct sherd_queue *queue)
{
    struct cuda_queue *cq = queue->impl;
    CUDA_WARN(cudaSetDevice(cuda_device(queue->dev)->index));
    if (cq->stream) {
        if (cuda_wait_stream(cuda_device(queue->dev), cq->stream) != SHERD_OK)
            log_warn("%s: a queue ends with work left: %s", queue->dev->name, sherd_error());
        CUDA_WARN(cudaStreamDestroy(cq->stream));
    }
    size_t before = cuda_room(queue->dev);
    cuda_free(queue->dev, cq->workspace ? cq->workspace : cq->faults);
    cuda_took(queue->dev, before);
    cuda_host_free(queue->dev, cq->seen);
    mem_free(cq);
    queue->impl = NULL;
}

/* One allocation, on the libraries' account: the workspace (a side queue has none, its products run without),
 * then the fault words. */
static int queue_memory(struct sherd_queue *queue, struct cuda_queue *cq)
{
    void *p = NULL;
    size_t workspace = queue->kind == SHERD_QUEUE_COMPUTE ? CUDA_WORKSPACE_BYTES : 0;
    size_t before = cuda_room(queue->dev);
    SHERD_TRY(cuda_alloc(queue->dev, &p, workspace + FAULT_BYTES));
    cuda_took(queue->dev, before);
    cq->workspace = workspace ? p : NULL;
    cq->faults = (unsigned long long *)((char *)p + workspace);
    SHERD_TRY(cuda_host_alloc(queue->dev, &p, CUDA_FAULTS * sizeof(*cq->seen)));
    cq->seen = p;
    CUDA_TRY(cudaMemsetAsync(cq->faults, 0xff, FAULT_BYTES, cq->stream));
    return SHERD_OK;
}

/* CUDA counts downwards: the highest priority is the least number. */
static int priority_of(enum sherd_queue_kind kind, int lowest, int highest)
{
    return kind == SHERD_QUEUE_SIDE ? highest : kind == SHERD_QUEUE_LATE ? lowest : MAX(lowest - 1, highest);
}

static int cuda_queue_create(struct sherd_queue *queue)
{
    int st = SHERD_OK, lowest = 0, highest = 0;
    SHERD_TRY(enter(queue->dev));
    struct cuda_queue *cq = mem_zalloc(1, sizeof(*cq));
    if (!cq)
        return SHERD_ENOMEM;
    queue->impl = cq;
    SHERD_TRY_OUT(CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest)));
    SHERD_TRY_OUT(CUDA_CHECK(cudaStreamCreateWithPriority(
        &cq->stream, cudaStreamNonBlocking, priority_of(queue->kind, lowest, highest))));
    SHERD_TRY_OUT(queue_memory(queue, cq));
    return SHERD_OK;
out:
    cuda_queue_destroy(queue);
    return st;
}

static int fault_text(const struct cuda_queue *cq, enum cuda_fault fault)
{
    int value = (int)(cq->seen[fault] & 0xffffffffu);
    int64_t row = (int64_t)(cq->seen[fault] >> 32);
    if (fault == CUDA_FAULT_TARGET)
        return SHERD_FAIL(SHERD_EINVAL,
            "loss: target %d at row %lld is outside the vocabulary of %lld: check that the data was made "
            "with this model's tokenizer",
            value, (long long)row, (long long)cq->vocab[fault]);
    return SHERD_FAIL(SHERD_EINVAL,
        "embed_forward: token %d at sequence %lld, position %lld is outside the vocabulary of %lld: check that "
        "the data was made with this model's tokenizer",
        value, (long long)(row / cq->seq), (long long)(row % cq->seq), (long long)cq->vocab[fault]);
}

/* Faults that kernels left, told once and forgotten. */
static int report_faults(struct cuda_queue *cq)
{
    int st = SHERD_OK;
    for (int i = 0; i < CUDA_FAULTS; i++) {
        if (st == SHERD_OK && cq->vocab[i] && cq->seen[i] != CUDA_NO_FAULT)
            st = fault_text(cq, (enum cuda_fault)i);
        cq->vocab[i] = 0;
    }
    if (st != SHERD_OK)
        SHERD_KEEP(st, CUDA_CHECK(cudaMemsetAsync(cq->faults, 0xff, FAULT_BYTES, cq->stream)));
    return st;
}

static int cuda_queue_sync(struct sherd_queue *queue)
{
    struct cuda_queue *cq = cuda_queue(queue);
    SHERD_TRY(enter(queue->dev));
    int watched = cq->vocab[CUDA_FAULT_TOKEN] || cq->vocab[CUDA_FAULT_TARGET];
    if (watched)
        CUDA_TRY(cudaMemcpyAsync(
            cq->seen, cq->faults, CUDA_FAULTS * sizeof(*cq->seen), cudaMemcpyDeviceToHost, cq->stream));
    SHERD_TRY(cuda_wait_stream(queue->apart ? NULL : cuda_device(queue->dev), cq->stream));
    return watched ? report_faults(cq) : SHERD_OK;
}

/* ---- events ---- */

static int cuda_event_create(struct sherd_event *event)
{
    SHERD_TRY(enter(event->dev));
    struct cuda_event *e = mem_zalloc(1, sizeof(*e));
    if (!e)
        return SHERD_ENOMEM;
    int st = CUDA_CHECK(cudaEventCreate(&e->event));
    if (st != SHERD_OK) {
        mem_free(e);
        return st;
    }
    event->impl = e;
    return SHERD_OK;
}

static void cuda_event_destroy(struct sherd_event *event)
{
    struct cuda_event *e = event->impl;
    CUDA_WARN(cudaSetDevice(cuda_device(event->dev)->index));
    CUDA_WARN(cudaEventDestroy(e->event));
    mem_free(e);
}

/* The capture that work of a queue goes to now; 0 = it is done. */
static unsigned capture_of(const struct sherd_queue *queue)
{
    return queue->apart ? 0 : cuda_device(queue->dev)->capture;
}

static int cuda_event_record(struct sherd_event *event, struct sherd_queue *queue)
{
    struct cuda_event *e = event->impl;
    SHERD_TRY(enter(queue->dev));
    CUDA_TRY(cudaEventRecord(e->event, cuda_queue(queue)->stream));
    e->capture = capture_of(queue);
    e->apart = queue->apart;
    return SHERD_OK;
}

/* CUDA refuses to wait across the border of a capture; what is on the other side has been reached. */
static int cuda_event_wait(struct sherd_queue *queue, struct sherd_event *event)
{
    struct cuda_event *e = event->impl;
    if (e->capture != capture_of(queue))
        return SHERD_OK;
    SHERD_TRY(enter(queue->dev));
    return CUDA_CHECK(cudaStreamWaitEvent(cuda_queue(queue)->stream, e->event, 0));
}

static int cuda_event_sync(struct sherd_event *event)
{
    struct cuda_event *e = event->impl;
    /* What is apart goes on while the thread that submits steps captures one, and so do its waits. */
    if (!e->apart && (e->capture != 0 || cuda_device(event->dev)->capture != 0))
        return SHERD_OK;
    SHERD_TRY(enter(event->dev));
    return cuda_wait_event(e->apart ? NULL : cuda_device(event->dev), e->event);
}

static int cuda_event_elapsed(struct sherd_event *from, struct sherd_event *to, double *ms)
{
    float f = 0;
    struct cuda_event *a = from->impl, *b = to->impl;
    SHERD_TRY(enter(from->dev));
    CUDA_TRY(cudaEventElapsedTime(&f, a->event, b->event));
    *ms = f;
    return SHERD_OK;
}

static int cuda_event_stamp(struct sherd_event *event, struct sherd_queue *queue)
{
    struct cuda_event *e = event->impl;
    unsigned flags = cuda_device(queue->dev)->capture ? cudaEventRecordExternal : cudaEventRecordDefault;
    SHERD_TRY(enter(queue->dev));
    return CUDA_CHECK(cudaEventRecordWithFlags(e->event, cuda_queue(queue)->stream, flags));
}

/* ---- work that is kept ---- */

/* Relaxed: NCCL and the libraries may do in this thread what they must, beside the capture. */
static int cuda_capture_begin(struct sherd_queue *queue)
{
    struct cuda_device *cd = cuda_device(queue->dev);
    SHERD_TRY(enter(queue->dev));
    CUDA_TRY(cudaStreamBeginCapture(cuda_queue(queue)->stream, cudaStreamCaptureModeRelaxed));
    cd->capture = ++cd->captures;
    return SHERD_OK;
}

static int cuda_capture_end(struct sherd_queue *queue, void **graph)
{
    cudaGraph_t kept = NULL;
    cudaGraphExec_t exec = NULL;
    cuda_device(queue->dev)->capture = 0;
    SHERD_TRY(enter(queue->dev));
    CUDA_TRY(cudaStreamEndCapture(cuda_queue(queue)->stream, &kept));
    int st = CUDA_CHECK(cudaGraphInstantiateWithFlags(&exec, kept, cudaGraphInstantiateFlagUseNodePriority));
    CUDA_WARN(cudaGraphDestroy(kept));
    SHERD_TRY(st);
    *graph = exec;
    return CUDA_CHECK(cudaGraphUpload(exec, cuda_queue(queue)->stream));
}

static int cuda_graph_launch(struct sherd_queue *queue, void *graph)
{
    SHERD_TRY(enter(queue->dev));
    return CUDA_CHECK(cudaGraphLaunch(graph, cuda_queue(queue)->stream));
}

static void cuda_graph_destroy(struct sherd_device *dev, void *graph)
{
    CUDA_WARN(cudaSetDevice(cuda_device(dev)->index));
    CUDA_WARN(cudaGraphExecDestroy(graph));
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
