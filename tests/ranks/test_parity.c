/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Every stage, world and split of a job does the same: bit for bit where the order of sums is fixed, closely
 * where it is not.
 */
#include "tests/check.h"

#include <math.h>
#include <string.h>

#include "model/model.h"
#include "tests/ranks/job.h"
#include "tests/t.h"

static const int worlds[] = { 1, 2, 3, 4, 7, 8 };
#define N_WORLDS (int)(sizeof(worlds) / sizeof(worlds[0]))

/* Runs `base` at stages 0 to 3: without accumulation all give the same bits; with it 0 = 1 and 2 = 3. */
static void compare_stages(struct job base, double bound)
{
    struct job at[4];
    for (int s = 0; s < 4; s++) {
        at[s] = base;
        at[s].stage = s;
        job_pass(&at[s]);
    }
    job_same_bits(&at[1], &at[0]);
    job_same_bits(&at[3], &at[2]);
    if (base.accum == 1)
        job_same_bits(&at[2], &at[0]);
    else
        job_close(&at[2], &at[0], bound);
    for (int s = 0; s < 4; s++)
        job_free(&at[s]);
}

static void stages_agree_bitwise_at_every_world(void **state)
{
    (void)state;
    for (int w = 0; w < N_WORLDS; w++) {
        struct job j = job_default();
        j.world = worlds[w];
        j.steps = worlds[w] <= 4 ? 20 : 6;
        compare_stages(j, 0);
    }
}

static void stages_agree_under_accumulation(void **state)
{
    (void)state;
    for (int w = 0; w < N_WORLDS; w++) {
        struct job j = job_default();
        j.world = worlds[w];
        j.micro = 1;
        j.accum = 3;
        j.steps = 5;
        compare_stages(j, 2e-5);
    }
}

static void stages_agree_in_bf16(void **state)
{
    (void)state;
    for (int w = 1; w <= 3; w++) {
        struct job j = job_default();
        j.world = w;
        j.param = SHERD_BF16;
        compare_stages(j, 0);
        j.reduce = SHERD_BF16;
        compare_stages(j, 0);
    }
}

static void stages_agree_in_f16(void **state)
{
    (void)state;
    for (int w = 1; w <= 3; w++) {
        struct job j = job_default();
        j.world = w;
        j.param = SHERD_F16;
        compare_stages(j, 0);
        j.reduce = SHERD_F16;
        compare_stages(j, 0);
    }
}

static const struct sherd_model_config tiny_llama = { .family = "llama",
    .vocab = 101,
    .width = 24,
    .layers = 3,
    .heads = 4,
    .kv_heads = 2,
    .head_dim = 6,
    .mlp_width = 40,
    .context = 16 };

static void stages_agree_for_llama_and_sgd(void **state)
{
    (void)state;
    struct job j = job_default();
    j.model = tiny_llama;
    j.world = 3;
    j.steps = 5;
    compare_stages(j, 0);
    j.optim = "sgd";
    j.lr = 0.1;
    compare_stages(j, 0);
}

/* What is computed twice has the same bits both times, and less is saved. */
static void recomputing_changes_nothing(void **state)
{
    (void)state;
    for (int trial = 0; trial < 24; trial++) {
        struct job none = job_default();
        none.stage = trial % 4;
        none.world = 2;
        none.poison = 1;
        none.accum = 1 + trial / 4 % 2;
        none.steps = 4;
        if (trial >= 8)
            none.model = tiny_llama;
        if (trial >= 16) { /* norms of q and k; an MLP narrower than q, k and v */
            none.model.family = "qwen3";
            none.model.mlp_width = 16;
        }
        none.param = trial % 3 ? SHERD_F32 : SHERD_BF16;
        job_pass(&none);
        uint64_t saved = none.memory.saved;
        for (int k = SHERD_RECOMPUTE_CHEAP; k <= SHERD_RECOMPUTE_BLOCK; k++) {
            struct job j = none;
            j.weights = j.grads = NULL;
            j.recompute = (enum sherd_recompute)k;
            job_pass(&j);
            job_same_bits(&j, &none);
            assert_true(j.memory.saved < saved);
            saved = j.memory.saved;
            job_free(&j);
        }
        job_free(&none);
    }
}

/* Masters cut in two are the same masters, in less memory. */
static void split_masters_change_nothing(void **state)
{
    (void)state;
    for (int trial = 0; trial < 16; trial++) {
        struct job whole = job_default();
        whole.stage = trial % 4;
        whole.world = 1 + trial / 4;
        whole.param = SHERD_BF16;
        whole.poison = 1;
        whole.steps = 8;
        whole.accum = 1 + trial % 2;
        whole.optim = trial % 3 ? "adamw" : "sgd";
        job_pass(&whole);
        struct job split = whole;
        split.weights = split.grads = NULL;
        split.master = SHERD_MASTER_SPLIT;
        job_pass(&split);
        job_same_bits(&split, &whole);
        assert_int_equal(2 * split.memory.master, whole.memory.master);
        job_free(&split);
        job_free(&whole);
    }
}

/* Optimizer states rounded at random: the same bits at all stages, and no further from float states than a
 * twentieth of the way that the weights went. */
static void bf16_states_agree(void **state)
{
    (void)state;
    for (int trial = 0; trial < 4; trial++) {
        struct job f32 = job_default(), start;
        f32.world = 1 + trial;
        f32.steps = 20;
        f32.lr = 1e-3;
        f32.param = trial % 2 ? SHERD_BF16 : SHERD_F32;
        f32.master = trial == 3 ? SHERD_MASTER_SPLIT : SHERD_MASTER_WHOLE;
        f32.optim = trial == 2 ? "sgd" : "adamw";
        start = f32;
        start.steps = 0;
        job_pass(&start);
        job_pass(&f32);
        struct job j = f32;
        j.weights = j.grads = NULL;
        j.state = SHERD_BF16;
        compare_stages(j, 0);
        job_pass(&j);
        assert_int_equal(2 * j.memory.state, f32.memory.state);
        double apart = 0, way = 0;
        for (int64_t i = 0; i < j.n_weights; i++) {
            apart += pow((double)j.weights[i] - f32.weights[i], 2);
            way += pow((double)f32.weights[i] - start.weights[i], 2);
        }
        if (!(apart > 0 && sqrt(apart / way) < 0.05))
            fail_msg("trial %d: %.3g of the way apart", trial, sqrt(apart / way));
        job_free(&j);
        job_free(&f32);
        job_free(&start);
    }
}

/* Nothing is trained below block 1: what comes before runs forward once. */
static void recomputing_below_frozen_layers(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        struct job none = job_default();
        none.model = tiny_llama;
        none.freeze = "model.*";
        none.model.tied = 0;
        none.stage = stage;
        none.world = 2;
        none.poison = 1;
        job_pass(&none);
        struct job block = none;
        block.weights = block.grads = NULL;
        block.recompute = SHERD_RECOMPUTE_BLOCK;
        job_pass(&block);
        job_same_bits(&block, &none);
        job_free(&block);
        job_free(&none);
    }
}

static void worlds_agree_closely(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        struct job one = job_default();
        one.micro = 24;
        one.steps = 4;
        one.stage = stage;
        job_pass(&one);
        for (int w = 1; w < N_WORLDS; w++) {
            struct job j = one;
            j.weights = j.grads = NULL;
            j.world = worlds[w];
            j.micro = (24 + j.world - 1) / j.world;
            j.rows =
                24; /* worlds that do not divide 24 leave rows empty: the weighting is exact all the same */
            job_pass(&j);
            job_close(&j, &one, 2e-5);
            job_free(&j);
        }
        job_free(&one);
    }
}

/* One global batch of 24 cut in five ways. */
static void splits_agree_closely(void **state)
{
    (void)state;
    static const int cut[][3] = { { 24, 1, 1 }, { 6, 1, 4 }, { 2, 3, 4 }, { 1, 6, 4 }, { 3, 8, 1 } };
    for (int stage = 0; stage <= 3; stage++) {
        struct job first = job_default();
        for (size_t i = 0; i < sizeof(cut) / sizeof(cut[0]); i++) {
            struct job j = job_default();
            j.stage = stage;
            j.steps = 4;
            j.micro = cut[i][0];
            j.accum = cut[i][1];
            j.world = cut[i][2];
            job_pass(&j);
            if (i == 0) {
                first = j;
                continue;
            }
            job_close(&j, &first, 2e-5);
            job_free(&j);
        }
        job_free(&first);
    }
}

static void batches_that_do_not_divide(void **state)
{
    (void)state;
    struct job one = job_default();
    one.micro = 37;
    one.steps = 2;
    job_pass(&one);
    for (int stage = 0; stage <= 3; stage++) {
        struct job j = job_default();
        j.stage = stage;
        j.world = 4;
        j.micro = 12; /* 48 places for 37 rows: the last rank has one row */
        j.rows = 37;
        j.steps = 2;
        job_pass(&j);
        assert_int_equal(j.stats[0].tokens, one.stats[0].tokens);
        job_close(&j, &one, 2e-5);
        job_free(&j);
        j.rows = 12; /* ranks 1 to 3 have nothing at all */
        job_pass(&j);
        assert_true(isfinite(j.stats[1].loss));
        job_free(&j);
    }
    job_free(&one);
}

static void clipping_is_global(void **state)
{
    (void)state;
    struct job one = job_default();
    one.micro = 24;
    one.clip = 0.01;
    one.optim = "sgd"; /* Adam would hide a wrong factor */
    one.lr = 1;
    job_pass(&one);
    assert_true(one.stats[0].grad_norm > 0.1);
    for (int w = 1; w < N_WORLDS; w++)
        for (int stage = 0; stage <= 3; stage++) {
            struct job j = one;
            j.weights = j.grads = NULL;
            j.world = worlds[w];
            j.stage = stage;
            j.micro = (24 + j.world - 1) / j.world;
            j.rows = 24;
            job_pass(&j);
            job_close(&j, &one, 2e-5);
            job_free(&j);
        }
    job_free(&one);
}

static void overlap_prefetch_poison_and_delay_change_nothing(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        struct job plain = job_default();
        plain.stage = stage;
        plain.world = 2;
        plain.accum = 2;
        plain.steps = 4;
        plain.overlap = 0;
        job_pass(&plain);
        for (int prefetch = 0; prefetch <= 3; prefetch++)
            for (int delay = 0; delay <= 300; delay += 300) {
                struct job j = plain;
                j.weights = j.grads = NULL;
                j.overlap = 1;
                j.poison = 1;
                j.prefetch = prefetch;
                j.delay_us = delay;
                job_pass(&j);
                job_same_bits(&j, &plain);
                job_free(&j);
            }
        job_free(&plain);
    }
}

/* Steps that are launched whole, among steps that cannot be since a rank brings fewer rows. */
static void a_step_kept_as_one_piece_changes_nothing(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++)
        for (int world = 1; world <= 3; world++)
            for (int accum = 1; accum <= 3; accum += 2) {
                struct job plain = job_default();
                plain.stage = stage;
                plain.world = world;
                plain.accum = accum;
                plain.steps = 8;
                plain.uneven = 5;
                plain.overlap = 0;
                plain.optim = accum == 1 ? "adamw" : "sgd";
                plain.param = world == 2 ? SHERD_BF16 : SHERD_F32;
                plain.state = world == 3 ? SHERD_BF16 : SHERD_F32;
                job_pass(&plain);
                for (int overlap = 0; overlap <= 1; overlap++) {
                    struct job j = plain;
                    j.weights = j.grads = NULL;
                    j.graph = 1;
                    j.overlap = overlap;
                    j.poison = overlap;
                    j.delay_us = overlap && world == 2 ? 200 : 0;
                    job_pass(&j);
                    job_same_bits(&j, &plain);
                    assert_int_equal(j.launches, 5); /* not steps 1 and 2, and not the uneven one */
                    if (stage == 0 || stage == 3) /* others publish once more after a step that is not kept */
                        assert_memory_equal(&j.sent, &plain.sent, sizeof(j.sent));
                    job_free(&j);
                }
                job_free(&plain);
            }
}

static void every_row_of_a_tied_table_learns(void **state)
{
    (void)state;
    for (int w = 0; w < N_WORLDS; w++)
        for (int stage = 0; stage <= 3; stage++) {
            struct job before = job_default(), after;
            before.world = worlds[w];
            before.stage = stage;
            before.steps = 0;
            after = before;
            after.steps = 1;
            job_pass(&before);
            job_pass(&after);
            for (int row = 0; row < 101; row++) /* wte comes first, 101 rows of 24 */
                assert_memory_not_equal(
                    before.weights + 24 * row, after.weights + 24 * row, 24 * sizeof(float));
            job_free(&before);
            job_free(&after);
        }
}

static void frozen_tensors_stay_and_the_rest_agrees(void **state)
{
    (void)state;
    static const char *const patterns[] = { "transformer.wte.weight", "transformer.h.*", "*.weight" };
    for (size_t p = 0; p < sizeof(patterns) / sizeof(patterns[0]); p++) {
        struct job start = job_default(), first = start;
        start.freeze = patterns[p];
        start.steps = 0;
        job_pass(&start);
        for (int stage = 0; stage <= 3; stage++) {
            struct job j = job_default();
            j.freeze = patterns[p];
            j.stage = stage;
            j.world = 3;
            j.poison = 1;
            job_pass(&j);
            assert_true(j.n_grads < j.n_weights);
            if (p ==
                0) /* frozen tensors come last in their unit: the table follows the trained rest of root */
                assert_memory_not_equal(j.weights, start.weights, 24 * sizeof(float));
            if (stage == 0)
                first = j;
            else {
                job_same_bits(&j, &first);
                job_free(&j);
            }
        }
        int64_t moved = 0;
        for (int64_t i = 0; i < start.n_weights; i++)
            moved += memcmp(&start.weights[i], &first.weights[i], sizeof(float)) != 0;
        assert_true(moved > 0 && moved <= first.n_grads);
        job_free(&first);
        job_free(&start);
    }
}

/* What one rank has that the other has not. */
enum odd { ODD_NOTHING, ODD_BETA, ODD_OPTIMIZER, ODD_FROZEN, ODD_FOLDER };

static void create_one(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    enum odd odd = rank == 1 ? *(const enum odd *)ctx : ODD_NOTHING;
    struct job job = job_default();
    struct sherd_config config;
    struct sherd_model *model;
    struct sherd_engine *engine;
    T_OK(sherd_config_default(&config));
    config.batch.micro = job.micro;
    config.batch.seq = job.seq;
    config.run.dir = odd == ODD_FOLDER ? "elsewhere" : config.run.dir;
    config.optim.beta2 = odd == ODD_BETA ? 0.99 : config.optim.beta2;
    config.optim.name = odd == ODD_OPTIMIZER ? "sgd" : config.optim.name;
    T_OK(sherd_model_build(&model, &job.model));
    if (odd == ODD_FROZEN)
        T_OK(model_freeze(model, "transformer.h.0.ln_1.bias"));
    int st = sherd_engine_create(&engine, &(struct sherd_engine_desc){ &config, model, dev, comm });
    switch (*(const enum odd *)ctx) {
    case ODD_BETA:
    case ODD_OPTIMIZER:
        T_FAILS(st, SHERD_ECONFIG, "has other settings than rank");
        break;
    case ODD_FROZEN:
        T_FAILS(st, SHERD_ECONFIG, "has another model than rank");
        break;
    default:
        T_OK(st);
        break;
    }
    sherd_engine_destroy(engine);
    sherd_model_destroy(model);
    sherd_config_free(&config);
}

static void ranks_that_differ_are_told(void **state)
{
    (void)state;
    for (enum odd odd = ODD_NOTHING; odd <= ODD_FOLDER; odd++)
        t_ranks(2, T_THREADS, create_one, &odd);
}

static void freezing_everything_is_refused(void **state)
{
    (void)state;
    struct job j = job_default();
    j.freeze = "*";
    j.world = 2;
    job_run(&j);
    assert_int_equal(j.status[0], SHERD_ECONFIG);
    ASSERT_CONTAINS(j.error[0], "nothing to train");
}

static void memory_and_bytes_are_what_was_planned(void **state)
{
    (void)state;
    for (int w = 0; w < N_WORLDS; w++)
        for (int stage = 0; stage <= 3; stage++)
            for (int accum = 1; accum <= 3; accum += 2) {
                struct job j = job_default();
                j.recompute = (enum sherd_recompute)(stage % 3);
                j.param = w % 2 ? SHERD_BF16 : SHERD_F32;
                j.master = w % 2 ? SHERD_MASTER_SPLIT : SHERD_MASTER_WHOLE;
                j.state = w % 3 ? SHERD_BF16 : SHERD_F32;
                j.world = worlds[w];
                j.stage = stage;
                j.accum = accum;
                j.steps = 2;
                job_pass(&j);
                struct sherd_config c;
                struct sherd_model *model;
                struct sherd_plan plan;
                ASSERT_OK(sherd_config_default(&c));
                c.shard.stage = stage;
                c.shard.prefetch = j.prefetch;
                c.batch.micro = j.micro;
                c.batch.accum = accum;
                c.batch.seq = j.seq;
                c.dtype.param = j.param;
                c.dtype.reduce = j.reduce;
                c.train.recompute = j.recompute;
                c.dtype.master = j.master;
                c.dtype.state = j.state;
                ASSERT_OK(sherd_model_build(&model, &j.model));
                ASSERT_OK(sherd_plan_make(&plan, &c, model, j.world));
                assert_memory_equal(&plan.memory, &j.memory, sizeof(plan.memory));
                uint64_t total = 0;
#define XX(name, text) total += plan.memory.name;
                SHERD_REGIONS(XX)
#undef XX
                assert_int_equal(j.engine_bytes, total);
                /* what the steps sent, less the scalars: 4 doubles of counts, 2 of loss and norm a step */
                uint64_t scalars = 2 * 6 * sizeof(double) * (uint64_t)(j.world - 1);
                assert_int_equal(j.sent.bytes[SHERD_ALL_GATHER], 2 * plan.sent[SHERD_ALL_GATHER] + scalars);
                assert_int_equal(j.sent.bytes[SHERD_REDUCE_SCATTER], 2 * plan.sent[SHERD_REDUCE_SCATTER]);
                assert_int_equal(j.sent.bytes[SHERD_ALL_REDUCE], 2 * plan.sent[SHERD_ALL_REDUCE]);
                assert_int_equal(j.sent.bytes[SHERD_BROADCAST], 0);
                sherd_plan_free(&plan);
                sherd_model_destroy(model);
                sherd_config_free(&c);
                job_free(&j);
            }
}

/* Blocks' gradients rest in what the blocks saved, where a step has one micro-batch; the tied root saves
 * nothing, so its gradient has a place of its own. */
static void gradients_rest_where_values_were(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        struct job one = job_default(), two, block;
        one.stage = stage;
        one.world = 2;
        two = block = one;
        two.accum = 2;
        block.recompute = SHERD_RECOMPUTE_BLOCK;
        job_pass(&one);
        job_pass(&two);
        job_pass(&block);
        if (stage >= 2)
            assert_true(one.memory.grad > 0 && one.memory.grad < two.memory.grad);
        assert_int_equal(block.memory.grad, two.memory.grad); /* what blocks save is elsewhere by then */
        job_same_bits(&block, &one);
        job_free(&one);
        job_free(&two);
        job_free(&block);
    }
}

static void one_micro_batch_was_planned(
    int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    struct job job = job_default();
    struct sherd_config config;
    struct sherd_model *model;
    struct sherd_engine *engine;
    int32_t tokens[2 * 8] = { 0 };
    struct sherd_batch micro[2] = { { tokens, tokens, 2 }, { tokens, tokens, 2 } };
    (void)rank;
    T_OK(sherd_config_default(&config));
    config.batch.micro = job.micro;
    config.batch.seq = job.seq;
    config.batch.accum = *(const int *)ctx;
    T_OK(sherd_model_build(&model, &job.model));
    T_OK(sherd_engine_create(&engine, &(struct sherd_engine_desc){ &config, model, dev, comm }));
    if (config.batch.accum == 1)
        T_FAILS(sherd_engine_step(engine, micro, 2, NULL), SHERD_EINVAL, "set it to the number of");
    else
        T_OK(sherd_engine_step(engine, micro, 2, NULL));
    T_OK(sherd_engine_step(engine, micro, 1, NULL));
    sherd_engine_destroy(engine);
    sherd_model_destroy(model);
    sherd_config_free(&config);
}

static void more_micro_batches_than_planned_are_refused(void **state)
{
    (void)state;
    for (int accum = 0; accum <= 2; accum++)
        t_ranks(2, T_THREADS, one_micro_batch_was_planned, &accum);
}

static void a_step_allocates_nothing(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        struct job j = job_default();
        j.stage = stage;
        j.steps = 6;
        j.accum = 2;
        job_pass(&j);
        assert_int_equal(j.step_allocs, 0);
        job_free(&j);
    }
}

static void a_step_that_is_not_finite_changes_nothing(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        struct job j = job_default();
        j.stage = stage;
        j.world = 3;
        j.steps = 8;
        j.optim = "sgd";
        j.clip = 0;
        j.lr = 1e30;
        job_run(&j);
        for (int r = 0; r < j.world; r++) {
            assert_int_equal(j.status[r], SHERD_ENONFINITE);
            ASSERT_CONTAINS(j.error[r], "the weights are as before the step");
        }
        job_free(&j);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_agree_bitwise_at_every_world),
        cmocka_unit_test(stages_agree_under_accumulation),
        cmocka_unit_test(stages_agree_in_bf16),
        cmocka_unit_test(stages_agree_in_f16),
        cmocka_unit_test(stages_agree_for_llama_and_sgd),
        cmocka_unit_test(recomputing_changes_nothing),
        cmocka_unit_test(recomputing_below_frozen_layers),
        cmocka_unit_test(split_masters_change_nothing),
        cmocka_unit_test(bf16_states_agree),
        cmocka_unit_test(worlds_agree_closely),
        cmocka_unit_test(splits_agree_closely),
        cmocka_unit_test(batches_that_do_not_divide),
        cmocka_unit_test(clipping_is_global),
        cmocka_unit_test(overlap_prefetch_poison_and_delay_change_nothing),
        cmocka_unit_test(a_step_kept_as_one_piece_changes_nothing),
        cmocka_unit_test(every_row_of_a_tied_table_learns),
        cmocka_unit_test(frozen_tensors_stay_and_the_rest_agrees),
        cmocka_unit_test(ranks_that_differ_are_told),
        cmocka_unit_test(freezing_everything_is_refused),
        cmocka_unit_test(memory_and_bytes_are_what_was_planned),
        cmocka_unit_test(gradients_rest_where_values_were),
        cmocka_unit_test(more_micro_batches_than_planned_are_refused),
        cmocka_unit_test(a_step_allocates_nothing),
        cmocka_unit_test(a_step_that_is_not_finite_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
