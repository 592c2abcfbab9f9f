#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# Every command of the README's "Use it" works as it stands there, in its order.
source=$(realpath "$(dirname "$0")/../..")
. "$(dirname "$0")/lib.sh"

mkdir bin
ln -s "$sherd" bin/sherd
export PATH=$work/bin:$PATH
ln -s "$source/configs" configs
ln -s "$source/docs" docs

sed -n '/^```sh$/,/^```$/p' "$source/README.md" | grep -v '^```' >commands
[ "$(wc -l <commands)" -ge 8 ] || complain "README.md shows $(wc -l <commands) commands"
while IFS= read -r command; do
    if ! timeout -k 5 100 bash -ec "$command" >out 2>err; then
        complain "this command of README.md fails: $command"
        show out err
    fi
done <commands
[ "$(grep -c '"loss"' runs/first/metrics.jsonl)" -eq 30 ] ||
    complain "the two runs of README.md left $(grep -c '"loss"' runs/first/metrics.jsonl) steps of metrics, not 30"
[ -s runs/first/model/model.safetensors ] || complain "the README's merge left no model"
finish
