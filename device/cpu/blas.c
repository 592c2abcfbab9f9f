/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * OpenBLAS, opened before the first product. Without address space for a buffer it would wait for one in a
 * loop, in a product or in the threads that loading it starts, and with them at the end of the process. So
 * it is loaded on one core, where it starts none, and a buffer for each thread that multiplies is taken
 * before, once it is known that there is room.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/status.h"
#include "device/cpu/blas_shim.h"
#include "device/cpu/cpu.h"

#define LIBRARY_BYTES ((size_t)64 << 20) /* OpenBLAS itself, and what it links to */
#define SETS 16                          /* of 1024 cores each */

/* Of the process, as OpenBLAS is. */
static struct {
    pthread_mutex_t lock;
    const struct blas_shim *shim;
    int users, buffers; /* threads that multiply, in all devices; buffers that OpenBLAS keeps */
} blas = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* Holds this thread to the first of its cores. */
static int hold_to_one_core(cpu_set_t *before)
{
    cpu_set_t one[SETS];
    size_t bytes = SETS * sizeof(*one), core = 0;
    CPU_ZERO_S(bytes, one);
    CPU_ZERO_S(bytes, before);
    if (sched_getaffinity(0, bytes, before) != 0)
        return 0;
    while (core < bytes * 8 - 1 && !CPU_ISSET_S(core, bytes, before))
        core++;
    CPU_SET_S(core, bytes, one);
    return sched_setaffinity(0, bytes, one) == 0;
}

/* Whether so much can be mapped now. No memory is promised by that, as OpenBLAS's own mapping of it is not
 * until it is touched. */
static int is_room(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return 0;
    munmap(p, bytes);
    return 1;
}

static int no_room(size_t bytes, int users)
{
    MEM_OUT(
        "OpenBLAS wants %zu MiB of address space, %zu MiB for each of the %d threads that multiply; raise the "
        "limit, or lower run.threads",
        bytes >> 20, BLAS_BUFFER_BYTES >> 20, users);
    return status_context(SHERD_ENOMEM, "device cpu");
}

static int load(void)
{
    void *library = device_library(BLAS_SHIM_FILE, RTLD_LOCAL);
    if (!library)
        return SHERD_FAIL(SHERD_EUNSUPPORTED,
            "device cpu: OpenBLAS cannot be opened: %s; %s belongs beside the library of sherd, install both",
            dlerror(), BLAS_SHIM_FILE);
    const struct blas_shim *shim = dlsym(library, BLAS_SHIM_TABLE);
    if (!shim || shim->version != BLAS_SHIM_VERSION)
        return SHERD_FAIL(SHERD_EUNSUPPORTED,
            "device cpu: %s is not of this build of sherd (%s); build and install both together",
            BLAS_SHIM_FILE, sherd_version());
    shim->start();
    blas.shim = shim;
    return SHERD_OK;
}

/* Where it cannot be held to one core, OpenBLAS takes a buffer for each. */
static int load_alone(int want)
{
    cpu_set_t before[SETS];
    int alone = hold_to_one_core(before);
    size_t threads = alone ? 0 : (size_t)sysconf(_SC_NPROCESSORS_CONF);
    size_t bytes = LIBRARY_BYTES + ((size_t)want + threads) * BLAS_BUFFER_BYTES;
    int st = is_room(bytes) ? load() : no_room(bytes, want);
    if (alone)
        sched_setaffinity(0, sizeof(before), before);
    return st;
}

/* Buffers for `want` products at once. All are held while taken, beside those of products that are under way
 * in other threads: there must be room as if none were kept yet. */
static int take(int want)
{
    size_t bytes = (size_t)want * BLAS_BUFFER_BYTES;
    if (want <= blas.buffers)
        return SHERD_OK;
    if (!is_room(blas.users > 0 ? bytes : bytes - (size_t)blas.buffers * BLAS_BUFFER_BYTES))
        return no_room(bytes, want);
    void **held = mem_zalloc((size_t)want, sizeof(*held));
    if (!held)
        return SHERD_ENOMEM;
    int taken = blas.shim->take(held, want);
    mem_free(held);
    if (taken < want)
        return SHERD_FAIL(SHERD_ENOMEM,
            "device cpu: OpenBLAS has no room for %d threads that multiply at once; lower run.threads", want);
    blas.buffers = want;
    return SHERD_OK;
}

int cpu_blas_join(struct cpu_lane *lane)
{
    if (lane->multiplies)
        return SHERD_OK;
    int st = SHERD_OK, *pool = cpu_pool_multiplies(lane->pool);
    pthread_mutex_lock(&blas.lock);
    int more = *pool ? 1 : cpu_pool_threads(lane->pool);
    if (!blas.shim)
        SHERD_TRY_OUT(load_alone(more));
    SHERD_TRY_OUT(take(blas.users + more));
    blas.users += more;
    *pool = lane->multiplies = 1;
out:
    pthread_mutex_unlock(&blas.lock);
    return st;
}

static void leave(int threads)
{
    pthread_mutex_lock(&blas.lock);
    blas.users -= threads;
    pthread_mutex_unlock(&blas.lock);
}

void cpu_blas_leave(const struct cpu_lane *lane)
{
    leave(lane->multiplies);
}

void cpu_blas_leave_pool(struct cpu_pool *pool)
{
    if (*cpu_pool_multiplies(pool))
        leave(cpu_pool_threads(pool) - 1);
}

void cpu_sgemm(int trans_a, int trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
    int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc)
{
    blas.shim->sgemm(trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
