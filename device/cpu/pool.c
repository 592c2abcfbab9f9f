/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * One job at a time, owned by the caller that holds `owner`. `state` is the job's generation (upper half) and
 * the tasks not yet taken (lower half) in one word: a thread takes a task by counting it down, so a thread
 * that wakes late finds nothing to take and never looks at a job that is over. fn, ctx, n_tasks and the
 * panels change only while no task is taken and not done. Threads spin for some microseconds, then sleep:
 * there may be more threads than cores.
 */
#include "device/cpu/pool.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/status.h"
#include "base/thread.h"

#define PANEL_ALIGN 64
#define SPINS 400 /* some 10 microseconds */

struct helper {
    struct cpu_pool *pool;
    pthread_t thread;
    struct cpu_panel panel;
};

struct cpu_pool {
    pthread_mutex_t owner;
    _Alignas(64) _Atomic uint64_t state;
    _Alignas(64) _Atomic int64_t done;
    cpu_task fn;
    const void *ctx;
    int64_t n_tasks;
    pthread_mutex_t lock; /* for the sleeping only */
    pthread_cond_t wake, finished;
    _Atomic int sleepers, caller_sleeps, stop;
    struct helper *helpers;
    int n_helpers, n_started;
    int multiplies;
};

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static uint32_t tasks_left(struct cpu_pool *pool)
{
    return (uint32_t)atomic_load(&pool->state);
}

static int take_task(struct cpu_pool *pool, int64_t *task)
{
    uint64_t s = atomic_load(&pool->state);
    while ((uint32_t)s != 0) {
        if (atomic_compare_exchange_weak(&pool->state, &s, s - 1)) {
            *task = pool->n_tasks - (int64_t)(uint32_t)s;
            return 1;
        }
    }
    return 0;
}

/* The panel is looked up once there is a task: until then the caller may still replace it. */
static void run_tasks(struct cpu_pool *pool, const struct cpu_panel *panel)
{
    int64_t task;
    while (take_task(pool, &task)) {
        int64_t n = pool->n_tasks;
        pool->fn(pool->ctx, task, panel->data);
        if (atomic_fetch_add(&pool->done, 1) + 1 == n && atomic_load(&pool->caller_sleeps)) {
            pthread_mutex_lock(&pool->lock);
            pthread_cond_signal(&pool->finished);
            pthread_mutex_unlock(&pool->lock);
        }
    }
}

static void await_tasks(struct cpu_pool *pool)
{
    for (int i = 0; i < SPINS; i++) {
        if (tasks_left(pool) || atomic_load(&pool->stop))
            return;
        relax();
    }
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->sleepers, 1);
    while (!tasks_left(pool) && !atomic_load(&pool->stop))
        pthread_cond_wait(&pool->wake, &pool->lock);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->lock);
}

static void *work(void *arg)
{
    struct helper *helper = arg;
    struct cpu_pool *pool = helper->pool;
    while (!atomic_load(&pool->stop)) {
        run_tasks(pool, &helper->panel);
        await_tasks(pool);
    }
    return NULL;
}

/* ---- the caller ---- */

static int grow_panel(struct cpu_panel *panel, size_t bytes)
{
    if (bytes <= panel->bytes)
        return SHERD_OK;
    void *data = mem_aligned(PANEL_ALIGN, bytes);
    if (!data)
        return SHERD_ENOMEM;
    mem_free(panel->data);
    *panel = (struct cpu_panel){ data, bytes };
    return SHERD_OK;
}

static void wake_helpers(struct cpu_pool *pool, int64_t wanted)
{
    if (atomic_load(&pool->sleepers) == 0)
        return;
    pthread_mutex_lock(&pool->lock);
    if (wanted >= atomic_load(&pool->sleepers))
        pthread_cond_broadcast(&pool->wake);
    else
        for (int64_t i = 0; i < wanted; i++)
            pthread_cond_signal(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
}

static void await_done(struct cpu_pool *pool)
{
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load(&pool->done) == pool->n_tasks)
            return;
        relax();
    }
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->caller_sleeps, 1);
    while (atomic_load(&pool->done) != pool->n_tasks)
        pthread_cond_wait(&pool->finished, &pool->lock);
    atomic_store(&pool->caller_sleeps, 0);
    pthread_mutex_unlock(&pool->lock);
}

/* The caller holds `owner`. */
static int run_job(struct cpu_lane *lane, cpu_task fn, const void *ctx, int64_t n_tasks, size_t panel_bytes)
{
    struct cpu_pool *pool = lane->pool;
    for (int i = 0; i < pool->n_helpers; i++)
        SHERD_TRY(grow_panel(&pool->helpers[i].panel, panel_bytes));
    pool->fn = fn;
    pool->ctx = ctx;
    pool->n_tasks = n_tasks;
    atomic_store(&pool->done, 0);
    uint64_t generation = (atomic_load(&pool->state) >> 32) + 1;
    atomic_store(&pool->state, generation << 32 | (uint64_t)n_tasks);
    wake_helpers(pool, n_tasks - 1);
    run_tasks(pool, &lane->panel);
    await_done(pool);
    return SHERD_OK;
}

int cpu_parallel(struct cpu_lane *lane, cpu_task fn, const void *ctx, int64_t n_tasks, size_t panel_bytes)
{
    struct cpu_pool *pool = lane->pool;
    assert(n_tasks <= UINT32_MAX);
    if (n_tasks <= 0)
        return SHERD_OK;
    SHERD_TRY(grow_panel(&lane->panel, panel_bytes));
    int alone = n_tasks == 1 || pool->n_helpers == 0;
    if (!alone && lane->side)
        alone = pthread_mutex_trylock(&pool->owner) != 0;
    else if (!alone)
        pthread_mutex_lock(&pool->owner);
    if (!alone) {
        int st = run_job(lane, fn, ctx, n_tasks, panel_bytes);
        pthread_mutex_unlock(&pool->owner);
        return st;
    }
    for (int64_t task = 0; task < n_tasks; task++)
        fn(ctx, task, lane->panel.data);
    return SHERD_OK;
}

void cpu_lane_finish(struct cpu_lane *lane)
{
    mem_free(lane->panel.data);
}

/* ---- life ---- */

static int start_helpers(struct cpu_pool *pool)
{
    char what[64];
    for (; pool->n_started < pool->n_helpers; pool->n_started++) {
        struct helper *helper = &pool->helpers[pool->n_started];
        helper->pool = pool;
        snprintf(what, sizeof(what), "cpu: thread %d of the %d of run.threads", pool->n_started + 2,
            pool->n_helpers + 1);
        SHERD_TRY(thread_start(&helper->thread, work, helper, what));
    }
    return SHERD_OK;
}

int cpu_pool_create(struct cpu_pool **out, int threads)
{
    struct cpu_pool *pool = mem_aligned(64, sizeof(*pool));
    if (!pool)
        return SHERD_ENOMEM;
    memset(pool, 0, sizeof(*pool));
    pthread_mutex_init(&pool->owner, NULL);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->finished, NULL);
    pool->n_helpers = threads - 1;
    pool->helpers = mem_zalloc((size_t)pool->n_helpers, sizeof(*pool->helpers));
    int st = pool->helpers ? start_helpers(pool) : SHERD_ENOMEM;
    if (st != SHERD_OK) {
        cpu_pool_destroy(pool);
        return st;
    }
    *out = pool;
    return SHERD_OK;
}

void cpu_pool_destroy(struct cpu_pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->stop, 1);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->n_started; i++)
        pthread_join(pool->helpers[i].thread, NULL);
    for (int i = 0; pool->helpers && i < pool->n_helpers; i++)
        mem_free(pool->helpers[i].panel.data);
    pthread_cond_destroy(&pool->finished);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
    pthread_mutex_destroy(&pool->owner);
    mem_free(pool->helpers);
    mem_free(pool);
}

int cpu_pool_threads(const struct cpu_pool *pool)
{
    return pool->n_helpers + 1;
}

int *cpu_pool_multiplies(struct cpu_pool *pool)
{
    return &pool->multiplies;
}
