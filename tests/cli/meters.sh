#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# What a run says of itself is what was done: steps, tokens, learning rate, memory and time, at any number of ranks,
# micro-batches and stage, against values worked out here.
source=$(realpath "$(dirname "$0")/../..")
. "$(dirname "$0")/lib.sh"

cat "$source"/docs/*.md >text
cat >tiny.yaml <<END
model: {family: gpt2, vocab: 256, width: 16, layers: 1, heads: 2, context: 32}
batch: {seq: 24}
optim: {lr: 0.01}
schedule: {kind: cosine, warmup: 3, min_lr: 0.25}
train: {steps: 9}
data: {train: [text], format: bytes}
log: {every: 1}
END

for ranks in 1 2; do
    for accum in 1 3; do
        for stage in 0 3; do
            name=r$ranks-a$accum-s$stage
            set -- tiny.yaml --ranks $ranks --set batch.micro=2 --set batch.accum=$accum --set shard.stage=$stage
            run 0 train "$@" --set run.dir=$name
            cat out err >log-$name
            run 0 plan "$@" --json
            python3 - $name $ranks $accum $stage >verdict 2>&1 <<'PY' || { complain "$name:"; show verdict; }
import json, math, re, sys
name, ranks, accum, stage = sys.argv[1], *map(int, sys.argv[2:])
log = open("log-" + name).read()
rows = [json.loads(line) for line in open(name + "/metrics.jsonl")]
plan = json.load(open("out"))
tokens = 2 * accum * ranks * 24
assert [r["step"] for r in rows] == list(range(1, 10)), "steps"
for r in rows:
    s = r["step"]
    lr = 0.01 * s / 3 if s <= 3 else 0.01 * (0.25 + 0.75 * 0.5 * (1 + math.cos(math.pi * (s - 3) / 6)))
    assert r["tokens"] == tokens and r["tokens_seen"] == tokens * s, ("tokens", r)
    assert abs(r["lr"] - lr) < 1e-12, ("lr", r, lr)
    assert 0 < r["step_seconds"] <= r["run_seconds"], ("time", r)
assert sum(r["step_seconds"] for r in rows) <= rows[-1]["run_seconds"], "the steps took longer than the run"
lines = re.findall(r"step +(\d+)/9 \| loss ([0-9.]+) \| grad norm ([0-9.]+) \| lr (\S+) \| ([0-9,]+) tok/s", log)
assert len(lines) == 9, "%d progress lines" % len(lines)
for line, r in zip(lines, rows):
    assert int(line[0]) == r["step"] and abs(float(line[1]) - r["loss"]) < 6e-5, (line, r)
    assert abs(float(line[2]) - r["grad_norm"]) < 6e-4 and abs(float(line[3]) / r["lr"] - 1) < 6e-3, (line, r)
    rate = int(line[4].replace(",", ""))  # over the time since the last line, so never above the step's own rate
    assert 0 < rate <= tokens / r["step_seconds"] * 1.001, (line, r)
total = plan["stages"][stage]["memory"]["total"]
said = re.search(r"memory of one rank: ([0-9.]+) (k?M?B)", log)
assert abs(float(said[1]) * {"B": 1, "kB": 1e3, "MB": 1e6}[said[2]] / total - 1) < 0.06, (said[0], total)
PY
        done
    done
done
finish
