#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# A rank that stands still or dies in the middle of a run: the job ends in time, says where that rank was and where
# the others waited, leaves the record of all, and nothing else.
. "$(dirname "$0")/lib.sh"
make_tiny

# The run in the folder $1 ends with the code $2, and tells of rank $3.
told() {
    local code left=
    wait "$launcher"
    code=$?
    [ "$code" -eq "$2" ] || { complain "$1: exit code $code, wanted $2"; show "$1.err"; }
    placed "$1.err" "$1" "$3"
    has "$1.err" "$1/flight.txt"
    sleep 0.2
    for pid in "${ranks[@]}"; do
        [ -e "/proc/$pid" ] && left="$left $pid"
    done
    [ -z "$left" ] || complain "$1: still there: $left"
}

for stage in 1 3; do
    start_endless still$stage --grace 1 --set shard.stage=$stage --set run.timeout=1
    kill -STOP "${ranks[2]}"
    told still$stage 1 2
    tail -n 1 still$stage.err >last
    has last "no progress for 1 s, 1 of 3 ranks have not come: rank 2 ("
done

start_endless dead --grace 1 --set shard.stage=2
kill -KILL "${ranks[0]}"
told dead 137 0
finish
