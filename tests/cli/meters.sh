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
log: {every: 1, tensorboard: true, peak_tflops: 0.05}
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
start, *rows = [json.loads(line) for line in open(name + "/metrics.jsonl")]
saves = [r for r in rows if r.get("event") == "save"]
rows = [r for r in rows if r not in saves]
assert [r["step"] for r in saves] == [9], saves
assert 0 < saves[0]["copy_seconds"] < saves[0]["save_seconds"] <= saves[0]["still_seconds"], saves
assert saves[0]["update_wait_seconds"] == 0 and saves[0]["saved_bytes"] > ranks * saves[0]["copied_bytes"] > 0, saves
plan = json.load(open("out"))
stage_plan = plan["stages"][stage]
assert start["event"] == "start" and start["step"] == 0 and start["world"] == ranks, start
assert start["flops_per_token"] == plan["flops_per_token"] and start["params"] == plan["params"], start
for region, size in stage_plan["memory"].items():
    assert start["memory_" + region] == size, (region, start, size)
tokens = 2 * accum * ranks * 24
assert [r["step"] for r in rows] == list(range(1, 10)), "steps"
for r in rows:
    s = r["step"]
    lr = 0.01 * s / 3 if s <= 3 else 0.01 * (0.25 + 0.75 * 0.5 * (1 + math.cos(math.pi * (s - 3) / 6)))
    assert r["tokens"] == tokens and r["tokens_seen"] == tokens * s, ("tokens", r)
    assert abs(r["lr"] - lr) < 1e-12, ("lr", r, lr)
    assert 0 < r["step_seconds"] <= r["run_seconds"], ("time", r)
    rate = tokens / r["step_seconds"]
    flops = rate * plan["flops_per_token"] / ranks
    assert abs(r["tokens_per_second"] / rate - 1) < 1e-9 and abs(r["mfu"] / (flops / 0.05e12) - 1) < 1e-9, r
    assert abs(r["tflops_per_device"] / (flops * 1e-12) - 1) < 1e-9, r
    for kind, bytes in stage_plan["sent"].items():  # besides these, six doubles a rank are gathered
        more = 8 * 6 * (ranks - 1) if kind in ("all-gather", "total") else 0
        assert r["sent_" + kind.replace("-", "_")] == bytes + more, (kind, r, stage_plan["sent"])
assert sum(r["step_seconds"] for r in rows) <= rows[-1]["run_seconds"], "the steps took longer than the run"
lines = re.findall(r"step +(\d+)/9 \| loss ([0-9.]+) \| grad norm ([0-9.]+) \| lr (\S+) \| ([0-9,]+) tok/s "
                   r"\| [0-9.]+% MFU(?: \| exposed ([0-9.]+)%)?", log)
assert len(lines) == 9, "%d progress lines" % len(lines)
for line, r in zip(lines, rows):
    assert int(line[0]) == r["step"] and abs(float(line[1]) - r["loss"]) < 6e-5, (line, r)
    assert abs(float(line[2]) - r["grad_norm"]) < 6e-4 and abs(float(line[3]) / r["lr"] - 1) < 6e-3, (line, r)
    rate = int(line[4].replace(",", ""))  # over the time since the last line, so never above the step's own rate
    assert 0 < rate <= tokens / r["step_seconds"] * 1.001, (line, r)
    assert 0 <= r["exposed_share"] == r["exposed_seconds"] / r["step_seconds"] <= 1, r
    assert (line[5] != "") == (ranks > 1), line  # one rank alone communicates with nobody
    assert ranks == 1 or abs(float(line[5]) - 100 * r["exposed_share"]) < 0.06, (line, r)
total = plan["stages"][stage]["memory"]["total"]
said = re.search(r"memory of one rank: ([0-9.]+) (k?M?B)", log)
assert abs(float(said[1]) * {"B": 1, "kB": 1e3, "MB": 1e6}[said[2]] / total - 1) < 0.06, (said[0], total)
PY
        done
    done
done

# TensorBoard's own reader gets what metrics.jsonl has, also over a resumed run whose end was lost; without the package
# the records are taken apart here.
run 0 train tiny.yaml --set run.dir=events --set save.every=4 --set train.steps=9 --set data.val=text --set train.eval_every=3
rm -r events/step-00000009
run 0 train tiny.yaml --set run.dir=events --set train.steps=11 --resume --set data.val=text --set train.eval_every=3
python3 - <<'PY' >verdict 2>&1 || { complain "event files:"; show verdict; }
import glob, json, struct
files = sorted(glob.glob("events/tensorboard/events.out.tfevents.*"))
assert len(files) == 2, files
rows = [json.loads(line) for line in open("events/metrics.jsonl")]
loss = {r["step"]: r["loss"] for r in rows if "loss" in r}
val = {r["step"]: r["eval_loss"] for r in rows if "eval_loss" in r}
assert sorted(loss) == list(range(1, 12)) and sorted(val) == [3, 6, 9, 11], (loss, val)
for path in files:
    data, at, n = open(path, "rb").read(), 0, 0
    while at < len(data):
        at += 16 + struct.unpack("<Q", data[at:at + 8])[0]
        n += 1
    assert at == len(data) and n > 3, (path, at, n)
try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError:
    print("the tensorboard package is not here")
    raise SystemExit(0)
acc = EventAccumulator("events/tensorboard")
acc.Reload()
for tag, want in ("train/loss", loss), ("eval/loss", val):
    got = {e.step: e.value for e in acc.Scalars(tag)}
    assert len(got) == len(acc.Scalars(tag)) == len(want), (tag, got, want)
    assert all(abs(got[s] - want[s]) <= 1e-6 * abs(want[s]) for s in want), (tag, got, want)
PY

# In f16 the loss scale is told with each step: here it is far too large at first, so steps are skipped, also over the end
# of a run that is gone on with.
run 0 train tiny.yaml --ranks 2 --set run.dir=half --set dtype.param=f16 --set dtype.initial_scale_power=34 --set train.steps=6
cat out err >log-half
run 0 train tiny.yaml --ranks 2 --set run.dir=half --set dtype.param=f16 --set dtype.initial_scale_power=34 --resume
cat out err >>log-half
python3 - <<'PY' >verdict 2>&1 || { complain "the loss scale:"; show verdict; }
import json, re
rows = [r for r in map(json.loads, open("half/metrics.jsonl")) if "event" not in r]
assert [r["step"] for r in rows] == list(range(1, 10)), rows
scale, skipped, patience = 2.0 ** 34, 0, 2
for r in rows:
    assert r["loss_scale"] == scale, (r, scale)
    if r["grad_norm"] is None:
        skipped, scale = skipped + 1, scale if patience > 1 else scale / 2
        patience = 1
    assert r["skipped_steps"] == skipped, (r, skipped)
assert skipped > 6, rows  # more than the first run took
log = open("log-half").read()
assert re.search(r"step +1/6 \| skipped, .*\(1 in all\) \| scale 1.71799e\+10", log), "the progress line"
assert "its gradient overflows at a loss scale of 17179869184, which stays this time (dtype.hysteresis)" in log, "patience"
assert "a loss scale of 17179869184, which becomes 8589934592" in log, "halving"
PY

# 101 samples twice over, by steps of 8: the last step has 2, which two of four ranks read. Every sample counts once an
# epoch, and the losses are those of one rank.
head -c $((101 * 24 + 1)) text >samples
for ranks in 1 4; do
    run 0 train tiny.yaml --ranks $ranks --set run.dir=tail$ranks --set data.train=samples --set batch.global=8 \
        --set batch.micro=1 --set train.steps=0 --set train.epochs=2 --set shard.stage=$((ranks - 1)) --set save.every=20
done
has err "26/26 |"
python3 - <<'PY' >verdict 2>&1 || { complain "the end of the data:"; show verdict; }
import json
one, four = [[r for r in map(json.loads, open("tail%d/metrics.jsonl" % n)) if "loss" in r] for n in (1, 4)]
assert [r["tokens"] for r in one] == [r["tokens"] for r in four] == 25 * [8 * 24] + [2 * 24], (one, four)
assert one[-1]["tokens_seen"] == four[-1]["tokens_seen"] == 2 * 101 * 24, (one[-1], four[-1])
for a, b in zip(one, four):
    assert abs(a["loss"] / b["loss"] - 1) < 2e-5 and abs(a["grad_norm"] / b["grad_norm"] - 1) < 2e-5, (a, b)
PY

# What such a run leaves as its settings is a config, and goes on with it to the same end, that smaller step included. A
# second time through the data more is told as any other curve.
cp -r tail1 whole
rm -r tail1/step-00000026
run 0 train tail1/config.yaml --resume
has err "resumed from tail1/step-00000020"
grep -qE 'not known|other settings|learning rate' err && { complain "a run by epochs that goes on"; show err; }
run 0 diff whole tail1
run 0 train tail1/config.yaml --resume --set train.epochs=3
has err "learning rate: its curve goes over 38 steps now, not 26"

# What is in force is told at the start: number formats, the batch, and that one rank shards nothing; and when a run goes
# on with another number of ranks, that its batch is another one.
run 0 train tiny.yaml --ranks 2 --set run.dir=told --set batch.micro=2 --set train.steps=2 --set schedule.warmup=0 --set shard.stage=3 \
    --set dtype.param=bf16 --set dtype.master=split --set dtype.state=bf16
has err "(stage 3) over 2 ranks on cpu; weights bf16, masters split, optimizer state bf16, gradients on the wire f32"
has err "batch: 4 sequences = 2 micro x 1 accum x 2 ranks, of 24 tokens; 2 steps"
grep -q 'one rank alone' err && complain "two ranks are one"
run 0 train tiny.yaml --resume --set run.dir=told --set batch.micro=2 --set train.steps=4 --set shard.stage=3 \
    --set schedule.steps=2 --set schedule.warmup=0 --set dtype.param=bf16 --set dtype.master=split --set dtype.state=bf16
has err "one rank alone: stage 3 has nobody to shard over, and trains all the same"
has err "other settings than it was saved with: batch.global 2, not 4"
run 0 inspect told --json
json 'r["step"] == 4 and r["samples_seen"] == 2 * 4 + 2 * 2'
finish
