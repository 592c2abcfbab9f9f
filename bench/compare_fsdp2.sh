#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# sherd beside PyTorch's FSDP2 on the GPUs of this host, in one go: configs/llama-1b.yaml (1.1 billion parameters, stage
# 3, bf16) with 2048 tokens x 8 and x 2 a GPU, random tokens, AdamW, clipping. The peer is bench/fsdp2.py; of its two
# attention kernels the faster one is taken. Ends with one table.
#
#   bench/compare_fsdp2.sh [SHERD] [GPUS]       defaults: build/tools/sherd 2
#   TRIAL=1 bench/compare_fsdp2.sh SHERD 2      a small shape on the CPU, to try the script: its figures mean nothing
#
# PYTHON names the interpreter that has torch; BATCHES (default "8 2") the sequences of a GPU; STEPS the steps timed
# after 5 to warm up (default 20); SET more settings for sherd ("--set shard.prefetch=2"); SCRATCH a folder with room
# for a checkpoint (14 GB; default /dev/shm if it has that). Output of all programs is kept in the folder LOGS if that is set.
#
# Time: sherd's is the median of step_seconds in metrics.jsonl after the first 5 steps, the peer's that of its clock.
# Memory, in GiB of the fullest GPU:
#   "GPU"  what the driver says is in use at most, less what was in use before: weights, activations, and also the CUDA
#          context, NCCL and libraries. sherd: nvidia-smi five times a second; the peer: asked at the end, when its
#          allocator holds its most. The peer's allocator keeps what it may need again: "reserved" is part of this.
#   "own"  what the program itself accounts for: "memory of one rank" in sherd's log; the peer's peak of allocated
#          bytes.
set -eu
cd "$(dirname "$0")/.."
sherd=$(realpath "${1:-build/tools/sherd}")
gpus=${2:-2}
python=${PYTHON:-python3}
batches=${BATCHES:-8 2}
steps=${STEPS:-20}
warmup=5
trial=${TRIAL:-}
seq=2048 vocab=32000
shape=()
if [ -n "$trial" ]; then
    seq=64 vocab=512
    for s in run.device=cpu model.vocab=512 model.width=64 model.layers=2 model.heads=4 model.kv_heads=2 \
        model.mlp_width=160 model.context=64; do
        shape+=(--set "$s")
    done
else
    command -v nvidia-smi >/dev/null || { echo "no nvidia-smi here"; exit 77; }
    [ "$(nvidia-smi -L | grep -c '^GPU')" -ge "$gpus" ] || { echo "fewer than $gpus GPUs here"; exit 77; }
fi

room() { df -Pk "$1" 2>/dev/null | awk 'NR == 2 { print int($4 / 1048576) }'; }
if [ -z "${SCRATCH:-}" ]; then
    SCRATCH=${TMPDIR:-/tmp}
    [ "$(room /dev/shm || echo 0)" -lt 20 ] || SCRATCH=/dev/shm
fi
work=$(mktemp -d "$SCRATCH/sherd-compare-XXXXXX")
watcher=
trap '[ -z "$watcher" ] || kill "$watcher" 2>/dev/null || true; rm -rf "$work"' EXIT
out=${LOGS:-$work}
mkdir -p "$out"

used=(nvidia-smi --query-gpu=memory.used "--format=csv,noheader,nounits") # MiB, a line for each GPU

run_sherd() { # BATCH
    local batch=$1 global=$(($1 * gpus)) run=$work/run st=0
    "$python" - "$work/tokens.bin" $(((steps + warmup) * global * seq + 1)) "$vocab" <<'PY'
import sys, numpy
path, count, vocab = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
numpy.random.default_rng(1).integers(0, vocab, count, dtype=numpy.uint16).tofile(path)
PY
    if [ -z "$trial" ]; then
        stdbuf -oL "${used[@]}" -lms 200 >"$out/used-$batch.txt" &
        watcher=$!
    fi
    # shellcheck disable=SC2086
    "$sherd" train configs/llama-1b.yaml --ranks "$gpus" "${shape[@]}" --set run.dir="$run" \
        --set batch.global="$global" --set batch.micro="$batch" --set batch.seq="$seq" \
        --set train.steps=$((steps + warmup)) --set schedule.warmup=2 --set "data.train=[$work/tokens.bin]" \
        --set "data.val=[]" --set train.eval_every=0 --set save.every=0 --set log.every=5 ${SET:-} \
        >"$out/sherd-$batch.log" 2>&1 || st=$?
    if [ -n "$watcher" ]; then
        kill "$watcher" 2>/dev/null || true
        wait "$watcher" 2>/dev/null || true
        watcher=
    fi
    [ $st -eq 0 ] || { echo "sherd, batch $batch, ended with status $st:"; tail -20 "$out/sherd-$batch.log"; exit 1; }
    cp "$run/metrics.jsonl" "$out/metrics-$batch.jsonl"
    rm -rf "$run"
}

[ -n "$trial" ] || "${used[@]}" >"$out/idle.txt"
for batch in $batches; do
    echo "sherd, batch $batch"
    run_sherd "$batch"
done
echo "FSDP2"
# shellcheck disable=SC2086
"$python" -m torch.distributed.run --nproc-per-node "$gpus" bench/fsdp2.py --batch $batches --steps "$steps" \
    --warmup "$warmup" ${trial:+--trial} >"$out/fsdp2.jsonl" 2>"$out/fsdp2.log" ||
    { echo "bench/fsdp2.py failed:"; tail -30 "$out/fsdp2.log"; exit 1; }

[ -n "$trial" ] || nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | sort | uniq -c
"$python" - "$out" "$seq" "$warmup" "$batches" <<'PY'
import json, os, re, statistics, sys
out, seq, warmup, batches = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), [int(b) for b in sys.argv[4].split()]
GIB = 2.0 ** 30


def lines(name):
    path = os.path.join(out, name)
    return open(path).read().split("\n") if os.path.exists(path) else []


def by_ratio(x, y):
    return "%.3f" % (x / y) if x and y else "-"


def value(x, form="%.2f"):
    return form % x if x else "-"


idle = [int(x) for x in lines("idle.txt") if x.strip()]
peers = [json.loads(x) for x in lines("fsdp2.jsonl") if x.startswith("{")]
row = "%-28s %10s %14s %10s %10s %10s"
print(row % ("", "ms a step", "tokens/s/GPU", "GPU GiB", "own GiB", "reserved"))
for batch in batches:
    records = [json.loads(x) for x in lines("metrics-%d.jsonl" % batch) if x]
    times = [r["step_seconds"] for r in records if "step_seconds" in r][warmup:]
    ms = 1e3 * statistics.median(times)
    rate = batch * seq / ms * 1e3
    # nvidia-smi goes through the GPUs in turn, in MiB
    seen = [int(x) for x in lines("used-%d.txt" % batch) if x.strip().isdigit()]
    gpu = max((u - idle[i % len(idle)] for i, u in enumerate(seen)), default=0) / 1024 if idle else 0
    said = re.search(r"memory of one rank: ([0-9.]+) ([kMGT]?B)", "\n".join(lines("sherd-%d.log" % batch)))
    own = float(said[1]) * {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}[said[2]] / GIB if said else 0
    print(row % ("sherd, %d x %d" % (batch, seq), "%.1f" % ms, "%.0f" % rate, value(gpu), value(own), ""))
    good = []
    for p in (p for p in peers if p["batch"] == batch):
        name = "FSDP2 %s, %d x %d" % (p["attention"], batch, seq)
        if "error" in p:
            print(row % (name, "failed", "", "", "", ""), p["error"])
            continue
        good.append(p)
        p["gpu"] = p["used"] / GIB - min(idle) / 1024 if idle else 0
        print(row % (name, "%.1f" % p["ms"], "%.0f" % p["tokens_per_second"], value(p["gpu"]),
                     value(p["allocated"] / GIB), value(p["reserved"] / GIB)))
    if good:
        best = max(good, key=lambda p: p["tokens_per_second"])
        print(row % ("  sherd / FSDP2 " + best["attention"], by_ratio(ms, best["ms"]),
                     by_ratio(rate, best["tokens_per_second"]), by_ratio(gpu, best["gpu"]),
                     by_ratio(own, best["allocated"] / GIB), ""))
PY
