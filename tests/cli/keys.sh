#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# No setting is taken and then not applied: each one that numbers depend on changes them, each other one leaves every bit
# as it was.
. "$(dirname "$0")/lib.sh"
seq 1 900 >text
seq 900 -1 1 >other
cat >base.yaml <<'END'
run: {seed: 3, threads: 1}
model: {family: llama, width: 24, layers: 2, heads: 4, context: 64}
batch: {global: 4, micro: 2, seq: 16}
optim: {lr: 0.01}
schedule: {kind: cosine, warmup: 2}
train: {steps: 6, eval_every: 6, eval_batches: 3}
data: {train: [text, other], val: [other]}
save: {what: nothing}
log: {every: 100}
END

# against same|other BASE SETTINGS...: a run with each, which may be several with spaces between them, beside one with BASE.
# What is wanted of which pair stands in the file pairs.
n=0
against() {
    local want=$1 base=$2 settings word as more
    shift 2
    for settings in "" "$@"; do
        more=()
        for word in $base $settings; do more+=(--set "$word"); done
        run 0 train base.yaml --ranks $ranks --set run.dir=$((++n)) "${more[@]}"
        if [ -z "$settings" ]; then as=$n; else echo "$want|$as|$n|$settings|$base" >>pairs; fi
    done
}

ranks=1
against other "" run.seed=4 \
    model.family=qwen3 model.vocab=300 model.width=32 model.layers=1 model.heads=2 model.kv_heads=2 model.head_dim=8 \
    model.mlp_width=40 model.tied=true model.norm_eps=1e-2 model.rope_theta=10 "model.rope_scaling=linear model.rope_factor=2" \
    model.init_std=0.1 "model.freeze=*.mlp.*" \
    dtype.param=bf16 dtype.param=f16 dtype.state=bf16 \
    "batch.global=8" batch.seq=8 \
    optim.name=sgd optim.lr=0.02 optim.beta1=0.5 optim.beta2=0.5 optim.eps=1e-2 optim.weight_decay=0.9 optim.clip=0.01 \
    schedule.kind=linear schedule.warmup=4 schedule.warmup_shape=log schedule.warmup_from=0.5 schedule.min_lr=0.5 \
    schedule.steps=12 schedule.count=deepspeed train.steps=5 train.eval_batches=1 train.eval_every=2 \
    data.train=text data.val=text data.weights=[1,0.5] data.end=10 data.shuffle=false "data.val=[] data.split=0.1"
against other "schedule.kind=wsd schedule.decay=2" schedule.decay=4
against other "optim.name=sgd" optim.momentum=0.1
against other "dtype.param=bf16" dtype.reduce=bf16
against other "dtype.param=f16 dtype.initial_scale_power=40 train.steps=12" dtype.loss_scale=8 dtype.initial_scale_power=30 \
    dtype.hysteresis=9
against other "dtype.param=f16 dtype.initial_scale_power=24 train.steps=12" dtype.loss_scale_window=2
against other "data.val=[] data.split=0.1" data.split_seed=1
against other "model.rope_scaling=llama3 model.rope_factor=8 model.rope_context=16" model.rope_factor=2 \
    model.rope_low_freq=0.5 model.rope_high_freq=6 model.rope_context=64

ranks=2
against same "" run.threads=2 run.graph=on run.deterministic=true run.comm=tcp run.comm=shm run.timeout=99 \
    shard.stage=0 shard.stage=2 "shard.stage=3 shard.prefetch=0" "shard.stage=3 shard.prefetch=3" shard.overlap=false \
    shard.poison=true train.recompute=cheap train.recompute=block train.nonfinite=skip check.collectives=true \
    check.replicas=1 profile.on=true "profile.on=true profile.detail=ops" "save.what=all save.async=true save.every=1" \
    log.every=1 log.tensorboard=true log.peak_tflops=1 batch.micro=2 model.context=16
against same "dtype.param=bf16" dtype.master=split
# Large enough that threads share the work.
against same "model.width=192 model.vocab=3000 batch.seq=64 train.steps=2 train.eval_every=2" run.threads=2 run.threads=3 \
    run.threads=7

# What a run tells of its steps and of the evaluation, to the last bit.
python3 - <<'END' >verdict 2>&1 || { complain "settings:"; show verdict; }
import json
def numbers(run):
    rows = [json.loads(line) for line in open(run + "/metrics.jsonl")]
    names = "step loss grad_norm lr tokens loss_scale eval_loss eval_tokens".split()
    return [[repr(r.get(k)) for k in names] for r in rows if "loss" in r or "eval_loss" in r]
pairs, faults = [line.rstrip("\n").split("|") for line in open("pairs")], 0
for want, a, b, settings, base in pairs:
    if (numbers(a) == numbers(b)) != (want == "same"):
        print("%s (with %s) %s" % (settings, base or "nothing else", "changes numbers" if want == "same" else "changes nothing"))
        faults += 1
assert len(pairs) > 80 and not faults, (len(pairs), faults)
END
finish
