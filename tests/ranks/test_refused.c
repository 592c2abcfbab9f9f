/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Batches that cannot be: an engine alone goes on as if they had never been there; of several ranks all are
 * told, and what they call later tells the first reason. So it is after a step that fails in its middle.
 */
#include "tests/t.h"

#include <string.h>

#include <sherd/sherd.h>

#include "tests/ranks/job.h"

#define MICRO 2
#define SEQ 8
#define VOCAB 101
#define ELEMS (VOCAB * 24)
#define STEPS 4

struct rows {
    int32_t tokens[MICRO * SEQ], targets[MICRO * SEQ];
};

static struct sherd_batch take(struct rows *rows, int step)
{
    for (int i = 0; i < MICRO; i++)
        job_row(step, i, SEQ, VOCAB, rows->tokens + i * SEQ, rows->targets + i * SEQ);
    return (struct sherd_batch){ rows->tokens, rows->targets, MICRO };
}

static struct sherd_model *make_model(void)
{
    struct job job = job_default();
    struct sherd_model *model;
    T_OK(sherd_model_build(&model, &job.model));
    return model;
}

static struct sherd_engine *make_engine(
    const struct sherd_model *model, struct sherd_comm *comm, struct sherd_device *dev, int graph)
{
    struct sherd_config config;
    struct sherd_engine *engine;
    T_OK(sherd_config_default(&config));
    config.batch.micro = MICRO;
    config.batch.seq = SEQ;
    config.run.graph = graph;
    T_OK(sherd_engine_create(&engine, &(struct sherd_engine_desc){ &config, model, dev, comm }));
    sherd_config_free(&config);
    return engine;
}

/* Whatever takes batches refuses these. */
static void refuse_all(struct sherd_engine *e)
{
    static float logits[MICRO * SEQ * VOCAB];
    struct rows rows;
    struct sherd_batch good = take(&rows, 77), many = good, none = good;
    struct sherd_batch two[2] = { good, good };
    struct rows bad;
    two[1] = take(&bad, 78);
    many.batch = MICRO + 1;
    none.targets = NULL;
    bad.tokens[5] = VOCAB;
    T_FAILS(sherd_engine_step(e, &two[1], 1, NULL), SHERD_EINVAL, "position 5: token 101");
    T_FAILS(sherd_engine_eval(e, two, 2, NULL, NULL), SHERD_EINVAL, "micro-batch 1, position 5: token 101");
    T_FAILS(sherd_engine_logits(e, &two[1], logits), SHERD_EINVAL, "position 5: token 101");
    T_FAILS(sherd_engine_step(e, &many, 1, NULL), SHERD_EINVAL, "has 3 sequences, 0 to batch.micro = 2");
    T_FAILS(sherd_engine_step(e, &none, 1, NULL), SHERD_EINVAL, "has no targets");
}

struct outcome {
    int refuse, graph, given;
    double loss[STEPS];
    float weight[ELEMS];
};

static void alone(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    (void)rank;
    struct outcome *o = ctx;
    struct sherd_model *model = make_model();
    struct sherd_engine *e = make_engine(model, o->given ? comm : NULL, dev, o->graph);
    for (int i = 0; i < STEPS; i++) {
        struct rows rows;
        struct sherd_batch batch = take(&rows, i);
        struct sherd_step_stats stats;
        if (o->refuse)
            refuse_all(e);
        T_EQ(sherd_engine_steps(e), i);
        T_OK(sherd_engine_step(e, &batch, 1, &stats));
        o->loss[i] = stats.loss;
    }
    T_OK(sherd_engine_tensor(e, "weight", "transformer.wte.weight", o->weight, ELEMS));
    sherd_engine_destroy(e);
    sherd_model_destroy(model);
}

static void an_engine_alone_goes_on(void **state)
{
    (void)state;
    for (int graph = 0; graph <= 1; graph++) {
        static struct outcome plain, refused;
        plain = (struct outcome){ .graph = graph };
        refused = (struct outcome){ .graph = graph, .given = 1, .refuse = 1 };
        t_ranks(1, T_THREADS | T_ASYNC, alone, &plain);
        t_ranks(1, T_THREADS | T_ASYNC, alone, &refused);
        assert_memory_equal(refused.loss, plain.loss, sizeof(plain.loss));
        assert_memory_equal(refused.weight, plain.weight, sizeof(plain.weight));
    }
}

/* Every call after a failure half-way: the first reason, however often it is asked. */
static void tells_the_first(struct sherd_engine *e, const struct sherd_batch *batch, const char *reason)
{
    static const char before[] = "this engine failed half-way before; destroy it";
    float weight[ELEMS];
    for (int i = 0; i < 2; i++) {
        T_FAILS(sherd_engine_step(e, batch, 1, NULL), SHERD_EINVAL, before);
        T_HAS(sherd_error(), reason);
        T_FAILS(sherd_engine_eval(e, batch, 1, NULL, NULL), SHERD_EINVAL, reason);
        T_FAILS(
            sherd_engine_tensor(e, "weight", "transformer.wte.weight", weight, ELEMS), SHERD_EINVAL, reason);
        T_FAILS(sherd_engine_save(e, "never", NULL), SHERD_EINVAL, reason);
        T_FAILS(sherd_engine_load(e, "never"), SHERD_EINVAL, reason);
        T_FAILS(sherd_engine_import(e, "never", NULL), SHERD_EINVAL, reason);
    }
}

static void of_two(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    const int *call = ctx;
    static const char reason[] = "position 3: token -1, target";
    struct sherd_model *model = make_model();
    struct sherd_engine *e = make_engine(model, comm, dev, 0);
    struct rows rows;
    struct sherd_batch batch = take(&rows, 0);
    T_OK(sherd_engine_step(e, &batch, 1, NULL));
    if (rank == 1)
        rows.tokens[3] = -1;
    T_FAILS(*call ? sherd_engine_eval(e, &batch, 1, NULL, NULL) : sherd_engine_step(e, &batch, 1, NULL),
        rank == 1 ? SHERD_EINVAL : SHERD_EPEER, reason);
    batch = take(&rows, 1);
    tells_the_first(e, &batch, reason);
    sherd_engine_destroy(e);
    sherd_model_destroy(model);
}

static void other_ranks_are_told(void **state)
{
    (void)state;
    for (int call = 0; call <= 1; call++)
        t_ranks(2, T_THREADS | T_ASYNC, of_two, &call);
}

static const struct sherd_layer_ops *whole;
static int forwards;

static int failing_forward(struct sherd_run *run)
{
    return ++forwards == 2 ? sherd_fail(SHERD_EDEVICE, "the second forward fails") : whole->forward(run);
}

/* One layer fails in the second step, when others have run. */
static void in_the_middle(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    (void)rank;
    (void)comm;
    (void)ctx;
    struct sherd_model *model = make_model(), *failing;
    struct sherd_model_spec spec = *sherd_model_spec_of(model);
    struct sherd_layer layers[8];
    struct rows rows;
    struct sherd_batch batch = take(&rows, 0);
    T_TRUE(spec.n_layers <= 8);
    memcpy(layers, spec.layers, (size_t)spec.n_layers * sizeof(*layers));
    whole = layers[1].ops;
    forwards = 0;
    struct sherd_layer_ops ops = *whole;
    ops.forward = failing_forward;
    layers[1].ops = &ops;
    spec.layers = layers;
    T_OK(sherd_model_create(&failing, &spec));
    struct sherd_engine *e = make_engine(failing, NULL, dev, 0);
    T_OK(sherd_engine_step(e, &batch, 1, NULL));
    T_FAILS(sherd_engine_step(e, &batch, 1, NULL), SHERD_EDEVICE, "the second forward fails");
    tells_the_first(e, &batch, "the second forward fails");
    T_EQ(sherd_engine_steps(e), 1);
    sherd_engine_destroy(e);
    sherd_model_destroy(failing);
    sherd_model_destroy(model);
}

static void half_way_alone(void **state)
{
    (void)state;
    t_ranks(1, T_THREADS | T_ASYNC, in_the_middle, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_engine_alone_goes_on),
        cmocka_unit_test(other_ranks_are_told),
        cmocka_unit_test(half_way_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
