/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Learning-rate schedules: pure functions of the step.
 */
#include <math.h>

#include "base/status.h"
#include "optim/optim.h"

double lr_at(const struct sherd_config *c, int64_t step, int64_t steps)
{
    double base = c->optim.lr, low = c->schedule.min_lr;
    int64_t warmup = c->schedule.warmup;
    if (step <= warmup)
        return base * (double)step / (double)warmup;
    /* p: 0 at the end of warm-up, 1 at the last step */
    double p = (double)(step - warmup) / (double)MAX(steps - warmup, 1);
    p = MIN(p, 1.0);
    switch (c->schedule.kind) {
    case SHERD_LR_LINEAR:
        return base * (1.0 - (1.0 - low) * p);
    case SHERD_LR_COSINE:
        return base * (low + (1.0 - low) * 0.5 * (1.0 + cos(M_PI * p)));
    case SHERD_LR_WSD: {
        int64_t into = step - (steps - c->schedule.decay);
        double q = c->schedule.decay > 0 ? (double)into / (double)c->schedule.decay : 0.0;
        return base * (1.0 - (1.0 - low) * MIN(MAX(q, 0.0), 1.0));
    }
    case SHERD_LR_CONSTANT:
        break;
    }
    return base;
}
