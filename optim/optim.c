/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The table of optimizers: one row each.
 */
#include "optim/optim.h"

#include <math.h>
#include <string.h>

#include "base/status.h"

static const struct optim_ops *const table[] = { &optim_adamw, &optim_sgd };

struct sherd_rates optim_rates(const struct optim_hyper *h)
{
    double step = (double)h->step, beta1 = (double)h->beta1, beta2 = (double)h->beta2;
    return (struct sherd_rates){ .lr = h->lr,
        .rate = (float)((double)h->lr / (1.0 - pow(beta1, step))),
        .root = (float)(1.0 / sqrt(1.0 - pow(beta2, step))),
        .step = (int32_t)h->step };
}

const struct optim_ops *optim_find(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(table); i++)
        if (!strcmp(table[i]->name, name))
            return table[i];
    return NULL;
}

const char *optim_name(int i)
{
    return i >= 0 && (size_t)i < ARRAY_LEN(table) ? table[i]->name : NULL;
}
