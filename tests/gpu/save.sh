#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# What saving beside training costs the steps of configs/llama-1b.yaml on two GPUs: the same steps are taken with
# save.async and with save.what=nothing, and the time that a save adds is told in percent of a step. The checkpoints must
# verify, and a run that resumes from the one in the middle must give the same losses bit for bit.
#
#   tests/gpu/save.sh [SHERD]
#
# Needs about 40 GB in SCRATCH (default: /dev/shm, else /tmp) and as much host memory. EVERY=N saves every N steps.
# TRIAL=1 does the same on the CPU with a tiny model, for which the percentage says nothing.
set -eu
cd "$(dirname "$0")/../.."
sherd=$(realpath "${1:-build/tools/sherd}")
ranks=2 device=cuda every=${EVERY:-8}
steps=$((3 * every)) middle=$((2 * every)) most=5
scratch=${SCRATCH:-$([ -d /dev/shm ] && echo /dev/shm || echo /tmp)}
shape=(--set batch.global=16 --set batch.micro=8 --set batch.seq=2048)
vocab=32000
if [ -n "${TRIAL:-}" ]; then
    device=cpu most=1000000 vocab=512 shape=()
    for s in model.vocab=512 model.width=64 model.layers=2 model.heads=4 model.kv_heads=2 model.mlp_width=160 \
        model.context=64 batch.global=4 batch.micro=2 batch.seq=64; do
        shape+=(--set "$s")
    done
else
    command -v nvidia-smi >/dev/null && [ "$(nvidia-smi -L | grep -c '^GPU')" -ge $ranks ] ||
        { echo "fewer than $ranks GPUs here"; exit 77; }
fi
work=$(mktemp -d "$scratch/sherd-save-XXXXXX")
trap 'rm -rf "$work"' EXIT

python3 - "$work/tokens.bin" $vocab <<'PY'
import array, random, sys
r = random.Random(1)
array.array("H", (r.randrange(int(sys.argv[2])) for _ in range(1000000))).tofile(open(sys.argv[1], "wb"))
PY

run() { # NAME SETTING...
    local name=$1 s args
    shift
    args=(train configs/llama-1b.yaml --ranks $ranks --set run.dir="$work/$name" --set run.device="$device"
        --set run.deterministic=true --set train.steps=$steps --set schedule.warmup=2 --set save.every="$every"
        --set save.keep=2 --set "data.train=[$work/tokens.bin]" --set "data.val=[]" --set train.eval_every=0
        --set log.every=1 "${shape[@]}")
    for s in "$@"; do args+=(--set "$s"); done
    "$sherd" "${args[@]}" >>"$work/$name.log" 2>&1 || { echo "FAILED: $name"; tail -20 "$work/$name.log"; exit 1; }
}

run nothing save.what=nothing
run beside save.async=true
grep -hE 'stood still|being saved|^(\[rank 0\] )?saved|written by|host memory' "$work/beside.log" | sed 's/^/       /'

# Between the end of the first interval's warm-up and the last step, whose save is waited for and left out: the saves in
# between are what one run has and the other has not.
cat >"$work/look.py" <<'PY'
import json, sys
work, every, steps, most = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
def read(name):
    records = [json.loads(line) for line in open("%s/%s/metrics.jsonl" % (work, name))]
    return {r["step"]: r for r in records if "loss" in r}
a, b = read("nothing"), read("beside")
if sorted(a) != list(range(1, steps + 1)) or [(s, a[s]["loss"]) for s in sorted(a)] != [(s, b[s]["loss"]) for s in sorted(b)]:
    sys.exit("the losses are not the same")
def wall(r, last):
    return r[last]["run_seconds"] - r[every - 1]["run_seconds"]
last = steps - 1
step = wall(a, last) / (last - every + 1)
saves = last // every
added = (wall(b, last) - wall(a, last)) / saves
print("       a step: %.1f ms; a save adds %.1f ms: %.1f %% of a step (%d saves), allowed %g" %
      (1e3 * step, 1e3 * added, 100 * added / step, saves, most))
sys.exit(0 if 100 * added / step <= most else 1)
PY
slow=0
python3 "$work/look.py" "$work" "$every" $steps $most || slow=1
[ $slow -eq 1 ] || echo "ok     the same losses, and saves beside the steps"

"$sherd" verify "$work/beside" >"$work/verify.log" 2>&1 || { echo "FAILED: verify"; tail "$work/verify.log"; exit 1; }
echo "ok     the last checkpoint verifies"
rm -rf "$work/beside/step-$(printf %08d $steps)"
echo "step-$(printf %08d $middle)" >"$work/beside/latest"
run beside save.what=nothing run.resume=required
grep -q "resumed from .*step $middle" "$work/beside.log" || { echo "FAILED: not resumed"; tail "$work/beside.log"; exit 1; }
python3 - "$work" $steps <<'PY' || { echo "FAILED: other losses after resuming"; exit 1; }
import json, sys
def losses(name):
    records = [json.loads(line) for line in open("%s/%s/metrics.jsonl" % (sys.argv[1], name))]
    return [(r["step"], r["loss"]) for r in records if "loss" in r]
a, b = losses("nothing"), losses("beside")
sys.exit(0 if a == b and len(a) == int(sys.argv[2]) else 1)
PY
echo "ok     resumed at step $middle to the same losses"
[ $slow -eq 0 ] || { echo "FAILED: saves take too much of a step, or change losses"; exit 1; }
echo "all done"
