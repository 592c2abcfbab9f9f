#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# srun over two hosts, which are network namespaces here, under a Slurm of its own in the test's folder: the bits are those
# of one host, a rank that is killed or stands still ends all, and what Slurm sends is answered by a checkpoint. Skipped
# where slurmctld, slurmd or munged are not installed.
. "$(dirname "$0")/netns.sh"
PATH=$PATH:/usr/sbin
for tool in slurmctld slurmd srun sbatch scancel munged; do
    command -v $tool >/dev/null || { echo "there is no $tool here"; exit 77; }
done
make_tiny
printf 'schedule:\n  kind: constant\n' >>tiny.yaml

# ---- a Slurm ----

printf '127.0.0.1 localhost\n10.77.0.1 hosta\n10.77.0.2 hostb\n' >hosts
on() { # HOST COMMAND...: with the name and the names of the hosts
    nsenter --net="/run/netns/sherd-$$-$1" unshare --uts --mount sh -c \
        'mount --bind "$1/hosts" /etc/hosts && hostname "$0" && cd "$1" && SLURM_CONF=$1/conf.$0/slurm.conf && export SLURM_CONF && shift && exec "$@"' "host$1" "$work" "${@:2}"
}

mkdir munge state spool.hosta spool.hostb conf.hosta conf.hostb
chmod 711 "$work" munge
head -c 1024 /dev/urandom >munge/key
chmod 400 munge/key
cat >conf.hosta/slurm.conf <<END
ClusterName=sherd
SlurmctldHost=hosta
SlurmUser=$(id -un)
AuthType=auth/munge
AuthInfo=socket=$work/munge/socket
CredType=cred/munge
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool.%n
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.%n.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
KillWait=5
NodeName=hosta,hostb CPUs=8 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
END
cp conf.hosta/slurm.conf conf.hostb
for host in a b; do # the two share a /tmp
    mkdir tmp.$host
    echo "PMIxCliTmpDirBase=$work/tmp.$host" >conf.host$host/mpi.conf
done
munged --foreground --force --key-file="$work/munge/key" --socket="$work/munge/socket" --pid-file="$work/munge/pid" \
    --log-file="$work/munge/log" --seed-file="$work/munge/seed" 2>munge/err &
on a slurmctld -D -i >slurmctld.out 2>&1 &
for host in a b; do
    on $host slurmd -D -N host$host >slurmd.$host.out 2>&1 &
done
for i in $(seq 100); do
    [ "$(on a sinfo -h -t idle -o %D 2>/dev/null)" = 2 ] && break
    sleep 0.1
done
[ "$(on a sinfo -h -t idle -o %D)" = 2 ] || { complain "Slurm does not start"; show munge/err slurmctld.out slurmd.?.out; finish; }

# ---- jobs ----

# start DIR OPTIONS -- SETTINGS: sherd train by srun, in the background; what it says is in DIR.out.
start() {
    local dir=$1 options=()
    shift
    while [ "$1" != -- ]; do options+=("$1") && shift; done
    shift
    on a srun "${options[@]}" "$sherd" train tiny.yaml --set run.dir="$dir" --set shard.stage=3 \
        --set log.every=1000 "$@" >"$dir.out" 2>&1 &
    pid=$!
}

ended() { # DIR CODE SECONDS: srun's code is the highest of all ranks
    local end=$((SECONDS + $3)) code p
    while kill -0 $pid 2>/dev/null && [ $SECONDS -lt $end ]; do sleep 0.05; done
    kill -0 $pid 2>/dev/null && complain "$1: srun has not ended after $3 s" && show "$1.out" && kill -KILL $pid
    wait $pid
    code=$?
    [ $code -eq "$2" ] || { complain "$1: exit code $code, wanted $2"; show "$1.out"; }
    while pgrep -f "run.dir=$1 " >/dev/null && [ $SECONDS -lt $end ]; do sleep 0.05; done
    for p in $(pgrep -f "run.dir=$1 "); do
        complain "$1: process $p is left" && kill -KILL "$p"
    done
}

same() { # DIR [DIR OF ONE HOST]: the same bits
    local step
    step=$(ls -d "${2:-one}"/step-* | tail -n 1)
    same_bits "$step" "$1/${step##*/}"
}
endless=(--set train.steps=1000000)
two=(-N 2 -n 3 --kill-on-bad-exit=1)

run 0 train tiny.yaml --ranks 3 --set run.dir=one --set shard.stage=3
start host -N 1 -n 3 --
ended host 0 40
same host
start both "${two[@]}" --
ended both 0 40
same both
has both.out "ranks on other hosts reach this one at 10.77.0.1 over eth0"
for mpi in openmpi:pmix mpich:pmi2; do
    ls "$(dirname "$sherd")"/../libsherd-${mpi%:*}.so >/dev/null 2>&1 || continue
    [ "${mpi#*:}" = pmi2 ] || [ -n "$(on a srun --mpi=list 2>&1 | grep pmix)" ] || continue
    start ${mpi%:*} "${two[@]}" --mpi=${mpi#*:} -- --set run.comm=mpi
    ended ${mpi%:*} 0 40
    same ${mpi%:*}
done

start killed "${two[@]}" -- "${endless[@]}"
wait_steps killed
kill -KILL "${ranks[2]}"
ended killed 137 20
placed killed.out killed 2
start still "${two[@]}" -- "${endless[@]}" --set run.timeout=1
wait_steps still
kill -STOP "${ranks[1]}"
ended still 3 30
placed still.out still 1
# Slurm sends SIGTERM twice in a row where the time is over, to all processes of a step.
for signal in USR1 TERM; do
    start $signal "${two[@]}" -- "${endless[@]}"
    wait_steps $signal
    job=$(on a squeue -h -o %i)
    on a scancel --signal=$signal "$job"
    on a scancel --signal=$signal "$job"
    ended $signal 75 20
    ls -d $signal/step-* >/dev/null || { complain "$signal: nothing was saved"; show $signal.out; }
done

# One launcher a host, which starts the ranks again.
longer=(--set train.steps=600 --set save.every=200)
launch() { # DIR SETTINGS: in the background, one rank on host a and two on b
    local dir=$1
    shift
    on a srun -N 2 --ntasks-per-node=1 --kill-on-bad-exit=1 sh -c 'exec "$0" launch --nnodes 2 \
        --nproc-per-node $((SLURM_NODEID + 1)) --max-restarts 2 --rdzv-endpoint hosta:29400 "$@"' "$sherd" \
        sherd train tiny.yaml --set run.dir="$dir" --set shard.stage=3 --set log.every=1000 "$@" >"$dir.out" 2>&1 &
    pid=$!
}
run 0 train tiny.yaml --ranks 3 --set run.dir=long --set shard.stage=3 "${longer[@]}"
launch again "${longer[@]}"
wait_steps again
kill -KILL "${ranks[2]}"
ended again 0 60
same again long
launch asked "${endless[@]}"
wait_steps asked
on a scancel "$(on a squeue -h -o %i)"
ended asked 75 20
ls -d asked/step-* >/dev/null || { complain "asked: nothing was saved"; show asked.out; }

# A batch script that queues itself again, and goes on from what was saved. Slurm would wait two minutes before that.
cat >batch.sh <<END
#!/bin/bash
#SBATCH --nodes=2 --ntasks=3 --requeue --open-mode=append --output=$work/batch.out
srun --kill-on-bad-exit=1 "$sherd" train tiny.yaml --set run.dir=batch --set shard.stage=3 --set log.every=1000 \
    ${endless[*]} --resume=auto
[ \$? -eq 75 ] && scontrol requeue "\$SLURM_JOB_ID"
END
job=$(on a sbatch --parsable batch.sh)
wait_steps batch
on a scancel --signal=USR1 "$job"
for i in $(seq 200); do
    [ "$(on a squeue -h -o %r)" = BeginTime ] && break
    sleep 0.1
done
on a scontrol update JobId="$job" StartTime=now
for i in $(seq 200); do
    grep -q 'resumed' batch.out 2>/dev/null && break
    sleep 0.1
done
has batch.out "sherd: stopped on request after step"
has batch.out "resumed"
on a scancel "$job"
finish
