/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Checkpoints of every version that was ever written, kept in tests/fixtures: each can be verified, read,
 * merged to the same bytes as then, and trained on. A fixture is never made anew.
 *
 * v1: GPT-2 of 1,752 parameters after two steps of 3 ranks in stage 3, bf16, some tensors frozen; and what
 * the version that wrote it merged it to, in f32. v2: the same model after other data, with sums of blocks.
 */
#include "tests/check.h"
#include "tests/folder.h"

#include <stdlib.h>

#include <sherd/sherd.h>
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/sum.h"

static char folder[FOLDER_BYTES];

static const struct {
    const char *name;
    int version;
    int64_t step;
    const char *m, *v; /* sums of the moments of all trained tensors */
} fixtures[] = {
    { "v1", 1, 2, "48ea477e4be3a276b181ad2105edef02", "573be0d05cf3bf0ab8ba328dea7907a9" },
    { "v2", 2, 2, "9d91a61fb3426e5bb5af66beb0f3d02d", "9333f437c97b6db7600dae4af4a04569" },
};

/* Freed by the caller. */
static char *fixture(const char *name, const char *file)
{
    const char *root = getenv("FIXTURES");
    assert_non_null(root);
    char *path = mem_printf("%s/%s/%s", root, name, file);
    assert_non_null(path);
    return path;
}

static void open_fixture(struct sherd_ckpt **ckpt, char **path, int i)
{
    char *root = fixture(fixtures[i].name, "");
    ASSERT_OK(sherd_ckpt_find(path, root));
    ASSERT_OK(sherd_ckpt_open(ckpt, *path));
    mem_free(root);
}

static void states_are(struct sherd_ckpt *ckpt, const char *what, const char *want)
{
    struct sherd_ckpt_info info;
    struct sherd_ckpt_tensor t;
    struct sum *sum;
    char text[SUM_TEXT_BYTES];
    ASSERT_OK(sum_create(&sum));
    sherd_ckpt_info_of(ckpt, &info);
    for (int k = 0; k < info.n_tensors; k++) {
        ASSERT_OK(sherd_ckpt_tensor_at(ckpt, k, &t));
        if (t.frozen)
            continue;
        float *values = mem_zalloc((size_t)t.elems, sizeof(*values));
        assert_non_null(values);
        ASSERT_OK(sherd_ckpt_read(ckpt, what, k, 0, t.elems, values));
        sum_add(sum, values, (size_t)t.elems * sizeof(*values));
        mem_free(values);
    }
    sum_text(sum, text);
    sum_destroy(sum);
    assert_string_equal(text, want);
}

static void reads(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(fixtures); i++) {
        struct sherd_ckpt *ckpt;
        struct sherd_ckpt_info info;
        char *path;
        open_fixture(&ckpt, &path, (int)i);
        ASSERT_OK(sherd_ckpt_verify(ckpt));
        sherd_ckpt_info_of(ckpt, &info);
        assert_int_equal(info.version, fixtures[i].version);
        assert_int_equal(info.step, fixtures[i].step);
        states_are(ckpt, "adam.m", fixtures[i].m);
        states_are(ckpt, "adam.v", fixtures[i].v);
        sherd_ckpt_close(ckpt);
        mem_free(path);
    }
}

static void merges_as_then(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(fixtures); i++) {
        char *from = fixture(fixtures[i].name, ""),
             *want = fixture(fixtures[i].name, "merged-f32.safetensors");
        char *to = mem_printf("%s/%s", folder, fixtures[i].name);
        char *model = mem_printf("%s/model.safetensors", to);
        struct sherd_merge_desc desc = { .from = from, .to = to, .type = SHERD_F32 };
        struct file_map a, b;
        ASSERT_OK(sherd_merge(&desc, NULL));
        ASSERT_OK(file_map(&a, want));
        ASSERT_OK(file_map(&b, model));
        assert_int_equal(a.bytes, b.bytes);
        assert_memory_equal(a.data, b.data, a.bytes);
        file_unmap(&a);
        file_unmap(&b);
        mem_free(from);
        mem_free(want);
        mem_free(to);
        mem_free(model);
    }
}

/* An engine with the settings that the checkpoint keeps, on one rank. */
static void trains_on(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(fixtures); i++) {
        struct sherd_ckpt *ckpt;
        struct sherd_ckpt_info info;
        struct sherd_config config;
        struct sherd_model *model;
        struct sherd_device *dev;
        struct sherd_engine *engine;
        struct sherd_step_stats stats;
        static const int32_t tokens[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9 };
        struct sherd_batch batch = { tokens, tokens + 1, 1 };
        json_t *extra;
        const char *text;
        char *path;
        open_fixture(&ckpt, &path, (int)i);
        sherd_ckpt_info_of(ckpt, &info);
        ASSERT_OK(json_parse(&extra, info.extra, strlen(info.extra), "extra"));
        ASSERT_OK(json_get_text(extra, "config", "extra", &text));
        ASSERT_OK(sherd_config_parse(&config, text, strlen(text), "extra", NULL, 0, 0));
        config.train.steps = fixtures[i].step + 1;
        ASSERT_OK(sherd_config_model(&model, &config));
        ASSERT_OK(sherd_device_open(&dev, &(struct sherd_device_desc){ .name = "cpu", .threads = 1 }));
        ASSERT_OK(sherd_engine_create(
            &engine, &(struct sherd_engine_desc){ .config = &config, .model = model, .device = dev }));
        ASSERT_OK(sherd_engine_load(engine, path));
        assert_int_equal(sherd_engine_steps(engine), fixtures[i].step);
        ASSERT_OK(sherd_engine_step(engine, &batch, 1, &stats));
        assert_int_equal(stats.step, fixtures[i].step + 1);
        assert_true(stats.loss > 2 && stats.loss < 5);
        sherd_engine_destroy(engine);
        sherd_model_destroy(model);
        sherd_device_close(dev);
        sherd_config_free(&config);
        json_decref(extra);
        sherd_ckpt_close(ckpt);
        mem_free(path);
    }
}

static int enter(void **state)
{
    (void)state;
    return folder_make(folder, "formats");
}

static int leave(void **state)
{
    (void)state;
    return file_remove_tree(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads),
        cmocka_unit_test(merges_as_then),
        cmocka_unit_test(trains_on),
    };
    return cmocka_run_group_tests(tests, enter, leave);
}
