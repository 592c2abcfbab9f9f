/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * One small training job for the tests: ranks as threads, the same data whatever the world and the split, and
 * everything that must agree between two jobs recorded: losses, norms, weights, memory, bytes sent.
 */
#ifndef SHERD_TESTS_JOB_H
#define SHERD_TESTS_JOB_H

#include <sherd/sherd.h>

#define JOB_MAX_STEPS 24

struct job {
    /* what to run; job_default fills it */
    struct sherd_model_config model;
    const char *freeze; /* one pattern, or NULL */
    int alike;          /* all blocks use the unit of the first */
    int stage, prefetch, world, overlap, poison;
    int64_t micro, accum; /* sequences; the global batch is micro * accum * world rows of a common stream */
    int64_t rows;         /* sequences of a step; fewer than the global batch leaves rows empty. 0 = all */
    int64_t seq;
    int steps;
    int uneven; /* in this step, from 1, the last rank brings a row less; 0 = in none */
    int graph;  /* steps are kept as one piece of work */
    int lines;  /* log.every: steps that tell their exposed communication */
    enum sherd_dtype param, reduce;
    enum sherd_recompute recompute;
    enum sherd_master master;
    enum sherd_dtype state;
    struct { /* of the loss, for f16; what is 0 is as by default */
        double fixed, least;
        int64_t power, window, hysteresis;
    } scale;
    const char *optim;
    double lr, clip, weight_decay;
    const char *load, *save; /* step folder to start from; run folder to save to at the end; NULL = no */
    int beside;              /* work that is no part of the step is brought during it, as by a save */
    int delay_us;            /* communication is slowed by this much per job of a side queue */

    /* what came out */
    int status[16]; /* of each rank */
    char error[16][512];
    struct sherd_step_stats stats[JOB_MAX_STEPS];
    float *weights; /* all tensors, one after another, as F32 */
    float *grads;   /* of the last step; frozen tensors are left out */
    int64_t n_weights, n_grads;
    struct sherd_memory memory;      /* of rank 0 */
    uint64_t engine_bytes;           /* device bytes that rank 0's engine holds */
    struct sherd_comm_counters sent; /* of rank 0, by the steps alone */
    uint64_t ops;                    /* of rank 0's device in the steps, without the work beside */
    int64_t launches;                /* steps of rank 0 that were launched whole */
    uint64_t step_allocs;            /* host and device allocations during the steps after the first */
};

/* The tiny GPT-2 of most tests: vocabulary 101, width 24, 2 layers, 3 heads, tied. */
struct job job_default(void);
/* Another's settings; the weights and gradients that came of it stay its own. */
struct job job_like(const struct job *other);
/* Its place taken by a llama: 3 layers, 2 heads of keys and values, untied. */
struct sherd_model_config job_llama(void);
/* Runs it; statuses are in job->status. Fails the test only if ranks hang. */
void job_run(struct job *job);
/* Runs it and fails the test unless every rank succeeds. */
void job_pass(struct job *job);
void job_free(struct job *job);

/* Both did the same: every loss, norm and weight, bit for bit. */
void job_same_bits(const struct job *a, const struct job *b);
/* Within a relative distance: |a - b| <= bound * |b| for losses and norms, in the 2-norm for weights. */
void job_close(const struct job *a, const struct job *b, double bound);
/* Runs it at stages 0 to 3: without accumulation all give the same bits; with it 0 = 1 and 2 = 3, and these
 * are close. */
void job_stages_agree(struct job job, double bound);

/* Row j of step s of the common stream: tokens and targets; about one target in eight is ignored. */
void job_row(int64_t step, int64_t j, int64_t seq, int64_t vocab, int32_t *tokens, int32_t *targets);

#endif
