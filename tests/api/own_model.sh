#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# The example model learns, and prints the same digits at every stage of one world.
set -eu
program=$1
for ranks in 1 2 3; do
    first=$("$program" 0 $ranks)
    for stage in 1 2 3; do
        out=$("$program" $stage $ranks)
        [ "$out" = "$first" ] || { printf 'stage %s, %s ranks:\n%s\nstage 0:\n%s\n' $stage $ranks "$out" "$first"; exit 1; }
    done
    last=$(printf '%s\n' "$first" | tail -n 1 | awk '{ print $4 }')
    awk -v x="$last" 'BEGIN { exit !(x < 0.5) }' || { echo "loss $last after the last step with $ranks ranks"; exit 1; }
done
if "$program" 3 99 2>/dev/null; then echo "99 ranks were accepted"; exit 1; fi
