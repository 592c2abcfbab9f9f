#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# Configurations: what is wrong is told before anything starts; what is in force can be printed; plans.
. "$(dirname "$0")/lib.sh"
make_tiny

run 0 config tiny.yaml
has out "width: 24"
cp out first.yaml
run 0 config first.yaml
diff <(grep -v '^#' first.yaml | sed 's/ *#.*//') <(grep -v '^#' out | sed 's/ *#.*//') >differ ||
    { complain "the printed settings do not give themselves back"; show differ; }
run 0 config tiny.yaml --set shard.stage=3
has out "stage: 3"
run 0 train tiny.yaml --print-config --set model.width=48 --ranks 3
has out "width: 48"
[ -e run ] && complain "printing the settings made a run folder"
run 0 config --reference
has out "stage:"
has out "batch"

run 2 config missing.yaml
has err "missing.yaml"
sed 's/width/widht/' tiny.yaml >typo.yaml
run 2 train typo.yaml --ranks 2
has err "typo.yaml:6:"
has err "width"
run 2 config tiny.yaml --set shard.stage=4
has err "shard.stage"
run 2 config tiny.yaml --set shard.stgae=3
has err "shard.stage"
run 2 train tiny.yaml --ranks 5
has err "12"
[ -e run ] && complain "a configuration that cannot run made a run folder"
run 2 config tiny.yaml --ranks 5
run 0 config tiny.yaml --ranks 3

run 0 plan tiny.yaml --ranks 3 --set shard.stage=3 --program
has out "parameters at rest"
has out "stage 3"
has out "gather"
has out "reduce"
run 0 plan tiny.yaml --ranks 3 --set shard.stage=2 --json --program
json 'r["ranks"] == 3 and r["stage"] == 2 and len(r["stages"]) == 4 and "reduce" in r["program"]'
json 'all(s["memory"]["total"] == sum(v for k, v in s["memory"].items() if k != "total") for s in r["stages"])'
json 'all(s["sent"]["total"] == sum(v for k, v in s["sent"].items() if k != "total") for s in r["stages"])'
json 'r["stages"][1]["memory"]["state"] < r["stages"][0]["memory"]["state"]'
json 'r["stages"][3]["memory"]["param"] < r["stages"][2]["memory"]["param"]'
json 'r["batch"]["global"] == r["batch"]["micro"] * r["batch"]["accum"] * 3 == 12'
run 0 plan tiny.yaml --json
json 'all(s["sent"]["total"] == 0 for s in r["stages"])'
run 2 plan tiny.yaml --ranks 5

# Files of others that are no settings here.
echo '[job]' >job.toml
run 2 train job.toml
has err "job.toml: TOML is not read; settings are YAML"
mkdir folder
run 2 config folder
has err "folder is a folder, and settings are a file"
echo '{"output_dir": "x", "learning_rate": 1}' >trainer.json
run 2 config trainer.json
has err "trainer.json:1: output_dir: unknown key; did you mean run.dir?"
echo '{"architectures": ["LlamaForCausalLM"]}' >config.json
run 2 config config.json
has err "config.json:1: architectures: unknown key; did you mean model.from?"
echo '{"train_batchsize": 4}' >ds.json
run 2 config ds.json
has err "ds.json:1: train_batchsize: DeepSpeed has no such key; did you mean train_batch_size?"

# A pipe: with a name it kept whoever opened it waiting, without one the second rank read no settings.
mkfifo pipe
run 2 config pipe
has err "cannot open 'pipe': it is a pipe; write what comes through it to a file, and name that"
run 2 train --ranks 2 --set run.dir=x <(cat tiny.yaml)
has err "it is a pipe; write what comes through it to a file"
run 2 train tiny.yaml --model pipe
has err "cannot open 'pipe': it is a pipe"
finish
