/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Ranks on GPUs, through NCCL: memory that collectives use again and again, registered as symmetric windows
 * of one communicator. Where NCCL cannot register (it is older, or there is no peer access) they are ordinary
 * memory to it, and collectives go the slower way. And memory that a communicator is given to work in, if
 * NCCL copies into it by copy engines.
 */
#include "comm/nccl.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"

/* Memory that was exposed. */
struct nccl_window {
    struct nccl_window *next;
    char *base;
    size_t bytes;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
    ncclWindow_t handle; /* NULL where NCCL has no use for it */
#endif
};

/* Pieces of exposed memory that are not whole words came out wrong from NCCL 2.28.9 (7 elements of bf16), so
 * they are refused rather than trusted. */
int nccl_check_exposed(const struct nccl *n, const char *name, const void *out, const void *in, size_t bytes)
{
    const char *const ends[] = { in, out };
    for (const struct nccl_window *w = n->windows; w; w = w->next)
        for (size_t i = 0; i < ARRAY_LEN(ends); i++)
            if (ends[i] >= w->base && ends[i] < w->base + w->bytes &&
                ((size_t)(ends[i] - w->base) % COMM_EXPOSED_ALIGN || bytes % COMM_EXPOSED_ALIGN))
                return SHERD_FAIL(SHERD_EINVAL,
                    "%s of %zu bytes in exposed memory: pieces must be multiples of %d bytes", name, bytes,
                    COMM_EXPOSED_ALIGN);
    return SHERD_OK;
}

int nccl_expose(struct sherd_comm *comm, void *base, size_t bytes)
{
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
    struct nccl *n = comm->impl;
    struct nccl_window *w = mem_zalloc(1, sizeof(*w));
    if (!w)
        return SHERD_ENOMEM;
    w->base = base;
    w->bytes = bytes;
    w->next = n->windows;
    n->windows = w;
    n->exposed++;
    SHERD_TRY(CUDA_CHECK(cudaSetDevice(cuda_device(comm->dev)->index)));
    int st = nccl_come_together(n);
    if (st != SHERD_OK)
        return nccl_give_up(n, st);
    size_t before = cuda_room(comm->dev);
    pthread_mutex_lock(&n->lock);
    ncclResult_t r = n->comm
                         ? ncclCommWindowRegister(n->comm, base, bytes, &w->handle, NCCL_WIN_COLL_SYMMETRIC)
                         : NCCL_GONE;
    pthread_mutex_unlock(&n->lock);
    cuda_took(comm->dev, before);
    if (r != ncclSuccess)
        return r == NCCL_GONE ? nccl_ended(n) : nccl_give_up(n, nccl_failed(r, "window"));
    if (!w->handle)
        log_info("NCCL registers no memory here (no peer access, or switched off); collectives go without");
#else
    (void)comm, (void)base, (void)bytes;
    log_info("NCCL %d registers no memory; collectives go without", NCCL_VERSION_CODE);
#endif
    return SHERD_OK;
}

int nccl_is_exposed(const struct nccl *n, const void *at, size_t bytes)
{
    const char *from = at;
    for (const struct nccl_window *w = n->windows; w; w = w->next)
        if (from >= w->base && bytes <= w->bytes && (size_t)(from - w->base) <= w->bytes - bytes)
            return 1;
    return 0;
}

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
/* What NCCL lacks to copy into the newest window by copy engines; NULL: nothing. */
static const char *lack(const struct nccl *n)
{
    const struct sherd_world *world = &n->owner->world;
    struct cudaPointerAttributes handle = { 0 };
    int nccl = 0, driver = 0;
    if (world->local_size != world->size)
        return "ranks of one host";
    if (ncclGetVersion(&nccl) != ncclSuccess || nccl < NCCL_VERSION(2, 28, 0))
        return "NCCL 2.28";
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver < 12050)
        return "a driver for CUDA 12.5";
    /* A window that all ranks reach has its handle on the device; what is only registered, on the host. */
    if (cudaPointerGetAttributes(&handle, n->windows->handle) != cudaSuccess ||
        handle.type != cudaMemoryTypeDevice) {
        (void)cudaGetLastError();
        return "memory that all GPUs reach";
    }
    return NULL;
}
#else
static const char *lack(const struct nccl *n)
{
    (void)n;
    return "NCCL 2.28";
}
#endif

int nccl_landing(struct sherd_comm *comm, void *base, size_t bytes)
{
    struct nccl *n = comm->impl;
    SHERD_TRY(nccl_expose(comm, base, bytes));
    const char *lacks = lack(n);
    if (lacks) {
        log_warn(
            "NCCL sums gradients by its kernels, as copy engines lack %s; shard.reduce: kernel saves the "
            "%.1f MB that were kept for them",
            lacks, (double)bytes / 1e6);
        return SHERD_OK;
    }
    n->landing = base;
    n->landing_bytes = bytes;
    return SHERD_OK;
}

int nccl_lands(const struct sherd_comm *comm, int64_t elems, enum sherd_dtype type)
{
    const struct nccl *n = comm->impl;
    int64_t bytes = elems * (int64_t)sherd_dtype_bytes(type);
    return n->landing && (type == SHERD_F32 || type == SHERD_BF16 || type == SHERD_F16) &&
           bytes >= COMM_LANDING_LEAST && bytes <= (int64_t)n->landing_bytes / comm->world.size;
}

static void window_close(struct nccl *n, struct nccl_window *w)
{
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
    pthread_mutex_lock(&n->lock);
    ncclResult_t r = n->comm && w->handle ? ncclCommWindowDeregister(n->comm, w->handle) : ncclSuccess;
    pthread_mutex_unlock(&n->lock);
    if (r != ncclSuccess)
        log_warn("NCCL: deregistering memory: %s", ncclGetErrorString(r));
#endif
    mem_free(w);
}

void nccl_conceal(struct sherd_comm *comm, void *base)
{
    struct nccl *n = comm->impl;
    if (base == n->landing)
        n->landing = NULL;
    for (struct nccl_window **at = &n->windows; *at; at = &(*at)->next) {
        if ((*at)->base == base) {
            struct nccl_window *w = *at;
            *at = w->next;
            window_close(n, w);
            return;
        }
    }
}

void nccl_conceal_all(struct nccl *n)
{
    while (n->windows) {
        struct nccl_window *w = n->windows;
        n->windows = w->next;
        window_close(n, w);
    }
}
