/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Tests with ranks: a function run by n ranks, threads or processes, each with a device and a communicator,
 * under a deadline; and assertions that hold inside a rank as well as outside. cmocka's own (and those of
 * tests/check.h) must not be used inside a rank: they jump in the main thread only.
 */
#ifndef SHERD_TESTS_T_H
#define SHERD_TESTS_T_H

#include <math.h>

#include "tests/check.h"

#include <sherd/comm.h>

enum t_mode {
    T_THREADS,     /* ranks are threads of this process */
    T_PROCESSES,   /* ranks are forked; what they write to ctx is lost, but for t_shared memory */
    T_ASYNC = 16,  /* with one of the above: side queues have threads of their own */
    T_MAY_DIE = 32 /* a rank that ends by SIGKILL, or with T_EXIT, is no failure */
};

#define T_EXIT 99

/* Ends the rank when it returns; failures by the T_ macros, or by t_fail. */
typedef void (*t_rank_fn)(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx);

/* Runs fn as n ranks and fails the test with the texts of all ranks that failed. A rank that fails aborts its
 * communicator, so that the others end too. Ranks still there at the deadline are killed (processes) or
 * end the test program (threads). May be called again and again in one test.
 * Where an mpirun has started the test program, this process is one rank of its world, over MPI: worlds of
 * other sizes are passed over, and t_mpi() is true. */
void t_ranks(int n, int mode, t_rank_fn fn, void *ctx);

/* Runs fn(0 .. n-1, ctx) beside each other, each in a process of its own where it may use T_ assertions and
 * t_ranks with its own limits, and fails the test with the texts of all that failed. For what spends its time
 * asleep: a wait for a timeout costs many cases no more than one. */
void t_beside(int n, void (*fn)(int i, void *ctx), void *ctx);

int t_mpi(void);

/* Seconds for one t_ranks; the communicators' timeout. 0 = 60 and 30. Both hold until set again. */
void t_limits(double deadline, double timeout);

/* The kind of device of the ranks that follow, a static text: "cpu" (NULL), or "cuda", where rank r gets GPU
 * r. Use T_PROCESSES with it, and open no GPU in the test itself: CUDA does not survive a fork. */
void t_device(const char *kind);

/* How forked ranks talk, a static text as in sherd_comm_desc: "tcp"; NULL = as suits. */
void t_kind(const char *kind);

/* A port that nobody has, at any address of this host. */
int t_free_port(void);

/* Zeroed memory that forked ranks and the parent share; with T_THREADS too. */
void *t_shared(size_t bytes);
void t_shared_free(void *p, size_t bytes);

/* Turns one bit of a file, in the byte at this offset. */
void t_flip(const char *path, uint64_t offset);

/* The n-th of a sequence of numbers with no pattern, the same for ever: 64 bits, and a float in [-1, 1). */
uint64_t t_bits(uint64_t seed, uint64_t n);
float t_float(uint64_t seed, uint64_t n);

void t_fail(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4)))
__attribute__((noreturn));

#define T_FAIL(...) t_fail(__FILE__, __LINE__, __VA_ARGS__)

#define T_TRUE(x)                                                                                            \
    do {                                                                                                     \
        if (!(x))                                                                                            \
            T_FAIL("%s", #x);                                                                                \
    } while (0)

/* The call succeeds. */
#define T_OK(x)                                                                                              \
    do {                                                                                                     \
        int t_st_ = (x);                                                                                     \
        if (t_st_ != SHERD_OK)                                                                               \
            T_FAIL("%s: %s: %s", #x, sherd_status_name(t_st_), sherd_error());                               \
    } while (0)

/* The call fails with this status, and the error text contains `part`. */
#define T_FAILS(x, status, part)                                                                             \
    do {                                                                                                     \
        int t_st_ = (x);                                                                                     \
        if (t_st_ != (status))                                                                               \
            T_FAIL("%s: %s, wanted %s (%s)", #x, sherd_status_name(t_st_), sherd_status_name(status),        \
                sherd_error());                                                                              \
        T_HAS(sherd_error(), part);                                                                          \
    } while (0)

#define T_EQ(a, b)                                                                                           \
    do {                                                                                                     \
        long long t_a_ = (long long)(a), t_b_ = (long long)(b);                                              \
        if (t_a_ != t_b_)                                                                                    \
            T_FAIL("%s is %lld, %s is %lld", #a, t_a_, #b, t_b_);                                            \
    } while (0)

#define T_STR(a, b)                                                                                          \
    do {                                                                                                     \
        const char *t_a_ = (a), *t_b_ = (b);                                                                 \
        if (strcmp(t_a_, t_b_) != 0)                                                                         \
            T_FAIL("%s is '%s', wanted '%s'", #a, t_a_, t_b_);                                               \
    } while (0)

/* `part` stands in `text`. */
#define T_HAS(text, part)                                                                                    \
    do {                                                                                                     \
        const char *t_a_ = (text), *t_b_ = (part);                                                           \
        if (!strstr(t_a_, t_b_))                                                                             \
            T_FAIL("'%s' does not contain '%s'", t_a_, t_b_);                                                \
    } while (0)

/* |a - b| <= tolerance; never with a NaN. */
#define T_NEAR(a, b, tolerance)                                                                              \
    do {                                                                                                     \
        double t_a_ = (a), t_b_ = (b), t_c_ = (tolerance);                                                   \
        if (!(fabs(t_a_ - t_b_) <= t_c_))                                                                    \
            T_FAIL("%s is %.9g, %s is %.9g: apart by %.3g, allowed %.3g", #a, t_a_, #b, t_b_,                \
                fabs(t_a_ - t_b_), t_c_);                                                                    \
    } while (0)

/* The same bytes; the first that differs is named. */
#define T_BITS(a, b, bytes) t_same_bits(__FILE__, __LINE__, #a, #b, a, b, bytes)
void t_same_bits(const char *file, int line, const char *a_text, const char *b_text, const void *a,
    const void *b, size_t bytes);

#endif
