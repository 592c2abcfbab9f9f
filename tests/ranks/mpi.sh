#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# Ranks over MPI: the tests that every communicator must pass, each process one rank of an mpirun's world. Usage:
# mpi.sh openmpi|mpich TEST FOLDER, where the shims are in the folder.
set -u
case $1 in
openmpi) mpirun=(mpirun.openmpi --allow-run-as-root --oversubscribe --mca btl self,vader,tcp) ;;
mpich) mpirun=(mpirun.mpich) ;;
esac
command -v "${mpirun[0]}" >/dev/null || { echo "there is no ${mpirun[0]}"; exit 77; }
for name in $(compgen -e | grep -E '^(OMPI_|PMIX?_|MPI_|SLURM_|RANK$|WORLD_SIZE$|LOCAL_|MASTER_|SHERD_)'); do
    unset "$name"
done
export LD_LIBRARY_PATH=$3${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
for n in 1 2 3 4; do
    if ! timeout -k 5 100 "${mpirun[@]}" -n $n "$2" >"out.$$" 2>&1; then
        echo "--- $n ranks"
        tail -n 60 "out.$$"
        rm -f "out.$$"
        exit 1
    fi
done
rm -f "out.$$"
