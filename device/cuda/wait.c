/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The host waits for the GPU. Where somebody watches (a communicator, whose work ends only if other ranks
 * come), the wait is a loop that asks the watchers; otherwise it is CUDA's own.
 */
#include <sched.h>
#include <stdio.h>
#include <time.h>

#include "base/clock.h"
#include "base/status.h"
#include "device/cuda/launch.h"

#define SPIN_SECONDS 0.02 /* a nap after less would show in what is timed */
#define NAP_NANOSECONDS 50000
#define ASK_SECONDS 0.05 /* between questions to the watchers */

void cuda_watch(struct cuda_device *cd, struct cuda_watch *watch)
{
    watch->next = cd->watches;
    cd->watches = watch;
}

void cuda_unwatch(struct cuda_device *cd, const struct cuda_watch *watch)
{
    for (struct cuda_watch **at = &cd->watches; *at; at = &(*at)->next) {
        if (*at == watch) {
            *at = watch->next;
            return;
        }
    }
}

/* All of them, as each may have work of its own to end. */
static int ask(const struct cuda_device *cd, double waited)
{
    int st = SHERD_OK;
    char text[2048] = "";
    for (struct cuda_watch *w = cd->watches; w; w = w->next) {
        int one = w->poll(w->ctx, waited);
        if (one != SHERD_OK && st == SHERD_OK) {
            st = one;
            snprintf(text, sizeof(text), "%s", sherd_error());
        }
    }
    return st == SHERD_OK ? SHERD_OK : status_adopt(st, text);
}

/* One of the two is given. */
static cudaError_t query(cudaStream_t stream, cudaEvent_t event)
{
    return event ? cudaEventQuery(event) : cudaStreamQuery(stream);
}

/* Without a device nobody is asked, and the thread naps from the start. */
static int wait_for(const struct cuda_device *cd, cudaStream_t stream, cudaEvent_t event)
{
    double start = clock_seconds(), asked = start;
    cudaError_t err;
    while ((err = query(stream, event)) == cudaErrorNotReady) {
        double now = clock_seconds();
        if (cd && now - asked > ASK_SECONDS) {
            SHERD_TRY(ask(cd, now - start));
            asked = now;
        }
        if (cd && now - start < SPIN_SECONDS)
            sched_yield();
        else
            nanosleep(&(struct timespec){ .tv_nsec = NAP_NANOSECONDS }, NULL);
    }
    SHERD_TRY(cuda_check_at(err, "waiting for the GPU", __FILE__, __LINE__));
    /* An aborted collective ends like one that is done: only its watcher knows. */
    return cd ? ask(cd, CUDA_DONE) : SHERD_OK;
}

int cuda_wait_stream(const struct cuda_device *cd, cudaStream_t stream)
{
    return !cd || cd->watches ? wait_for(cd, stream, NULL) : CUDA_CHECK(cudaStreamSynchronize(stream));
}

int cuda_wait_event(const struct cuda_device *cd, cudaEvent_t event)
{
    return !cd || cd->watches ? wait_for(cd, NULL, event) : CUDA_CHECK(cudaEventSynchronize(event));
}
