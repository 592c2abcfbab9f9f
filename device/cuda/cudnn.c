/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * See cudnn.h.
 */
#include "device/cuda/cudnn.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"

/* Older libraries want workarounds that are not here. */
#define OLDEST 90800

static int fail(const struct cudnn *c, cudnnStatus_t s, const char *what)
{
    char text[512] = "";
    c->GetLastErrorString(text, sizeof text);
    int status = CUDNN_STATUS_CATEGORY(s) == CUDNN_STATUS_NOT_SUPPORTED ? SHERD_EUNSUPPORTED : SHERD_EDEVICE;
    return SHERD_FAIL(status, "cuDNN: %s: %s%s%s", what, c->GetErrorString(s), *text ? ": " : "", text);
}

static int load(struct cudnn *c)
{
    c->library = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
    if (!c->library)
        return SHERD_FAIL(SHERD_EUNSUPPORTED, "cuDNN 9 was not found: %s", dlerror());
#define XX(name)                                                                                             \
    void *name##_at = dlsym(c->library, "cudnn" #name);                                                      \
    if (!name##_at)                                                                                          \
        return SHERD_FAIL(SHERD_EUNSUPPORTED, "libcudnn.so.9 lacks cudnn" #name);                            \
    memcpy(&c->name, &name##_at, sizeof c->name);
    CUDNN_FUNCTIONS(XX)
#undef XX
    c->version = c->GetVersion();
    if (c->version < OLDEST)
        return SHERD_FAIL(
            SHERD_EUNSUPPORTED, "libcudnn.so.9 has version %zu, at least %d is needed", c->version, OLDEST);
    return SHERD_OK;
}

int cudnn_open(struct cudnn *c)
{
    memset(c, 0, sizeof *c);
    int st = load(c);
    cudnnStatus_t s = st == SHERD_OK ? c->Create(&c->handle) : CUDNN_STATUS_SUCCESS;
    if (s != CUDNN_STATUS_SUCCESS)
        st = fail(c, s, "cudnnCreate");
    if (st != SHERD_OK)
        cudnn_close(c);
    return st;
}

void cudnn_close(struct cudnn *c)
{
    if (c->handle)
        c->Destroy(c->handle);
    /* The library stays loaded: it keeps state of its own in the CUDA context until the process ends. */
    memset(c, 0, sizeof *c);
}

struct dims dims_packed(int64_t a, int64_t b, int64_t c, int64_t d)
{
    return (struct dims){ .n = { a, b, c, d }, .stride = { b * c * d, c * d, d, 1 } };
}

struct dims dims_swapped(struct dims d)
{
    return (struct dims){ .n = { d.n[0], d.n[1], d.n[3], d.n[2] },
        .stride = { d.stride[0], d.stride[1], d.stride[3], d.stride[2] } };
}

void graph_init(struct graph *g, const struct cudnn *c)
{
    memset(g, 0, sizeof *g);
    g->c = c;
    g->next_uid = 1000;
}

void graph_finish(struct graph *g)
{
    while (g->n_all > 0)
        g->c->BackendDestroyDescriptor(g->all[--g->n_all]);
}

desc_t graph_make(struct graph *g, cudnnBackendDescriptorType_t type)
{
    if (g->st != SHERD_OK)
        return NULL;
    if (g->n_all == ARRAY_LEN(g->all)) {
        g->st = SHERD_BUG("more cuDNN descriptors than a graph holds");
        return NULL;
    }
    desc_t d = NULL;
    cudnnStatus_t s = g->c->BackendCreateDescriptor(type, &d);
    if (s != CUDNN_STATUS_SUCCESS) {
        g->st = fail(g->c, s, "cudnnBackendCreateDescriptor");
        return NULL;
    }
    g->all[g->n_all++] = d;
    return d;
}

void graph_set(struct graph *g, desc_t d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
    int64_t n, const void *values)
{
    if (g->st != SHERD_OK)
        return;
    cudnnStatus_t s = g->c->BackendSetAttribute(d, name, type, n, values);
    if (s != CUDNN_STATUS_SUCCESS) {
        char what[64];
        snprintf(what, sizeof what, "attribute %d", (int)name);
        g->st = fail(g->c, s, what);
    }
}

static void set_desc(struct graph *g, desc_t d, cudnnBackendAttributeName_t name, desc_t value)
{
    graph_set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

void graph_finalize(struct graph *g, desc_t d, const char *what)
{
    if (g->st != SHERD_OK)
        return;
    cudnnStatus_t s = g->c->BackendFinalize(d);
    if (s != CUDNN_STATUS_SUCCESS)
        g->st = fail(g->c, s, what);
}

static void add_op(struct graph *g, desc_t d, const char *what)
{
    graph_finalize(g, d, what);
    if (g->st != SHERD_OK)
        return;
    if (g->n_ops == ARRAY_LEN(g->ops))
        g->st = SHERD_BUG("more cuDNN operations than a graph holds");
    else
        g->ops[g->n_ops++] = d;
}

static desc_t tensor(
    struct graph *g, int64_t uid, struct dims dims, cudnnDataType_t type, bool is_virtual, bool by_value)
{
    int64_t align = 16;
    desc_t d = graph_make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    graph_set(g, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    graph_set(g, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims.n);
    graph_set(g, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, dims.stride);
    graph_set(g, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid);
    graph_set(g, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align);
    if (is_virtual)
        graph_set(g, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    if (by_value)
        graph_set(g, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    graph_finalize(g, d, "tensor");
    return d;
}

desc_t graph_tensor(struct graph *g, int64_t uid, struct dims dims, cudnnDataType_t type)
{
    return tensor(g, uid, dims, type, false, false);
}

desc_t graph_virtual(struct graph *g, struct dims dims, cudnnDataType_t type)
{
    return tensor(g, g->next_uid++, dims, type, true, false);
}

desc_t graph_scalar(struct graph *g, int64_t uid)
{
    return tensor(g, uid, dims_packed(1, 1, 1, 1), CUDNN_DATA_FLOAT, false, true);
}

void graph_matmul(struct graph *g, desc_t c, desc_t a, desc_t b)
{
    cudnnDataType_t f32 = CUDNN_DATA_FLOAT;
    desc_t kind = graph_make(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    graph_set(g, kind, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &f32);
    graph_finalize(g, kind, "matmul kind");
    desc_t op = graph_make(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, kind);
    add_op(g, op, "matmul");
}

void graph_reduce(struct graph *g, cudnnReduceTensorOp_t how, desc_t y, desc_t x)
{
    cudnnDataType_t f32 = CUDNN_DATA_FLOAT;
    desc_t kind = graph_make(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    graph_set(g, kind, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &f32);
    graph_set(g, kind, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &how);
    graph_finalize(g, kind, "reduction kind");
    desc_t op = graph_make(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_desc(g, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, kind);
    set_desc(g, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    set_desc(g, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    add_op(g, op, "reduction");
}

void graph_reshape(struct graph *g, desc_t y, desc_t x)
{
    desc_t op = graph_make(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set_desc(g, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    set_desc(g, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    add_op(g, op, "reshape");
}

void graph_pointwise(struct graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t precision, desc_t y,
    desc_t x, desc_t b, desc_t t, int64_t axis)
{
    float one = 1.0f;
    desc_t kind = graph_make(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    graph_set(g, kind, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    graph_set(g, kind, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &precision);
    if (mode == CUDNN_POINTWISE_GEN_INDEX)
        graph_set(g, kind, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    graph_finalize(g, kind, "pointwise kind");
    desc_t op = graph_make(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, kind);
    set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    if (b)
        set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    if (t)
        set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
    graph_set(g, op, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1, CUDNN_TYPE_FLOAT, 1, &one);
    graph_set(g, op, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2, CUDNN_TYPE_FLOAT, 1, &one);
    add_op(g, op, "pointwise");
}

int graph_may_differ(struct graph *g, desc_t config)
{
    const struct cudnn *c = g->c;
    desc_t engine = graph_make(g, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    int64_t n = 0;
    if (!engine ||
        c->BackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n,
            &engine) != CUDNN_STATUS_SUCCESS ||
        c->BackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
            CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &n, notes) != CUDNN_STATUS_SUCCESS)
        return 1;
    for (int64_t i = 0; i < n; i++)
        if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)
            return 1;
    return 0;
}

cudnnStatus_t graph_take(struct graph *g, desc_t config, desc_t *plan, size_t *workspace)
{
    const struct cudnn *c = g->c;
    int64_t n = 0, bytes = 0;
    cudnnStatus_t s = c->BackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, plan);
    if (s != CUDNN_STATUS_SUCCESS)
        return s;
    s = c->BackendSetAttribute(
        *plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &config);
    if (s == CUDNN_STATUS_SUCCESS)
        s = c->BackendSetAttribute(*plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &c->handle);
    if (s == CUDNN_STATUS_SUCCESS)
        s = c->BackendFinalize(*plan);
    if (s == CUDNN_STATUS_SUCCESS)
        s = c->BackendGetAttribute(
            *plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &n, &bytes);
    if (s != CUDNN_STATUS_SUCCESS) {
        c->BackendDestroyDescriptor(*plan);
        *plan = NULL;
    }
    *workspace = (size_t)bytes;
    return s;
}

desc_t graph_operations(struct graph *g)
{
    desc_t graph = graph_make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    graph_set(g, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->n_ops, g->ops);
    graph_set(g, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->c->handle);
    graph_finalize(g, graph, "operation graph");
    return graph;
}

void graph_heuristics(struct graph *g, desc_t operations, cudnnBackendHeurMode_t mode, desc_t *configs,
    int64_t *n, int64_t most)
{
    *n = 0;
    desc_t heur = graph_make(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set_desc(g, heur, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, operations);
    graph_set(g, heur, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    graph_finalize(g, heur, "heuristics");
    for (int64_t i = 0; i < most; i++)
        configs[i] = graph_make(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (g->st != SHERD_OK)
        return;
    cudnnStatus_t s = g->c->BackendGetAttribute(
        heur, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, most, n, configs);
    if (s != CUDNN_STATUS_SUCCESS)
        g->st = fail(g->c, s, "heuristics");
    *n = MIN(*n, most);
}

int graph_plan(struct graph *g, int deterministic, desc_t *plan, size_t *workspace)
{
    desc_t configs[16];
    int64_t n = 0, differing = 0;
    cudnnStatus_t s = CUDNN_STATUS_NOT_SUPPORTED;
    *plan = NULL;
    graph_heuristics(g, graph_operations(g), CUDNN_HEUR_MODE_A, configs, &n, ARRAY_LEN(configs));
    SHERD_TRY(g->st);
    for (int64_t i = 0; i < n; i++) {
        if (deterministic && graph_may_differ(g, configs[i])) {
            differing++;
            continue;
        }
        s = graph_take(g, configs[i], plan, workspace);
        if (s == CUDNN_STATUS_SUCCESS)
            return SHERD_OK;
    }
    if (differing)
        return SHERD_FAIL(SHERD_EUNSUPPORTED, "cuDNN %zu offers no deterministic engine (%lld others)",
            g->c->version, (long long)differing);
    return fail(g->c, s, "no engine takes the graph");
}

int cudnn_run(const struct cudnn *c, cudaStream_t stream, desc_t plan, int n, const int64_t *uids,
    void *const *pointers, void *workspace)
{
    desc_t pack = NULL;
    cudnnStatus_t s = c->SetStream(c->handle, stream);
    if (s == CUDNN_STATUS_SUCCESS)
        s = c->BackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
    if (s == CUDNN_STATUS_SUCCESS)
        s = c->BackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, uids);
    if (s == CUDNN_STATUS_SUCCESS)
        s = c->BackendSetAttribute(
            pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, pointers);
    if (s == CUDNN_STATUS_SUCCESS)
        s = c->BackendSetAttribute(
            pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    if (s == CUDNN_STATUS_SUCCESS)
        s = c->BackendFinalize(pack);
    if (s == CUDNN_STATUS_SUCCESS)
        s = c->BackendExecute(c->handle, plan, pack);
    int st = s == CUDNN_STATUS_SUCCESS ? SHERD_OK : fail(c, s, "execution");
    if (pack)
        c->BackendDestroyDescriptor(pack);
    return st;
}
