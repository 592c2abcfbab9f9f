#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# Every command of docs/tutorials that is marked sh works as it stands there but for the port, each page in a folder of its
# own, with text to learn from and a Hugging Face model of a moment in MODEL.
source=$(realpath "$(dirname "$0")/../..")
. "$(dirname "$0")/lib.sh"

mkdir bin
ln -s "$sherd" bin/sherd
build=$(dirname "$(dirname "$sherd")")
export PATH=$work/bin:$PATH MODEL=$work/model LD_LIBRARY_PATH=$build # as if it were installed:
export PKG_CONFIG_PATH=$build/meson-private CPATH=$source/include LIBRARY_PATH=$build

cat >model.yaml <<'END'
run: {dir: model-run}
model: {family: llama, vocab: 257, width: 24, layers: 2, heads: 2, context: 64}
batch: {global: 2, micro: 2, seq: 16}
schedule: {warmup: 0}
train: {steps: 1}
data: {train: [text]}
END
seq 1 3000 >text
run 0 train model.yaml
run 0 merge model-run model
python3 - <<'END'
import json
keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
vocab = {chr(b): i for i, b in enumerate(keep)}
for n in range(256 - len(keep)):  # bytes that do not print stand in a place of their own, as in GPT-2
    vocab[chr(256 + n)] = len(keep) + n
json.dump({"version": "1.0", "truncation": None, "padding": None, "normalizer": None,
           "added_tokens": [{"id": 256, "content": "<|endoftext|>", "single_word": False, "lstrip": False, "rstrip": False,
                             "normalized": False, "special": True}],
           "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
           "post_processor": None, "decoder": {"type": "ByteLevel"},
           "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                     "end_of_word_suffix": None, "fuse_unk": False, "vocab": vocab, "merges": []}},
          open("model/tokenizer.json", "w"))
END

for page in "$source"/docs/tutorials/*.md; do
    name=$(basename "$page" .md)
    sed -n '/^```sh$/,/^```$/p' "$page" | grep -v '^```' | sed -E "s/127\.0\.0\.1:[0-9]+/127.0.0.1:$(free_port)/" >"$name.sh"
    [ -s "$name.sh" ] || { complain "$name has no commands"; continue; }
    # a program linked to a sanitized library would need the sanitizer's runtime
    if [ "$name" = own-model ] && nm -D "$build/libsherd.so" | grep -q __asan_init; then continue; fi
    mkdir "$name"
    for shared in configs docs examples include; do ln -s "$source/$shared" "$name/$shared"; done
    if grep -q 'data/text$' <<<"$(sed -n '/^```$/,/^```$/p' "$page")"; then # text of the reader's own
        mkdir "$name/data"
        cat "$source"/docs/*.md >"$name/data/text"
    fi
    (cd "$name" && timeout -k 5 60 bash -eo pipefail "../$name.sh" >../out 2>../err) ||
        { complain "the commands of docs/tutorials/$name.md fail"; show "$name.sh" out err; }
    while read -r link; do
        [ -e "$source/docs/tutorials/$link" ] || complain "$name.md links to $link, which is not there"
    done < <(grep -oE '\]\([^)]+\)' "$page" | sed 's/^](//; s/)$//; s/#.*//' | grep -v ://)
done
finish
