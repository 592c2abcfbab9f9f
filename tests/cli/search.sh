#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# What bench/search says without a GPU: the list of a step's operations, and what it does not take.
configs=$(realpath "$(dirname "$0")/../../configs")
. "$(dirname "$0")/lib.sh"

run 2
has err "no CONFIG"
run 2 --only norms "$configs/gpt2-124m.yaml"
has err "use: search"
run 2 --seconds none "$configs/gpt2-124m.yaml"
run 2 --all
run 1 missing.yaml
has err missing.yaml
run 1 --only nothing "$configs/gpt2-124m.yaml" no.key=1
has err no.key
run 1 --only nothing --improve missing "$configs/gpt2-124m.yaml"
has err missing
run 1 --only nothing --all missing/all.tsv "$configs/gpt2-124m.yaml"
has err missing/all.tsv

run 2 --like
has err "use: search"
run 0 --only nothing --all all.tsv "$configs/gpt2-124m.yaml" batch.micro=32 batch.global=64
empty err
has out "matmul 32768x3072x768 nn bf16>bf16, 12 a step: left out"
has out "attention_backward 32x1024 12/12x64, 12 a step: left out"
has all.tsv candidate
finish
