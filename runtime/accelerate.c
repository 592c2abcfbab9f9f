/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The YAML that Accelerate's questionnaire writes, with its blocks for FSDP (versions 1 and 2) and DeepSpeed:
 * every key and what becomes of it. The way through a file is in runtime/foreign.c.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "runtime/foreign_rows.h"
#include "runtime/keys.h"

#define LAUNCH "ranks are started by --ranks, torchrun, mpirun or srun"
#define TPU "it is for TPUs"
#define SEQUENCES "sequences are not divided among ranks"

/* clang-format off */
static const struct foreign_key keys[] = {
    CODE("compute_environment", TEXT,
        "no influence: " LAUNCH "; AMAZON_SAGEMAKER is refused"),
    CODE("distributed_type", TEXT,
        "FSDP and DEEPSPEED: as their block says; MULTI_GPU, MULTI_CPU and NO: `shard.stage` 0; others are "
        "refused"),
    CODE("mixed_precision", TEXT,
        "`dtype.param`: no f32, bf16 bf16, fp16 f16; with FSDP `dtype.reduce` too, as there; fp8 is "
        "refused; fp16 without DeepSpeed: `dtype.loss_scale_window` 2000, `dtype.hysteresis` 1"),
    CODE("fp16", BOOL, "the old form of mixed_precision: true = fp16, false = no"),
    NOTE("debug", BOOL, "what ranks send each other is checked when they start"),
    NOTE("downcast_bf16", ANY, TPU),
    NOTE("enable_cpu_affinity", BOOL, "ranks on GPUs keep to cores near them, see run.bind"),
    NOTE("dynamo_backend", TEXT, "models are compiled already"),
    NOTE("dynamo_config.*", ANY, "models are compiled already"),
    CODE("use_cpu", BOOL, "true: `run.device` cpu; false: run.device stays; told where that is cpu"),
    NOTE("gpu_ids", ANY, "rank r of a host takes GPU r"),
    NOTE("machine_rank", INT, LAUNCH),
    NOTE("main_process_ip", TEXT, LAUNCH),
    NOTE("main_process_port", INT, LAUNCH),
    NOTE("main_training_function", TEXT, "`sherd train` is the training function"),
    CODE("num_machines", INT, "no influence: " LAUNCH),
    CODE("num_processes", INT, "no influence: " LAUNCH "; told where another number was started"),
    NOTE("rdzv_backend", TEXT, LAUNCH),
    NOTE("same_network", BOOL, LAUNCH),
    NOTE("mpirun_config.*", ANY, LAUNCH),
    NOTE("ipex_config.*", ANY, "there is one way to compute on a CPU"),
    NOTE("commands", ANY, TPU),
    NOTE("command_file", ANY, TPU),
    NOTE("tpu_env", LIST, TPU),
    NOTE("tpu_name", ANY, TPU),
    NOTE("tpu_use_cluster", BOOL, TPU),
    NOTE("tpu_use_sudo", BOOL, TPU),
    NOTE("tpu_vm", ANY, TPU),
    NOTE("tpu_zone", ANY, TPU),
    ONLY("fp8_config", ANY, "", "weights are f32, bf16 or f16; remove it"),
    ONLY("megatron_lm_config", ANY, "", "layers are not divided among ranks; remove it"),

    ONLY("parallelism_config.dp_replicate_size", INT, "1", "weights are divided over all ranks; set it to 1"),
    NOTE("parallelism_config.dp_shard_size", INT, "weights are divided over all ranks"),
    ONLY("parallelism_config.tp_size", INT, "1", "layers are not divided among ranks; set it to 1"),
    ONLY("parallelism_config.cp_size", INT, "1", SEQUENCES "; set it to 1"),
    NOTE("parallelism_config.cp_backend", TEXT, SEQUENCES),
    NOTE("parallelism_config.cp_comm_strategy", TEXT, SEQUENCES),
    ONLY("parallelism_config.sp_size", INT, "1", SEQUENCES "; set it to 1"),
    NOTE("parallelism_config.sp_backend", TEXT, SEQUENCES),
    NOTE("parallelism_config.sp_seq_length", INT, SEQUENCES),
    NOTE("parallelism_config.sp_seq_length_is_variable", BOOL, SEQUENCES),
    NOTE("parallelism_config.sp_attn_implementation", TEXT, SEQUENCES),

    CODE("fsdp_config.version", INT, "1 or 2; not given: 1"),
    CODE("fsdp_config.sharding_strategy", TEXT,
        "version 1, by name or number: FULL_SHARD `shard.stage` 3, SHARD_GRAD_OP 2, NO_SHARD 0; hybrid ones "
        "are refused; not given: 3"),
    CODE("fsdp_config.reshard_after_forward", TEXT,
        "version 2: true `shard.stage` 3, false 2; version 1: the name of a strategy; not given: 3"),
    ONLY("fsdp_config.offload_params", BOOL, "false",
        "everything stays on the device; set it to false, and use more ranks"),
    NOTE("fsdp_config.auto_wrap_policy", TEXT, "every layer is a unit"),
    NOTE("fsdp_config.transformer_layer_cls_to_wrap", ANY, "every layer is a unit"),
    NOTE("fsdp_config.min_num_params", INT, "every layer is a unit"),
    CODE("fsdp_config.backward_prefetch", TEXT,
        "`shard.prefetch`: BACKWARD_PRE 1, BACKWARD_POST and NO_PREFETCH 0"),
    NOTE("fsdp_config.forward_prefetch", BOOL, "shard.prefetch holds in both directions"),
    NOTE("fsdp_config.limit_all_gathers", BOOL, "shard.prefetch is the limit"),
    CODE("fsdp_config.state_dict_type", TEXT,
        "no influence: checkpoints are written in slices, `sherd merge` makes one of them"),
    NOTE("fsdp_config.use_orig_params", BOOL, "tensors keep their names and shapes"),
    CODE("fsdp_config.cpu_ram_efficient_loading", BOOL, "no influence: every rank reads its own slices"),
    NOTE("fsdp_config.sync_module_states", BOOL, "ranks begin with the same weights"),
    CODE("fsdp_config.activation_checkpointing", BOOL, "`train.recompute`: true block, false none"),
    ONLY("fsdp_config.ignored_modules", ANY, "",
        "every tensor is sharded; remove it, model.freeze is for those that are not trained"),

    CODE("deepspeed_config.deepspeed_config_file", TEXT,
        "that file is read; both must agree where both say something"),
    SET("deepspeed_config.zero_stage", INT, "shard.stage", "not given: 2"),
    SET("deepspeed_config.gradient_accumulation_steps", INT, "batch.accum", NULL, FOREIGN_AUTO),
    SET("deepspeed_config.gradient_clipping", REAL, "optim.clip", NULL, FOREIGN_AUTO),
    ONLY("deepspeed_config.offload_optimizer_device", TEXT, "none",
        "everything stays on the device; set it to none, and use a higher stage or more ranks"),
    ONLY("deepspeed_config.offload_param_device", TEXT, "none",
        "everything stays on the device; set it to none, and use a higher stage or more ranks"),
    NOTE("deepspeed_config.offload_optimizer_nvme_path", TEXT, "nothing is offloaded"),
    NOTE("deepspeed_config.offload_param_nvme_path", TEXT, "nothing is offloaded"),
    NOTE("deepspeed_config.seq_parallel_communication_data_type", TEXT, SEQUENCES),
    NOTE("deepspeed_config.zero3_init_flag", BOOL, "every rank draws its own slices"),
    NOTE("deepspeed_config.zero3_save_16bit_model", BOOL,
        "checkpoints are written in slices; `sherd merge --dtype bf16` makes whole 16-bit weights of any of "
        "them"),
    NOTE("deepspeed_config.deepspeed_hostfile", TEXT, LAUNCH),
    NOTE("deepspeed_config.deepspeed_inclusion_filter", TEXT, LAUNCH),
    NOTE("deepspeed_config.deepspeed_exclusion_filter", TEXT, LAUNCH),
    NOTE("deepspeed_config.deepspeed_multinode_launcher", TEXT, LAUNCH),
    ONLY("deepspeed_config.deepspeed_moe_layer_cls_names", TEXT, "", "there are no experts; remove it"),
};
/* clang-format on */

struct word {
    const char *theirs, *ours; /* ours: NULL = not possible here */
};

/* Sets our key by a list of words; `what` says what is possible. */
static int put_word(struct foreign *f, const struct foreign_item *item, const char *ours,
    const struct word *words, int n, const char *what)
{
    for (int i = 0; i < n; i++)
        if (strcasecmp(item->node->value, words[i].theirs) == 0 && words[i].ours)
            return foreign_put(f, item, ours, words[i].ours);
    return FOREIGN_FAIL(f, item, "%s is not possible here; %s", item->node->value, what);
}

static int take_strategy(struct foreign *f, const struct foreign_item *item)
{
    static const struct word words[] = { { "FULL_SHARD", "3" }, { "1", "3" }, { "SHARD_GRAD_OP", "2" },
        { "2", "2" }, { "NO_SHARD", "0" }, { "3", "0" } };
    return put_word(f, item, "shard.stage", words, ARRAY_LEN(words),
        "FULL_SHARD, SHARD_GRAD_OP and NO_SHARD are, over all ranks");
}

static int take_sharding(struct foreign *f, int version)
{
    const struct foreign_item *strategy = foreign_get(f, "fsdp_config.sharding_strategy");
    const struct foreign_item *reshard = foreign_get(f, "fsdp_config.reshard_after_forward");
    static const struct word flags[] = { { "true", "3" }, { "false", "2" } };
    if (version == 2 && strategy)
        SHERD_TRY(foreign_remark(f, CONFIG_IDLE, strategy->path, "version 2 goes by reshard_after_forward"));
    if (version == 2 && reshard)
        return put_word(f, reshard, "shard.stage", flags, ARRAY_LEN(flags),
            "version 2 takes true or false; a strategy's name needs fsdp_version: 1");
    if (version == 1 && reshard) {
        if (strcasecmp(reshard->node->value, "true") == 0 || strcasecmp(reshard->node->value, "false") == 0)
            return FOREIGN_FAIL(f, reshard,
                "version 1 takes the name of a strategy, as FULL_SHARD; true and false need fsdp_version: 2");
        FOREIGN_TRY(f, take_strategy(f, reshard));
    }
    if (version == 1 && strategy)
        return take_strategy(f, strategy);
    return foreign_default(f, "shard.stage", "3");
}

/* What Accelerate itself refuses, and keys that only one version has. */
static int check_version(struct foreign *f, int version)
{
    const struct foreign_item *type = foreign_get(f, "fsdp_config.state_dict_type");
    const struct foreign_item *forward = foreign_get(f, "fsdp_config.forward_prefetch");
    const struct foreign_item *ram = foreign_get(f, "fsdp_config.cpu_ram_efficient_loading");
    const struct foreign_item *sync = foreign_get(f, "fsdp_config.sync_module_states");
    static const char *const types[] = { "FULL_STATE_DICT", "SHARDED_STATE_DICT", "LOCAL_STATE_DICT" };
    int known = 0;
    for (int i = 0; type && i < 4 - version; i++)
        known |= strcasecmp(type->node->value, types[i]) == 0;
    if (type && !known)
        return FOREIGN_FAIL(f, type,
            "%s is not possible in version %d; FULL_STATE_DICT and SHARDED_STATE_DICT are", type->node->value,
            version);
    if (version == 2 && forward && foreign_bool(forward))
        return FOREIGN_FAIL(f, forward, "version 2 does not take it; remove it");
    if (version == 1 && ram && sync && !foreign_is_auto(ram) && foreign_bool(ram) && !foreign_bool(sync))
        return FOREIGN_FAIL(f, sync, "must be true where cpu_ram_efficient_loading is true");
    if (type)
        SHERD_TRY(foreign_remark(f, CONFIG_IDLE, type->path,
            "checkpoints are written in slices, `sherd merge` makes one of them"));
    return ram ? foreign_remark(f, CONFIG_IDLE, ram->path, "every rank reads its own slices") : SHERD_OK;
}

static int take_fsdp(struct foreign *f)
{
    const struct foreign_item *given = foreign_get(f, "fsdp_config.version");
    const struct foreign_item *prefetch = foreign_get(f, "fsdp_config.backward_prefetch");
    const struct foreign_item *recompute = foreign_get(f, "fsdp_config.activation_checkpointing");
    static const struct word words[] = { { "BACKWARD_PRE", "1" }, { "BACKWARD_POST", "0" },
        { "NO_PREFETCH", "0" } };
    int version = given ? (int)foreign_real(given) : 1;
    if (foreign_refused(f, "fsdp_config.version"))
        return SHERD_OK;
    if (given && (foreign_real(given) < 1 || foreign_real(given) > 2))
        return FOREIGN_FAIL(f, given, "must be 1 or 2, not %s", given->node->value);
    if (given)
        SHERD_TRY(foreign_remark(f, CONFIG_IDLE, given->path, "it says how the other keys are read"));
    FOREIGN_TRY(f, check_version(f, version));
    if (prefetch)
        FOREIGN_TRY(f, put_word(f, prefetch, "shard.prefetch", words, ARRAY_LEN(words),
                           "BACKWARD_PRE, BACKWARD_POST and NO_PREFETCH are"));
    if (recompute && !foreign_is_auto(recompute))
        FOREIGN_TRY(
            f, foreign_put(f, recompute, "train.recompute", foreign_bool(recompute) ? "block" : "none"));
    return take_sharding(f, version);
}

/* PyTorch's own scaler halves at once, and has no smallest scale. */
static int take_scaler(struct foreign *f, const struct foreign_item *item)
{
    SHERD_TRY(foreign_default(f, "dtype.loss_scale_window", "2000"));
    SHERD_TRY(foreign_default(f, "dtype.hysteresis", "1"));
    return foreign_remark(f, CONFIG_DIFFERENT, item->path,
        "a loss scale below 1 (dtype.min_loss_scale) ends the run here; there it falls on");
}

static int take_precision(struct foreign *f, int fsdp, int deepspeed)
{
    static const struct word words[] = { { "no", "f32" }, { "false", "f32" }, { "bf16", "bf16" },
        { "fp16", "f16" }, { "true", "f16" } /* of the old form */ };
    const struct foreign_item *item = foreign_get(f, "mixed_precision"), *old = foreign_get(f, "fp16");
    if (old && !item)
        item = old;
    else if (old)
        SHERD_TRY(foreign_remark(f, CONFIG_IDLE, old->path, "mixed_precision holds over it, as there"));
    if (!item)
        return SHERD_OK;
    SHERD_TRY(put_word(f, item, "dtype.param", words, ARRAY_LEN(words), "bf16, fp16 and no are"));
    if (!deepspeed && f->config->dtype.param == SHERD_F16)
        SHERD_TRY(take_scaler(f, item));
    return fsdp ? put_word(f, item, "dtype.reduce", words, ARRAY_LEN(words), "") : SHERD_OK;
}

/* Ranks that its launcher would start; compared with those there are once these are known. */
static int take_ranks(struct foreign *f)
{
    const struct foreign_item *ranks = foreign_get(f, "num_processes");
    const struct foreign_item *hosts = foreign_get(f, "num_machines");
    struct config_late *late = &f->origin->late;
    if (hosts)
        SHERD_TRY(foreign_remark(f, CONFIG_IDLE, hosts->path, LAUNCH));
    if (!ranks)
        return SHERD_OK;
    late->hosts = hosts ? foreign_real(hosts) : 1;
    late->ranks = (struct config_place){ foreign_where(f, ranks), ranks->path, foreign_real(ranks) };
    return late->ranks.where ? SHERD_OK : SHERD_ENOMEM;
}

static int settle_ranks(struct foreign *f, const struct config_late *late, int world)
{
    double ranks = late->ranks.value, hosts = late->hosts;
    const char *key = late->ranks.theirs;
    if (!late->ranks.where)
        return SHERD_OK;
    if (world == 0 || ranks < 1 || ranks == world) /* below 1 it leaves the number to Slurm */
        return foreign_remark(f, CONFIG_IDLE, key, LAUNCH);
    if (hosts > 1 && fmod(ranks, hosts) == 0)
        return foreign_remark(f, CONFIG_DIFFERENT, key,
            "%.15g ranks on %.15g hosts there, %d here; `sherd launch --nnodes %.15g --nproc-per-node %.15g` on "
            "each host starts as many",
            ranks, hosts, world, hosts, ranks / hosts);
    return foreign_remark(f, CONFIG_DIFFERENT, key,
        "%.15g rank%s there, %d here; --ranks %.15g starts as many", ranks, ranks > 1 ? "s" : "", world,
        ranks);
}

/* use_cpu: false. */
static int settle_gpus(struct foreign *f, const struct config_late *late)
{
    const char *key = late->gpus.theirs;
    if (!late->gpus.where)
        return SHERD_OK;
    if (strcmp(f->config->run.device, "cpu") != 0)
        return foreign_remark(f, CONFIG_IDLE, key, "run.device says where");
    return foreign_remark(
        f, CONFIG_DIFFERENT, key, "GPUs there if it finds any, the CPU here; run.device=cuda trains on GPUs");
}

int accelerate_settle(struct sherd_config *config, int world)
{
    struct config_origin *origin = config->origin;
    struct foreign f = { config, origin, &foreign_accelerate, origin->name, NULL };
    SHERD_TRY(settle_gpus(&f, &origin->late));
    return settle_ranks(&f, &origin->late, world);
}

static int take_deepspeed(struct foreign *f, const struct foreign_item *file)
{
    const char *named = arena_printf(&f->origin->arena, "%s:%d: %s", f->name, file->node->line, file->path);
    return named ? foreign_load(f->config, &foreign_deepspeed, file->node->value, named) : SHERD_ENOMEM;
}

/* A file for a cloud has keys of its own. */
static int first(struct foreign *f, const struct yaml_node *root)
{
    const struct yaml_node *n = yaml_member(root, "compute_environment");
    if (!n || n->kind != YAML_VALUE || strcasecmp(n->value, "AMAZON_SAGEMAKER") != 0)
        return SHERD_OK;
    struct foreign_item item = { .path = n->key, .node = n };
    return FOREIGN_FAIL(f, &item,
        "%s is not possible here: " LAUNCH "; write a LOCAL_MACHINE one with 'accelerate config'", n->value);
}

static int translate(struct foreign *f)
{
    static const char *const types[] = { "FSDP", "DEEPSPEED", "MULTI_GPU", "MULTI_CPU", "NO" };
    const struct foreign_item *type = foreign_get(f, "distributed_type"), *cpu = foreign_get(f, "use_cpu");
    const struct foreign_item *fsdp = foreign_get(f, "fsdp_config"), *ds = foreign_get(f, "deepspeed_config");
    const struct foreign_item *file = foreign_get(f, "deepspeed_config.deepspeed_config_file");
    const struct foreign_item *place = foreign_get(f, "compute_environment");
    int which = type ? -1 : fsdp ? 0 : ds ? 1 : 4;
    if (foreign_refused(f, "distributed_type"))
        return SHERD_OK;
    for (int i = 0; type && i < (int)ARRAY_LEN(types); i++)
        if (strcasecmp(type->node->value, types[i]) == 0)
            which = i;
    if (which < 0)
        return FOREIGN_FAIL(f, type,
            "%s is not possible here; FSDP, DEEPSPEED, MULTI_GPU, MULTI_CPU and NO are", type->node->value);
    if (fsdp && which != 0)
        return FOREIGN_FAIL(f, fsdp, "belongs to distributed_type FSDP, not %s; remove one", types[which]);
    if (ds && which != 1)
        return FOREIGN_FAIL(f, ds, "belongs to distributed_type DEEPSPEED, not %s; remove one", types[which]);
    if (place)
        SHERD_TRY(foreign_remark(f, CONFIG_IDLE, place->path, LAUNCH));
    FOREIGN_TRY(f, take_ranks(f));
    FOREIGN_TRY(f, take_precision(f, which == 0, which == 1));
    if (which == 0)
        FOREIGN_TRY(f, take_fsdp(f));
    if (which == 1)
        FOREIGN_TRY(f, file ? take_deepspeed(f, file) : foreign_default(f, "shard.stage", "2"));
    if (which > 1 && type)
        FOREIGN_TRY(f, foreign_put(f, type, "shard.stage", "0"));
    if (cpu && foreign_bool(cpu))
        return foreign_put(f, cpu, "run.device", "cpu");
    if (cpu)
        f->origin->late.gpus = (struct config_place){ foreign_where(f, cpu), cpu->path, 0 };
    return !cpu || f->origin->late.gpus.where ? SHERD_OK : SHERD_ENOMEM;
}

/* In two blocks keys may be written with or without the prefix; one has two names. */
static void canonical(char *path)
{
    static const char *const blocks[][2] = { { "fsdp_config.", "fsdp_" },
        { "parallelism_config.", "parallelism_config_" } };
    for (size_t i = 0; i < ARRAY_LEN(blocks); i++) {
        size_t block = strlen(blocks[i][0]), prefix = strlen(blocks[i][1]);
        char *name = path + block;
        if (strncmp(path, blocks[i][0], block) == 0 && strncmp(name, blocks[i][1], prefix) == 0)
            memmove(name, name + prefix, strlen(name + prefix) + 1);
    }
    if (strcmp(path, "fsdp_config.backward_prefetch_policy") == 0)
        strcpy(path, "fsdp_config.backward_prefetch");
}

const struct foreign_system foreign_accelerate = {
    .name = "Accelerate",
    .keys = keys,
    .n = ARRAY_LEN(keys),
    .canonical = canonical,
    .empty_is_none = 1,
    .first = first,
    .translate = translate,
};
