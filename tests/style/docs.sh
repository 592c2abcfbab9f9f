#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# What docs/ repeats of the code: every status with its number, the program's exit codes, the lines of the example, the
# public headers. And that links lead somewhere, and from README.md to every page in two clicks.
set -eu
. tests/style/files.sh

row='XX\(([A-Z]+), (-[0-9]+), "'
n=0
while IFS= read -r line; do
    [[ $line =~ $row ]] || continue
    n=$((n + 1))
    grep -qF "| \`E${BASH_REMATCH[1]}\` | ${BASH_REMATCH[2]} |" docs/errors.md ||
        complain "docs/errors.md has no row for E${BASH_REMATCH[1]}, ${BASH_REMATCH[2]}"
done < <(sed -n '/define SHERD_STATUS_MAP/,/^$/p' include/sherd/base.h)
[ $n -gt 0 ] && [ $n -eq "$(grep -c '^| `E' docs/errors.md)" ] || complain "docs/errors.md has not $n statuses"

n=0
for code in $(sed -nE 's/^ *EXIT_[A-Z]+ = ([0-9]+),.*/\1/p' tools/out.h); do
    n=$((n + 1))
    grep -q "^| $code | " docs/errors.md || complain "docs/errors.md has no exit code $code"
done
[ $n -gt 0 ] || complain "no exit codes found in tools/out.h"

n=0
while IFS= read -r line; do
    n=$((n + 1))
    grep -qxF -- "$line" examples/own_model.c || complain "docs/model.md: not a line of examples/own_model.c: $line"
done < <(sed -n '/^```c$/,/^```$/p' docs/model.md | grep -v '^```')
[ $n -gt 0 ] || complain "no code found in docs/model.md"
links() { # PAGE
    grep -oE '\]\([^)#]+' "$1" | sed 's/^](//' | grep -v ://
}
pages=$(files '*.md')
while read -r page; do
    while read -r link; do
        [ -e "$(dirname "$page")/$link" ] || complain "$page links to $link, which is not there"
    done < <(links "$page")
done <<<"$pages"
near=README.md
for click in 1 2; do
    near=$(for page in $near; do
        echo "$page"
        links "$page" | grep '\.md$' | while read -r link; do realpath --relative-to=. "$(dirname "$page")/$link"; done
    done | sort -u)
done
while read -r page; do
    grep -qxF -- "$page" <<<"$near" || complain "$page is more than two clicks from README.md"
done < <(grep -E '^(docs|bench)/' <<<"$pages")

packaging/api.py | diff -u docs/api.md - >&2 ||
    complain "docs/api.md is not what the headers say; write it anew: packaging/api.py >docs/api.md"
finish
