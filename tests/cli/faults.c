/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Preloaded before the library by tests/cli/selftest.sh: the program's calls of some functions go wrong on
 * one rank, as on a machine that is broken. FAULT says which; RANK is the launcher's.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include <sherd/sherd.h>

#define FAULTY_RANK "1"

static int is_due(const char *fault)
{
    const char *which = getenv("FAULT"), *rank = getenv("RANK");
    return which && rank && !strcmp(which, fault) && !strcmp(rank, FAULTY_RANK);
}

/* The first byte, behind what is queued. */
static int spoil(struct sherd_queue *queue, void *at)
{
    return sherd_fill(queue, &(struct sherd_fill){ .dst = at, .bytes = 1, .byte = 0x55 });
}

/* real = the library's function of that name */
#define FIND(real, name) *(void **)&(real) = dlsym(RTLD_NEXT, name)

int sherd_matmul(struct sherd_queue *queue, const struct sherd_matmul *a)
{
    int (*real)(struct sherd_queue *, const struct sherd_matmul *);
    FIND(real, "sherd_matmul");
    int st = real(queue, a);
    return st == SHERD_OK && is_due("product") ? spoil(queue, a->c) : st;
}

int sherd_device_describe(struct sherd_device *dev, char *buf, size_t bytes)
{
    int (*real)(struct sherd_device *, char *, size_t);
    FIND(real, "sherd_device_describe");
    return is_due("device") ? sherd_fail(SHERD_EDEVICE, "the device of a test has fallen off the bus")
                            : real(dev, buf, bytes);
}

int sherd_all_reduce(struct sherd_comm *comm, struct sherd_queue *queue, void *out, const void *in,
    int64_t elems, enum sherd_dtype type, enum sherd_reduce reduce)
{
    int (*real)(struct sherd_comm *, struct sherd_queue *, void *, const void *, int64_t, enum sherd_dtype,
        enum sherd_reduce);
    FIND(real, "sherd_all_reduce");
    int st = real(comm, queue, out, in, elems, type, reduce);
    return st == SHERD_OK && type == SHERD_BF16 && is_due("all-reduce") ? spoil(queue, out) : st;
}
