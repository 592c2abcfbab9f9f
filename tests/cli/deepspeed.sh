#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# A DeepSpeed JSON and an Accelerate YAML from the command line: what is told, what is trained, and that the rate of
# every step is the scheduler's.
. "$(dirname "$0")/lib.sh"
make_tiny

cat >ds.json <<'END'
{
    // as people write it
    "train_batch_size": 12,
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 0.02,
        "warmup_num_steps": 3, "total_num_steps": 6, "warmup_type": "linear"}},
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 3, "overlap_comm": true, "contiguous_gradients": true,
        "stage3_prefetch_bucket_size": 5e7},
}
END

run 0 config ds.json --ranks 3 --data text --model tiny.yaml --set train.steps=6
has out "# From DeepSpeed, ds.json"
has out "#   train_micro_batch_size_per_gpu = 2 (batch.micro, derived)"
has out "#   zero_optimization.contiguous_gradients: "
has out "global: 12              # ds.json:3 train_batch_size"
has out "micro: 2                # auto at ds.json:4, derived"
has out "width: 24               # tiny.yaml:6"
has out "train: [text]           # --data"
has out "steps: 6                # --set"
run 0 config ds.json --ranks 3 --data text --model tiny.yaml --json
json 'r["settings"]["shard.stage"] == {"value": 3, "source": "ds.json:10 zero_optimization.stage"}'
json 'r["settings"]["data.train"] == {"value": ["text"], "source": "--data"}'
json '"contiguous_gradients" in r["remarks"]'
run 0 plan ds.json --ranks 3 --model tiny.yaml --json
json 'r["stage"] == 3 and r["batch"]["accum"] == 2'
run 0 train ds.json --ranks 3 --data text --model tiny.yaml --set train.steps=6 --set run.dir=run
has err "zero_optimization.contiguous_gradients"
has err "From DeepSpeed, ds.json"
python3 - <<'PY' >verdict 2>&1 || { complain "the learning rates are others"; show verdict; }
import json
rates = [json.loads(line)["lr"] for line in open("run/metrics.jsonl") if "loss" in json.loads(line)]
want = [0, 0, 0.02 / 3, 0.04 / 3, 0.02, 0.02 * 2 / 3]
assert len(rates) == 6 and all(abs(a - b) < 1e-12 for a, b in zip(rates, want)), (rates, want)
PY
has run/config.yaml "# From DeepSpeed, ds.json"

# A run that goes on says where the list is.
run 0 train ds.json --ranks 3 --data text --model tiny.yaml --set train.steps=7 --set run.dir=run --resume
has err "settings from DeepSpeed, ds.json: run/config.yaml tells what became of its keys, as does"
grep -q "contiguous_gradients" err && complain "the list is told again when the run goes on"
has run/config.yaml "zero_optimization.contiguous_gradients"

run 2 config ds.json --ranks 5 --data text --model tiny.yaml
has err "ds.json:3: train_batch_size (batch.global): global 12"
run 2 train ds.json --ranks 3 --model tiny.yaml --set train.steps=6 --set run.dir=none
has err "data.train"
run 2 config ds.json --model missing.yaml
has err "missing.yaml"
echo 'optim: {lr: 1}' >nomodel.yaml
run 2 config ds.json --model nomodel.yaml
has err "nomodel.yaml: has no section model"

# All that is refused, each with its way out, in one go.
sed 's/"overlap_comm": true/"offload_param": {"device": "cpu"}, "mics_shard_size": 4/; s/"gradient_clipping"/"gradient_cliping"/' \
    ds.json >refused.json
run 2 train refused.json --ranks 3 --data text --model tiny.yaml --set run.dir=none
has err "refused.json: 3 settings cannot be taken:"
has err "refused.json:9: gradient_cliping: DeepSpeed has no such key; did you mean gradient_clipping?"
has err "refused.json:10: zero_optimization.offload_param.device: cpu cannot be honoured"
has err "refused.json:10: zero_optimization.mics_shard_size: 4 cannot be honoured"
once err gradient_cliping

cat >acc.yaml <<'END'
distributed_type: FSDP
fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: false}
mixed_precision: 'no'
num_processes: 2
END
sed 's/^shard:.*//' tiny.yaml >both.yaml
echo 'accelerate: acc.yaml' >>both.yaml
run 0 config both.yaml --ranks 2
has out "stage: 2                # acc.yaml:2 fsdp_config.fsdp_reshard_after_forward"
grep -q 'num_processes: 2 ranks' out && complain "two ranks are told as another number than two"
run 0 train both.yaml --set train.steps=1 --set run.dir=one
has err "num_processes: 2 ranks there, 1 here; --ranks 2 starts as many"
run 2 config both.yaml --set shard.stage=9
run 0 config both.yaml --set shard.stage=1
has out "stage: 1                # --set"
finish
