/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Evaluation: ranks that bring different numbers of batches, none at all, and batches cut short give the loss
 * of one rank that has all of them, at every stage, and change nothing of the training around it.
 */
#include "tests/t.h"

#include <math.h>
#include <string.h>

#include <sherd/sherd.h>

#include "tests/ranks/job.h"

#define MICRO 2
#define SEQ 8
#define BATCHES 7 /* over all ranks; the last has one row */
#define VOCAB 101

struct eval {
    int stage, to_one; /* to_one: the last rank has all of them */
    double loss[2], next;
    int64_t tokens[2];
};

struct rows {
    int32_t tokens[BATCHES][MICRO * SEQ], targets[BATCHES][MICRO * SEQ];
};

/* Batch k is row 2 k and 2 k + 1 of the common stream of a step. */
static int take(
    const struct eval *c, struct rows *rows, struct sherd_batch *out, int64_t step, int rank, int world)
{
    int n = 0;
    for (int k = 0; k < BATCHES; k++) {
        if (c->to_one ? rank != world - 1 : k % world != rank)
            continue;
        for (int i = 0; i < MICRO; i++)
            job_row(step, MICRO * k + i, SEQ, VOCAB, rows->tokens[n] + i * SEQ, rows->targets[n] + i * SEQ);
        out[n] = (struct sherd_batch){ rows->tokens[n], rows->targets[n], k == BATCHES - 1 ? 1 : MICRO };
        n++;
    }
    return n;
}

/* One step on two rows, of which rank 0 has one and the last rank the other. */
static void one_step(struct sherd_engine *e, int rank, int world, struct sherd_step_stats *stats)
{
    int32_t tokens[MICRO * SEQ], targets[MICRO * SEQ];
    int n = 0;
    for (int i = 0; i < MICRO; i++) {
        if (rank != (i ? world - 1 : 0))
            continue;
        job_row(9, i, SEQ, VOCAB, tokens + n * SEQ, targets + n * SEQ);
        n++;
    }
    struct sherd_batch micro = { tokens, targets, n };
    T_OK(sherd_engine_step(e, &micro, 1, stats));
}

static void evaluate(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    struct eval *c = ctx;
    struct job job = job_default();
    struct sherd_config config;
    struct sherd_model *model;
    struct sherd_engine *engine;
    struct sherd_batch batches[BATCHES];
    struct rows rows;
    struct sherd_step_stats stats;
    double loss;
    int64_t tokens;
    int world = sherd_comm_size(comm);
    float before[VOCAB * 24], after[VOCAB * 24];
    T_OK(sherd_config_default(&config));
    config.batch.micro = MICRO;
    config.batch.seq = SEQ;
    config.shard.stage = c->stage;
    config.shard.poison = 1;
    T_OK(sherd_model_build(&model, &job.model));
    T_OK(sherd_engine_create(&engine, &(struct sherd_engine_desc){ &config, model, dev, comm }));
    for (int turn = 0; turn < 2; turn++) {
        one_step(engine, rank, world, &stats);
        T_OK(sherd_engine_tensor(engine, "weight", "transformer.wte.weight", before, VOCAB * 24));
        int n = take(c, &rows, batches, turn, rank, world);
        T_OK(sherd_engine_eval(engine, batches, n, &loss, &tokens));
        T_OK(sherd_engine_tensor(engine, "weight", "transformer.wte.weight", after, VOCAB * 24));
        T_BITS(before, after, sizeof(before));
        if (rank == 0) {
            c->loss[turn] = loss;
            c->tokens[turn] = tokens;
        }
    }
    one_step(engine, rank, world, &stats);
    if (rank == 0)
        c->next = stats.loss;
    T_EQ(stats.step, 3);
    sherd_engine_destroy(engine);
    sherd_model_destroy(model);
    sherd_config_free(&config);
}

static void near(double a, double b)
{
    if (!(fabs(a - b) <= 2e-5 * fabs(b)))
        fail_msg("%.9g is not %.9g", a, b);
}

static void any_number_of_batches_a_rank(void **state)
{
    (void)state;
    struct eval one = { 0 };
    t_ranks(1, T_THREADS, evaluate, &one);
    assert_true(one.loss[0] > 4 && one.loss[0] < 6 && one.tokens[0] > 80 && one.tokens[0] < 13 * SEQ);
    assert_true(fabs(one.loss[1] - one.loss[0]) > 1e-3);
    for (int stage = 0; stage <= 3; stage++)
        for (int world = 1; world <= 8; world += 1 + world / 4)
            for (int to_one = 0; to_one < 2; to_one++) {
                struct eval c = { .stage = stage, .to_one = to_one };
                t_ranks(world, T_THREADS | T_ASYNC, evaluate, &c);
                for (int turn = 0; turn < 2; turn++) {
                    assert_int_equal(c.tokens[turn], one.tokens[turn]);
                    near(c.loss[turn], one.loss[turn]);
                }
                near(c.next, one.next);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_batches_a_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
