#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# sherd bench beside nccl-tests, on the GPUs of one host: all four collectives from 8 B to 8 GB, out of place and in
# place, on ordinary memory (nccl-tests -R 0) and on memory that communicators prepare for (-R 2, and -x 2 for what
# sherd's gathering communicator does). A table for each collective as soon as it is measured: the median times of both
# and their ratio. Ends with 1 if sherd is more than 3 % slower anywhere or found wrong values.
#
#   tests/gpu/against_nccl_tests.sh FOLDER [SHERD [GPUS]]     FOLDER holds all_gather_perf and the others
#
# sherd has a process for each GPU, so nccl-tests should have too: it does if it was built with MPI=1, in FOLDER or in
# the folder WITH_MPI. With a thread for each GPU it is measured as well; that is for information, unless it is all there
# is. What calls of some microseconds take depends on the cores a process is on (bench/notes.md), so the processes of both
# get the same ones: those that sherd's ranks bind themselves to. BIND=none leaves both to the system.
#
# Options by environment: FIRST, LAST (8, 8G), TRIALS (3), CYCLES (1, times over all sizes in a trial), ITERS (20),
# WARMUP (5), KINDS, MODES ("plain exposed"), WAYS ("processes threads"), BOUND (0.03), LOGS (a folder to keep logs),
# CHECK (128M: the values of sherd are checked up to here, in a run of their own; 0 = not), MPIRUN (mpirun), BIND (auto).
set -eu
cd "$(dirname "$0")/../.."
[ $# -ge 1 ] && [ -x "$1/all_gather_perf" ] || { echo "usage: $0 FOLDER-OF-NCCL-TESTS [SHERD [GPUS]]"; exit 2; }
tests=$(cd "$1" && pwd)
with_mpi=$(cd "${WITH_MPI:-$1}" && pwd)
sherd=$(realpath "${2:-build/tools/sherd}")
gpus=${3:-2}
first=${FIRST:-8} last=${LAST:-8G} trials=${TRIALS:-3} cycles=${CYCLES:-1} iters=${ITERS:-20} warmup=${WARMUP:-5}
check=${CHECK:-128M} kinds=${KINDS:-all_gather reduce_scatter all_reduce broadcast} mpirun=${MPIRUN:-mpirun} bind=${BIND:-auto}
command -v nvidia-smi >/dev/null || { echo "no nvidia-smi here"; exit 77; }
[ "$(nvidia-smi -L | grep -c '^GPU')" -ge "$gpus" ] || { echo "fewer than $gpus GPUs here"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
out=${LOGS:-$work}
mkdir -p "$out"

has_mpi() { # FOLDER: built with MPI, and that MPI is here
    local needs
    needs=$(ldd "$1/all_gather_perf" 2>/dev/null || true)
    [[ $needs == *libmpi* && ! $needs =~ libmpi[^$'\n']*"not found" ]] && command -v "$mpirun" >/dev/null
}

ways=
for way in ${WAYS:-processes threads}; do
    if [ "$way" = threads ] || has_mpi "$with_mpi"; then
        ways+=" $way"
    else
        echo "nccl-tests with processes: no build with MPI, or not the MPI it was built with; say WITH_MPI=FOLDER"
    fi
done

# No MPI binds processes to cores here: that is done below.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_hwloc_base_binding_policy=none PRTE_MCA_hwloc_default_binding_policy=none

run() { # LOG COMMAND...
    local log=$1
    shift
    "$@" >"$log" 2>&1 || { echo "failed: $*"; tail -20 "$log"; exit 1; }
}

# The cores of each rank of sherd, as it tells them, and a command that gives them to a process of nccl-tests.
placed=()
place() {
    local cores
    run "$work/places" "$sherd" bench all_gather --ranks "$gpus" --device cuda -b 1K -e 1K -n 1 -c 0 --bind "$bind"
    mapfile -t cores < <(grep -oE '^\[rank [0-9]+\] bound to cores [^ ]+' "$work/places" | sort -n -k 2 | awk '{ print $NF }')
    if [ "${#cores[@]}" -ne "$gpus" ]; then
        echo "no ranks are bound to cores: $(grep -m 1 -o 'not bound to cores: .*' "$work/places" || echo "BIND=$bind")"
        return
    fi
    cat >"$work/placed" <<END
cores=(${cores[*]})
rank=\${OMPI_COMM_WORLD_LOCAL_RANK:-\${MPI_LOCALRANKID:-\$PMI_RANK}}
exec taskset -c "\${cores[\${rank:?of no process of an MPI that is known here}]}" "\$@"
END
    placed=(bash "$work/placed")
    echo "the processes of both are bound to cores: ${cores[*]}"
}
place

theirs() { # KIND MODE WAY NAME OPTIONS...
    local kind=$1 mode=$2 way=$3 log=$out/$1-$2-$3-$4.txt memory=(-R 0)
    shift 4
    if [ "$mode" = exposed ]; then
        memory=(-R 2)
        case $kind in all_gather | broadcast) memory+=(-x 2) ;; esac
    fi
    if [ "$way" = processes ]; then
        run "$log" "$mpirun" -np "$gpus" "${placed[@]}" "$with_mpi/${kind}_perf" -g 1 "${memory[@]}" "$@"
    else
        run "$log" "$tests/${kind}_perf" -t "$gpus" -g 1 "${memory[@]}" "$@"
    fi
    [ "$(grep -cE '^# +Rank ' "$log")" -eq "$gpus" ] || { echo "$log: not $gpus ranks; is $mpirun of another MPI?"; exit 1; }
}

ours() { # KIND MODE NAME OPTIONS...
    local log=$out/$1-$2-sherd-$3.txt kind=$1 register=0
    [ "$2" = plain ] || register=1
    shift 3
    run "$log" "$sherd" bench "$kind" --ranks "$gpus" --device cuda --bind "$bind" --local_register $register "$@"
}

# The table of one collective in one mode, or the sum of all of them.
tell() { # KIND MODE | sum
    python3 - "$out" "${BOUND:-0.03}" "$@" <<'PY'
import collections, glob, os, re, sys
from statistics import median
out, bound, what = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
times = collections.defaultdict(list)  # (kind, mode, size, place, whose) -> us
wrong = 0.0
for path in glob.glob(os.path.join(out, "*.txt")):
    m = re.fullmatch(r"(\w+)-(plain|exposed)-(processes|threads|sherd)-(\w+)\.txt", os.path.basename(path))
    if not m:
        continue
    kind, mode, whose, name = m.groups()
    for line in open(path):
        word = line.split()
        if len(word) < 13 or not word[0].isdigit():
            continue
        for place, at in (("out", 5), ("in", 9)):
            if name == "checked":
                wrong += float(word[at + 3]) if whose == "sherd" and word[at + 3] != "N/A" else 0
            elif int(word[0]) > 0:
                times[kind, mode, int(word[0]), place, whose].append(float(word[at]))

def ratios(kind, mode, size, place):
    """our time, then (their time, ratio) with processes and with threads; None for what there is not"""
    ours = times.get((kind, mode, size, place, "sherd"))
    found = [ours and median(ours)]
    for way in ("processes", "threads"):
        theirs = times.get((kind, mode, size, place, way))
        found.append((median(theirs), median(ours) / median(theirs)) if ours and theirs else None)
    return found

def verdicts(kind, mode):
    """ratios to what counts: processes where there are any"""
    sizes = sorted({k[2] for k in times if k[:2] == (kind, mode)})
    found = [ratios(kind, mode, size, place) for size in sizes for place in ("out", "in")]
    at = 1 if any(f[1] for f in found) else 2
    return [f[at][1] for f in found if f[at]]

if what != ["sum"]:
    kind, mode = what
    print("\n%s, %s memory: us of sherd, of nccl-tests with processes and with threads, and sherd / nccl-tests" % (kind, mode))
    print("%12s %48s %48s" % ("bytes", "out of place", "in place"))
    for size in sorted({k[2] for k in times if k[:2] == (kind, mode)}):
        row = "%12d" % size
        for place in ("out", "in"):
            us, *others = ratios(kind, mode, size, place)
            row += "%11.2f" % us if us else "%11s" % "-"
            for other in others:
                row += "%10.2f%8.3f%s" % (*other, "*" if other[1] > 1 + bound else " ") if other else "%19s" % "-"
        print(row)
    all_of_them = verdicts(kind, mode)
    if all_of_them:
        print("%12s %.3f, worst %.3f" % ("median", median(all_of_them), max(all_of_them)), flush=True)
    sys.exit(0)
all_of_them = []
for kind, mode in sorted({k[:2] for k in times}):
    found = verdicts(kind, mode)
    all_of_them += found
    if found:
        print("%-15s %-8s median %.3f, worst %.3f" % (kind, mode, median(found), max(found)))
slow = sum(r > 1 + bound for r in all_of_them)
print("%d figures: %d slower than nccl-tests by more than %g %% (*), %d faster by more; wrong values: %g"
      % (len(all_of_them), slow, 100 * bound, sum(r < 1 - bound for r in all_of_them), wrong))
sys.exit(0 if all_of_them and not slow and not wrong else 1)
PY
}

for mode in ${MODES:-plain exposed}; do
    for kind in $kinds; do
        for trial in $(seq "$trials"); do
            size=(-b "$first" -e "$last" -f 2 -n "$iters" -w "$warmup" -N "$cycles" -c 0)
            ours "$kind" "$mode" "$trial" "${size[@]}"
            for way in $ways; do
                theirs "$kind" "$mode" "$way" "$trial" "${size[@]}"
            done
        done
        tell "$kind" "$mode"
    done
done
if [ "$check" != 0 ]; then
    for mode in ${MODES:-plain exposed}; do
        for kind in $kinds; do
            ours "$kind" "$mode" checked -b "$first" -e "$check" -f 4 -n 2 -w 1 -c 1
        done
    done
fi
echo
tell sum
