#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# The self-test: a line a check and rank, JSON, and an exit code that says whether to train here.
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

run 2 selftest extra
run 2 selftest --size 0
run 2 selftest --device tpu
has err "tpu"
finish
