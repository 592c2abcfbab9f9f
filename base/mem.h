/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Host memory: one door for every allocation of the library, so that failure can be injected and counted;
 * and an arena for things that live and die together. Device memory is device/'s matter.
 */
#ifndef SHERD_BASE_MEM_H
#define SHERD_BASE_MEM_H

#include <sherd/base.h>

/* n elements of `size` bytes, zeroed; NULL with the error text set (ENOMEM) when there is no memory or
 * n * size overflows. n = 0 gives a pointer that may be freed. Free with mem_free. */
void *mem_zalloc(size_t n, size_t size);
/* As realloc, for n elements; the old block is kept on failure. New bytes are undefined. */
void *mem_realloc(void *p, size_t n, size_t size);
/* `align` is a power of two, at least sizeof(void *); contents undefined. Free with mem_free. */
void *mem_aligned(size_t align, size_t bytes);
void mem_free(void *p);
char *mem_strdup(const char *s);
char *mem_printf(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Grows *items (element size `size`, *cap in elements) so that `need` elements fit. */
int mem_grow(void *items, int *cap, int need, size_t size);

/* ENOMEM, with the text "out of memory: ", what memory was for, and what bounds it: limits of this process
 * (ulimit -v, -d) with what is used of them, and what the host has. Allocates nothing. */
#define MEM_OUT(...) mem_out_at(__FILE__, __LINE__, __VA_ARGS__)
int mem_out_at(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Bytes of host memory that could be had now, as the system estimates them, within the limit of the container
 * if there is one. */
uint64_t mem_available(void);

/* Number of allocations so far in this process: a step makes none. */
uint64_t mem_count(void);
/* The k-th allocation from now (1 = the next) fails once, in whatever thread; 0 = none. For tests. */
void mem_fail_at(int64_t k);

/* Many small blocks, freed at once. Zero-initialize; not thread-safe. */
struct arena {
    struct arena_block *head;
};
void *arena_zalloc(struct arena *arena, size_t n, size_t size);
char *arena_strdup(struct arena *arena, const char *s);
char *arena_printf(struct arena *arena, const char *format, ...) __attribute__((format(printf, 2, 3)));
void arena_finish(struct arena *arena);

#endif
