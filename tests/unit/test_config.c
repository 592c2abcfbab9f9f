/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Whole configs: defaults, files and overrides, the arithmetic of the batch, cross checks, printing and
 * copying, memory that runs out.
 */
#include "tests/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <sherd/engine.h>

#include "base/file.h"
#include "runtime/config.h"
#include "runtime/keys.h"
#include "tests/folder.h"

static int parse(struct sherd_config *out, const char *text, int world)
{
    return sherd_config_parse(out, text, strlen(text), "t.yaml", NULL, 0, world);
}

static int parse_set(struct sherd_config *out, const char *text, const char *set, int world)
{
    return sherd_config_parse(out, text, strlen(text), "t.yaml", &set, 1, world);
}

static void expect_fail(const char *text, int world, const char *message)
{
    struct sherd_config config;
    memset(&config, 0x5a, sizeof(config));
    ASSERT_FAILS(parse(&config, text, world), SHERD_ECONFIG, message);
    assert_null(config.origin);
    assert_null(config.run.dir);
    sherd_config_free(&config);
}

static void expect_set_fail(const char *set, const char *message)
{
    struct sherd_config config;
    ASSERT_FAILS(parse_set(&config, "", set, 0), SHERD_ECONFIG, message);
}

/* Every key prints the same in both. */
static void expect_equal(const struct sherd_config *a, const struct sherd_config *b)
{
    for (int i = 0; i < key_count(); i++) {
        struct text ta = { 0 }, tb = { 0 };
        key_print(key_at(i), a, &ta);
        key_print(key_at(i), b, &tb);
        if (strcmp(ta.data, tb.data) != 0)
            fail_msg("%s: %s and %s", key_at(i)->path, ta.data, tb.data);
        text_finish(&ta);
        text_finish(&tb);
    }
}

static void defaults(void **state)
{
    (void)state;
    struct sherd_config c, empty;
    ASSERT_OK(sherd_config_default(&c));
    ASSERT_OK(parse(&empty, "# nothing\n", 0));
    expect_equal(&c, &empty);
    assert_string_equal(c.run.device, "cpu");
    assert_string_equal(c.model.family, "llama");
    assert_int_equal(c.model.tied, 0);
    assert_int_equal(c.batch.seq, c.model.context);
    assert_int_equal(c.train.epochs, 1);
    assert_int_equal(c.train.eval_every, 0);
    assert_int_equal(c.batch.global + c.batch.micro + c.batch.accum, 0);
    assert_true(c.optim.beta1 == 0.9 && c.optim.beta2 == 0.95 && c.optim.eps == 1e-8);
    assert_true(c.optim.weight_decay == 0.1 && c.optim.clip == 1.0 && c.schedule.min_lr == 0.1);
    assert_int_equal(c.schedule.kind, SHERD_LR_COSINE);
    assert_int_equal(c.dtype.param, SHERD_F32);
    assert_int_equal(c.data.train.n, 0);
    sherd_config_free(&empty);
    sherd_config_free(&c);
    sherd_config_free(&c);
    sherd_config_free(NULL);
}

static void fields_of_a_file(void **state)
{
    (void)state;
    struct sherd_config c;
    ASSERT_OK(parse(&c,
        "run: {dir: 'a b', resume: required, timeout: 90s}\n"
        "model:\n"
        "  family: gpt2\n"
        "  freeze: [wte.weight, 'h.0.*']\n"
        "shard.stage: 2\n"
        "dtype: {param: bf16, reduce: bf16}\n"
        "optim:\n"
        "  lr: 6e-4\n"
        "data:\n"
        "  train:\n"
        "    - one.bin\n"
        "    - two.bin\n"
        "  val: three.bin\n"
        "  format: llmc\n"
        "  shuffle: no\n"
        "save:\n"
        "train: {steps: 5e2}\n",
        0));
    assert_string_equal(c.run.dir, "a b");
    assert_int_equal(c.run.resume, SHERD_RESUME_REQUIRED);
    assert_true(c.run.timeout == 90);
    assert_string_equal(c.model.family, "gpt2");
    assert_int_equal(c.model.tied, 1);
    assert_int_equal(c.model.freeze.n, 2);
    assert_string_equal(c.model.freeze.items[1], "h.0.*");
    assert_int_equal(c.shard.stage, 2);
    assert_int_equal(c.dtype.param, SHERD_BF16);
    assert_int_equal(c.dtype.reduce, SHERD_BF16);
    assert_true(c.optim.lr == 6e-4);
    assert_int_equal(c.data.train.n, 2);
    assert_string_equal(c.data.train.items[1], "two.bin");
    assert_int_equal(c.data.val.n, 1);
    assert_string_equal(c.data.val.items[0], "three.bin");
    assert_int_equal(c.data.format, SHERD_DATA_LLMC);
    assert_int_equal(c.data.shuffle, 0);
    assert_int_equal(c.train.steps, 500);
    assert_int_equal(c.train.epochs, 0);
    assert_int_equal(c.train.eval_every, 100);
    sherd_config_free(&c);
}

static void files_are_refused_with_line_and_key(void **state)
{
    (void)state;
    expect_fail("shard:\n  stage: 1\n\n  stge: 2\n", 0,
        "t.yaml:4: shard.stge: unknown key; did you mean shard.stage?");
    expect_fail("shards:\n  stage: 1\n", 0, "t.yaml:1: shards: unknown key; did you mean shard?");
    expect_fail(
        "shard:\n  stage: 1\nshard:\n  prefetch: 1\n", 0, "t.yaml:3: shard: given twice, first in line 1");
    expect_fail("shard:\n  stage: 1\nshard.stage: 2\n", 0,
        "t.yaml:3: shard.stage: given twice, first at t.yaml:2; remove one");
    expect_fail("shard: 2\n", 0, "t.yaml:1: shard: is a section");
    expect_fail("shard: [2]\n", 0, "t.yaml:1: shard: is a section");
    expect_fail("model:\n  heads:\n    n: 4\n", 0, "t.yaml:2: model.heads: must be a whole number");
    expect_fail("model:\n  block:\n    n: 4\n", 0, "t.yaml:2: model.block: unknown key");
    expect_fail("- a\n", 0, "t.yaml:1: settings are sections with keys");
    expect_fail("hello\n", 0, "this is a text");
    expect_fail("schedule:\n  kind: cosin\n", 0,
        "t.yaml:2: schedule.kind: must be one of constant, linear, cosine, wsd, "
        "not 'cosin'; did you mean cosine?");
    expect_fail("data:\n  train:\n    - a\n    - ''\n", 0, "t.yaml:4: data.train: entry 2 is empty");
}

static void overrides(void **state)
{
    (void)state;
    struct sherd_config c;
    const char *text = "shard: {stage: 1}\nmodel: {freeze: [a]}\n";
    static const char *const good[] = { "shard.stage=2", " optim.lr = 1e-2 ", "shard.stage=3",
        "run.dir=a: b #c", "data.train=[x, \"y z\"]", "data.val='q'", "model.freeze=[]",
        "run.device=\"cuda\"" };
    ASSERT_OK(sherd_config_parse(&c, text, strlen(text), "t.yaml", good, (int)ARRAY_LEN(good), 0));
    assert_int_equal(c.shard.stage, 3);
    assert_true(c.optim.lr == 0.01);
    assert_string_equal(c.run.dir, "a: b #c");
    assert_int_equal(c.data.train.n, 2);
    assert_string_equal(c.data.train.items[1], "y z");
    assert_string_equal(c.data.val.items[0], "q");
    assert_int_equal(c.model.freeze.n, 0);
    assert_string_equal(c.run.device, "cuda");
    sherd_config_free(&c);

    expect_set_fail("shard.stge=1", "--set: shard.stge: unknown key; did you mean shard.stage?");
    expect_set_fail("shard.stage=4", "--set: shard.stage: must be a whole number from 0 to 3, not '4'");
    expect_set_fail(
        "shard.stage=", "--set: shard.stage: has no value; it must be a whole number from 0 to 3");
    expect_set_fail("run.dir=", "--set: run.dir: ");
    expect_set_fail("shard=1", "--set: shard: is a section; set its keys, as shard.stage=...");
    expect_set_fail("shard.stage", "--set: 'shard.stage' is not key.path=value");
    expect_set_fail("=1", "is not key.path=value");
    expect_set_fail("", "is not key.path=value");
    expect_set_fail("data.train=[a, [b]]", "--set: data.train: entry 2 is a list, not a text");
    expect_set_fail("data.train=[a", "--set data.train:");
    expect_set_fail("run.dir=\xff", "not a text in UTF-8");
    expect_set_fail("batch.seq=512", "--set: batch.seq: 512 tokens are more than model.context 256");
}

static void loading(void **state)
{
    (void)state;
    char path[] = "/tmp/sherd-config-XXXXXX";
    struct sherd_config c;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    ASSERT_OK(file_write_atomic(path, "shard:\n  stage: 5\n", 18));
    ASSERT_FAILS(sherd_config_load(&c, path, NULL, 0, 1), SHERD_ECONFIG, ":2: shard.stage: must be");
    ASSERT_CONTAINS(sherd_error(), path);
    ASSERT_OK(file_write_atomic(path, "shard:\n  stage: 3\n", 18));
    ASSERT_OK(sherd_config_load(&c, path, NULL, 0, 1));
    assert_int_equal(c.shard.stage, 3);
    sherd_config_free(&c);
    unlink(path);
    ASSERT_FAILS(sherd_config_load(&c, path, NULL, 0, 1), SHERD_ENOTFOUND, path);
    assert_null(c.origin);
}

/* What is given (0 = not), the world, and what comes of it. */
static const struct batch_row {
    int64_t global, micro, accum;
    int world;
    int64_t to_global, to_micro, to_accum;
} batch_rows[] = {
    { 24, 4, 3, 2, 24, 4, 3 },  /* all three: checked */
    { 24, 4, 0, 2, 24, 4, 3 },  /* accum = global / micro / world */
    { 24, 0, 3, 2, 24, 4, 3 },  /* micro = global / world / accum */
    { 0, 4, 3, 2, 24, 4, 3 },   /* global = micro * accum * world */
    { 24, 0, 0, 2, 24, 12, 1 }, /* accum 1 */
    { 0, 4, 0, 2, 8, 4, 1 },    /* accum 1 */
    { 0, 0, 0, 2, 16, 8, 1 },   /* the default micro-batch */
    { 1, 0, 0, 1, 1, 1, 1 },
    { 7, 1, 0, 7, 7, 1, 1 },
    { 30, 5, 2, 3, 30, 5, 2 },
    { 1000000000, 0, 0, 1, 1000000000, 1000000000, 1 },
};

static void batch_arithmetic(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(batch_rows); i++) {
        const struct batch_row *r = &batch_rows[i];
        char text[160];
        struct sherd_config c;
        snprintf(text, sizeof(text), "batch: {global: %lld, micro: %lld, accum: %lld}\n",
            (long long)r->global, (long long)r->micro, (long long)r->accum);
        ASSERT_OK(parse(&c, text, r->world));
        assert_int_equal(c.batch.global, r->to_global);
        assert_int_equal(c.batch.micro, r->to_micro);
        assert_int_equal(c.batch.accum, r->to_accum);
        sherd_config_free(&c);

        ASSERT_OK(parse(&c, text, 0));
        assert_int_equal(c.batch.global, r->global);
        assert_int_equal(c.batch.micro, r->micro);
        assert_int_equal(c.batch.accum, r->accum);
        ASSERT_OK(config_derive_batch(&c, r->world));
        assert_int_equal(c.batch.global, r->to_global);
        assert_int_equal(c.batch.micro, r->to_micro);
        assert_int_equal(c.batch.accum, r->to_accum);
        sherd_config_free(&c);
    }
}

static void batches_that_do_not_fit(void **state)
{
    (void)state;
    expect_fail("batch:\n  global: 16\n  micro: 4\n  accum: 3\n", 2,
        "t.yaml:2: batch.global: global 16, micro 4, accum 3 and world 2 do not fit: global must be micro * accum * world "
        "= 24; set batch.accum to 2 or batch.global to 24");
    expect_fail(
        "batch:\n  global: 20\n  micro: 3\n  accum: 2\n", 2, "set batch.micro to 5 or batch.global to 12");
    expect_fail("batch:\n  global: 21\n  micro: 4\n  accum: 2\n", 2, "= 16; set batch.global to 16");
    expect_fail("batch:\n  global: 20\n  micro: 4\n", 2,
        "global 20, micro 4, accum auto and world 2 do not fit: global must be a multiple of micro * world = 8; set "
        "batch.global to 16 or 24, or batch.micro to 2");
    expect_fail("batch:\n  global: 4\n  micro: 4\n", 2, "set batch.global to 8, or batch.micro to 2");
    expect_fail("batch:\n  global: 16\n", 3,
        "global 16, micro auto, accum auto and world 3 do not fit: global must be a multiple of accum * world = 3; set "
        "batch.global to 15 or 18");
    expect_fail("batch:\n  global: 16\n  accum: 3\n", 2,
        "a multiple of accum * world = 6; set batch.global to 12 or 18, or "
        "batch.accum to 2");
    expect_fail(
        "batch:\n  accum: 3\n", 2, "t.yaml:2: batch.accum: accum 3 alone does not say how large a batch is");
    expect_fail("batch:\n  micro: 1e9\n  accum: 1e9\n", 100000, "beyond all numbers");
    expect_fail("batch:\n  micro: 1e9\n  accum: 1e9\n  global: 4\n", 100000, "beyond all numbers");

    struct sherd_config c;
    ASSERT_OK(parse(&c, "", 0));
    ASSERT_FAILS(config_derive_batch(&c, 0), SHERD_EINVAL, "a world of 0 ranks");
    c.batch.micro = -1;
    ASSERT_FAILS(config_derive_batch(&c, 1), SHERD_ECONFIG, "batch.micro: must not be negative");
    sherd_config_free(&c);
    ASSERT_FAILS(parse(&c, "", -1), SHERD_EINVAL, "a world of -1 ranks");
}

/* What was derived for one world is derived anew for another; what the program set in between counts. */
static void derived_again_for_another_world(void **state)
{
    (void)state;
    struct sherd_config c;
    ASSERT_OK(parse(&c, "batch: {global: 24}\n", 2));
    assert_int_equal(c.batch.micro, 12);
    ASSERT_OK(config_derive_batch(&c, 3));
    assert_int_equal(c.batch.global, 24);
    assert_int_equal(c.batch.micro, 8);
    c.batch.accum = 2;
    ASSERT_OK(config_derive_batch(&c, 3));
    assert_int_equal(c.batch.micro, 4);
    assert_int_equal(c.batch.accum, 2);
    sherd_config_free(&c);

    struct sherd_config bare = { .batch = { .micro = 2 } }; /* made by hand, without a file */
    ASSERT_OK(config_derive_batch(&bare, 3));
    assert_int_equal(bare.batch.global, 6);
    sherd_config_free(&bare);
}

static void cross_checks(void **state)
{
    (void)state;
    expect_fail("model:\n  context: 64\nbatch:\n  seq: 65\n", 0,
        "t.yaml:4: batch.seq: 65 tokens are more than model.context 64");
    expect_fail("dtype:\n  reduce: bf16\n", 0, "t.yaml:2: dtype.reduce: bf16 would round gradients");
    expect_fail("train:\n  steps: 0\n  epochs: 0\n", 0,
        "t.yaml:2: train.steps: train.steps and train.epochs are both 0");
    expect_fail("train:\n  steps: 10\n  epochs: 2\n", 0,
        "t.yaml:3: train.epochs: train.steps is 10 and train.epochs is 2");
    expect_fail("train:\n  steps: 10\nschedule:\n  warmup: 11\n", 0,
        "t.yaml:4: schedule.warmup: 11 steps are more than the 10 of the run");
    expect_fail("save: {keep_best: 2}\n", 0,
        "t.yaml:1: save.keep_best: the best checkpoints are those with the lowest");
    expect_fail("save: {keep_best: 2, every: 15}\ndata: {val: [x]}\ntrain: {eval_every: 10}\n", 0,
        "t.yaml:1: save.keep_best: save.every 15 is no multiple of train.eval_every 10");
    expect_fail(
        "train:\n  steps: 10\nschedule:\n  kind: wsd\n", 0, "t.yaml:4: schedule.kind: wsd ends in a fall");
    expect_fail("train:\n  steps: 10\nschedule:\n  kind: wsd\n  warmup: 6\n  decay: 5\n", 0,
        "t.yaml:6: schedule.decay: 5 steps after a warm-up of 6 are more than the 10 of the run; set it to 4 or less");
    expect_fail(
        "schedule:\n  warmup: 2.5\n", 0, "t.yaml:2: schedule.warmup: must be a whole number of steps");
    expect_fail("schedule: {warmup: 9, steps: 8}\ntrain: {steps: 10}\n", 0,
        "t.yaml:1: schedule.warmup: 9 steps are more than the 8 of schedule.steps");
    struct sherd_config c;
    ASSERT_OK(parse(&c, "train: {steps: 10}\nschedule: {kind: wsd, warmup: 6, decay: 4}\n", 0));
    sherd_config_free(&c);
    ASSERT_OK(parse_set(&c, "train: {steps: 200}\nschedule: {warmup: 0.05}\n", "train.steps=5", 0));
    sherd_config_free(&c);
    ASSERT_OK(parse(&c, "train: {steps: 10}\nschedule: {warmup: 1000, count: deepspeed}\n", 0));
    sherd_config_free(&c);
    ASSERT_OK(
        parse(&c, "shard: {stage: 0, prefetch: 4}\n", 1)); /* matters at stage 3 only, but is no fault */
    sherd_config_free(&c);
}

static void what_training_needs(void **state)
{
    (void)state;
    struct sherd_config c;
    ASSERT_OK(parse(&c, "data: {train: []}\n", 1));
    ASSERT_FAILS(config_check_train(&c), SHERD_ECONFIG, "t.yaml:1: data.train: there is nothing to train on");
    sherd_config_free(&c);
    ASSERT_OK(parse(&c, "data: {train: [a]}\n", 1));
    ASSERT_OK(config_check_train(&c));
    sherd_config_free(&c);
    ASSERT_OK(parse(&c, "data: {train: [a]}\ntrain: {eval_every: 5}\n", 1));
    ASSERT_FAILS(
        config_check_train(&c), SHERD_ECONFIG, "t.yaml:2: train.eval_every: evaluates every 5 steps");
    sherd_config_free(&c);
}

static void printing_gives_the_same_config_and_its_sources(void **state)
{
    (void)state;
    struct sherd_config a, b;
    char *text, *again;
    const char *input =
        "run:\n  dir: \"a\\tb \\\"c\\\"\"\n  timeout: 2.5\nmodel:\n  family: gpt2\n  freeze: ['*.bias', x y]\n"
        "optim: {lr: 0.1234567890123456, eps: 1e-300}\nbatch: {global: 12}\n";
    ASSERT_OK(parse_set(&a, input, "shard.stage=3", 3));
    a.log.every = 77;
    ASSERT_OK(sherd_config_print(&a, &text));
    ASSERT_CONTAINS(text, "  timeout: 2.5            # t.yaml:3\n");
    ASSERT_CONTAINS(text, "  stage: 3                # --set\n");
    ASSERT_CONTAINS(text, "  micro: 4                # derived\n");
    ASSERT_CONTAINS(text, "  global: 12              # t.yaml:8\n");
    ASSERT_CONTAINS(text, "  seed: 1                 # default\n");
    ASSERT_CONTAINS(text, "  every: 77               # set by the program\n");
    ASSERT_OK(parse(&b, text, 3));
    expect_equal(&a, &b);
    sherd_config_free(&b);
    ASSERT_OK(sherd_config_default(&b));
    mem_free(text);
    sherd_config_free(&b);

    ASSERT_OK(config_copy(&b, &a)); /* outlives the one it came from */
    ASSERT_OK(sherd_config_print(&a, &text));
    sherd_config_free(&a);
    ASSERT_OK(sherd_config_print(&b, &again));
    assert_string_equal(text, again);
    assert_int_equal(b.model.freeze.n, 2);
    assert_string_equal(b.model.freeze.items[1], "x y");
    mem_free(again);
    mem_free(text);
    sherd_config_free(&b);

    struct sherd_config zero = { 0 };
    ASSERT_OK(sherd_config_print(&zero, &text));
    ASSERT_CONTAINS(text, "  stage: 0                # set by the program\n");
    mem_free(text);
    ASSERT_OK(config_copy(&b, &zero));
    sherd_config_free(&b);
}

static void reference_is_a_config_of_all_defaults(void **state)
{
    (void)state;
    struct sherd_config a, b;
    char *text;
    ASSERT_OK(sherd_config_reference(&text));
    ASSERT_OK(sherd_config_default(&a));
    ASSERT_OK(parse(&b, text, 0));
    expect_equal(&a, &b);
    for (int i = 0; i < key_count(); i++)
        ASSERT_CONTAINS(text, key_at(i)->help);
    sherd_config_free(&a);
    sherd_config_free(&b);
    /* A copy of it with a change or two is a config, not a contradiction. */
    static const char *const set[] = { "train.steps=10", "data.train=[a]" };
    ASSERT_OK(sherd_config_parse(&a, text, strlen(text), "reference.yaml", set, 2, 4));
    ASSERT_OK(config_check_train(&a));
    sherd_config_free(&a);
    mem_free(text);
}

/* Attention in one order keeps the gradients of its scores; in any order, sums as large as its output. */
static void one_order_takes_more_work_space(void **state)
{
    (void)state;
    static const char *const set[] = { "run.device=cuda", "model.context=1024", "dtype.param=bf16",
        "run.deterministic=true" };
    uint64_t scratch[2];
    for (int one_order = 0; one_order < 2; one_order++) {
        struct sherd_config c;
        struct sherd_model *model;
        struct sherd_plan plan;
        ASSERT_OK(sherd_config_parse(&c, "", 0, "test", set, 3 + one_order, 1));
        ASSERT_OK(sherd_config_model(&model, &c));
        ASSERT_OK(sherd_plan_make(&plan, &c, model, 1, 1));
        scratch[one_order] = plan.memory.scratch;
        sherd_plan_free(&plan);
        sherd_model_destroy(model);
        sherd_config_free(&c);
    }
    assert_true(scratch[1] > 2 * scratch[0]);
}

/* Calls work on all of the interface with every k-th allocation failing. */
static int everything(const char *text)
{
    struct sherd_config a = { 0 }, b = { 0 };
    char *s = NULL, *r = NULL;
    static const char *const set[] = { "data.train=[x, y]", "shard.stage=2" };
    int st = SHERD_OK;
    SHERD_TRY_OUT(sherd_config_parse(&a, text, strlen(text), "t.yaml", set, 2, 2));
    SHERD_TRY_OUT(config_copy(&b, &a));
    SHERD_TRY_OUT(sherd_config_print(&b, &s));
    SHERD_TRY_OUT(sherd_config_reference(&r));
    SHERD_TRY_OUT(config_derive_batch(&b, 1));
out:
    sherd_config_free(&a);
    sherd_config_free(&b);
    mem_free(s);
    mem_free(r);
    return st;
}

/* What is wrong with a model folder is told by the option that named it, or begins with the folder where a
 * program takes it as an argument. */
static void a_model_is_told_by_its_source(void **state)
{
    (void)state;
    char folder[FOLDER_BYTES], want[FOLDER_BYTES + 100];
    struct sherd_config c;
    assert_int_equal(folder_make(folder, "config"), 0);
    struct sherd_config_desc desc = { .model = folder, .model_source = "--weights" };
    snprintf(want, sizeof(want), "--weights: model.from: %s: there is no config.json in it", folder);
    ASSERT_FAILS(sherd_config_read(&c, &desc), SHERD_ENOTFOUND, want);
    assert_ptr_equal(strstr(sherd_error(), want), sherd_error());
    desc.model_source = NULL;
    ASSERT_FAILS(sherd_config_read(&c, &desc), SHERD_ENOTFOUND, ": there is no config.json in it");
    assert_ptr_equal(strstr(sherd_error(), folder), sherd_error());
    ASSERT_OK(file_remove_tree(folder));
    ASSERT_FAILS(sherd_config_read(&c, &desc), SHERD_ENOTFOUND, ": no such file or folder");
    assert_ptr_equal(strstr(sherd_error(), folder), sherd_error());
    desc.model_source = "--weights";
    ASSERT_FAILS(sherd_config_read(&c, &desc), SHERD_ENOTFOUND, ": no such file or folder");
    assert_ptr_equal(strstr(sherd_error(), "--weights: "), sherd_error());
}

static void survives_every_failed_allocation(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int end; /* without a failed allocation */
    } rows[] = {
        { "run: {dir: a}\nmodel: {freeze: [a, b]}\nbatch: {global: 8}\n", SHERD_OK },
        { "shard: {stage: 9}\n", SHERD_ECONFIG },
        { "shard: {stge: 1}\n", SHERD_ECONFIG },
        { "batch: {global: 3}\n", SHERD_ECONFIG },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        int k = 1, failed;
        do {
            uint64_t before = mem_count();
            mem_fail_at(k);
            int st = everything(rows[i].text);
            mem_fail_at(0);
            failed = mem_count() - before >= (uint64_t)k;
            assert_int_equal(st, failed ? SHERD_ENOMEM : rows[i].end);
            k++;
        } while (failed);
        assert_true(k > 50);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),
        cmocka_unit_test(fields_of_a_file),
        cmocka_unit_test(files_are_refused_with_line_and_key),
        cmocka_unit_test(overrides),
        cmocka_unit_test(loading),
        cmocka_unit_test(batch_arithmetic),
        cmocka_unit_test(batches_that_do_not_fit),
        cmocka_unit_test(derived_again_for_another_world),
        cmocka_unit_test(cross_checks),
        cmocka_unit_test(what_training_needs),
        cmocka_unit_test(printing_gives_the_same_config_and_its_sources),
        cmocka_unit_test(reference_is_a_config_of_all_defaults),
        cmocka_unit_test(one_order_takes_more_work_space),
        cmocka_unit_test(a_model_is_told_by_its_source),
        cmocka_unit_test(survives_every_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
