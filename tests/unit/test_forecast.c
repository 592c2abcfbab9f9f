/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Forecasts against formulas: on machines where one thing alone costs time, a step takes what that thing does
 * on paper. Device files and the fit of a link.
 */
#include "tests/check.h"

#include <math.h>
#include <string.h>

#include <sherd/engine.h>
#include <sherd/forecast.h>

#define FAST 1e29
#define GPUS 4

static const char *const settings[] = { "model.family=llama", "model.vocab=96", "model.width=32",
    "model.layers=3", "model.heads=4", "model.kv_heads=2", "model.mlp_width=64", "model.context=16",
    "model.tied=false", "batch.seq=16", "batch.micro=2", "batch.global=24", "train.steps=1",
    "schedule.warmup=0", "data.train=[x]" };

static struct sherd_machine machine(void)
{
    struct sherd_machine m = { .name = "paper",
        .kind = "cpu",
        .memory = 1 << 30,
        .matmul = { { 1, FAST } },
        .n_matmul = 1,
        .attention_forward = FAST,
        .attention_backward = FAST,
        .memory_rate = FAST,
        .gpus = GPUS };
    for (int l = 0; l < SHERD_LINKS; l++)
        for (int k = 0; k < 3; k++)
            m.link[l][k] = (struct sherd_link_fit){ .rate = FAST };
    return m;
}

static void near(double got, double want)
{
    if (!(fabs(got - want) <= 1e-9 * fabs(want)))
        fail_msg("%.12g, wanted %.12g", got, want);
}

struct trial {
    struct sherd_config config;
    struct sherd_model *model;
    struct sherd_plan plan;
    struct sherd_forecast got;
};

static void configure(struct trial *t, int stage, int world)
{
    ASSERT_OK(sherd_config_parse(&t->config, "", 0, "paper", settings, (int)ARRAY_LEN(settings), world));
    t->config.shard.stage = stage;
}

/* By the configuration as it is. */
static void compute(struct trial *t, const struct sherd_machine *m, struct sherd_place place)
{
    ASSERT_OK(sherd_config_model(&t->model, &t->config));
    ASSERT_OK(sherd_plan_make(&t->plan, &t->config, t->model, place.gpus * place.hosts, place.hosts));
    ASSERT_OK(sherd_forecast_make(&t->got, &t->config, t->model, m, &place));
}

static void forecast(struct trial *t, const struct sherd_machine *m, int stage, struct sherd_place place)
{
    configure(t, stage, place.gpus * place.hosts);
    compute(t, m, place);
}

static void finish(struct trial *t)
{
    sherd_plan_free(&t->plan);
    sherd_model_destroy(t->model);
    sherd_config_free(&t->config);
}

/* Of a token: three products, forward and two backward, with every weight of a dense layer. */
static double matmul_flops(void)
{
    double qkv = 32 * (4 + 2 * 2) * 8, o = 32 * 32, mlp = 3 * 32 * 64, head = 96 * 32;
    return 3 * 2 * (3 * (qkv + o + mlp) + head);
}

/* Of a sequence of 16 tokens: two products forward and four backward over the causal half, 3 layers of 4
 * heads of 8. */
static double attention_flops(void)
{
    return 6.0 * 2 * 3 * 4 * 8 * (16 * 17 / 2);
}

/* All operations at one rate: a step is the operations of its tokens. */
static void arithmetic(void **state)
{
    (void)state;
    struct sherd_machine m = machine();
    m.matmul[0].rate = m.attention_forward = m.attention_backward = 1e9;
    for (int stage = 0; stage < SHERD_STAGES; stage++) {
        struct trial t;
        forecast(&t, &m, stage, (struct sherd_place){ GPUS, 1 });
        double tokens = (double)(t.config.batch.micro * t.config.batch.accum * t.config.batch.seq);
        double flops = matmul_flops() * tokens + attention_flops() * tokens / 16;
        near(t.got.step, flops / 1e9);
        near(t.got.compute, t.got.step);
        near(t.got.flops, t.plan.flops * tokens / t.got.step);
        near(t.got.tokens_per_second, tokens * GPUS / t.got.step);
        assert_int_equal(t.config.batch.accum, 24 / 2 / GPUS);
        finish(&t);
    }
}

/* Links alone: a step is the bytes that the plan says are sent, over the rate; and so many latencies as there
 * are collectives. */
static void wires(void **state)
{
    (void)state;
    for (int stage = 0; stage < SHERD_STAGES; stage++)
        for (int nodes = 1; nodes <= 2; nodes++) {
            struct sherd_machine m = machine();
            struct sherd_place place = { GPUS / nodes, nodes };
            struct trial t;
            double sent = 0;
            for (int k = 0; k < 3; k++)
                m.link[nodes > 1][k].rate = 1e6;
            forecast(&t, &m, stage, place);
            for (int k = 0; k < SHERD_COLLECTIVES; k++)
                sent += (double)t.plan.sent[k];
            sent += 2 * sizeof(double) * (GPUS - 1); /* the sums of loss and norm */
            near(t.got.gather + t.got.reduce, sent / 1e6 / (nodes > 1 ? place.gpus : 1));
            near(t.got.step, t.got.gather + t.got.reduce);
            finish(&t);
        }
}

/* The optimizer alone, bf16 weights and AdamW: 30 bytes an element, 20 where masters are split and state is
 * short. */
static void updates(void **state)
{
    (void)state;
    struct sherd_machine m = machine();
    struct sherd_place place = { GPUS, 1 };
    struct trial t;
    m.memory_rate = 1e9;
    forecast(&t, &m, 3, place);
    t.config.dtype.param = SHERD_BF16;
    ASSERT_OK(sherd_forecast_make(&t.got, &t.config, t.model, &m, &place));
    double elems = (double)t.plan.memory.state / 8; /* padded: two floats for each */
    assert_true(elems >= (double)t.plan.params / GPUS);
    near(t.got.update, 30e-9 * elems);
    t.config.dtype.master = SHERD_MASTER_SPLIT;
    t.config.dtype.state = SHERD_BF16;
    ASSERT_OK(sherd_forecast_make(&t.got, &t.config, t.model, &m, &place));
    near(t.got.update, 20e-9 * elems);
    finish(&t);
}

/* What is hidden, and what recomputing costs. */
static void overlap(void **state)
{
    (void)state;
    struct sherd_machine m = machine();
    struct trial t;
    m.matmul[0].rate = m.attention_forward = m.attention_backward = 1e9;
    forecast(&t, &m, 3, (struct sherd_place){ GPUS, 1 });
    double bare = t.got.step;
    t.config.train.recompute = SHERD_RECOMPUTE_BLOCK;
    ASSERT_OK(sherd_forecast_make(&t.got, &t.config, t.model, &m, &(struct sherd_place){ GPUS, 1 }));
    assert_true(t.got.step > 1.1 * bare && t.got.step < 4.0 / 3 * bare);
    finish(&t);
    for (int k = 0; k < 3; k++)
        m.link[SHERD_LINK_HOST][k].rate = 2e8;
    forecast(&t, &m, 3, (struct sherd_place){ GPUS, 1 });
    assert_true(t.got.exposed > 0 && t.got.exposed < t.got.gather + t.got.reduce);
    near(t.got.step, t.got.compute + t.got.exposed + t.got.lost);
    double exposed = t.got.exposed;
    finish(&t);
    for (int k = 0; k < 3; k++)
        m.link[SHERD_LINK_HOST][k].beside = 0.25;
    forecast(&t, &m, 3, (struct sherd_place){ GPUS, 1 });
    near(t.got.lost, 0.25 * (t.got.gather + t.got.reduce));
    assert_true(t.got.exposed < exposed);
    finish(&t);
}

/* Reductions alone, of two units that are large enough to land and some that are not; `copy`: by copy
 * engines. */
static double reductions(struct sherd_machine *m, int copy, uint64_t *landing)
{
    struct trial t;
    strcpy(m->kind, "cuda");
    configure(&t, 3, GPUS);
    t.config.run.device = "cuda";
    t.config.model.vocab = 40000;
    t.config.shard.reduce = copy ? SHERD_REDUCE_BY_COPY : SHERD_REDUCE_BY_KERNEL;
    compute(&t, m, (struct sherd_place){ GPUS, 1 });
    *landing = t.plan.memory.landing * (uint64_t)t.config.batch.accum;
    finish(&t);
    return t.got.reduce;
}

/* Parts come at the rate of a gather; the own one is read and written, all are read and the sum written. */
static void landing(void **state)
{
    (void)state;
    uint64_t none, largest;
    struct sherd_machine m = machine();
    m.link[SHERD_LINK_HOST][SHERD_ALL_GATHER].rate = 1e6;
    double bytes = (reductions(&m, 1, &largest) - reductions(&m, 0, &none)) * 1e6 * GPUS / (GPUS - 1);
    assert_true(none == 0 && largest > 0);
    assert_true(
        bytes > 1.9 * (double)largest && bytes < 2 * (double)largest); /* the head has a norm besides */
    m.link[SHERD_LINK_HOST][SHERD_REDUCE_SCATTER].rate = 1e6;
    near(reductions(&m, 1, &largest), reductions(&m, 0, &none));
    m = machine();
    m.memory_rate = 1e9;
    near(reductions(&m, 1, &largest), (2 + GPUS + 1) * bytes / GPUS / 1e9);
}

static void collectives(void **state)
{
    (void)state;
    struct sherd_machine m = machine();
    m.link[SHERD_LINK_HOST][SHERD_ALL_GATHER] = (struct sherd_link_fit){ 1e-5, 2e-6, 1e9, 0 };
    m.link[SHERD_LINK_HOST][SHERD_ALL_REDUCE] = (struct sherd_link_fit){ 1e-5, 2e-6, 1e9, 0 };
    m.link[SHERD_LINK_NETWORK][SHERD_ALL_GATHER] = (struct sherd_link_fit){ 3e-5, 5e-6, 2e8, 0 };
    near(sherd_collective_seconds(&m, &(struct sherd_place){ 4, 1 }, SHERD_ALL_GATHER, 8e6),
        1e-5 + 3 * 2e-6 + 0.75 * 8e6 / 1e9);
    near(sherd_collective_seconds(&m, &(struct sherd_place){ 4, 1 }, SHERD_ALL_REDUCE, 8e6),
        1e-5 + 6 * 2e-6 + 1.5 * 8e6 / 1e9);
    near(sherd_collective_seconds(&m, &(struct sherd_place){ 2, 3 }, SHERD_ALL_GATHER, 6e6),
        3e-5 + 2 * 5e-6 + 3 * 2e-6 + 5e6 / 4e8);
    /* eight cards of a node are faster than its own links: these are the bound */
    near(sherd_collective_seconds(&m, &(struct sherd_place){ 8, 2 }, SHERD_ALL_GATHER, 16e6),
        3e-5 + 5e-6 + 14 * 2e-6 + 15e6 / 1e9);
    assert_true(sherd_collective_seconds(&m, &(struct sherd_place){ 1, 1 }, SHERD_ALL_GATHER, 1e6) == 0);

    const double bytes[] = { 1e3, 1e5, 1e7 };
    double seconds[3];
    struct sherd_link_fit fit;
    for (int i = 0; i < 3; i++)
        seconds[i] = 2e-5 + bytes[i] / 3e9;
    ASSERT_OK(sherd_link_fit(&fit, bytes, seconds, 3));
    near(fit.start, 2e-5);
    near(fit.rate, 3e9);
    assert_int_equal(sherd_link_fit(&fit, bytes, seconds, 1), SHERD_EINVAL);
    assert_int_equal(sherd_link_fit(&fit, (double[]){ 5, 5 }, seconds, 2), SHERD_EINVAL);
}

#define HEAD                                                                                                 \
    "{\"sherd_device\": 1, \"name\": \"x\", \"kind\": \"cpu\", \"memory\": 10, \"library_bytes\": 1, "       \
    "\"gpus\": 2, "
#define RATES                                                                                                \
    "\"attention_forward\": 1, \"attention_backward\": 2, \"memory_rate\": 3, \"launch\": 0, "               \
    "\"beside_update\": 0"

static void refused(const char *text, const char *why)
{
    struct sherd_machine m;
    assert_int_equal(sherd_machine_parse(&m, text, strlen(text), "dev.json"), SHERD_EFORMAT);
    assert_true(strncmp(sherd_error(), "dev.json", 8) == 0);
    if (!strstr(sherd_error(), why))
        fail_msg("'%s' does not say '%s'", sherd_error(), why);
}

static void files(void **state)
{
    (void)state;
    struct sherd_machine m;
    const char *good =
        HEAD "\"matmul\": [{\"flops\": 1, \"rate\": 5}, {\"flops\": 2, \"rate\": 6}], " RATES "}";
    ASSERT_OK(sherd_machine_parse(&m, good, strlen(good), "dev.json"));
    assert_string_equal(m.name, "x");
    assert_true(m.memory == 10 && m.n_matmul == 2 && m.matmul[1].rate == 6 && m.attention_backward == 2);
    assert_true(m.link[SHERD_LINK_HOST][0].rate == 0);
    refused("{}", "sherd_device");
    refused("{\"sherd_device\": 2}", "sherd_device");
    refused(HEAD "\"matmul\": [], " RATES "}", "classes");
    refused(HEAD "\"matmul\": [1], " RATES "}", "matmul[0]");
    refused(HEAD "\"matmul\": [{\"flops\": 1, \"rate\": 0}], " RATES "}", "'rate' is 0");
    refused(
        HEAD "\"matmul\": [{\"flops\": 2, \"rate\": 1}, {\"flops\": 2, \"rate\": 1}], " RATES "}", "rise");
    refused(HEAD "\"matmul\": [{\"flops\": 1, \"rate\": 5}], " RATES ", \"node\": 3}", "'node'");
    refused(HEAD "\"matmul\": [{\"flops\": 1, \"rate\": 5}], " RATES ", \"network\": {}}", "all_gather");
    /* without links there is one device to plan for */
    struct sherd_config c;
    struct sherd_model *model;
    struct sherd_forecast f;
    ASSERT_OK(sherd_config_parse(&c, "", 0, "paper", settings, (int)ARRAY_LEN(settings), 2));
    ASSERT_OK(sherd_config_model(&model, &c));
    assert_int_equal(sherd_forecast_make(&f, &c, model, &m, &(struct sherd_place){ 2, 1 }), SHERD_ECONFIG);
    assert_non_null(strstr(sherd_error(), "'node'"));
    assert_int_equal(sherd_forecast_make(&f, &c, model, &m, &(struct sherd_place){ 1, 2 }), SHERD_ECONFIG);
    assert_non_null(strstr(sherd_error(), "'network'"));
    sherd_model_destroy(model);
    sherd_config_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arithmetic),
        cmocka_unit_test(wires),
        cmocka_unit_test(updates),
        cmocka_unit_test(overlap),
        cmocka_unit_test(landing),
        cmocka_unit_test(collectives),
        cmocka_unit_test(files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
