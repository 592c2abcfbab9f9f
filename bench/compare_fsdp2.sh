#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# sherd beside PyTorch's FSDP2 on the GPUs of this host, in one go: stage 3, bf16, random tokens, AdamW, clipping. The peer
# is bench/fsdp2.py; of its attention kernels the faster one is taken. A work is SHAPE:SEQUENCES, the sequences of a
# GPU: 1b is configs/llama-1b.yaml with 2048 tokens each, 8b configs/llama-8b.yaml with 4096. Settings for sherd alone may
# follow (1b:8:train.recompute=none,shard.prefetch=2); the peer runs once for all works that differ only in them.
# Ends with one table, and, for the first work, the seconds from the start of the command to the end of its first
# step: cold (nothing kept from an earlier run: XDG_CACHE_HOME, TORCHINDUCTOR_CACHE_DIR are new folders) and warm.
#
#   bench/compare_fsdp2.sh [SHERD] [GPUS]       defaults: build/tools/sherd 2
#   TRIAL=1 bench/compare_fsdp2.sh SHERD 2      small shapes on the CPU, to try the script: its figures mean nothing
#
# WORKS      default "1b:8 1b:2 8b:2"
# STEPS      steps timed after 5 to warm up (default 20; 8b: STEPS_8B, default 12)
# ATTENTION  kernels of the peer (default "cudnn flash"; 8b: cudnn)
# REDUCE     bf16: each work once more with gradients reduced in bf16, on both sides; the peer with its first kernel
# SET        more settings of sherd for all works ("--set shard.prefetch=2")
# FIRST      0: no first steps
# PYTHON names the interpreter that has torch, SCRATCH a folder for token files; the output of all programs is kept in
# the folder LOGS if that is set. What the columns mean: bench/beside.py; "own" of the peer is its peak of allocated
# bytes. Its allocator keeps what it may need again: "reserved" is part of its "GPU", asked when that holds its most.
set -eu
cd "$(dirname "$0")/.."
sherd=$(realpath "${1:-build/tools/sherd}")
gpus=${2:-2}
works=${WORKS:-1b:8 1b:2 8b:2}
warmup=5
# shellcheck source=bench/common.sh
. bench/common.sh
start "$gpus"
export XDG_CACHE_HOME=$work/cache TORCHINDUCTOR_CACHE_DIR=$work/inductor TRITON_CACHE_DIR=$work/triton
reduces="f32 ${REDUCE:-}"
case ${REDUCE:-} in "" | bf16) ;; *) echo "REDUCE is bf16 or nothing"; exit 2 ;; esac

work_of() { # SHAPE: sets also steps and kernels
    shape_of "$1"
    case $1 in
    1b) steps=${STEPS:-20} kernels=${ATTENTION:-cudnn flash} ;;
    8b) steps=${STEPS_8B:-12} kernels=${ATTENTION:-cudnn} ;;
    esac
}

run_sherd() { # NAME WORK STEPS [SETTING...]
    local name=$1 shape batch settings s more=() st=0
    IFS=: read -r shape batch settings <<<"$2"
    work_of "$shape"
    local count=$3
    shift 3
    for s in ${settings//,/ }; do
        more+=(--set "$s")
    done
    echo "sherd, $name"
    random_tokens "$work/tokens.bin" $((count * batch * gpus * seq + 1)) "$vocab"
    # shellcheck disable=SC2086
    sherd_train "$name" "configs/llama-$shape.yaml" "$gpus" "$count" "$batch" "$seq" "$work/tokens.bin" \
        "${small[@]}" "$@" ${SET:-} "${more[@]}" || st=$?
    [ $st -eq 0 ] || { tell "$name" "sherd, $name,"; failed=1; }
}

# So that neither side waits for the disk: a step of sherd with a cache of its own, and all libraries of the peer.
read_files() {
    XDG_CACHE_HOME=$work/unused run_sherd sherd-files "$first" 1
    "$python" - <<'PY'
import glob, os, re, torch, torch._inductor
mapped = re.findall(r"/\S+\.so[.\d]*$", open("/proc/self/maps").read(), re.M)
for folder in {os.path.dirname(m) for m in mapped if "torch" in m or "nvidia" in m}:
    for name in glob.glob(folder + "/*.so*"):
        with open(name, "rb") as f:
            while f.read(1 << 24):
                pass
PY
}

shapes=
for w in $works; do
    IFS=: read -r shape batch _ <<<"$w"
    work_of "$shape"
    case $batch in "" | *[!0-9]*) echo "WORKS: $w has no number of sequences"; exit 2 ;; esac
    case " $shapes " in *" $shape "*) ;; *) shapes="$shapes $shape" ;; esac
done
first=${works%% *}
IFS=: read -r shape batch _ <<<"$first"
work_of "$shape"
timed=
if [ "${FIRST:-1}" != 0 ]; then
    timed=--first
    read_files
    run_sherd sherd-cold "$first" 3
    run_peer fsdp2-cold "$shape" --batch "$batch" --attention "${kernels%% *}" --steps 1 --warmup 1
fi
for reduce in $reduces; do
    n=0
    for w in $works; do
        IFS=: read -r shape _ <<<"$w"
        work_of "$shape"
        run_sherd "sherd-$reduce-$n" "$w" $((steps + warmup)) --set dtype.reduce="$reduce"
        n=$((n + 1))
    done
    for shape in $shapes; do
        work_of "$shape"
        [ "$reduce" = f32 ] || kernels=${kernels%% *}
        batches=$(for w in $works; do case $w in "$shape:"*) w=${w#*:}; echo "${w%%:*}" ;; esac; done | awk '!seen[$0]++')
        # shellcheck disable=SC2086
        run_peer "fsdp2-$reduce-$shape" "$shape" --batch $batches --attention $kernels --reduce "$reduce" \
            --steps "$steps" --warmup "$warmup"
    done
done

[ -n "$trial" ] || nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | sort | uniq -c
"$python" bench/fsdp2_table.py "$out" "$warmup" "$works" "$reduces" $timed ${trial:+--trial} || failed=1
exit $failed
