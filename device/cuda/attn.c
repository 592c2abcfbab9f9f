/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Which attention runs: cuDNN's where it is built in, found, and takes the shape; sherd's own otherwise,
 * which takes sums in one order even where any is allowed. The choice is one of speed; it is told in the log.
 */
#include "device/cuda/attn.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "device/cuda/launch.h"
#include "device/ops.h"

#ifdef SHERD_HAVE_CUDNN

/* cd->attention */
struct attn {
    struct attn_cudnn *cudnn; /* NULL: not found */
};

static void attn_close(void *attention)
{
    struct attn *attn = attention;
    attn_cudnn_destroy(attn->cudnn);
    mem_free(attn);
}

static int attn_open(struct cuda_device *cd)
{
    struct attn *attn = mem_zalloc(1, sizeof(*attn));
    if (!attn)
        return SHERD_ENOMEM;
    int st = attn_cudnn_create(&attn->cudnn);
    if (st == SHERD_EUNSUPPORTED) {
        log_info("attention runs on sherd's own kernels: %s", sherd_error());
        st = SHERD_OK;
    }
    if (st != SHERD_OK) {
        mem_free(attn);
        return st;
    }
    cd->attention = attn;
    cd->attention_close = attn_close;
    return SHERD_OK;
}

/* *out = NULL where there is no cuDNN for this type. */
static int find_cudnn(struct attn_cudnn **out, struct cuda_device *cd, enum sherd_dtype type)
{
    *out = NULL;
    if (type == SHERD_F32)
        return SHERD_OK;
    if (!cd->attention)
        SHERD_TRY(attn_open(cd));
    *out = ((struct attn *)cd->attention)->cudnn;
    return SHERD_OK;
}

static int forward(struct sherd_queue *queue, const struct sherd_attention_forward *a)
{
    struct attn_cudnn *cudnn = NULL;
    cudaStream_t stream = cuda_enter(queue);
    SHERD_TRY(find_cudnn(&cudnn, cuda_device(queue->dev), a->type));
    int st = cudnn ? attn_cudnn_forward(cudnn, stream, a) : SHERD_EUNSUPPORTED;
    return st == SHERD_EUNSUPPORTED ? attn_own_forward(stream, a) : st;
}

static int backward(struct sherd_queue *queue, const struct sherd_attention_backward *a)
{
    struct attn_cudnn *cudnn = NULL;
    cudaStream_t stream = cuda_enter(queue);
    SHERD_TRY(find_cudnn(&cudnn, cuda_device(queue->dev), a->type));
    int st = cudnn ? attn_cudnn_backward(cudnn, stream, a) : SHERD_EUNSUPPORTED;
    return st == SHERD_EUNSUPPORTED ? attn_own_backward(stream, a) : st;
}

/* Nothing of cuDNN's is set up in a call of this type. */
static int is_settled(const struct sherd_queue *queue, enum sherd_dtype type)
{
    const struct attn *attn = cuda_device(queue->dev)->attention;
    return type == SHERD_F32 || (attn && !attn->cudnn);
}

static const struct attn_cudnn *cudnn_of(const struct sherd_queue *queue)
{
    const struct attn *attn = cuda_device(queue->dev)->attention;
    return attn ? attn->cudnn : NULL;
}

int cuda_attention_forward(struct sherd_queue *queue, const void *args)
{
    const struct sherd_attention_forward *a = args;
    if (is_settled(queue, a->type) || attn_cudnn_has_forward(cudnn_of(queue), a))
        return forward(queue, a);
    size_t before = cuda_room(queue->dev);
    int st = forward(queue, a);
    cuda_took(queue->dev, before);
    return st;
}

int cuda_attention_backward(struct sherd_queue *queue, const void *args)
{
    const struct sherd_attention_backward *a = args;
    if (is_settled(queue, a->type) || attn_cudnn_has_backward(cudnn_of(queue), a))
        return backward(queue, a);
    size_t before = cuda_room(queue->dev);
    int st = backward(queue, a);
    cuda_took(queue->dev, before);
    return st;
}

#else

int cuda_attention_forward(struct sherd_queue *queue, const void *args)
{
    return attn_own_forward(cuda_enter(queue), args);
}

int cuda_attention_backward(struct sherd_queue *queue, const void *args)
{
    return attn_own_backward(cuda_enter(queue), args);
}

#endif
