/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * The table of all settings, and finding a row by a path that may be misspelt.
 */
#include "runtime/keys.h"

#include <string.h>

#include "base/status.h"
#include "comm/ops.h"
#include "device/ops.h"
#include "optim/optim.h"

static const struct key_section sections[] = {
    { "run", "the run as a whole" },
    { "model", "the transformer to train" },
    { "shard", "what each rank holds" },
    { "dtype", "number formats" },
    { "batch", "sequences per step: global = micro * accum * ranks; give any one or two of the three" },
    { "optim", "the optimizer" },
    { "schedule", "the learning rate over the steps" },
    { "train", "how long, and how often to evaluate" },
    { "data", "what to read" },
    { "save", "checkpoints" },
    { "log", "progress" },
    { "profile", "where the time of a step goes: a timeline and tables" },
    { "check", "looking for faults while training" },
};

static const struct key_choice resume_words[] = {
    { "never", SHERD_RESUME_NEVER },
    { "auto", SHERD_RESUME_AUTO },
    { "required", SHERD_RESUME_REQUIRED },
    { NULL, 0 },
};
static const struct key_choice scaling_words[] = {
    { "none", SHERD_ROPE_PLAIN },
    { "linear", SHERD_ROPE_LINEAR },
    { "llama3", SHERD_ROPE_LLAMA3 },
    { NULL, 0 },
};
static const struct key_choice recompute_words[] = {
    { "none", SHERD_RECOMPUTE_NONE },
    { "cheap", SHERD_RECOMPUTE_CHEAP },
    { "block", SHERD_RECOMPUTE_BLOCK },
    { NULL, 0 },
};
static const struct key_choice reduce_words[] = {
    { "kernel", SHERD_REDUCE_BY_KERNEL },
    { "copy", SHERD_REDUCE_BY_COPY },
    { NULL, 0 },
};
static const struct key_choice nonfinite_words[] = {
    { "stop", SHERD_NONFINITE_STOP },
    { "skip", SHERD_NONFINITE_SKIP },
    { NULL, 0 },
};
static const struct key_choice what_words[] = {
    { "all", SHERD_SAVE_ALL },
    { "weights", SHERD_SAVE_WEIGHTS },
    { "nothing", SHERD_SAVE_NOTHING },
    { NULL, 0 },
};
static const struct key_choice failure_words[] = {
    { "stop", SHERD_FAILURE_STOP },
    { "continue", SHERD_FAILURE_CONTINUE },
    { NULL, 0 },
};
static const struct key_choice dtype_words[] = {
    { "f32", SHERD_F32 },
    { "bf16", SHERD_BF16 },
    { "f16", SHERD_F16 },
    { NULL, 0 },
};
static const struct key_choice state_words[] = { { "f32", SHERD_F32 }, { "bf16", SHERD_BF16 }, { NULL, 0 } };
static const struct key_choice master_words[] = {
    { "f32", SHERD_MASTER_WHOLE },
    { "split", SHERD_MASTER_SPLIT },
    { NULL, 0 },
};
static const struct key_choice schedule_words[] = {
    { "constant", SHERD_LR_CONSTANT },
    { "linear", SHERD_LR_LINEAR },
    { "cosine", SHERD_LR_COSINE },
    { "wsd", SHERD_LR_WSD },
    { NULL, 0 },
};
static const struct key_choice warmup_words[] = {
    { "linear", SHERD_WARMUP_LINEAR },
    { "log", SHERD_WARMUP_LOG },
    { NULL, 0 },
};
static const struct key_choice count_words[] = {
    { "steps", SHERD_COUNT_STEPS },
    { "deepspeed", SHERD_COUNT_DEEPSPEED },
    { NULL, 0 },
};
static const struct key_choice graph_words[] = {
    { "auto", SHERD_GRAPH_AUTO },
    { "on", SHERD_GRAPH_ON },
    { "off", SHERD_GRAPH_OFF },
    { NULL, 0 },
};
static const struct key_choice bind_words[] = {
    { "auto", SHERD_BIND_AUTO },
    { "none", SHERD_BIND_NONE },
    { NULL, 0 },
};
static const struct key_choice profile_words[] = {
    { "program", SHERD_PROFILE_PROGRAM },
    { "ops", SHERD_PROFILE_OPS },
    { NULL, 0 },
};
static const struct key_choice format_words[] = {
    { "auto", SHERD_DATA_AUTO },
    { "bytes", SHERD_DATA_BYTES },
    { "llmc", SHERD_DATA_LLMC },
    { "u16", SHERD_DATA_U16 },
    { "megatron", SHERD_DATA_MEGATRON },
    { NULL, 0 },
};

#define AT(field) .offset = offsetof(struct sherd_config, field)
#define INT(path_, field, min_, max_, initial_)                                                              \
    path_, KEY_INT, AT(field), .min = min_, .max = max_, .initial = initial_
#define REAL(path_, field, min_, max_, initial_)                                                             \
    path_, KEY_REAL, AT(field), .min = min_, .max = max_, .initial = initial_
#define BOOL(path_, field, initial_) path_, KEY_BOOL, AT(field), .initial = initial_
#define CHOICE(path_, field, words, initial_)                                                                \
    path_, KEY_CHOICE, AT(field), .choices = words, .initial = initial_
#define TEXT(path_, field, word_, initial_) path_, KEY_TEXT, AT(field), .word = word_, .initial = initial_
#define TEXTS(path_, field) path_, KEY_TEXTS, AT(field), .initial = "[]"

#define SIZE_MOST 1073741824.0
#define INT_MOST 2147483647.0

/* clang-format off */
static const struct key keys[] = {
    { TEXT("run.dir", run.dir, NULL, "runs/default"),
      .help = "folder for everything the run writes" },
    { TEXT("run.device", run.device, device_kind, "cpu"),
      .help = "where the ranks compute" },
    { INT("run.threads", run.threads, 0, 4096, "auto"), .flags = KEY_ZERO,
      .help = "CPU threads of a rank; auto = share the cores among the ranks of the host" },
    { CHOICE("run.bind", run.bind, bind_words, "auto"),
      .help = "GPU: sherd train keeps each rank to its share of the cores near its GPU, if nobody has bound it" },
    { BOOL("run.tune", run.tune, "true"),
      .help = "GPU: time the ways to do each matrix product once, keep the choice in ~/.cache/sherd" },
    { CHOICE("run.graph", run.graph, graph_words, "off"),
      .help = "keep a step as one piece of work, launched whole (CUDA graph); auto = on GPUs, where it can be" },
    { INT("run.seed", run.seed, 0, KEY_MANY, "1"),
      .help = "draws the initial weights and the order of the data" },
    { BOOL("run.deterministic", run.deterministic, "false"),
      .help = "the same bits at every run, on GPUs too: slower there, more work space; a CPU always is" },
    { CHOICE("run.resume", run.resume, resume_words, "never"),
      .help = "go on from the newest checkpoint; auto = if there is one" },
    { TEXT("run.comm", run.comm, comm_way, "auto"),
      .help = "how CPU ranks talk, and GPU ranks about control; auto = shm on one host, tcp or mpi between hosts" },
    { "run.timeout", KEY_SECONDS, AT(run.timeout), .min = 0, .max = 1e6, .flags = KEY_ABOVE, .initial = "600",
      .help = "longest wait for another rank: seconds, or 90s, 10m, 2h" },

    { TEXT("model.from", model.from, NULL, "none"),
      .help = "folder of a Hugging Face model to start from; its config.json then gives the keys below" },
    { TEXT("model.family", model.family, sherd_model_family, "llama"),
      .help = "kind of transformer" },
    { INT("model.vocab", model.vocab, 1, INT_MOST, "256"),
      .help = "number of different tokens; 256 for bytes" },
    { INT("model.width", model.width, 1, SIZE_MOST, "128"),
      .help = "size of the residual stream" },
    { INT("model.layers", model.layers, 1, 100000, "4"),
      .help = "transformer blocks" },
    { INT("model.heads", model.heads, 1, SIZE_MOST, "4"),
      .help = "attention heads" },
    { INT("model.kv_heads", model.kv_heads, 0, SIZE_MOST, "auto"), .flags = KEY_ZERO,
      .help = "llama, qwen: heads of keys and values; auto = heads" },
    { INT("model.head_dim", model.head_dim, 0, SIZE_MOST, "auto"), .flags = KEY_ZERO,
      .help = "llama, qwen: size of a head; auto = width / heads" },
    { INT("model.mlp_width", model.mlp_width, 0, SIZE_MOST, "auto"), .flags = KEY_ZERO,
      .help = "inner size of the MLP; auto = 4 width (gpt2), 8/3 width in steps of 32 (others)" },
    { INT("model.context", model.context, 1, SIZE_MOST, "256"),
      .help = "longest sequence the model can take" },
    { BOOL("model.tied", model.tied, "auto"), .flags = KEY_AUTO,
      .help = "the head shares the weights of the embedding; auto = gpt2 yes, others no" },
    { REAL("model.norm_eps", model.norm_eps, 0, 1, "1e-5"), .flags = KEY_ABOVE,
      .help = "added to the variance in norms" },
    { REAL("model.rope_theta", model.rope_theta, 0, 1e12, "10000"), .flags = KEY_ABOVE,
      .help = "llama, qwen: base of the rotary positions" },
    { CHOICE("model.rope_scaling", model.rope_scaling, scaling_words, "none"),
      .help = "llama, qwen: stretches positions for a longer context than that of a first training" },
    { REAL("model.rope_factor", model.rope_factor, 0, 1e6, "1"), .flags = KEY_ABOVE,
      .help = "linear, llama3: how far positions are stretched" },
    { REAL("model.rope_low_freq", model.rope_low_freq, 0, 1e6, "1"), .flags = KEY_ABOVE,
      .help = "llama3: what turns less often than this in rope_context is stretched whole" },
    { REAL("model.rope_high_freq", model.rope_high_freq, 0, 1e6, "4"), .flags = KEY_ABOVE,
      .help = "llama3: what turns more often than this is left as it is" },
    { INT("model.rope_context", model.rope_context, 1, SIZE_MOST, "8192"),
      .help = "llama3: longest sequence of the first training" },
    { REAL("model.init_std", model.init_std, 0, 10, "0.02"), .flags = KEY_ABOVE,
      .help = "standard deviation of the initial weights" },
    { TEXTS("model.freeze", model.freeze),
      .help = "tensors that are not trained: names, * stands for any text" },

    { INT("shard.stage", shard.stage, 0, SHERD_STAGES - 1, "1"),
      .help = "what is sharded: 0 nothing, 1 optimizer state, 2 also gradients, 3 also weights" },
    { INT("shard.prefetch", shard.prefetch, 0, 1024, "1"),
      .help = "stage 3: units gathered ahead of their use" },
    { BOOL("shard.overlap", shard.overlap, "true"),
      .help = "communicate beside computing" },
    { BOOL("shard.poison", shard.poison, "false"),
      .help = "debugging: fill buffers that are let go with NaN" },
    { CHOICE("shard.reduce", shard.reduce, reduce_words, "kernel"),
      .help = "gradients between GPUs of a host: kernel = NCCL's sums; copy = copy engines, for more memory" },

    { CHOICE("dtype.param", dtype.param, dtype_words, "f32"),
      .help = "weights and activations; the optimizer works on f32" },
    { CHOICE("dtype.reduce", dtype.reduce, dtype_words, "f32"),
      .help = "gradients between ranks: f32, or the format of dtype.param" },
    { CHOICE("dtype.master", dtype.master, master_words, "f32"),
      .help = "float weights: f32 beside bf16 ones, or split: only the 16 bits those lack, same results" },
    { CHOICE("dtype.state", dtype.state, state_words, "f32"),
      .help = "the optimizer's means; bf16 = rounded up or down at random, in proportion" },
    { REAL("dtype.loss_scale", dtype.loss_scale, 0, 0x1p60, "dynamic"), .flags = KEY_DYNAMIC,
      .help = "f16: factor of the gradients while they are computed; dynamic falls when they overflow" },
    { INT("dtype.initial_scale_power", dtype.initial_scale_power, 0, 60, "16"),
      .help = "dynamic: the scale begins at 2 to this power" },
    { INT("dtype.loss_scale_window", dtype.loss_scale_window, 1, KEY_MANY, "1000"),
      .help = "dynamic: it doubles after so many steps without overflow" },
    { INT("dtype.hysteresis", dtype.hysteresis, 1, KEY_MANY, "2"),
      .help = "dynamic: overflows up to the first halving; it takes a doubling to get this patience again" },
    { BOOL("dtype.consecutive_hysteresis", dtype.consecutive_hysteresis, "false"),
      .help = "dynamic: any step without overflow gives it again" },
    { REAL("dtype.min_loss_scale", dtype.min_loss_scale, 0, 0x1p60, "1"), .flags = KEY_ABOVE,
      .help = "dynamic: the smallest scale; an overflow at it ends the run" },

    { INT("batch.global", batch.global, 0, 1e9, "auto"), .flags = KEY_ZERO,
      .help = "sequences of one optimizer step, over all ranks" },
    { INT("batch.micro", batch.micro, 0, 1e9, "auto"), .flags = KEY_ZERO,
      .help = "sequences that one rank computes at a time; 8 when nothing else is given" },
    { INT("batch.accum", batch.accum, 0, 1e9, "auto"), .flags = KEY_ZERO,
      .help = "micro-batches that a rank adds up for one step" },
    { INT("batch.seq", batch.seq, 1, SIZE_MOST, "auto"), .flags = KEY_AUTO,
      .help = "tokens of a sequence; auto = model.context" },

    { TEXT("optim.name", optim.name, optim_name, "adamw"),
      .help = "update rule" },
    { REAL("optim.lr", optim.lr, 0, 1e6, "1e-3"),
      .help = "largest learning rate" },
    { REAL("optim.beta1", optim.beta1, 0, 1, "0.9"), .flags = KEY_BELOW,
      .help = "adamw: decay of the mean gradient" },
    { REAL("optim.beta2", optim.beta2, 0, 1, "0.95"), .flags = KEY_BELOW,
      .help = "adamw: decay of the mean square" },
    { REAL("optim.eps", optim.eps, 0, 1, "1e-8"), .flags = KEY_ABOVE,
      .help = "adamw: added to the root of the mean square" },
    { REAL("optim.weight_decay", optim.weight_decay, 0, 1e6, "0.1"),
      .help = "adamw: taken from the weights; sgd: added to the gradient; not of norms and biases" },
    { REAL("optim.momentum", optim.momentum, 0, 1, "0.9"), .flags = KEY_BELOW,
      .help = "sgd: decay of the velocity; 0 = plain SGD" },
    { REAL("optim.clip", optim.clip, 0, 1e12, "1.0"),
      .help = "largest norm of the whole gradient; 0 = no clipping" },

    { CHOICE("schedule.kind", schedule.kind, schedule_words, "cosine"),
      .help = "shape after the warm-up; wsd = flat, then a fall" },
    { REAL("schedule.warmup", schedule.warmup, 0, KEY_MANY, "0"),
      .help = "steps of rise at the start; below 1 a fraction of all: 0.05 = the first twentieth" },
    { CHOICE("schedule.warmup_shape", schedule.warmup_shape, warmup_words, "linear"),
      .help = "form of the rise" },
    { REAL("schedule.warmup_from", schedule.warmup_from, 0, 1, "0"),
      .help = "where the rise begins, as a fraction of optim.lr" },
    { REAL("schedule.decay", schedule.decay, 0, KEY_MANY, "0"),
      .help = "wsd: steps of the final fall; below 1 a fraction of all" },
    { REAL("schedule.min_lr", schedule.min_lr, 0, 1, "0.1"),
      .help = "rate of the last step, as a fraction of optim.lr" },
    { INT("schedule.steps", schedule.steps, 0, KEY_MANY, "auto"), .flags = KEY_ZERO,
      .help = "steps that the schedule goes over; auto = those of the run" },
    { CHOICE("schedule.count", schedule.count, count_words, "steps"),
      .help = "step k has place k; deepspeed: place k - 2, as its schedulers count" },

    { INT("train.steps", train.steps, 0, KEY_MANY, "0"),
      .help = "optimizer steps in all; 0 = as many as train.epochs needs" },
    { INT("train.epochs", train.epochs, 0, KEY_MANY, "auto"), .flags = KEY_AUTO,
      .help = "times through the data when train.steps is 0; auto = 1 then" },
    { INT("train.eval_every", train.eval_every, 0, KEY_MANY, "auto"), .flags = KEY_AUTO,
      .help = "steps between evaluations, 0 = none; auto = 100 with data.val or data.split" },
    { INT("train.eval_batches", train.eval_batches, 0, KEY_MANY, "20"),
      .help = "micro-batches of each rank in an evaluation; 0 = all there are" },
    { CHOICE("train.recompute", train.recompute, recompute_words, "none"),
      .help = "less memory, same results: cheap = norms and activations twice, block = whole forward twice" },
    { CHOICE("train.nonfinite", train.nonfinite, nonfinite_words, "stop"),
      .help = "a gradient that is infinite or not a number: end the run, or skip the step's update" },
    { INT("train.nonfinite_limit", train.nonfinite_limit, 1, KEY_MANY, "10"),
      .help = "skip: so many steps in a row may be skipped before the run ends" },

    { TEXTS("data.train", data.train),
      .help = "files or folders to train on" },
    { TEXTS("data.val", data.val),
      .help = "files or folders to evaluate on" },
    { TEXTS("data.weights", data.weights),
      .help = "passes of an epoch over each of data.train, [1, 0.5, 3]; [] = one over all, as one stream" },
    { REAL("data.split", data.split, 0, 1, "0"), .flags = KEY_BELOW,
      .help = "fraction of data.train that is kept for evaluation in place of data.val" },
    { INT("data.split_seed", data.split_seed, 0, INT_MOST, "0"),
      .help = "samples for that are drawn at random by this seed; 0 = those at the end" },
    { INT("data.end", data.end, -1, INT_MOST, "-1"),
      .help = "token that ends documents: what follows it is not learnt from it; -1 = learnt as all else" },
    { CHOICE("data.format", data.format, format_words, "auto"),
      .help = "any text, .bin with a header, bare .bin, or .bin and .idx; auto looks" },
    { BOOL("data.shuffle", data.shuffle, "true"),
      .help = "another order in each epoch; false = as it lies in the files" },

    { INT("save.every", save.every, 0, KEY_MANY, "500"),
      .help = "steps between checkpoints; 0 = only at the end" },
    { INT("save.keep", save.keep, 0, KEY_MANY, "3"),
      .help = "newest checkpoints kept; 0 = all" },
    { INT("save.keep_every", save.keep_every, 0, KEY_MANY, "0"),
      .help = "checkpoints at multiples of this step stay beside them; 0 = none" },
    { INT("save.keep_best", save.keep_best, 0, 1000000, "0"),
      .help = "checkpoints with the lowest validation loss that stay beside them" },
    { CHOICE("save.what", save.what, what_words, "all"),
      .help = "weights alone are much smaller, to merge or to start from, but no run can resume from them; nothing is for trials" },
    { BOOL("save.async", save.async, "false"),
      .help = "write checkpoints beside training, which hardly stops for it" },
    { INT("save.buffer", save.buffer, 0, 1e9, "auto"), .flags = KEY_ZERO,
      .help = "async: MiB of host memory of a rank; auto = what its state takes, so nothing waits for the disk, or half of what is free if that is less" },
    { CHOICE("save.on_failure", save.on_failure, failure_words, "stop"),
      .help = "a checkpoint or record that could not be written: end the run, or warn; the last checkpoint always ends it" },

    { INT("log.every", log.every, 1, KEY_MANY, "10"),
      .help = "steps between progress lines" },
    { BOOL("log.jsonl", log.jsonl, "true"),
      .help = "also write every step to metrics.jsonl in run.dir" },
    { BOOL("log.tensorboard", log.tensorboard, "false"),
      .help = "also write event files for TensorBoard into run.dir/tensorboard" },
    { REAL("log.peak_tflops", log.peak_tflops, 0, 1e9, "auto"), .flags = KEY_ZERO,
      .help = "TFLOP/s of one device at best, for MFU; auto = as known of the GPU in bf16, else no MFU" },

    { BOOL("profile.on", profile.on, "false"),
      .help = "time some steps; the same as --profile" },
    { TEXT("profile.file", profile.file, NULL, "auto"),
      .help = "the timeline, Chrome trace JSON; auto = profile.json in run.dir" },
    { INT("profile.skip", profile.skip, 0, KEY_MANY, "3"),
      .help = "steps of this run before the first that is timed" },
    { INT("profile.steps", profile.steps, 1, 1000, "2"),
      .help = "how many steps are timed" },
    { CHOICE("profile.detail", profile.detail, profile_words, "program"),
      .help = "program = each instruction, wait and collective; ops = each operation too" },

    { BOOL("check.collectives", check.collectives, "false"),
      .help = "compare kind, size, type and place of every collective over all ranks before it runs" },
    { INT("check.replicas", check.replicas, 0, KEY_MANY, "1000"),
      .help = "steps between checks that what ranks hold alike is equal, bit for bit; 0 = none" },
};
/* clang-format on */

/* What other systems call it. */
static const struct {
    const char *theirs, *ours;
} foreign[] = {
    { "train_batch_size", "batch.global" },
    { "train_micro_batch_size_per_gpu", "batch.micro" },
    { "per_device_train_batch_size", "batch.micro" },
    { "per_device_eval_batch_size", "batch.micro" },
    { "gradient_accumulation_steps", "batch.accum" },
    { "zero_optimization", "shard.stage" },
    { "zero_stage", "shard.stage" },
    { "gradient_clipping", "optim.clip" },
    { "max_grad_norm", "optim.clip" },
    { "learning_rate", "optim.lr" },
    { "adam_beta1", "optim.beta1" },
    { "adam_beta2", "optim.beta2" },
    { "adam_epsilon", "optim.eps" },
    { "lr_scheduler_type", "schedule.kind" },
    { "warmup_steps", "schedule.warmup" },
    { "warmup_ratio", "schedule.warmup" },
    { "optimizer", "optim" },
    { "scheduler", "schedule" },
    { "max_steps", "train.steps" },
    { "num_train_epochs", "train.epochs" },
    { "eval_strategy", "train.eval_every" },
    { "eval_steps", "train.eval_every" },
    { "output_dir", "run.dir" },
    { "resume_from_checkpoint", "run.resume" },
    { "full_determinism", "run.deterministic" },
    { "ddp_timeout", "run.timeout" },
    { "model_name_or_path", "model.from" },
    { "data_seed", "data.split_seed" },
    { "save_strategy", "save.every" },
    { "save_steps", "save.every" },
    { "save_total_limit", "save.keep" },
    { "save_only_model", "save.what" },
    { "load_best_model_at_end", "save.keep_best" },
    { "metric_for_best_model", "save.keep_best" },
    { "logging_steps", "log.every" },
    { "logging_first_step", "log.every" },
    { "report_to", "log.tensorboard" },
    { "gradient_checkpointing", "train.recompute" },
    { "activation_checkpointing", "train.recompute" },
    { "bf16", "dtype.param" },
    { "fp16", "dtype.param" },
    { "vocab_size", "model.vocab" },
    { "hidden_size", "model.width" },
    { "num_hidden_layers", "model.layers" },
    { "num_attention_heads", "model.heads" },
    { "num_key_value_heads", "model.kv_heads" },
    { "intermediate_size", "model.mlp_width" },
    { "max_position_embeddings", "model.context" },
    { "tie_word_embeddings", "model.tied" },
    { "architectures", "model.from" },
    { "model_type", "model.from" },
    { "hf_assets_path", "model.from" },
    { "initial_load_path", "model.from" },
    { "local_batch_size", "batch.micro" },
    { "global_batch_size", "batch.global" },
    { "seq_len", "batch.seq" },
    { "max_norm", "optim.clip" },
    { "decay_ratio", "schedule.decay" },
    { "decay_type", "schedule.kind" },
    { "min_lr_factor", "schedule.min_lr" },
    { "dump_folder", "run.dir" },
    { "dataset_path", "data.train" },
    { "log_freq", "log.every" },
    { "enable_tensorboard", "log.tensorboard" },
    { "keep_latest_k", "save.keep" },
    { "async_mode", "save.async" },
    { "mixed_precision_param", "dtype.param" },
    { "mixed_precision_reduce", "dtype.reduce" },
    { "fsdp_reshard_after_forward", "shard.stage" },
};

int key_count(void)
{
    return (int)ARRAY_LEN(keys);
}

const struct key *key_at(int i)
{
    return i >= 0 && i < key_count() ? &keys[i] : NULL;
}

const struct key_section *key_section_at(int i)
{
    return i >= 0 && i < (int)ARRAY_LEN(sections) ? &sections[i] : NULL;
}

const struct key *key_find(const char *path)
{
    for (int i = 0; i < key_count(); i++)
        if (strcmp(keys[i].path, path) == 0)
            return &keys[i];
    return NULL;
}

const struct key_section *key_find_section(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(sections); i++)
        if (strcmp(sections[i].name, name) == 0)
            return &sections[i];
    return NULL;
}

const char *key_name(const struct key *key)
{
    return strchr(key->path, '.') + 1;
}

int key_in_section(const struct key *key, const char *section)
{
    size_t n = strlen(section);
    return strncmp(key->path, section, n) == 0 && key->path[n] == '.';
}

const struct key *key_first(const char *section)
{
    for (int i = 0; i < key_count(); i++)
        if (key_in_section(&keys[i], section))
            return &keys[i];
    return NULL;
}

/* Nearest name among the keys of a section, as a path; NULL also when there is no such section. */
static const char *nearest_in_section(const char *section, const char *name)
{
    const char *names[ARRAY_LEN(keys)];
    int n = 0, first = 0;
    for (int i = 0; i < key_count(); i++) {
        if (!key_in_section(&keys[i], section))
            continue;
        first = n == 0 ? i : first;
        names[n++] = key_name(&keys[i]);
    }
    const char *near = text_nearest(name, names, n);
    for (int i = 0; near && i < n; i++)
        if (names[i] == near)
            return keys[first + i].path;
    return NULL;
}

/* The only key that has this name in whatever section. */
static const char *same_name(const char *name)
{
    const char *found = NULL;
    for (int i = 0; i < key_count(); i++) {
        if (strcmp(key_name(&keys[i]), name) != 0)
            continue;
        if (found)
            return NULL;
        found = keys[i].path;
    }
    return found;
}

/* Nearest among whole paths, or among section names for a path of one word. */
static const char *nearest_path(const char *path)
{
    const char *words[ARRAY_LEN(keys) + ARRAY_LEN(sections)];
    int n = 0;
    if (!strchr(path, '.'))
        for (size_t i = 0; i < ARRAY_LEN(sections); i++)
            words[n++] = sections[i].name;
    else
        for (int i = 0; i < key_count(); i++)
            words[n++] = keys[i].path;
    return text_nearest(path, words, n);
}

const char *key_suggest(const char *path)
{
    char section[64] = "";
    const char *dot = strrchr(path, '.'), *name = dot ? dot + 1 : path;
    if (dot && (size_t)(dot - path) < sizeof(section))
        memcpy(section, path, (size_t)(dot - path));
    for (size_t i = 0; i < ARRAY_LEN(foreign); i++)
        if (strcmp(foreign[i].theirs, name) == 0)
            return foreign[i].ours;
    const char *found = nearest_in_section(section, name);
    if (!found)
        found = same_name(name);
    return found ? found : nearest_path(path);
}
