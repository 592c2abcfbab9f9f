#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# Every text file: ASCII, no tabs, no space at the end of a line, newline at the end of the file, no notes to
# self; every source names its licence. Inputs of tests are left alone.
set -eu
. tests/style/files.sh
export LC_ALL=C

texts=$(files '*' | grep -vE '^(tests/fuzz/(corpus|crashes)/|LICENSE$)' | tr '\n' '\0' | xargs -0 grep -Il '')

each() { # COMMAND... PATH of every text
    tr '\n' '\0' <<<"$texts" | xargs -0 "$@" || true
}

report() { # TEXT PATTERN
    local hits
    hits=$(each grep -nHP -m 3 "$2")
    [ -z "$hits" ] || complain "$1:"$'\n'"$hits"
}

report "not ASCII" '[^\x00-\x7f]'
report "tab" '\t'
report "space at the end of the line" '[ \r]$'
report "note to self" '\b(TO''DO|FIX''ME)\b'
while IFS= read -r path; do
    complain "$path: no newline at the end"
done < <(each grep -LPz '\n\z')
while IFS= read -r path; do
    complain "$path: the two SPDX lines are missing at the top"
done < <(each awk 'FNR == 1 && (FILENAME ~ /\.(c|h|cu|cuh|sh|py)$/ || /^#!/) { lines[FILENAME] = 0 }
    FNR <= 4 && FILENAME in lines && /SPDX-(License-Identifier|FileCopyrightText):/ { lines[FILENAME]++ }
    END { for (path in lines) if (lines[path] != 2) print path }')
finish
