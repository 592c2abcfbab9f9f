#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# The example of docs/program.md is what the command above it prints, in the lists that are shown.
source=$(realpath "$(dirname "$0")/../..")
. "$(dirname "$0")/lib.sh"

sed -n '/^\$ sherd plan/,/^```$/p' "$source/docs/program.md" | grep -v '^```' >example
ln -s "$source/configs" configs
read -r -a words <<<"$(head -n 1 example)"
run 0 "${words[@]:2}"
tail -n +2 example >want
awk 'NR == FNR { if (/^[a-z]+:$/) shown[$0] = 1; next } /^[a-z]+:$/ { keep = $0 in shown } keep' want out >got
[ -s want ] || complain "docs/program.md has no example"
diff -u want got || complain "docs/program.md does not show what the program prints"
finish
