/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Learning-rate schedules: pure functions of the step.
 */
#include <math.h>

#include "base/status.h"
#include "optim/optim.h"

int64_t lr_steps(double given, int64_t steps)
{
    return given < 1 ? llround(given * (double)steps) : (int64_t)given;
}

/* How far the rise has come at place t of a warm-up of n, from 0 to 1. */
static double risen(const struct sherd_config *c, int64_t t, int64_t n)
{
    int64_t full = c->schedule.count == SHERD_COUNT_DEEPSPEED ? n : n + 1;
    return c->schedule.warmup_shape == SHERD_WARMUP_LOG ? log((double)t + 1) / log((double)full)
                                                        : (double)t / (double)n;
}

double lr_at(const struct sherd_config *c, int64_t step, int64_t steps)
{
    double base = c->optim.lr, low = c->schedule.min_lr, from = c->schedule.warmup_from;
    int theirs = c->schedule.count == SHERD_COUNT_DEEPSPEED;
    steps = c->schedule.steps ? c->schedule.steps : steps;
    int64_t warmup = lr_steps(c->schedule.warmup, steps);
    if (theirs) {
        step = MAX(step - 2, 0);
        warmup = MAX(warmup, 2);
    }
    if (step < warmup + !theirs)
        return base * (from + (1.0 - from) * risen(c, step, warmup));
    /* p: 0 at the end of warm-up, 1 at the last step */
    int64_t ahead = theirs && c->schedule.kind == SHERD_LR_COSINE;
    double p = (double)(step - warmup + ahead) / (double)MAX(steps - warmup, 1);
    p = MIN(p, 1.0);
    switch (c->schedule.kind) {
    case SHERD_LR_LINEAR:
        return base * (1.0 - (1.0 - low) * p);
    case SHERD_LR_COSINE:
        return base * (low + (1.0 - low) * 0.5 * (1.0 + cos(M_PI * p)));
    case SHERD_LR_WSD: {
        int64_t decay = lr_steps(c->schedule.decay, steps), into = step - (steps - decay);
        double q = decay > 0 ? (double)into / (double)decay : 0.0;
        return base * (1.0 - (1.0 - low) * MIN(MAX(q, 0.0), 1.0));
    }
    case SHERD_LR_CONSTANT:
        break;
    }
    return base;
}
