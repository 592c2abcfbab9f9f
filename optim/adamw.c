/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * AdamW: two states, decoupled weight decay.
 */
#include "optim/optim.h"

static int update(struct sherd_queue *queue, const struct optim_span *s, const struct optim_hyper *h)
{
    return sherd_adamw(queue, &(struct sherd_adamw){ .param = s->param,
                                  .master = s->master,
                                  .low = s->low,
                                  .m = s->state[0],
                                  .v = s->state[1],
                                  .grad = s->grad,
                                  .factor = h->factor,
                                  .rates = h->rates,
                                  .n = s->n,
                                  .step = h->step,
                                  .lr = h->lr,
                                  .beta1 = h->beta1,
                                  .beta2 = h->beta2,
                                  .eps = h->eps,
                                  .weight_decay = s->decay ? h->weight_decay : 0.0f,
                                  .param_type = s->param_type,
                                  .grad_type = s->grad_type,
                                  .state_type = s->state_type,
                                  .seed = s->seed,
                                  .stream = s->stream,
                                  .first = s->first });
}

const struct optim_ops optim_adamw = { "adamw", 2, { "adam.m", "adam.v" }, update };
