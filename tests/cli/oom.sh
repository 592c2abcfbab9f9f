#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# A rank that runs out of memory: whatever it was about, the job ends in seconds with the reason of that rank and leaves
# nothing; where it starts again, the weights at the end are those of a run that had enough.
. "$(dirname "$0")/lib.sh"
set -m
make_tiny
steps=300
common=(train tiny.yaml --set run.timeout=20 --set train.steps=$steps --set save.every=100 --set log.every=100)

# Rank 1 gets $LIMIT KiB of address space, in the first attempt.
# shellcheck disable=SC2016
limited='[ "$RANK" = 1 ] && [ "$TORCHELASTIC_RESTART_COUNT" = 0 ] && ulimit -v "$LIMIT"; exec "$0" "$@"'
launch() { # LIMIT DIR OPTION...: sets code; what was said is in DIR.err
    local limit=$1 dir=$2
    shift 2
    LIMIT=$limit timeout -k 5 60 "$sherd" launch --nproc-per-node 3 "$@" \
        bash -c "$limited" "$sherd" "${common[@]}" --set run.dir="$work/$dir" >"$dir.out" 2>"$dir.err"
    code=$?
}

# The last line names rank 1 and what it wanted; no rank is left.
told() { # DIR TEXT
    tail -n 1 "$1.err" >last
    grep -qE "^sherd: rank 1 of 3 \(.* failed: .*out of memory: .*(ulimit -v)" last ||
        { complain "line ${BASH_LINENO[0]}: $1: it is not said last that rank 1 had no memory"; show "$1.err"; }
    [ $# -lt 2 ] || has last "$2"
    gone "$1"
}

gone() { # DIR
    sleep 0.1
    pgrep -f "run.dir=$work/$1" >left && complain "line ${BASH_LINENO[0]}: $1: there are still processes $(tr '\n' ' ' <left)"
}

same() { # DIR
    local step
    step=$(printf 'step-%08d' "$steps")
    same_bits "whole$steps/$step" "$1/$step"
}

run 0 "${common[@]}" --ranks 3 --set run.dir=whole$steps

# What only looks needs little, and an end of a process that has none comes too.
(ulimit -v 50000 && exec timeout -k 1 10 "$sherd" --version) >out 2>err || { complain "--version needs too much"; show err; }
(ulimit -v 100000 && exec timeout -k 1 10 "$sherd" "${common[@]}" --set run.dir=alone) >out 2>err
[ $? -eq 1 ] || { complain "alone: it did not fail"; show err; }
has err "device cpu: out of memory: OpenBLAS wants "
has err "address space is limited to 100000 KiB (ulimit -v)"
has err "128 MiB for each of the "
has err "raise the limit, or lower run.threads"
# State that has no room is told region by region, with the way out, before anything is trained.
(ulimit -v 2000000; run 1 train tiny.yaml --ranks 2 --set run.dir=large --set shard.stage=2 --set model.width=2048 \
    --set model.heads=16 --set model.layers=16; [ "$faults" -eq 0 ]) || complain "state that has no room"
has err "needs on cpu: parameters at rest 3.23 GB, optimizer state 3.23 GB, gradients at rest 1.61 GB, gradients before reduction "
has err "a higher shard.stage or more ranks need less: device cpu: out of memory: 3229884416 bytes"
# An evaluation in more than there is memory for: 2 rows of int32 for each of 4,000,000 samples of 16 tokens.
(ulimit -v 400000; run 1 train tiny.yaml --set run.dir=evaluated --set data.val=text --set train.eval_every=1 \
    --set train.eval_batches=0 --set batch.micro=4000000 --set batch.global=4000000; [ "$faults" -eq 0 ]) ||
    complain "an evaluation of all of the data"
has err "batch.micro: a rank keeps 1 micro-batches of an evaluation, of 4000000 sequences; make them smaller: "
has err "out of memory: 512000000 bytes of host memory could not be allocated; address space is limited to "
# What layers make of a micro-batch has other ways out, which differ with what is done.
(ulimit -v 2000000; run 1 train tiny.yaml --set run.dir=wide --set batch.micro=200000 --set batch.global=200000
    [ "$faults" -eq 0 ]) || complain "a micro-batch that has no room"
has err "a micro-batch of 200000 sequences of 16 tokens needs on cpu: activations between layers "
has err "; a smaller batch.micro needs less, and so does train.recompute: device cpu: out of memory: "
run 0 train tiny.yaml --set run.dir=few --set train.steps=1
(ulimit -v 2000000; run 1 eval tiny.yaml --set run.dir=few --data text --set batch.micro=400000
    [ "$faults" -eq 0 ]) || complain "a micro-batch to evaluate that has no room"
has err "; a smaller batch.micro needs less: device cpu: out of memory: "
# What ranks share is a file without a name: a limit of file sizes is not a want of memory.
(ulimit -f 20000; run 1 train tiny.yaml --ranks 2 --set run.dir=filed; [ "$faults" -eq 0 ]) || complain "a limit of file sizes"
has err "bytes that 2 ranks of this host share are a file to the system, and larger than one may be: raise the limit of file sizes (ulimit -f)"
grep -q 'out of memory' err && { complain "a limit of file sizes is told as one of memory"; show err; }

# At the start: in the device, in the memory that ranks share, in threads, in the engine, when saving.
failures=0
for limit in 60000 100000 $(seq 180000 12000 300000) 500000; do
    before=$SECONDS
    launch "$limit" "start$limit"
    [ $((SECONDS - before)) -le 20 ] || complain "$limit KiB: it took $((SECONDS - before)) s"
    case $code in
    0) same "start$limit" ;;
    1) told "start$limit"; failures=$((failures + 1)) ;;
    *) complain "$limit KiB: exit code $code"; show "start$limit.err" ;;
    esac
done
[ "$code" -eq 0 ] || complain "500000 KiB do not suffice"
[ "$failures" -ge 4 ] || complain "only $failures limits were too low"
launch 100000 again --max-restarts 1
[ "$code" -eq 0 ] || { complain "it did not come back: exit code $code"; show again.err; }
has again.err "out of memory: OpenBLAS wants 192 MiB of address space"
has again.err "starting all ranks again (restart 1 of at most 1)"
same again

# In the course of training: once a checkpoint is there nothing more can be had, in the thread that trains and in the one that
# saves. Then as the kernel does it, where a control group can be bounded here.
steps=2500
long=(train tiny.yaml --set run.timeout=20 --set train.steps=$steps --set save.every=100 --set log.every=100)
run 0 "${long[@]}" --ranks 3 --set run.dir=whole$steps

# start DIR OPTION...: waits for a checkpoint; the ranks are in $ranks.
start() {
    local dir=$1
    shift
    "$sherd" launch --nproc-per-node 3 --max-restarts 1 bash -c "$bounded" "$sherd" "${long[@]}" --set run.dir="$work/$dir" "$@" \
        >"$dir.out" 2>"$dir.err" &
    launcher=$!
    for _ in $(seq 500); do
        [ -n "$(ls -d "$dir"/step-* 2>/dev/null)" ] && break
        sleep 0.02
    done
    read -r -a ranks <"/proc/$launcher/task/$launcher/children"
    ranks=("${ranks[@]: -3}") # behind the guard of the launcher
}

came_back() { # DIR TEXT
    wait "$launcher" || { complain "line ${BASH_LINENO[0]}: $1: it did not come back"; show "$1.err"; }
    grep -E "^sherd: rank 1 of 3 \(" "$1.err" >last
    has last "$2"
    has "$1.err" "starting all ranks again (restart 1 of at most 1)"
    has "$1.err" "resumed from $work/$1/step-"
    same "$1"
    gone "$1"
}

# shellcheck disable=SC2016
bounded='[ -n "$GROUP" ] && [ "$RANK" = 1 ] && [ "$TORCHELASTIC_RESTART_COUNT" = 0 ] && echo $$ >"$GROUP/cgroup.procs"; exec "$0" "$@"'
export GROUP=
for async in false true; do
    start hurt-$async --set save.async=$async
    prlimit --pid "${ranks[1]}" --as=1000000
    came_back hurt-$async "out of memory: "
    has last "address space is limited to 976 KiB (ulimit -v)"
done

own=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)
if grep -qw memory "$own/cgroup.subtree_control" 2>/dev/null && mkdir "$own/sherd-test-$$" 2>/dev/null; then
    GROUP=$own/sherd-test-$$
    start killed
    echo 0 >"$GROUP/memory.swap.max" 2>/dev/null
    echo 1M >"$GROUP/memory.max"
    came_back killed "was killed by SIGKILL"
    rmdir "$GROUP"
else
    echo "No control group with bounded memory can be made here: the kernel's own end of a rank is not tried."
fi
finish
