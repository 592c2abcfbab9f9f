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
    struct sherd_evaluate_result evaluated;
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
    ASSERT_FAILS(sherd_evaluate(NULL, &evaluated), SHERD_EINVAL, "desc, config, device or out is NULL");
}

static void what_an_engine_needs(void **state)
{
    (void)state;
    struct sherd_config config;
    struct sherd_model *model;
    struct sherd_device *dev;
    struct sherd_engine *engine = NULL;
    struct sherd_batch nothing = { .batch = 1 };
    ASSERT_OK(sherd_config_default(&config));
    config.batch.micro = 1;
    ASSERT_OK(sherd_config_model(&model, &config));
    ASSERT_OK(sherd_device_open(&dev, &(struct sherd_device_desc){ .threads = 1 }));
    for (int i = 0; i < 3; i++)
        ASSERT_FAILS(sherd_engine_create(&engine, &(struct sherd_engine_desc){ i == 0 ? NULL : &config,
                                                      i == 1 ? NULL : model, i == 2 ? NULL : dev, NULL }),
            SHERD_EINVAL, "is NULL");
    ASSERT_FAILS(sherd_engine_step(engine, &nothing, 1, NULL), SHERD_EINVAL, "the engine is NULL");
    ASSERT_FAILS(sherd_train(&(struct sherd_train_desc){ .config = &config }), SHERD_EINVAL, "is NULL");
    ASSERT_FAILS(sherd_evaluate(&(struct sherd_evaluate_desc){ .config = &config, .device = dev }, NULL),
        SHERD_EINVAL, "is NULL");
    ASSERT_OK(sherd_engine_create(&engine, &(struct sherd_engine_desc){ &config, model, dev, NULL }));
    ASSERT_FAILS(sherd_engine_save(engine, NULL, NULL), SHERD_EINVAL, "has no name");
    ASSERT_FAILS(sherd_engine_load(engine, ""), SHERD_EINVAL, "has no name");
    ASSERT_FAILS(sherd_engine_step(engine, NULL, 1, NULL), SHERD_EINVAL, "at least one micro-batch");
    ASSERT_FAILS(sherd_engine_step(engine, &nothing, 1, NULL), SHERD_EINVAL, "micro-batch 0 has no tokens");
    sherd_engine_destroy(engine);
    sherd_device_close(dev);
    sherd_model_destroy(model);
    sherd_config_free(&config);
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
        cmocka_unit_test(what_an_engine_needs),
        cmocka_unit_test(settings),
        cmocka_unit_test(saving_and_tokenizing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
