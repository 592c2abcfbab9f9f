#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# Against the `tokenizers` package, where PYTHON (python3) has it, else skipped: the same ids for random texts.
python=${PYTHON:-python3}
"$python" -c 'import tokenizers' 2>/dev/null || { echo "no tokenizers in $python"; exit 77; }
tests=$(realpath "$(dirname "$0")")
. "$tests/lib.sh"
"$python" "$tests/../../tools/gold_tokenizers.py" check "$tests/../golden/tokenizers" "$sherd" ||
    complain "sherd tokenize does not agree with the package"
finish
