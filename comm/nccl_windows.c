/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Ranks on GPUs, through NCCL: memory that collectives use again and again, registered as symmetric windows
 * of one communicator. Where NCCL cannot register (it is older, or there is no peer access) they are ordinary
 * memory to it, and collectives go the slower way.
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
