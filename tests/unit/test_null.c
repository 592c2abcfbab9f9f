/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * What a program has forgotten to give: an error that names it, not a crash.
 */
#include "tests/check.h"

#include <sherd/sherd.h>

static void what_makes_things(void **state)
{
    (void)state;
    struct sherd_device_desc device_desc = { .name = "cpu" };
    struct sherd_device *device;
    struct sherd_model_spec spec = { 0 };
    struct sherd_model_config model_config = { .family = "gpt2" };
    struct sherd_model *model;
    struct sherd_engine_desc engine_desc = { 0 };
    struct sherd_engine *engine;
    ASSERT_FAILS(sherd_device_open(&device, NULL), SHERD_EINVAL, "sherd_device_open: out or desc is NULL");
    ASSERT_FAILS(sherd_device_open(NULL, &device_desc), SHERD_EINVAL, "out or desc is NULL");
    ASSERT_FAILS(sherd_model_create(&model, NULL), SHERD_EINVAL, "sherd_model_create: out or spec is NULL");
    ASSERT_FAILS(sherd_model_create(NULL, &spec), SHERD_EINVAL, "out or spec is NULL");
    ASSERT_FAILS(sherd_model_build(&model, NULL), SHERD_EINVAL, "sherd_model_build: out or config is NULL");
    ASSERT_FAILS(sherd_model_build(NULL, &model_config), SHERD_EINVAL, "out or config is NULL");
    ASSERT_FAILS(sherd_engine_create(&engine, NULL), SHERD_EINVAL, "desc is NULL");
    ASSERT_FAILS(sherd_engine_create(NULL, &engine_desc), SHERD_EINVAL, "out is NULL");
    ASSERT_FAILS(sherd_engine_create_blank(NULL, &engine_desc), SHERD_EINVAL, "out is NULL");
    ASSERT_FAILS(sherd_engine_create_blank(&engine, &engine_desc), SHERD_EINVAL, "config is NULL");
    ASSERT_FAILS(sherd_train(NULL), SHERD_EINVAL, "desc, config or device is NULL");
}

static void settings(void **state)
{
    (void)state;
    struct sherd_config config;
    struct sherd_config_desc desc = { 0 };
    ASSERT_FAILS(sherd_config_default(NULL), SHERD_EINVAL, "sherd_config_default: out is NULL");
    ASSERT_FAILS(sherd_config_parse(NULL, "", 0, "x", NULL, 0, 0), SHERD_EINVAL, "out, text or name is NULL");
    ASSERT_FAILS(sherd_config_parse(&config, NULL, 1, "x", NULL, 0, 0), SHERD_EINVAL, "text or name is NULL");
    ASSERT_FAILS(sherd_config_parse(&config, "", 0, NULL, NULL, 0, 0), SHERD_EINVAL, "text or name is NULL");
    ASSERT_FAILS(sherd_config_read(NULL, &desc), SHERD_EINVAL, "sherd_config_read: out or desc is NULL");
    ASSERT_FAILS(sherd_config_read(&config, NULL), SHERD_EINVAL, "sherd_config_read: out or desc is NULL");
}

static void saving_and_tokenizing(void **state)
{
    (void)state;
    int busy;
    struct sherd_tokenize_desc desc = { .n_paths = 1, .to = "x" };
    struct sherd_tokenize_result result;
    ASSERT_FAILS(sherd_engine_save_start(NULL, "x", NULL), SHERD_EINVAL, "the engine is NULL");
    ASSERT_FAILS(sherd_engine_save_poll(NULL, &busy), SHERD_EINVAL, "engine or busy is NULL");
    ASSERT_FAILS(sherd_engine_save_wait(NULL), SHERD_EINVAL, "engine is NULL");
    ASSERT_FAILS(sherd_tokenize(NULL, &result), SHERD_EINVAL, "sherd_tokenize: desc or out is NULL");
    ASSERT_FAILS(sherd_tokenize(&desc, NULL), SHERD_EINVAL, "desc or out is NULL");
    ASSERT_FAILS(sherd_tokenize(&desc, &result), SHERD_EINVAL, "a tokenizer, files and a folder are needed");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_makes_things),
        cmocka_unit_test(settings),
        cmocka_unit_test(saving_and_tokenizing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
