#!/bin/sh
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# Device files as rows of a C table: { "h200", "text" }, for each FILE. Usage: embed.sh FILE...
for file; do
    printf '{ "%s",\n' "$(basename "$file" .json)"
    sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/.*/  "&\\n"/' "$file"
    printf '},\n'
done
