/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Where all sums are exact, their order cannot show: one rank and two, every stage, with accumulation and
 * without, must give the same bits. The model is linear, its weights and gradients are whole numbers times a
 * power of two that fit a float with room to spare. Argument: the kind of device, cpu or cuda.
 */
#include "tests/check.h"

#include <stdio.h>
#include <string.h>

#include <sherd/sherd.h>

#include "runtime/engine.h"
#include "tests/gpu/gpus.h"
#include "tests/t.h"

#define V 37
#define C 64
#define SEQ 32
#define ROWS 4 /* sequences of a step, over all ranks */
#define DRAWS 3

/* ---- the model: a table, three products, and for a loss the sum of x . goal[target] ---- */

static int64_t rows_of(const struct sherd_run *r)
{
    return r->in.batch * r->in.seq;
}

static size_t row_scratch(const struct sherd_layer_plan *plan)
{
    struct sherd_embed_backward a = {
        .batch = plan->in.batch, .seq = plan->in.seq, .width = C, .vocab = V, .type = plan->type
    };
    return sherd_embed_backward_scratch(&a);
}

static int table_sizes(const void *arg, const struct sherd_layer_plan *plan, struct sherd_layer_sizes *out)
{
    (void)arg;
    *out = (struct sherd_layer_sizes){ .out_width = C, .scratch_bytes = row_scratch(plan) };
    return SHERD_OK;
}

static int look_up(struct sherd_run *r, void *y, const int32_t *tokens)
{
    return sherd_embed_forward(r->queue, &(struct sherd_embed_forward){ .y = y,
                                             .tokens = tokens,
                                             .wte = r->w[0],
                                             .batch = r->in.batch,
                                             .seq = r->in.seq,
                                             .width = C,
                                             .vocab = V,
                                             .type = r->type });
}

static int add_rows(struct sherd_run *r, const void *dy, const int32_t *tokens)
{
    return sherd_embed_backward(r->queue, &(struct sherd_embed_backward){ .dwte = r->dw[0],
                                              .dy = dy,
                                              .tokens = tokens,
                                              .batch = r->in.batch,
                                              .seq = r->in.seq,
                                              .width = C,
                                              .vocab = V,
                                              .type = r->type,
                                              .grad_type = r->grad_type,
                                              .scratch = r->scratch });
}

static int table_forward(struct sherd_run *r)
{
    return look_up(r, r->y, r->tokens);
}

static int table_backward(struct sherd_run *r)
{
    return add_rows(r, r->dy, r->tokens);
}

static int product_sizes(const void *arg, const struct sherd_layer_plan *plan, struct sherd_layer_sizes *out)
{
    (void)arg, (void)plan;
    *out = (struct sherd_layer_sizes){ .out_width = C };
    return SHERD_OK;
}

static int product_forward(struct sherd_run *r)
{
    return sherd_matmul(r->queue, &(struct sherd_matmul){ .c = r->y,
                                      .a = r->x,
                                      .b = r->w[0],
                                      .m = rows_of(r),
                                      .n = C,
                                      .k = C,
                                      .type = r->type,
                                      .c_type = r->type });
}

static int product_backward(struct sherd_run *r)
{
    SHERD_TRY(sherd_matmul(r->queue, &(struct sherd_matmul){ .c = r->dw[0],
                                         .add = r->dw[0],
                                         .a = r->x,
                                         .b = r->dy,
                                         .m = C,
                                         .n = C,
                                         .k = rows_of(r),
                                         .trans_a = 1,
                                         .type = r->type,
                                         .c_type = r->grad_type }));
    return sherd_matmul(r->queue, &(struct sherd_matmul){ .c = r->dx,
                                      .a = r->dy,
                                      .b = r->w[0],
                                      .m = rows_of(r),
                                      .n = C,
                                      .k = C,
                                      .trans_b = 1,
                                      .type = r->type,
                                      .c_type = r->type });
}

static int goal_sizes(const void *arg, const struct sherd_layer_plan *plan, struct sherd_layer_sizes *out)
{
    (void)arg;
    *out = (struct sherd_layer_sizes){ .scratch_bytes = row_scratch(plan) };
    return SHERD_OK;
}

/* The loss itself is not added up: it is not what is compared. */
static int goal_forward(struct sherd_run *r)
{
    (void)r;
    return SHERD_OK;
}

static int goal_backward(struct sherd_run *r)
{
    SHERD_TRY(add_rows(r, r->x, r->targets));
    return look_up(r, r->dx, r->targets);
}

static const struct sherd_layer_ops table_ops = {
    .kind = "table", .sizes = table_sizes, .forward = table_forward, .backward = table_backward
};
static const struct sherd_layer_ops product_ops = {
    .kind = "product", .sizes = product_sizes, .forward = product_forward, .backward = product_backward
};
static const struct sherd_layer_ops goal_ops = {
    .kind = "goal", .sizes = goal_sizes, .forward = goal_forward, .backward = goal_backward
};

#define MATRIX(text, rows)                                                                                   \
    {                                                                                                        \
        .name = text, .shape = { rows, C }, .dims = 2                                                        \
    }
static const struct sherd_param params[] = { MATRIX("table", V), MATRIX("a", C), MATRIX("b", C),
    MATRIX("c", C), MATRIX("goal", V) };
static const struct sherd_unit units[] = { { "table", &params[0], 1 }, { "a", &params[1], 1 },
    { "b", &params[2], 1 }, { "c", &params[3], 1 }, { "goal", &params[4], 1 } };
static const struct sherd_layer layers[] = { { "table", 0, &table_ops, NULL }, { "a", 1, &product_ops, NULL },
    { "b", 2, &product_ops, NULL }, { "c", 3, &product_ops, NULL }, { "goal", 4, &goal_ops, NULL } };
#define TENSORS 5
#define ELEMS (2 * V * C + 3 * C * C)

/* ---- a trial ---- */

struct trial {
    int world, stage, accum;
    double norm[DRAWS];
    float weights[DRAWS][ELEMS]; /* after the step */
};

/* Whole numbers from -2 to 2 in the tables, quarters from -1/4 to 1/4 in the products. */
static float drawn(uint64_t draw, int tensor, int64_t i)
{
    uint64_t x = t_bits(draw * TENSORS + (uint64_t)tensor, (uint64_t)i);
    return tensor == 0 || tensor == TENSORS - 1 ? (float)((int)(x % 5) - 2) : (float)((int)(x % 3) - 1) / 4;
}

/* Every rank writes what it holds of the masters, which are the weights, and they are spread from there. */
static void set_weights(struct sherd_engine *e, uint64_t draw)
{
    const struct shard_layout *layout = &e->plan.layout;
    float *host = NULL;
    T_OK(sherd_host_alloc(e->dev, (void **)&host, ELEMS * sizeof(*host)));
    for (int i = 0; i < layout->n_tensors; i++) {
        const struct shard_tensor *t = &layout->tensors[i];
        int64_t first = store_state_first(&e->store, t->unit);
        int64_t from = MAX(first, t->offset);
        int64_t to = MIN(first + store_state_elems(&e->store, t->unit), t->offset + t->elems);
        for (int64_t k = from; k < to; k++)
            host[k - from] = drawn(draw, t->unit, k - t->offset);
        if (from < to)
            T_OK(sherd_copy(
                e->compute, &(struct sherd_copy){ .dst = e->store.units[t->unit].master + (from - first),
                                .src = host,
                                .bytes = (size_t)(to - from) * sizeof(*host) }));
        T_OK(sherd_queue_sync(e->compute));
    }
    sherd_host_free(e->dev, host);
    T_OK(engine_spread(e));
}

/* Sequence j of a step is the same whoever takes it. */
static void step(struct trial *t, int rank, struct sherd_engine *e, int draw)
{
    int32_t tokens[ROWS * SEQ], targets[ROWS * SEQ];
    struct sherd_batch micro[ROWS];
    struct sherd_step_stats stats;
    int each = ROWS / t->world / t->accum;
    for (int m = 0; m < t->accum; m++) {
        int32_t *at = tokens + m * each * SEQ, *goal = targets + m * each * SEQ;
        for (int i = 0; i < each * SEQ; i++) {
            int place = (m * t->world + rank) * each * SEQ + i;
            at[i] = (int32_t)(t_bits(100 + (uint64_t)draw, (uint64_t)place) % V);
            goal[i] = (int32_t)(t_bits(200 + (uint64_t)draw, (uint64_t)place) % V);
        }
        micro[m] = (struct sherd_batch){ at, goal, each };
    }
    T_OK(sherd_engine_step(e, micro, t->accum, &stats));
    if (rank == 0)
        t->norm[draw] = stats.grad_norm;
}

static void read_weights(struct sherd_engine *e, int rank, float *out)
{
    static float spare[ELEMS];
    int64_t at = 0;
    for (int i = 0; i < TENSORS; i++) {
        int64_t n = (i == 0 || i == TENSORS - 1 ? V : C) * (int64_t)C;
        T_OK(sherd_engine_tensor(e, "weight", params[i].name, (rank ? spare : out) + at, n));
        at += n;
    }
}

static void run(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    struct trial *t = ctx;
    struct sherd_config c;
    struct sherd_model *model;
    struct sherd_engine *e;
    T_OK(sherd_config_default(&c));
    c.shard.stage = t->stage;
    c.batch.micro = ROWS / t->world / t->accum;
    c.batch.seq = SEQ;
    c.optim.name = "sgd";
    c.optim.momentum = 0;
    c.optim.weight_decay = 0;
    c.optim.clip = 0;
    c.optim.lr = 0x1p-8;
    c.schedule.kind = SHERD_LR_CONSTANT;
    c.train.steps = DRAWS;
    T_OK(sherd_model_create(&model, &(struct sherd_model_spec){ units, TENSORS, layers, TENSORS, V, NULL }));
    T_OK(sherd_engine_create(&e, &(struct sherd_engine_desc){ &c, model, dev, comm }));
    for (int draw = 0; draw < DRAWS; draw++) {
        set_weights(e, (uint64_t)draw);
        step(t, rank, e, draw);
        read_weights(e, rank, t->weights[draw]);
    }
    sherd_engine_destroy(e);
    sherd_model_destroy(model);
    sherd_config_free(&c);
}

static int mode = T_THREADS;

static struct trial *result_of(int world, int stage, int accum)
{
    struct trial *t = t_shared(sizeof(*t));
    *t = (struct trial){ .world = world, .stage = stage, .accum = accum };
    t_ranks(world, mode, run, t);
    return t;
}

static void orders_do_not_show(void **state)
{
    (void)state;
    struct trial *first = result_of(1, 0, 1);
    for (int draw = 0; draw < DRAWS; draw++) {
        assert_true(first->norm[draw] > 100);
        int moved = 0;
        for (int i = 0; i < V * C; i++)
            moved += first->weights[draw][i] != drawn((uint64_t)draw, 0, i);
        assert_true(moved > V * C / 2);
    }
    for (int world = 1; world <= 2; world++)
        for (int stage = 0; stage <= 3; stage++)
            for (int accum = 1; accum <= 2; accum++) {
                struct trial *t = result_of(world, stage, accum);
                if (memcmp(t->norm, first->norm, sizeof(t->norm)) ||
                    memcmp(t->weights, first->weights, sizeof(t->weights)))
                    fail_msg("world %d, stage %d, accum %d: other bits than one rank at stage 0", world,
                        stage, accum);
                t_shared_free(t, sizeof(*t));
            }
    t_shared_free(first, sizeof(*first));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(orders_do_not_show) };
    if (argc > 1 && strcmp(argv[1], "cpu") != 0) {
        if (!gpus_two())
            return 77;
        t_device(argv[1]);
        t_limits(120, 60);
        mode = T_PROCESSES;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
