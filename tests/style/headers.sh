#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# Each header compiles alone, and twice; the public ones as C++ too. Usage: headers.sh CC...
set -eu
. tests/style/files.sh

flags="-D_GNU_SOURCE -fopenmp-simd -I. -Iinclude $(pkg-config --cflags jansson 2>/dev/null || true)"

compile() { # HEADER COMPILER...
    local header=$1 text
    shift
    # shellcheck disable=SC2086
    if ! text=$(printf '#include "%s"\n#include "%s"\n' "$header" "$header" |
        "$@" -fsyntax-only -Wall -Wextra -Werror $flags - 2>&1); then
        complain "$header does not compile alone with $*:"
        printf '%s\n' "$text"
    fi
}

while IFS= read -r header; do
    compile "${header#include/}" "$@" -x c -std=gnu17
done < <(files '*.h' | grep -v '^device/cuda/')
if command -v g++ >/dev/null; then
    while IFS= read -r header; do
        compile "${header#include/}" g++ -x c++ -std=c++11 -Wpedantic
    done < <(files 'include/*.h')
fi
finish
