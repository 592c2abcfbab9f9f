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
kind=cuda device=${DEVICE:-h200}
# shellcheck source=bench/common.sh
. bench/common.sh
start "$gpus"
[ -z "$trial" ] || kind=cpu
own=${SAVE:-$work/device.json}
shape_of 1b
random_tokens "$work/tokens.bin" $(((steps + warmup) * 8 * gpus * seq + 1)) "$vocab"

watched rates . "$sherd" bench all --ranks "$gpus" --device $kind -b 256K -e 256M -f 8 -n 10 -w 3 --save "$own" ||
    { tell rates "sherd bench"; exit 1; }
[ -z "$trial" ] || device=$own

echo "| 2048 tokens x | stage | measured, ms | forecast by $device | | forecast by own rates | | planned GB | in use GB | |"
echo "|---|---|---|---|---|---|---|---|---|---|"
for batch in ${BATCHES:-8 2}; do
    for stage in ${STAGES:-0 1 2 3}; do
        name=forecast-$batch-$stage
        # shellcheck disable=SC2206
        args=("${small[@]}" --set batch.global=$((batch * gpus)) --set batch.micro="$batch" --set batch.seq="$seq"
            --set shard.stage="$stage" ${SET:-})
        sherd_train "$name" configs/llama-1b.yaml "$gpus" $((steps + warmup)) "$batch" "$seq" "$work/tokens.bin" \
            --set log.every=1 "${args[@]}" || { tell "$name" "sherd, $name,"; exit 1; }
        for plan in shipped:"$device" own:"$own"; do
            sherd_plan "$name.${plan%%:*}" "${plan#*:}" configs/llama-1b.yaml "$gpus" "${args[@]}" ||
                { tell "$name.${plan%%:*}" "sherd plan, $name,"; exit 1; }
        done
        "$python" - "$out" "$name" $warmup "$batch" "$stage" <<'PY'
import sys
sys.path.insert(0, "bench")
import beside
out, name, (warmup, batch, stage) = sys.argv[1], sys.argv[2], map(int, sys.argv[3:])
run = beside.sherd(out, name, warmup, batch)
shipped, own = (beside.forecast(out, name + end, stage) for end in (".shipped", ".own"))
used = run["gpu"] * beside.GIB
times = ["%.1f | %+.1f %%" % (1e3 * f["step_seconds"], 100 * (1e3 * f["step_seconds"] / run["ms"] - 1)) for f in (shipped, own)]
print("| %d | %d | %.1f | %s | %s | %.2f | %.2f | %s |" % (
    batch, stage, run["ms"], *times, shipped["memory"] / 1e9, used / 1e9,
    "%+.1f %%" % (100 * (shipped["memory"] / used - 1)) if used else "-"))
PY
    done
done
