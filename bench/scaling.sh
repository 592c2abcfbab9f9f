#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# How training scales over the GPUs of one host, all in one go: in nine minutes at most (BUDGET), with one table at the
# end. Random tokens, bf16, AdamW, clipping, `train.recompute: cheap`; the shapes are configs/llama-1b.yaml with 2048
# tokens a sequence and configs/llama-8b.yaml with 4096. A figure is the median of the steps after 5 to warm up.
#
#   bench/scaling.sh [SHERD] [GPUS]         defaults: build/tools/sherd, all GPUs there are; GPUS is 2, 4 or 8
#   TRIAL=1 bench/scaling.sh SHERD 8        small shapes on the CPU, to try the script: its figures mean nothing
#
# PARTS names what is done, in this order whatever the order here (default: all of it):
#   selftest   sherd selftest on all GPUs
#   bench      sherd bench all on all GPUs, and the rates of this machine for forecasts
#   stages     stages 0 to 3 of 1b on all GPUs, 8 sequences each
#   weak       stage 3 of 1b, 8 sequences a GPU, on 1, 2, 4, ... GPUs
#   strong     stage 3 of 1b, the same sequences in all, 2 for each GPU of the host, on 1, 2, 4, ... GPUs
#   8b         stage 3 of 8b on all GPUs, 2 sequences each
#   resume     1b on all GPUs is killed after a save, by SIGKILL to one rank; goes on on half of the GPUs; merge, verify
#   fsdp2      bench/fsdp2.py on all GPUs beside stage 3 of 1b, and beside 8b if that was asked for
# A part that fails is told and the others go on; the exit status is then 1. Other settings: STEPS timed (default 20),
# STEPS_8B (10), SET more settings of sherd ("--set shard.prefetch=2"), DEVICE the file of forecasts by shipped rates
# (h200), BUDGET the seconds for everything (540): what does not fit is ended or left out, and counts as failed. PYTHON
# names the interpreter that has torch; LOGS a folder in which the output of all programs is kept; SCRATCH one for token
# files and checkpoints, 45 GB with resume (default: /dev/shm if there is one).
#
# Columns: efficiency is tokens/s a GPU in percent of those on 2 GPUs (on 1, if there are only 2); exposed the share of
# the step in which computing waited for communication; GPU and own as bench/beside.py says; then what `sherd plan`
# forecasts by the shipped rates and by this machine's own, each with its distance from what was measured, and the
# memory that it plans. Sharding within nodes only (hybrid) does not exist, so it is not here.
set -eu
cd "$(dirname "$0")/.."
sherd=$(realpath "${1:-build/tools/sherd}")
gpus=${2:-$(nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true)}
all="selftest bench stages weak strong 8b resume fsdp2"
parts=${PARTS:-$all}
budget=${BUDGET:-540}
warmup=5
kind=cuda sizes=(-b 16K -e 1G -f 4) sizes_saved=() size_checked=32
if [ -n "${TRIAL:-}" ]; then
    kind=cpu sizes=(-b 1K -e 64K -f 8 -n 2) sizes_saved=(-b 4K -e 256K -f 8 -n 2) size_checked=1
fi
case $gpus in 2 | 4 | 8) ;; *) echo "GPUS is 2, 4 or 8, not '$gpus'"; exit 2 ;; esac
for p in $parts; do
    case " $all " in *" $p "*) ;; *) echo "PARTS: there is no '$p': there are $all"; exit 2 ;; esac
done
SCRATCH=${SCRATCH:-$([ ! -d /dev/shm ] || echo /dev/shm)}
# shellcheck source=bench/common.sh
. bench/common.sh
start "$gpus"
works=$out/works.txt notes=$out/notes.txt
rm -f "$out"/*.plan-{shipped,own} "$out/device.json"
: >"$works"
: >"$notes"
faults=()
declare -A ran=()

asked() { # PART
    case " $parts " in *" $1 "*) ;; *) return 1 ;; esac
    echo "== $1 ($SECONDS s)"
    [ $SECONDS -lt "$budget" ] || { echo "   no time is left"; faults+=("$1: no time was left"); return 1; }
}

within() { # SECONDS: the limit of the next command
    limit=$((budget - SECONDS < $1 ? budget - SECONDS : $1))
    [ "$limit" -gt 0 ] || limit=1
}

note() { # TEXT: a line under the table
    echo "   $1"
    echo "$1" >>"$notes"
}

fault() { # NAME WHAT
    tell "$1" "$2"
    faults+=("${2%,}")
}

tokens_of() { # SHAPE: its file, made once; sets tokens
    tokens=$work/$1.bin
    [ -e "$tokens" ] || random_tokens "$tokens" $((4 * 8 * gpus * seq + 1)) "$vocab"
}

# A row of the table. A work that two parts share is run once.
train() { # PART SHAPE RANKS STAGE SEQUENCES-IN-ALL
    local part=$1 shape=$2 ranks=$3 stage=$4 sequences=$5 micro st=0 steps=${STEPS:-20} device file args
    local name=sherd-$2-$3-$4-$5
    shape_of "$shape"
    [ "$shape" = 1b ] || steps=${STEPS_8B:-10}
    micro=$((sequences / ranks < 8 ? sequences / ranks : 8))
    echo "$part $name $shape $ranks $stage $sequences $seq" >>"$works"
    [ -z "${ran[$name]:-}" ] || return 0
    ran[$name]=1
    echo "   $shape, $ranks ranks, stage $stage, $sequences x $seq"
    tokens_of "$shape"
    # shellcheck disable=SC2206
    args=("${small[@]}" --set shard.stage="$stage" --set batch.global="$sequences" --set log.every=1 ${SET:-})
    within "$([ "$shape" = 8b ] && echo 90 || echo 60)"
    sherd_train "$name" "configs/llama-$shape.yaml" "$ranks" $((steps + warmup)) "$micro" "$seq" "$tokens" \
        "${args[@]}" || st=$?
    [ $st -eq 0 ] || { fault "$name" "sherd, $name,"; return 0; }
    args+=(--set batch.seq="$seq" --set batch.micro="$micro")
    for device in shipped own; do
        file=${DEVICE:-h200}
        [ $device = shipped ] || file=$out/device.json
        [ $device = shipped ] || [ -e "$file" ] || continue
        sherd_plan "$name.plan-$device" "$file" "configs/llama-$shape.yaml" "$ranks" "${args[@]}" ||
            fault "$name.plan-$device" "sherd plan, $name,"
    done
}

worlds() {
    local n
    for ((n = 1; n <= gpus; n *= 2)); do echo $n; done
}

selftest() {
    local st=0
    within 90
    watched selftest ok "$sherd" selftest --ranks "$gpus" --device $kind --size $size_checked || st=$?
    [ $st -eq 0 ] || { fault selftest "sherd selftest"; return 0; }
    note "selftest: $(grep -c '^ok' "$out/selftest.log") checks, all ok"
}

bench() {
    local st=0
    within 60
    watched bench all_gather "$sherd" bench all --ranks "$gpus" --device $kind -R 1 "${sizes[@]}" --json || st=$?
    [ $st -eq 0 ] || fault bench "sherd bench"
    st=0
    within 90
    watched rates all_gather "$sherd" bench all --ranks "$gpus" --device $kind "${sizes_saved[@]}" \
        --save "$out/device.json" || st=$?
    [ $st -eq 0 ] || fault rates "sherd bench --save"
}

# A job on all GPUs that saves now and then, until one of its ranks is killed; 1 if it does not end of that by itself.
hurt() { # CONFIG
    local launcher='' ranks=() dir=$work/kept ends=$((SECONDS + limit)) killed st=0
    timeout --foreground -k 15 "$limit" "$sherd" train "$1" --ranks "$gpus" "${settings[@]}" >"$out/killed.log" 2>&1 &
    job=$!
    while kill -0 $job 2>/dev/null && [ ! -e "$dir/latest" ] && [ $SECONDS -lt $ends ]; do sleep 0.02; done
    read -r launcher 2>/dev/null <"/proc/$job/task/$job/children" || true
    [ -z "$launcher" ] || read -r -a ranks 2>/dev/null <"/proc/$launcher/task/$launcher/children" || true
    if [ ! -e "$dir/latest" ] || [ ${#ranks[@]} -ne "$gpus" ]; then
        end $job
        job=
        echo "no checkpoint, or not $gpus ranks but ${#ranks[@]}" >>"$out/killed.log"
        return 1
    fi
    killed=$EPOCHREALTIME
    kill -KILL "${ranks[-1]}"
    wait $job || st=$?
    job=
    grep -q "was killed by SIGKILL" "$out/killed.log" && [ $st -ne 0 ] && [ $st -ne 124 ] || return 1
    note "killed one of $gpus ranks at $(cat "$dir/latest"): the job ended with $st after $(since "$killed") s"
}

since() { # START
    awk -v a="$1" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }'
}

resume() {
    local settings steps=30 half=$((gpus / 2)) config=configs/llama-1b.yaml kept=$work/kept t st=0
    [ -z "$trial" ] || steps=100
    shape_of 1b
    tokens_of 1b
    # shellcheck disable=SC2206
    local more=("${small[@]}" --set batch.global=$((8 * gpus)) --set run.dir="$kept" --set save.what=all --set save.every=10
        --set save.keep=2 --set shard.stage=3 ${SET:-})
    sherd_settings "$gpus" $steps 8 "$seq" "$tokens" "${more[@]}"
    within 90
    hurt $config || { fault killed "resume, the job that is killed,"; return 0; }
    within 90
    sherd_train resumed $config $half $steps 8 "$seq" "$tokens" "${more[@]}" --set run.resume=required || st=$?
    [ $st -eq 0 ] || { fault resumed "resume on $half ranks"; return 0; }
    note "on $half ranks: resumed at $(sed -n 's/.*resumed from .*: \(step [0-9]*\).*/\1/p' "$out/resumed.log" | head -n 1), $(
        cat "$kept/latest") saved"
    t=$EPOCHREALTIME
    within 60
    watched merged . "$sherd" merge "$kept" "$work/merged" || { fault merged "sherd merge"; return 0; }
    note "merged: $(du -sm "$work/merged" | cut -f 1) MiB in $(since "$t") s"
    for t in "$kept" "$work/merged"; do
        within 60
        watched verified . "$sherd" verify "$t" || { fault verified "sherd verify ${t##*/}"; return 0; }
    done
    note "verified: the checkpoints and the model"
}

fsdp2() {
    local kernels=${ATTENTION:-cudnn}
    if ! "$python" -c 'import torch' 2>"$out/torch.err"; then
        [ -n "$trial" ] && { note "fsdp2 is left out: $python has no torch"; return 0; }
        echo "$python has no torch; PYTHON names another, PARTS can do without fsdp2" >>"$out/torch.err"
        fault torch "fsdp2"
        return 0
    fi
    export TORCHINDUCTOR_CACHE_DIR=$work/inductor TRITON_CACHE_DIR=$work/triton
    failed=0
    within 150
    # shellcheck disable=SC2086
    run_peer fsdp2-f32-1b 1b --batch 8 --attention $kernels --steps "${STEPS:-20}" --warmup $warmup
    case " $parts " in *" 8b "*)
        within 150
        run_peer fsdp2-f32-8b 8b --batch 2 --attention cudnn --steps "${STEPS_8B:-10}" --warmup $warmup
        ;;
    esac
    [ $failed -eq 0 ] || faults+=("fsdp2")
}

echo "$gpus ranks, at most $budget s, output in $out"
if asked selftest; then selftest; fi
if asked bench; then bench; fi
if asked stages; then for s in 0 1 2 3; do train stages 1b "$gpus" $s $((8 * gpus)); done; fi
if asked weak; then for n in $(worlds); do train weak 1b "$n" 3 $((8 * n)); done; fi
if asked strong; then for n in $(worlds); do train strong 1b "$n" 3 $((2 * gpus)); done; fi
if asked 8b; then train 8b 8b "$gpus" 3 $((2 * gpus)); fi
if asked resume; then resume; fi
if asked fsdp2; then fsdp2; fi

echo
[ -n "$trial" ] || nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | sort | uniq -c
"$python" bench/scaling_table.py "$out" $warmup "$gpus" || faults+=("the table")
cat "$notes"
for f in "${faults[@]}"; do echo "FAILED: $f"; done
echo "all done in $SECONDS s"
[ ${#faults[@]} -eq 0 ]
