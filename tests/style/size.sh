#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# Sources over 600 lines are named, over 900 refused: split by idea, not by size.
set -eu
. tests/style/files.sh

while read -r lines path; do
    if [ "$lines" -gt 900 ]; then
        complain "$path has $lines lines; 900 are allowed"
    elif [ "$lines" -gt 600 ]; then
        echo "warning: $path has $lines lines"
    fi
done < <(files '*.c' '*.h' '*.cu' '*.cuh' '*.sh' '*.py' | xargs wc -l | grep -v ' total$')
finish
