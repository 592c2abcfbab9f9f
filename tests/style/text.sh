#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# Every text file: ASCII, no tabs, no space at the end of a line, newline at the end of the file, no notes to
# self; every source names its licence. Inputs of tests are left alone.
set -eu
. tests/style/files.sh
export LC_ALL=C

report() { # TEXT PATTERN PATH
    local hits
    if hits=$(grep -nP "$2" "$3" | head -3); then
        [ -z "$hits" ] || complain "$3: $1:"$'\n'"$hits"
    fi
}

while IFS= read -r path; do
    case $path in
    tests/fuzz/corpus/* | tests/fuzz/crashes/* | LICENSE) continue ;;
    esac
    [ -s "$path" ] || continue
    grep -Iq . "$path" || continue # binary
    report "not ASCII" '[^\x00-\x7f]' "$path"
    report "tab" '\t' "$path"
    report "space at the end of the line" '[ \r]$' "$path"
    report "note to self" '\b(TO''DO|FIX''ME)\b' "$path"
    [ -z "$(tail -c 1 "$path")" ] || complain "$path: no newline at the end"
    case $path in
    *.c | *.h | *.cu | *.cuh | *.sh | *.py) source=1 ;;
    *) source=0 && [ "$(head -c 2 "$path")" = '#!' ] && source=1 ;;
    esac
    if [ $source -eq 1 ]; then
        [ "$(head -4 "$path" | grep -cE 'SPDX-(License-Identifier|FileCopyrightText):')" -eq 2 ] ||
            complain "$path: the two SPDX lines are missing at the top"
    fi
done < <(files '*')
finish
