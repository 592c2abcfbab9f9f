#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# Where the time of a step goes: configs/llama-1b.yaml (1.1 billion parameters, stage 3, bf16) with 2048 tokens x 8 and x 2
# a GPU, random tokens; with every operation timed, and instruction by instruction with and without a step being kept as
# one piece of work. Builds nothing. Leaves in DIR, for each, the timeline (.json, for Perfetto), the log with the tables
# (.log) and the metrics (.jsonl); ends with a line for each: the median step of those that were not timed, the exposed
# communication of those that were, and how far the losses are from the plain run (0 with
# SET="--set run.deterministic=true", else what sums in any order make of them).
#
#   tests/gpu/profile.sh DIR [SHERD] [GPUS]       defaults: build/tools/sherd 2
#   TRIAL=1 tests/gpu/profile.sh DIR SHERD 2      a small shape on the CPU, to try the script
#
# BATCHES names the sequences of a GPU (default "8 2"); STEPS the steps of a run (default 16); SET more settings.
set -eu
[ $# -ge 1 ] || { echo "usage: $0 DIR [SHERD] [GPUS]"; exit 2; }
LOGS=$(realpath -m "$1")
cd "$(dirname "$0")/../.."
sherd=$(realpath "${2:-build/tools/sherd}")
gpus=${3:-2}
steps=${STEPS:-16}
# shellcheck source=bench/common.sh
. bench/common.sh
shape_of 1b
start "$gpus"

one() { # NAME BATCH SETTING...
    local name=$1 batch=$2 settings st=0
    shift 2
    sherd_settings "$gpus" "$steps" "$batch" "$seq" "$work/tokens.bin" "${small[@]}" --set schedule.warmup=2 \
        --set log.every=1 --set profile.skip=$((steps - 4))
    # shellcheck disable=SC2086
    "$sherd" train configs/llama-1b.yaml --ranks "$gpus" "${settings[@]}" --profile="$out/$name.json" "$@" ${SET:-} \
        >"$out/$name.log" 2>&1 || st=$?
    [ $st -eq 0 ] || { echo "$name ended with status $st:"; tail -5 "$out/$name.log"; return 1; }
    grep '"loss"' "$work/run/metrics.jsonl" >"$out/$name.jsonl"
    rm -rf "$work/run"
}

summary() { # NAME PLAIN
    "$python" - "$out/$1" "$out/$2" $((steps - 4)) <<'PY'
import json, os, statistics, sys
name, plain, untimed = sys.argv[1], sys.argv[2], int(sys.argv[3])
rows, other = ([json.loads(l) for l in open(n + ".jsonl")] for n in (name, plain))
spans = [e["args"] for e in json.load(open(name + ".json"))["traceEvents"] if e.get("cat") == "step"]
exposed = statistics.mean(s["exposed_ms"] for s in spans)
whole = statistics.mean(s["busy_ms"] + s["exposed_ms"] + s["idle_ms"] for s in spans)
idle = statistics.mean(s["idle_ms"] for s in spans)
ms = 1e3 * statistics.median(r["step_seconds"] for r in rows[4:untimed])
apart = max(abs(a["loss"] / b["loss"] - 1) for a, b in zip(rows, other))
print("%-14s step %9.3f ms | timed %9.3f ms, exposed %8.3f ms (%.2f %%), idle %8.3f ms | losses %.2g apart" % (
    os.path.basename(name), ms, whole, exposed, 100 * exposed / whole, idle, apart))
PY
}

for batch in ${BATCHES:-8 2}; do
    random_tokens "$work/tokens.bin" $((steps * batch * gpus * seq + 1)) "$vocab"
    one "b$batch-plain" "$batch" --set run.graph=off || failed=1
    one "b$batch-ops" "$batch" --set run.graph=off --set profile.detail=ops || failed=1
    one "b$batch-graph" "$batch" --set run.graph=on || failed=1
done
for batch in ${BATCHES:-8 2}; do
    for kind in plain ops graph; do
        [ ! -s "$out/b$batch-$kind.jsonl" ] || summary "b$batch-$kind" "b$batch-plain" || failed=1
    done
done
exit $failed
