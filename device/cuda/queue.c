/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Queues of a GPU (streams, and the faults that kernels leave on them), events between them, and work that is
 * captured to be launched again.
 */
#include "device/cuda/queue.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "device/cuda/launch.h"

#define FAULT_BYTES 256 /* of the fault words, behind the workspace */

struct cuda_queue *cuda_queue(const struct sherd_queue *queue)
{
    return queue->impl;
}

cudaStream_t cuda_enter(const struct sherd_queue *queue)
{
    CUDA_WARN(
        cudaSetDevice(cuda_device(queue->dev)->index)); /* a launch on the wrong device fails by itself */
    return cuda_queue(queue)->stream;
}

int cuda_early(const struct sherd_queue *queue)
{
    return cuda_device(queue->dev)->early;
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

/* ---- queues ---- */

void cuda_queue_destroy(struct sherd_queue *queue)
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

int cuda_queue_create(struct sherd_queue *queue)
{
    int st = SHERD_OK, lowest = 0, highest = 0;
    SHERD_TRY(cuda_current(queue->dev));
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

int cuda_queue_sync(struct sherd_queue *queue)
{
    struct cuda_queue *cq = cuda_queue(queue);
    SHERD_TRY(cuda_current(queue->dev));
    int watched = cq->vocab[CUDA_FAULT_TOKEN] || cq->vocab[CUDA_FAULT_TARGET];
    if (watched)
        CUDA_TRY(cudaMemcpyAsync(
            cq->seen, cq->faults, CUDA_FAULTS * sizeof(*cq->seen), cudaMemcpyDeviceToHost, cq->stream));
    SHERD_TRY(cuda_wait_stream(queue->apart ? NULL : cuda_device(queue->dev), cq->stream));
    return watched ? report_faults(cq) : SHERD_OK;
}

/* ---- events ---- */

int cuda_event_create(struct sherd_event *event)
{
    SHERD_TRY(cuda_current(event->dev));
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

void cuda_event_destroy(struct sherd_event *event)
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

int cuda_event_record(struct sherd_event *event, struct sherd_queue *queue)
{
    struct cuda_event *e = event->impl;
    SHERD_TRY(cuda_current(queue->dev));
    CUDA_TRY(cudaEventRecord(e->event, cuda_queue(queue)->stream));
    e->capture = capture_of(queue);
    e->apart = queue->apart;
    return SHERD_OK;
}

/* CUDA refuses to wait across the border of a capture; what is on the other side has been reached. */
int cuda_event_wait(struct sherd_queue *queue, struct sherd_event *event)
{
    struct cuda_event *e = event->impl;
    if (e->capture != capture_of(queue))
        return SHERD_OK;
    SHERD_TRY(cuda_current(queue->dev));
    return CUDA_CHECK(cudaStreamWaitEvent(cuda_queue(queue)->stream, e->event, 0));
}

int cuda_event_sync(struct sherd_event *event)
{
    struct cuda_event *e = event->impl;
    /* What is apart goes on while the thread that submits steps captures one, and so do its waits. */
    if (!e->apart && (e->capture != 0 || cuda_device(event->dev)->capture != 0))
        return SHERD_OK;
    SHERD_TRY(cuda_current(event->dev));
    return cuda_wait_event(e->apart ? NULL : cuda_device(event->dev), e->event);
}

int cuda_event_elapsed(struct sherd_event *from, struct sherd_event *to, double *ms)
{
    float f = 0;
    struct cuda_event *a = from->impl, *b = to->impl;
    SHERD_TRY(cuda_current(from->dev));
    CUDA_TRY(cudaEventElapsedTime(&f, a->event, b->event));
    *ms = f;
    return SHERD_OK;
}

int cuda_event_stamp(struct sherd_event *event, struct sherd_queue *queue)
{
    struct cuda_event *e = event->impl;
    unsigned flags = capture_of(queue) ? cudaEventRecordExternal : cudaEventRecordDefault;
    SHERD_TRY(cuda_current(queue->dev));
    return CUDA_CHECK(cudaEventRecordWithFlags(e->event, cuda_queue(queue)->stream, flags));
}

/* ---- work that is kept ---- */

/* Relaxed: NCCL and the libraries may do in this thread what they must, beside the capture. */
int cuda_capture_begin(struct sherd_queue *queue)
{
    struct cuda_device *cd = cuda_device(queue->dev);
    SHERD_TRY(cuda_current(queue->dev));
    CUDA_TRY(cudaStreamBeginCapture(cuda_queue(queue)->stream, cudaStreamCaptureModeRelaxed));
    cd->capture = ++cd->captures;
    return SHERD_OK;
}

int cuda_capture_end(struct sherd_queue *queue, void **graph)
{
    cudaGraph_t kept = NULL;
    cudaGraphExec_t exec = NULL;
    cuda_device(queue->dev)->capture = 0;
    SHERD_TRY(cuda_current(queue->dev));
    CUDA_TRY(cudaStreamEndCapture(cuda_queue(queue)->stream, &kept));
    int st = CUDA_CHECK(cudaGraphInstantiateWithFlags(&exec, kept, cudaGraphInstantiateFlagUseNodePriority));
    CUDA_WARN(cudaGraphDestroy(kept));
    SHERD_TRY(st);
    *graph = exec;
    return CUDA_CHECK(cudaGraphUpload(exec, cuda_queue(queue)->stream));
}

int cuda_graph_launch(struct sherd_queue *queue, void *graph)
{
    SHERD_TRY(cuda_current(queue->dev));
    return CUDA_CHECK(cudaGraphLaunch(graph, cuda_queue(queue)->stream));
}

void cuda_graph_destroy(struct sherd_device *dev, void *graph)
{
    CUDA_WARN(cudaSetDevice(cuda_device(dev)->index));
    CUDA_WARN(cudaGraphExecDestroy(graph));
}
