/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Attention on the GPU has two implementations: cuDNN's (16 bits, where it takes the shape) and sherd's own
 * kernels (everything else). attn.c chooses and says so once in the log; both give the same bits from run to
 * run, but for cuDNN's backward where any order is allowed.
 */
#ifndef SHERD_DEVICE_CUDA_ATTN_H
#define SHERD_DEVICE_CUDA_ATTN_H

#include <cuda_runtime_api.h>

#include <sherd/ops.h>

#ifdef __cplusplus
extern "C" {
#endif

/* attn.cu: any head size up to SHERD_MAX_HEAD_DIM, any sequence, F32, BF16 and F16. */
int attn_own_forward(cudaStream_t stream, const struct sherd_attention_forward *a);
int attn_own_backward(cudaStream_t stream, const struct sherd_attention_backward *a);

/* attn_cudnn.c. One for each device; not thread-safe, as a device's queues are filled by one thread. */
struct attn_cudnn;
/* For the current CUDA device. EUNSUPPORTED without cuDNN. */
int attn_cudnn_create(struct attn_cudnn **out);
void attn_cudnn_destroy(struct attn_cudnn *c); /* NULL is fine */
/* EUNSUPPORTED (nothing was enqueued) where cuDNN does not take the shape in this form; the text is kept
 * and given again for the same shape. */
int attn_cudnn_forward(struct attn_cudnn *c, cudaStream_t stream, const struct sherd_attention_forward *a);
int attn_cudnn_backward(struct attn_cudnn *c, cudaStream_t stream, const struct sherd_attention_backward *a);
/* Whether such a call was made before: the first of a shape takes memory for itself. No for NULL. */
int attn_cudnn_has_forward(const struct attn_cudnn *c, const struct sherd_attention_forward *a);
int attn_cudnn_has_backward(const struct attn_cudnn *c, const struct sherd_attention_backward *a);

#ifdef __cplusplus
}
#endif
#endif
