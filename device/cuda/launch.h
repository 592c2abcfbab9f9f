/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Inside the GPU plugin: the private parts of device and queue, how CUDA's errors become ours, and the
 * border between C and .cu files (all of it extern "C"). The word `stream` is at home here.
 */
#ifndef SHERD_DEVICE_CUDA_LAUNCH_H
#define SHERD_DEVICE_CUDA_LAUNCH_H

#include <cuda_runtime_api.h>

#include <sherd/ops.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Failures that only a kernel can see. A kernel keeps the first by position: (position << 32 | value),
 * by atomicMin; CUDA_NO_FAULT = none. Read and reset by queue_sync. */
enum cuda_fault { CUDA_FAULT_TOKEN, CUDA_FAULT_TARGET, CUDA_FAULTS };
#define CUDA_NO_FAULT 0xffffffffffffffffull

struct matmul_plans; /* matmul.c */

/* Somebody whose work on the GPU may never end. While the host waits for the GPU it asks, with the seconds it
 * has waited; a status other than OK ends the wait. When the work is done it asks once more, with CUDA_DONE:
 * whether it was ended from outside. That question comes after every wait, so its answer should cost nothing.
 */
#define CUDA_DONE (-1.0)
struct cuda_watch {
    int (*poll)(void *ctx, double waited);
    void *ctx;
    struct cuda_watch *next;
};

struct cuda_device {
    int index; /* CUDA's number of the GPU */
    int early; /* the GPU and our code for it know how to set up a kernel while another runs */
    struct matmul_plans *plans;
    /* Attention's own state; made at its first use, given to `attention_close` when the device closes. */
    void *attention;
    void (*attention_close)(void *attention);
    struct cuda_watch *watches; /* wait.c */
    unsigned capture;           /* number of the capture under way, 0 = none; and of the last one */
    unsigned captures;
};

struct cuda_queue {
    cudaStream_t stream;
    void *workspace;            /* cuBLASLt's, CUDA_WORKSPACE_BYTES; device memory, counted */
    unsigned long long *faults; /* [CUDA_FAULTS], device memory in the same allocation */
    unsigned long long *seen;   /* [CUDA_FAULTS], pinned: the copy that queue_sync reads */
    int64_t vocab[CUDA_FAULTS]; /* of the last launch that can leave a fault, for its text; 0 = none yet */
    int64_t seq;                /* of the last CUDA_FAULT_TOKEN */
};

/* Where it was recorded last: in which capture, 0 = in none; on a queue that is another thread's. */
struct cuda_event {
    cudaEvent_t event;
    unsigned capture;
    int apart;
};

#define CUDA_WORKSPACE_BYTES ((size_t)32 << 20)

struct cuda_device *cuda_device(const struct sherd_device *dev);
struct cuda_queue *cuda_queue(const struct sherd_queue *queue);

/* Makes it the calling thread's current GPU. */
int cuda_current(const struct sherd_device *dev);
/* Makes the queue's GPU the calling thread's current one and gives its stream: first line of every
 * operation. */
cudaStream_t cuda_enter(const struct sherd_queue *queue);
/* Whether a kernel can be set up while the one before it in the queue runs. */
int cuda_early(const struct sherd_queue *queue);
/* The queue's word for faults of one kind; remembers the sizes for the text. */
unsigned long long *cuda_fault_word(
    const struct sherd_queue *queue, enum cuda_fault fault, int64_t vocab, int64_t seq);

/* OK, or EDEVICE with CUDA's name and text of the error and `what` failed. */
int cuda_check_at(cudaError_t err, const char *what, const char *file, int line);
#define CUDA_CHECK(call) cuda_check_at(call, #call, __FILE__, __LINE__)
#define CUDA_TRY(call) SHERD_TRY(CUDA_CHECK(call))
/* Where nothing can be returned: a warning. C only. */
#define CUDA_WARN(call)                                                                                      \
    do {                                                                                                     \
        cudaError_t warn_err_ = (call);                                                                      \
        if (warn_err_ != cudaSuccess) {                                                                      \
            (void)cudaGetLastError();                                                                        \
            log_warn("%s: %s", #call, cudaGetErrorString(warn_err_));                                        \
        }                                                                                                    \
    } while (0)
/* The launch just made: last line of an operation that launches kernels. */
int cuda_launched_at(const char *op, const char *file, int line);
#define CUDA_LAUNCHED(op) cuda_launched_at(op, __FILE__, __LINE__)
int cuda_unsupported(const char *op, enum sherd_dtype type);

/* wait.c. Watchers come and go in the thread that waits. */
void cuda_watch(struct cuda_device *cd, struct cuda_watch *watch);
void cuda_unwatch(struct cuda_device *cd, const struct cuda_watch *watch);
/* As cudaStreamSynchronize and cudaEventSynchronize, but ended by a watcher. */
int cuda_wait_stream(const struct cuda_device *cd, cudaStream_t stream);
int cuda_wait_event(const struct cuda_device *cd, cudaEvent_t event);

/* Memory of the device, and of the host for it: see struct dev_ops. */
int cuda_alloc(struct sherd_device *dev, void **out, size_t bytes);
void cuda_free(struct sherd_device *dev, void *p);
int cuda_host_alloc(struct sherd_device *dev, void **out, size_t bytes);
void cuda_host_free(struct sherd_device *dev, void *p);

/* Device memory that a library takes for itself the first time it is asked for something: what is free
 * before, and less what is free after goes to the device's account. No memory of the account may be taken
 * between. */
size_t cuda_room(const struct sherd_device *dev);
void cuda_took(struct sherd_device *dev, size_t before);

/* basic.cu: success if the plugin holds code that runs on the current GPU; *arch: what it was compiled for,
 * as in __CUDA_ARCH__. */
cudaError_t cuda_probe(int *arch);
/* The stream does nothing for so long; for tests. */
void cuda_idle(cudaStream_t stream, unsigned microseconds);
/* out[n] = the sum over p, in order and in float, of parts[p * n ..]; all of one type. */
int cuda_sum_parts(
    struct sherd_queue *queue, void *out, const void *parts, int64_t n, int n_parts, enum sherd_dtype type);
/* out[cols] = (overwrite) or += the sum over p, in order, of parts[p * cols + c]. One or two such sums. */
struct cuda_parts {
    void *out; /* NULL: none is wanted */
    const float *parts;
    int overwrite;
};
void cuda_reduce_parts(const struct sherd_queue *queue, struct cuda_parts a, struct cuda_parts b,
    enum sherd_dtype type, int64_t n_parts, int64_t cols);
/* c[m,n] += bias[n] where the epilogue cannot; c[m,n] by a plain kernel where cuBLASLt has none. */
int cuda_add_bias(cudaStream_t stream, const struct sherd_matmul *a);
int cuda_matmul_plain(cudaStream_t stream, const struct sherd_matmul *a);

/* matmul.c */
/* about: of the GPU. tune: see sherd_device_desc. */
int matmul_open(struct cuda_device *cd, const struct cudaDeviceProp *about, const char *tune);
void matmul_close(struct cuda_device *cd);

/* One function for each operation, cuda_copy to cuda_clip_factor, as in op_fn of device/ops.h. */
#define XX(name) int cuda_##name(struct sherd_queue *queue, const void *args);
SHERD_OPS(XX)
#undef XX

#ifdef __cplusplus
}
#endif
#endif
