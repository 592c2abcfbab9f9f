/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Ranks on GPUs, through NCCL: how they come together, wait for each other and end. Every wait is here, with
 * a deadline and a look at NCCL's own errors and at the other ranks (through the side, see comm/ops.h). Waits
 * for a GPU that is stuck in a collective end through a watch on the device.
 *
 * A non-blocking root, which opens under our eyes, moves nothing itself. What moves is split from it and is
 * blocking: NCCL makes each call of a non-blocking communicator in a new thread, some 50 us.
 *
 * With memory that was exposed NCCL may move what it need not sum by copy engines, which leaves the
 * processors to the mathematics.
 */
#include "comm/nccl.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "device/ops.h"

#define OLDEST NCCL_VERSION(2, 18, 1) /* non-blocking communicators that can be split */
#define CLOSE_SECONDS 30.0

_Static_assert(sizeof(ncclUniqueId) <= COMM_ID_BYTES, "an NCCL id does not fit");

/* Shared by the communicators of one rank that came from one opening; used by the thread that opens them. */
struct nccl_root {
    ncclComm_t comm; /* NULL once it has been aborted */
    int users;
};

/* NCCL's words for a failure; the last error of the library, as non-blocking calls fail in threads of its
 * own. */
int nccl_failed(ncclResult_t r, const char *what)
{
    const char *more = ncclGetLastError(NULL);
    return SHERD_FAIL(SHERD_ECOMM, "NCCL: %s: %s%s%s", what, ncclGetErrorString(r), more && *more ? ": " : "",
        more ? more : "");
}

/* ---- ending ---- */

/* Under the lock. Kernels and calls under way end with an error, here; peers learn of it from the side. */
static void end_locked(struct nccl *n, const char *reason)
{
    if (!n->comm)
        return;
    snprintf(n->reason, sizeof(n->reason), "%s", reason);
    ncclResult_t r = ncclCommAbort(n->comm);
    n->comm = NULL;
    if (r != ncclSuccess && r != ncclInProgress)
        log_warn("NCCL: abort: %s", ncclGetErrorString(r));
}

static void end(struct nccl *n, const char *reason)
{
    pthread_mutex_lock(&n->lock);
    end_locked(n, reason);
    pthread_mutex_unlock(&n->lock);
}

/* A failure with its text set: this rank's part ends and the others are told. Returns the status, text kept.
 */
int nccl_give_up(struct nccl *n, int status)
{
    char text[1500];
    struct sherd_comm *side = n->owner->side;
    snprintf(text, sizeof(text), "%s", sherd_error());
    if (status != SHERD_EPEER)
        side->ops->abort(side, text);
    end(n, text);
    return status_adopt(status, text);
}

int nccl_ended(const struct nccl *n)
{
    return SHERD_FAIL(SHERD_EPEER, "the communicator was aborted: %s", n->reason);
}

/* ---- waiting ---- */

/* NCCL's state of the communicator. */
static ncclResult_t state_of(struct nccl *n)
{
    ncclResult_t async = ncclSuccess;
    pthread_mutex_lock(&n->lock);
    ncclResult_t r = n->comm ? ncclCommGetAsyncError(n->comm, &async) : NCCL_GONE;
    pthread_mutex_unlock(&n->lock);
    return r == ncclSuccess ? async : r;
}

/* NCCL's state of the root: ncclInProgress while a call is under way. */
static ncclResult_t state_of_root(const struct nccl *n)
{
    ncclResult_t async = ncclSuccess;
    ncclResult_t r = n->root->comm ? ncclCommGetAsyncError(n->root->comm, &async) : NCCL_GONE;
    return r == ncclSuccess ? async : r;
}

static int look_at_peers(const struct nccl *n)
{
    struct sherd_comm *side = n->owner->side;
    return side->ops->check(side);
}

static int hear_peers(const struct nccl *n)
{
    struct sherd_comm *side = n->owner->side;
    return side->ops->heard(side);
}

/* Until the root has taken the last call and, with `child`, NCCL's thread has filled in n->comm, which may be
 * after the root says that it is ready. At most `seconds`; ends nothing. */
static int wait_root(struct nccl *n, int child, const char *what, double seconds)
{
    double start = clock_seconds();
    for (;;) {
        ncclResult_t r = state_of_root(n);
        if (r == ncclSuccess && (!child || __atomic_load_n(&n->comm, __ATOMIC_ACQUIRE)))
            return SHERD_OK;
        if (r != ncclSuccess && r != ncclInProgress)
            return r == NCCL_GONE ? nccl_ended(n) : nccl_failed(r, what);
        SHERD_TRY(look_at_peers(n));
        if (clock_seconds() - start > seconds)
            return SHERD_FAIL(SHERD_ETIMEOUT, "NCCL: %s: not all ranks have come in %g s", what, seconds);
        nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
    }
}

int nccl_come_together(struct nccl *n)
{
    return sherd_comm_barrier(n->owner->side);
}

/* Neither this GPU nor any other rank has made progress for the timeout: a rank that is still at work may be
 * waited for. */
static int is_late(struct nccl *n, double waited)
{
    struct sherd_comm *side = n->owner->side;
    uint64_t pulse = side->ops->pulse(side);
    if (pulse != n->pulse || waited < n->pulse_waited) {
        n->pulse = pulse;
        n->pulse_waited = waited;
    }
    return waited - n->pulse_waited > n->owner->timeout;
}

static int fail_late(const struct nccl *n)
{
    char text[1200];
    struct sherd_comm *side = n->owner->side;
    const char *where = side->ops->tell(side, text, sizeof(text));
    return SHERD_FAIL(SHERD_ETIMEOUT,
        "the GPU has made no progress for %g s; the last collective brought was %s #%llu%s%s",
        n->owner->timeout, n->last, n->calls, *where ? ": " : "", where);
}

/* While the host waits for the GPU, see struct cuda_watch. */
static int watch(void *ctx, double waited)
{
    struct nccl *n = ctx;
    ncclResult_t r = state_of(n);
    int st = SHERD_OK;
    if (r == NCCL_GONE)
        return nccl_ended(n);
    if (r != ncclSuccess && r != ncclInProgress)
        st = nccl_failed(r, "a collective under way");
    /* To look at each rank takes a call of the system: not after every wait. */
    if (st == SHERD_OK)
        st = waited == CUDA_DONE ? hear_peers(n) : look_at_peers(n);
    if (st == SHERD_OK && waited != CUDA_DONE && n->calls > 0 && is_late(n, waited))
        st = fail_late(n);
    return st == SHERD_OK ? SHERD_OK : nccl_give_up(n, st);
}

/* ---- opening and closing ---- */

static int check_version(void)
{
    int version = 0;
    ncclResult_t r = ncclGetVersion(&version);
    if (r != ncclSuccess)
        return nccl_failed(r, "ncclGetVersion");
    if (version < OLDEST)
        return SHERD_FAIL(SHERD_EUNSUPPORTED, "NCCL %d is too old: 2.18.1 or later is needed", version);
    return SHERD_OK;
}

int nccl_make_id(void *id)
{
    ncclUniqueId made;
    SHERD_TRY(check_version());
    ncclResult_t r = ncclGetUniqueId(&made);
    if (r != ncclSuccess)
        return nccl_failed(r, "ncclGetUniqueId");
    memcpy(id, &made, sizeof(made));
    return SHERD_OK;
}

static struct nccl *nccl_new(struct sherd_comm *comm, struct nccl_root *root)
{
    struct nccl *n = mem_zalloc(1, sizeof(*n));
    if (!n)
        return NULL;
    n->owner = comm;
    n->root = root;
    n->last = "none";
    snprintf(n->reason, sizeof(n->reason), "it was never opened");
    n->watch = (struct cuda_watch){ .poll = watch, .ctx = n };
    pthread_mutex_init(&n->lock, NULL);
    root->users++;
    comm->impl = n;
    return n;
}

static int start(struct sherd_comm *comm, struct nccl_root *root)
{
    struct nccl *n = nccl_new(comm, root);
    if (!n)
        return SHERD_ENOMEM;
    n->room = cuda_room(comm->dev);
    cuda_watch(cuda_device(comm->dev), &n->watch);
    CUDA_TRY(cudaSetDevice(cuda_device(comm->dev)->index));
    for (size_t i = 0; i < ARRAY_LEN(n->marks); i++)
        CUDA_TRY(cudaEventCreateWithFlags(&n->marks[i], cudaEventDisableTiming));
    return SHERD_OK;
}

/* The first of a family brings its root. */
static int start_family(struct sherd_comm *comm)
{
    struct nccl_root *root = mem_zalloc(1, sizeof(*root));
    int st = root ? start(comm, root) : SHERD_ENOMEM;
    if (root && root->users == 0)
        mem_free(root);
    return st;
}

static ncclConfig_t config_of_movers(void)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
    config.CTAPolicy = NCCL_CTA_POLICY_ZERO;
#endif
    return config;
}

/* One rank of this process begins to open its root; it is ready later. */
static int begin(struct nccl *n, const ncclUniqueId *id)
{
    const struct sherd_world *world = &n->owner->world;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    SHERD_TRY(CUDA_CHECK(cudaSetDevice(cuda_device(n->owner->dev)->index)));
    ncclResult_t r = ncclCommInitRankConfig(&n->root->comm, world->size, *id, world->rank, &config);
    return r == ncclSuccess || r == ncclInProgress ? SHERD_OK : nccl_failed(r, "ncclCommInitRankConfig");
}

/* n->comm begins to be split from the root. */
static int begin_split(struct nccl *n)
{
    ncclConfig_t config = config_of_movers();
    SHERD_TRY(CUDA_CHECK(cudaSetDevice(cuda_device(n->owner->dev)->index)));
    ncclResult_t r =
        n->root->comm ? ncclCommSplit(n->root->comm, 0, n->owner->world.rank, &n->comm, &config) : NCCL_GONE;
    if (r == ncclSuccess || r == ncclInProgress)
        return SHERD_OK;
    return r == NCCL_GONE ? nccl_ended(n) : nccl_failed(r, "ncclCommSplit");
}

/* Opening has failed: nothing of the family can be opened from now on. What was being split goes with its
 * root. */
static int give_up_opening(struct nccl *n, int status)
{
    int st = nccl_give_up(n, status);
    if (n->root->comm) {
        ncclResult_t r = ncclCommAbort(n->root->comm);
        n->root->comm = NULL;
        if (r != ncclSuccess && r != ncclInProgress)
            log_warn("NCCL: abort: %s", ncclGetErrorString(r));
    }
    return st;
}

static int open_roots(struct sherd_comm *const *comms, int n, const ncclUniqueId *id)
{
    int st = SHERD_OK;
    /* Ranks of one thread must begin together, or the first would wait for the second. */
    ncclResult_t r = ncclGroupStart();
    for (int i = 0; i < n && st == SHERD_OK; i++)
        st = begin(comms[i]->impl, id);
    ncclResult_t ending = ncclGroupEnd();
    r = r != ncclSuccess ? r : ending;
    if (st == SHERD_OK && r != ncclSuccess && r != ncclInProgress)
        st = nccl_failed(r, "opening");
    for (int i = 0; i < n && st == SHERD_OK; i++)
        st = wait_root(comms[i]->impl, 0, "opening", comms[i]->timeout);
    return st;
}

int nccl_open(struct sherd_comm *const *comms, int n, const void *id)
{
    ncclUniqueId unique;
    int st = check_version();
    memcpy(&unique, id, sizeof(unique));
    for (int i = 0; i < n && st == SHERD_OK; i++)
        st = start_family(comms[i]);
    SHERD_TRY(st);
    st = open_roots(comms, n, &unique);
    for (int i = 0; i < n && st == SHERD_OK; i++)
        st = begin_split(comms[i]->impl);
    for (int i = 0; i < n && st == SHERD_OK; i++)
        st = wait_root(comms[i]->impl, 1, "opening", comms[i]->timeout);
    for (int i = 0; i < n && st == SHERD_OK; i++)
        cuda_took(comms[i]->dev, ((struct nccl *)comms[i]->impl)->room);
    for (int i = 0; i < n && st != SHERD_OK; i++)
        st = give_up_opening(comms[i]->impl, st);
    return st;
}

int nccl_dup(struct sherd_comm *comm, struct sherd_comm *twin)
{
    struct nccl *from = comm->impl;
    SHERD_TRY(start(twin, from->root));
    int st = begin_split(twin->impl);
    if (st == SHERD_OK)
        st = wait_root(twin->impl, 1, "a second communicator", comm->timeout);
    if (st != SHERD_OK)
        return give_up_opening(twin->impl, st);
    cuda_took(twin->dev, ((struct nccl *)twin->impl)->room);
    return SHERD_OK;
}

void nccl_abort(struct sherd_comm *comm, const char *reason)
{
    if (comm->impl)
        end(comm->impl, reason);
}

/* Within bounds; what cannot be closed is aborted. */
static void root_close(struct nccl *n)
{
    struct nccl_root *root = n->root;
    if (--root->users > 0)
        return;
    if (root->comm) {
        ncclResult_t r = ncclCommFinalize(root->comm);
        int st = r == ncclSuccess || r == ncclInProgress
                     ? wait_root(n, 0, "closing", MIN(CLOSE_SECONDS, n->owner->timeout))
                     : nccl_failed(r, "closing");
        if (st != SHERD_OK)
            log_warn("%s", sherd_error());
        r = st == SHERD_OK ? ncclCommDestroy(root->comm) : ncclCommAbort(root->comm);
        if (r != ncclSuccess && r != ncclInProgress)
            log_warn("NCCL: closing: %s", ncclGetErrorString(r));
    }
    mem_free(root);
}

/* Waits for collectives under way, which end: the queues that they are in were waited for, or no rank is
 * missing. */
static void finish(struct nccl *n)
{
    ncclResult_t r = n->comm ? ncclCommDestroy(n->comm) : ncclSuccess;
    n->comm = NULL;
    if (r != ncclSuccess && r != ncclInProgress)
        log_warn("NCCL: closing: %s", ncclGetErrorString(r));
}

void nccl_close(struct sherd_comm *comm)
{
    struct nccl *n = comm->impl;
    struct cuda_device *cd = cuda_device(comm->dev);
    if (cudaSetDevice(cd->index) != cudaSuccess)
        (void)cudaGetLastError();
    cuda_unwatch(cd, &n->watch);
    if (n->comm && look_at_peers(n) != SHERD_OK)
        end(n, sherd_error());
    nccl_conceal_all(n);
    finish(n);
    root_close(n);
    for (size_t i = 0; i < ARRAY_LEN(n->marks); i++)
        if (n->marks[i] && cudaEventDestroy(n->marks[i]) != cudaSuccess)
            (void)cudaGetLastError();
    pthread_mutex_destroy(&n->lock);
    mem_free(n);
}
