#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# Several hosts, which are network namespaces here, with a cable between them: a job over both gives the bits of one
# host; a host that is cut off, slowed, killed or of another job is named, and all ends in bounded time.
. "$(dirname "$0")/netns.sh"
make_tiny
printf 'schedule:\n  kind: constant\n' >>tiny.yaml # the same step of runs of any length
declare -A pid # of what runs on each host

# start HOST FILE COMMAND...: in the background, under the name hostHOST; its process is the command's own.
start() {
    local host=$1 file=$2
    shift 2
    (exec ip netns exec "sherd-$$-$host" unshare --uts sh -c 'hostname "$0"; exec "$@"' "host$host" "$@" >"$file" 2>&1) &
    pid[$host]=$!
}

# launcher HOST DIR OPTIONS... -- ARGS...: one rank on a, two on b; what it says is in DIR.HOST.
launcher() {
    local host=$1 dir=$2 options=()
    shift 2
    while [ "$1" != -- ]; do
        options+=("$1")
        shift
    done
    shift
    [ "$host" = a ] && options+=(--nproc-per-node 1) || options+=(--nproc-per-node 2)
    start "$host" "$dir.$host" "$sherd" launch --nnodes 2 --rdzv-endpoint 10.77.0.1:29401 --silence 3 --grace 1 \
        "${options[@]}" sherd train tiny.yaml --set run.dir="$dir" --set shard.stage=3 "$@"
}

both() {
    local dir=$1
    shift
    launcher a "$dir" --rdzv-id j "$@"
    launcher b "$dir" --rdzv-id j "$@"
}

# ended HOST CODE SECONDS FILE: what runs on the host ends in time, with this code.
ended() {
    local code end=$((SECONDS + $3))
    while kill -0 "${pid[$1]}" 2>/dev/null && [ $SECONDS -lt $end ]; do sleep 0.05; done
    if kill -0 "${pid[$1]}" 2>/dev/null; then
        complain "line ${BASH_LINENO[0]}: host $1 has not ended after $3 s"
        kill -KILL "${pid[$1]}"
    fi
    wait "${pid[$1]}" 2>/dev/null
    code=$?
    [ "$code" -eq "$2" ] || { complain "line ${BASH_LINENO[0]}: host $1: exit code $code, wanted $2"; show "$4"; }
}

reached() { # FILE STEP
    local i
    for i in $(seq 400); do
        grep -qE "^(\[rank 0\] )?step +$2/" "$1" 2>/dev/null && return
        sleep 0.05
    done
    complain "line ${BASH_LINENO[0]}: $1: step $2 was not reached"
    show "$1"
}

left() { # nothing runs on the hosts any more
    local i
    for i in $(seq 40); do
        [ -z "$(ip netns pids "sherd-$$-a")$(ip netns pids "sherd-$$-b")" ] && return
        sleep 0.05
    done
    complain "line ${BASH_LINENO[0]}: processes are left on the hosts"
}

same() { # DIR STEP [DIR OF ONE HOST]
    local step
    step=$(printf 'step-%08d' "$2")
    same_bits "${3:-one}/$step" "$1/$step"
}

cable() { # up or down
    ip -n "sherd-$$-b" link set eth0 "$1"
}
endless=(--set train.steps=100000000 --set log.every=20)

run 0 train tiny.yaml --ranks 3 --set run.dir=one --set shard.stage=3 --set train.steps=40 --set save.every=20

# Both hosts, by the launchers; then by the variables alone, as torchrun sets them.
both two -- --set train.steps=40 --set save.every=20
ended a 0 60 two.a
ended b 0 60 two.b
same two 40
# A rank by itself: NUMBER DIR ARGS...; what it says is in DIR.NUMBER.
rank() {
    local number=$1 dir=$2 host=a local=0 size=1
    shift 2
    [ "$number" -gt 0 ] && host=b local=$((number - 1)) size=2
    start $host "$dir.$number" env "${more[@]}" RANK=$number WORLD_SIZE=3 LOCAL_RANK=$local LOCAL_WORLD_SIZE=$size \
        MASTER_ADDR=10.77.0.1 MASTER_PORT=29500 "$sherd" train tiny.yaml --set run.dir="$dir" --set shard.stage=3 "$@"
    pid[$number]=${pid[$host]}
}
more=(NO_COLOR=1)
for i in 0 1 2; do rank $i alone --set train.steps=20; done
for i in 0 1 2; do ended $i 0 60 alone.$i; done
same alone 20

# A slow network changes nothing but the time.
slow_down() {
    ip netns exec "sherd-$$-a" tc qdisc add dev eth0 root netem delay 20ms 5ms loss 1% 2>/dev/null ||
        ip netns exec "sherd-$$-a" tc qdisc add dev eth0 root tbf rate 20mbit burst 10kb latency 100ms 2>/dev/null
}
if slow_down; then
    both slow --silence 30 -- --set train.steps=20
    ended a 0 100 slow.a
    ended b 0 100 slow.b
    same slow 20
    ip netns exec "sherd-$$-a" tc qdisc del dev eth0 root
else
    echo "no netem and no tbf here: a slow network was not tried"
fi

# A rank of the other host is killed: both launchers tell which, and end.
both killed -- "${endless[@]}"
reached killed.a 20
read -r -a ranks <"/proc/${pid[b]}/task/${pid[b]}/children"
kill -KILL "${ranks[1]}"
ended a 137 20 killed.a
ended b 137 20 killed.b
for host in a b; do
    tail -n 1 killed.$host >last
    has last "rank 2 of 3 (hostb, pid ${ranks[1]}) was killed by SIGKILL"
done
left

# The launcher of a host is killed: its ranks go with it, and the other host ends and says so.
both gone -- "${endless[@]}"
reached gone.a 20
kill -KILL "${pid[b]}"
ended b 137 5 gone.b
ended a 1 20 gone.a
grep -qE 'host 1 \(hostb\) is gone|rank [12] \(hostb, pid [0-9]+\) has died' gone.a ||
    { complain "the host that went is not named"; show gone.a; }
left

# The cable is cut: both sides end by themselves.
both cut -- "${endless[@]}" --set run.timeout=6
reached cut.a 20
cable down
ended a 1 20 cut.a
ended b 1 20 cut.b
has cut.a "host 1 (hostb) has not been heard for 3 s"
has cut.b "host 0 (10.77.0.1) has not been heard for 3 s"
left
cable up

# The same without launchers: the ranks have nobody but themselves.
for i in 0 1 2; do rank $i deaf "${endless[@]}" --set run.timeout=3; done
reached deaf.0 20
cable down
for i in 0 1 2; do
    end=$((SECONDS + 20))
    while kill -0 "${pid[$i]}" 2>/dev/null && [ $SECONDS -lt $end ]; do sleep 0.05; done
    wait "${pid[$i]}"
    case $? in 1 | 3) ;; *) complain "rank $i, cut off, did not fail by itself"; show deaf.$i ;; esac
    [ $i = 0 ] && other='rank [12] \(hostb, pid' || other='rank 0 \(hosta, pid'
    tail -n 1 deaf.$i | grep -qE "no progress for 3 s, .* have not come: .*$other|$other [0-9]+\\) cannot be reached any more" ||
        { complain "deaf.$i does not name the other host"; show deaf.$i; }
done
left
cable up

# A host comes back: killed, and started again by hand, as a batch system would. Long enough not to be over before.
longer=(--set train.steps=600 --set save.every=200)
run 0 train tiny.yaml --ranks 3 --set run.dir=long --set shard.stage=3 "${longer[@]}"
both back --max-restarts 3 -- "${longer[@]}" --set run.resume=auto
reached back.a 20
kill -KILL "${pid[b]}" 2>/dev/null
wait "${pid[b]}" 2>/dev/null
launcher b back --rdzv-id j --max-restarts 3 -- "${longer[@]}" --set run.resume=auto
ended a 0 60 back.a
ended b 0 60 back.b
same back 600 long

# A rank of the other host is killed, and all start again: what host 0 decides and the next start come in one breath.
both again --max-restarts 3 -- "${longer[@]}"
reached again.a 100
read -r -a ranks <"/proc/${pid[b]}/task/${pid[b]}/children"
kill -KILL "${ranks[1]}"
ended a 0 60 again.a
ended b 0 60 again.b
same again 600 long

# A signal to one launcher stops both hosts, after saving.
both stopped -- "${endless[@]}"
reached stopped.a 20
kill -TERM "${pid[b]}"
ended a 75 20 stopped.a
ended b 75 20 stopped.b
ls -d stopped/step-* >/dev/null || complain "nothing was saved"
left

# Another job, another interface, an address that leads nowhere.
launcher a right --rdzv-id right -- --set train.steps=1
launcher b right --rdzv-id wrong -- --set train.steps=1
ended b 1 10 right.b
has right.b "it is of job 'wrong', this is job 'right'"
launcher b right --rdzv-id right -- --set train.steps=1
ended a 0 30 right.a
ended b 0 30 right.b
more=(NCCL_SOCKET_IFNAME=eth7)
rank 1 wrong --set run.timeout=2
ended 1 1 10 wrong.1
has wrong.1 "NCCL_SOCKET_IFNAME is 'eth7', and no such interface of this host is up"
has wrong.1 "eth0 (10.77.0.2)"
more=(MASTER_PORT=29500)
rank 1 nobody --set run.timeout=2
ended 1 1 10 nobody.1
has nobody.1 "could not reach rank 0 at 10.77.0.1:29500"
left
finish
