/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The engine against PyTorch, in every stage and with the batch in one and in two micro-batches: logits, the
 * first gradients, losses and norms of ten AdamW steps with clipping, final weights.
 */
#include "tests/check.h"
#include "tests/golden/gold.h"

#include <math.h>

#include "base/mem.h"
#include "runtime/engine.h"

struct trial {
    struct gold gold;
    struct sherd_device *dev;
    struct sherd_model *model;
    struct sherd_config config;
    struct sherd_engine *engine;
};

static void near(const struct trial *t, const char *what, const char *name, double error, double limit)
{
    if (!(error <= limit))
        fail_msg("stage %d: %s of %s: relative error %.2e, allowed %.0e", (int)t->config.shard.stage, what,
            name, error, limit);
}

static void configure(struct trial *t, int stage, int64_t micro)
{
    struct sherd_config *c = &t->config;
    ASSERT_OK(sherd_config_default(c));
    c->shard.stage = stage;
    c->dtype.param = c->dtype.reduce = SHERD_F32;
    c->batch.micro = micro;
    c->batch.accum = t->gold.batch / micro;
    c->batch.global = t->gold.batch;
    c->batch.seq = t->gold.seq;
    c->optim.lr = gold_number(&t->gold, "lr");
    c->optim.beta1 = gold_number(&t->gold, "beta1");
    c->optim.beta2 = gold_number(&t->gold, "beta2");
    c->optim.eps = gold_number(&t->gold, "eps");
    c->optim.weight_decay = gold_number(&t->gold, "weight_decay");
    c->optim.clip = gold_number(&t->gold, "clip");
    c->schedule.kind = SHERD_LR_CONSTANT;
    c->schedule.warmup = 0;
    c->train.steps = t->gold.steps;
}

/* Puts the golden weights in place of the drawn ones, as loading a checkpoint would. */
static void set_weights(struct trial *t)
{
    struct sherd_engine *e = t->engine;
    const struct shard_layout *layout = &e->plan.layout;
    struct shard_view views[64];
    int n = store_views(&e->store, e->plan.optim->state_name, views, (int)ARRAY_LEN(views));
    assert_true(n <= (int)ARRAY_LEN(views));
    for (int i = 0; i < layout->n_tensors; i++) {
        const struct shard_tensor *tensor = &layout->tensors[i];
        float *values = gold_floats(&t->gold, "w/", tensor->name, tensor->elems);
        int found = 0;
        for (int k = 0; k < n; k++) {
            if (strcmp(views[k].what, "weight") != 0 || views[k].unit != tensor->unit ||
                views[k].segment != tensor->segment)
                continue;
            assert_true(views[k].first == 0 && views[k].type == SHERD_F32);
            ASSERT_OK(
                sherd_copy(e->compute, &(struct sherd_copy){ .dst = (float *)views[k].data + tensor->offset,
                                           .src = values,
                                           .bytes = (size_t)tensor->elems * sizeof(float) }));
            ASSERT_OK(sherd_queue_sync(e->compute));
            found++;
        }
        assert_int_equal(found, 1);
        mem_free(values);
    }
    ASSERT_OK(engine_spread(e));
}

static void open_trial(struct trial *t, const char *name, int stage, int64_t micro)
{
    *t = (struct trial){ 0 };
    gold_open(&t->gold, name);
    configure(t, stage, micro);
    ASSERT_OK(sherd_device_open(&t->dev, &(struct sherd_device_desc){ .name = "cpu", .threads = 1 }));
    ASSERT_OK(sherd_model_build(&t->model, &t->gold.config));
    ASSERT_OK(sherd_engine_create(&t->engine,
        &(struct sherd_engine_desc){ .config = &t->config, .model = t->model, .device = t->dev }));
    set_weights(t);
}

static void close_trial(struct trial *t)
{
    sherd_engine_destroy(t->engine);
    sherd_model_destroy(t->model);
    sherd_device_close(t->dev);
    sherd_config_free(&t->config);
    gold_close(&t->gold);
}

/* Micro-batch number `index` of a step. */
static struct sherd_batch batch_of(const struct trial *t, int64_t step, int64_t index)
{
    int64_t rows = t->gold.batch * t->gold.seq, all = t->gold.steps * rows;
    int64_t at = step * rows + index * t->config.batch.micro * t->gold.seq;
    const int32_t *tokens = gold_raw(&t->gold, "tokens", "I32", all);
    const int32_t *targets = gold_raw(&t->gold, "targets", "I32", all);
    return (
        struct sherd_batch){ .tokens = tokens + at, .targets = targets + at, .batch = t->config.batch.micro };
}

static void compare_logits(struct trial *t)
{
    int64_t micro = t->config.batch.micro, n = micro * t->gold.seq * t->gold.config.vocab;
    const float *want = gold_raw(&t->gold, "logits", "F32", n * t->config.batch.accum);
    float *got = mem_zalloc((size_t)n, sizeof(*got));
    for (int64_t i = 0; i < t->config.batch.accum; i++) {
        struct sherd_batch batch = batch_of(t, 0, i);
        ASSERT_OK(sherd_engine_logits(t->engine, &batch, got));
        near(t, "logits", t->gold.config.family, gold_error(got, want + i * n, n), 3e-6);
    }
    mem_free(got);
}

/* what "grad" against the first gradients; "weight" against the final weights, by how far they have moved. */
static void compare_tensors(struct trial *t, const char *what, double limit)
{
    const struct shard_layout *layout = &t->engine->plan.layout;
    int moves = strcmp(what, "weight") == 0;
    for (int i = 0; i < layout->n_tensors; i++) {
        const struct shard_tensor *tensor = &layout->tensors[i];
        float *got = mem_zalloc((size_t)tensor->elems, sizeof(*got));
        float *from = gold_floats(&t->gold, "w/", tensor->name, tensor->elems);
        float *want = gold_floats(&t->gold, moves ? "d/" : "g/", tensor->name, tensor->elems);
        ASSERT_OK(sherd_engine_tensor(t->engine, what, tensor->name, got, tensor->elems));
        for (int64_t k = 0; k < tensor->elems && moves; k++)
            got[k] -= from[k];
        near(t, what, tensor->name, gold_error(got, want, tensor->elems), limit);
        mem_free(got);
        mem_free(from);
        mem_free(want);
    }
}

static void train(struct trial *t)
{
    const double *loss = gold_raw(&t->gold, "loss", "F64", t->gold.steps);
    const double *norm = gold_raw(&t->gold, "norm", "F64", t->gold.steps);
    for (int64_t step = 0; step < t->gold.steps; step++) {
        struct sherd_batch micro[2];
        struct sherd_step_stats stats;
        for (int64_t i = 0; i < t->config.batch.accum; i++)
            micro[i] = batch_of(t, step, i);
        ASSERT_OK(sherd_engine_step(t->engine, micro, (int)t->config.batch.accum, &stats));
        near(t, "loss", t->gold.config.family, fabs(stats.loss / loss[step] - 1), 1e-5);
        near(t, "norm", t->gold.config.family, fabs(stats.grad_norm / norm[step] - 1), 1e-5);
        if (step == 0)
            compare_tensors(t, "grad", 1e-5);
    }
}

static void all_stages(void **state)
{
    for (int stage = 0; stage <= 3; stage++) {
        for (int64_t micro = 1; micro <= 2; micro++) {
            struct trial t;
            open_trial(&t, *state, stage, micro);
            assert_int_equal(t.gold.batch, 2);
            compare_logits(&t);
            train(&t);
            compare_tensors(&t, "weight", 1e-3); /* the file has them in F16 */
            close_trial(&t);
        }
    }
}

static char gpt2[] = "gpt2", llama[] = "llama", tied[] = "llama-tied", qwen2[] = "qwen2", qwen3[] = "qwen3";

int main(void)
{
    const struct CMUnitTest tests[] = {
        { "gpt2", all_stages, NULL, NULL, gpt2 },
        { "llama", all_stages, NULL, NULL, llama },
        { "llama-tied", all_stages, NULL, NULL, tied },
        { "qwen2", all_stages, NULL, NULL, qwen2 },
        { "qwen3", all_stages, NULL, NULL, qwen3 },
    };
    return cmocka_run_group_tests_name("golden engine", tests, NULL, NULL);
}
