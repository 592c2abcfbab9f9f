#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# Two hosts on one machine with two GPUs: two launchers, each with one GPU, whose ranks NCCL takes for strangers
# (NCCL_HOSTID) and may connect neither directly nor through shared memory, so that all goes over sockets. The weights
# must be those of two ranks on one host, bit for bit, at every stage. Usage: tests/gpu/two_hosts.sh BUILD
set -u
[ $# -eq 1 ] && [ -x "$1/tools/sherd" ] || { echo "usage: $0 BUILD"; exit 2; }
build=$(cd "$1" && pwd)
sherd=$build/tools/sherd
command -v nvidia-smi >/dev/null && [ "$(nvidia-smi -L | grep -c GPU)" -ge 2 ] || { echo "two GPUs are needed"; exit 77; }
work=$(mktemp -d)
trap 'jobs -p | xargs -r kill -KILL 2>/dev/null; rm -rf "$work"' EXIT
cd "$work" || exit 1
for name in $(compgen -e | grep -E '^(RANK|WORLD_SIZE|LOCAL_|MASTER_|SHERD_|OMPI_|PMIX?_|SLURM_)'); do unset "$name"; done
seq 1 30000 >text
cat >job.yaml <<'END'
run: { device: cuda, seed: 3, timeout: 120, deterministic: true }
model: { family: llama, width: 256, layers: 4, heads: 4, context: 128 }
batch: { global: 16, micro: 4 }
train: { steps: 20 }
data: { train: [text] }
log: { every: 5 }
END
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])')
faults=0
complain() {
    echo "$*"
    faults=$((faults + 1))
}

host() { # NUMBER STAGE: one launcher with one rank on the GPU of this number
    CUDA_VISIBLE_DEVICES=$1 NCCL_HOSTID=host$1 NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_NET=Socket NCCL_DEBUG=INFO \
        timeout 280 "$sherd" launch --nnodes 2 --node-rank "$1" --rdzv-endpoint 127.0.0.1:$port --rdzv-id two-hosts \
        sherd train job.yaml --set run.dir=two"$2" --set shard.stage="$2" >two"$2".log."$1" 2>&1
}

for stage in 0 1 2 3; do
    timeout 280 "$sherd" train job.yaml --ranks 2 --set run.dir=one$stage --set shard.stage=$stage >one$stage.log 2>&1 ||
        { complain "stage $stage: two ranks on one host failed"; tail -n 20 one$stage.log; continue; }
    host 0 $stage &
    first=$!
    host 1 $stage
    second=$?
    wait $first || second=1
    if [ $second -ne 0 ]; then
        complain "stage $stage: two hosts failed"
        tail -n 20 two$stage.log.0 two$stage.log.1
        continue
    fi
    grep -q 'via NET/Socket' two$stage.log.0 two$stage.log.1 || complain "stage $stage: NCCL did not use sockets"
    grep -qE 'via (P2P|SHM)' two$stage.log.0 two$stage.log.1 && complain "stage $stage: NCCL did not use sockets alone"
    for file in one$stage/step-*/*.safetensors; do
        cmp "$file" "two$stage/${file#one$stage/}" || complain "stage $stage: $(basename "$file") differs"
    done
    echo "stage $stage: $(grep -h 'step *20/20' one$stage.log | tail -1)"
    echo "   two hosts: $(grep -h 'step *20/20' two$stage.log.0 | tail -1)"
done
[ $faults -eq 0 ] && echo "two hosts over sockets: the same bits as one host" || echo "$faults faults"
[ $faults -eq 0 ]
