/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Plans without a device: a higher stage takes less and more ranks less of it, what moves does not grow with
 * the layers; where reduce-scatters are given memory for the parts of other ranks, and how much; what is left
 * where nothing is trained.
 */
#include "tests/check.h"

#include <math.h>
#include <stdio.h>

#include <sherd/engine.h>

#include "runtime/plan.h"

/* Elements of the head and its norm, the largest unit. */
#define LARGEST (4096 * 512 + 512)

struct point {
    const char *device, *reduce;
    int stage, world, hosts;
    uint64_t landing; /* wanted */
};

static void plan_of(struct sherd_plan *out, const struct point *at, const char *wire)
{
    char device[64], reduce[64], stage[64], type[64];
    const char *const set[] = { device, reduce, stage, type, "dtype.param=bf16", "model.vocab=4096",
        "model.width=512", "model.layers=1", "model.mlp_width=32" };
    struct sherd_config c;
    struct sherd_model *model;
    snprintf(device, sizeof(device), "run.device=%s", at->device);
    snprintf(reduce, sizeof(reduce), "shard.reduce=%s", at->reduce);
    snprintf(stage, sizeof(stage), "shard.stage=%d", at->stage);
    snprintf(type, sizeof(type), "dtype.reduce=%s", wire);
    ASSERT_OK(sherd_config_parse(&c, "", 0, "test", set, (int)ARRAY_LEN(set), at->world));
    ASSERT_OK(sherd_config_model(&model, &c));
    ASSERT_OK(sherd_plan_make(out, &c, model, at->world, at->hosts));
    sherd_model_destroy(model);
    sherd_config_free(&c);
}

static uint64_t rest(const struct sherd_plan *p)
{
    return sherd_memory_total(&p->memory) - p->memory.landing;
}

static void landing_memory_is_that_of_the_largest_unit(void **state)
{
    (void)state;
    static const struct point points[] = {
        { "cuda", "copy", 0, 2, 1, 0 }, /* sums are all-reduces */
        { "cuda", "copy", 1, 2, 1, LARGEST },
        { "cuda", "copy", 2, 2, 1, LARGEST },
        { "cuda", "copy", 3, 2, 1, LARGEST },
        { "cuda", "copy", 3, 4, 1, LARGEST },
        { "cuda", "copy", 3, 1, 1, 0 },
        { "cuda", "copy", 3, 4, 2, 0 },
        { "cuda", "copy", 3, 16, 1, 0 }, /* slices of 512 KiB at most */
        { "cuda", "kernel", 3, 2, 1, 0 },
        { "cpu", "copy", 3, 2, 1, 0 },
    };
    for (size_t i = 0; i < ARRAY_LEN(points); i++)
        for (int half = 0; half < 2; half++) {
            struct sherd_plan p, without;
            struct point kernel = points[i];
            kernel.reduce = "kernel";
            plan_of(&p, &points[i], half ? "bf16" : "f32");
            plan_of(&without, &kernel, half ? "bf16" : "f32");
            if (p.memory.landing != points[i].landing * (half ? 2 : 4))
                fail_msg("point %zu: %llu bytes", i, (unsigned long long)p.memory.landing);
            assert_int_equal(rest(&p), rest(&without));
            sherd_plan_free(&p);
            sherd_plan_free(&without);
        }
}

/* A llama of 45 million parameters, or one with more layers. */
static struct sherd_memory memory_of(int stage, int world, int layers, int accum)
{
    char set_stage[64], set_layers[64], set_accum[64];
    const char *const set[] = { set_stage, set_layers, set_accum, "model.width=512", "model.heads=8",
        "model.vocab=20000", "batch.micro=2", "batch.seq=64" };
    struct sherd_config c;
    struct sherd_model *model;
    struct sherd_plan p;
    snprintf(set_stage, sizeof(set_stage), "shard.stage=%d", stage);
    snprintf(set_layers, sizeof(set_layers), "model.layers=%d", layers);
    snprintf(set_accum, sizeof(set_accum), "batch.accum=%d", accum);
    ASSERT_OK(sherd_config_parse(&c, "", 0, "test", set, (int)ARRAY_LEN(set), world));
    ASSERT_OK(sherd_config_model(&model, &c));
    ASSERT_OK(sherd_plan_make(&p, &c, model, world, 1));
    struct sherd_memory m = p.memory;
    sherd_plan_free(&p);
    sherd_model_destroy(model);
    sherd_config_free(&c);
    return m;
}

static int is_about(uint64_t got, uint64_t want)
{
    return got >= want && got <= want + want / 100;
}

static void a_higher_stage_takes_less(void **state)
{
    (void)state;
    for (int world = 2; world <= 16; world *= 2)
        for (int accum = 1; accum <= 2; accum++) {
            struct sherd_memory before = memory_of(0, world, 8, accum), one = memory_of(0, 1, 8, accum);
            assert_true(
                is_about(sherd_memory_total(&before), sherd_memory_total(&one))); /* stage 0 shards nothing */
            for (int stage = 1; stage <= 3; stage++) {
                struct sherd_memory m = memory_of(stage, world, 8, accum);
                if (sherd_memory_total(&m) >= sherd_memory_total(&before))
                    fail_msg("%d ranks: stage %d takes %llu bytes, the one below %llu", world, stage,
                        (unsigned long long)sherd_memory_total(&m),
                        (unsigned long long)sherd_memory_total(&before));
                assert_true(is_about(m.state, one.state / (uint64_t)world));
                assert_true(is_about(m.param, one.param / (stage == 3 ? (uint64_t)world : 1)));
                if (accum == 2 && stage >= 2)
                    assert_true(is_about(m.grad, one.param / (uint64_t)world)); /* floats, too */
                before = m;
            }
        }
}

/* Gathered weights and gradients under way are those of a few layers, however many there are; but for whole
 * gradients, which stages 0 and 1 keep of all. */
static void what_moves_does_not_grow_with_the_layers(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        struct sherd_memory few = memory_of(stage, 4, 4, 1), many = memory_of(stage, 4, 40, 1);
        assert_int_equal(few.slot, many.slot);
        assert_true(stage < 2 ? many.partial > 2 * few.partial : many.partial == few.partial);
        assert_int_equal(few.scratch, many.scratch);
        assert_true((few.slot > 0) == (stage == 3));
        assert_true(many.param > 2 * few.param);
    }
}

/* Without a backward a layer reads one place and writes another, and nothing is kept for later. */
static void layers_take_turns_where_nothing_is_trained(void **state)
{
    (void)state;
    static const char *const set[] = { "model.freeze=[\"*\"]", "model.layers=5", "batch.micro=2" };
    struct sherd_config c;
    struct sherd_model *model;
    struct plan p;
    size_t saved = 0;
    ASSERT_OK(sherd_config_parse(&c, "", 0, "test", set, (int)ARRAY_LEN(set), 1));
    ASSERT_OK(sherd_config_model(&model, &c));
    ASSERT_OK(plan_init(&p, &c, model, "cpu", 1, 1));
    for (int l = 0; l < p.spec->n_layers; l++) {
        const struct plan_layer *pl = &p.layers[l];
        size_t bytes = (size_t)(p.batch * p.seq * pl->sizes.out_width) * sherd_dtype_bytes(p.type);
        assert_true(pl->y + bytes <= p.memory.activation);
        if (l > 0)
            assert_true(pl->y != p.layers[l - 1].y);
        assert_int_equal(pl->saved, 0);
        assert_true(pl->sizes.saved_bytes <= p.memory.saved);
        saved = MAX(saved, pl->sizes.saved_bytes);
    }
    assert_true(saved > 0 && p.memory.saved < saved + 256);
    assert_int_equal(p.memory.activation, 2 * p.batch * p.seq * c.model.width * (int64_t)sizeof(float));
    assert_int_equal(p.memory.grad + p.memory.partial + p.memory.master + p.memory.state, 0);
    plan_finish(&p);
    sherd_model_destroy(model);
    sherd_config_free(&c);
}

static void hosts_are_checked(void **state)
{
    (void)state;
    struct sherd_config c;
    struct sherd_model *model;
    struct sherd_plan p;
    ASSERT_OK(sherd_config_default(&c));
    ASSERT_OK(sherd_config_model(&model, &c));
    ASSERT_FAILS(sherd_plan_make(&p, &c, model, 2, 0), SHERD_EINVAL, "0 hosts");
    sherd_model_destroy(model);
    sherd_config_free(&c);
}

/* A program fills in fields by itself, past all that is looked at in a file. */
static void fields_of_a_program_are_checked(void **state)
{
    (void)state;
    struct sherd_config c, empty = { 0 };
    struct sherd_model *model;
    struct sherd_plan p;
    ASSERT_OK(sherd_config_default(&c));
    ASSERT_OK(sherd_config_model(&model, &c));
    ASSERT_FAILS(sherd_plan_make(&p, NULL, model, 1, 1), SHERD_EINVAL, "the config is NULL");
    ASSERT_FAILS(sherd_plan_make(&p, &c, NULL, 1, 1), SHERD_EINVAL, "the model is NULL");
    ASSERT_FAILS(sherd_plan_make(&p, &empty, model, 1, 1), SHERD_ECONFIG, "begin with sherd_config_default");
    c.batch.micro = 1;
#define SPOIL(field, wrong, message)                                                                         \
    do {                                                                                                     \
        struct sherd_config bad = c;                                                                         \
        bad.field = wrong;                                                                                   \
        ASSERT_FAILS(sherd_plan_make(&p, &bad, model, 1, 1), SHERD_ECONFIG, message);                        \
    } while (0)
    SPOIL(shard.stage, 4, "shard.stage: must be a whole number from 0 to 3, not 4");
    SPOIL(optim.name, "lion", "optim.name: must be one of adamw, sgd, not lion");
    SPOIL(optim.lr, -1, "optim.lr: must be a number from 0 to 1000000, not -1");
    SPOIL(optim.beta2, 1.5, "optim.beta2: must be");
    SPOIL(optim.clip, NAN, "optim.clip: must be");
    SPOIL(dtype.param, SHERD_I32, "dtype.param: must be one of f32, bf16, f16, not 5");
    SPOIL(dtype.reduce, SHERD_BF16, "set dtype.param to bf16 too");
    SPOIL(schedule.kind, SHERD_LR_WSD, "wsd ends in a fall");
    SPOIL(batch.micro, -1, "batch.micro: must be");
#undef SPOIL
    ASSERT_OK(sherd_plan_make(&p, &c, model, 1, 1));
    sherd_plan_free(&p);
    sherd_model_destroy(model);
    sherd_config_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_higher_stage_takes_less),
        cmocka_unit_test(what_moves_does_not_grow_with_the_layers),
        cmocka_unit_test(landing_memory_is_that_of_the_largest_unit),
        cmocka_unit_test(layers_take_turns_where_nothing_is_trained),
        cmocka_unit_test(hosts_are_checked),
        cmocka_unit_test(fields_of_a_program_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
