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
