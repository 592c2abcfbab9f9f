#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# Ranks over MPI on one host, with Open MPI and with MPICH: one that stands still, dies, has other settings, or whose MPI
# does not come back from a call. All ends in time, where the ranks were is told, and nothing is left.
# Usage: mpi.sh SHERD LIBRARY, which is what stuck.c makes.
. "$(dirname "$0")/signals.sh"
stuck=$(realpath "$2")
. "$(dirname "$0")/lib.sh"
make_tiny
printf 'schedule:\n  kind: constant\n' >>tiny.yaml
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
kinds=()
for kind in openmpi mpich; do
    ls "$(dirname "$sherd")"/../libsherd-$kind.so >/dev/null 2>&1 && command -v mpirun.$kind >/dev/null && kinds+=($kind)
done
[ ${#kinds[@]} -gt 0 ] || { echo "there is no MPI here"; exit 77; }

# start DIR ARGS...: 3 ranks in the background; what they say is in DIR.out.
start() {
    local dir=$1 own=() n=3
    shift
    case " $* " in *" : "*) n=2 ;; esac
    [ $kind = mpich ] || own=(--oversubscribe --mca btl "self,vader")
    "${with[@]}" timeout -k 2 60 mpirun.$kind "${own[@]}" -n $n "$sherd" train tiny.yaml --set run.dir="$dir" \
        --set shard.stage=3 --set run.comm=mpi --set log.every=1000 "$@" >"$dir.out" 2>&1 &
    pid=$!
}

ended() { # DIR SECONDS
    local end=$((SECONDS + $2)) code p
    while kill -0 $pid 2>/dev/null && [ $SECONDS -lt $end ]; do sleep 0.05; done
    if kill -0 $pid 2>/dev/null; then
        complain "$1: mpirun has not ended after $2 s"
        show "$1.out"
        kill -KILL $pid
    fi
    wait $pid
    code=$?
    case $1:$code in
    mpich-end:0 | *-dead:137) ;; # all was done and saved; the code of the rank that was killed
    *:0 | *:124 | *:137) complain "$1: exit code $code" && show "$1.out" ;;
    esac
    for p in $(pgrep -f "run.dir=$1 "); do
        [ "$(readlink "/proc/$p/exe")" = "$sherd" ] && complain "$1: process $p is left" && kill -KILL "$p"
    done
}

with=(env)
for kind in "${kinds[@]}"; do
    start $kind-still --set run.timeout=1 --set train.steps=1000000
    wait_steps $kind-still
    kill -STOP "${ranks[2]}"
    ended $kind-still 20
    placed $kind-still.out $kind-still 2
    grep -qE 'no progress for 1 s, [12] of 3 ranks have not come: .*rank 2 \(' $kind-still.out ||
        complain "$kind-still: rank 2 is not missed"

    # MPICH's mpirun kills the others at once, before they can say anything.
    start $kind-dead --set train.steps=1000000
    wait_steps $kind-dead
    kill -KILL "${ranks[0]}"
    ended $kind-dead 20
    [ $kind = mpich ] || placed $kind-dead.out $kind-dead 0

    start $kind-term --set train.steps=1000000
    wait_steps $kind-term
    kill -TERM "${ranks[1]}"
    ended $kind-term 20
    ls -d $kind-term/step-* >/dev/null || { complain "$kind-term: nothing was saved"; show $kind-term.out; }

    # Rank 2 has other settings.
    start $kind-differ --set run.timeout=5 : -n 1 "$sherd" train tiny.yaml --set run.dir=$kind-differ \
        --set shard.stage=2 --set run.comm=mpi
    ended $kind-differ 20
    has $kind-differ.out "has other settings than rank"

    with=(env LD_PRELOAD="$stuck" STUCK=MPI_Test STUCK_AT=20000)
    start $kind-test --set run.timeout=1 --set train.steps=1000000
    ended $kind-test 30
    has $kind-test.out "no progress for 1 s"
    has $kind-test.out "rank 1 ("
    with=(env LD_PRELOAD="$stuck" STUCK=MPI_Finalize)
    start $kind-end --set train.steps=3
    ended $kind-end 20
    # MPICH's ranks leave without it.
    [ $kind = mpich ] || has $kind-end.out "MPI_Finalize has not come back in 5 s, though all ranks are there"
    ls -d $kind-end/step-00000003 >/dev/null || complain "$kind-end: nothing was saved"
    with=(env LD_PRELOAD="$stuck" STUCK=MPI_Init_thread)
    start $kind-init --set run.timeout=1 --set train.steps=3
    ended $kind-init 20
    has $kind-init.out "MPI_Init has not come back in 1 s"
    with=(env)
done
finish
