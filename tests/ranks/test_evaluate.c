/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * sherd_evaluate on the checkpoint of a run: what all ranks are told, what a rank takes of its device for it,
 * and a rank that fails alone.
 */
#include "tests/ranks/train.h"

#include <string.h>

#include <sherd/sherd.h>

#include "base/file.h"

struct evaluate {
    const char *settings[SETTINGS];
    int alone; /* rank 1 has other data to evaluate on */
    /* what came out */
    int status[WORLD];
    char error[WORLD][1024];
    struct sherd_evaluate_result result[WORLD];
    uint64_t bytes[WORLD];     /* most of the device that was held */
    struct sherd_memory train; /* of training with the same settings */
};

static void plan_training(struct evaluate *v, const struct sherd_config *config, int world)
{
    struct sherd_model *model;
    struct sherd_plan plan;
    T_OK(sherd_config_model(&model, config));
    T_OK(sherd_plan_make(&plan, config, model, world, 1));
    v->train = plan.memory;
    sherd_plan_free(&plan);
    sherd_model_destroy(model);
}

static void evaluate_rank(int rank, struct sherd_comm *comm, struct sherd_device *dev, void *ctx)
{
    struct evaluate *v = ctx;
    struct sherd_config config;
    struct sherd_device_counters before, after;
    char dir[256], val[256];
    const char *set[SETTINGS + 2] = { dir, val };
    int n = 2, world = sherd_comm_size(comm);
    snprintf(dir, sizeof(dir), "run.dir=%s/run", root);
    snprintf(val, sizeof(val), "data.val=%s/text%s", root, v->alone && rank == 1 ? "1" : "");
    for (int i = 0; i < SETTINGS && v->settings[i]; i++)
        set[n++] = v->settings[i];
    T_OK(sherd_config_parse(&config, train_config, strlen(train_config), "test", set, n, world));
    if (rank == 0)
        plan_training(v, &config, world);
    sherd_device_read(dev, &before); /* of the communicator */
    v->status[rank] = sherd_evaluate(
        &(struct sherd_evaluate_desc){ .config = &config, .device = dev, .comm = comm }, &v->result[rank]);
    snprintf(v->error[rank], sizeof(v->error[rank]), "%s", v->status[rank] ? sherd_error() : "");
    sherd_device_read(dev, &after);
    v->bytes[rank] = after.peak_bytes - before.bytes;
    T_EQ(after.bytes, before.bytes);
    sherd_config_free(&config);
}

static void evaluate(struct evaluate *v, int world)
{
    t_ranks(world, T_THREADS | T_ASYNC, evaluate_rank, v);
}

static void all_ranks_are_told_the_same(void **state)
{
    (void)state;
    struct evaluate first = { 0 };
    for (int stage = 0; stage <= 3; stage++) {
        char text[32];
        snprintf(text, sizeof(text), "shard.stage=%d", stage);
        struct evaluate v = { .settings = { text } };
        evaluate(&v, WORLD);
        for (int r = 0; r < WORLD; r++) {
            ASSERT_OK(v.status[r]);
            assert_string_equal(v.result[r].from, at("run/step-00000009"));
            assert_int_equal(v.result[r].step, 9);
            assert_true(v.result[r].loss > 2 && v.result[r].loss < 6);
            assert_memory_equal(&v.result[r].loss, &v.result[0].loss, sizeof(double));
            assert_int_equal(v.result[r].samples, 20 * 2 * WORLD); /* batch.micro of 2 */
            assert_int_equal(v.result[r].there, 1999 / 8);
            assert_int_equal(v.result[r].tokens, v.result[r].samples * 8);
        }
        if (stage == 0)
            first = v;
        assert_memory_equal(&v.result[0].loss, &first.result[0].loss, sizeof(double));
    }
}

/* Beside the weights there is what two layers make of a micro-batch, which more layers make no larger, and
 * what is gathered; no gradient, state or master, which would be as much as the weights each. */
static void it_takes_memory_for_the_weights_alone(void **state)
{
    (void)state;
    static const char *const types[] = { "dtype.param=f32", "dtype.param=bf16" };
    for (int trial = 0; trial < 8; trial++) {
        char stage[32];
        snprintf(stage, sizeof(stage), "shard.stage=%d", trial % 4);
        struct evaluate v = { .settings = { stage, types[trial / 4], "batch.micro=1", "batch.global=auto" } };
        evaluate(&v, WORLD);
        ASSERT_OK(v.status[0]);
        uint64_t held = v.train.param + v.train.slot, more = v.bytes[0] - held;
        assert_true(v.bytes[0] > v.train.param);
        if (more > held / 2)
            fail_msg("%s, %s: %llu bytes beside the %llu of the weights", stage, types[trial / 4],
                (unsigned long long)more, (unsigned long long)held);
    }
}

static void it_takes_what_two_layers_make(void **state)
{
    (void)state;
    struct train t = { .dir = "deep", .settings = { "model.layers=6", "train.steps=1", "shard.stage=0" } };
    uint64_t more[2];
    train(&t);
    ASSERT_OK(t.status[0]);
    for (int deep = 0; deep < 2; deep++) {
        char dir[256];
        snprintf(dir, sizeof(dir), "run.dir=%s/deep", root);
        struct evaluate v = { .settings = { "batch.micro=32", "batch.global=auto", "shard.stage=0",
                                  deep ? "model.layers=6" : "model.layers=2", deep ? dir : NULL } };
        evaluate(&v, WORLD);
        ASSERT_OK(v.status[0]);
        more[deep] = v.bytes[0] - v.train.param;
        assert_true(more[deep] > v.train.param); /* it is not for nothing that this is looked at */
    }
    assert_int_equal(more[0], more[1]);
}

static void other_data_on_a_rank_are_refused(void **state)
{
    (void)state;
    struct evaluate v = { .alone = 1 };
    char text[2000];
    memset(text, 'a', sizeof(text));
    ASSERT_OK(file_write_atomic(at("text1"), text, sizeof(text)));
    evaluate(&v, WORLD);
    assert_int_equal(v.status[1], SHERD_ECONFIG);
    assert_int_equal(v.status[0], SHERD_EPEER);
    assert_non_null(strstr(v.error[1], "data.val: as many tokens on rank 1 as on rank 0, but others"));
    assert_non_null(strstr(v.error[0], "data.val: as many tokens"));
}

static int enter(void **state)
{
    struct train t = { .dir = "run" };
    if (train_enter(state))
        return -1;
    train(&t);
    return t.status[0] | t.status[1];
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_ranks_are_told_the_same),
        cmocka_unit_test(it_takes_memory_for_the_weights_alone),
        cmocka_unit_test(it_takes_what_two_layers_make),
        cmocka_unit_test(other_data_on_a_rank_are_refused),
    };
    return cmocka_run_group_tests(tests, enter, train_leave);
}
