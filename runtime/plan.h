/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Everything that is decided before a device is touched: layout, program, the offsets of activations and
 * saved values, the bytes of every region. The engine allocates what is planned here; `sherd plan` prints it.
 */
#ifndef SHERD_RUNTIME_PLAN_H
#define SHERD_RUNTIME_PLAN_H

#include <sherd/engine.h>

#include "optim/optim.h"
#include "shard/memory.h"
#include "shard/program.h"

/* One layer's place in the activation and saved regions; offsets in bytes. The last layer has no y. */
struct plan_layer {
    int64_t in_width;
    struct sherd_layer_sizes sizes;
    size_t y, saved;
};

/* The order of the doubles in the scalar block at the start of the batch region. */
enum plan_scalar {
    SCALAR_COUNT,     /* over all ranks: valid targets of the step, */
    SCALAR_DIVISOR,   /* of the gradient of the loss: the same, divided by the loss scale, */
    SCALAR_ROWS,      /* sequences of the step, */
    SCALAR_FLAG,      /* ranks that asked to stop, */
    SCALAR_LOSS,      /* sum of losses, */
    SCALAR_SQUARES,   /* square sum of the gradient */
    SCALAR_NORM,      /* without the loss scale */
    SCALAR_OWN_COUNT, /* this rank's, in the same order; the first four are gathered together, */
    SCALAR_OWN_DIVISOR,
    SCALAR_OWN_ROWS,
    SCALAR_OWN_FLAG,
    SCALAR_OWN_LOSS, /* and these two */
    SCALAR_OWN_SQUARES,
    SCALAR_SCALE,                  /* of the loss in this step */
    SCALAR_FACTOR,                 /* a float: the clip factor; what stands before it is new in every step */
    SCALAR_RATES,                  /* struct sherd_rates, two places: of the updates in a graph */
    SCALAR_ALL = SCALAR_RATES + 2, /* 4 * world: what was gathered */
};

#define PLAN_BATCH_SLOTS 2 /* micro-batches of tokens in flight */

struct plan {
    const struct sherd_model_spec *spec;
    const struct shard_stage *stage;
    const struct optim_ops *optim;
    struct shard_layout layout;
    struct shard_program program;
    struct program_desc program_desc; /* of `program`: points into this plan */
    struct memory_desc memory_desc;
    struct plan_layer *layers;
    unsigned char *flags; /* of each layer, for program_desc */
    unsigned char *lent;  /* of each unit, for memory_desc */
    int *lender;          /* of each lent unit: the layer in whose saved region its gradient rests */
    int64_t accum;        /* micro-batches of a step that it is planned for; 0 = any number */
    enum sherd_recompute recompute;
    const char *device; /* kind */
    enum sherd_dtype type;
    int64_t batch, seq;
    size_t gradient[2];               /* the two buffers that activation gradients alternate in */
    size_t scalar_bytes, token_bytes; /* of the scalar block; of one micro-batch's tokens (or targets) */
    size_t square_scratch;
    struct sherd_memory memory;
};

/* For devices of a kind ("cpu", "cuda"), which need not be there, on so many hosts. ECONFIG or EINVAL name
 * what is wrong. On success finish with plan_finish. */
int plan_init(struct plan *plan, const struct sherd_config *config, const struct sherd_model *model,
    const char *device, int world, int hosts);
/* ECONFIG when everything is frozen: fine for logits, nothing to step. */
int plan_check_trained(const struct plan *plan);
void plan_finish(struct plan *plan);

#endif
