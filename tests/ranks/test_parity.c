/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Every stage, world and split of a job does the same: bit for bit where the order of sums is fixed, closely
 * where it is not. What holds for every option is in test_options.c.
 */
#include "tests/check.h"

#include <stdio.h>
#include <string.h>

#include "model/model.h"
#include "tests/ranks/job.h"
#include "tests/t.h"

static const int worlds[] = { 1, 2, 3, 4, 7, 8 };
#define N_WORLDS (int)ARRAY_LEN(worlds)

static void stages_agree_bitwise_at_every_world(void **state)
{
    (void)state;
    for (int w = 0; w < N_WORLDS; w++) {
        struct job j = job_default();
        j.world = worlds[w];
        j.steps = CHECK_MANY(worlds[w] <= 4 ? 20 : 6, 4);
        job_stages_agree(j, 0);
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
        j.steps = CHECK_MANY(5, 3);
        job_stages_agree(j, 2e-5);
    }
}

static void stages_agree_for_llama_and_sgd(void **state)
{
    (void)state;
    struct job j = job_default();
    j.model = job_llama();
    j.world = 3;
    j.steps = 5;
    job_stages_agree(j, 0);
    j.optim = "sgd";
    j.lr = 0.1;
    job_stages_agree(j, 0);
}

/* Layers far apart and neighbours that share a unit, of which there is one gradient and one tensor. */
static void stages_agree_where_blocks_share_weights(void **state)
{
    (void)state;
    for (int trial = 0; trial < 12; trial++) {
        struct job j = job_default();
        if (trial % 2)
            j.model = job_llama();
        j.model.layers = 3;
        j.alike = 1;
        j.poison = 1;
        j.world = 1 + trial % 3;
        j.accum = 1 + trial / 6;
        j.prefetch = trial % 4;
        j.recompute = (enum sherd_recompute)(trial / 2 % 3);
        j.steps = CHECK_MANY(6, 3);
        job_stages_agree(j, 2e-5);
    }
    struct job one = job_default(), apart;
    one.alike = 1;
    one.micro = 6;
    one.optim = "sgd";
    one.clip = 0;
    one.lr = 1;
    one.steps = 1;
    apart = one;
    apart.alike = 0;
    job_pass(&one);
    job_pass(&apart);
    assert_true(one.n_weights < apart.n_weights);
    job_free(&apart);
    for (int stage = 0; stage <= 3; stage++) {
        struct job j = job_like(&one);
        j.world = 3;
        j.micro = 2;
        j.stage = stage;
        job_pass(&j);
        job_close(&j, &one, 2e-5);
        job_free(&j);
    }
    job_free(&one);
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
            struct job j = job_like(&one);
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
    struct job one = job_default(), few = one;
    one.micro = 37;
    few.micro = 12;
    one.steps = few.steps = 2;
    job_pass(&one);
    job_pass(&few);
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
        assert_int_equal(j.stats[1].tokens, few.stats[1].tokens);
        job_close(&j, &few, 2e-5);
        job_free(&j);
    }
    job_free(&few);
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
            struct job j = job_like(&one);
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

/* What rank 1 has that rank 0 has not, and what both are told of it. */
struct odd {
    const char *setting, *freeze, *told; /* told NULL: it is each rank's own matter */
};

static void create_one(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    const struct odd *odd = ctx;
    struct job job = job_default();
    struct sherd_config config;
    struct sherd_model *model;
    struct sherd_engine *engine;
    char micro[32], seq[32];
    const char *set[] = { micro, seq, odd->setting };
    snprintf(micro, sizeof(micro), "batch.micro=%lld", (long long)job.micro);
    snprintf(seq, sizeof(seq), "batch.seq=%lld", (long long)job.seq);
    T_OK(sherd_config_parse(&config, "", 0, "test", set, rank == 1 && odd->setting ? 3 : 2, 0));
    T_OK(sherd_model_build(&model, &job.model));
    if (rank == 1 && odd->freeze)
        T_OK(model_freeze(model, odd->freeze));
    int st = sherd_engine_create(&engine, &(struct sherd_engine_desc){ &config, model, dev, comm });
    if (odd->told)
        T_FAILS(st, SHERD_ECONFIG, odd->told);
    else
        T_OK(st);
    sherd_engine_destroy(engine);
    sherd_model_destroy(model);
    sherd_config_free(&config);
}

/* One setting of every section that all ranks must have alike, and two that they need not. */
static void ranks_that_differ_are_told(void **state)
{
    static const char settings[] = "has other settings than rank";
    static struct odd odds[] = {
        { NULL, NULL, NULL },
        { "run.dir=elsewhere", NULL, NULL },
        { "log.every=3", NULL, NULL },
        { "run.seed=2", NULL, settings },
        { "run.deterministic=true", NULL, settings },
        { "shard.prefetch=2", NULL, settings },
        { "dtype.loss_scale=8", NULL, settings },
        { "batch.accum=2", NULL, settings },
        { "optim.beta2=0.99", NULL, settings },
        { "optim.name=sgd", NULL, settings },
        { "schedule.kind=linear", NULL, settings },
        { "train.steps=7", NULL, settings },
        { "check.replicas=5", NULL, settings },
        { NULL, "transformer.h.0.ln_1.bias", "has another model than rank" },
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(odds); i++)
        t_ranks(2, T_THREADS, create_one, &odds[i]);
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
                ASSERT_OK(sherd_plan_make(&plan, &c, model, j.world, 1));
                assert_memory_equal(&plan.memory, &j.memory, sizeof(plan.memory));
                assert_int_equal(j.engine_bytes, sherd_memory_total(&plan.memory));
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

/* Bytes of the tensors of each unit: 0 the embedding, the last one the norm and the head, blocks between. */
static double unit_bytes(const struct sherd_model *model, double bytes[8], int *n_units)
{
    const struct sherd_model_spec *spec = sherd_model_spec_of(model);
    double all = 0;
    *n_units = spec->n_units;
    for (int u = 0; u < spec->n_units; u++) {
        bytes[u] = 0;
        for (int p = 0; p < spec->units[u].n_params; p++)
            bytes[u] += 4.0 * (double)model_param_elems(&spec->units[u].params[p]);
        all += bytes[u];
    }
    return all;
}

/* Within the padding that rounds units up to slices. */
static void bytes_are(const struct job *j, enum sherd_collective kind, double least, double most)
{
    double scalars = kind == SHERD_ALL_GATHER ? 6.0 * sizeof(double) * (j->world - 1) : 0;
    double got = (double)j->sent.bytes[kind] / j->steps - scalars, part = (j->world - 1.0) / j->world;
    if (!(got >= least * part * 0.999 && got <= most * part * 1.05))
        fail_msg("stage %d, %d ranks, %lld micro-batches: %g bytes of collective %d, not %g to %g", j->stage,
            j->world, (long long)j->accum, got, (int)kind, least * part, most * part);
}

/* What a rank sends in a step, as README.md says it: 2 P (W-1)/W up to stage 2, 3 P (W-1)/W in stage 3 less
 * what needs not be gathered twice; only stages 2 and 3 send gradients with every micro-batch. And one
 * collective for each unit, however many micro-batches a step has where they are added up first. */
static void bytes_sent_are_what_is_promised(void **state)
{
    (void)state;
    for (int world = 2; world <= 4; world++)
        for (int accum = 1; accum <= 3; accum += 2)
            for (int stage = 0; stage <= 3; stage++) {
                struct job j = job_default();
                struct sherd_model *model;
                double unit[8];
                int n;
                j.model = job_llama();
                j.model.width = 96; /* padding is little beside it */
                j.world = world;
                j.stage = stage;
                j.accum = accum;
                job_pass(&j);
                ASSERT_OK(sherd_model_build(&model, &j.model));
                double p = unit_bytes(model, unit, &n), each = stage >= 2 ? accum : 1;
                bytes_are(&j, SHERD_ALL_REDUCE, stage == 0 ? 2 * p : 0, stage == 0 ? 2 * p : 0);
                bytes_are(&j, SHERD_REDUCE_SCATTER, stage ? each * p : 0, stage ? each * p : 0);
                double twice = p - unit[0] - unit[n - 1] - unit[n - 2];
                double least = stage == 3 ? accum * (p + twice) : stage ? p : 0;
                bytes_are(&j, SHERD_ALL_GATHER, least, stage == 3 ? accum * 2 * p : least);
                uint64_t sums = (uint64_t)(n * j.steps) * (uint64_t)each;
                assert_int_equal(j.sent.calls[stage ? SHERD_REDUCE_SCATTER : SHERD_ALL_REDUCE], sums);
                sherd_model_destroy(model);
                job_free(&j);
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
        j.lr = 1e6;
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
        cmocka_unit_test(stages_agree_for_llama_and_sgd),
        cmocka_unit_test(stages_agree_where_blocks_share_weights),
        cmocka_unit_test(worlds_agree_closely),
        cmocka_unit_test(splits_agree_closely),
        cmocka_unit_test(batches_that_do_not_divide),
        cmocka_unit_test(clipping_is_global),
        cmocka_unit_test(every_row_of_a_tied_table_learns),
        cmocka_unit_test(frozen_tensors_stay_and_the_rest_agrees),
        cmocka_unit_test(ranks_that_differ_are_told),
        cmocka_unit_test(freezing_everything_is_refused),
        cmocka_unit_test(memory_and_bytes_are_what_was_planned),
        cmocka_unit_test(bytes_sent_are_what_is_promised),
        cmocka_unit_test(more_micro_batches_than_planned_are_refused),
        cmocka_unit_test(a_step_that_is_not_finite_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
