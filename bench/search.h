/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The parts of search.c, which compares sherd's choice for each product and for attention with every other
 * that the libraries offer. A contest is one operation of a step; its candidates are ways to do it. Contests
 * lie in memory that parent and child share: the child measures, and whatever it dies of, the parent goes on
 * from there.
 */
#ifndef SHERD_BENCH_SEARCH_H
#define SHERD_BENCH_SEARCH_H

#include <sherd/config.h>

#include "device/cuda/launch.h"
#include "device/ops.h"

#define CONTESTS 32
#define CANDIDATES 4096
#define CANDIDATE_BYTES 96
#define SHERDS 0 /* the candidate that sherd takes */
#define ENDED 3  /* children that came to an end with one contest: only what ran before is ranked then */

struct candidate {
    char name[80];
    unsigned char how[CANDIDATE_BYTES]; /* whatever its kind of contest wants to know */
    float rough, cool, hot;             /* milliseconds of a call; 0: not measured */
    float watts, mhz;                   /* while hot; 0: not known */
    double hot_ms, hot_calls, energy_j, energy_s, mhz_sum;
    int turns;
    size_t workspace;    /* bytes; of a product */
    int answer;          /* its number among the library's answers to sherd's own question, from 1; 0: none */
    unsigned char bad;   /* does not run, gives something else, or took the process with it */
    unsigned char apart; /* sherd could not use it as it is: shown, not compared with */
    /* Its algorithm, and that with its tile; 0: it is alone. Of kin that are all slow only a few are called.
     */
    uint32_t kin[2];
};

union op_args {
    struct sherd_matmul matmul;
    struct sherd_attention_forward forward;
    struct sherd_attention_backward backward;
};

struct contest {
    enum op_index op;
    union op_args args; /* sizes only: the places mean nothing, but for whether add is c */
    char title[80];
    double flops; /* of a call */
    int calls;    /* in a step */
    int listed, done, told;
    int ended;      /* children that came to an end with it */
    int n, current; /* current: -1, or the candidate that runs now */
    long looked_at; /* configurations that the library was asked about */
    struct candidate all[CANDIDATES];
};

/* sherd's device and queue, the queue's stream, its clock and the GPU's meters. */
struct meter {
    const char *tuned; /* folder of the choices that sherd keeps */
    struct sherd_device *device;
    struct sherd_queue *queue;
    cudaStream_t stream; /* the queue's */
    cudaEvent_t from, to;
    void *nvml; /* NULL: no energy, no clocks */
    int (*energy)(void *device, unsigned long long *millijoules);
    int (*clock)(void *device, int kind, unsigned *mhz);
    void *gpu;
    volatile double *beat; /* when something happened last, for the parent */
};

/* Enqueues one call by candidate i, or refuses it. Successive calls go to other memory. */
struct runner {
    void *ctx;
    int (*enqueue)(void *ctx, int i);
    /* How far its result is from sherd's, relative; infinity where it cannot be told. */
    double (*differs)(void *ctx, int i);
};

double seconds_now(void);

/* search_ops.c: the products and attentions of one training step of a config, largest first, as contests.
 * *n of at most CONTESTS. */
int search_list(struct contest *out, int *n, const struct sherd_config *config);

/* search_meter.c */
int meter_open(struct meter *m); /* `tuned` and `beat` are set */
void meter_close(struct meter *m);
/* Random numbers of a normal distribution over `elems` elements of device memory, the same at every call. */
int meter_fill(const struct meter *m, void *to, int64_t elems, enum sherd_dtype type);
/* Calls the candidates from number `first` on that were not called yet, for as long; not those whose kin are
 * slow. */
int meter_rough(struct meter *m, struct contest *c, const struct runner *r, int first, double seconds);
/* sherd's, perhaps the library's first answer, and the `most` best of the others, by rough times; how many of
 * the most + 2. */
int meter_best(const struct contest *c, int most, int *out);
/* Are some of those called that share kin[of], all of them far from the best? */
int meter_slow_kin(const struct contest *c, uint32_t kin, int of);
/* Measures the good ones cool and the best of these hot. */
int meter_rank(struct meter *m, struct contest *c, const struct runner *r);

/* search_products.c, search_attention.c: list the candidates where that was not done, call them in
 * `seconds` or so, and rank them. */
int search_product(struct meter *m, struct contest *c, double seconds);
int search_attention(struct meter *m, struct contest *c, double seconds);

/* search_improve.c: writes what lies in `folder`, a cache of sherd's choices, with the best hot ones instead,
 * to folder/better. */
int search_improve(const struct contest *all, int n, const char *folder);

#define CU_CHECK(call)                                                                                       \
    ((call) == cudaSuccess                                                                                   \
            ? SHERD_OK                                                                                       \
            : SHERD_FAIL(SHERD_EDEVICE, "%s: %s", #call, cudaGetErrorString(cudaPeekAtLastError())))
#define CU_TRY(call) SHERD_TRY(CU_CHECK(call))

#endif
