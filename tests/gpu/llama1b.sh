#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# configs/llama-1b.yaml on two GPUs, as its user would run it, with fewer and shorter steps: started by sherd itself, by
# torchrun and by mpirun (those that are here), each time trained, saved, killed with SIGKILL and resumed; merged; a
# checkpoint of the GPUs resumed on CPU ranks, and theirs on GPUs again. All GPU runs must give the same losses bit for
# bit, the CPU's must be near.
#
#   tests/gpu/llama1b.sh [SHERD]
#
# Needs about 60 GB in SCRATCH (default: /dev/shm, else /tmp), and some minutes; LAYERS=4 leaves out most blocks, to be
# done in one. TRIAL=1 does the same on the CPU with a tiny model.
set -eu
cd "$(dirname "$0")/../.."
sherd=$(realpath "${1:-build/tools/sherd}")
ranks=2 cpu_ranks=2 device=cuda steps=20 every=8 kill_at=10
SCRATCH=${SCRATCH:-$([ -d /dev/shm ] && echo /dev/shm || echo /tmp)}
# shellcheck source=bench/common.sh
. bench/common.sh
shape_of 1b
if [ -n "$trial" ]; then
    device=cpu
    small+=(--set model.layers=24) # steps long enough to be killed between
else
    seq=128
    [ -z "${LAYERS:-}" ] || small=(--set "model.layers=$LAYERS")
fi
start $ranks
trap '[ -z "$job" ] || kill -9 -- "-$job" 2>/dev/null || true; job=; leave' EXIT
random_tokens "$work/tokens.bin" 200000 "$vocab"

# train NAME LAUNCHER... -- SETTING...: in a session of its own, so that a kill takes all of it
arguments() { # NAME SETTING...
    local name=$1
    shift
    args=(train configs/llama-1b.yaml --set run.dir="$work/$name" --set run.device="$device" --set run.deterministic=true
        --set batch.global=4 --set batch.micro=2 --set batch.seq="$seq" --set train.steps=$steps --set schedule.warmup=2
        --set save.every=$every --set save.keep=2 --set "data.train=[$work/tokens.bin]" --set data.format=llmc
        --set "data.val=[]" --set train.eval_every=0 --set log.every=1 "${small[@]}")
    local s
    for s in "$@"; do args+=(--set "$s"); done
}

# What starts two ranks of sherd with "${args[@]}", by launcher.
command_of() {
    case $1 in
    ranks) command=("$sherd" "${args[@]}" --ranks $ranks) ;;
    torchrun) command=("$python" -m torch.distributed.run --no-python --nproc-per-node $ranks "$sherd" "${args[@]}") ;;
    mpirun) command=(mpirun --allow-run-as-root --oversubscribe -np $ranks "$sherd" "${args[@]}") ;;
    esac
}

here() {
    case $1 in
    torchrun) "$python" -c 'import torch.distributed.run' 2>/dev/null ;;
    mpirun) command -v mpirun >/dev/null ;;
    *) true ;;
    esac
}

fail() { # TEXT LOG
    echo "FAILED: $1"
    tail -20 "$2"
    exit 1
}

reached() { # NAME STEP
    grep -qE "\"step\": ?$2\b" "$work/$1/metrics.jsonl" 2>/dev/null
}

whole() { # NAME LAUNCHER SETTING...
    local name=$1 launcher=$2
    shift 2
    arguments "$name" "$@"
    command_of "$launcher"
    "${command[@]}" >>"$work/$name.log" 2>&1 || fail "$name by $launcher" "$work/$name.log"
}

killed() { # NAME LAUNCHER
    arguments "$1"
    command_of "$2"
    setsid "${command[@]}" >"$work/$1.log" 2>&1 &
    job=$!
    local i=0
    until reached "$1" $kill_at; do
        kill -0 $job 2>/dev/null || fail "$1 by $2 ended before it was killed" "$work/$1.log"
        i=$((i + 1))
        [ $i -lt 12000 ] || fail "$1 by $2 did not reach step $kill_at" "$work/$1.log"
        sleep 0.05
    done
    kill -9 -- "-$job"
    wait $job 2>/dev/null || true
    pkill -9 -f "run.dir=$work/$1" || true # ranks that a launcher put into sessions of their own
    job=
}

same() { # NAME NAME BOUND: losses by step, |a - b| <= BOUND * |a|; both have every step once
    "$python" - "$work/$1/metrics.jsonl" "$work/$2/metrics.jsonl" "$3" $steps <<'PY' || fail "$1 and $2 differ" "$work/$2.log"
import json, sys
def losses(path):
    records = [json.loads(line) for line in open(path)]
    return [(r["step"], r["loss"]) for r in records if "loss" in r]
a, b, bound, steps = losses(sys.argv[1]), losses(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
if [s for s, _ in a] != list(range(1, steps + 1)) or [s for s, _ in b] != [s for s, _ in a]:
    sys.exit("steps are missing or repeated: %s, %s" % ([s for s, _ in a], [s for s, _ in b]))
worst = max(abs(x - y) / abs(x) for (_, x), (_, y) in zip(a, b))
print("       losses apart by %.2g at most, allowed %g" % (worst, bound))
sys.exit(0 if worst <= bound else 1)
PY
}

back_to() { # NAME STEP: as if later checkpoints had not been written
    local d
    for d in "$work/$1"/step-*; do
        [ "$((10#${d##*step-}))" -le "$2" ] || rm -rf "$d"
    done
    echo "step-$(printf %08d "$2")" >"$work/$1/latest"
}

whole one ranks
echo "ok     $steps steps by sherd --ranks $ranks"
for launcher in ranks torchrun mpirun; do
    here $launcher || { echo "skip   $launcher is not here"; continue; }
    killed "$launcher" $launcher
    whole "$launcher" $launcher run.resume=required
    grep -q "resumed from" "$work/$launcher.log" || fail "$launcher did not resume" "$work/$launcher.log"
    echo "ok     killed after step $kill_at and resumed by $launcher"
    same one "$launcher" 0
    rm -rf "$work/$launcher"/step-*
done

"$sherd" merge "$work/one" "$work/model" >"$work/merge.log" 2>&1 || fail "merge" "$work/merge.log"
echo "ok     merged: $(du -sh "$work/model" | cut -f1) in $(find "$work/model" -name '*.safetensors' | wc -l) files"
rm -rf "$work/model"

cp -r "$work/one" "$work/mixed"
back_to mixed 16
gpu=$device
device=cpu ranks=$cpu_ranks
whole mixed ranks run.resume=required save.every=2
echo "ok     a checkpoint of $gpu at step 16 resumed on $cpu_ranks CPU ranks"
same one mixed 0.02
back_to mixed 18
device=$gpu ranks=2
whole mixed ranks run.resume=required
echo "ok     a checkpoint of the CPU at step 18 resumed on $gpu"
same one mixed 0.02
echo "all done"
