#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# The self-test: a line a check and rank, JSON, and an exit code that says whether to train here.
shim=$(realpath "$2")
. "$(dirname "$0")/lib.sh"

for ranks in 1 3; do
    run 0 selftest --ranks $ranks --size 1
    empty err
    [ "$(wc -l <out)" -eq $((3 * ranks + 8)) ] || { complain "$ranks ranks: $(wc -l <out) lines"; show out; }
    [ "$(grep -c '^ok  ' out)" -eq "$(wc -l <out)" ] || { complain "not all is well"; show out; }
done
has out "device, rank 2"
has out "memory, rank 0"
has out "all-reduce bf16"
has out "busbw"

run 0 selftest --ranks 2 --size 1 --json
empty err
json 'r["ok"] and r["ranks"] == 2 and r["device"] == "cpu" and len(r["checks"]) == 14'
json 'all(c["ok"] for c in r["checks"])'
json '[c["name"] for c in r["checks"] if c["rank"] is None][:4] == ["all-gather f32", "reduce-scatter f32", "all-reduce f32", "broadcast f32"]'
json 'all(c["GB/s"] > 0 for c in r["checks"] if c["name"] not in ("device", "product"))'

# What is wrong on one rank fails its check, by name, and no other.
fails() { # FAULT LINE TEXT NAME RANK
    export FAULT=$1 LD_PRELOAD=$shim
    export ASAN_OPTIONS=${ASAN_OPTIONS:-}:verify_asan_link_order=0
    run 1 selftest --ranks 3 --size 1
    mv out lines
    mv err errors
    run 1 selftest --ranks 3 --size 1 --json
    unset FAULT LD_PRELOAD
    [ "$(grep -c '^FAIL' lines)" -eq 1 ] || { complain "$1: not one failed"; show lines; }
    grep -qE "^FAIL  $2 .*$3" lines || { complain "$1: it is not told what failed"; show lines; }
    tail -n 1 errors >last
    has last "1 check failed: do not train here before that is mended"
    json 'not r["ok"] and len(r["checks"]) == 17 and [c["name"] for c in r["checks"] if not c["ok"]] == ["'"$4"'"]'
    json '[c["rank"] for c in r["checks"] if not c["ok"]] == ['"$5"']'
    has err "1 check failed"
}
fails device "device, rank 1" "fallen off the bus" "device" 1
fails product "product, rank 1" "1 of 4489 elements" "product" 1
fails all-reduce "all-reduce bf16" "[1-9][0-9]* wrong values in 7 sizes" "all-reduce bf16" None

run 2 selftest extra
run 2 selftest --size 0
run 2 selftest --device tpu
has err "tpu"
finish
