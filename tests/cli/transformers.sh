#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# Against transformers, where PYTHON (python3) has it, else skipped: a model goes in, is trained with the losses that
# PyTorch has on the same batches, comes out, and transformers loads it with every weight and PyTorch's values.
python=${PYTHON:-python3}
"$python" -c 'import torch, transformers, safetensors' 2>/dev/null || { echo "no transformers in $python"; exit 77; }
tests=$(realpath "$(dirname "$0")")
. "$tests/lib.sh"
"$python" "$tests/transformers_check.py" "$sherd" "$tests/../golden/hf" || complain "transformers_check.py failed"
finish
