/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * cuDNN's backend graph API in the few steps sherd needs: find the library, describe tensors and operations,
 * get an execution plan, run it. The library is opened at run time, so that the plugin loads without it.
 * Called by attn_cudnn.c; knows nothing of attention.
 */
#ifndef SHERD_DEVICE_CUDA_CUDNN_H
#define SHERD_DEVICE_CUDA_CUDNN_H

#include <cudnn_graph.h>

#include <sherd/base.h>

#define CUDNN_FUNCTIONS(XX)                                                                                  \
    XX(Create)                                                                                               \
    XX(Destroy)                                                                                              \
    XX(SetStream)                                                                                            \
    XX(GetVersion)                                                                                           \
    XX(GetErrorString)                                                                                       \
    XX(GetLastErrorString)                                                                                   \
    XX(BackendCreateDescriptor)                                                                              \
    XX(BackendDestroyDescriptor)                                                                             \
    XX(BackendFinalize)                                                                                      \
    XX(BackendSetAttribute)                                                                                  \
    XX(BackendGetAttribute)                                                                                  \
    XX(BackendExecute)

struct cudnn {
    void *library;
#define XX(name) __typeof__(cudnn##name) *name;
    CUDNN_FUNCTIONS(XX)
#undef XX
    size_t version; /* of the library that was found: 91900 is 9.19.0 */
    cudnnHandle_t handle;
};

/* Opens libcudnn.so.9 for the current CUDA device. EUNSUPPORTED with the reason where the library is absent
 * or too old. */
int cudnn_open(struct cudnn *c);
void cudnn_close(struct cudnn *c);

/* One graph while it is being described. The first failure is kept and makes the rest do nothing, so that the
 * description reads without checks; graph_plan returns it. */
struct graph {
    const struct cudnn *c;
    int st;
    int n_all, n_ops;
    int64_t next_uid; /* of virtual tensors */
    cudnnBackendDescriptor_t all[256], ops[48];
};

typedef cudnnBackendDescriptor_t desc_t;

struct dims {
    int64_t n[4], stride[4];
};

struct dims dims_packed(int64_t a, int64_t b, int64_t c, int64_t d);
/* The same memory with its last two dimensions exchanged. */
struct dims dims_swapped(struct dims d);

void graph_init(struct graph *g, const struct cudnn *c);
void graph_finish(struct graph *g);

/* Memory named by a positive uid; a value that lives only between operations; a float handed over at each
 * run. */
desc_t graph_tensor(struct graph *g, int64_t uid, struct dims dims, cudnnDataType_t type);
desc_t graph_virtual(struct graph *g, struct dims dims, cudnnDataType_t type);
desc_t graph_scalar(struct graph *g, int64_t uid);

void graph_matmul(struct graph *g, desc_t c, desc_t a, desc_t b);
void graph_reduce(struct graph *g, cudnnReduceTensorOp_t op, desc_t y, desc_t x);
void graph_reshape(struct graph *g, desc_t y, desc_t x);
/* b and t (the mask of a selection) may be NULL; `axis` matters to GEN_INDEX only. */
void graph_pointwise(struct graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t precision, desc_t y,
    desc_t x, desc_t b, desc_t t, int64_t axis);

/* The first engine of cuDNN's heuristics that takes the graph; `deterministic` passes over the engines that
 * say they are not. The caller destroys *plan. EUNSUPPORTED where no engine remains. */
int graph_plan(struct graph *g, int deterministic, desc_t *plan, size_t *workspace);

/* ---- the steps of graph_plan, for whoever chooses the engine himself ---- */

/* Descriptors that live as long as the graph: made empty, filled, finished. `what` is for messages. */
desc_t graph_make(struct graph *g, cudnnBackendDescriptorType_t type);
void graph_set(struct graph *g, desc_t d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
    int64_t n, const void *values);
void graph_finalize(struct graph *g, desc_t d, const char *what);
/* All operations as one descriptor: the end of the description. */
desc_t graph_operations(struct graph *g);
/* Fills configs[0..*n-1], at most `most` and best first. */
void graph_heuristics(struct graph *g, desc_t operations, cudnnBackendHeurMode_t mode, desc_t *configs,
    int64_t *n, int64_t most);
/* Whether the engine of a configuration says that two runs may differ. An engine that does not answer counts
 * as one that may. */
int graph_may_differ(struct graph *g, desc_t config);
/* A plan for one configuration, the caller's to destroy; a refusal is cuDNN's status and no failure of ours.
 */
cudnnStatus_t graph_take(struct graph *g, desc_t config, desc_t *plan, size_t *workspace);

int cudnn_run(const struct cudnn *c, cudaStream_t stream, desc_t plan, int n, const int64_t *uids,
    void *const *pointers, void *workspace);

#endif
