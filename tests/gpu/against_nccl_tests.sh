#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# sherd bench beside nccl-tests, on the GPUs of one host: all four collectives from 8 B to 8 GB, out of place and in
# place, on ordinary memory and on memory that communicators prepare for. Prints for each size the times of both and
# their ratio, and ends with 1 if sherd is more than 3 % slower anywhere (of a few trials the fastest counts for each).
#
#   tests/gpu/against_nccl_tests.sh FOLDER [SHERD [GPUS]]     FOLDER holds all_gather_perf and the others
#
# Values of both are checked once, up to 128 MB; measuring is done without checks. Options by environment: FIRST, LAST
# (8, 8G), TRIALS (3), ITERS (20), WARMUP (5), KINDS, MODES ("plain exposed"), BOUND (0.03), LOGS (a folder to keep logs).
set -eu
cd "$(dirname "$0")/../.."
[ $# -ge 1 ] && [ -x "$1/all_gather_perf" ] || { echo "usage: $0 FOLDER-OF-NCCL-TESTS [SHERD [GPUS]]"; exit 2; }
tests=$(cd "$1" && pwd)
sherd=$(realpath "${2:-build/tools/sherd}")
gpus=${3:-2}
first=${FIRST:-8} last=${LAST:-8G} trials=${TRIALS:-3} iters=${ITERS:-20} warmup=${WARMUP:-5}
command -v nvidia-smi >/dev/null || { echo "no nvidia-smi here"; exit 77; }
[ "$(nvidia-smi -L | grep -c '^GPU')" -ge "$gpus" ] || { echo "fewer than $gpus GPUs here"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
out=${LOGS:-$work}
mkdir -p "$out"

run() { # LOG COMMAND...
    local log=$1
    shift
    "$@" >"$log" 2>&1 || { echo "failed: $*"; tail -20 "$log"; exit 1; }
}

# One thread a GPU in nccl-tests, one process a GPU in sherd; the gathering communicator of sherd is a zero-CTA one.
pair() { # KIND MODE NAME OPTIONS...
    local kind=$1 mode=$2 name=$3 theirs=(-R 0) ours=(--local_register 0)
    shift 3
    if [ "$mode" = exposed ]; then
        theirs=(-R 2) ours=(--local_register 1)
        case $kind in all_gather | broadcast) theirs+=(-x 2) ;; esac
    fi
    run "$out/$kind-$mode-theirs-$name.txt" "$tests/${kind}_perf" -t "$gpus" -g 1 "${theirs[@]}" "$@"
    run "$out/$kind-$mode-sherd-$name.txt" "$sherd" bench "$kind" --ranks "$gpus" --device cuda "${ours[@]}" "$@"
}

for kind in ${KINDS:-all_gather reduce_scatter all_reduce broadcast}; do
    for mode in ${MODES:-plain exposed}; do
        pair "$kind" "$mode" checked -b "$first" -e 128M -f 4 -n 2 -w 1 -c 1
        for trial in $(seq "$trials"); do
            pair "$kind" "$mode" "$trial" -b "$first" -e "$last" -f 2 -n "$iters" -w "$warmup" -c 0
        done
    done
done

exec python3 - "$out" "${BOUND:-0.03}" <<'PY'
import collections, glob, os, re, sys
out, bound = sys.argv[1], float(sys.argv[2])
times = collections.defaultdict(dict)  # (kind, mode) -> (size, place, whose) -> least time in us
wrong = 0.0
for path in glob.glob(os.path.join(out, "*.txt")):
    m = re.fullmatch(r"(\w+)-(plain|exposed)-(theirs|sherd)-(\w+)\.txt", os.path.basename(path))
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
                key = int(word[0]), place, whose
                least = times[kind, mode]
                least[key] = min(least.get(key, 1e30), float(word[at]))
slow = fast = all_of_them = 0
for (kind, mode), least in sorted(times.items()):
    print("\n%s, %s memory: us and sherd / nccl-tests" % (kind, mode))
    print("%12s %31s %31s" % ("bytes", "out of place", "in place"))
    ratios = []
    for size in sorted({key[0] for key in least}):
        row = "%12d" % size
        for place in ("out", "in"):
            ours, theirs = least.get((size, place, "sherd")), least.get((size, place, "theirs"))
            if not ours or not theirs:
                row += "%31s" % "-"
                continue
            ratio = ours / theirs
            ratios.append(ratio)
            mark = "*" if ratio > 1 + bound else " "
            row += "%12.2f%11.2f%7.3f%s" % (ours, theirs, ratio, mark)
        print(row)
    if ratios:
        slow += sum(r > 1 + bound for r in ratios)
        fast += sum(r < 1 - bound for r in ratios)
        all_of_them += len(ratios)
        print("%12s %.3f, worst %.3f" % ("median", sorted(ratios)[len(ratios) // 2], max(ratios)))
print("\n%d figures: %d slower than nccl-tests by more than %g %% (*), %d faster by more; wrong values: %g"
      % (all_of_them, slow, 100 * bound, fast, wrong))
sys.exit(0 if all_of_them and not slow and not wrong else 1)
PY
