/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The rules of the dynamic loss scale are those of DeepSpeed, so that a run that moves over has the same
 * scale at every step.
 */
#include "runtime/scale.h"

#include <math.h>

#include "base/status.h"

#define FACTOR 2.0
#define MOST 0x1p60 /* gradients that are all zero never overflow; the inverse must stay a float */

void scale_init(struct scale *s, const struct sherd_config *c)
{
    *s = (struct scale){ .value = 1.0 };
    if (c->dtype.param != SHERD_F16)
        return;
    s->dynamic = c->dtype.loss_scale <= 0;
    s->value = s->dynamic ? ldexp(1.0, (int)c->dtype.initial_scale_power) : c->dtype.loss_scale;
    s->hysteresis = c->dtype.hysteresis;
}

int scale_overflow(struct scale *s, const struct sherd_config *c)
{
    if (s->hysteresis > 1)
        s->hysteresis--;
    else if (s->value <= c->dtype.min_loss_scale)
        return 0;
    else
        s->value = fmax(s->value / FACTOR, c->dtype.min_loss_scale);
    s->good = 0;
    return 1;
}

void scale_good(struct scale *s, const struct sherd_config *c)
{
    if (!s->dynamic)
        return;
    int rises = s->good > 0 && s->good % c->dtype.loss_scale_window == 0;
    if (rises)
        s->value = fmin(s->value * FACTOR, MOST);
    if (rises || c->dtype.consecutive_hysteresis)
        s->hysteresis = c->dtype.hysteresis;
    s->good++;
}
