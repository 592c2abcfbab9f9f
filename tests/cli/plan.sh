#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# Planning for a machine: the table, what fits and what would, figures against formulas, mistakes.
source=$(realpath "$(dirname "$0")/../..")
. "$(dirname "$0")/lib.sh"
llama=$source/configs/llama-1b.yaml

run 0 plan "$llama" --gpus 2 --device h200 --set batch.global=16 --set batch.micro=8
has out "NVIDIA H200 (1 node with 2 each)"
has out "fits: "
[ "$(grep -cE '^[ *] [0-3] +(none|cheap|block) ' out)" -eq 12 ] || { complain "not twelve rows"; show out; }
[ "$(grep -cE '^\* 3 +cheap ' out)" -eq 1 ] || complain "the configured row is not marked"

# Steps and memory in use (GB, by the driver) that were measured on two H200, sums by NCCL's kernels: within ten and two
# percent (docs/plan.md).
for point in 0:8:224.2:37.65 3:8:221.4:25.95 0:2:72.0:26.18 3:2:67.0:14.57; do
    IFS=: read -r stage micro ms gb <<<"$point"
    run 0 plan "$llama" --gpus 2 --device h200 --set batch.global=$((2 * micro)) --set batch.micro="$micro" \
        --json
    row="[x for x in r['forecast']['rows'] if x['stage'] == $stage and x['recompute'] == 'cheap'][0]"
    json "abs($row['step_seconds'] * 1e3 / $ms - 1) < 0.1"
    json "abs($row['memory'] / 1e9 / $gb - 1) < 0.02"
done
json 'r["forecast"]["gpus"] == 2 and r["forecast"]["nodes"] == 1 and r["forecast"]["recompute"] == "cheap"'
json 'all(x["memory"] > r["stages"][x["stage"]]["memory"]["param"] + r["forecast"]["library_bytes"] for x in r["forecast"]["rows"])'
json 'next(x for x in r["forecast"]["rows"] if x["stage"] == 3 and x["recompute"] == "cheap")["memory"] == r["stages"][3]["memory"]["total"] + r["forecast"]["library_bytes"]'
# What is kept falls from none to block, and with the stage; time rises with recomputing.
json 'all(a["memory"] > b["memory"] and a["step_seconds"] < b["step_seconds"] for a, b in zip(r["forecast"]["rows"], r["forecast"]["rows"][1:]) if a["stage"] == b["stage"])'
json 'all(a["memory"] >= b["memory"] for a, b in zip(r["forecast"]["rows"], r["forecast"]["rows"][3:]))'

# GPUs of one host have memory where gradients of other ranks land: the head and its norm, in floats.
run 0 plan "$llama" --gpus 2 --device h200 --set shard.reduce=copy --json
json '[s["memory"]["landing"] for s in r["stages"]] == [0] + 3 * [4 * (32000 + 1) * 2048]'
run 0 plan "$llama" --gpus 2 --nodes 1 --device h200 --set shard.reduce=copy
has out "  gradients from other ranks "
for other in "--gpus 1 --set shard.reduce=copy" "--gpus 1 --nodes 2 --set shard.reduce=copy" "--gpus 2" "--gpus 2 --set shard.reduce=copy --set model.vocab=256 --set model.layers=1 --set model.width=128 --set model.mlp_width=512"; do
    read -r -a args <<<"$other"
    run 0 plan "$llama" --device h200 "${args[@]}" --json
    json 'not any(s["memory"]["landing"] for s in r["stages"])'
done

# Sums by copy engines, as measured on two H200: faster than by kernels, which take from the products beside them.
for point in 8:215.1 2:62.6; do
    IFS=: read -r micro ms <<<"$point"
    for reduce in kernel copy; do
        run 0 plan "$llama" --gpus 2 --device h200 --set batch.global=$((2 * micro)) --set batch.micro="$micro" \
            --set shard.reduce="$reduce" --json
        mv out "$reduce.json"
    done
    cp copy.json out
    row="[x for x in r['forecast']['rows'] if x['stage'] == 3 and x['recompute'] == 'cheap'][0]['step_seconds']"
    json "abs($row * 1e3 / $ms - 1) < 0.05"
    json "(lambda copy, r: copy < $row)($row, json.load(open('kernel.json')))"
done

# Weights, means and squares, a float each, cut among the ranks.
run 0 plan "$llama" --ranks 2 --json
json '0 <= r["checkpoint"] - 12 * r["params"] / 2 < 1e5'
run 0 plan "$llama" --ranks 2 --set save.what=weights --set save.async=true
has out "GB of a checkpoint written by one rank, through as much host memory if"

# Thousands of GPUs, and --ranks cut into nodes.
run 0 plan "$llama" --nodes 512 --device h200 --set batch.global=16384 --json
json 'r["ranks"] == 4096 and r["forecast"]["gpus"] == 8 and r["forecast"]["nodes"] == 512'
run 0 plan "$llama" --ranks 64 --device h100 --json
json 'r["forecast"]["gpus"] == 8 and r["forecast"]["nodes"] == 8'

# What would make it fit: one setting where one is enough, else several; the advice holds when it is taken.
small() { # BYTES: a device with that much memory
    sed -e "s/\"memory\": .*/\"memory\": $1,/" -e 's/"library_bytes": .*/"library_bytes": 1000000000,/' \
        "$source/devices/h200.json" >small.json
}
advised() { # the settings in the file err, taken
    local sets
    read -r -a sets <<<"$(sed -n 's/^sherd: does NOT fit on .* would fit, with .* by //p' err)"
    [ "${#sets[@]}" -ge 2 ] || { complain "no advice"; show err; return; }
    run 0 plan "$llama" --gpus 2 --device ./small.json --set batch.global=16 --set batch.accum=auto "$@" "${sets[@]}"
    grep -q '^fits: ' out || { complain "the advice does not hold: ${sets[*]}"; show out; }
}
small 19000000000
run 1 plan "$llama" --gpus 2 --device ./small.json --set batch.global=16 --set batch.micro=8
has out "* 3      cheap"
has err "sherd: does NOT fit on NVIDIA H200: 24.9 GB of 19.0 GB, 5.92 GB too much; would fit"
has err "by --set batch.micro=2"
advised
# JSON is whole all the same, and says it in numbers.
run 1 plan "$llama" --gpus 2 --device ./small.json --set batch.global=16 --set batch.micro=8 --json
has err "sherd: does NOT fit on NVIDIA H200: "
json 'r["forecast"]["advice"] == ["batch.micro=2"] and not r["forecast"]["fits"]'
json '[r["forecast"]["missing"]] == [x["memory"] - r["forecast"]["memory"] for x in r["forecast"]["rows"] if x["stage"] == 3 and x["recompute"] == "cheap"]'
run 0 plan "$llama" --gpus 2 --device ./small.json --set batch.global=16 --set batch.micro=2 --json
empty err
json 'r["forecast"]["fits"] and r["forecast"]["missing"] == 0'
small 9000000000
run 1 plan "$llama" --gpus 2 --device ./small.json --set batch.global=16 --set batch.micro=8 --set shard.stage=2 --set shard.reduce=copy
has err "by --set shard.reduce=kernel --set batch.micro=1 --set train.recompute=block --set shard.stage=3"
advised
small 1500000000
run 1 plan "$llama" --gpus 2 --device ./small.json --set batch.global=16
has err "too much; nothing makes it fit on 2: more devices"
# Without a machine there is nothing to fit.
run 0 plan "$llama" --set batch.micro=512 --set batch.global=512

run 2 plan "$llama" --device h300
has err "'h300' is none of h100, h200"
run 2 plan "$llama" --device ./none.json
has err "none.json"
echo '{}' >bad.json
run 2 plan "$llama" --device ./bad.json
has err "bad.json: member 'sherd_device' is missing"
run 2 plan "$llama" --ranks 4 --gpus 2
has err "give --ranks, or --gpus"
run 2 plan "$llama" --ranks 12 --device h200
has err "no multiple of the 8 devices of a node"
finish
