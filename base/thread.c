/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Starting a thread.
 */
#include "base/thread.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>

#include "base/mem.h"
#include "base/status.h"

/* The system says EAGAIN for every want: whether it is that of a stack is tried. Returns its bytes, 0 = there
 * is room for one. */
static size_t missing_stack(void)
{
    pthread_attr_t usual;
    size_t bytes = 0;
    if (pthread_attr_init(&usual) != 0)
        return 0;
    pthread_attr_getstacksize(&usual, &bytes);
    pthread_attr_destroy(&usual);
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (p == MAP_FAILED)
        return bytes;
    munmap(p, bytes);
    return 0;
}

int thread_start(pthread_t *out, void *(*fn)(void *arg), void *arg, const char *what)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(out, NULL, fn, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!error)
        return SHERD_OK;
    size_t stack = missing_stack();
    if (!stack)
        return SHERD_FAIL(SHERD_EDEVICE,
            "%s cannot be started: %s; see the limit of threads (ulimit -u, "
            "pids.max of the control group)",
            what, strerror(error));
    return MEM_OUT("%s cannot be started for want of %zu bytes of stack", what, stack);
}
