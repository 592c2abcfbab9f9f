#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# A run whose values overflow: it ends before the weights change, whether or not that step has a line; what was saved
# before stays and is sound; steps that are skipped are told one by one, and too many of them end the run.
. "$(dirname "$0")/lib.sh"
make_tiny
wild=(tiny.yaml --ranks 2 --set batch.micro=6 --set model.family=gpt2 --set optim.name=sgd --set optim.lr=1e6 --set optim.clip=0
    --set schedule.kind=constant --set save.every=1 --set save.keep=2 --set train.steps=60 --set log.every=50)

for stage in 0 3; do
    dir=stop$stage
    run 1 train "${wild[@]}" --set run.dir=$dir --set shard.stage=$stage
    tail -n 1 err >last
    step=$(sed -nE 's/^sherd: ranks 0-1 of 2 .* failed: step ([0-9]+): loss sum .*/\1/p' last)
    [ "${step:-0}" -gt 2 ] && [ "$step" -lt 50 ] || { complain "it is not told at which step both ranks ended"; show err; }
    has last "first on rank "
    has last "the weights are as before the step"
    [ "$(ls -d $dir/step-* | tr '\n' ' ')" = "$(printf "$dir/step-%08d $dir/step-%08d " $((step - 2)) $((step - 1)))" ] ||
        { complain "the checkpoints before step $step are not there"; ls $dir; }
    run 0 verify $dir
    has out "all values finite"
    [ "$(grep -c '"loss"' $dir/metrics.jsonl)" -eq $((step - 1)) ] || complain "step $step has a record"
done
last=$(printf 'step-%08d' $((step - 1)))
same_bits "stop0/$last" "stop3/$last"

run 1 train "${wild[@]}" --set run.dir=skips --set train.nonfinite=skip --set train.nonfinite_limit=3
for k in 1 2 3; do
    once err "warning: step $((step - 1 + k)) is skipped ($k in a row of 3 allowed, $k in all): "
done
tail -n 1 err >words
has words "step $((step + 3)) after 3 steps skipped in a row (train.nonfinite_limit): "
# Three steps later, of which none changed anything but how many there were.
run 1 diff "stop3/$last" "skips/$(printf 'step-%08d' $((step + 2)))"
[ "$(cut -d' ' -f1 out | head -n -1 | tr '\n' ' ')" = "step tokens_seen samples_seen " ] ||
    { complain "a skipped step changed more than counters"; show out; }
finish
