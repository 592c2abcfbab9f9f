/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Optimizers: how many states, what they are called, and the update over spans. One file and one row each.
 * Knows nothing of units, stages or ranks: it gets pointers and lengths.
 */
#ifndef SHERD_OPTIM_OPTIM_H
#define SHERD_OPTIM_OPTIM_H

#include <sherd/config.h>
#include <sherd/ops.h>

#define OPTIM_MAX_STATES 2

/* Contiguous elements with the same rules. */
struct optim_span {
    void *param;   /* rounded copy to write; NULL when the master is the parameter */
    float *master; /* NULL when the weight is cut in param and low */
    int16_t *low;
    void *state[OPTIM_MAX_STATES];
    const void *grad;
    int64_t n;
    int decay; /* weight decay applies */
    enum sherd_dtype param_type, grad_type, state_type;
    uint64_t seed, stream; /* for states that are rounded at random: of the run, of the tensor */
    int64_t first;         /* place of the span in its tensor */
};

struct optim_hyper {
    float lr, beta1, beta2, eps, weight_decay, momentum;
    int64_t step;        /* from 1 */
    const float *factor; /* device: the gradient is multiplied by it; NaN = leave everything unchanged */
    const struct sherd_rates *rates; /* device: in place of lr and step, see sherd/ops.h; NULL = by value */
};

struct optim_ops {
    const char *name;
    int n_states;
    const char *state_name[OPTIM_MAX_STATES];
    int (*update)(struct sherd_queue *queue, const struct optim_span *span, const struct optim_hyper *hyper);
};

/* The rows of the table in optim/optim.c. */
extern const struct optim_ops optim_adamw, optim_sgd;

/* What hyper->rates must point to a copy of: the same as lr and step, to the bit. */
struct sherd_rates optim_rates(const struct optim_hyper *hyper);

/* NULL for an unknown name. optim_name(i) lists them; NULL past the end. */
const struct optim_ops *optim_find(const char *name);
const char *optim_name(int i);

/* Learning rate of optimizer step `step` (from 1) of `steps`: a pure function, so that resuming cannot bend
 * it. Warm-up for t = step <= w: from + (1 - from) g with g = t / w, or ln(t + 1) / ln(w + 1). Then, with p
 * going from 0 at the end of warm-up to 1 at the last step: cosine min + (1 - min) (1 + cos pi p) / 2; linear
 * 1 - (1 - min) p; wsd: flat, then linear to min over the last `decay` steps; constant: flat. schedule.steps,
 * if given, stands for `steps`.
 * Counted as DeepSpeed does: t = max(step - 2, 0), w at least 2, warm-up for t < w, g = t / w or
 * ln(t + 1) / ln(w), and the cosine's p one step ahead. */
double lr_at(const struct sherd_config *config, int64_t step, int64_t steps);
/* schedule.warmup or decay in steps of a schedule of `steps`. */
int64_t lr_steps(double given, int64_t steps);

#endif
