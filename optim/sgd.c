/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * SGD with momentum: one state.
 */
#include "optim/optim.h"

static int update(struct sherd_queue *queue, const struct optim_span *s, const struct optim_hyper *h)
{
    return sherd_sgd(queue, &(struct sherd_sgd){ .param = s->param,
                                .master = s->master,
                                .low = s->low,
                                .m = s->state[0],
                                .grad = s->grad,
                                .factor = h->factor,
                                .rates = h->rates,
                                .n = s->n,
                                .step = h->step,
                                .lr = h->lr,
                                .momentum = h->momentum,
                                .weight_decay = s->decay ? h->weight_decay : 0.0f,
                                .param_type = s->param_type,
                                .grad_type = s->grad_type,
                                .state_type = s->state_type,
                                .seed = s->seed,
                                .stream = s->stream,
                                .first = s->first });
}

const struct optim_ops optim_sgd = { "sgd", 1, { "sgd.m" }, update };
