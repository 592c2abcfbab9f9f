#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# The example loop trains a built-in model from a YAML file, saves, and refuses a file that does not exist.
set -eu
program=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cat >"$dir/c.yaml" <<Y
run: {dir: $dir/run, threads: 1}
model: {family: gpt2, vocab: 31, width: 16, layers: 1, heads: 2, context: 16}
batch: {micro: 2, seq: 8}
schedule: {warmup: 2}
train: {steps: 8}
Y
"$program" "$dir/c.yaml" optim.lr=0.01 >"$dir/out"
[ "$(wc -l <"$dir/out")" -eq 8 ]
awk 'NR == 1 { first = $4 } END { exit !($4 < first) }' "$dir/out"
[ -f "$dir/run/step-00000008/manifest.json" ]
if "$program" "$dir/none.yaml" 2>"$dir/err"; then exit 1; fi
grep -q none.yaml "$dir/err"
