#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# What saving beside training costs the steps of configs/llama-1b.yaml on two GPUs: one run saves twice with save.async,
# far enough apart that a save is over before the next begins, and the steps behind each save are held against those
# before it. One line tells what a save adds, in percent of a step. The last checkpoint must verify, and a run that
# resumes from the one before must give the same losses bit for bit.
#
#   tests/gpu/save.sh [SHERD]
#
# Needs about 40 GB in SCRATCH (default: /dev/shm, else /tmp) and 14 GB of host memory besides. EVERY=N saves every N
# steps. TRIAL=1 does the same on the CPU with a tiny model, for which the percentage says nothing.
set -eu
cd "$(dirname "$0")/../.."
sherd=$(realpath "${1:-build/tools/sherd}")
ranks=2 every=${EVERY:-28} micro=8 most=5
second=$((2 * every))
steps=$((second + 12))
SCRATCH=${SCRATCH:-$([ -d /dev/shm ] && echo /dev/shm || echo /tmp)}
# shellcheck source=bench/common.sh
. bench/common.sh
[ -z "$trial" ] || micro=2 most=1000000
shape_of 1b
start $ranks
random_tokens "$work/tokens.bin" 1000000 "$vocab"

run() { # NAME SETTING...
    local name=$1 s args
    shift
    args=(train configs/llama-1b.yaml --ranks $ranks --set run.dir="$work/$name" --set run.deterministic=true
        --set batch.global=$((micro * ranks)) --set batch.micro=$micro --set batch.seq="$seq" --set train.steps=$steps
        --set schedule.warmup=2 --set save.every="$every" --set save.keep=2 --set "data.train=[$work/tokens.bin]"
        --set data.format=llmc --set "data.val=[]" --set train.eval_every=0 --set log.every=1000 "${small[@]}")
    for s in "$@"; do args+=(--set "$s"); done
    "$sherd" "${args[@]}" >>"$work/$name.log" 2>&1 || { echo "FAILED: $name"; tail -20 "$work/$name.log"; exit 1; }
}

run beside save.async=true
grep -hE 'stood still|^(\[rank 0\] )?saved|written by|host memory' "$work/beside.log" | sed 's/^/       /'

# A step is the time from the end of the one before it. Those behind a save have its beginning, its copies and the waits
# for these in them; the rest of the interval is written beside, which is told but not judged: it drowns in how much
# steps differ by themselves.
cat >"$work/look.py" <<'PY'
import json, statistics, sys
work, every, second, steps, most = sys.argv[1], *map(int, sys.argv[2:5]), float(sys.argv[5])
AFTER, BEFORE = 3, 8
records = [json.loads(line) for line in open("%s/beside/metrics.jsonl" % work)]
ends = {r["step"]: r["run_seconds"] for r in records if "loss" in r}
saves = {r["step"]: r for r in records if r.get("event") == "save"}
if sorted(ends) != list(range(1, steps + 1)) or not {every, second} <= set(saves):
    sys.exit("steps or saves are missing")
took = {s: ends[s] - ends[s - 1] for s in range(2, steps + 1)}
if saves[every]["save_seconds"] > ends[second] - ends[every]:
    sys.exit("the second save began before the first was over: give EVERY a larger number")
added, later, step = [], [], []
for s in every, second:
    step.append(statistics.median(took[s - k] for k in range(BEFORE)))
    added.append(sum(took[s + k] for k in range(1, AFTER + 1)) - AFTER * step[-1])
    last = min(s + every, steps)
    later.append(sum(took[k] for k in range(s + AFTER + 1, last + 1)) / (last - s - AFTER) - step[-1])
    r = saves[s]
    print("       step %d: %.1f ms to begin, updates waited %.1f ms, %.2f GB copied in %.0f ms, %.1f GB saved in %.1f s; "
          "%d steps took %.1f ms more" % (s, 1e3 * r["still_seconds"], 1e3 * r["update_wait_seconds"],
          1e-9 * r["copied_bytes"], 1e3 * r["copy_seconds"], 1e-9 * r["saved_bytes"], r["save_seconds"], AFTER, 1e3 * added[-1]))
share = 100 * max(a / b for a, b in zip(added, step))
print("       a save adds %.1f %% of a step of %.1f ms, allowed %g (the worse of %d); steps beside its writing took %+.1f %%" %
      (share, 1e3 * statistics.median(step), most, len(step), 100 * statistics.mean(a / b for a, b in zip(later, step))))
sys.exit(0 if share <= most else 1)
PY
slow=0
"$python" "$work/look.py" "$work" "$every" "$second" $steps $most || slow=1
[ $slow -eq 1 ] || echo "ok     saves beside the steps"

losses() { # the losses after the second save
    "$python" -c 'import json, sys
for r in map(json.loads, open(sys.argv[1])):
    if "loss" in r and r["step"] > int(sys.argv[2]): print(r["step"], r["loss"])' "$work/beside/metrics.jsonl" "$second"
}
losses >"$work/whole"
"$sherd" verify "$work/beside" >"$work/verify.log" 2>&1 || { echo "FAILED: verify"; tail "$work/verify.log"; exit 1; }
echo "ok     the last checkpoint verifies"
rm -rf "$work/beside/step-$(printf %08d $steps)"
echo "step-$(printf %08d $second)" >"$work/beside/latest"
run beside save.what=nothing run.resume=required
grep -q "resumed from .*step $second" "$work/beside.log" || { echo "FAILED: not resumed"; tail "$work/beside.log"; exit 1; }
losses >"$work/resumed"
[ "$(wc -l <"$work/whole")" -eq $((steps - second)) ] && cmp "$work/whole" "$work/resumed" ||
    { echo "FAILED: other losses after resuming"; exit 1; }
echo "ok     resumed at step $second to the same losses"
[ $slow -eq 0 ] || { echo "FAILED: saves take too much of a step"; exit 1; }
echo "all done in $SECONDS s"
