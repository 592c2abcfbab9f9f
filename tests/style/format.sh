#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# C files as clang-format 14 would write them. To put one right: clang-format-14 -i FILE
set -eu
. tests/style/files.sh

tool=$(command -v clang-format-14 || command -v clang-format || true)
if [ -z "$tool" ] || ! "$tool" --version | grep -q 'version 14\.'; then
    echo "clang-format 14 is missing"
    exit 77
fi
text=$(files '*.c' '*.h' | xargs "$tool" --dry-run -Werror 2>&1) || complain "$text"
finish
