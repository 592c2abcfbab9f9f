/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * DeepSpeed's settings: whole files in the shapes people have, each rule of the arithmetic, what is refused
 * and with which words, what "auto" and defaults become. And that no row of the table goes unheard.
 */
#include "tests/check.h"

#include <stdio.h>

#include "base/file.h"
#include "runtime/foreign.h"
#include "runtime/keys.h"

static int parse(struct sherd_config *out, const char *text, int world)
{
    return sherd_config_parse(out, text, strlen(text), "ds.json", NULL, 0, world);
}

static int parse_set(struct sherd_config *out, const char *text, const char *set, int world)
{
    return sherd_config_parse(out, text, strlen(text), "ds.json", &set, 1, world);
}

static void expect_fail(const char *text, int world, const char *message)
{
    struct sherd_config config;
    ASSERT_FAILS(parse(&config, text, world), SHERD_ECONFIG, message);
    assert_null(config.origin);
}

static void expect_key(const struct sherd_config *config, const char *path, const char *want)
{
    struct text t = { 0 };
    char *s;
    key_print(key_find(path), config, &t);
    ASSERT_OK(text_take(&t, &s));
    if (strcmp(s, want) != 0)
        fail_msg("%s is %s, wanted %s", path, s, want);
    mem_free(s);
}

/* "path value path value ..." */
static void expect_keys(const struct sherd_config *config, const char *const *pairs)
{
    for (; pairs[0]; pairs += 2)
        expect_key(config, pairs[0], pairs[1]);
}

static void expect_remark(const struct sherd_config *config, const char *part)
{
    char *text;
    ASSERT_OK(sherd_config_remarks(config, &text));
    ASSERT_CONTAINS(text, part);
    mem_free(text);
}

/* --- whole files --- */

static const char trainer_zero3[] =
    "{\n"
    "  \"fp16\": {\"enabled\": \"auto\", \"loss_scale\": 0, \"loss_scale_window\": 1000,\n"
    "    \"initial_scale_power\": 16, \"hysteresis\": 2, \"min_loss_scale\": 1},\n"
    "  \"bf16\": {\"enabled\": \"auto\"},\n"
    "  \"optimizer\": {\"type\": \"AdamW\", \"params\": {\n"
    "    \"lr\": \"auto\", \"betas\": \"auto\", \"eps\": \"auto\", \"weight_decay\": \"auto\"}},\n"
    "  \"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\n"
    "    \"warmup_min_lr\": \"auto\", \"warmup_max_lr\": \"auto\", \"warmup_num_steps\": \"auto\"}},\n"
    "  \"zero_optimization\": {\n"
    "    \"stage\": 3, \"overlap_comm\": true, \"contiguous_gradients\": true, \"sub_group_size\": 1e9,\n"
    "    \"reduce_bucket_size\": \"auto\", \"stage3_prefetch_bucket_size\": \"auto\",\n"
    "    \"stage3_param_persistence_threshold\": \"auto\", \"stage3_max_live_parameters\": 1e9,\n"
    "    \"stage3_max_reuse_distance\": 1e9, \"stage3_gather_16bit_weights_on_model_save\": true},\n"
    "  \"gradient_accumulation_steps\": \"auto\", \"gradient_clipping\": \"auto\", \"steps_per_print\": 2000,\n"
    "  \"train_batch_size\": \"auto\", \"train_micro_batch_size_per_gpu\": \"auto\", \"wall_clock_breakdown\": false\n"
    "}\n";

static const char plain_zero2[] = "{\n"
                                  "\t\"train_batch_size\": 64,\n"
                                  "\t\"gradient_accumulation_steps\": 2,\n"
                                  "\t\"steps_per_print\": 10,\n"
                                  "\t\"optimizer\": {\"type\": \"Adam\", \"params\": {\n"
                                  "\t\t\"lr\": 0.00015, \"betas\": [0.8, 0.999], \"eps\": 1e-8,\n"
                                  "\t\t\"weight_decay\": 3e-7}},\n"
                                  "\t\"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {\n"
                                  "\t\t\"warmup_min_lr\": 0.00003, \"warmup_max_lr\": 0.0003,\n"
                                  "\t\t\"warmup_num_steps\": 100, \"total_num_steps\": 5e3,\n"
                                  "\t\t\"warmup_type\": \"linear\"}},\n"
                                  "\t\"gradient_clipping\": 0.5,\n"
                                  "\t\"bfloat16\": {\"enabled\": true},\n"
                                  "\t\"communication_data_type\": \"bf16\",\n"
                                  "\t\"zero_optimization\": {\"stage\": 2, \"allgather_partitions\": true,\n"
                                  "\t\t\"allgather_bucket_size\": 2e8, \"reduce_scatter\": true,\n"
                                  "\t\t\"reduce_bucket_size\": 500000000, \"overlap_comm\": false}\n"
                                  "}\n";

static void whole_files(void **state)
{
    (void)state;
    struct sherd_config c;
    ASSERT_OK(parse(&c, trainer_zero3, 4));
    static const char *const auto_keys[] = { "shard.stage", "3", "batch.micro", "8", "batch.accum", "1",
        "batch.global", "32", "optim.lr", "0.001", "optim.beta2", "0.95", "dtype.param", "f32", "log.every",
        "2000", "dtype.loss_scale", "dynamic", "dtype.loss_scale_window", "1000", "dtype.hysteresis", "2",
        "schedule.kind", "constant", "schedule.count", "deepspeed", "schedule.warmup_shape", "log",
        "shard.overlap", "true", NULL };
    expect_keys(&c, auto_keys);
    expect_remark(&c, "train_batch_size = 32 (batch.global, derived)\n");
    expect_remark(&c, "optimizer.params.betas = 0.95 (optim.beta2, default)\n");
    expect_remark(&c, "zero_optimization.stage3_prefetch_bucket_size = 1 (shard.prefetch, default)\n");
    expect_remark(&c, "scheduler.params.warmup_max_lr = optimizer.params.lr\n");
    expect_remark(&c, "fp16.enabled = by dtype.param");
    expect_remark(&c, "  zero_optimization.contiguous_gradients: ");
    expect_remark(&c, "  zero_optimization.reduce_bucket_size: ");
    sherd_config_free(&c);

    ASSERT_OK(parse(&c, plain_zero2, 4));
    static const char *const plain_keys[] = { "shard.stage", "2", "shard.overlap", "false", "batch.global",
        "64", "batch.accum", "2", "batch.micro", "8", "optim.name", "adamw", "optim.lr", "0.0003",
        "optim.beta1", "0.8", "optim.beta2", "0.999", "optim.eps", "1e-08", "optim.weight_decay", "3e-07",
        "optim.clip", "0.5", "schedule.kind", "linear", "schedule.warmup", "100", "schedule.warmup_from",
        "0.1", "schedule.steps", "5000", "schedule.min_lr", "0.1", "schedule.warmup_shape", "linear",
        "dtype.param", "bf16", "dtype.reduce", "bf16", "train.nonfinite", "skip", "log.every", "10", NULL };
    expect_keys(&c, plain_keys);
    expect_remark(&c, "optimizer.params.lr: the scheduler sets the rate");
    sherd_config_free(&c);
}

/* Both printed forms tell where a value stood, and the YAML reads back as the same settings. */
static void printed(void **state)
{
    (void)state;
    struct sherd_config c, again, copy;
    char *yaml, *json;
    ASSERT_OK(parse(&c, plain_zero2, 4));
    ASSERT_OK(sherd_config_print(&c, &yaml));
    ASSERT_CONTAINS(yaml, "# ds.json:2 train_batch_size\n");
    ASSERT_CONTAINS(yaml, "# ds.json:13 bfloat16.enabled\n");
    ASSERT_CONTAINS(yaml, "# From DeepSpeed, ds.json\n");
    ASSERT_OK(sherd_config_json(&c, &json));
    ASSERT_CONTAINS(json, "\"source\": \"ds.json:2 train_batch_size\"");
    ASSERT_OK(sherd_config_parse(&again, yaml, strlen(yaml), "again.yaml", NULL, 0, 4));
    ASSERT_OK(config_copy(&copy, &c));
    for (int i = 0; i < key_count(); i++) {
        struct text a = { 0 };
        char *want;
        key_print(key_at(i), &c, &a);
        ASSERT_OK(text_take(&a, &want));
        expect_key(&again, key_at(i)->path, want);
        expect_key(&copy, key_at(i)->path, want);
        mem_free(want);
    }
    expect_remark(&copy, "From DeepSpeed, ds.json");
    mem_free(yaml);
    mem_free(json);
    sherd_config_free(&copy);
    sherd_config_free(&again);
    sherd_config_free(&c);
}

/* --- batch --- */

static void batch_arithmetic(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int world;
        int64_t global, micro, accum;
    } good[] = {
        { "{\"train_batch_size\": 24, \"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 3}",
            4, 24, 2, 3 },
        { "{\"train_batch_size\": 24, \"train_micro_batch_size_per_gpu\": 2}", 4, 24, 2, 3 },
        { "{\"train_batch_size\": 24, \"gradient_accumulation_steps\": 3}", 4, 24, 2, 3 },
        { "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 3}", 4, 24, 2, 3 },
        { "{\"train_batch_size\": 24}", 4, 24, 6, 1 },
        { "{\"train_micro_batch_size_per_gpu\": 2}", 4, 8, 2, 1 },
        { "{\"train_batch_size\": \"auto\", \"train_micro_batch_size_per_gpu\": 2, "
          "\"gradient_accumulation_steps\": \"auto\"}",
            4, 8, 2, 1 },
        { "{\"train_batch_size\": 2.4e1}", 1, 24, 24, 1 },
    };
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        struct sherd_config c;
        ASSERT_OK(parse(&c, good[i].text, good[i].world));
        assert_int_equal(c.batch.global, good[i].global);
        assert_int_equal(c.batch.micro, good[i].micro);
        assert_int_equal(c.batch.accum, good[i].accum);
        sherd_config_free(&c);
    }
    expect_fail("{\"train_batch_size\": 256,\n\"train_micro_batch_size_per_gpu\": 4,\n"
                "\"gradient_accumulation_steps\": 8}",
        1, "ds.json:1: train_batch_size (batch.global): global 256, micro 4, accum 8 and world 1 do not fit");
    expect_fail("{\"train_batch_size\": 20, \"train_micro_batch_size_per_gpu\": 3}", 2,
        "train_batch_size (batch.global): global 20, micro 3, accum auto and world 2 do not fit");
    expect_fail("{\"train_batch_size\": 20}", 3, "global 20, micro auto, accum auto and world 3 do not fit");
    expect_fail("{\n\"gradient_accumulation_steps\": 2}", 2,
        "ds.json: neither train_batch_size nor train_micro_batch_size_per_gpu is given");
    expect_fail("{\"steps_per_print\": 2}", 2, "neither train_batch_size nor");
    expect_fail("{\"train_batch_size\": 0}", 0, "ds.json:1: train_batch_size: must be above 0, not 0");
    expect_fail("{\"train_batch_size\": -8}", 0, "ds.json:1: train_batch_size: must be above 0, not -8");
    expect_fail(
        "{\"train_batch_size\": 2.5}", 0, "ds.json:1: train_batch_size: must be a whole number, not 2.5");
    expect_fail("{\"train_batch_size\": \"8\"}", 0, "must be a whole number, not the text \"8\"");
    struct sherd_config c;
    ASSERT_OK(parse_set(&c, "{\"steps_per_print\": 2}", "batch.micro=3", 2));
    assert_int_equal(c.batch.global, 6);
    sherd_config_free(&c);
}

/* --- refusals --- */

#define B "\"train_batch_size\": 8, "
/* The text of these keys: JSON as it is written, but in one line. */
#define DS(...) "{" B #__VA_ARGS__ "}"

static void refusals(void **state)
{
    (void)state;
    /* clang-format off */
    static const struct {
        const char *text, *message;
    } bad[] = {
        { "{" B "\n\"zero_optimisation\": {\"stage\": 2}}",
            "ds.json:2: zero_optimisation: DeepSpeed has no such key; did you mean zero_optimization?" },
        { "{" B "\"zero_optimization\": {\n\"stge\": 2}}",
            "ds.json:2: zero_optimization.stge: DeepSpeed has no such key; did you mean zero_optimization.stage?" },
        { DS("overlap_comm": true), "did you mean zero_optimization.overlap_comm?" },
        { DS("qqqqqqqqqqq": true), "qqqqqqqqqqq: DeepSpeed has no such key; remove it" },
        { "{" B "\n\"train_batch_size\": 9}", "ds.json:2: train_batch_size: given twice, first in line 1" },
        { "{" B "\"bf16\": {\"enabled\": true},\n\"bfloat16\": {\"enabled\": true}}",
            "ds.json:2: bfloat16: given twice, under another name in line 1" },
        { DS("zero_optimization": {"stage": 4}), "zero_optimization.stage: shard.stage: must be a whole" },
        { DS("zero_optimization": {"stage": "auto"}), "nothing fills in \"auto\" here" },
        { DS("zero_optimization": 3), "zero_optimization: must be true or false, not 3" },
        { DS("optimizer": 3), "optimizer: is a block of keys, not 3" },
        { DS("optimizer": {}), "optimizer: has no type" },
        { DS("optimizer": {"type": "Lamb"}), "optimizer.type: Lamb is not an optimizer of sherd's; AdamW" },
        { DS("optimizer": {"params": {"freeze_step": 9}, "type": "OneBitAdam"}),
            "optimizer.type: OneBitAdam is not an optimizer of sherd's" },
        { DS("compression_training": {"a": [{"b": [1]}]}), "compression_training: cannot be honoured" },
        { DS("optimizer": {"type": "AdanW"}), "did you mean adamw?" },
        { DS("optimizer": {"type": "SGD", "params": {"betas": [0.9, 0.9]}}), "SGD has no such param" },
        { DS("optimizer": {"type": "Adam", "params": {"momentum": 0.9}}), "Adam has no such param" },
        { DS("optimizer": {"type": "Adam", "params": {"betas": [0.9]}}), "must be two numbers" },
        { DS("optimizer": {"type": "Adam", "params": {"betas": [0.9, 1.5]}}), "optim.beta2: must be" },
        { DS("optimizer": {"type": "Adam", "params": {"lr": "fast"}}), "must be a number, not the text" },
        { "{" B
          "\"optimizer\": {\"type\": \"Adam\", \"params\": {\n\"adam_w_mode\": false, \"weight_decay\": 0.1}}}",
            "ds.json:2: optimizer.params.adam_w_mode: adds weight decay to the gradient" },
        { DS("optimizer": {"type": "SGD", "params": {"nesterov": true}}),
            "nesterov: true cannot be honoured" },
        { DS("scheduler": {"type": "OneCycle"}), "scheduler.type: OneCycle is not a schedule of sherd's" },
        { DS("scheduler": {"type": "LRRangeTest"}), "LRRangeTest is not a schedule of sherd's" },
        { DS("scheduler": {"type": "WarmupDecayLR"}), "needs total_num_steps" },
        { DS("scheduler": {"type": "WarmupLR", "params": {"total_num_steps": 9}}), "WarmupLR has no such" },
        { DS("scheduler": {"type": "WarmupLR", "params": {"warmup_type": "sqrt"}}), "log or linear" },
        { DS("scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 9}}),
            "scheduler.params.warmup_min_lr: 9 is above the highest rate" },
        { "{" B "\n\"fp16\": {\"enabled\": true}, \"bf16\": {\"enabled\": true}}",
            "ds.json:2: fp16.enabled: bf16.enabled is true as well" },
        { DS("fp16": {"enabled": true, "min_loss_scale": 0}),
            "fp16.min_loss_scale: dtype.min_loss_scale: must be a number above 0" },
        { DS("fp16": {"enabled": true, "loss_scale_window": 0}),
            "fp16.loss_scale_window: dtype.loss_scale_window: must be a whole number from 1" },
        { DS("fp16": {"enabled": true, "initial_scale_power": 3, "min_loss_scale": 9}),
            "fp16.min_loss_scale (dtype.min_loss_scale): 9 is above the first scale" },
        { DS("communication_data_type": "fp8"), "communication_data_type: fp8 is not possible" },
        { DS("communication_data_type": "fp16"), "communication_data_type (dtype.reduce): f16 would round" },
        { DS("communication_data_type": "bf16"),
            "communication_data_type (dtype.reduce): bf16 would round" },
        { DS("data_types": {"grad_accum_dtype": "bf16"}), "grad_accum_dtype: bf16 cannot be honoured" },
        { DS("bf16": {"enabled": true}, "data_types": {"param_dtype": "fp32"}),
            "data_types.param_dtype: makes dtype.param f32, but it is bf16 at ds.json:1" },
        { DS("gradient_allreduce_op": "sum"), "gradient_allreduce_op: sum cannot be honoured" },
        { DS("gradient_clipping": -1), "gradient_clipping: optim.clip: must be" },
        { DS("steps_per_print": "auto"), "steps_per_print: nothing fills in \"auto\" here; give a value" },
        { "{" B "\"zero_optimization\": {\"offload_optimizer\": {\n\"device\": \"cpu\"}}}",
            "ds.json:2: zero_optimization.offload_optimizer.device: cpu cannot be honoured" },
        { DS("zero_optimization": {"offload_param": {"device": "nvme"}}), "nvme cannot be honoured" },
        { DS("zero_optimization": {"cpu_offload": true}), "cpu_offload: true cannot be honoured" },
        { DS("zero_optimization": {"zero_quantized_weights": true}), "true cannot be honoured" },
        { DS("zero_optimization": {"zero_hpz_partition_size": 8}), "8 cannot be honoured" },
        { DS("zero_optimization": {"mics_shard_size": 4}), "4 cannot be honoured" },
        { DS("sparse_attention": {"mode": "fixed"}), "sparse_attention: cannot be honoured" },
        { DS("elasticity": {"enabled": true}), "elasticity.enabled: true cannot be honoured" },
        { DS("wall_clock_breakdown": 1), "wall_clock_breakdown: must be true or false, not 1" },
        { DS("bf16": {"enabled": true, "bf16_optimizer_states": true}), "dtype.state: bf16 keeps" },
        { DS("bfloat16": {"enabld": true}),
            "bfloat16.enabld: DeepSpeed has no such key; did you mean bfloat16.enabled?" },
        { DS("bfloat16": {"enabled": 3}), "bfloat16.enabled: must be true or false" },
        { DS("zero_optimization": {"stage": 3, "prefetch_bucket_size": true}), ": zero_optimization.prefetch_bucket" },
        { "{}", "neither train_batch_size nor" },
        { "{\"\\ud83d\\uDE00\": 1}", "ds.json:1: \xf0\x9f\x98\x80: DeepSpeed has no such key" },
        { "{\"\\ud83d\": 1}", "ds.json:1: not valid JSON" },
        { "{\"a\\\\ud83d\": 1}", "ds.json:1: a\\ud83d: DeepSpeed has no such key" },
        { "{\"\\ud83d\\ude0", "not valid JSON" },
        { DS("zero_optimization.stage": 3), "zero_optimization.stage: no key of DeepSpeed has a dot" },
        { "{" B, "ds.json:2: not valid JSON" },
        { "[1]", "settings are sections" },
    };
    /* clang-format on */
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        expect_fail(bad[i].text, 1, bad[i].message);
        if (strchr(sherd_error(), '\n'))
            fail_msg("one thing is told as more: %s", sherd_error());
    }
}

/* All that is refused, each with its way out; a type that cannot be had is told without its parameters. */
static void all_refusals_at_once(void **state)
{
    (void)state;
    static const char many[] =
        "{" B "\"elasticity\": {\"enabled\": true},\n"
        "\"optimizer\": {\"type\": \"Lamb\", \"params\": {\"max_coeff\": 3}},\n"
        "\"zero_optimization\": {\"stge\": 2, \"mics_shard_size\": 4, \"offload_param\": {\"device\": \"nvme\"}},\n"
        "\"scheduler\": {\"type\": \"OneCycle\", \"params\": {\"cycle_max_lr\": 1}},\n"
        "\"gradient_clipping\": -1}";
    static const char *const told[] = {
        "ds.json: 7 settings cannot be taken:\nds.json:2: optimizer.type: Lamb is not",
        "\nds.json:4: scheduler.type: OneCycle is not a schedule",
        "\nds.json:1: elasticity.enabled: true cannot be honoured: ", "set it to false",
        "\nds.json:3: zero_optimization.stge: DeepSpeed has no such key; did you mean zero_optimization.stage?",
        "\nds.json:3: zero_optimization.mics_shard_size: 4 cannot be honoured: ",
        "\nds.json:3: zero_optimization.offload_param.device: nvme cannot be honoured: ",
        "\nds.json:5: gradient_clipping: optim.clip: must be"
    };
    struct sherd_config config;
    for (size_t i = 0; i < ARRAY_LEN(told); i++)
        expect_fail(many, 1, told[i]);
    assert_int_equal(parse(&config, many, 1), SHERD_ECONFIG);
    assert_null(strstr(sherd_error(), "max_coeff"));
    assert_null(strstr(sherd_error(), "cycle_max_lr"));
    /* what follows from several keys is told together, too */
    static const char several[] = "{" B "\"fp16\": {\"enabled\": true}, \"bf16\": {\"enabled\": true},\n"
                                  "\"optimizer\": {\"type\": \"SGD\", \"params\": {\"eps\": 1}},\n"
                                  "\"scheduler\": {\"type\": \"WarmupDecayLR\"}}";
    expect_fail(
        several, 1, "ds.json: 3 settings cannot be taken:\nds.json:2: optimizer.params.eps: SGD has no");
    expect_fail(several, 1, "needs total_num_steps");
    expect_fail(several, 1, "bf16.enabled is true as well");
}

/* These are refused, and nothing else. */
static void expect_lines(const char *text, const char *const *lines, int n)
{
    struct sherd_config config;
    char head[64];
    snprintf(head, sizeof(head), "ds.json: %d settings cannot be taken:\n", n);
    ASSERT_FAILS(parse(&config, text, 1), SHERD_ECONFIG, head);
    for (int i = 0; i < n; i++)
        ASSERT_CONTAINS(sherd_error(), lines[i]);
}

/* A key that is not known hid what does not fit together until it was mended, and of two such things one hid
 * the other. */
static void two_kinds_of_refusals_at_once(void **state)
{
    (void)state;
    static const char mixed[] =
        "{" B "\"gradient_cliping\": 1, \"fp16\": {\"enabled\": true, \"hysteresis\": -1},\n"
        "\"bf16\": {\"enabled\": true}, \"communication_data_type\": \"int8\",\n"
        "\"optimizer\": {\"type\": \"SGD\", \"params\": {\"eps\": 1, \"betas\": [0, 0]}},\n"
        "\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_num_steps\": -1, \"warmup_min_lr\": -1,\n"
        "\"warmup_type\": \"square\"}}}";
    static const char *const told[] = { "\nds.json:1: gradient_cliping: DeepSpeed has no such key",
        "\nds.json:3: optimizer.params.eps: SGD has no such",
        "\nds.json:3: optimizer.params.betas: SGD has no such",
        "\nds.json:4: scheduler.params.warmup_num_steps: must be 0 or above",
        "\nds.json:5: scheduler.params.warmup_type: must be log",
        "\nds.json:4: scheduler.params.warmup_min_lr: must be 0",
        "\nds.json:1: fp16.hysteresis: dtype.hysteresis: ",
        "\nds.json:1: fp16.enabled: bf16.enabled is true as well",
        "\nds.json:2: communication_data_type: int8 is not possible" };
    expect_lines(mixed, told, ARRAY_LEN(told));
    /* what waits for all settings is together, too */
    static const char late[] =
        "{\"optimizer\": {\"type\": \"Adam\", \"params\": {\"adam_w_mode\": false, \"weight_decay\": 1}},\n"
        "\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_min_lr\": 1, \"warmup_max_lr\": 0.1}}}";
    static const char *const waited[] = { "\nds.json:2: scheduler.params.warmup_min_lr: 1 is above",
        "\nds.json:1: optimizer.params.adam_w_mode: adds weight decay",
        "\nds.json: neither train_batch_size" };
    expect_lines(late, waited, ARRAY_LEN(waited));
}

/* A key that is refused is neither lacking nor what it would be by default. */
static void what_is_refused_is_not_missed(void **state)
{
    (void)state;
    struct sherd_config config;
    static const char *const texts[] = {
        "{" B "\"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {\"total_num_steps\": true}}}",
        "{" B "\"zero_optimization\": {\"stage\": 9}}",
        "{" B "\"fp16\": {\"enabled\": 3}, \"bf16\": {\"enabled\": false}}",
    };
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        assert_int_equal(parse(&config, texts[i], 1), SHERD_ECONFIG);
        if (strchr(sherd_error(), '\n'))
            fail_msg("more than one thing is told: %s", sherd_error());
    }
    static const char *const yamls[][2] = {
        { "accelerate: {mixed_precision: bf16}\n"
          "deepspeed: {train_batch_size: 1, fp16: {enabled: 3}, bf16: {enabled: false}}\n",
            "x.yaml:2: fp16.enabled: must be true or false, not 3" },
        { "deepspeed: {train_batch_size: 1, zero_optimization: {stage: 9}}\n"
          "accelerate: {deepspeed_config: {zero_stage: 3}}\n",
            "x.yaml:1: zero_optimization.stage: " },
    };
    for (size_t i = 0; i < ARRAY_LEN(yamls); i++) {
        const char *yaml = yamls[i][0];
        ASSERT_FAILS(sherd_config_parse(&config, yaml, strlen(yaml), "x.yaml", NULL, 0, 1), SHERD_ECONFIG,
            yamls[i][1]);
        if (strchr(sherd_error(), '\n'))
            fail_msg("more than one thing is told: %s", sherd_error());
    }
}

/* More of them than an error text holds are counted. */
static void more_refusals_than_fit(void **state)
{
    (void)state;
    struct text t = { 0 };
    struct sherd_config config;
    char *s;
    text_add(&t, "{" B "\"zero_optimization\": {\"stage\": 1");
    for (int i = 0; i < 100; i++)
        text_add(&t, ",\n\"a_key_that_is_not_%d\": 1", i);
    text_add(&t, "}}");
    ASSERT_OK(text_take(&t, &s));
    assert_int_equal(parse(&config, s, 1), SHERD_ECONFIG);
    mem_free(s);
    ASSERT_CONTAINS(sherd_error(), "ds.json: 100 settings cannot be taken:\nds.json:2: ");
    int lines = 0, left = 0;
    for (const char *p = sherd_error(); (p = strchr(p, '\n')); p++)
        lines++;
    assert_int_equal(sscanf(strrchr(sherd_error(), '\n'), "\nand %d more", &left), 1);
    assert_int_equal(lines - 1 + left, 100);
}

/* A value that fills a text by itself is cut, and leaves room for the others. */
static void a_long_value_is_cut(void **state)
{
    (void)state;
    static char value[3600], json[4000];
    struct sherd_config config;
    memset(value, 'x', sizeof(value) - 1);
    for (int others = 0; others < 2; others++) {
        snprintf(json, sizeof(json), "{" B "\"fp16\": {\"enabled\": \"%s\"}%s}", value,
            others ? ", \"no_such_key\": 1" : "");
        assert_int_equal(parse(&config, json, 1), SHERD_ECONFIG);
        ASSERT_CONTAINS(sherd_error(), "ds.json:1: fp16.enabled: ");
        ASSERT_CONTAINS(sherd_error(), "xxx...");
        assert_true(!others == !strstr(sherd_error(), "no_such_key"));
    }
}

/* --- what follows --- */

static void defaults_are_theirs(void **state)
{
    (void)state;
    /* clang-format off */
    static const struct {
        const char *text;
        const char *keys[14];
    } t[] = {
        { DS("optimizer": {"type": "adamw"}),
            { "optim.lr", "0.001", "optim.beta1", "0.9", "optim.beta2", "0.999", "optim.weight_decay", "0",
                "schedule.kind", "constant", "shard.stage", "0" } },
        { DS("zero_optimization": true), { "shard.stage", "1", "schedule.kind", "cosine" } },
        { DS("optimizer": {"type": "SGD", "params": {"lr": 0.1, "weight_decay": 0.01}}),
            { "optim.name", "sgd", "optim.momentum", "0", "optim.lr", "0.1", "optim.weight_decay", "0.01" } },
        { DS("optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}}),
            { "optim.name", "sgd", "optim.momentum", "0.9", "optim.weight_decay", "0.01" } },
        { DS("scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 100}},
             "optimizer": {"type": "Adam", "params": {"lr": 3e-4}}),
            { "optim.lr", "0.001", "schedule.warmup", "1000", "schedule.steps", "100", "schedule.min_lr",
                "0" } },
        { DS("scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": "auto"}},
             "optimizer": {"type": "Adam", "params": {"lr": 3e-4}}),
            { "optim.lr", "0.0003", "schedule.kind", "cosine", "schedule.min_lr", "0.0001", "schedule.steps",
                "auto", "schedule.warmup_from", "0" } },
        { DS("optimizer": {"type": "Adam", "params": {"adam_w_mode": false}}),
            { "optim.name", "adamw", "optim.weight_decay", "0" } },
        { DS("zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": 0}),
            { "shard.prefetch", "0" } },
        { DS("zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": 10}),
            { "shard.prefetch", "1" } },
        { DS("zero_optimization": {"stage": 3, "prefetch_bucket_size": 5e8}), { "shard.prefetch", "2" } },
        { DS("zero_optimization": {"offload_optimizer": null, "stage": 1,},), { "shard.stage", "1" } },
        { DS("bf16": {"enabled": true, "check_overflow": false}), { "train.nonfinite", "stop" } },
        { DS("fp16": {"enabled": true}),
            { "dtype.param", "f16", "dtype.reduce", "f32", "dtype.loss_scale", "dynamic",
                "dtype.initial_scale_power", "16", "dtype.min_loss_scale", "1", "train.nonfinite", "skip" } },
        { DS("fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 20,
             "loss_scale_window": 500, "hysteresis": 4, "consecutive_hysteresis": true}),
            { "dtype.loss_scale", "dynamic", "dtype.initial_scale_power", "20", "dtype.loss_scale_window",
                "500", "dtype.hysteresis", "4", "dtype.consecutive_hysteresis", "true" } },
        { DS("fp16": {"enabled": true, "loss_scale": 128, "min_loss_scale": "auto"},
             "communication_data_type": "fp16"),
            { "dtype.loss_scale", "128", "dtype.reduce", "f16", "dtype.min_loss_scale", "1" } },
        { DS("fp16": {"enabled": false, "loss_scale": 128}),
            { "dtype.param", "f32", "dtype.loss_scale", "dynamic", "train.nonfinite", "stop" } },
        { DS("data_types": {"param_dtype": "fp16"}), { "dtype.param", "f16" } },
        { DS("steps_per_print": Infinity), { "log.every", "1000000000000000" } },
        { "// one\n{" B
          "/* two \"*/ \"gradient_clipping\": 0, // three }\n# four\n\"optimizer\": {\"type\": \"//\\\"\"}}",
            { NULL } },
    };
    /* clang-format on */
    for (size_t i = 0; i + 1 < ARRAY_LEN(t); i++) {
        struct sherd_config c;
        ASSERT_OK(parse(&c, t[i].text, 1));
        expect_keys(&c, t[i].keys);
        sherd_config_free(&c);
    }
    expect_fail(t[ARRAY_LEN(t) - 1].text, 1, "ds.json:4: optimizer.type: //\" is not an optimizer");
}

/* A lowest rate is that of both ends of WarmupDecayLR; the command line holds over it, another file must
 * agree. */
static void lowest_rate(void **state)
{
    (void)state;
    static const char text[] =
        DS("scheduler"
            : {
                "type" : "WarmupDecayLR",
                "params" : { "total_num_steps" : 9, "warmup_min_lr" : 0.002, "warmup_max_lr" : 0.01 }
            });
    struct sherd_config c;
    ASSERT_OK(parse(&c, text, 1));
    expect_keys(&c, (const char *const[]){ "schedule.warmup_from", "0.2", "schedule.min_lr", "0.2", NULL });
    sherd_config_free(&c);
    ASSERT_OK(parse_set(&c, text, "schedule.warmup_from=0.5", 1));
    expect_keys(&c, (const char *const[]){ "schedule.warmup_from", "0.5", "schedule.min_lr", "0.2", NULL });
    sherd_config_free(&c);
    ASSERT_OK(parse_set(&c, text, "schedule.min_lr=0", 1));
    expect_keys(&c, (const char *const[]){ "schedule.warmup_from", "0.2", "schedule.min_lr", "0", NULL });
    sherd_config_free(&c);
    ASSERT_FAILS(
        parse(&c,
            "schedule: {min_lr: 0.3}\ndeepspeed: {train_batch_size: 1, scheduler: {type: WarmupDecayLR, "
            "params: {total_num_steps: 9, warmup_min_lr: 0.002, warmup_max_lr: 0.01}}}\n",
            1),
        SHERD_ECONFIG, "makes schedule.min_lr 0.2, but it is 0.3 at ds.json:1; remove one of the two");
}

/* In a YAML of sherd's: by name or written out; both must agree, "auto" takes what stands there. */
static void inside_yaml(void **state)
{
    (void)state;
    struct sherd_config c;
    const char *text = "deepspeed:\n"
                       "  train_micro_batch_size_per_gpu: auto\n"
                       "  train_batch_size: 12\n"
                       "  zero_optimization: {stage: 2}\n"
                       "batch: {micro: 3}\n"
                       "shard: {stage: 2}\n";
    ASSERT_OK(sherd_config_parse(&c, text, strlen(text), "x.yaml", NULL, 0, 2));
    assert_int_equal(c.batch.accum, 2);
    expect_remark(&c, "train_micro_batch_size_per_gpu = 3 (batch.micro, x.yaml:5)");
    sherd_config_free(&c);
    text = "deepspeed: {train_batch_size: 8, zero_optimization: {stage: 3}}\nshard: {stage: 2}\n";
    ASSERT_FAILS(sherd_config_parse(&c, text, strlen(text), "x.yaml", NULL, 0, 1), SHERD_ECONFIG,
        "x.yaml:1: zero_optimization.stage: makes shard.stage 3, but it is 2 at x.yaml:2; remove one of the two");
    text = "run: {seed: 2}\ndeepspeed: /nowhere/ds.json\n";
    ASSERT_FAILS(sherd_config_parse(&c, text, strlen(text), "x.yaml", NULL, 0, 1), SHERD_ECONFIG,
        "x.yaml:2: deepspeed: cannot open '/nowhere/ds.json'");
    text = "run: {seed: 2}\ndeepspeed: [a]\n";
    ASSERT_FAILS(sherd_config_parse(&c, text, strlen(text), "x.yaml", NULL, 0, 1), SHERD_ECONFIG,
        "x.yaml:2: deepspeed: must be the name of a file");
    text = "run: {seed: 2}\ntrain_batch_size: 3\n";
    ASSERT_FAILS(sherd_config_parse(&c, text, strlen(text), "x.yaml", NULL, 0, 1), SHERD_ECONFIG,
        "x.yaml:2: train_batch_size: unknown key; did you mean batch.global?");
}

/* A value of the row's type that it does not refuse. */
static const char *value_for(const struct foreign_key *key)
{
    static const char *const values[] = { "true", "1", "1", "\"fp32\"", "[0.5, 0.5]", "1" };
    static char word[64];
    if (key->how != FOREIGN_ONLY)
        return values[key->type];
    snprintf(word, sizeof(word), "%.*s", (int)strcspn(key->ours, "|"), key->ours);
    return word;
}

/* The type that a parameter of this path needs beside it. */
static const char *type_beside(const char *path)
{
    if (strncmp(path, "scheduler.", 10) == 0)
        return "\"type\": \"WarmupLR\", ";
    if (strncmp(path, "optimizer.", 10) != 0)
        return "";
    return strstr(path, "dampening") || strstr(path, "nesterov") ? "\"type\": \"SGD\", "
                                                                 : "\"type\": \"Adam\", ";
}

/* {"a": {"b": {"c": value}}} */
static void nest(const char *path, const char *value, char *out, size_t bytes)
{
    int depth = 1;
    size_t at = (size_t)snprintf(out, bytes, "{\"train_batch_size\": 8, \"");
    if (strcmp(path, "train_batch_size") == 0)
        at = (size_t)snprintf(out, bytes, "{\"");
    for (const char *p = path; *p; p++) {
        if (*p == '.') {
            at += (size_t)snprintf(out + at, bytes - at, "\": {%s\"", depth == 1 ? type_beside(path) : "");
            depth++;
        } else {
            at += (size_t)snprintf(out + at, bytes - at, "%c", *p == '*' ? 'x' : *p);
        }
    }
    at += (size_t)snprintf(out + at, bytes - at, "\": %s", value);
    while (depth-- > 0)
        at += (size_t)snprintf(out + at, bytes - at, "}");
}

/* Every row is heard: a NOTE or ONLY is told by name, a SET changes where its key comes from, other words of
 * an ONLY are refused, and one letter changed is refused with the row's name where names are near. */
static void every_row(void **state)
{
    (void)state;
    char text[512], want[256];
    for (int i = 0; i < foreign_deepspeed.n; i++) {
        const struct foreign_key *key = &foreign_deepspeed.keys[i];
        struct sherd_config c;
        int refused = key->how == FOREIGN_ONLY && !key->ours[0];
        nest(key->path, refused ? "1" : value_for(key), text, sizeof(text));
        size_t fixed = strcspn(key->path, "*");
        assert_true(fixed < sizeof(want));
        memcpy(want, key->path, fixed);
        want[fixed] = 0;
        if (refused) {
            expect_fail(text, 1, "cannot be honoured");
            expect_fail(text, 1, want);
            continue;
        }
        if (key->how == FOREIGN_CODE)
            continue; /* each has its own test above */
        ASSERT_OK(parse(&c, text, 1));
        if (key->how == FOREIGN_SET)
            assert_string_equal(config_source_of(&c, key_find(key->ours))->theirs, key->path);
        else
            expect_remark(&c, want);
        sherd_config_free(&c);
        if (key->how == FOREIGN_ONLY) {
            nest(key->path,
                key->type == FOREIGN_BOOL   ? key->ours[0] == 't' ? "false" : "true"
                : key->type == FOREIGN_TEXT ? "\"other\""
                                            : "77",
                text, sizeof(text));
            expect_fail(text, 1, "cannot be honoured");
        }
    }
}

/* The path as "auto" in a file of few other keys, under the n-th type that its block can have. */
static void nest_auto(const char *path, int n, char *out, size_t bytes)
{
    static const char *const optimizers[] = { "AdamW", "SGD", "Adam" };
    static const char *const schedulers[] = { "WarmupLR", "WarmupDecayLR", "WarmupCosineLR" };
    const char *dot = strrchr(path, '.'), *name = dot ? dot + 1 : path;
    int first = text_starts(path, "optimizer.params."), second = text_starts(path, "scheduler.params.");
    const char *total = n == 0 || strcmp(name, "total_num_steps") == 0 ? "" : "\"total_num_steps\": 9, ";
    if (first || second)
        snprintf(out, bytes, "{" B "\"%s\": {\"type\": \"%s\", \"params\": {%s\"%s\": \"auto\"}}}",
            first ? "optimizer" : "scheduler", first ? optimizers[n] : schedulers[n], first ? "" : total,
            name);
    else
        nest(path, "\"auto\"", out, bytes);
}

/* "auto" is refused, or told by name among the remarks with what it means here. */
static void every_auto_is_told(void **state)
{
    (void)state;
    char text[512];
    for (int i = 0; i < foreign_deepspeed.n; i++) {
        const struct foreign_key *key = &foreign_deepspeed.keys[i];
        int taken = 0;
        for (int n = 0; n < 3 && !strchr(key->path, '*'); n++) {
            struct sherd_config c;
            nest_auto(key->path, n, text, sizeof(text));
            if (parse(&c, text, 1) != SHERD_OK)
                continue;
            expect_remark(&c, key->path);
            sherd_config_free(&c);
            taken = 1;
        }
        if (key->flags & FOREIGN_AUTO && !taken)
            fail_msg("%s: \"auto\" is refused: %s", key->path, sherd_error());
    }
}

static void misspelt_rows(void **state)
{
    (void)state;
    char path[FOREIGN_PATH_BYTES], text[512];
    for (int i = 0; i < foreign_deepspeed.n; i++) {
        const struct foreign_key *key = &foreign_deepspeed.keys[i];
        const char *dot = strrchr(key->path, '.');
        size_t first = dot ? (size_t)(dot - key->path) + 1 : 0, n = strlen(key->path);
        if (key->path[n - 1] == '*' || n - first < 4)
            continue;
        snprintf(path, sizeof(path), "%s", key->path);
        path[n - 1] = path[n - 1] == 'q' ? 'x' : 'q';
        nest(path, "1", text, sizeof(text));
        struct sherd_config c;
        int st = parse(&c, text, 1);
        if (st == SHERD_OK) { /* a block that takes any key */
            expect_remark(&c, path);
            sherd_config_free(&c);
            continue;
        }
        assert_int_equal(st, SHERD_ECONFIG);
        ASSERT_CONTAINS(sherd_error(), path);
        ASSERT_CONTAINS(sherd_error(), "DeepSpeed has no such key; did you mean ");
    }
}

/* Whose file it is would be unclear if a system had a block with the name of a section. */
static void no_names_of_sections(void **state)
{
    (void)state;
    static const struct foreign_system *const systems[] = { &foreign_deepspeed, &foreign_accelerate };
    for (size_t s = 0; s < ARRAY_LEN(systems); s++)
        for (int i = 0; i < systems[s]->n; i++) {
            char head[64];
            const char *path = systems[s]->keys[i].path;
            snprintf(head, sizeof(head), "%.*s", (int)strcspn(path, "."), path);
            if (key_find_section(head))
                fail_msg("%s of %s is a section too", head, systems[s]->name);
        }
}

static void memory_runs_out(void **state)
{
    (void)state;
    for (int64_t k = 1;; k++) {
        struct sherd_config c;
        mem_fail_at(k);
        int st = parse(&c, trainer_zero3, 2);
        mem_fail_at(0);
        sherd_config_free(&c);
        if (st == SHERD_OK)
            break;
        assert_int_equal(st, SHERD_ENOMEM);
        assert_true(k < 100000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_files),
        cmocka_unit_test(printed),
        cmocka_unit_test(batch_arithmetic),
        cmocka_unit_test(refusals),
        cmocka_unit_test(all_refusals_at_once),
        cmocka_unit_test(two_kinds_of_refusals_at_once),
        cmocka_unit_test(what_is_refused_is_not_missed),
        cmocka_unit_test(more_refusals_than_fit),
        cmocka_unit_test(a_long_value_is_cut),
        cmocka_unit_test(defaults_are_theirs),
        cmocka_unit_test(lowest_rate),
        cmocka_unit_test(inside_yaml),
        cmocka_unit_test(every_row),
        cmocka_unit_test(every_auto_is_told),
        cmocka_unit_test(misspelt_rows),
        cmocka_unit_test(no_names_of_sections),
        cmocka_unit_test(memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
