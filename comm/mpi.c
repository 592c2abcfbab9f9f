/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Exchanges by messages of an MPI: in each a call, so that all see that all do the same, then the part. A
 * channel is a tag. MPI has no news of a death, and its launcher ends all ranks then; an abort is a message
 * that everybody looks for while waiting.
 */
#include "comm/mpi.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/status.h"
#include "comm/mesh.h"
#include "comm/mpi_shim.h"
#include "device/ops.h"

#define TAG_ABORT 1
#define TAG_FIRST 2
#define TAG_MOST 32767 /* every MPI has as many */
#define PIECE_BYTES ((size_t)1 << 30)
#define REASON_BYTES 512
#define LOOK_SECONDS 0.05 /* between looks for an abort */

/* All communicators of one opening. */
struct group {
    _Atomic int users;
    const struct mpi_shim *shim;
    int rank, size;
    int next, pairs; /* tags to give out, and pairs of them in use: counted by rank 0 */
    pthread_mutex_t lock;
    int aborted_by; /* -1: nobody */
    char reason[REASON_BYTES];
    struct mpi_message *aborts; /* sent to the others */
};

/* What goes on with one other rank in an exchange. */
struct leg {
    struct block_call theirs;
    struct mpi_message call_out, call_in, out, in;
    int has_call_out, has_call_in, has_out, has_in; /* under way */
    size_t sent, got;                               /* bytes of the part */
};

struct mpi {
    struct mesh mesh; /* first, see comm/mesh.h */
    struct group *group;
    int tag, control;
    double timeout;
    struct leg *legs;
};

/* ---- aborts ---- */

static int check(struct group *g)
{
    char text[REASON_BYTES] = "", why[256];
    int from, done = 0;
    struct mpi_message m;
    pthread_mutex_lock(&g->lock);
    if (g->aborted_by < 0 && g->shim->waiting(TAG_ABORT, &from) &&
        g->shim->receive(&m, text, sizeof(text), from, TAG_ABORT, why, sizeof(why)) == 0) {
        while (!done && g->shim->test(&m, &done, why, sizeof(why)) == 0)
            sched_yield();
        g->aborted_by = from;
        memcpy(g->reason, text, sizeof(text) - 1);
        g->shim->broken();
    }
    int st = g->aborted_by < 0 ? SHERD_OK : SHERD_FAIL(SHERD_EPEER, "rank %d: %s", g->aborted_by, g->reason);
    pthread_mutex_unlock(&g->lock);
    return st;
}

static void abort_all(struct group *g, const char *reason)
{
    char why[256];
    pthread_mutex_lock(&g->lock);
    int first = g->aborted_by < 0;
    if (first) {
        g->aborted_by = g->rank;
        snprintf(g->reason, sizeof(g->reason), "%s", reason);
        g->shim->broken();
    }
    /* A message that cannot be sent is one to a rank that is gone. */
    for (int r = 0; first && r < g->size; r++)
        if (r != g->rank)
            (void)g->shim->send(&g->aborts[r], g->reason, sizeof(g->reason), r, TAG_ABORT, why, sizeof(why));
    pthread_mutex_unlock(&g->lock);
}

/* ---- exchanges ---- */

static int mpi_fail(const char *why)
{
    return SHERD_FAIL(SHERD_ECOMM, "MPI: %s", why);
}

/* Ends a message that is under way if it is done; *moved grows then. */
static int test(const struct mpi *m, struct mpi_message *message, int *under_way, int *moved)
{
    char why[256];
    int done = 0;
    if (*under_way && m->group->shim->test(message, &done, why, sizeof(why)) != 0)
        return mpi_fail(why);
    if (done) {
        *under_way = 0;
        (*moved)++;
    }
    return SHERD_OK;
}

static int begin(struct mpi *m, int r, const struct block_call *call)
{
    const struct mpi_shim *shim = m->group->shim;
    struct leg *leg = &m->legs[r];
    char why[256];
    *leg = (struct leg){ 0 };
    if (shim->receive(&leg->call_in, &leg->theirs, sizeof(leg->theirs), r, m->tag, why, sizeof(why)) != 0)
        return mpi_fail(why);
    leg->has_call_in = 1;
    if (shim->send(&leg->call_out, call, sizeof(*call), r, m->tag, why, sizeof(why)) != 0)
        return mpi_fail(why);
    leg->has_call_out = 1;
    return SHERD_OK;
}

/* The next piece each way. Nothing is received before the other's call is known to be ours. */
static int go_on(struct mpi *m, int r, const struct mesh_part *part)
{
    const struct mpi_shim *shim = m->group->shim;
    struct leg *leg = &m->legs[r];
    char why[256];
    size_t out = MIN(part->out_bytes - leg->sent, PIECE_BYTES),
           in = MIN(part->in_bytes - leg->got, PIECE_BYTES);
    if (!leg->has_call_in && !leg->has_out && out > 0) {
        if (shim->send(
                &leg->out, (const char *)part->out + leg->sent, (int)out, r, m->tag, why, sizeof(why)) != 0)
            return mpi_fail(why);
        leg->has_out = 1;
        leg->sent += out;
    }
    if (!leg->has_call_in && !leg->has_in && in > 0) {
        if (shim->receive(&leg->in, (char *)part->in + leg->got, (int)in, r, m->tag, why, sizeof(why)) != 0)
            return mpi_fail(why);
        leg->has_in = 1;
        leg->got += in;
    }
    return SHERD_OK;
}

static int is_done(const struct leg *leg, const struct mesh_part *part)
{
    return !leg->has_call_out && !leg->has_call_in && !leg->has_out && !leg->has_in &&
           leg->sent == part->out_bytes && leg->got == part->in_bytes;
}

static int work(struct mpi *m, int r, const struct block_call *call, const struct mesh_part *part, int *moved)
{
    struct leg *leg = &m->legs[r];
    int unknown = leg->has_call_in;
    SHERD_TRY(test(m, &leg->call_out, &leg->has_call_out, moved));
    SHERD_TRY(test(m, &leg->call_in, &leg->has_call_in, moved));
    if (unknown && !leg->has_call_in && memcmp(&leg->theirs, call, sizeof(*call)) != 0)
        return mesh_differ(&m->mesh, call, r, &leg->theirs);
    SHERD_TRY(test(m, &leg->out, &leg->has_out, moved));
    SHERD_TRY(test(m, &leg->in, &leg->has_in, moved));
    return go_on(m, r, part);
}

static int timed_out(const struct mpi *m, const struct block_call *call, const struct mesh_part *parts)
{
    char text[256], names[256] = "";
    size_t len = 0;
    int missing = 0;
    for (int r = 0; r < m->mesh.size; r++) {
        if (r == m->mesh.rank || is_done(&m->legs[r], &parts[r]))
            continue;
        missing++;
        if (len + 24 < sizeof(names))
            len += (size_t)snprintf(names + len, sizeof(names) - len, "%srank %d", len ? ", " : "", r);
    }
    return SHERD_FAIL(SHERD_ETIMEOUT, "%s: no progress for %g s, %d of %d ranks have not come: %s",
        block_call_text(call, text, sizeof(text)), m->timeout, missing, m->mesh.size, names);
}

/* Nothing may be written to memory of the caller's afterwards. */
static void give_up(struct mpi *m)
{
    for (int r = 0; r < m->mesh.size; r++) {
        struct leg *leg = &m->legs[r];
        struct mpi_message *all[] = { &leg->call_out, &leg->call_in, &leg->out, &leg->in };
        const int under_way[] = { leg->has_call_out, leg->has_call_in, leg->has_out, leg->has_in };
        for (int i = 0; r != m->mesh.rank && i < 4; i++)
            if (under_way[i])
                m->group->shim->cancel(all[i]);
    }
}

static int move_all(struct mpi *m, const struct block_call *call, const struct mesh_part *parts)
{
    double since = clock_seconds(), looked = since;
    for (;;) {
        int moved = 0, left = 0;
        for (int r = 0; r < m->mesh.size; r++) {
            if (r == m->mesh.rank || is_done(&m->legs[r], &parts[r]))
                continue;
            SHERD_TRY(work(m, r, call, &parts[r], &moved));
            left += !is_done(&m->legs[r], &parts[r]);
        }
        if (left == 0)
            return SHERD_OK;
        double now = clock_seconds();
        if (moved)
            since = now;
        if (now - looked > LOOK_SECONDS) {
            SHERD_TRY(check(m->group));
            looked = now;
        }
        if (now - since >= m->timeout)
            return timed_out(m, call, parts);
        if (now - since > 0.001)
            nanosleep(&(struct timespec){ .tv_nsec = 50000 }, NULL);
        else
            sched_yield();
    }
}

static int exchange(struct mesh *mesh, const struct block_call *call, const struct mesh_part *parts)
{
    struct mpi *m = (struct mpi *)mesh;
    int st = check(m->group);
    for (int r = 0; r < mesh->size; r++)
        m->legs[r] = (struct leg){ 0 };
    for (int r = 0; r < mesh->size && st == SHERD_OK; r++)
        if (r != mesh->rank)
            st = begin(m, r, call);
    if (st == SHERD_OK)
        st = move_all(m, call, parts);
    if (st != SHERD_OK && st != SHERD_EPEER)
        abort_all(m->group, sherd_error());
    if (st != SHERD_OK)
        give_up(m);
    return st;
}

/* ---- opening and closing ---- */

static void group_drop(struct group *g)
{
    if (!g || atomic_fetch_sub(&g->users, 1) != 1)
        return;
    pthread_mutex_destroy(&g->lock);
    mem_free(g->aborts);
    mem_free(g);
}

static void mpi_close(struct sherd_comm *comm)
{
    struct mpi *m = comm->impl;
    if (!m->control && m->mesh.rank == 0)
        m->group->pairs--;
    group_drop(m->group);
    mesh_finish(&m->mesh);
    mem_free(m->legs);
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
    comm->impl = m;
    int st = m->legs ? mesh_init(&m->mesh) : SHERD_ENOMEM;
    if (st != SHERD_OK) {
        mpi_close(comm);
        comm->impl = NULL;
    }
    return st;
}

/* The shim for the MPI that started this process. */
static int load(const struct mpi_shim **out, const struct sherd_world *world)
{
    static const struct {
        const char *source, *file;
    } shims[] = { { "Open MPI", "libsherd-openmpi.so" }, { "MPICH", "libsherd-mpich.so" } };
    const char *file = NULL;
    for (size_t i = 0; i < ARRAY_LEN(shims); i++)
        if (strcmp(world->source, shims[i].source) == 0)
            file = shims[i].file;
    if (!file)
        return SHERD_FAIL(SHERD_EUNSUPPORTED,
            "ranks started by %s cannot talk over MPI: Open MPI's or MPICH's mpirun can", world->source);
    void *library = device_library(file, RTLD_GLOBAL);
    const struct mpi_shim *shim = library ? dlsym(library, MPI_SHIM_TABLE) : NULL;
    if (!shim || shim->version != MPI_SHIM_VERSION)
        return SHERD_FAIL(SHERD_EUNSUPPORTED,
            "this build cannot use %s (%s); build with -Dmpi=enabled, or set MASTER_ADDR and MASTER_PORT for all "
            "ranks, and they talk over TCP",
            world->source, library ? "another build" : dlerror());
    *out = shim;
    return SHERD_OK;
}

int mpi_open_ranks(struct sherd_comm *comm)
{
    const struct mpi_shim *shim = NULL;
    char why[256] = "";
    int rank = 0, size = 0, st = SHERD_OK;
    SHERD_TRY(load(&shim, &comm->world));
    if (shim->start(&rank, &size, why, sizeof(why)) != 0)
        return SHERD_FAIL(SHERD_ECOMM, "%s cannot be started: %s", comm->world.source, why);
    if (rank != comm->world.rank || size != comm->world.size)
        return SHERD_FAIL(SHERD_ECOMM, "%s says that this is rank %d of %d, its variables say rank %d of %d",
            comm->world.source, rank, size, comm->world.rank, comm->world.size);
    struct group *g = mem_zalloc(1, sizeof(*g));
    if (!g)
        return SHERD_ENOMEM;
    *g = (struct group){ .users = 1,
        .shim = shim,
        .rank = rank,
        .size = size,
        .next = TAG_FIRST + 2,
        .pairs = 1,
        .aborted_by = -1 };
    pthread_mutex_init(&g->lock, NULL);
    g->aborts = mem_zalloc((size_t)size, sizeof(*g->aborts));
    st = g->aborts ? join(comm, g, TAG_FIRST, 0) : SHERD_ENOMEM;
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
    SHERD_TRY(mesh_tell(&m->mesh, &tag, sizeof(tag), 0));
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

/* There is no board over MPI: nothing is known of what others are at. */
static uint64_t mpi_pulse(struct sherd_comm *comm)
{
    (void)comm;
    return 0;
}

static const char *mpi_tell(struct sherd_comm *comm, char *buf, size_t bytes)
{
    (void)comm;
    snprintf(buf, bytes, "where the others are is not known over MPI");
    return buf;
}

const struct comm_ops comm_mpi = {
    .kind = "mpi",
    .ordered = 1,
    .all_gather = mesh_all_gather,
    .reduce_scatter = mesh_reduce_scatter,
    .all_reduce = mesh_all_reduce,
    .broadcast = mesh_broadcast,
    .control = mpi_control,
    .dup = mpi_dup,
    .abort = mpi_abort,
    .close = mpi_close,
    .check = mpi_check,
    .pulse = mpi_pulse,
    .tell = mpi_tell,
};
