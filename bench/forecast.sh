#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# Steps and memory measured on the GPUs of this host beside what `sherd plan` says: stages 0 to 3 of configs/llama-1b.yaml
# with 2048 tokens x 8 and x 2 a GPU, random tokens. First the rates of this machine are measured; each row has the
# forecast by those and by the shipped device file.
#
#   bench/forecast.sh [SHERD] [GPUS]        defaults: build/tools/sherd 2
#   TRIAL=1 bench/forecast.sh SHERD 2       a small shape on the CPU, to try the script: its figures mean nothing
#
# DEVICE names the shipped file (default h200); STAGES (default "0 1 2 3"), BATCHES (default "8 2"), STEPS the steps timed
# after 8 to warm up (default 20); SET more settings; SAVE where the device file goes (default: thrown away).
set -eu
cd "$(dirname "$0")/.."
sherd=$(realpath "${1:-build/tools/sherd}")
gpus=${2:-2}
steps=${STEPS:-20}
warmup=8
trial=${TRIAL:-}
kind=cuda seq=2048 vocab=32000 device=${DEVICE:-h200}
shape=()
if [ -n "$trial" ]; then
    kind=cpu seq=64 vocab=512
    for s in run.device=cpu model.vocab=512 model.width=64 model.layers=2 model.heads=4 model.kv_heads=2 \
        model.mlp_width=160 model.context=64; do
        shape+=(--set "$s")
    done
else
    command -v nvidia-smi >/dev/null || { echo "no nvidia-smi here"; exit 77; }
fi
work=$(mktemp -d "${TMPDIR:-/tmp}/sherd-forecast-XXXXXX")
watcher=
trap '[ -z "$watcher" ] || kill "$watcher" 2>/dev/null || true; rm -rf "$work"' EXIT

used() { # MiB of the fullest GPU, as the driver counts; 0 without one
    [ -n "$trial" ] && echo 0 || nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits | sort -n | tail -n 1
}
own=${SAVE:-$work/device.json}

"$sherd" bench all --ranks "$gpus" --device $kind -b 256K -e 256M -f 8 -n 10 -w 3 --save "$own" >"$work/bench"
[ -z "$trial" ] || device=$own

python3 - "$work/tokens.bin" $(((steps + warmup) * 8 * gpus * seq + 1)) $vocab <<'PY'
import random, struct, sys
path, n, vocab = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
random.seed(1)
piece = struct.pack("<65536H", *(random.randrange(vocab) for _ in range(65536)))
with open(path, "wb") as f:
    for _ in range(n // 65536 + 1):
        f.write(piece)
PY

forecast() { # DEVICE STAGE ARGS... : ms of a step, bytes planned with libraries
    local name=$1 stage=$2
    shift 2
    "$sherd" plan configs/llama-1b.yaml --gpus "$gpus" --device "$name" "$@" --json >"$work/plan"
    python3 - "$work/plan" "$stage" <<'PY'
import json, sys
r = json.load(open(sys.argv[1]))
f = r["forecast"]
row = next(x for x in f["rows"] if x["stage"] == int(sys.argv[2]) and x["recompute"] == f["recompute"])
print(row["step_seconds"] * 1e3, row["memory"])
PY
}

echo "| 2048 tokens x | stage | measured, ms | forecast by $device | | forecast by own rates | | planned GB | in use GB | |"
echo "|---|---|---|---|---|---|---|---|---|---|"
for batch in ${BATCHES:-8 2}; do
    for stage in ${STAGES:-0 1 2 3}; do
        args=("${shape[@]}" --set batch.global=$((batch * gpus)) --set batch.micro="$batch" --set batch.seq=$seq
            --set shard.stage="$stage" ${SET:-})
        rm -rf "$work/run"
        before=$(used)
        (while sleep 0.3; do used; done) >"$work/used" &
        watcher=$!
        "$sherd" train configs/llama-1b.yaml --ranks "$gpus" "${args[@]}" --set run.dir="$work/run" \
            --set train.steps=$((steps + warmup)) --set schedule.warmup=2 --set "data.train=[$work/tokens.bin]" \
            --set "data.val=[]" --set train.eval_every=0 --set save.every=0 --set save.what=weights --set log.every=1 \
            >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
        kill $watcher 2>/dev/null || true
        most=$(sort -n "$work/used" | tail -n 1)
        python3 - $((${most:-0} - before)) "$work/run/metrics.jsonl" $warmup "$batch" "$stage" $(forecast "$device" "$stage" "${args[@]}") \
            $(forecast "$own" "$stage" "${args[@]}") <<'PY'
import json, statistics, sys
used, path, warmup, batch, stage = int(sys.argv[1]) * 2**20, sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5]
shipped, planned, own, _ = map(float, sys.argv[6:10])
rows = [json.loads(line) for line in open(path)]
steps = [r["step_seconds"] for r in rows if "step_seconds" in r][warmup:]
ms = statistics.median(steps) * 1e3
print(f"| {batch} | {stage} | {ms:.1f} | {shipped:.1f} | {100 * (shipped / ms - 1):+.1f} % | {own:.1f} | "
      f"{100 * (own / ms - 1):+.1f} % | {planned / 1e9:.2f} | {used / 1e9:.2f} | "
      f"{f'{100 * (planned / used - 1):+.1f} %' if used else '-'} |")
PY
    done
done
