/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * One rank's part in measuring collectives: memory for the largest of them, time of a size, values checked.
 * Collective throughout: all ranks call the same with the same arguments.
 */
#ifndef SHERD_TOOLS_BENCH_H
#define SHERD_TOOLS_BENCH_H

#include <sherd/sherd.h>

struct bench_desc {
    struct sherd_device *device;
    struct sherd_comm *comm;
    int local_size; /* ranks that share the memory of a CPU */
    enum sherd_dtype type;
    enum sherd_reduce reduce;
    int64_t iters, warmup;
    int check, expose, root;
};

/* A collective of one size. `a` and `b` are the bytes of the larger and the smaller of input and output. */
struct bench_shape {
    enum sherd_collective kind;
    int64_t count; /* elements that the call is given: one rank's */
    size_t part;   /* their bytes */
    size_t a, b;
    int plain; /* for memory that is not exposed */
};

/* At most `bytes`: one rank's part of a gather or scatter is rounded down to 16 bytes. */
struct bench_shape bench_shape(
    enum sherd_collective kind, uint64_t bytes, enum sherd_dtype type, int ranks, int expose);

struct bench_memory {
    void *a, *b;
    size_t a_bytes, b_bytes;
    int gathers, sums; /* which communicators are to prepare for it */
};

struct bench {
    struct bench_desc desc;
    int rank, ranks;
    size_t each;               /* bytes of an element */
    struct sherd_comm *sums;   /* for reducing, as training does; desc.comm is for gathering */
    struct bench_memory at[2]; /* exposed, plain */
    struct sherd_queue *queue;
    char *pattern, *piece; /* of the host */
    void *numbers;
};

struct bench_figure {
    double seconds; /* of one call, mean over the ranks */
    double wrong;   /* elements, over all ranks */
};

/* The largest sum of `ranks` values that checks can use: all partial sums are exact. 0 = too many ranks. */
int bench_top(enum sherd_dtype type, int ranks, int summed);

/* Makes room for the larger of what is needed and `shape`. */
void bench_need(struct bench_memory need[2], const struct bench_shape *shape);

int bench_open(struct bench *b, const struct bench_desc *desc, const struct bench_memory need[2]);
int bench_run(struct bench *b, const struct bench_shape *shape, int in_place, struct bench_figure *out);
void bench_close(struct bench *b);

#endif
