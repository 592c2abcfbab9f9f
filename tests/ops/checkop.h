/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Operations against references in double. A case is a function that makes inputs, runs an operation and
 * states what the outputs must be. It is run several times: with 1, 2, 3 and 5 threads on the CPU, twice on
 * other devices; the bits of all outputs must be the same each time. Outputs and work space start as NaN and
 * have guards on both sides. `--device NAME` chooses the device.
 */
#ifndef SHERD_TESTS_OPS_CHECKOP_H
#define SHERD_TESTS_OPS_CHECKOP_H

#include "tests/check.h"

#include <sherd/ops.h>
#include "base/mem.h"

/* Relative error, by norm, that arithmetic in float and one rounding of storage may make. */
#define OP_BOUND(type) ((type) == SHERD_F32 ? 2e-6 : (type) == SHERD_F16 ? 1e-3 : 8e-3)

struct op_buf {
    void *dev;    /* NULL for n = 0 */
    double *host; /* inputs: what dev holds, exactly; outputs: what op_read found */
    int64_t n;
    enum sherd_dtype type;
    void *block; /* with the guards */
    int output;
};

struct op_test {
    struct sherd_device *dev;
    struct sherd_queue *queue;
    struct arena arena;
    struct op_buf **bufs;
    int n_bufs, cap_bufs;
    uint64_t stream; /* of random numbers, counted up */
    int repeat;      /* not the first run: only the bits matter, references need not be computed */
};

typedef void (*op_case)(struct op_test *t, const void *arg);

/* Runs a case as said above. */
void op_run(op_case fn, const void *arg);
/* Opens a device of the kind under test. */
struct sherd_device *op_device(int threads, int async);
/* True if the device under test is the CPU. */
int op_on_cpu(void);

/* n doubles that live as long as the case. */
double *op_doubles(struct op_test *t, int64_t n);

/* Input of normal numbers with this deviation and mean, rounded to the type. */
struct op_buf *op_random(struct op_test *t, int64_t n, enum sherd_dtype type, double std, double mean);
/* Input with these values, rounded to the type. */
struct op_buf *op_input(struct op_test *t, const double *values, int64_t n, enum sherd_dtype type);
/* Random integers from 0 to below `below`, as I32. */
struct op_buf *op_integers(struct op_test *t, int64_t n, int64_t below);
/* Output or work space of n elements, NaN. */
struct op_buf *op_output(struct op_test *t, int64_t n, enum sherd_dtype type);
/* Work space of so many bytes, NaN; its contents do not count. NULL pointer for 0. */
void *op_scratch(struct op_test *t, size_t bytes);
/* An input that the operation also writes. */
struct op_buf *op_inout(struct op_buf *buf);

/* Brings an output back into host, as doubles; returns host. */
double *op_read(struct op_test *t, struct op_buf *buf);
/* The output is `want` within `bound` (relative, by norm over all elements), nothing of it unset. */
void op_expect(struct op_test *t, const char *name, struct op_buf *buf, const double *want, double bound);
/* The same for results of cancellation: relative to `size` if the norm of `want` is less. */
void op_expect_of(
    struct op_test *t, const char *name, struct op_buf *buf, const double *want, double size, double bound);
/* Both hold the same bits. */
void op_same_bits(struct op_test *t, const char *name, const struct op_buf *a, const struct op_buf *b);

/* grad[n] is the gradient of objective with respect to x[n]: compared with central differences along random
 * directions. objective reads x through ctx. bound is relative to the usual size of a derivative. */
void op_slope(struct op_test *t, const char *name, double (*objective)(void *ctx), void *ctx, double *x,
    const double *grad, int64_t n, double bound);

/* Value as the type stores it. */
double op_round(double x, enum sherd_dtype type);
double op_dot(const double *a, const double *b, int64_t n);

#define OP_RUN(t, call)                                                                                      \
    do {                                                                                                     \
        ASSERT_OK(call);                                                                                     \
        ASSERT_OK(sherd_queue_sync((t)->queue));                                                             \
    } while (0)

/* main of every file: reads the arguments, then runs the tests. */
int op_main(int argc, char **argv, const struct CMUnitTest *tests, size_t n);

#define OP_TYPES 3
static const enum sherd_dtype op_types[OP_TYPES] = { SHERD_F32, SHERD_BF16, SHERD_F16 };

#endif
