#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# Collectives measured on CPU ranks: columns, the closing lines, values, JSON, mistakes.
. "$(dirname "$0")/lib.sh"

# Rows of the file out: 13 columns of the right widths, no wrong value; sizes, busbw and the mean add up.
rows() { # RANKS ROWS
    python3 - "$1" "$2" <<'END' || { complain "line ${BASH_LINENO[0]}: the columns are wrong"; show out; }
import sys
ranks, want = int(sys.argv[1]), int(sys.argv[2])
name, n, bus, said = None, 0, [], []
for line in open("out").read().split("\n"):
    if line.startswith("# Collective test starting: "):
        name, bus = line.split()[-1], []
    elif line.startswith("# Avg bus bandwidth    : "):
        mean = sum(bus) / len(bus)
        assert ranks == 1 or abs(float(line.split()[-1]) - mean) <= 0.006 + 0.001 * mean, (line, mean)
        said.append(name)
    elif line and not line.startswith("#"):
        assert len(line) == 118, len(line)
        size, count, kind, op, root, *rest = line.split()
        assert len(rest) == 8, line
        n += 1
        split = name in ("all_gather", "reduce_scatter")
        each = {"float": 4, "bfloat16": 2, "half": 2, "double": 8, "int32": 4, "int64": 8, "uint8": 1}[kind]
        assert int(size) == int(count) * each * (ranks if split else 1), line
        assert (op == "none") == (name in ("all_gather", "broadcast")), line
        assert (int(root) == -1) == (name != "broadcast"), line
        for at in (0, 4):
            time, alg, b, wrong = rest[at:at + 4]
            assert float(time) >= (0.01 if ranks > 1 else 0) and wrong in ("0", "N/A"), line
            share = 1 if name == "broadcast" else (ranks - 1) / ranks * (2 if name == "all_reduce" else 1)
            assert ranks == 1 or abs(float(b) - float(alg) * share) <= 0.02 + 0.02 * float(b), line
            bus.append(float(b))
assert n == want and said, (n, said)
END
}

for ranks in 1 2 3; do
    run 0 bench all --ranks $ranks -b 8 -e 64K -f 4 -n 2 -w 1
    rows $ranks 28
    [ "$(grep -cF '# Out of bounds values : 0 OK' out)" -eq 4 ] || complain "$ranks ranks: not four verdicts"
    [ "$(grep -cF '# Collective test concluded: ' out)" -eq 4 ] || complain "$ranks ranks: not four ends"
    empty err
    has out " exposed: 0"
done
for type in bfloat16 half double int32 int64 uint8; do
    run 0 bench all --ranks 3 -b 1000 -e 2024 -i 512 -n 1 -w 0 -d $type
    rows 3 12
done
run 0 bench all_reduce --ranks 2 -b 16K -e 16K -n 1 -o max -R 1
rows 2 1
has out "    float     max      -1"
has out " exposed: 1"
run 0 bench all --ranks 2 -b 16 -e 4K -f 16 -n 9 -N 3
rows 2 36
run 0 bench broadcast --ranks 3 -b 1K -e 1K -n 1 -r 2
has out "    none       2"
run 0 bench broadcast -b 1K -e 1K -n 1 -c 0
has out "     N/A"
# a device file, and a plan by it
run 0 bench all --ranks 2 -b 4K -e 256K -f 8 -n 2 --save dev.json
rows 2 12
has out " exposed: 1"
make_tiny
run 0 plan tiny.yaml --gpus 2 --device ./dev.json --json
json 'r["forecast"]["gpus"] == 2 and all(x["step_seconds"] > x["compute"] * 0.999 > 0 for x in r["forecast"]["rows"])'
run 0 bench all -b 4K -e 32K -f 8 -n 2 -R 0 --save one.json
has out " exposed: 0"
run 0 plan tiny.yaml --device ./one.json
run 2 plan tiny.yaml --gpus 2 --device ./one.json
has err "has no 'node'"
run 2 bench all_gather --ranks 2 --save dev.json
has err "--save needs all collectives"
run 1 bench all -b 4K -e 8K -f 2 -n 1 --save none/dev.json
has err "none/dev.json could not be opened"
# more than one period of the values
run 0 bench all --ranks 2 -b 3M -e 3M -n 1 -w 0 -d uint8
rows 2 4

run 0 bench all --ranks 2 -b 64 -e 1.5K -f 2 -n 1 --json
json 'r["config"]["ranks"] == 2 and len(r["collectives"]) == 4'
json 'all(len(c["results"]) == 5 and c["out_of_bounds"] == {"count": 0, "okay": True} for c in r["collectives"])'
json 'all(row[m]["nwrong"] == 0 and row[m]["time"] > 0 for c in r["collectives"] for row in c["results"]
      for m in ("out_of_place", "in_place"))'

run 2 bench
has err "needs COLLECTIVE"
run 2 bench all_gathr
has err "did you mean 'all_gather'?"
run 2 bench all -b 8Q
has err "--minbytes: '8Q' is not a size"
# The variables of nccl-tests: a bound that is kept, one that is not, and those that have no meaning here.
export NCCL_TESTS_MIN_BW=0
run 0 bench all_reduce --ranks 2 -b 1K -e 1K -n 2
grep -qE '^# Avg bus bandwidth    : [0-9.e-]+ OK$' out || complain "no verdict on the bandwidth"
NCCL_TESTS_MIN_BW=1e9
run 1 bench all_reduce --ranks 2 -b 1K -e 1K -n 2
has out " FAILED"
has err "all_reduce: the mean busbw"
run 1 bench all_reduce --ranks 2 -b 1K -e 1K -n 2 --json
json 'r["collectives"][0]["average_bus_bandwidth"]["okay"] is False'
NCCL_TESTS_MIN_BW=fast
run 2 bench all_reduce
has err "NCCL_TESTS_MIN_BW is 'fast'"
unset NCCL_TESTS_MIN_BW
export NCCL_TESTS_SPLIT=2
run 2 bench all_reduce
has err "NCCL_TESTS_SPLIT is set, and has no meaning here"
unset NCCL_TESTS_SPLIT

run 2 bench all -b
has err "--minbytes needs a value"
run 2 bench all -e -5
run 2 bench all -x
has err "unknown option '-x' of 'sherd bench'; nccl-tests has it, and it has no meaning here"
run 2 bench all_reduce -g 8
has err "unknown option '-g' of 'sherd bench'; a rank has one GPU: --ranks N"
run 2 bench all -b 2K -e 1K
has err "--minbytes 2K is more than --maxbytes 1K"
run 2 bench all -e 1M
has err "--maxbytes 1M is less than the first size, 32M by default; give --minbytes (-b), too"
run 2 bench all -f 2 -i 1K
has err "not both"
run 2 bench all -f 1
run 2 bench all -N 0
run 2 bench all -d flaot
has err "did you mean 'float'?"
run 2 bench reduce_scatter -o max
has err "reduce_scatter has sums only"
run 2 bench broadcast --ranks 2 -r 2
has err "there are 2 ranks"
run 2 bench all --ranks 300 -d bfloat16
has err "no exact sums of 300 ranks"
run 1 bench all_gather --ranks 2 -b 900000G -e 900000G
has err "give a smaller -e"
finish
