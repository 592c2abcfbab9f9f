#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# A job that is hurt comes back by itself: whatever ends a rank, all start again from the newest checkpoint, and the
# weights at the end are those of a run that nobody hurt, bit for bit.
. "$(dirname "$0")/signals.sh"
. "$(dirname "$0")/lib.sh"
set -m
make_tiny
steps=1500
common=(--ranks 3 --set train.steps=$steps --set save.every=100 --set log.every=100 --set shard.stage=3)

run 0 train tiny.yaml "${common[@]}" --set run.dir=whole

# The children of the launcher, once all have started and the job stands at a checkpoint beyond $1.
find_ranks() {
    local i
    for i in $(seq 400); do
        read -r -a ranks <"/proc/$launcher/task/$launcher/children" 2>/dev/null
        [ "${#ranks[@]}" -eq 3 ] && [ -n "$(ls -d hurt/step-* 2>/dev/null)" ] &&
            [ "$(ls -d hurt/step-* 2>/dev/null | tail -1 | sed 's/.*step-0*//')" -gt "$1" ] && return
        sleep 0.05
    done
    complain "line ${BASH_LINENO[0]}: no checkpoint beyond step $1"
    show hurt.err
}

newest() {
    ls -d hurt/step-* 2>/dev/null | tail -1 | sed 's/.*step-0*//'
}

# Until $1 restarts were told.
restarted() {
    local i
    for i in $(seq 400); do
        [ "$(grep -c 'starting all ranks again' hurt.err)" -ge "$1" ] && return
        sleep 0.05
    done
    complain "line ${BASH_LINENO[0]}: restart $1 did not come"
    show hurt.err
}

"$sherd" train tiny.yaml "${common[@]}" --set run.dir=hurt --set run.timeout=2 --max-restarts 4 --grace 1 \
    >hurt.out 2>hurt.err &
launcher=$!
find_ranks 0
kill -KILL "${ranks[1]}"
restarted 1
find_ranks "$(newest)"
kill -STOP "${ranks[2]}"
restarted 2
find_ranks "$(newest)"
kill -ABRT "${ranks[0]}"
restarted 3
find_ranks "$(newest)"
prlimit --pid "${ranks[1]}" --fsize=1000 # it cannot write any more: its next save fails
restarted 4
wait "$launcher" || { complain "the hurt run failed"; show hurt.err; }

has hurt.err "rank 1 of 3 ("
has hurt.err "was killed by SIGKILL"
has hurt.err "was killed by SIGABRT"
has hurt.err "File too large"
has hurt.err "no progress for 2 s, 1 of 3 ranks have not come: rank 2 ("
has hurt.err "starting all ranks again (restart 4 of at most 4)"
[ "$(grep -c 'resumed from hurt/step-' hurt.err)" -eq 4 ] || { complain "not resumed four times"; show hurt.err; }
last=$(printf 'step-%08d' $steps)
same_bits "whole/$last" "hurt/$last"
python3 - $steps <<'END' || complain "metrics.jsonl does not have each step once"
import json, sys
steps = [r["step"] for r in map(json.loads, open("hurt/metrics.jsonl")) if "loss" in r and "step" in r]
assert steps == list(range(1, int(sys.argv[1]) + 1)), "a step is missing, or stands there twice"
END

# What cannot go better the next time is not tried again.
run 2 train tiny.yaml "${common[@]}" --set run.dir=hurt --max-restarts 3
has err "exists already"
grep -q 'starting all ranks again' err && complain "a folder that is taken was tried again"

# A failure at every attempt ends when the restarts do.
run 7 launch --nproc-per-node 2 --max-restarts 2 sh -c 'echo "$RANK $TORCHELASTIC_RESTART_COUNT" >>tries; exit 7'
[ "$(cut -d' ' -f2 tries | sort -u | wc -l)" -eq 3 ] || complain "not three attempts"
has err "restart 2 of at most 2"
# A signal is no failure.
"$sherd" launch --nproc-per-node 2 --max-restarts 5 sh -c 'exec sleep 100' 2>err &
launcher=$!
sleep 0.5
kill -TERM "$launcher"
wait "$launcher"
[ $? -eq 143 ] || complain "exit code after SIGTERM"
grep -q 'starting all ranks again' err && complain "started again after SIGTERM"
finish
