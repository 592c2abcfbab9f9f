/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Values that are not finite are traced to the tensor, layer, rank and micro-batch they began with; steps are
 * skipped and counted as configured; replicas that drift apart and collectives that differ are found.
 */
#include "tests/t.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <sherd/sherd.h>

#include "base/file.h"
#include "model/model.h"
#include "runtime/engine.h"
#include "runtime/replica.h"
#include "tests/folder.h"
#include "tests/ranks/job.h"

#define WORLD 3
#define ACCUM 2
#define MICRO 2
#define SEQ 8

enum where { NOWHERE, IN_OUTPUT, IN_GRADIENT, IN_INPUT_GRADIENT, IN_LOSS };

/* What goes wrong in layer 2 (block1), or in the last one's loss alone: on a rank, in a micro-batch (from 0),
 * from a step on for some steps. */
struct fault {
    enum where where;
    int rank, micro;
    int64_t step, steps;
    int stage;
    const char *settings[4];
    const char *text; /* that every rank must get */
    char dir[FOLDER_BYTES];
};

/* Of the rank that runs in this thread. */
static _Thread_local struct {
    const struct fault *fault;
    const struct sherd_engine *engine;
    const struct sherd_layer_ops *ops, *head;
    int forwards, backwards, heads;
} here;

static int is_due(int *calls, enum where where)
{
    const struct fault *f = here.fault;
    int micro = (*calls)++ % ACCUM;
    int64_t step = here.engine->step + 1;
    return f->where == where && here.engine->store.rank == f->rank && micro == f->micro && step >= f->step &&
           step < f->step + f->steps;
}

static int bad_forward(struct sherd_run *run)
{
    SHERD_TRY(here.ops->forward(run));
    if (run->mode == SHERD_TRAIN && is_due(&here.forwards, IN_OUTPUT))
        ((float *)run->y)[3] = NAN;
    return SHERD_OK;
}

static int bad_backward(struct sherd_run *run)
{
    SHERD_TRY(here.ops->backward(run));
    int calls = here.backwards;
    if (is_due(&here.backwards, IN_GRADIENT))
        ((float *)run->dw[8])[17] = INFINITY; /* the MLP's first weight */
    if (is_due(&calls, IN_INPUT_GRADIENT))
        ((float *)run->dx)[5] = -INFINITY;
    return SHERD_OK;
}

/* Gradients stay as they are. */
static int bad_head(struct sherd_run *run)
{
    SHERD_TRY(here.head->backward(run));
    if (is_due(&here.heads, IN_LOSS))
        *run->loss_sum = INFINITY;
    return SHERD_OK;
}

/* `plain` owns what the arguments of layers point to. */
static int make_model(struct sherd_model **out, struct sherd_model **plain, struct sherd_layer_ops bad[2])
{
    SHERD_TRY(sherd_model_build(plain, &(struct sherd_model_config){ .family = "gpt2",
                                           .vocab = 101,
                                           .width = 24,
                                           .layers = 2,
                                           .heads = 3,
                                           .context = 16,
                                           .tied = 1 }));
    struct sherd_model_spec spec = *sherd_model_spec_of(*plain);
    struct sherd_layer layers[8];
    memcpy(layers, spec.layers, (size_t)spec.n_layers * sizeof(*layers));
    here.ops = layers[2].ops;
    here.head = layers[spec.n_layers - 1].ops;
    bad[0] = *here.ops;
    bad[0].forward = bad_forward;
    bad[0].backward = bad_backward;
    layers[2].ops = &bad[0];
    bad[1] = *here.head;
    bad[1].backward = bad_head;
    layers[spec.n_layers - 1].ops = &bad[1];
    spec.layers = layers;
    return sherd_model_create(out, &spec);
}

static int make_config(struct sherd_config *c, const struct fault *f)
{
    static const char yaml[] = "run: { seed: 5 }\n"
                               "batch: { micro: 2, accum: 2, seq: 8 }\n"
                               "optim: { lr: 1e-2 }\n"
                               "train: { steps: 24 }\n";
    char stage[32];
    const char *set[8] = { stage };
    int n = 1;
    snprintf(stage, sizeof(stage), "shard.stage=%d", f->stage);
    for (int i = 0; i < 4 && f->settings[i]; i++)
        set[n++] = f->settings[i];
    return sherd_config_parse(c, yaml, sizeof(yaml) - 1, "test", set, n, WORLD);
}

struct rank {
    struct sherd_config config;
    struct sherd_model *model, *plain;
    struct sherd_engine *engine;
    struct sherd_layer_ops bad[2];
    int32_t tokens[ACCUM][MICRO * SEQ], targets[ACCUM][MICRO * SEQ];
};

static void start(struct rank *r, const struct fault *f, struct sherd_comm *comm, struct sherd_device *dev)
{
    memset(r, 0, sizeof(*r));
    memset(&here, 0, sizeof(here));
    T_OK(make_config(&r->config, f));
    T_OK(make_model(&r->model, &r->plain, r->bad));
    T_OK(sherd_engine_create(&r->engine, &(struct sherd_engine_desc){ &r->config, r->model, dev, comm }));
    here.fault = f;
    here.engine = r->engine;
}

static void finish(struct rank *r)
{
    sherd_engine_destroy(r->engine);
    sherd_model_destroy(r->model);
    sherd_model_destroy(r->plain);
    sherd_config_free(&r->config);
}

/* A step on the rows of another, counted from 0. */
static int step_with(struct rank *r, int64_t rows, struct sherd_step_stats *stats)
{
    struct sherd_batch micro[ACCUM];
    for (int m = 0; m < ACCUM; m++) {
        for (int i = 0; i < MICRO; i++)
            job_row(rows, (m * WORLD + r->engine->store.rank) * MICRO + i, SEQ, 101, r->tokens[m] + i * SEQ,
                r->targets[m] + i * SEQ);
        micro[m] = (struct sherd_batch){ r->tokens[m], r->targets[m], MICRO };
    }
    return sherd_engine_step(r->engine, micro, ACCUM, stats);
}

static int step(struct rank *r, struct sherd_step_stats *stats)
{
    return step_with(r, r->engine->step, stats);
}

static const char weight[] = "transformer.h.1.mlp.c_fc.weight";
#define WEIGHT_ELEMS (24 * 96)

/* ---- where it began ---- */

static void is_traced(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    const struct fault *f = ctx, none = { .stage = f->stage };
    struct rank r;
    struct sherd_step_stats stats;
    float before[WEIGHT_ELEMS], after[WEIGHT_ELEMS];
    char second[32];
    (void)rank;
    start(&r, f, comm, dev);
    T_OK(step(&r, &stats));
    T_OK(sherd_engine_tensor(r.engine, "weight", weight, before, WEIGHT_ELEMS));
    T_FAILS(step(&r, &stats), SHERD_ENONFINITE, f->text);
    snprintf(second, sizeof(second), "step %d: ", 2);
    T_HAS(sherd_error(), second);
    T_HAS(sherd_error(), "the weights are as before the step");
    T_OK(sherd_engine_tensor(r.engine, "weight", weight, after, WEIGHT_ELEMS));
    T_BITS(before, after, sizeof(before));
    T_EQ(r.engine->step, 1);
    /* It goes on, as if that step had never been tried. */
    here.fault = &none;
    T_OK(step(&r, &stats));
    T_EQ(stats.step, 2);
    T_OK(sherd_engine_tensor(r.engine, "weight", weight, after, WEIGHT_ELEMS));
    finish(&r);
    start(&r, &none, comm, dev);
    T_OK(step(&r, NULL));
    T_OK(step(&r, NULL));
    T_OK(sherd_engine_tensor(r.engine, "weight", weight, before, WEIGHT_ELEMS));
    T_BITS(before, after, sizeof(before));
    finish(&r);
}

static void test_the_origin_is_named(void **state)
{
    (void)state;
    for (int stage = 0; stage < 4; stage++) {
        struct fault f = { .rank = 1, .micro = 1, .step = 2, .steps = 1, .stage = stage };
        f.where = IN_GRADIENT;
        f.text =
            "first on rank 1, micro-batch 2: the gradient of transformer.h.1.mlp.c_fc.weight, whose element 17 "
            "is inf (layer block1)";
        t_ranks(WORLD, T_THREADS | T_ASYNC, is_traced, &f);
        f.where = IN_OUTPUT;
        f.rank = 2;
        f.micro = 0;
        f.text = "first on rank 2, micro-batch 1: the output of layer block1, whose element 3 is nan";
        t_ranks(WORLD, T_THREADS, is_traced, &f);
        f.where = IN_INPUT_GRADIENT;
        f.rank = 0;
        f.text =
            "first on rank 0, micro-batch 1: the gradient of the input of layer block1, whose element 5 is -inf";
        t_ranks(WORLD, T_THREADS, is_traced, &f);
        f.where = IN_LOSS;
        f.rank = 1;
        f.micro = 1;
        f.text = "first on rank 1, micro-batch 2: the loss, the end of layer head, whose element 0 is inf";
        t_ranks(WORLD, T_THREADS | T_ASYNC, is_traced, &f);
    }
}

static void has_bad_weights(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    struct rank r;
    start(&r, ctx, comm, dev);
    if (rank == 1)
        ((float *)r.engine->store.units[0].param[SHARD_TRAINED])[0] = NAN;
    T_FAILS(step(&r, NULL), SHERD_ENONFINITE, "before the step, in the weights: ");
    finish(&r);
}

static void test_bad_weights_are_named(void **state)
{
    (void)state;
    struct fault f = { .stage = 0 };
    t_ranks(WORLD, T_THREADS, has_bad_weights, &f);
}

/* ---- skipping ---- */

static void skips_two(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    const struct fault *f = ctx, none = { .stage = f->stage };
    struct rank r;
    struct sherd_step_stats stats;
    float before[WEIGHT_ELEMS], after[WEIGHT_ELEMS];
    char path[FOLDER_BYTES + 32];
    (void)rank;
    start(&r, f, comm, dev);
    T_OK(step(&r, &stats));
    T_EQ(stats.skipped, 0);
    T_OK(sherd_engine_tensor(r.engine, "weight", weight, before, WEIGHT_ELEMS));
    for (int i = 1; i <= 2; i++) {
        T_OK(step(&r, &stats));
        T_EQ(stats.skipped, 1);
        T_EQ(stats.skipped_steps, i);
        T_EQ(stats.step, i + 1);
        T_TRUE(stats.tokens > 0);
    }
    T_OK(sherd_engine_tensor(r.engine, "weight", weight, after, WEIGHT_ELEMS));
    T_BITS(before, after, sizeof(before));
    T_OK(sherd_engine_save(r.engine, f->dir, NULL));
    T_EQ(r.engine->skipped_in_row, 2);
    T_OK(step(&r, &stats));
    T_EQ(stats.skipped, 0);
    T_EQ(stats.skipped_steps, 2);
    T_EQ(r.engine->skipped_in_row, 0);
    T_OK(sherd_engine_tensor(r.engine, "weight", weight, before, WEIGHT_ELEMS));
    finish(&r);

    /* Its rate and Adam's correction were those of a second step. */
    start(&r, &none, comm, dev);
    T_OK(step(&r, NULL));
    double lr = stats.lr;
    T_OK(step_with(&r, 3, &stats));
    T_TRUE(stats.lr == lr);
    T_OK(sherd_engine_tensor(r.engine, "weight", weight, after, WEIGHT_ELEMS));
    T_BITS(before, after, sizeof(before));
    finish(&r);

    /* Counts are part of the state, and so of the way on. */
    start(&r, f, comm, dev);
    snprintf(path, sizeof(path), "%s/step-00000003", f->dir);
    T_OK(sherd_engine_load(r.engine, path));
    T_EQ(r.engine->skipped, 2);
    T_EQ(r.engine->skipped_in_row, 2);
    T_OK(step(&r, &stats));
    T_EQ(stats.skipped_steps, 2);
    T_OK(sherd_engine_tensor(r.engine, "weight", weight, after, WEIGHT_ELEMS));
    T_BITS(before, after, sizeof(before));
    finish(&r);
}

static void ends_at_the_limit(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    struct rank r;
    struct sherd_step_stats stats;
    (void)rank;
    start(&r, ctx, comm, dev);
    for (int i = 0; i < 3; i++)
        T_OK(step(&r, &stats));
    T_EQ(stats.skipped_steps, 2);
    T_FAILS(
        step(&r, &stats), SHERD_ENONFINITE, "step 4 after 2 steps skipped in a row (train.nonfinite_limit)");
    finish(&r);
}

static void test_steps_are_skipped_and_counted(void **state)
{
    (void)state;
    sherd_log_set(NULL, NULL, SHERD_LOG_ERROR);
    for (int stage = 0; stage < 4; stage++) {
        struct fault f = { IN_GRADIENT, .rank = 1, .micro = 0, .step = 2, .steps = 2, .stage = stage };
        f.settings[0] = "train.nonfinite=skip";
        assert_int_equal(folder_make(f.dir, "finite"), 0);
        t_ranks(WORLD, T_THREADS, skips_two, &f);
        file_remove_tree(f.dir);
        f.where = IN_LOSS;
        assert_int_equal(folder_make(f.dir, "finite"), 0);
        t_ranks(WORLD, T_THREADS, skips_two, &f);
        file_remove_tree(f.dir);
        f.steps = 5;
        f.settings[1] = "train.nonfinite_limit=2";
        t_ranks(WORLD, T_THREADS, ends_at_the_limit, &f);
    }
    sherd_log_set(NULL, NULL, SHERD_LOG_INFO);
}

/* ---- replicas ---- */

enum { A_WEIGHT, A_STATE };
struct flip {
    struct fault fault;
    int what;
};

static void one_flips(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    struct flip *flip = ctx;
    struct rank r;
    start(&r, &flip->fault, comm, dev);
    T_OK(step(&r, NULL));
    T_OK(step(&r, NULL));
    const struct shard_unit *unit = &r.engine->store.units[1];
    if (rank == 1 && flip->what == A_WEIGHT)
        ((uint32_t *)unit->param[SHARD_TRAINED])[7] ^= 1;
    if (rank == 1 && flip->what == A_STATE)
        ((uint32_t *)unit->state[1])[7] ^= 1;
    if (flip->fault.stage == 0) {
        T_OK(step(&r, NULL)); /* not looked at */
        T_FAILS(step(&r, NULL), SHERD_EDIVERGED, "step 4: the ");
    } else { /* publishing mends it in the next step: what is frozen would stay */
        T_FAILS(replica_check(r.engine), SHERD_EDIVERGED, "step 2: the ");
    }
    T_HAS(sherd_error(), flip->what == A_WEIGHT ? "weights of unit "
                                                : " of unit block0 on rank 1 are not those on ranks 0, 2");
    T_HAS(sherd_error(), "on rank 1 are not those on ranks 0, 2");
    finish(&r);
}

static void test_replicas_that_differ_are_named(void **state)
{
    (void)state;
    for (int stage = 0; stage < 3; stage++)
        for (int what = 0; what < (stage == 0 ? 2 : 1); what++) {
            struct flip flip = {
                .fault = { .stage = stage, .settings = { "check.replicas=2", "optim.lr=0" } }, .what = what
            };
            t_ranks(WORLD, T_THREADS, one_flips, &flip);
        }
}

/* ---- what is let go ---- */

static int all_ones(const void *data, size_t bytes)
{
    const unsigned char *at = data;
    size_t n = 0;
    while (n < bytes && at[n] == 0xff)
        n++;
    return n == bytes;
}

/* At the end of a step nothing is gathered and no gradient is under way. */
static void lets_go(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    const struct fault *f = ctx;
    struct rank r;
    float out[WEIGHT_ELEMS];
    (void)rank;
    start(&r, f, comm, dev);
    T_OK(step(&r, NULL));
    T_OK(sherd_engine_tensor(r.engine, "weight", weight, out, WEIGHT_ELEMS)); /* which waits for all queues */
    const struct shard_store *s = &r.engine->store;
    const struct shard_program *p = s->desc.program;
    T_TRUE((p->n_slots > 0) == (f->stage == 3));
    T_TRUE((p->n_partials > 0) == (f->stage >= 2));
    for (int k = 0; k < p->n_slots; k++)
        T_EQ(all_ones(s->slots[k].data, (size_t)p->slot_elems[k] * sizeof(float)), f->settings[0] != NULL);
    for (int k = 0; k < p->n_partials; k++) /* as much of it as the last unit took */
        T_EQ(all_ones(s->partials[k].data, 64), f->settings[0] != NULL);
    finish(&r);
}

static void test_what_is_let_go_is_poisoned(void **state)
{
    (void)state;
    for (int stage = 0; stage < 4; stage++) {
        struct fault f = { .stage = stage };
        t_ranks(WORLD, T_THREADS | T_ASYNC, lets_go, &f);
        f.settings[0] = "shard.poison=true";
        t_ranks(WORLD, T_THREADS | T_ASYNC, lets_go, &f);
    }
}

/* ---- collectives ---- */

static void they_differ(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    struct sherd_queue *queue;
    float out[WORLD * 8] = { 0 }, in[8] = { 0 };
    (void)ctx;
    T_OK(sherd_queue_create(&queue, dev, SHERD_QUEUE_COMPUTE));
    comm_compare(comm, 1);
    T_OK(comm_at(comm, &(struct board_place){ .step = 7, .done = 1, .text = "only:1 gather block0" }));
    T_OK(sherd_all_gather(comm, queue, out, in, 8, SHERD_F32));
    T_OK(sherd_queue_sync(queue));
    /* Another size, another type, another place: told by the call itself, and nothing is aborted. */
    T_FAILS(sherd_all_gather(comm, queue, out, in, rank == 1 ? 4 : 8, SHERD_F32), SHERD_ECOMM,
        "ranks 0, 2: all-gather #2 (8 f32) at step 7, only:1 gather block0");
    T_HAS(sherd_error(), "; rank 1: all-gather #2 (4 f32)");
    T_FAILS(sherd_all_gather(comm, queue, out, in, 8, rank == 0 ? SHERD_I32 : SHERD_F32), SHERD_ECOMM,
        "rank 0: all-gather #2 (8 i32)");
    T_OK(comm_at(comm, rank == 2
                           ? &(struct board_place){ .step = 7, .done = 2, .text = "only:4 gather block1" }
                           : &(struct board_place){ .step = 7, .done = 2, .text = "only:3 gather block0" }));
    T_FAILS(sherd_all_gather(comm, queue, out, in, 8, SHERD_F32), SHERD_ECOMM,
        "rank 2: all-gather #2 (8 f32) at step 7, only:4");
    comm_compare(comm, 0);
    sherd_queue_destroy(queue);
}

/* A save is a call of all ranks: where one alone makes it, and the others go on or leave, all are told. */
enum others { TAKE_A_STEP, LEAVE, WAIT };
struct alone {
    struct fault fault; /* none: its stage and folder */
    enum others others;
    atomic_int ended; /* the save by rank 1 */
};

static int count_names(const char *dir)
{
    char **names;
    int n;
    ASSERT_OK(file_list(&names, &n, dir));
    file_list_free(names, n);
    return n;
}

static void one_saves(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    struct alone *a = ctx;
    struct rank r;
    start(&r, &a->fault, comm, dev);
    T_OK(step(&r, NULL));
    if (rank == 1) {
        int st = sherd_engine_save(r.engine, a->fault.dir, NULL);
        a->ended = 1;
        T_TRUE(st == SHERD_ECOMM || st == SHERD_EPEER || st == SHERD_ETIMEOUT);
        T_HAS(sherd_error(), "have not come: rank ");
        T_HAS(sherd_error(), " at step 1, save");
    } else if (a->others == TAKE_A_STEP) {
        int st = step(&r, NULL);
        T_TRUE(st == SHERD_ECOMM || st == SHERD_EPEER || st == SHERD_ETIMEOUT);
        T_HAS(sherd_error(), " at step 1, save");
        T_HAS(sherd_error(), " at step 2, ");
    } else if (a->others == WAIT) {
        while (!a->ended)
            nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
    }
    finish(&r);
}

static void test_a_save_by_one_rank_is_told(void **state)
{
    (void)state;
    for (int others = 0; others < 3; others++)
        for (int stage = 0; stage < 4; stage += 3) {
            struct alone a = { .fault.stage = stage, .others = (enum others)others };
            assert_int_equal(folder_make(a.fault.dir, "finite"), 0);
            t_limits(30, 1);
            t_ranks(WORLD, T_THREADS, one_saves, &a);
            t_limits(0, 0);
            assert_false(file_exists(a.fault.dir) && count_names(a.fault.dir) > 0);
            file_remove_tree(a.fault.dir);
        }
}

/* Looking changes nothing. */
static void looks_all_the_time(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    const struct fault *f = ctx;
    struct rank r;
    float plain[WEIGHT_ELEMS], compared[WEIGHT_ELEMS];
    struct fault looking = *f;
    (void)rank;
    looking.settings[0] = "check.collectives=true";
    start(&r, f, comm, dev);
    T_OK(step(&r, NULL));
    T_OK(sherd_engine_tensor(r.engine, "weight", weight, plain, WEIGHT_ELEMS));
    finish(&r);
    start(&r, &looking, comm, dev);
    T_OK(step(&r, NULL));
    T_OK(sherd_engine_tensor(r.engine, "weight", weight, compared, WEIGHT_ELEMS));
    T_BITS(plain, compared, sizeof(plain));
    finish(&r);
}

static void test_collectives_are_compared_before_they_run(void **state)
{
    (void)state;
    t_ranks(WORLD, T_THREADS, they_differ, NULL);
    t_ranks(WORLD, T_PROCESSES | T_ASYNC, they_differ, NULL);
    for (int stage = 0; stage < 4; stage++)
        t_ranks(WORLD, T_THREADS | T_ASYNC, looks_all_the_time, &(struct fault){ .stage = stage });
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_origin_is_named),
        cmocka_unit_test(test_bad_weights_are_named),
        cmocka_unit_test(test_steps_are_skipped_and_counted),
        cmocka_unit_test(test_replicas_that_differ_are_named),
        cmocka_unit_test(test_what_is_let_go_is_poisoned),
        cmocka_unit_test(test_collectives_are_compared_before_they_run),
        cmocka_unit_test(test_a_save_by_one_rank_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
