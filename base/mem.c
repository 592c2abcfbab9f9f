/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The one door to the C allocator: counted, checked for overflow, and made to fail on demand.
 */
#include "base/mem.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/status.h"

#define ARENA_ALIGN 16
#define ARENA_BLOCK_BYTES 4096
#define WHAT_BYTES 1024 /* of the text of a failure, as LIMITS_BYTES */
#define LIMITS_BYTES 320

static _Atomic uint64_t count;
static _Atomic int64_t fail_in; /* allocations until the one that fails; 0 = none */

/* Counts one allocation; true if this is the one that shall fail. */
static int injected(void)
{
    atomic_fetch_add_explicit(&count, 1, memory_order_relaxed);
    int64_t k = atomic_load_explicit(&fail_in, memory_order_relaxed);
    while (k > 0)
        if (atomic_compare_exchange_weak(&fail_in, &k, k - 1))
            return k == 1;
    return 0;
}

/* The beginning of a file, with no help of stdio, which would allocate; "" if it cannot be read. */
static void read_text(const char *path, char *out, size_t bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, out, bytes - 1) : 0;
    out[n > 0 ? n : 0] = '\0';
    if (fd >= 0)
        close(fd);
}

static void limits_text(char *out, size_t bytes)
{
    static const struct {
        int resource;
        const char *what, *option;
    } limits[] = { { RLIMIT_AS, "address space", "-v" }, { RLIMIT_DATA, "data", "-d" } };
    char text[2048];
    unsigned long long used[2] = { 0 }, page_kb = (unsigned long long)sysconf(_SC_PAGESIZE) >> 10,
                       free_kb = 0;
    size_t len = 0;
    read_text("/proc/self/statm", text, sizeof(text));
    if (sscanf(text, "%llu %*u %*u %*u %*u %llu", &used[0], &used[1]) != 2)
        used[0] = used[1] = 0;
    for (size_t i = 0; i < ARRAY_LEN(limits); i++) {
        struct rlimit limit;
        if (getrlimit((__rlimit_resource_t)limits[i].resource, &limit) == 0 &&
            limit.rlim_cur != RLIM_INFINITY)
            len += (size_t)snprintf(out + len, bytes - len,
                "%s is limited to %llu KiB (ulimit %s), %llu KiB are in use; ", limits[i].what,
                (unsigned long long)limit.rlim_cur >> 10, limits[i].option, used[i] * page_kb);
    }
    read_text("/proc/meminfo", text, sizeof(text));
    const char *line = strstr(text, "MemAvailable:");
    if (line && sscanf(line, "MemAvailable: %llu", &free_kb) == 1)
        snprintf(out + len, bytes - len, "the host has %llu MiB available", free_kb >> 10);
    else
        snprintf(out + len, bytes - len, "what the host has available is not known");
}

int mem_out_at(const char *file, int line, const char *format, ...)
{
    char what[WHAT_BYTES], limits[LIMITS_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof(what), format, args);
    va_end(args);
    limits_text(limits, sizeof(limits));
    return sherd_fail_at(SHERD_ENOMEM, file, line, "out of memory: %s; %s", what, limits);
}

static void *no_memory(size_t n, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes))
        SHERD_FAIL(SHERD_ENOMEM, "out of memory: %zu elements of %zu bytes are more than the address space",
            n, size);
    else
        MEM_OUT("%zu bytes of host memory could not be allocated", bytes);
    return NULL;
}

void *mem_zalloc(size_t n, size_t size)
{
    size_t bytes;
    if (injected() || __builtin_mul_overflow(n, size, &bytes))
        return no_memory(n, size);
    void *p = calloc(bytes ? bytes : 1, 1);
    return p ? p : no_memory(n, size);
}

void *mem_realloc(void *p, size_t n, size_t size)
{
    size_t bytes;
    if (injected() || __builtin_mul_overflow(n, size, &bytes))
        return no_memory(n, size);
    void *q = realloc(p, bytes ? bytes : 1);
    return q ? q : no_memory(n, size);
}

void *mem_aligned(size_t align, size_t bytes)
{
    void *p = NULL;
    if (injected() || posix_memalign(&p, align, bytes ? bytes : 1) != 0)
        return no_memory(bytes, 1);
    return p;
}

void mem_free(void *p)
{
    free(p);
}

/* The number after `name` in a small file of the kernel; 0 = there is none. */
static uint64_t read_number(const char *path, const char *name)
{
    char text[4096];
    unsigned long long value;
    read_text(path, text, sizeof(text));
    const char *at = strstr(text, name);
    return at && sscanf(at + strlen(name), " %llu", &value) == 1 ? value : 0;
}

uint64_t mem_available(void)
{
    uint64_t left = read_number("/proc/meminfo", "MemAvailable:") << 10;
    if (!left)
        left = (uint64_t)sysconf(_SC_AVPHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t most = read_number("/sys/fs/cgroup/memory.max", "");
    uint64_t used = read_number("/sys/fs/cgroup/memory.current", "");
    uint64_t cached = read_number("/sys/fs/cgroup/memory.stat", "inactive_file ");
    used -= MIN(used, cached); /* which goes when somebody needs the room */
    return most ? MIN(left, most - MIN(most, used)) : left;
}

uint64_t mem_count(void)
{
    return atomic_load_explicit(&count, memory_order_relaxed);
}

void mem_fail_at(int64_t k)
{
    atomic_store(&fail_in, k > 0 ? k : 0);
}

int mem_grow(void *items, int *cap, int need, size_t size)
{
    if (need <= *cap)
        return SHERD_OK;
    int64_t want = MAX((int64_t)need, (int64_t)*cap * 2);
    want = MIN(MAX(want, 8), INT32_MAX);
    void *p;
    memcpy(&p, items, sizeof(p));
    p = mem_realloc(p, (size_t)want, size);
    if (!p)
        return SHERD_ENOMEM;
    memcpy(items, &p, sizeof(p));
    *cap = (int)want;
    return SHERD_OK;
}

/* Both printers and both copies differ only in where the bytes come from: an arena, or NULL for the heap. */
static char *take(struct arena *arena, size_t bytes)
{
    return arena ? arena_zalloc(arena, bytes, 1) : mem_zalloc(bytes, 1);
}

static char *copy(struct arena *arena, const char *s)
{
    size_t bytes = strlen(s) + 1;
    char *p = take(arena, bytes);
    if (p)
        memcpy(p, s, bytes);
    return p;
}

static char *print(struct arena *arena, const char *format, va_list args)
{
    va_list again;
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, again);
    va_end(again);
    if (n < 0)
        return no_memory(1, 1);
    char *p = take(arena, (size_t)n + 1);
    if (p)
        vsnprintf(p, (size_t)n + 1, format, args);
    return p;
}

char *mem_strdup(const char *s)
{
    return copy(NULL, s);
}

char *mem_printf(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char *p = print(NULL, format, args);
    va_end(args);
    return p;
}

struct arena_block {
    struct arena_block *next;
    size_t used, bytes; /* of data */
    _Alignas(ARENA_ALIGN) unsigned char data[];
};

void *arena_zalloc(struct arena *arena, size_t n, size_t size)
{
    size_t bytes, whole;
    if (__builtin_mul_overflow(n, size, &bytes) || bytes > SIZE_MAX / 2)
        return no_memory(n, size);
    bytes = (MAX(bytes, 1) + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    struct arena_block *b = arena->head;
    if (!b || b->bytes - b->used < bytes) {
        whole = MAX(bytes, ARENA_BLOCK_BYTES);
        b = mem_zalloc(1, sizeof(*b) + whole);
        if (!b)
            return NULL;
        b->bytes = whole;
        b->next = arena->head;
        arena->head = b;
    }
    void *p = b->data + b->used;
    b->used += bytes;
    return p;
}

char *arena_strdup(struct arena *arena, const char *s)
{
    return copy(arena, s);
}

char *arena_printf(struct arena *arena, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char *p = print(arena, format, args);
    va_end(args);
    return p;
}

void arena_finish(struct arena *arena)
{
    struct arena_block *b = arena->head;
    while (b) {
        struct arena_block *next = b->next;
        mem_free(b);
        b = next;
    }
    arena->head = NULL;
}
