/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Accelerate's YAML: whole files as its questionnaire writes them, both versions of FSDP, its DeepSpeed
 * block, what is refused, and that no row of the table goes unheard.
 */
#include "tests/check.h"

#include <stdio.h>

#include "base/file.h"
#include "runtime/foreign.h"
#include "runtime/keys.h"
#include "tests/folder.h"

static int parse(struct sherd_config *out, const char *text)
{
    return sherd_config_parse(out, text, strlen(text), "acc.yaml", NULL, 0, 0);
}

static void expect_fail(const char *text, const char *message)
{
    struct sherd_config config;
    ASSERT_FAILS(parse(&config, text), SHERD_ECONFIG, message);
    assert_null(config.origin);
}

static void expect_remark(const struct sherd_config *config, const char *part)
{
    char *text;
    ASSERT_OK(sherd_config_remarks(config, &text));
    ASSERT_CONTAINS(text, part);
    mem_free(text);
}

static const char fsdp1[] = "compute_environment: LOCAL_MACHINE\n"
                            "debug: false\n"
                            "distributed_type: FSDP\n"
                            "downcast_bf16: 'no'\n"
                            "enable_cpu_affinity: false\n"
                            "fsdp_config:\n"
                            "  fsdp_activation_checkpointing: true\n"
                            "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
                            "  fsdp_backward_prefetch: BACKWARD_PRE\n"
                            "  fsdp_cpu_ram_efficient_loading: true\n"
                            "  fsdp_forward_prefetch: false\n"
                            "  fsdp_offload_params: false\n"
                            "  fsdp_sharding_strategy: SHARD_GRAD_OP\n"
                            "  fsdp_state_dict_type: SHARDED_STATE_DICT\n"
                            "  fsdp_sync_module_states: true\n"
                            "  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer\n"
                            "  fsdp_use_orig_params: true\n"
                            "machine_rank: 0\n"
                            "main_training_function: main\n"
                            "mixed_precision: bf16\n"
                            "num_machines: 1\n"
                            "num_processes: 2\n"
                            "rdzv_backend: static\n"
                            "same_network: true\n"
                            "tpu_env: []\n"
                            "tpu_use_cluster: false\n"
                            "tpu_use_sudo: false\n"
                            "use_cpu: false\n";

static const char fsdp2[] = "distributed_type: 'FSDP'\n"
                            "fsdp_config:\n"
                            "  fsdp_version: 2\n"
                            "  reshard_after_forward: True\n"
                            "  fsdp_auto_wrap_policy: NO_WRAP\n"
                            "  fsdp_state_dict_type: FULL_STATE_DICT\n"
                            "  fsdp_transformer_layer_cls_to_wrap:\n"
                            "mixed_precision: 'no'\n"
                            "use_cpu: true\n";

static const char deepspeed[] = "deepspeed_config:\n"
                                "  gradient_accumulation_steps: 4\n"
                                "  gradient_clipping: 0.5\n"
                                "  offload_optimizer_device: none\n"
                                "  offload_param_device: none\n"
                                "  zero3_init_flag: true\n"
                                "  zero3_save_16bit_model: true\n"
                                "  zero_stage: 3\n"
                                "distributed_type: DEEPSPEED\n"
                                "mixed_precision: bf16\n";

static void whole_files(void **state)
{
    (void)state;
    struct sherd_config c;
    ASSERT_OK(parse(&c, fsdp1));
    assert_int_equal(c.shard.stage, 2);
    assert_int_equal(c.shard.prefetch, 1);
    assert_int_equal(c.dtype.param, SHERD_BF16);
    assert_int_equal(c.dtype.reduce, SHERD_BF16);
    assert_int_equal(c.train.recompute, SHERD_RECOMPUTE_BLOCK);
    expect_remark(&c, "From Accelerate, acc.yaml\n");
    expect_remark(&c, "  num_processes: ranks are started by");
    expect_remark(&c, "  fsdp_config.fsdp_auto_wrap_policy: every layer is a unit");
    expect_remark(&c, "  fsdp_config.fsdp_offload_params: false is what happens here");
    expect_remark(&c, "to know:\n  use_cpu: GPUs there if it finds any, the CPU here; run.device=cuda");
    sherd_config_free(&c);
    ASSERT_OK(parse(&c, fsdp2));
    assert_int_equal(c.shard.stage, 3);
    assert_int_equal(c.dtype.param, SHERD_F32);
    assert_string_equal(config_source_of(&c, key_find("run.device"))->theirs, "use_cpu");
    sherd_config_free(&c);
    ASSERT_OK(parse(&c, deepspeed));
    assert_int_equal(c.shard.stage, 3);
    assert_int_equal(c.batch.accum, 4);
    assert_true(c.optim.clip == 0.5);
    assert_int_equal(c.dtype.param, SHERD_BF16);
    assert_int_equal(c.dtype.reduce, SHERD_F32);
    sherd_config_free(&c);
}

/* In f16 without DeepSpeed the loss scale is PyTorch's, with it DeepSpeed's. */
static void half_precision(void **state)
{
    (void)state;
    struct sherd_config c;
    ASSERT_OK(parse(&c, "distributed_type: FSDP\nmixed_precision: fp16\n"));
    assert_true(c.dtype.param == SHERD_F16 && c.dtype.reduce == SHERD_F16);
    assert_true(c.dtype.loss_scale_window == 2000 && c.dtype.hysteresis == 1);
    expect_remark(&c, "mixed_precision: a loss scale below 1");
    sherd_config_free(&c);
    ASSERT_OK(
        parse(&c, "distributed_type: DEEPSPEED\nmixed_precision: fp16\ndeepspeed_config: {zero_stage: 2}\n"));
    assert_true(c.dtype.param == SHERD_F16 && c.dtype.reduce == SHERD_F32);
    assert_true(c.dtype.loss_scale_window == 1000 && c.dtype.hysteresis == 2);
    sherd_config_free(&c);
}

static void stages(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int stage;
    } t[] = {
        { "distributed_type: FSDP\n", 3 },
        { "distributed_type: MULTI_GPU\n", 0 },
        { "distributed_type: 'NO'\n", 0 },
        { "distributed_type: DEEPSPEED\n", 2 },
        { "distributed_type: FSDP\nfsdp_config: {}\n", 3 },
        { "fsdp_config: {sharding_strategy: 1}\n", 3 },
        { "fsdp_config: {sharding_strategy: 2}\n", 2 },
        { "fsdp_config: {fsdp_sharding_strategy: 3}\n", 0 },
        { "fsdp_config: {sharding_strategy: FULL_SHARD}\n", 3 },
        { "fsdp_config: {sharding_strategy: NO_SHARD}\n", 0 },
        { "fsdp_config: {reshard_after_forward: SHARD_GRAD_OP}\n", 2 },
        { "fsdp_config: {version: 2, reshard_after_forward: false}\n", 2 },
        { "fsdp_config: {version: 2}\n", 3 },
        { "fsdp_config: {version: 2, sharding_strategy: NO_SHARD}\n", 3 },
    };
    for (size_t i = 0; i < ARRAY_LEN(t); i++) {
        struct sherd_config c;
        ASSERT_OK(parse(&c, t[i].text));
        assert_int_equal(c.shard.stage, t[i].stage);
        sherd_config_free(&c);
    }
}

static void refusals(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } bad[] = {
        { "distributed_type: TPU\n",
            "acc.yaml:1: distributed_type: TPU is not possible here; FSDP, DEEPSPEED" },
        { "distributed_type: FSDP\nfsdp_cofnig: {}\n",
            "acc.yaml:2: fsdp_cofnig: Accelerate has no such key; did you mean fsdp_config?" },
        { "fsdp_config:\n  fsdp_shardnig_strategy: 1\n",
            "acc.yaml:2: fsdp_config.fsdp_shardnig_strategy: Accelerate has no such key; did you mean fsdp_config.fsdp_sharding_strategy?" },
        { "fsdp_config:\n  shardnig_strategy: 1\n", "did you mean fsdp_config.sharding_strategy?" },
        { "fsdp_config:\n  fsdp_version: 3\n",
            "acc.yaml:2: fsdp_config.fsdp_version: must be 1 or 2, not 3" },
        { "fsdp_config: {sharding_strategy: HYBRID_SHARD}\n",
            "HYBRID_SHARD is not possible here; FULL_SHARD" },
        { "fsdp_config: {sharding_strategy: 5}\n", "5 is not possible here" },
        { "fsdp_config: {sharding_strategy: FULL_SHARD, fsdp_sharding_strategy: FULL_SHARD}\n",
            "given twice" },
        { "fsdp_config: {reshard_after_forward: true}\n", "version 1 takes the name of a strategy" },
        { "fsdp_config: {version: 2, reshard_after_forward: FULL_SHARD}\n", "version 2 takes true or false" },
        { "fsdp_config: {version: 2, forward_prefetch: true}\n",
            "forward_prefetch: version 2 does not take it" },
        { "fsdp_config: {version: 2, state_dict_type: LOCAL_STATE_DICT}\n",
            "LOCAL_STATE_DICT is not possible in version 2" },
        { "fsdp_config: {cpu_ram_efficient_loading: true, sync_module_states: false}\n",
            "must be true where" },
        { "fsdp_config: {version: two, reshard_after_forward: true}\n",
            "version: must be a whole number, not two" },
        { "distributed_type: [FSDP]\nfsdp_config: {version: 1}\ndeepspeed_config: {zero_stage: 1}\n",
            "distributed_type: must be a text, not a list" },
        { "fsdp_config: {offload_params: true}\n", "offload_params: true cannot be honoured" },
        { "fsdp_config: {ignored_modules: 'lm_head'}\n", "ignored_modules: lm_head cannot be honoured" },
        { "fsdp_config: {backward_prefetch: SOMETIMES}\n", "SOMETIMES is not possible here" },
        { "distributed_type: MULTI_GPU\nfsdp_config: {version: 1}\n",
            "acc.yaml:2: fsdp_config: belongs to distributed_type FSDP" },
        { "distributed_type: FSDP\ndeepspeed_config: {zero_stage: 1}\n",
            "acc.yaml:2: deepspeed_config: belongs to" },
        { "distributed_type: FSDP\nmixed_precision: fp8\n",
            "acc.yaml:2: mixed_precision: fp8 is not possible here; bf16, fp16 and no are" },
        { "deepspeed_config: {zero_stage: 7}\n", "deepspeed_config.zero_stage: shard.stage: must be" },
        { "deepspeed_config: {offload_optimizer_device: cpu}\n", "cpu cannot be honoured" },
        { "deepspeed_config: {deepspeed_config_file: /nowhere.json}\n", "/nowhere.json" },
        { "additional_args: 1\ncompute_environment: AMAZON_SAGEMAKER\n",
            "acc.yaml:2: compute_environment: AMAZON_SAGEMAKER is not possible here" },
        { "mixed_precision: bf16\nnum_processes: 2\ngradient_accumulation_steps: 2\n",
            "acc.yaml:3: gradient_accumulation_steps: Accelerate has no such key; did you mean deepspeed_config" },
        { "parallelism_config:\n  parallelism_config_tp_size: 2\n",
            "acc.yaml:2: parallelism_config.parallelism_config_tp_size: 2 cannot be honoured" },
        { "parallelism_config: {cp_size: 8}\n", "cp_size: 8 cannot be honoured" },
        { "megatron_lm_config: {megatron_lm_tp_degree: 2}\nnum_machines: 1\n",
            "megatron_lm_config: cannot be honoured" },
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        expect_fail(bad[i].text, bad[i].message);
        if (strchr(sherd_error(), '\n'))
            fail_msg("one thing is told as more: %s", sherd_error());
    }
}

/* What questionnaires of some years wrote, with blocks and keys that are empty: they say nothing. */
static void older_files(void **state)
{
    (void)state;
    static const char of_2023[] = "command_file: null\ncommands: null\ncompute_environment: LOCAL_MACHINE\n"
                                  "deepspeed_config: {}\ndistributed_type: MULTI_GPU\ndowncast_bf16: 'no'\n"
                                  "dynamo_backend: 'NO'\nfsdp_config: {}\ngpu_ids: all\nipex_config: {}\n"
                                  "main_training_function: main\nmegatron_lm_config: {}\n"
                                  "mixed_precision: 'no'\nnum_machines: 1\nnum_processes: 2\n"
                                  "rdzv_backend: static\nsame_network: true\ntpu_env: []\ntpu_name: null\n"
                                  "tpu_vm: null\ntpu_zone: null\nuse_cpu: true\n";
    static const char of_2021[] =
        "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nfp16: true\nnum_processes: 2\n";
    struct sherd_config c;
    ASSERT_OK(parse(&c, of_2023));
    assert_int_equal(c.shard.stage, 0);
    assert_string_equal(c.run.device, "cpu");
    sherd_config_free(&c);
    ASSERT_OK(parse(&c, of_2021));
    assert_int_equal(c.dtype.param, SHERD_F16);
    assert_int_equal(c.dtype.hysteresis, 1);
    sherd_config_free(&c);
    ASSERT_OK(parse(&c, "fp16: true\nmixed_precision: bf16\nnum_processes: 2\nuse_cpu: true\n"));
    assert_int_equal(c.dtype.param, SHERD_BF16);
    expect_remark(&c, "  fp16: mixed_precision holds over it");
    sherd_config_free(&c);
    ASSERT_OK(parse(&c, "fp16: false\nnum_processes: 2\nuse_cpu: true\n"));
    assert_int_equal(c.dtype.param, SHERD_F32);
    sherd_config_free(&c);
}

/* Another number of ranks than its launcher would start is told with the way to start as many. */
static void ranks(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int world;
        const char *remark;
    } t[] = {
        { "num_processes: 4\n", 0, "  num_processes: ranks are started by --ranks" },
        { "num_processes: 4\n", 4, "  num_processes: ranks are started by --ranks" },
        { "num_processes: -1\n", 4, "  num_processes: ranks are started by --ranks" },
        { "num_processes: 4\n", 2,
            "to know:\n  num_processes: 4 ranks there, 2 here; --ranks 4 starts as many" },
        { "num_processes: 1\n", 2, "num_processes: 1 rank there, 2 here" },
        { "num_machines: 2\nnum_processes: 8\n", 1,
            "num_processes: 8 ranks on 2 hosts there, 1 here; `sherd launch --nnodes 2 --nproc-per-node 4`" },
        { "num_machines: 2\nnum_processes: 1\n", 4, "num_processes: 1 rank there, 4 here; --ranks 1 starts" },
        { "num_processes: 9223372036854775807\n", 1,
            "num_processes: 9.22337203685478e+18 ranks there, 1 here" },
        { "num_machines: 2\nnum_processes: 8\n", 8, "  num_machines: ranks are started by --ranks" },
    };
    for (size_t i = 0; i < ARRAY_LEN(t); i++) {
        struct sherd_config c;
        ASSERT_OK(sherd_config_parse(&c, t[i].text, strlen(t[i].text), "acc.yaml", NULL, 0, t[i].world));
        expect_remark(&c, t[i].remark);
        sherd_config_free(&c);
    }
    expect_fail("num_processes: many\n", "acc.yaml:1: num_processes: must be a whole number, not many");
}

/* What does not ask for the CPU is told where that is what trains. */
static void devices(void **state)
{
    (void)state;
    static const char text[] = "use_cpu: false\n";
    static const char *const set[] = { "run.device=cuda" };
    struct sherd_config c;
    ASSERT_OK(sherd_config_parse(&c, text, strlen(text), "acc.yaml", set, 1, 1));
    expect_remark(&c, "without influence on results here:\n  use_cpu: run.device says where");
    sherd_config_free(&c);
    ASSERT_OK(sherd_config_parse(&c, text, strlen(text), "acc.yaml", NULL, 0, 1));
    expect_remark(&c, "to know:\n  use_cpu: GPUs there");
    sherd_config_free(&c);
}

/* The DeepSpeed file that it names is read as well, and must agree with it. */
static void file_in_a_file(void **state)
{
    (void)state;
    char folder[FOLDER_BYTES], path[FOLDER_BYTES + 16], text[FOLDER_BYTES + 200], names[FOLDER_BYTES + 200],
        *large;
    static const char wrong[] = "{\"zero_optimization\": {\"stage\": 9},\n\"apm\": 1}";
    static const char ds[] = "{\"train_batch_size\": 12,\n\"zero_optimization\": {\"stage\": 3}}\n";
    struct sherd_config c;
    assert_int_equal(folder_make(folder, "accelerate"), 0);
    snprintf(path, sizeof(path), "%s/ds.json", folder);
    ASSERT_OK(file_write_atomic(path, ds, strlen(ds)));
    snprintf(text, sizeof(text),
        "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: %s}\n", path);
    ASSERT_OK(parse(&c, text));
    assert_int_equal(c.batch.global, 12);
    assert_int_equal(c.shard.stage, 3);
    expect_remark(&c, "From Accelerate, acc.yaml; DeepSpeed, ");
    sherd_config_free(&c);
    snprintf(text, sizeof(text), "deepspeed_config:\n  deepspeed_config_file: %s\n  zero_stage: 2\n", path);
    expect_fail(text, "ds.json:2: zero_optimization.stage: makes shard.stage 3, but it is 2 at acc.yaml:3");
    expect_fail("deepspeed_config:\n  deepspeed_config_file: none.json\n",
        "acc.yaml:2: deepspeed_config.deepspeed_config_file: cannot open 'none.json'");
    ASSERT_OK(file_write_atomic(path, wrong, strlen(wrong)));
    snprintf(text, sizeof(text), "fsdp: 1\ndeepspeed_config: {deepspeed_config_file: %s}\n", path);
    expect_fail(text, "acc.yaml: 3 settings cannot be taken:\nacc.yaml:1: fsdp: Accelerate has no such key");
    expect_fail(text, "ds.json:1: zero_optimization.stage: ");
    expect_fail(text, "ds.json:2: apm: DeepSpeed has no such key");
    large = mem_zalloc(YAML_TEXT_BYTES + 1, 1);
    assert_non_null(large);
    ASSERT_OK(file_write_atomic(path, large, YAML_TEXT_BYTES + 1));
    mem_free(large);
    snprintf(text, sizeof(text), "acc.yaml:2: deepspeed_config.deepspeed_config_file: %s: the file is larger",
        path);
    snprintf(names, sizeof(names), "deepspeed_config:\n  deepspeed_config_file: %s\n", path);
    expect_fail(names, text);
    ASSERT_OK(file_remove_tree(folder));
}

/* Rows without influence are told by name, with the prefix and without. */
static void every_row(void **state)
{
    (void)state;
    static const char *const values[] = { "true", "1", "1", "none", "[]", "1" };
    char text[256], want[160];
    for (int i = 0; i < foreign_accelerate.n; i++) {
        const struct foreign_key *key = &foreign_accelerate.keys[i];
        const char *dot = strchr(key->path, '.'), *name = dot ? dot + 1 : key->path;
        const char *extra = !dot                                         ? NULL
                            : strncmp(key->path, "fsdp", 4) == 0         ? "fsdp_"
                            : strncmp(key->path, "parallelism", 11) == 0 ? "parallelism_config_"
                                                                         : NULL;
        if (key->how == FOREIGN_CODE)
            continue; /* each has its own test above */
        for (int prefix = 0; prefix <= (extra != NULL); prefix++) {
            struct sherd_config c;
            const char *value = key->how == FOREIGN_ONLY && key->ours[0] ? key->ours : values[key->type];
            snprintf(text, sizeof(text), dot ? "%.*s: {%s%s: %s}\n" : "%.*s%s%s: %s\n",
                dot ? (int)(dot - key->path) : 0, key->path, prefix ? extra : "", name[0] == '*' ? "x" : name,
                value);
            snprintf(want, sizeof(want), "%.*s%s%.*s", dot ? (int)(dot - key->path) + 1 : 0, key->path,
                prefix ? extra : "", (int)strcspn(name, "*"), name);
            if (key->how == FOREIGN_ONLY && !key->ours[0]) {
                expect_fail(text, "cannot be honoured");
                continue;
            }
            ASSERT_OK(parse(&c, text));
            if (key->how == FOREIGN_SET)
                assert_string_equal(config_source_of(&c, key_find(key->ours))->theirs, key->path);
            else
                expect_remark(&c, want);
            sherd_config_free(&c);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_files),
        cmocka_unit_test(half_precision),
        cmocka_unit_test(stages),
        cmocka_unit_test(refusals),
        cmocka_unit_test(older_files),
        cmocka_unit_test(ranks),
        cmocka_unit_test(devices),
        cmocka_unit_test(file_in_a_file),
        cmocka_unit_test(every_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
