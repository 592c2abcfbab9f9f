/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * A model of one's own: three kinds of layer written against the public headers, trained with ranks as
 * threads. `own_model [stage] [ranks]` prints the loss of every tenth step. The model knows nothing of stages
 * or ranks: change the two numbers and nothing else changes.
 *
 * It predicts the next token from the present one: a table of vectors, a two-layer perceptron beside a
 * residual path, and a head that shares no weights. Shapes: V tokens, C wide, F hidden.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sherd/sherd.h>

enum { V = 64, C = 32, F = 96, BATCH = 4, SEQ = 16, STEPS = 60, MAX_RANKS = 8 };

/* ---- the table: tokens to vectors ---- */

static int table_sizes(const void *arg, const struct sherd_layer_plan *plan, struct sherd_layer_sizes *out)
{
    struct sherd_embed_backward b = {
        .batch = plan->in.batch, .seq = plan->in.seq, .width = C, .vocab = V, .type = plan->type
    };
    (void)arg;
    *out = (struct sherd_layer_sizes){ .out_width = C, .scratch_bytes = sherd_embed_backward_scratch(&b) };
    return SHERD_OK;
}

static int table_forward(struct sherd_run *r)
{
    return sherd_embed_forward(r->queue, &(struct sherd_embed_forward){ .y = r->y,
                                             .tokens = r->tokens,
                                             .wte = r->w[0],
                                             .batch = r->in.batch,
                                             .seq = r->in.seq,
                                             .width = C,
                                             .vocab = V,
                                             .type = r->type });
}

static int table_backward(struct sherd_run *r)
{
    return sherd_embed_backward(r->queue, &(struct sherd_embed_backward){ .dwte = r->dw[0],
                                              .dy = r->dy,
                                              .tokens = r->tokens,
                                              .batch = r->in.batch,
                                              .seq = r->in.seq,
                                              .width = C,
                                              .vocab = V,
                                              .type = r->type,
                                              .grad_type = r->grad_type,
                                              .scratch = r->scratch });
}

/* ---- the perceptron: y = x + gelu(x W1) W2, saved: h = x W1 and g = gelu(h), [rows, F] each ---- */

static size_t hidden_bytes(const struct sherd_shape *in, enum sherd_dtype type)
{
    return (size_t)(in->batch * in->seq) * F * sherd_dtype_bytes(type);
}

static int mlp_sizes(const void *arg, const struct sherd_layer_plan *plan, struct sherd_layer_sizes *out)
{
    (void)arg;
    if (plan->in.width != C)
        return sherd_fail(
            SHERD_EINVAL, "the perceptron is %d wide, its input %lld", C, (long long)plan->in.width);
    size_t hidden = hidden_bytes(&plan->in, plan->type);
    *out = (struct sherd_layer_sizes){ .out_width = C, .saved_bytes = 2 * hidden, .scratch_bytes = hidden };
    return SHERD_OK;
}

static int mlp_forward(struct sherd_run *r)
{
    int64_t rows = r->in.batch * r->in.seq;
    void *h = r->saved, *g = (char *)r->saved + hidden_bytes(&r->in, r->type);
    int st = sherd_matmul(r->queue,
        &(struct sherd_matmul){
            .c = h, .a = r->x, .b = r->w[0], .m = rows, .n = F, .k = C, .type = r->type, .c_type = r->type });
    if (st == SHERD_OK)
        st = sherd_gelu_forward(
            r->queue, &(struct sherd_gelu_forward){ .y = g, .x = h, .n = rows * F, .type = r->type });
    if (st == SHERD_OK)
        st = sherd_matmul(r->queue, &(struct sherd_matmul){ .c = r->y,
                                        .a = g,
                                        .b = r->w[1],
                                        .add = r->x,
                                        .m = rows,
                                        .n = C,
                                        .k = F,
                                        .type = r->type,
                                        .c_type = r->type });
    return st;
}

/* dw += a' b: gradients of weights are always added. */
static int add_gradient(struct sherd_run *r, void *dw, const void *a, const void *b, int64_t m, int64_t n)
{
    if (!dw) /* frozen */
        return SHERD_OK;
    return sherd_matmul(r->queue, &(struct sherd_matmul){ .c = dw,
                                      .add = dw,
                                      .a = a,
                                      .b = b,
                                      .m = m,
                                      .n = n,
                                      .k = r->in.batch * r->in.seq,
                                      .trans_a = 1,
                                      .type = r->type,
                                      .c_type = r->grad_type });
}

static int mlp_backward(struct sherd_run *r)
{
    int64_t rows = r->in.batch * r->in.seq;
    void *h = r->saved, *g = (char *)r->saved + hidden_bytes(&r->in, r->type), *dh = r->scratch;
    int st = add_gradient(r, r->dw[1], g, r->dy, F, C);
    if (st == SHERD_OK) /* dg = dy W2' */
        st = sherd_matmul(r->queue, &(struct sherd_matmul){ .c = dh,
                                        .a = r->dy,
                                        .b = r->w[1],
                                        .m = rows,
                                        .n = F,
                                        .k = C,
                                        .trans_b = 1,
                                        .type = r->type,
                                        .c_type = r->type });
    if (st == SHERD_OK)
        st = sherd_gelu_backward(r->queue,
            &(struct sherd_gelu_backward){ .dx = dh, .dy = dh, .x = h, .n = rows * F, .type = r->type });
    if (st == SHERD_OK)
        st = add_gradient(r, r->dw[0], r->x, dh, C, F);
    if (st == SHERD_OK && r->dx) /* dx = dy + dh W1' */
        st = sherd_matmul(r->queue, &(struct sherd_matmul){ .c = r->dx,
                                        .a = dh,
                                        .b = r->w[0],
                                        .add = r->dy,
                                        .m = rows,
                                        .n = C,
                                        .k = F,
                                        .trans_b = 1,
                                        .type = r->type,
                                        .c_type = r->type });
    return st;
}

/* ---- the head: logits and loss; in training all of it happens in backward ---- */

static int head_sizes(const void *arg, const struct sherd_layer_plan *plan, struct sherd_layer_sizes *out)
{
    int64_t rows = plan->in.batch * plan->in.seq;
    struct sherd_loss l = { .rows = rows, .vocab = V, .type = plan->type };
    (void)arg;
    *out = (struct sherd_layer_sizes){ .saved_bytes = (size_t)rows * V * sherd_dtype_bytes(plan->type),
        .scratch_bytes = sherd_loss_scratch(&l) };
    return SHERD_OK;
}

static int head_loss(struct sherd_run *r, int backward)
{
    int64_t rows = r->in.batch * r->in.seq;
    int st = sherd_matmul(r->queue, &(struct sherd_matmul){ .c = r->saved,
                                        .a = r->x,
                                        .b = r->w[0],
                                        .m = rows,
                                        .n = V,
                                        .k = C,
                                        .type = r->type,
                                        .c_type = r->type });
    if (st == SHERD_OK)
        st = sherd_loss(r->queue, &(struct sherd_loss){ .logits = r->saved,
                                      .sum = r->loss_sum,
                                      .count = r->count,
                                      .targets = r->targets,
                                      .rows = rows,
                                      .vocab = V,
                                      .backward = backward,
                                      .type = r->type,
                                      .scratch = r->scratch });
    return st;
}

static int head_forward(struct sherd_run *r)
{
    return r->mode == SHERD_EVAL ? head_loss(r, 0) : SHERD_OK;
}

static int head_backward(struct sherd_run *r)
{
    int st = head_loss(r, 1); /* the logits are their own gradient now */
    if (st == SHERD_OK)
        st = add_gradient(r, r->dw[0], r->x, r->saved, C, V);
    if (st == SHERD_OK && r->dx)
        st = sherd_matmul(r->queue, &(struct sherd_matmul){ .c = r->dx,
                                        .a = r->saved,
                                        .b = r->w[0],
                                        .m = r->in.batch * r->in.seq,
                                        .n = C,
                                        .k = V,
                                        .trans_b = 1,
                                        .type = r->type,
                                        .c_type = r->type });
    return st;
}

/* ---- the model: units of parameters, layers that use them ---- */

static const struct sherd_layer_ops table_ops = {
    .kind = "table", .sizes = table_sizes, .forward = table_forward, .backward = table_backward
};
static const struct sherd_layer_ops mlp_ops = {
    .kind = "mlp", .sizes = mlp_sizes, .forward = mlp_forward, .backward = mlp_backward
};
static const struct sherd_layer_ops head_ops = {
    .kind = "head", .sizes = head_sizes, .forward = head_forward, .backward = head_backward
};

#define MATRIX(text, rows, cols)                                                                             \
    {                                                                                                        \
        .name = text, .shape = { rows, cols }, .dims = 2, .init = SHERD_INIT_NORMAL, .std = 0.1f             \
    }
static const struct sherd_param table_params[] = { MATRIX("table", V, C) };
static const struct sherd_param mlp0_params[] = { MATRIX("mlp0.w1", C, F), MATRIX("mlp0.w2", F, C) };
static const struct sherd_param mlp1_params[] = { MATRIX("mlp1.w1", C, F), MATRIX("mlp1.w2", F, C) };
static const struct sherd_param head_params[] = { MATRIX("head", C, V) };
static const struct sherd_unit units[] = { { "table", table_params, 1 }, { "mlp0", mlp0_params, 2 },
    { "mlp1", mlp1_params, 2 }, { "head", head_params, 1 } };
static const struct sherd_layer layers[] = { { "table", 0, &table_ops, NULL }, { "mlp0", 1, &mlp_ops, NULL },
    { "mlp1", 2, &mlp_ops, NULL }, { "head", 3, &head_ops, NULL } };

/* ---- training ---- */

struct rank {
    pthread_t thread;
    struct sherd_device *dev;
    struct sherd_comm *comm;
    int stage;
    int status;
};

/* The rank's part of a stream in which token t is followed by 5 t + 1. */
static void fill(int32_t *tokens, int32_t *targets, int64_t step, int rank)
{
    for (int b = 0; b < BATCH; b++) {
        int32_t t = (int32_t)((step * 7 + rank * 13 + b * 29) % V);
        for (int i = 0; i < SEQ; i++) {
            tokens[b * SEQ + i] = t;
            t = (5 * t + 1) % V;
            targets[b * SEQ + i] = t;
        }
    }
}

static int train(struct rank *self, struct sherd_engine *engine)
{
    int32_t tokens[BATCH * SEQ], targets[BATCH * SEQ];
    struct sherd_batch batch = { tokens, targets, BATCH };
    struct sherd_step_stats stats;
    for (int step = 0; step < STEPS; step++) {
        fill(tokens, targets, step, sherd_comm_rank(self->comm));
        int st = sherd_engine_step(engine, &batch, 1, &stats);
        if (st != SHERD_OK)
            return st;
        if (sherd_comm_rank(self->comm) == 0 && stats.step % 10 == 0)
            printf("step %2lld  loss %.6f  norm %.6f\n", (long long)stats.step, stats.loss, stats.grad_norm);
    }
    return SHERD_OK;
}

static void *rank_main(void *arg)
{
    struct rank *self = arg;
    struct sherd_config config;
    struct sherd_model *model = NULL;
    struct sherd_engine *engine = NULL;
    int st = sherd_config_default(&config);
    if (st == SHERD_OK) {
        config.shard.stage = self->stage;
        config.batch.micro = BATCH;
        config.batch.seq = SEQ;
        config.optim.lr = 1e-2;
        config.train.steps = STEPS;
        st = sherd_model_create(&model, &(struct sherd_model_spec){ units, 4, layers, 4, V, NULL });
    }
    if (st == SHERD_OK)
        st = sherd_engine_create(
            &engine, &(struct sherd_engine_desc){ &config, model, self->dev, self->comm });
    if (st == SHERD_OK)
        st = train(self, engine);
    if (st != SHERD_OK) {
        fprintf(stderr, "rank %d: %s\n", sherd_comm_rank(self->comm), sherd_error());
        sherd_comm_abort(self->comm, sherd_error());
    }
    sherd_engine_destroy(engine);
    sherd_model_destroy(model);
    sherd_config_free(&config);
    self->status = st;
    return NULL;
}

int main(int argc, char **argv)
{
    int stage = argc > 1 ? atoi(argv[1]) : 3, n = argc > 2 ? atoi(argv[2]) : 2, failed = 0;
    struct rank ranks[MAX_RANKS] = { 0 };
    struct sherd_device *devs[MAX_RANKS] = { 0 };
    struct sherd_comm *comms[MAX_RANKS] = { 0 };
    if (n < 1 || n > MAX_RANKS) {
        fprintf(stderr, "usage: own_model [stage 0-3] [ranks 1-%d]\n", MAX_RANKS);
        return 2;
    }
    for (int r = 0; r < n; r++)
        if (sherd_device_open(
                &devs[r], &(struct sherd_device_desc){ .name = "cpu", .threads = 1, .async = 1 })) {
            fprintf(stderr, "%s\n", sherd_error());
            return 1;
        }
    if (sherd_comm_open_threads(comms, devs, n, 60)) {
        fprintf(stderr, "%s\n", sherd_error());
        return 1;
    }
    for (int r = 0; r < n; r++) {
        ranks[r] = (struct rank){ .dev = devs[r], .comm = comms[r], .stage = stage };
        pthread_create(&ranks[r].thread, NULL, rank_main, &ranks[r]);
    }
    for (int r = 0; r < n; r++) {
        pthread_join(ranks[r].thread, NULL);
        failed |= ranks[r].status != SHERD_OK;
    }
    for (int r = 0; r < n; r++)
        sherd_comm_close(comms[r]);
    for (int r = 0; r < n; r++)
        sherd_device_close(devs[r]);
    return failed;
}
