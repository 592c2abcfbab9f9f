#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# The shared library shows what the public headers declare, all of it and nothing else. Usage: exports.sh LIB
set -eu
. tests/style/files.sh

command -v nm >/dev/null || { echo "nm is missing"; exit 77; }
shown=$(nm -D --defined-only "$1" | awk '{ print $3 }' | sed 's/@.*//' |
    grep -vE '^(__asan|__odr_asan|__start___sancov|__stop___sancov|__sancov|_init$|_fini$)' | sort -u)
# expanded, for the operations are declared by a macro
declared=$(echo '#include <sherd/sherd.h>' | "${CC:-cc}" -E -P -Iinclude - | tr '\n' ' ' |
    grep -oE 'visibility\("default"\)[^;(]*\) *\)[^;(]*\(' | grep -oE 'sherd_[a-z0-9_]+ *\($' | tr -d ' (' | sort -u)
[ -n "$declared" ] || complain "no declarations found in include/sherd"
for name in $(comm -23 <(echo "$shown") <(echo "$declared")); do
    complain "$name is exported but not declared in include/sherd"
done
for name in $(comm -13 <(echo "$shown") <(echo "$declared")); do
    complain "$name is declared in include/sherd but not exported"
done
finish
