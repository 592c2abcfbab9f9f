/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Plans without a device: where reduce-scatters are given memory for the parts of other ranks, and how much.
 */
#include "tests/check.h"

#include <stdio.h>

#include <sherd/engine.h>

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
    uint64_t sum = 0;
#define XX(name, text) sum += p->memory.name;
    SHERD_REGIONS(XX)
#undef XX
    return sum - p->memory.landing;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(landing_memory_is_that_of_the_largest_unit),
        cmocka_unit_test(hosts_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
