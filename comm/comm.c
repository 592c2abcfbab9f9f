/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The face of all communicators: opening by kind, and the collectives with their checks and counters.
 */
#include "comm/ops.h"

#include <string.h>

#include <sherd/ops.h>

#include "base/mem.h"
#include "base/status.h"
#include "base/text.h"
#include "comm/control.h"
#include "comm/mpi.h"
#include "comm/shm.h"
#include "comm/tcp.h"
#include "device/ops.h"

#define TIMEOUT_SECONDS 600.0

/* ---- opening and closing ---- */

static int check_world(const struct sherd_world *world)
{
    if (world->size < 1 || world->rank < 0 || world->rank >= world->size)
        return SHERD_FAIL(SHERD_EINVAL, "rank %d of a world of %d", world->rank, world->size);
    if (world->local_size < 1 || world->local_size > world->size || world->local_rank < 0 ||
        world->local_rank >= world->local_size)
        return SHERD_FAIL(SHERD_EINVAL, "local rank %d of %d on this host, in a world of %d",
            world->local_rank, world->local_size, world->size);
    if (world->size > 1 && (!world->job[0] || !memchr(world->job, '\0', sizeof(world->job))))
        return SHERD_FAIL(SHERD_EINVAL,
            "a job of %d ranks has no name: world.job must be the same text on all of them; sherd_world_from_env fills it in",
            world->size);
    return SHERD_OK;
}

static int check_timeout(double timeout)
{
    if (!(timeout >= 0 && timeout < 1e9))
        return SHERD_FAIL(SHERD_EINVAL, "a timeout of %g s", timeout);
    return SHERD_OK;
}

static struct sherd_comm *comm_new(
    const struct comm_ops *ops, struct sherd_device *dev, const struct sherd_world *world, double timeout)
{
    struct sherd_comm *comm = mem_zalloc(1, sizeof(*comm));
    if (!comm)
        return NULL;
    comm->ops = ops;
    comm->dev = dev;
    comm->world = *world;
    comm->timeout = timeout > 0 ? timeout : TIMEOUT_SECONDS;
    return comm;
}

/* A device that brings its own kind; its ranks get a side of shared memory. */
static int has_kind(const struct sherd_device *dev)
{
    return dev->ops->comm != NULL;
}

/* The kinds of the host serve devices that run host functions in queue order on host memory. */
static int check_shared(const struct sherd_device *dev, int size)
{
    if (has_kind(dev)) {
        if (dev->ops->comm->built == COMM_BUILT)
            return SHERD_OK;
        return SHERD_FAIL(SHERD_EUNSUPPORTED,
            "device '%s': the plugin is not of this build of sherd; build and install both together",
            dev->name);
    }
    if (strcmp(dev->ops->kind, "cpu") != 0 || !dev->ops->submit)
        return SHERD_FAIL(SHERD_EUNSUPPORTED,
            "device '%s' has no communication between %d ranks in this build", dev->name, size);
    return SHERD_OK;
}

static int is_one_host(const struct sherd_world *world)
{
    return world->local_size == world->size;
}

/* How ranks talk over the memory of a host or between hosts: a row of this table. */
static const struct {
    const struct comm_ops *ops;
    int (*open)(struct sherd_comm *comm);
} ways[] = {
    { &comm_shm, shm_open_ranks },
    { &comm_tcp, tcp_open_ranks },
    { &comm_mpi, mpi_open_ranks },
};

const char *comm_way(int i)
{
    return i == 0 ? "auto" : i <= (int)ARRAY_LEN(ways) ? ways[i - 1].ops->kind : NULL;
}

static int open_ranks(struct sherd_comm *comm)
{
    size_t i = 0;
    while (ways[i].ops != comm->ops)
        i++;
    return ways[i].open(comm);
}

/* An MPI started the ranks and told no address of rank 0. */
static int by_mpi(const struct sherd_world *world)
{
    return !world->master[0] &&
           (strcmp(world->source, "Open MPI") == 0 || strcmp(world->source, "MPICH") == 0);
}

static int no_way(const char *kind)
{
    struct text list = { 0 };
    for (int i = 0; comm_way(i); i++)
        text_add(&list, "%s%s", i ? ", " : "", comm_way(i));
    int st = SHERD_FAIL(SHERD_ECONFIG, "ranks cannot talk over '%s', only over one of: %s", kind,
        list.data ? list.data : "?");
    text_finish(&list);
    return st;
}

/* Of CPU ranks, and of the sides of others. */
static int find_way(const struct comm_ops **out, const struct sherd_comm_desc *desc)
{
    const char *kind = desc->kind ? desc->kind : "auto";
    *out = NULL;
    if (strcmp(kind, "auto") == 0)
        kind = is_one_host(&desc->world) ? "shm" : by_mpi(&desc->world) ? "mpi" : "tcp";
    for (size_t i = 0; i < ARRAY_LEN(ways); i++)
        if (strcmp(ways[i].ops->kind, kind) == 0)
            *out = ways[i].ops;
    if (!*out)
        return no_way(kind);
    if (*out == &comm_shm && !is_one_host(&desc->world))
        return SHERD_FAIL(SHERD_ECONFIG,
            "%d of %d ranks are on this host, so not all can share its memory: tcp or auto",
            desc->world.local_size, desc->world.size);
    return SHERD_OK;
}

static const struct comm_ops *kind_of(const struct sherd_device *dev, int size, const struct comm_ops *way)
{
    return size == 1 ? &comm_self : has_kind(dev) ? dev->ops->comm : way;
}

/* ---- the side of kinds from plugins ---- */

static void side_close(struct sherd_comm *side)
{
    struct sherd_device *cpu = side ? side->dev : NULL;
    sherd_comm_close(side);
    sherd_device_close(cpu);
}

/* A communicator with a CPU device of its own, not yet joined to the others. */
static int side_new(struct sherd_comm *comm, const struct comm_ops *way)
{
    struct sherd_device *cpu = NULL;
    SHERD_TRY(sherd_device_open(&cpu, &(struct sherd_device_desc){ .name = "cpu", .threads = 1 }));
    comm->side = comm_new(way, cpu, &comm->world, comm->timeout);
    if (comm->side)
        return SHERD_OK;
    sherd_device_close(cpu);
    return SHERD_ENOMEM;
}

/* The sides are joined: rank 0 names the job, all open. */
static int open_kind(struct sherd_comm *const *comms, int n)
{
    char id[COMM_ID_BYTES] = { 0 };
    int st = SHERD_OK;
    if (comms[0]->world.rank == 0)
        st = comms[0]->ops->make_id(id);
    if (n == 1) {
        SHERD_TRY(comm_agree(comms[0], st));
        SHERD_TRY(comm_host_broadcast(comms[0], id, sizeof(id), 0));
    }
    SHERD_TRY(st);
    return comms[0]->ops->open(comms, n, id);
}

static int open_with_side(struct sherd_comm *comm, const struct comm_ops *way)
{
    SHERD_TRY(side_new(comm, way));
    SHERD_TRY(open_ranks(comm->side));
    SHERD_TRY(control_make(comm->side));
    int st = open_kind(&comm, 1);
    if (st != SHERD_OK)
        comm->side->ops->abort(comm->side, sherd_error());
    return st;
}

static int open_threads_with_sides(struct sherd_comm *const *comms, int size)
{
    struct sherd_comm **sides = mem_zalloc((size_t)size, sizeof(*sides));
    int st = sides ? SHERD_OK : SHERD_ENOMEM;
    for (int r = 0; r < size && st == SHERD_OK; r++) {
        st = side_new(comms[r], &comm_shm);
        sides[r] = comms[r]->side;
    }
    if (st == SHERD_OK)
        st = shm_open_threads(sides, size);
    for (int r = 0; r < size && st == SHERD_OK; r++)
        st = control_make(sides[r]);
    if (st == SHERD_OK)
        st = open_kind(comms, size);
    mem_free(sides);
    return st;
}

/* The twin's own side, over a channel of its own. */
static int side_dup(struct sherd_comm *twin, struct sherd_comm *side)
{
    SHERD_TRY(side_new(twin, side->ops));
    SHERD_TRY(side->ops->dup(&side->control->twin, twin->side));
    return control_make(twin->side);
}

int sherd_comm_open(struct sherd_comm **out, struct sherd_device *dev, const struct sherd_comm_desc *desc)
{
    if (!out || !dev || !desc)
        return SHERD_FAIL(SHERD_EINVAL, "sherd_comm_open: out, dev or desc is NULL");
    const struct sherd_world *world = &desc->world;
    SHERD_TRY(check_world(world));
    SHERD_TRY(check_timeout(desc->timeout));
    const struct comm_ops *way = NULL;
    SHERD_TRY(find_way(&way, desc));
    if (world->size > 1)
        SHERD_TRY(check_shared(dev, world->size));
    struct sherd_comm *comm = comm_new(kind_of(dev, world->size, way), dev, world, desc->timeout);
    if (!comm)
        return SHERD_ENOMEM;
    int st = SHERD_OK;
    if (world->size > 1)
        st = has_kind(dev) ? open_with_side(comm, way) : open_ranks(comm);
    if (st == SHERD_OK)
        st = control_make(comm);
    if (st == SHERD_OK)
        *out = comm;
    else
        sherd_comm_close(comm);
    return st;
}

int sherd_comm_open_threads(
    struct sherd_comm **comms, struct sherd_device *const *devs, int size, double timeout)
{
    if (!comms || !devs || size < 1)
        return SHERD_FAIL(SHERD_EINVAL, "sherd_comm_open_threads: comms or devs is NULL, or size %d", size);
    SHERD_TRY(check_timeout(timeout));
    memset(comms, 0, (size_t)size * sizeof(*comms));
    int st = SHERD_OK;
    for (int r = 0; r < size; r++) {
        struct sherd_world world = { .rank = r,
            .size = size,
            .local_rank = r,
            .local_size = size,
            .job = "threads",
            .source = "threads of one process" };
        if (!devs[r])
            st = SHERD_FAIL(SHERD_EINVAL, "sherd_comm_open_threads: devs[%d] is NULL", r);
        else if (size > 1)
            st = check_shared(devs[r], size);
        if (st == SHERD_OK && devs[r]->ops != devs[0]->ops)
            st = SHERD_FAIL(SHERD_EINVAL, "sherd_comm_open_threads: devices of different kinds");
        if (st != SHERD_OK)
            goto out;
        comms[r] = comm_new(kind_of(devs[r], size, &comm_shm), devs[r], &world, timeout);
        if (!comms[r]) {
            st = SHERD_ENOMEM;
            goto out;
        }
    }
    if (size > 1)
        SHERD_TRY_OUT(
            has_kind(devs[0]) ? open_threads_with_sides(comms, size) : shm_open_threads(comms, size));
    for (int r = 0; r < size; r++)
        SHERD_TRY_OUT(control_make(comms[r]));
out:
    for (int r = 0; st != SHERD_OK && r < size; r++) {
        sherd_comm_close(comms[r]);
        comms[r] = NULL;
    }
    return st;
}

void sherd_comm_close(struct sherd_comm *comm)
{
    if (!comm)
        return;
    control_destroy(comm->control);
    if (comm->impl)
        comm->ops->close(comm);
    side_close(comm->side);
    mem_free(comm);
}

int sherd_comm_rank(const struct sherd_comm *comm)
{
    return comm->world.rank;
}

int sherd_comm_size(const struct sherd_comm *comm)
{
    return comm->world.size;
}

void sherd_comm_abort(struct sherd_comm *comm, const char *reason)
{
    if (!comm)
        return;
    if (comm->side)
        comm->side->ops->abort(comm->side, reason ? reason : "aborted");
    comm->ops->abort(comm, reason ? reason : "aborted");
}

int sherd_comm_dup(struct sherd_comm **out, struct sherd_comm *comm)
{
    if (!out || !comm)
        return SHERD_FAIL(SHERD_EINVAL, "sherd_comm_dup: out or comm is NULL");
    SHERD_TRY(control_make(comm));
    struct sherd_comm *twin = comm_new(comm->ops, comm->dev, &comm->world, comm->timeout);
    if (!twin)
        return SHERD_ENOMEM;
    int st = comm->side ? side_dup(twin, comm->side) : SHERD_OK;
    if (st == SHERD_OK)
        st = comm->ops->dup(comm->side ? comm : &comm->control->twin, twin);
    if (st == SHERD_OK)
        *out = twin;
    else
        sherd_comm_close(twin);
    return st;
}

int sherd_comm_expose(struct sherd_comm *comm, void *base, size_t bytes)
{
    if (!comm || !base || bytes == 0)
        return SHERD_FAIL(SHERD_EINVAL, "sherd_comm_expose: comm or base is NULL, or there are 0 bytes");
    return comm->ops->expose ? comm->ops->expose(comm, base, bytes) : SHERD_OK;
}

int sherd_comm_landing(struct sherd_comm *comm, void *base, size_t bytes)
{
    if (!comm || !base || bytes == 0)
        return SHERD_FAIL(SHERD_EINVAL, "sherd_comm_landing: comm or base is NULL, or there are 0 bytes");
    return comm->ops->landing ? comm->ops->landing(comm, base, bytes) : SHERD_OK;
}

int comm_lands(const struct sherd_comm *comm, int64_t elems, enum sherd_dtype type)
{
    return comm->ops->lands && comm->ops->lands(comm, elems, type);
}

void sherd_comm_conceal(struct sherd_comm *comm, void *base)
{
    if (comm && base && comm->ops->conceal)
        comm->ops->conceal(comm, base);
}

void sherd_comm_read(const struct sherd_comm *comm, struct sherd_comm_counters *out)
{
    *out = comm->counters;
}

/* ---- collectives ---- */

static int check_call(const char *name, const struct sherd_comm *comm, const struct sherd_queue *queue,
    int64_t elems, enum sherd_dtype type)
{
    size_t each = sherd_dtype_bytes(type);
    if (!comm || !queue)
        return SHERD_FAIL(SHERD_EINVAL, "%s: no %s", name, comm ? "queue" : "communicator");
    if (queue->dev != comm->dev)
        return SHERD_FAIL(SHERD_EINVAL, "%s: the queue is of another device than the communicator", name);
    if (each == 0)
        return SHERD_FAIL(SHERD_EINVAL, "%s: unknown type %d", name, (int)type);
    if (elems < 0 || elems > INT64_MAX / (int64_t)each / comm->world.size)
        return SHERD_FAIL(SHERD_EINVAL, "%s: %lld elements of %s for each of %d ranks", name,
            (long long)elems, sherd_dtype_name(type), comm->world.size);
    return SHERD_OK;
}

/* `part` (one rank's) lies apart from `whole` (all ranks'), or exactly at its place in it. */
static int check_place(
    const char *name, const struct sherd_comm *comm, const void *whole, const void *part, size_t bytes)
{
    if (bytes == 0)
        return SHERD_OK;
    if (!whole || !part)
        return SHERD_FAIL(SHERD_EINVAL, "%s: a buffer is NULL", name);
    uintptr_t w = (uintptr_t)whole, p = (uintptr_t)part;
    int apart = p + bytes <= w || p >= w + bytes * (size_t)comm->world.size;
    if (!apart && p != w + bytes * (size_t)comm->world.rank)
        return SHERD_FAIL(SHERD_EINVAL, "%s: the part of rank %d overlaps the whole, and not at its place",
            name, comm->world.rank);
    return SHERD_OK;
}

/* Two buffers of `bytes` lie apart, or are one. */
static int check_pair(const char *name, const void *out, const void *in, size_t bytes)
{
    if (bytes > 0 && (!out || !in))
        return SHERD_FAIL(SHERD_EINVAL, "%s: the buffer is NULL", name);
    uintptr_t o = (uintptr_t)out, i = (uintptr_t)in;
    if (o != i && o < i + bytes && i < o + bytes)
        return SHERD_FAIL(SHERD_EINVAL, "%s: out and in overlap, and are not the same", name);
    return SHERD_OK;
}

static void count(struct sherd_comm *comm, enum sherd_collective kind, uint64_t bytes)
{
    comm->counters.calls[kind]++;
    if (comm->world.size > 1)
        comm->counters.bytes[kind] += bytes;
}

static int probe_begin(
    const struct sherd_comm *comm, struct sherd_queue *queue, const char *name, uint64_t bytes)
{
    struct device_probe *probe = comm->dev->probe;
    struct probe_span span = { .kind = PROBE_COLLECTIVE, .name = name, .bytes = bytes };
    return probe ? probe->begin(probe, queue, &span) : SHERD_OK;
}

static int probe_end(const struct sherd_comm *comm, struct sherd_queue *queue)
{
    struct device_probe *probe = comm->dev->probe;
    return probe ? probe->end(probe, queue) : SHERD_OK;
}

int sherd_all_gather(struct sherd_comm *comm, struct sherd_queue *queue, void *out, const void *in,
    int64_t elems, enum sherd_dtype type)
{
    SHERD_TRY(check_call("all-gather", comm, queue, elems, type));
    size_t bytes = (size_t)elems * sherd_dtype_bytes(type);
    SHERD_TRY(check_place("all-gather", comm, out, in, bytes));
    SHERD_TRY(comm_check_same(comm, SHERD_ALL_GATHER, elems, type, 0));
    count(comm, SHERD_ALL_GATHER, bytes * (uint64_t)(comm->world.size - 1));
    SHERD_TRY(probe_begin(comm, queue, "all-gather", bytes));
    SHERD_TRY(comm->ops->all_gather(comm, queue, out, in, elems, type));
    return probe_end(comm, queue);
}

int sherd_reduce_scatter(struct sherd_comm *comm, struct sherd_queue *queue, void *out, void *in,
    int64_t elems, enum sherd_dtype type)
{
    SHERD_TRY(check_call("reduce-scatter", comm, queue, elems, type));
    size_t bytes = (size_t)elems * sherd_dtype_bytes(type);
    SHERD_TRY(check_place("reduce-scatter", comm, in, out, bytes));
    SHERD_TRY(comm_check_same(comm, SHERD_REDUCE_SCATTER, elems, type, SHERD_REDUCE_SUM));
    count(comm, SHERD_REDUCE_SCATTER, bytes * (uint64_t)(comm->world.size - 1));
    SHERD_TRY(probe_begin(comm, queue, "reduce-scatter", bytes));
    SHERD_TRY(comm->ops->reduce_scatter(comm, queue, out, in, elems, type));
    return probe_end(comm, queue);
}

int sherd_all_reduce(struct sherd_comm *comm, struct sherd_queue *queue, void *out, const void *in,
    int64_t elems, enum sherd_dtype type, enum sherd_reduce reduce)
{
    SHERD_TRY(check_call("all-reduce", comm, queue, elems, type));
    if (reduce != SHERD_REDUCE_SUM && reduce != SHERD_REDUCE_MAX)
        return SHERD_FAIL(SHERD_EINVAL, "all-reduce: %d is neither sum nor max", (int)reduce);
    size_t bytes = (size_t)elems * sherd_dtype_bytes(type);
    SHERD_TRY(check_pair("all-reduce", out, in, bytes));
    SHERD_TRY(comm_check_same(comm, SHERD_ALL_REDUCE, elems, type, reduce));
    count(comm, SHERD_ALL_REDUCE,
        2 * (uint64_t)bytes * (uint64_t)(comm->world.size - 1) / (uint64_t)comm->world.size);
    SHERD_TRY(probe_begin(comm, queue, "all-reduce", bytes));
    SHERD_TRY(comm->ops->all_reduce(comm, queue, out, in, elems, type, reduce));
    return probe_end(comm, queue);
}

int sherd_broadcast(
    struct sherd_comm *comm, struct sherd_queue *queue, void *out, const void *in, size_t bytes, int root)
{
    SHERD_TRY(check_call("broadcast", comm, queue, bytes > INT64_MAX ? -1 : (int64_t)bytes, SHERD_U8));
    if (root < 0 || root >= comm->world.size)
        return SHERD_FAIL(SHERD_EINVAL, "broadcast: root %d of %d ranks", root, comm->world.size);
    SHERD_TRY(check_pair("broadcast", out, root == comm->world.rank ? in : out, bytes));
    SHERD_TRY(comm_check_same(comm, SHERD_BROADCAST, (int64_t)bytes, SHERD_U8, (uint32_t)root));
    count(comm, SHERD_BROADCAST, root == comm->world.rank ? bytes : 0);
    SHERD_TRY(probe_begin(comm, queue, "broadcast", bytes));
    SHERD_TRY(comm->ops->broadcast(comm, queue, out, root == comm->world.rank ? in : out, bytes, root));
    return probe_end(comm, queue);
}
