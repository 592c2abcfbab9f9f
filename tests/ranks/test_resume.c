/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Stopping and going on: at the same world bit for bit, down to the bytes of the next checkpoint; at any
 * other world and stage with the same state; and what is merged is what was in memory.
 */
#include "tests/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "tests/folder.h"
#include "tests/ranks/job.h"

static char root[FOLDER_BYTES];

static struct arena paths;

#define path(...) in_root(arena_printf(&paths, __VA_ARGS__))
static const char *in_root(const char *name)
{
    return arena_printf(&paths, "%s/%s", root, name);
}

static void same_files(const char *a, const char *b)
{
    struct file_map x, y;
    ASSERT_OK(file_map(&x, a));
    ASSERT_OK(file_map(&y, b));
    if (x.bytes != y.bytes || memcmp(x.data, y.data, x.bytes))
        fail_msg("%s and %s differ", a, b);
    file_unmap(&x);
    file_unmap(&y);
}

/* Every file of weights and states of two step folders. */
static void same_state_files(const char *a, const char *b)
{
    char **names;
    int n, compared = 0;
    ASSERT_OK(file_list(&names, &n, a));
    for (int i = 0; i < n; i++) {
        char x[1024], y[1024];
        snprintf(x, sizeof(x), "%s/%s", a, names[i]);
        snprintf(y, sizeof(y), "%s/%s", b, names[i]);
        if (strcmp(names[i], "manifest.json")) {
            same_files(x, y);
            compared++;
        }
    }
    assert_true(compared >= 2);
    file_list_free(names, n);
}

static void merge(const char *from, const char *to)
{
    struct sherd_merge_result result;
    ASSERT_OK(sherd_merge(&(struct sherd_merge_desc){ .from = from, .to = to, .overwrite = 1 }, &result));
}

/* 20 steps without a stop, against 10 and 10 and, a second time, 5 and 5 and 10. */
static void a_resumed_run_is_the_same_run(void **state)
{
    (void)state;
    static const struct {
        int stage, world, accum;
        enum sherd_dtype param;
        const char *optim;
        enum sherd_dtype state;
        enum sherd_master master;
    } cases[] = { { 0, 2, 1, SHERD_F32, "adamw", SHERD_F32, SHERD_MASTER_WHOLE },
        { 1, 3, 2, SHERD_F32, "adamw", SHERD_BF16, SHERD_MASTER_WHOLE },
        { 2, 2, 2, SHERD_BF16, "adamw", SHERD_F32, SHERD_MASTER_WHOLE },
        { 3, 3, 1, SHERD_BF16, "adamw", SHERD_F32, SHERD_MASTER_SPLIT },
        { 1, 2, 1, SHERD_BF16, "adamw", SHERD_BF16, SHERD_MASTER_SPLIT },
        { 0, 2, 1, SHERD_BF16, "sgd", SHERD_BF16, SHERD_MASTER_SPLIT },
        { 3, 1, 3, SHERD_F32, "sgd", SHERD_F32, SHERD_MASTER_WHOLE } };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct job whole = job_default(), part;
        whole.stage = cases[i].stage;
        whole.world = cases[i].world;
        whole.accum = cases[i].accum;
        whole.param = cases[i].param;
        whole.optim = cases[i].optim;
        whole.state = cases[i].state;
        whole.master = cases[i].master;
        whole.steps = 20;
        part = whole;
        whole.save = path("whole%zu", i);
        job_pass(&whole);
        part.steps = 5;
        part.save = path("part%zu", i);
        job_pass(&part);
        part.load = path("part%zu/step-00000005", i);
        job_pass(&part);
        part.load = path("part%zu/step-00000010", i);
        part.steps = 10;
        job_pass(&part);
        part.steps = 20; /* stats of all twenty are there by now */
        job_same_bits(&part, &whole);
        for (int s = 0; s < 20; s++) {
            assert_memory_equal(&part.stats[s].lr, &whole.stats[s].lr, sizeof(double));
            assert_int_equal(part.stats[s].tokens_seen, whole.stats[s].tokens_seen);
        }
        same_state_files(path("whole%zu/step-00000020", i), path("part%zu/step-00000020", i));
        job_free(&whole);
        job_free(&part);
    }
}

/* Files hold floats however they are kept in memory: the halves of split masters, joined, and states of 16
 * bits, widened. So they are the same files, and either run goes on from the other's. */
static void files_do_not_depend_on_how_state_is_kept(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        struct job whole = job_default(), split, on;
        whole.stage = stage;
        whole.world = 2;
        whole.param = SHERD_BF16;
        whole.steps = 4;
        whole.save = path("whole-masters%d", stage);
        split = whole;
        split.master = SHERD_MASTER_SPLIT;
        split.stage = 3 - stage;
        split.save = path("split-masters%d", stage);
        job_pass(&whole);
        job_pass(&split);
        const char *a = path("whole-masters%d/step-00000004", stage);
        const char *b = path("split-masters%d/step-00000004", stage);
        same_state_files(a, b);
        on = job_like(&split);
        on.load = a;
        on.save = path("split-on%d", stage);
        whole.load = b;
        job_pass(&on);
        job_pass(&whole);
        job_same_bits(&on, &whole);
        same_state_files(
            path("split-on%d/step-00000008", stage), path("whole-masters%d/step-00000008", stage));
        whole.state = SHERD_BF16; /* float states are rounded on the way in */
        whole.save = NULL;
        job_pass(&whole);
        job_free(&whole);
        job_free(&split);
        job_free(&on);
    }
}

/* Load at another world and stage, save at once: the same tensors, the same states, the same next losses. */
static void any_world_and_stage_loads_any_other(void **state)
{
    (void)state;
    static const int worlds[] = { 1, 2, 3, 4, 5, 8 };
    for (int w1 = 0; w1 < 6; w1++) {
        struct job from = job_default();
        from.world = worlds[w1];
        from.stage = w1 % 4;
        from.micro = (24 + from.world - 1) / from.world;
        from.rows = 24;
        from.save = path("from%d", from.world);
        job_pass(&from);
        merge(from.save, path("from%d.merged", from.world));
        struct job on = job_like(&from);
        on.load = path("from%d/step-00000003", from.world);
        on.save = NULL;
        on.steps = 2;
        job_pass(&on);
        for (int w2 = 0; w2 < 6; w2++)
            for (int stage = 0; stage <= 3; stage += 1 + (w1 + w2) % 3) {
                struct job to = job_default();
                to.world = worlds[w2];
                to.stage = stage;
                to.micro = (24 + to.world - 1) / to.world;
                to.rows = 24;
                to.steps = 0;
                to.load = on.load;
                to.save = path("to%d-%d-%d", from.world, to.world, stage);
                job_pass(&to);
                assert_memory_equal(to.weights, from.weights, (size_t)from.n_weights * sizeof(float));
                merge(to.save, path("to.merged"));
                same_files(
                    path("from%d.merged/model.safetensors", from.world), path("to.merged/model.safetensors"));
                /* both moments, tensor by tensor */
                struct sherd_ckpt *a, *b;
                struct sherd_ckpt_info info;
                ASSERT_OK(sherd_ckpt_open(&a, to.load));
                ASSERT_OK(sherd_ckpt_open(&b, path("to%d-%d-%d/step-00000003", from.world, to.world, stage)));
                sherd_ckpt_info_of(b, &info);
                assert_int_equal(info.step, 3);
                assert_int_equal(info.tokens_seen, from.stats[2].tokens_seen);
                for (int t = 0; t < info.n_tensors; t++) {
                    struct sherd_ckpt_tensor tensor;
                    static float x[101 * 24], y[101 * 24];
                    ASSERT_OK(sherd_ckpt_tensor_at(b, t, &tensor));
                    for (int s = 0; s < 2; s++) {
                        const char *what = s ? "adam.v" : "adam.m";
                        ASSERT_OK(sherd_ckpt_read(a, what, t, 0, tensor.elems, x));
                        ASSERT_OK(sherd_ckpt_read(b, what, t, 0, tensor.elems, y));
                        assert_memory_equal(x, y, (size_t)tensor.elems * sizeof(float));
                    }
                }
                sherd_ckpt_close(a);
                sherd_ckpt_close(b);
                to.save = NULL;
                to.steps = 2;
                job_pass(&to);
                to.steps = on.steps = 5; /* the stats of steps 4 and 5; 1 to 3 are those of `from` */
                memcpy(to.stats, from.stats, 3 * sizeof(to.stats[0]));
                memcpy(on.stats, from.stats, 3 * sizeof(on.stats[0]));
                job_close(&to, &on, 2e-5);
                on.steps = 2;
                job_free(&to);
                ASSERT_OK(file_remove_tree(path("to%d-%d-%d", from.world, worlds[w2], stage)));
            }
        job_free(&on);
        job_free(&from);
    }
}

/* The merged file holds, by name, exactly what the engine held, and what was frozen is what it began with. */
static void merged_is_what_was_in_memory(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++) {
        struct job j = job_default(), start;
        j.stage = stage;
        j.world = 3;
        j.freeze = "transformer.h.1.*";
        start = j;
        start.steps = 0;
        j.save = path("merge%d", stage);
        job_pass(&start);
        job_pass(&j);
        merge(j.save, path("merge%d.model", stage));
        struct sherd_ckpt *c;
        struct sherd_ckpt_info info;
        ASSERT_OK(sherd_ckpt_open(&c, path("merge%d/step-00000003", stage)));
        sherd_ckpt_info_of(c, &info);
        int64_t at = 0;
        float *all = malloc((size_t)j.n_weights * sizeof(float));
        for (int t = 0; t < info.n_tensors; t++) {
            struct sherd_ckpt_tensor tensor;
            ASSERT_OK(sherd_ckpt_tensor_at(c, t, &tensor));
            ASSERT_OK(sherd_ckpt_read(c, "weight", t, 0, tensor.elems, all + at));
            assert_int_equal(tensor.frozen, strstr(tensor.name, "h.1.") != NULL);
            /* what is frozen has neither moved nor decayed */
            int same = !memcmp(all + at, start.weights + at, (size_t)tensor.elems * sizeof(float));
            assert_int_equal(same, tensor.frozen);
            at += tensor.elems;
        }
        assert_int_equal(at, j.n_weights);
        assert_memory_equal(all, j.weights, (size_t)at * sizeof(float));
        free(all);
        sherd_ckpt_close(c);
        job_free(&start);
        job_free(&j);
        if (stage > 0)
            same_files(
                path("merge0.model/model.safetensors"), path("merge%d.model/model.safetensors", stage));
    }
}

/* Frozen at first, trained from step 3 on: what a run of one rank does. */
static void a_tensor_can_be_unfrozen_on_resume(void **state)
{
    (void)state;
    struct job first = job_default();
    for (int stage = 0; stage <= 3; stage++) {
        struct job a = job_default(), b = a;
        a.stage = b.stage = stage;
        a.world = stage + 1;
        b.world = 4 - stage;
        a.micro = (24 + a.world - 1) / a.world;
        b.micro = (24 + b.world - 1) / b.world;
        a.rows = b.rows = 24;
        a.freeze = "transformer.h.0.*";
        a.save = path("freeze%d", stage);
        job_pass(&a);
        b.load = path("freeze%d/step-00000003", stage);
        b.steps = 3;
        job_pass(&b);
        b.steps = 6;
        memcpy(b.stats, a.stats, 3 * sizeof(a.stats[0]));
        job_free(&a);
        if (stage == 0) {
            first = b;
            continue;
        }
        job_close(&b, &first, 2e-5);
        job_free(&b);
    }
    job_free(&first);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_resumed_run_is_the_same_run),
        cmocka_unit_test(files_do_not_depend_on_how_state_is_kept),
        cmocka_unit_test(any_world_and_stage_loads_any_other),
        cmocka_unit_test(merged_is_what_was_in_memory),
        cmocka_unit_test(a_tensor_can_be_unfrozen_on_resume),
    };
    if (folder_make(root, "resume") != 0)
        return 1;
    sherd_log_set(NULL, NULL, SHERD_LOG_WARN);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    file_remove_tree(root);
    arena_finish(&paths);
    return failed;
}
