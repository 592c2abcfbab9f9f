#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# Memory of processes, as the system counts it: a rank holds what the plan says and the program itself, saves do not add
# up, and who reads a checkpoint needs no more for a large one.
. "$(dirname "$0")/lib.sh"
make_tiny
export MALLOC_PERTURB_=0 # meson's, which touches all that is taken, be it used or not

# The largest resident memory of any process of a command, in KiB, in `peak`.
peak() { # ARGS...
    peak=$(python3 - "$sherd" "$@" <<'END'
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=open("out", "w"), stderr=open("err", "w")).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss if code == 0 else 0)
END
    )
    [ "$peak" -gt 0 ] || { complain "line ${BASH_LINENO[0]}: sherd $* failed"; show out err; }
}

# The plan is right to the size of the program and its libraries, whatever the stage and the world.
for point in 2:0 2:2 4:3; do
    IFS=: read -r ranks stage <<<"$point"
    set -- tiny.yaml --ranks "$ranks" --set shard.stage="$stage" --set batch.global="$ranks" --set batch.micro=1 \
        --set model.width=384 --set model.heads=6 --set model.layers=6 --set model.vocab=2048
    peak train "$@" --set train.steps=2 --set save.what=nothing --set run.dir="p$ranks-$stage"
    run 0 plan "$@" --json
    json "-1 < $peak / 1024 - r['stages'][$stage]['memory']['total'] / 2**20 < 25 or print($peak)"
done

# 4 saves and 40 saves, by themselves and beside training.
for async in false true; do
    set -- tiny.yaml --set save.every=1 --set save.async=$async --set log.every=1000 --set model.width=192
    peak train "$@" --set run.dir="few-$async" --set train.steps=4
    few=$peak
    peak train "$@" --set run.dir="many-$async" --set train.steps=40
    [ $((peak - few)) -lt 3000 ] || complain "save.async=$async: 4 saves take $few KiB, 40 take $peak"
done

# 77 MB of weights within 60 MB of address space.
run 0 train tiny.yaml --set run.dir=large --set model.width=512 --set model.heads=8 --set model.layers=6 \
    --set train.steps=1 --set batch.global=1 --set batch.micro=1 --set save.what=weights
run 0 merge large whole
[ "$(stat -c %s whole/model.safetensors)" -gt 70000000 ] || complain "the model is too small to tell"
for args in "verify large" "diff large whole" "merge large again" "merge large half --dtype bf16" \
    "merge large parts --shard-size 20MB"; do
    read -r -a words <<<"$args"
    (ulimit -v 60000; run 0 "${words[@]}"; [ "$faults" -eq 0 ]) || complain "sherd $args needs more memory"
done
cmp whole/model.safetensors again/model.safetensors || complain "another model comes of less memory"
finish
