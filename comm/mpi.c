/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Exchanges by messages of an MPI, which its own thread carries (comm/carry.h). MPI has no news of a death
 * and no bound for a wait; so the ranks also draw lines between each other (comm/lines.h), which carry aborts
 * and the board: rank 0 tells by MPI where it is met for that.
 */
#include "comm/mpi.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "comm/board.h"
#include "comm/carry.h"
#include "comm/lines.h"
#include "comm/mesh.h"
#include "comm/mpi_shim.h"
#include "comm/net.h"
#include "device/ops.h"

#define TAG_FIRST 2
#define TAG_MOST 32767     /* every MPI has as many */
#define LOOK_SECONDS 0.05  /* between looks at the lines */
#define LEFT_SECONDS 1.    /* for what a rank sent before it left */
#define EXPLAIN_SECONDS 1. /* for the lines to tell why MPI failed */

/* All communicators of one opening. */
struct group {
    _Atomic int users;
    const struct mpi_shim *shim;
    struct carry *carry;
    struct lines *lines; /* NULL until they are drawn */
    int rank, size;
    int next, pairs; /* tags to give out, and pairs of them in use: counted by rank 0 */
};

struct mpi {
    struct mesh mesh; /* first, see comm/mesh.h */
    struct group *group;
    int tag, control;
    double timeout;
    struct carry_job job;
    struct carry_leg *legs;
    uint8_t *absent;
    int stuck; /* MPI's thread may write to the legs and the mesh at any time */
};

/* ---- exchanges ---- */

static int check(const struct group *g)
{
    return g->lines ? lines_check(g->lines) : SHERD_OK;
}

static void abort_all(struct group *g, const char *reason)
{
    g->shim->broken();
    if (g->lines)
        lines_abort(g->lines, reason);
}

/* Names those that have not come or stopped. */
static int timed_out(struct mpi *m, const struct block_call *call)
{
    const struct group *g = m->group;
    char text[256], where[1000] = "";
    int missing = carry_look(g->carry, &m->job, m->absent);
    block_call_text(call, text, sizeof(text));
    if (missing == 0)
        return SHERD_FAIL(
            SHERD_ETIMEOUT, "%s: no progress for %g s, a call of MPI's has not come back", text, m->timeout);
    if (g->lines)
        board_tell(lines_board(g->lines), m->absent, NULL, where, sizeof(where));
    else
        board_ranks(m->absent, m->mesh.size, where, sizeof(where));
    return SHERD_FAIL(SHERD_ETIMEOUT, "%s: no progress for %g s, %d of %d ranks have not come: %s", text,
        m->timeout, missing, m->mesh.size, where);
}

/* A rank that is waited for and has said farewell will not come. */
static int check_left(struct mpi *m, const struct block_call *call)
{
    const struct group *g = m->group;
    char text[256];
    for (int r = 0; r < m->mesh.size && g->lines; r++) {
        if (r == m->mesh.rank || !lines_is_closed(g->lines, r))
            continue;
        carry_look(g->carry, &m->job, m->absent);
        if (m->absent[r])
            return lines_lost(g->lines, r, block_call_text(call, text, sizeof(text)), 0);
    }
    return SHERD_OK;
}

/* MPI has failed with a rank, which may have died of something that the lines know. */
static int mpi_failed(const struct mpi *m)
{
    double until = clock_seconds() + EXPLAIN_SECONDS;
    while (m->group->lines && clock_seconds() < until) {
        SHERD_TRY(lines_check(m->group->lines));
        usleep((useconds_t)(LOOK_SECONDS * 1e6));
    }
    return SHERD_FAIL(SHERD_ECOMM, "MPI failed with rank %d: %s", m->job.seen.with, m->job.why);
}

/* The exchange is under way: waits for it as long as anything moves, or anybody pins a place. */
static int wait_for(struct mpi *m, const struct block_call *call)
{
    const struct group *g = m->group;
    double since = clock_seconds();
    uint64_t pulse = 0, moved = 0;
    for (;;) {
        struct carry_standing seen = carry_wait(g->carry, &m->job, LOOK_SECONDS);
        if (seen.state == CARRY_DONE)
            return SHERD_OK;
        if (seen.state == CARRY_DIFFERS)
            return mesh_differ(&m->mesh, call, seen.with, &m->legs[seen.with].theirs);
        if (seen.state == CARRY_FAILED)
            return mpi_failed(m);
        SHERD_TRY(check(g));
        uint64_t beats = g->lines ? board_pulse(lines_board(g->lines), g->rank) : 0;
        double now = clock_seconds();
        if (seen.moved != moved || beats != pulse)
            since = now;
        else if (now - since >= m->timeout)
            return timed_out(m, call);
        else if (now - since >= LEFT_SECONDS)
            SHERD_TRY(check_left(m, call));
        moved = seen.moved;
        pulse = beats;
    }
}

static int exchange(struct mesh *mesh, const struct block_call *call, const struct mesh_part *parts)
{
    struct mpi *m = (struct mpi *)mesh;
    m->job = (struct carry_job){ .tag = m->tag, .legs = m->legs, .call = call, .parts = parts };
    SHERD_TRY(check(m->group));
    SHERD_TRY(carry_begin(m->group->carry, &m->job));
    int st = wait_for(m, call);
    m->stuck |= !carry_end(m->group->carry, &m->job);
    if (st != SHERD_OK && st != SHERD_EPEER)
        abort_all(m->group, sherd_error());
    return st;
}

/* ---- opening and closing ---- */

static void group_drop(struct group *g)
{
    if (!g || atomic_fetch_sub(&g->users, 1) != 1)
        return;
    if (g->carry)
        carry_close(g->carry);
    lines_drop(g->lines);
    mem_free(g);
}

/* What MPI's thread may still write to is left to it: the process is to end. */
static void mpi_close(struct sherd_comm *comm)
{
    struct mpi *m = comm->impl;
    if (m->stuck)
        return;
    if (!m->control && m->mesh.rank == 0)
        m->group->pairs--;
    group_drop(m->group);
    mesh_finish(&m->mesh);
    mem_free(m->legs);
    mem_free(m->absent);
    mem_free(m);
}

static int join(struct sherd_comm *comm, struct group *g, int tag, int control)
{
    struct mpi *m = mem_zalloc(1, sizeof(*m));
    if (!m)
        return SHERD_ENOMEM;
    m->mesh = (struct mesh){ .rank = g->rank, .size = g->size, .exchange = exchange };
    m->group = g;
    atomic_fetch_add(&g->users, 1);
    m->tag = tag;
    m->control = control;
    m->timeout = comm->timeout;
    m->legs = mem_zalloc((size_t)g->size, sizeof(*m->legs));
    m->absent = mem_zalloc((size_t)g->size, 1);
    comm->impl = m;
    int st = m->legs && m->absent ? mesh_init(&m->mesh) : SHERD_ENOMEM;
    if (st != SHERD_OK) {
        mpi_close(comm);
        comm->impl = NULL;
    }
    return st;
}

/* Slurm serves both by what it is asked for with --mpi. */
static const char *mpi_of(const struct sherd_world *world)
{
    if (strcmp(world->source, "Slurm") != 0)
        return world->source;
    return getenv("PMIX_NAMESPACE") ? "Open MPI" : getenv("PMI_FD") ? "MPICH" : "";
}

/* The shim for the MPI that started this process. */
static int load(const struct mpi_shim **out, const struct sherd_world *world)
{
    static const struct {
        const char *source, *file;
    } shims[] = { { "Open MPI", "libsherd-openmpi.so" }, { "MPICH", "libsherd-mpich.so" } };
    const char *file = NULL, *mpi = mpi_of(world);
    for (size_t i = 0; i < ARRAY_LEN(shims); i++)
        if (strcmp(mpi, shims[i].source) == 0)
            file = shims[i].file;
    if (!file)
        return SHERD_FAIL(SHERD_EUNSUPPORTED,
            "ranks started by %s cannot talk over MPI: those of mpirun can (Open MPI, MPICH), and those of "
            "srun --mpi=pmix (Open MPI) or --mpi=pmi2 (MPICH)",
            world->source);
    void *library = device_library(file, RTLD_GLOBAL);
    const struct mpi_shim *shim = library ? dlsym(library, MPI_SHIM_TABLE) : NULL;
    if (!shim || shim->version != MPI_SHIM_VERSION)
        return SHERD_FAIL(SHERD_EUNSUPPORTED,
            "this build cannot use %s (%s); build with -Dmpi=enabled, or set MASTER_ADDR and MASTER_PORT for all "
            "ranks, and they talk over TCP",
            mpi, library ? "another build" : dlerror());
    *out = shim;
    return SHERD_OK;
}

/* Where rank 0 waits for the others, or why it cannot. */
struct meeting {
    char master[128], job[64], why[256];
    int32_t port;
};

static int prepare(struct meeting *out, int *door, const struct sherd_world *world)
{
    const char *set = getenv("NCCL_SOCKET_IFNAME"), *wanted = set && set[0] ? set : NULL;
    uint64_t token = 0;
    if (getrandom(&token, sizeof(token), 0) != (ssize_t)sizeof(token))
        return SHERD_FAIL(SHERD_ECOMM, "the system gives no random numbers");
    snprintf(out->job, sizeof(out->job), "MPI/%016llx", (unsigned long long)token);
    if (world->master[0])
        memcpy(out->master, world->master, sizeof(out->master));
    else if (world->local_size == world->size)
        snprintf(out->master, sizeof(out->master), "127.0.0.1");
    else
        SHERD_TRY(net_addresses(out->master, sizeof(out->master), wanted));
    SHERD_TRY(net_listen_any(door, 0));
    struct net_address here = net_here(*door);
    out->port = net_port(&here);
    return SHERD_OK;
}

/* The lines between the ranks, which MPI has brought together already. */
static int draw_lines(struct sherd_comm *comm)
{
    struct mpi *m = comm->impl;
    struct sherd_world world = comm->world;
    struct meeting meeting = { 0 };
    int door = -1;
    if (world.rank == 0 && prepare(&meeting, &door, &world) != SHERD_OK)
        snprintf(meeting.why, sizeof(meeting.why), "%s", sherd_error());
    int st = collect_tell(&m->mesh.collect, &meeting, sizeof(meeting), 0);
    if (st != SHERD_OK && door >= 0)
        close(door);
    SHERD_TRY(st);
    if (meeting.why[0])
        return SHERD_FAIL(world.rank == 0 ? SHERD_ECOMM : SHERD_EPEER, "rank 0: %s", meeting.why);
    memcpy(world.master, meeting.master, sizeof(world.master));
    memcpy(world.job, meeting.job, sizeof(meeting.job));
    world.port = meeting.port;
    return lines_open(&m->group->lines, &world, door, comm->timeout);
}

static void warn(const char *text)
{
    log_warn("%s", text);
}

static int group_new(struct group **out, const struct sherd_comm *comm, const struct mpi_shim *shim)
{
    const struct sherd_world *world = &comm->world;
    char why[256] = "";
    int rank = 0, size = 0;
    if (shim->start(&rank, &size, comm->timeout, warn, why, sizeof(why)) != 0)
        return SHERD_FAIL(SHERD_ECOMM, "%s cannot be started: %s", world->source, why);
    if (rank != world->rank || size != world->size)
        return SHERD_FAIL(SHERD_ECOMM, "%s says that this is rank %d of %d, its variables say rank %d of %d",
            world->source, rank, size, world->rank, world->size);
    struct group *g = mem_zalloc(1, sizeof(*g));
    if (!g)
        return SHERD_ENOMEM;
    *g = (struct group){
        .users = 1, .shim = shim, .rank = rank, .size = size, .next = TAG_FIRST + 2, .pairs = 1
    };
    int st = carry_open(&g->carry, shim, rank, size);
    if (st == SHERD_OK)
        *out = g;
    else
        group_drop(g);
    return st;
}

int mpi_open_ranks(struct sherd_comm *comm)
{
    const struct mpi_shim *shim = NULL;
    struct group *g = NULL;
    SHERD_TRY(load(&shim, &comm->world));
    SHERD_TRY(group_new(&g, comm, shim));
    int st = join(comm, g, TAG_FIRST, 0);
    if (st == SHERD_OK)
        st = draw_lines(comm);
    if (st != SHERD_OK)
        abort_all(g, sherd_error());
    group_drop(g);
    return st;
}

static int mpi_control(struct sherd_comm *comm, struct sherd_comm *twin)
{
    const struct mpi *m = comm->impl;
    return join(twin, m->group, m->tag + 1, 1);
}

static int mpi_dup(struct sherd_comm *control, struct sherd_comm *twin)
{
    struct mpi *m = control->impl;
    struct group *g = m->group;
    int32_t tag = -1;
    if (g->rank == 0 && g->pairs < BLOCK_CHANNELS / 2 && g->next + 1 < TAG_MOST) {
        tag = g->next;
        g->next += 2;
        g->pairs++;
    }
    SHERD_TRY(collect_tell(&m->mesh.collect, &tag, sizeof(tag), 0));
    if (tag < 0)
        return SHERD_FAIL(SHERD_EUNSUPPORTED, "no more than %d communicators over the same ranks; close one",
            BLOCK_CHANNELS / 2);
    return join(twin, g, tag, 0);
}

static void mpi_abort(struct sherd_comm *comm, const char *reason)
{
    abort_all(((struct mpi *)comm->impl)->group, reason);
}

static int mpi_check(struct sherd_comm *comm)
{
    return check(((struct mpi *)comm->impl)->group);
}

static int mpi_heard(struct sherd_comm *comm)
{
    const struct group *g = ((struct mpi *)comm->impl)->group;
    return g->lines ? lines_heard(g->lines) : SHERD_OK;
}

static struct board *mpi_board(struct sherd_comm *comm)
{
    return lines_board(((struct mpi *)comm->impl)->group->lines);
}

static uint64_t mpi_pulse(struct sherd_comm *comm)
{
    return board_pulse(mpi_board(comm), comm->world.rank);
}

static const char *mpi_tell(struct sherd_comm *comm, char *buf, size_t bytes)
{
    return board_tell_all(mpi_board(comm), buf, bytes);
}

const struct comm_ops comm_mpi = {
    .kind = "mpi",
    .ordered = 1,
    .all_gather = collect_all_gather,
    .reduce_scatter = collect_reduce_scatter,
    .all_reduce = collect_all_reduce,
    .broadcast = collect_broadcast,
    .control = mpi_control,
    .dup = mpi_dup,
    .abort = mpi_abort,
    .close = mpi_close,
    .check = mpi_check,
    .heard = mpi_heard,
    .board = mpi_board,
    .pulse = mpi_pulse,
    .tell = mpi_tell,
};
