/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What is timed (kernels_table.c) as the program that times it sees it (kernels.c): operations at the shape
 * of a model, and how the operands of a call are put into memory.
 */
#ifndef SHERD_BENCH_KERNELS_H
#define SHERD_BENCH_KERNELS_H

#include <sherd/ops.h>

#include "device/ops.h"

union args {
#define XX(name) struct sherd_##name name;
    SHERD_OPS(XX)
#undef XX
};

/* What a model has a GPU do in one step. */
struct shape {
    const char *name;
    int64_t rows, seq, width, mlp, heads, kv_heads, head_dim, vocab, vocab_pitch, loss_rows;
    int64_t params; /* of a block: what is updated at once */
};

/* Where the parts of `small` begin, in bytes: 1.0f; 1000.0, which gradients of the loss are divided by; sums;
 * a vector of weights and their gradients; whole numbers below 32000; scratch. */
enum {
    ONE_FLOAT = 0,
    COUNT = 256,
    SUM = 512,
    WEIGHT = 4096,
    GRAD = 1 << 20,
    TOKENS = 2 << 20,
    SCRATCH = 8 << 20
};
#define SMALL ((size_t)64 << 20) /* bytes of it */
#define SMALL_TOKENS ((SCRATCH - TOKENS) / 4)

/* Operands of one call, in memory from base on; some are filled, unless they are only to be counted. */
struct place {
    struct sherd_queue *queue;
    char *base, *small;
    size_t at;
    int fill;
};

struct work {
    const char *note;
    enum op_index op;
    void (*place)(struct place *p, const struct shape *s, union args *a);
};

#define TIMED_MODELS 2

extern const struct timed_model {
    struct shape shape;
    const struct work *work;
    int n;
} timed_models[TIMED_MODELS];

#endif
