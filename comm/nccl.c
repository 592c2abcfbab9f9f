/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Ranks on GPUs, through NCCL; built into the GPU plugin. Every wait is here, with a deadline and a look at
 * NCCL's own errors and at the other ranks (through the side, see comm/ops.h). Waits for a GPU that is stuck
 * in a collective end through a watch on the device.
 *
 * A non-blocking root, which opens under our eyes, moves nothing itself. What moves is split from it and is
 * blocking: NCCL makes each call of a non-blocking communicator in a new thread, some 50 us. A blocking call
 * holds the host up only while it sets something up that all ranks must come for, the first time; so ranks
 * meet on the side before it. And so few calls are left under way that the GPU's queue never fills up.
 *
 * The communicator that is opened is for gathering: with memory that was exposed, NCCL moves it by copy
 * engines and leaves the processors to the mathematics. Its twins are for reducing, with NCCL's defaults.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <nccl.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "comm/ops.h"
#include "device/cuda/launch.h"
#include "device/ops.h"

#define OLDEST NCCL_VERSION(2, 18, 1) /* non-blocking communicators that can be split */
#define LOOK_SECONDS 0.05             /* between looks at the other ranks */
#define CLOSE_SECONDS 30.0
#define UNDER_WAY 128       /* calls between two marks; at most three times as many are under way */
#define MET 256             /* slots for kinds of calls that have been made, a power of two */
#define GONE ncclNumResults /* not a result of NCCL's: the communicator was aborted */

_Static_assert(sizeof(ncclUniqueId) <= COMM_ID_BYTES, "an NCCL id does not fit");

/* Memory that was exposed. */
struct window {
    struct window *next;
    char *base;
    size_t bytes;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
    ncclWindow_t handle; /* NULL where NCCL has no use for it */
#endif
};

/* Shared by the communicators of one rank that came from one opening; used by the thread that opens them. */
struct root {
    ncclComm_t comm; /* NULL once it has been aborted */
    int users;
};

struct nccl {
    struct sherd_comm *owner;
    struct root *root;
    pthread_mutex_t lock; /* around every use of comm, as another thread may abort */
    ncclComm_t comm;      /* NULL once it has been aborted, for this: */
    char reason[1500];
    struct cuda_watch watch;
    uint64_t pulse; /* of the other ranks, as last seen; and how long the wait had lasted when it changed */
    double pulse_waited;
    struct window *windows;
    size_t room;      /* that was free on the device before it began to open */
    int exposed;      /* windows made so far */
    const char *last; /* name and number of the last collective brought */
    unsigned long long calls;
    cudaEvent_t marks[2]; /* recorded in turn, every UNDER_WAY calls */
    uint64_t met[MET];    /* what meet() has met for */
};

/* A collective. */
struct call {
    enum sherd_collective kind;
    void *out;
    const void *in;
    size_t elems;
    ncclDataType_t type;
    int detail; /* ncclRedOp_t, or the root */
};

static const char *const names[] = {
    [SHERD_ALL_GATHER] = "all-gather",
    [SHERD_REDUCE_SCATTER] = "reduce-scatter",
    [SHERD_ALL_REDUCE] = "all-reduce",
    [SHERD_BROADCAST] = "broadcast",
};

/* NCCL's words for a failure; the last error of the library, as non-blocking calls fail in threads of its
 * own. */
static int fail(ncclResult_t r, const char *what)
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
static int give_up(struct nccl *n, int status)
{
    char text[1500];
    struct sherd_comm *side = n->owner->side;
    snprintf(text, sizeof(text), "%s", sherd_error());
    if (status != SHERD_EPEER)
        side->ops->abort(side, text);
    end(n, text);
    return status_adopt(status, text);
}

static int ended(const struct nccl *n)
{
    return SHERD_FAIL(SHERD_EPEER, "the communicator was aborted: %s", n->reason);
}

/* ---- waiting ---- */

/* NCCL's state of the communicator. */
static ncclResult_t state_of(struct nccl *n)
{
    ncclResult_t async = ncclSuccess;
    pthread_mutex_lock(&n->lock);
    ncclResult_t r = n->comm ? ncclCommGetAsyncError(n->comm, &async) : GONE;
    pthread_mutex_unlock(&n->lock);
    return r == ncclSuccess ? async : r;
}

/* NCCL's state of the root: ncclInProgress while a call is under way. */
static ncclResult_t state_of_root(const struct nccl *n)
{
    ncclResult_t async = ncclSuccess;
    ncclResult_t r = n->root->comm ? ncclCommGetAsyncError(n->root->comm, &async) : GONE;
    return r == ncclSuccess ? async : r;
}

static int look_at_peers(const struct nccl *n)
{
    struct sherd_comm *side = n->owner->side;
    return side->ops->check(side);
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
            return r == GONE ? ended(n) : fail(r, what);
        SHERD_TRY(look_at_peers(n));
        if (clock_seconds() - start > seconds)
            return SHERD_FAIL(SHERD_ETIMEOUT, "NCCL: %s: not all ranks have come in %g s", what, seconds);
        nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
    }
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
    return SHERD_FAIL(SHERD_ETIMEOUT,
        "rank %d: the GPU has made no progress for %g s; the last collective brought was %s #%llu: %s",
        n->owner->world.rank, n->owner->timeout, n->last, n->calls,
        side->ops->tell(side, text, sizeof(text)));
}

/* While the host waits for the GPU, see struct cuda_watch. */
static int watch(void *ctx, double waited)
{
    struct nccl *n = ctx;
    ncclResult_t r = state_of(n);
    int st = SHERD_OK;
    if (r == GONE)
        return ended(n);
    if (r != ncclSuccess && r != ncclInProgress)
        st = fail(r, "a collective under way");
    if (st == SHERD_OK)
        st = look_at_peers(n);
    if (st == SHERD_OK && n->calls > 0 && is_late(n, waited))
        st = fail_late(n);
    return st == SHERD_OK ? SHERD_OK : give_up(n, st);
}

/* ---- collectives ---- */

static int map_type(ncclDataType_t *out, enum sherd_dtype type)
{
    static const struct {
        enum sherd_dtype type;
        ncclDataType_t nccl;
    } map[] = {
        { SHERD_F32, ncclFloat32 },
        { SHERD_BF16, ncclBfloat16 },
        { SHERD_F16, ncclFloat16 },
        { SHERD_F64, ncclFloat64 },
        { SHERD_I32, ncclInt32 },
        { SHERD_I64, ncclInt64 },
        { SHERD_U8, ncclUint8 },
    };
    for (size_t i = 0; i < ARRAY_LEN(map); i++) {
        if (map[i].type == type) {
            *out = map[i].nccl;
            return SHERD_OK;
        }
    }
    return SHERD_FAIL(SHERD_EUNSUPPORTED, "NCCL has no type for %s", sherd_dtype_name(type));
}

/* In place where the addresses say so: NCCL has the same rule as comm/ops.h. */
static ncclResult_t enqueue(ncclComm_t comm, const struct call *c, cudaStream_t stream)
{
    switch (c->kind) {
    case SHERD_ALL_GATHER:
        return ncclAllGather(c->in, c->out, c->elems, c->type, comm, stream);
    case SHERD_REDUCE_SCATTER:
        return ncclReduceScatter(c->in, c->out, c->elems, c->type, (ncclRedOp_t)c->detail, comm, stream);
    case SHERD_ALL_REDUCE:
        return ncclAllReduce(c->in, c->out, c->elems, c->type, (ncclRedOp_t)c->detail, comm, stream);
    default:
        return ncclBroadcast(c->in, c->out, c->elems, c->type, c->detail, comm, stream);
    }
}

/* Pieces of exposed memory that are not whole words came out wrong from NCCL 2.28.9 (7 elements of bf16), so
 * they are refused rather than trusted. */
static int check_exposed(const struct nccl *n, const struct call *c, size_t bytes)
{
    const char *const ends[] = { c->in, c->out };
    for (const struct window *w = n->windows; w; w = w->next)
        for (size_t i = 0; i < ARRAY_LEN(ends); i++)
            if (ends[i] >= w->base && ends[i] < w->base + w->bytes &&
                ((size_t)(ends[i] - w->base) % COMM_EXPOSED_ALIGN || bytes % COMM_EXPOSED_ALIGN))
                return SHERD_FAIL(SHERD_EINVAL,
                    "%s of %zu bytes in exposed memory: pieces must be multiples of %d bytes", names[c->kind],
                    bytes, COMM_EXPOSED_ALIGN);
    return SHERD_OK;
}

/* All ranks have come to this place, or it fails in time. */
static int come_together(struct nccl *n)
{
    return sherd_comm_barrier(n->owner->side);
}

/* Before a call unlike those made so far, as all ranks see it: what NCCL sets up may depend on all of this.
 */
static int meet(struct nccl *n, const struct call *c, int *first)
{
    const uint64_t key[] = { c->elems, (uint64_t)c->kind, (uint64_t)c->type, (uint64_t)c->detail,
        (uint64_t)n->exposed };
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < ARRAY_LEN(key); i++)
        hash = (hash ^ key[i] ^ (hash >> 29)) * 1099511628211u;
    uint64_t *met = &n->met[(hash >> 40) % MET];
    *first = *met != hash;
    if (!*first)
        return SHERD_OK;
    SHERD_TRY(come_together(n));
    *met = hash;
    return SHERD_OK;
}

/* A call that finds the GPU's queue full holds the host up until there is room, which may be never. */
static int leave_room(struct nccl *n, cudaStream_t stream)
{
    if (n->calls % UNDER_WAY || cuda_device(n->owner->dev)->capture)
        return SHERD_OK;
    cudaEvent_t mark = n->marks[n->calls / UNDER_WAY % ARRAY_LEN(n->marks)];
    SHERD_TRY(cuda_wait_event(cuda_device(n->owner->dev), mark));
    return CUDA_CHECK(cudaEventRecord(mark, stream));
}

static int run(struct sherd_comm *comm, struct sherd_queue *queue, const struct call *call, size_t size)
{
    struct nccl *n = comm->impl;
    if (call->elems == 0)
        return SHERD_OK;
    SHERD_TRY(check_exposed(n, call, call->elems * size));
    cudaStream_t stream = cuda_enter(queue);
    int first, st = meet(n, call, &first);
    if (st == SHERD_OK)
        st = leave_room(n, stream);
    if (st != SHERD_OK)
        return give_up(n, st);
    if (comm->delay_us)
        cuda_idle(stream, comm->delay_us);
    size_t before = first ? cuda_room(comm->dev) : 0;
    pthread_mutex_lock(&n->lock);
    ncclResult_t r = n->comm ? enqueue(n->comm, call, stream) : GONE;
    pthread_mutex_unlock(&n->lock);
    if (first)
        cuda_took(comm->dev, before);
    n->last = names[call->kind];
    n->calls++;
    if (r == ncclSuccess)
        return SHERD_OK;
    return r == GONE ? ended(n) : give_up(n, fail(r, n->last));
}

static int nccl_all_gather(struct sherd_comm *comm, struct sherd_queue *queue, void *out, const void *in,
    int64_t elems, enum sherd_dtype type)
{
    struct call c = { SHERD_ALL_GATHER, out, in, (size_t)elems, ncclFloat32, 0 };
    SHERD_TRY(map_type(&c.type, type));
    return run(comm, queue, &c, sherd_dtype_bytes(type));
}

static int nccl_reduce_scatter(struct sherd_comm *comm, struct sherd_queue *queue, void *out, void *in,
    int64_t elems, enum sherd_dtype type)
{
    struct call c = { SHERD_REDUCE_SCATTER, out, in, (size_t)elems, ncclFloat32, ncclSum };
    SHERD_TRY(map_type(&c.type, type));
    return run(comm, queue, &c, sherd_dtype_bytes(type));
}

static int nccl_all_reduce(struct sherd_comm *comm, struct sherd_queue *queue, void *out, const void *in,
    int64_t elems, enum sherd_dtype type, enum sherd_reduce reduce)
{
    struct call c = { SHERD_ALL_REDUCE, out, in, (size_t)elems, ncclFloat32,
        reduce == SHERD_REDUCE_MAX ? ncclMax : ncclSum };
    SHERD_TRY(map_type(&c.type, type));
    return run(comm, queue, &c, sherd_dtype_bytes(type));
}

static int nccl_broadcast(
    struct sherd_comm *comm, struct sherd_queue *queue, void *out, const void *in, size_t bytes, int root)
{
    struct call c = { SHERD_BROADCAST, out, in, bytes, ncclUint8, root };
    return run(comm, queue, &c, 1);
}

/* ---- memory that is used again and again ---- */

static int nccl_expose(struct sherd_comm *comm, void *base, size_t bytes)
{
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
    struct nccl *n = comm->impl;
    struct window *w = mem_zalloc(1, sizeof(*w));
    if (!w)
        return SHERD_ENOMEM;
    w->base = base;
    w->bytes = bytes;
    w->next = n->windows;
    n->windows = w;
    n->exposed++;
    SHERD_TRY(CUDA_CHECK(cudaSetDevice(cuda_device(comm->dev)->index)));
    int st = come_together(n);
    if (st != SHERD_OK)
        return give_up(n, st);
    size_t before = cuda_room(comm->dev);
    pthread_mutex_lock(&n->lock);
    ncclResult_t r =
        n->comm ? ncclCommWindowRegister(n->comm, base, bytes, &w->handle, NCCL_WIN_COLL_SYMMETRIC) : GONE;
    pthread_mutex_unlock(&n->lock);
    cuda_took(comm->dev, before);
    if (r != ncclSuccess)
        return r == GONE ? ended(n) : give_up(n, fail(r, "window"));
    if (!w->handle)
        log_info("NCCL registers no memory here (no peer access, or switched off); collectives go without");
#else
    (void)comm, (void)base, (void)bytes;
    log_info("NCCL %d registers no memory; collectives go without", NCCL_VERSION_CODE);
#endif
    return SHERD_OK;
}

static void window_close(struct nccl *n, struct window *w)
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

static void nccl_conceal(struct sherd_comm *comm, void *base)
{
    struct nccl *n = comm->impl;
    for (struct window **at = &n->windows; *at; at = &(*at)->next) {
        if ((*at)->base == base) {
            struct window *w = *at;
            *at = w->next;
            window_close(n, w);
            return;
        }
    }
}

/* ---- opening and closing ---- */

static int check_version(void)
{
    int version = 0;
    ncclResult_t r = ncclGetVersion(&version);
    if (r != ncclSuccess)
        return fail(r, "ncclGetVersion");
    if (version < OLDEST)
        return SHERD_FAIL(SHERD_EUNSUPPORTED, "NCCL %d is too old: 2.18.1 or later is needed", version);
    return SHERD_OK;
}

static int nccl_make_id(void *id)
{
    ncclUniqueId made;
    SHERD_TRY(check_version());
    ncclResult_t r = ncclGetUniqueId(&made);
    if (r != ncclSuccess)
        return fail(r, "ncclGetUniqueId");
    memcpy(id, &made, sizeof(made));
    return SHERD_OK;
}

static struct nccl *nccl_new(struct sherd_comm *comm, struct root *root)
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

static int start(struct sherd_comm *comm, struct root *root)
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
    struct root *root = mem_zalloc(1, sizeof(*root));
    int st = root ? start(comm, root) : SHERD_ENOMEM;
    if (root && root->users == 0)
        mem_free(root);
    return st;
}

static ncclConfig_t config_for(int gathering)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
    if (gathering)
        config.CTAPolicy = NCCL_CTA_POLICY_ZERO;
#else
    (void)gathering;
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
    return r == ncclSuccess || r == ncclInProgress ? SHERD_OK : fail(r, "ncclCommInitRankConfig");
}

/* n->comm begins to be split from the root. */
static int begin_split(struct nccl *n, int gathering)
{
    ncclConfig_t config = config_for(gathering);
    SHERD_TRY(CUDA_CHECK(cudaSetDevice(cuda_device(n->owner->dev)->index)));
    ncclResult_t r =
        n->root->comm ? ncclCommSplit(n->root->comm, 0, n->owner->world.rank, &n->comm, &config) : GONE;
    if (r == ncclSuccess || r == ncclInProgress)
        return SHERD_OK;
    return r == GONE ? ended(n) : fail(r, "ncclCommSplit");
}

/* Opening has failed: nothing of the family can be opened from now on. What was being split goes with its
 * root. */
static int give_up_opening(struct nccl *n, int status)
{
    int st = give_up(n, status);
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
        st = fail(r, "opening");
    for (int i = 0; i < n && st == SHERD_OK; i++)
        st = wait_root(comms[i]->impl, 0, "opening", comms[i]->timeout);
    return st;
}

static int nccl_open(struct sherd_comm *const *comms, int n, const void *id)
{
    ncclUniqueId unique;
    int st = check_version();
    memcpy(&unique, id, sizeof(unique));
    for (int i = 0; i < n && st == SHERD_OK; i++)
        st = start_family(comms[i]);
    SHERD_TRY(st);
    st = open_roots(comms, n, &unique);
    for (int i = 0; i < n && st == SHERD_OK; i++)
        st = begin_split(comms[i]->impl, 1);
    for (int i = 0; i < n && st == SHERD_OK; i++)
        st = wait_root(comms[i]->impl, 1, "opening", comms[i]->timeout);
    for (int i = 0; i < n && st == SHERD_OK; i++)
        cuda_took(comms[i]->dev, ((struct nccl *)comms[i]->impl)->room);
    for (int i = 0; i < n && st != SHERD_OK; i++)
        st = give_up_opening(comms[i]->impl, st);
    return st;
}

static int nccl_dup(struct sherd_comm *comm, struct sherd_comm *twin)
{
    struct nccl *from = comm->impl;
    SHERD_TRY(start(twin, from->root));
    int st = begin_split(twin->impl, 0);
    if (st == SHERD_OK)
        st = wait_root(twin->impl, 1, "a second communicator", comm->timeout);
    if (st != SHERD_OK)
        return give_up_opening(twin->impl, st);
    cuda_took(twin->dev, ((struct nccl *)twin->impl)->room);
    return SHERD_OK;
}

static void nccl_abort(struct sherd_comm *comm, const char *reason)
{
    if (comm->impl)
        end(comm->impl, reason);
}

/* Within bounds; what cannot be closed is aborted. */
static void root_close(struct nccl *n)
{
    struct root *root = n->root;
    if (--root->users > 0)
        return;
    if (root->comm) {
        ncclResult_t r = ncclCommFinalize(root->comm);
        int st = r == ncclSuccess || r == ncclInProgress
                     ? wait_root(n, 0, "closing", MIN(CLOSE_SECONDS, n->owner->timeout))
                     : fail(r, "closing");
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

static void nccl_close(struct sherd_comm *comm)
{
    struct nccl *n = comm->impl;
    struct cuda_device *cd = cuda_device(comm->dev);
    if (cudaSetDevice(cd->index) != cudaSuccess)
        (void)cudaGetLastError();
    cuda_unwatch(cd, &n->watch);
    if (n->comm && look_at_peers(n) != SHERD_OK)
        end(n, sherd_error());
    while (n->windows) {
        struct window *w = n->windows;
        n->windows = w->next;
        window_close(n, w);
    }
    finish(n);
    root_close(n);
    for (size_t i = 0; i < ARRAY_LEN(n->marks); i++)
        if (n->marks[i] && cudaEventDestroy(n->marks[i]) != cudaSuccess)
            (void)cudaGetLastError();
    pthread_mutex_destroy(&n->lock);
    mem_free(n);
}

const struct comm_ops comm_nccl = {
    .kind = "nccl",
    .built = COMM_BUILT,
    .all_gather = nccl_all_gather,
    .reduce_scatter = nccl_reduce_scatter,
    .all_reduce = nccl_all_reduce,
    .broadcast = nccl_broadcast,
    .dup = nccl_dup,
    .abort = nccl_abort,
    .close = nccl_close,
    .make_id = nccl_make_id,
    .open = nccl_open,
    .expose = nccl_expose,
    .conceal = nccl_conceal,
};
