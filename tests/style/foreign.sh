#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# The tables at the end of docs/deepspeed.md are those of runtime/deepspeed_keys.c and runtime/accelerate.c.
# To write them anew: keep the page up to the line before "## Every key of DeepSpeed", append what the program prints.
set -eu
. tests/style/files.sh
program=$1

"$program" | tail -n +2 | diff -u <(sed -n '/^## Every key of DeepSpeed$/,$p' docs/deepspeed.md) - >&2 ||
    complain "docs/deepspeed.md has other tables than the program"
finish
