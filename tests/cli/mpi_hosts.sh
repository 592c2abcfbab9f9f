#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# mpirun over two hosts, which are network namespaces here: the bits are those of one host, with Open MPI and with
# MPICH. Where a rank is killed everything ends in bounded time, on both hosts; where the cable is cut all ranks do, also
# those that had just begun or were about to leave (MPI's own processes hold out longer).
. "$(dirname "$0")/netns.sh"
ls "$(dirname "$sherd")"/../libsherd-openmpi.so "$(dirname "$sherd")"/../libsherd-mpich.so >/dev/null 2>&1 &&
    command -v mpirun.openmpi mpirun.mpich >/dev/null || { echo "Open MPI and MPICH are not both here"; exit 77; }
make_tiny
printf 'schedule:\n  kind: constant\n' >>tiny.yaml
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# What mpirun calls in place of ssh: AGENT [OPTIONS] HOST COMMAND...
cat >agent <<END
#!/bin/bash
while [ "\${1#-}" != "\$1" ]; do shift; done
[ "\$1" = 10.77.0.2 ] && host=b || host=a
shift
exec ip netns exec sherd-$$-\$host unshare --uts sh -c 'hostname "\$0"; exec sh -c "\$1"' host\$host "\$*"
END
chmod +x agent

# job KIND DIR STEPS SETTING...: one rank on host a, two on b; what they say is in DIR.out. In the background.
job() {
    local kind=$1 dir=$2 steps=$3 options
    shift 3
    if [ "$kind" = openmpi ]; then
        options=(--mca plm_rsh_agent "$work/agent" --mca oob_tcp_if_include eth0 --mca btl_tcp_if_include eth0
            --mca btl tcp,self --host 10.77.0.1:1,10.77.0.2:2 --oversubscribe -np 3 --wdir "$work")
    else
        # UCX would see one machine and use its shared memory
        options=(-launcher rsh -launcher-exec "$work/agent" -iface eth0 -genv UCX_TLS tcp,self -genv UCX_NET_DEVICES eth0
            -hosts 10.77.0.1:1,10.77.0.2:2 -n 3 -wdir "$work")
    fi
    (exec timeout -k 2 90 ip netns exec "sherd-$$-a" unshare --uts sh -c 'hostname hosta; exec "$@"' sh "mpirun.$kind" \
        "${options[@]}" "$sherd" train tiny.yaml --set run.dir="$dir" --set shard.stage=3 --set run.comm=mpi \
        --set train.steps="$steps" "$@" >"$dir.out" 2>&1) &
    pid=$!
}

wait_step() { # DIR
    local end=$((SECONDS + 40))
    until grep -q '"loss"' "$1/metrics.jsonl" 2>/dev/null; do
        [ $SECONDS -lt $end ] || { complain "$1 makes no steps"; show "$1.out"; return; }
        sleep 0.05
    done
}

ranks_on() { # HOST DIR: their process numbers
    local p
    for p in $(ip netns pids "sherd-$$-$1"); do
        [ "$(readlink "/proc/$p/exe")" = "$sherd" ] && grep -qa "run.dir=$2" "/proc/$p/cmdline" 2>/dev/null && echo "$p"
    done
}

# No rank of the job is left in time; what is left of MPI is killed, and the job has not ended well.
must_end() { # DIR SECONDS
    local end=$((SECONDS + $2)) host
    for host in a b; do
        while [ -n "$(ranks_on $host "$1")" ] && [ $SECONDS -lt $end ]; do sleep 0.05; done
        [ -z "$(ranks_on $host "$1")" ] || complain "$1: ranks are left on host $host after $2 s"
    done
    if [ "$1" = "$kind-kill" ]; then
        while kill -0 "$pid" 2>/dev/null && [ $SECONDS -lt $end ]; do sleep 0.05; done
        ! kill -0 "$pid" 2>/dev/null || complain "$1: mpirun has not ended after $2 s"
    fi
    for host in a b; do
        ip netns pids "sherd-$$-$host" | xargs -r kill -KILL 2>/dev/null
    done
    if wait "$pid" 2>/dev/null; then
        complain "$1 ended well"
        show "$1.out"
    fi
}

cut_cable() {
    ip -n "sherd-$$-b" link set eth0 down
}

mend_cable() { # the cable needs a moment
    local i
    ip -n "sherd-$$-b" link set eth0 up
    for i in $(seq 100); do
        ip -n "sherd-$$-b" link show eth0 | grep -q 'state UP' && return
        sleep 0.05
    done
    complain "the cable is not mended"
}

run 0 train tiny.yaml --ranks 3 --set run.dir=one --set shard.stage=3 --set train.steps=4
for kind in openmpi mpich; do
    job $kind $kind 4
    wait "$pid" || { complain "$kind: mpirun failed"; show $kind.out; }
    same_bits one/step-00000004 $kind/step-00000004

    job $kind $kind-kill 1000000
    wait_step $kind-kill
    ranks_on b $kind-kill | head -n 1 | xargs -r kill -KILL
    must_end $kind-kill 30

    job $kind $kind-cut 1000000 --set run.timeout=3
    wait_step $kind-cut
    cut_cable
    must_end $kind-cut 30
    grep -qE 'no progress for 3 s|cannot be reached any more' $kind-cut.out ||
        { complain "$kind-cut: it is not told why"; show $kind-cut.out; }
    has $kind-cut/flight.txt "rank 2 (hostb"
    mend_cable

    # As they leave, saved and all: MPI's farewell waits for all ranks.
    job $kind $kind-leave 1000000 --set run.timeout=3
    wait_step $kind-leave
    ranks_on b $kind-leave | head -n 1 | xargs -r kill -TERM
    until ls -d $kind-leave/step-* >/dev/null 2>&1 || [ -z "$(ranks_on a $kind-leave)" ]; do sleep 0.01; done
    cut_cable
    must_end $kind-leave 30
    mend_cable
done
finish
