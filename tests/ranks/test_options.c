/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Options that must not change a job, alone or at every stage: types, recomputing, how masters and states are
 * kept, overlap, and steps that are launched whole.
 */
#include "tests/check.h"

#include <math.h>

#include "tests/ranks/job.h"

static void stages_agree_in_bf16(void **state)
{
    (void)state;
    for (int w = 1; w <= 3; w++) {
        struct job j = job_default();
        j.world = w;
        j.param = SHERD_BF16;
        job_stages_agree(j, 0);
        j.reduce = SHERD_BF16;
        job_stages_agree(j, 0);
    }
}

static void stages_agree_in_f16(void **state)
{
    (void)state;
    for (int w = 1; w <= 3; w++) {
        struct job j = job_default();
        j.world = w;
        j.param = SHERD_F16;
        job_stages_agree(j, 0);
        j.reduce = SHERD_F16;
        job_stages_agree(j, 0);
    }
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
        none.steps = CHECK_MANY(4, 2);
        if (trial >= 8)
            none.model = job_llama();
        if (trial >= 16) { /* norms of q and k; an MLP narrower than q, k and v */
            none.model.family = "qwen3";
            none.model.mlp_width = 16;
        }
        none.param = trial % 3 ? SHERD_F32 : SHERD_BF16;
        job_pass(&none);
        uint64_t saved = none.memory.saved;
        for (int k = SHERD_RECOMPUTE_CHEAP; k <= SHERD_RECOMPUTE_BLOCK; k++) {
            struct job j = job_like(&none);
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
        whole.steps = CHECK_MANY(8, 3);
        whole.accum = 1 + trial % 2;
        whole.optim = trial % 3 ? "adamw" : "sgd";
        job_pass(&whole);
        struct job split = job_like(&whole);
        split.master = SHERD_MASTER_SPLIT;
        job_pass(&split);
        job_same_bits(&split, &whole);
        assert_int_equal(2 * split.memory.master, whole.memory.master);
        job_free(&split);
        job_free(&whole);
    }
}

/* Elements that are not what they were, and how far all went. */
static int64_t moved(const struct job *j, const struct job *start, double *way)
{
    int64_t n = 0;
    *way = 0;
    for (int64_t i = 0; i < j->n_weights; i++) {
        double d = (double)j->weights[i] - start->weights[i];
        n += d < 0 || d > 0;
        *way += d * d;
    }
    *way = sqrt(*way);
    return n;
}

/* Updates far below what bf16 tells apart add up in the masters, however these are kept. */
static void small_rates_move_bf16_weights(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        struct job f32 = job_default(), start;
        double way, want;
        f32.stage = stage;
        f32.world = 2;
        f32.lr = 6e-7;
        f32.weight_decay = 0;
        f32.steps = 20;
        start = f32;
        start.steps = 0;
        job_pass(&start);
        job_pass(&f32);
        int64_t n = moved(&f32, &start, &want);
        assert_true(n > f32.n_weights * 9 / 10);
        for (int split = 0; split <= 1; split++) {
            struct job j = job_like(&f32);
            j.param = SHERD_BF16;
            j.reduce = SHERD_BF16;
            j.master = split ? SHERD_MASTER_SPLIT : SHERD_MASTER_WHOLE;
            job_pass(&j);
            int64_t all = moved(&j, &start, &way);
            if (all * 100 < n * 95 || !(fabs(way - want) < 0.1 * want))
                fail_msg("stage %d, masters %s: %lld of %lld weights moved, by %g where f32 moves %g", stage,
                    split ? "split" : "whole", (long long)all, (long long)n, way, want);
            job_free(&j);
        }
        job_free(&f32);
        job_free(&start);
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
        f32.steps = CHECK_MANY(20, 8);
        f32.lr = 1e-3;
        f32.param = trial % 2 ? SHERD_BF16 : SHERD_F32;
        f32.master = trial == 3 ? SHERD_MASTER_SPLIT : SHERD_MASTER_WHOLE;
        f32.optim = trial == 2 ? "sgd" : "adamw";
        start = f32;
        start.steps = 0;
        job_pass(&start);
        job_pass(&f32);
        struct job j = job_like(&f32);
        j.state = SHERD_BF16;
        job_stages_agree(j, 0);
        job_pass(&j);
        assert_int_equal(2 * j.memory.state, f32.memory.state);
        double apart, way;
        moved(&j, &f32, &apart);
        moved(&f32, &start, &way);
        if (!(apart > 0 && apart / way < 0.05))
            fail_msg("trial %d: %.3g of the way apart", trial, apart / way);
        job_free(&j);
        job_free(&f32);
        job_free(&start);
    }
}

/* What is drawn to round them belongs to the element and the step: another world draws the same, so that runs
 * stay as close as their gradients are. */
static void bf16_states_do_not_depend_on_the_world(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        struct job f32 = job_default(), one;
        double rounded, apart;
        f32.micro = 24;
        f32.lr = 1e-3;
        f32.steps = 8;
        one = f32;
        one.state = SHERD_BF16;
        job_pass(&f32);
        job_pass(&one);
        moved(&one, &f32, &rounded);
        for (int world = 2; world <= 4; world++) {
            struct job j = job_like(&one);
            j.world = world;
            j.stage = stage;
            j.micro = 24 / world;
            job_pass(&j);
            moved(&j, &one, &apart);
            if (!(apart < 0.1 * rounded))
                fail_msg("stage %d, %d ranks: %.3g apart, where rounding makes %.3g", stage, world, apart,
                    rounded);
            job_free(&j);
        }
        job_free(&f32);
        job_free(&one);
    }
}

/* Nothing is trained below block 1: what comes before runs forward once. */
static void recomputing_below_frozen_layers(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        struct job none = job_default();
        none.model = job_llama();
        none.freeze = "model.*";
        none.model.tied = 0;
        none.stage = stage;
        none.world = 2;
        none.poison = 1;
        job_pass(&none);
        struct job block = job_like(&none);
        block.recompute = SHERD_RECOMPUTE_BLOCK;
        job_pass(&block);
        job_same_bits(&block, &none);
        job_free(&block);
        job_free(&none);
    }
}

static void overlap_prefetch_poison_and_delay_change_nothing(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        struct job plain = job_default();
        plain.stage = stage;
        plain.world = 2;
        plain.accum = 2;
        plain.steps = CHECK_MANY(4, 2);
        plain.overlap = 0;
        job_pass(&plain);
        for (int prefetch = 0; prefetch <= 3; prefetch++)
            for (int delay = 0; delay <= 300; delay += 300) {
                struct job j = job_like(&plain);
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
                    struct job j = job_like(&plain);
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

static void launches_count_the_step_alone(void **state)
{
    (void)state;
    struct job alone = job_default(), beside;
    alone.world = 2;
    alone.steps = 8;
    alone.graph = 1;
    beside = alone;
    beside.beside = 1;
    job_pass(&alone);
    job_pass(&beside);
    job_same_bits(&beside, &alone);
    assert_int_equal(beside.launches, 6);
    assert_int_equal(beside.ops, alone.ops);
    job_free(&alone);
    job_free(&beside);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_agree_in_bf16),
        cmocka_unit_test(stages_agree_in_f16),
        cmocka_unit_test(recomputing_changes_nothing),
        cmocka_unit_test(recomputing_below_frozen_layers),
        cmocka_unit_test(split_masters_change_nothing),
        cmocka_unit_test(small_rates_move_bf16_weights),
        cmocka_unit_test(bf16_states_agree),
        cmocka_unit_test(bf16_states_do_not_depend_on_the_world),
        cmocka_unit_test(overlap_prefetch_poison_and_delay_change_nothing),
        cmocka_unit_test(a_step_kept_as_one_piece_changes_nothing),
        cmocka_unit_test(launches_count_the_step_alone),
        cmocka_unit_test(gradients_rest_where_values_were),
        cmocka_unit_test(a_step_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
