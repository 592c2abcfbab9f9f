#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# configs/: reference.yaml is the text that the table of keys gives, every file loads (on 2 ranks), and zero0 to
# zero3 differ in nothing but comments and the stage.
set -eu
. tests/style/files.sh
program=$1

"$program" | diff -u configs/reference.yaml - >&2 ||
    complain "configs/reference.yaml is not the table of runtime/keys.c; write it anew: sherd config --reference"
"$program" configs/*.yaml || complain "a file in configs/ does not load"

bare() { # a config without comments and without its stage
    sed -e 's/#.*//' -e 's/ *$//' -e '/^$/d' -e '/^  stage: [0-3]$/d' "$1"
}
for stage in 0 1 2 3; do
    grep -qx "  stage: $stage" configs/zero$stage.yaml || complain "configs/zero$stage.yaml has another stage"
    diff -u <(bare configs/zero0.yaml) <(bare configs/zero$stage.yaml) >&2 ||
        complain "configs/zero$stage.yaml differs from zero0.yaml in more than the stage"
done
finish
