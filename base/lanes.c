/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Every lane takes the next task until none is left.
 */
#include "base/lanes.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/status.h"
#include "base/thread.h"

struct job {
    lanes_fn fn;
    void *ctx;
    int64_t n;
    _Atomic int64_t next;
};

struct lane {
    struct job *job;
    int index;
    pthread_t thread;
};

int lanes_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0)
        return CPU_COUNT(&set);
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int)n : 1;
}

static void *work(void *arg)
{
    struct lane *lane = arg;
    struct job *job = lane->job;
    for (;;) {
        int64_t task = atomic_fetch_add(&job->next, 1);
        if (task >= job->n)
            return NULL;
        job->fn(job->ctx, task, lane->index);
    }
}

void lanes_run(int lanes, int64_t n, lanes_fn fn, void *ctx)
{
    struct job job = { .fn = fn, .ctx = ctx, .n = n };
    struct lane all[LANES_MOST];
    int want = lanes < LANES_MOST ? lanes : LANES_MOST, started = 1;
    for (; started < want && started < n; started++) {
        all[started] = (struct lane){ .job = &job, .index = started };
        if (thread_start(&all[started].thread, work, &all[started], "a lane") != SHERD_OK)
            break;
    }
    all[0] = (struct lane){ .job = &job };
    (void)work(&all[0]);
    for (int i = 1; i < started; i++)
        pthread_join(all[i].thread, NULL);
}
