#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# sherd beside llm.c's train_gpt2cu on the GPUs of this host, in one go: configs/gpt2-124m.yaml (GPT-2 of 124 million
# parameters, stage 1, bf16, float masters, clipping), 1024 tokens x 32 a GPU, both from one file of random tokens. llm.c
# as its own scripts run it (-z 1 -e d12), with and without recomputing the GELU; the faster is taken. Ends with one table.
#
#   bench/against_llmc_gpu.sh LLMC [SHERD] [GPUS]      LLMC: the folder of a built train_gpt2cu; defaults:
#                                                      build/tools/sherd 2. How it is built: bench/README.md
#   TRIAL=1 bench/against_llmc_gpu.sh - SHERD 2        a small shape on the CPU and no llm.c, to try the script
#
# SEQUENCES  of a GPU (default 32)
# STEPS      steps timed after 5 to warm up (default 30)
# TRIES      options of llm.c, runs parted by ";" (default "-r 0;-r 1")
# SETS       settings of sherd, runs parted by ";" (default "train.recompute=none;train.recompute=cheap")
# PYTHON, SCRATCH and LOGS as in bench/compare_fsdp2.sh.
#
# llm.c's time is its own, between CUDA events around a step, the median. Its "own" memory is the sum of what it says it
# allocates. What else the columns mean: bench/beside.py.
set -eu
[ $# -ge 1 ] || { echo "usage: $0 LLMC [SHERD] [GPUS]"; exit 2; }
llmc=$1
[ "$llmc" = - ] || llmc=$(realpath "$1")
[ "$llmc" = - ] || [ -x "$llmc/train_gpt2cu" ] ||
    { echo "$1 has no train_gpt2cu: bench/README.md says how it is built"; exit 2; }
cd "$(dirname "$0")/.."
sherd=$(realpath "${2:-build/tools/sherd}")
gpus=${3:-2}
batch=${SEQUENCES:-32}
steps=${STEPS:-30}
warmup=5
IFS=';' read -ra tries <<<"${TRIES:--r 0;-r 1}"
IFS=';' read -ra sets <<<"${SETS:-train.recompute=none;train.recompute=cheap}"
# shellcheck source=bench/common.sh
. bench/common.sh
[ "$llmc" != - ] || [ -n "$trial" ] || { echo "only a trial (TRIAL=1) goes without llm.c"; exit 2; }
start "$gpus"
seq=1024 vocab=50257 small=()
if [ -n "$trial" ]; then
    for s in run.device=cpu model.width=32 model.layers=2 model.heads=2; do
        small+=(--set "$s")
    done
    seq=64
fi
random_tokens "$work/tokens.bin" $(((steps + warmup) * batch * gpus * seq + 1)) "$vocab"

# DIR RANKS COMMAND...: rank 0 as this shell's child, the others behind it; they find each other by a file in DIR
# shellcheck disable=SC2016
ranks='cd "$1"; n=$2; shift 2; others= st=0
for ((r = 1; r < n; r++)); do "$@" -pr $r >rank$r.log 2>&1 & others="$others $!"; done
"$@" -pr 0 || st=$?
[ $st -eq 0 ] || [ -z "$others" ] || kill $others 2>/dev/null
for p in $others; do wait $p || [ $st -ne 0 ] || st=1; done
exit $st'

failed=0
for i in "${!tries[@]}"; do
    [ "$llmc" != - ] || break
    echo "llm.c ${tries[i]}"
    dir=$work/llmc-$i st=0
    mkdir "$dir"
    # shellcheck disable=SC2086
    watched "llmc-$i" '^step +1/' stdbuf -oL timeout 200 bash -c "$ranks" - "$dir" "$gpus" "$llmc/train_gpt2cu" \
        -i "$work/tokens.bin" -j "$work/tokens.bin" -e d12 -b "$batch" -t "$seq" -x $((steps + warmup)) -z 1 -c 0.1 -l 6e-4 \
        -u 2 -v 100000 -m 1 -s 0 -pn "$gpus" -pg "$gpus" -pi fs -pf "$dir" ${tries[i]} || st=$?
    [ $st -eq 0 ] || { tell "llmc-$i" "llm.c ${tries[i]}"; cat "$dir"/rank*.log | tail -n 5; failed=1; }
done
for i in "${!sets[@]}"; do
    echo "sherd ${sets[i]}"
    more=() st=0
    for s in ${sets[i]//,/ }; do
        more+=(--set "$s")
    done
    sherd_train "sherd-$i" configs/gpt2-124m.yaml "$gpus" $((steps + warmup)) "$batch" "$seq" "$work/tokens.bin" \
        "${small[@]}" "${more[@]}" || st=$?
    [ $st -eq 0 ] || { tell "sherd-$i" "sherd ${sets[i]}"; failed=1; }
done

[ -n "$trial" ] || nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | sort | uniq -c
"$python" - "$out" "$warmup" "$batch" "$seq" "${#tries[@]}" "${#sets[@]}" "${tries[@]}" "${sets[@]}" <<'PY' || failed=1
import re, statistics, sys
sys.path.insert(0, "bench")
import beside
out, (warmup, batch, seq, n, m), names = sys.argv[1], map(int, sys.argv[2:7]), sys.argv[7:]


def llmc(name):
    text = "\n".join(beside.lines(out, name + ".log"))
    times = [float(x) for x in re.findall(r"^step +\d+/\d+ .*\| ([0-9.]+) ms \|", text, re.M)][warmup:]
    if not times:
        return None
    ms = statistics.median(times)
    own = sum(int(x) for x in re.findall(r"^allocat(?:ing|ed) (\d+) MiB for", text, re.M)) / 1024
    return {"ms": ms, "rate": batch * seq / ms * 1e3, "gpu": beside.gpu_memory(out, name), "own": own}


beside.text("GPT-2 124M, %d x %d, stage 1" % (batch, seq), "")
beside.head()
peers = [(names[i], llmc("llmc-%d" % i)) for i in range(n)]
peers = [(name, r) for name, r in peers if r]
for name, r in peers:
    beside.row("llm.c " + name, r)
ours = [(names[n + i], beside.sherd(out, "sherd-%d" % i, warmup, batch * seq)) for i in range(m)]
for name, r in ours:
    if r:
        beside.row("sherd " + name, r)
if peers:
    best = max(peers, key=lambda p: p[1]["rate"])
    for name, r in ours:
        if r:
            beside.ratios("  sherd %s / llm.c %s" % (name, best[0]), r, best[1])
PY
exit $failed
