#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# Help, versions and mistakes on the command line.
. "$(dirname "$0")/lib.sh"

run 0 --help
has out "usage: sherd COMMAND"
empty err
run 0 --help && cp out help
for words in -h help; do
    run 0 $words
    cmp -s out help || complain "$words prints something else than --help"
done
run 0 train --help && cp out help
run 0 help train
cmp -s out help || complain "help train prints something else than train --help"
run 2 help trian
has err "unknown command 'trian'; did you mean 'train'?"
run 0 version
[[ $(cat out) =~ ^sherd\ [0-9.]+$ ]] || complain "version: $(cat out)"
run 0 --version
[[ $(cat out) =~ ^sherd\ [0-9]+\.[0-9]+\.[0-9]+$ ]] || complain "version: $(cat out)"
for command in train eval plan config inspect verify merge generate tokenize bench selftest; do
    run 0 "$command" --help
    has out "usage: sherd $command"
    has out "Options:"
    empty err
    run 0 --help
    has out "  $command "
    [ "$(awk 'length > 110' out)" = "" ] || complain "help of $command is wider than 110 columns"
    run 0 "$command" --version
    [[ $(cat out) =~ ^sherd\ [0-9.]+$ ]] || complain "$command --version: $(cat out)"
    run 2 "$command" --version=3
    has err "--version takes no value"
    run 2 "$command" --no-such-option
    has err "unknown option '--no-such-option' of 'sherd $command'"
    has err "Try 'sherd $command --help'"
    empty out
done

run 2
has err "no command given"
run 0 launch --help # options after PROGRAM are its own
has out "usage: sherd launch [options] PROGRAM [arguments]"
run 2 trian
has err "unknown command 'trian'; did you mean 'train'?"
run 2 xyzzy
has err "unknown command 'xyzzy'"
grep -q 'did you mean' err && complain "a suggestion for xyzzy"
run 2 --verbose
has err "unknown option '--verbose'"

run 2 train
has err "'sherd train' needs CONFIG"
run 2 train a.yaml train.steps=3
has err "did you mean --set train.steps=3"
run 2 train a.yaml --device cuda
has err "--set run.device=cuda"
run 2 train a.json --num_gpus 2
has err "unknown option '--num_gpus' of 'sherd train'; here it is --ranks"
run 2 train --deepspeed a.json
has err "the file stands alone"
run 2 plan a.yaml --learning_rate 3e-4
has err "settings are given as --set KEY=VALUE"
run 2 merge run out --learning_rate 3e-4
grep -q 'settings' err && complain "a way out that does not lead out"
run 2 train a.yaml b.yaml
has err "does not know what to do with 'b.yaml'"
run 2 train a.yaml --rnaks 3
has err "did you mean '--ranks'?"
run 2 train a.yaml --ranks
has err "--ranks needs a value"
run 2 train a.yaml --ranks=0
has err "--ranks: '0' is not a whole number from 1"
run 2 train a.yaml --ranks 1.5
run 2 train a.yaml --ranks two
run 2 train a.yaml --resume=alwys
has err "'alwys' is none of never|auto|required"
run 2 train a.yaml --print-config=yes
has err "--print-config takes no value"
run 2 train a.yaml -x
has err "unknown option '-x'"
run 2 merge run
has err "'sherd merge' needs DIR OUT"
run 2 merge run out --dtype bf15
has err "did you mean 'bf16'?"
run 2 merge run out --shard-size 5
has err "is not a size such as 5GB"
run 2 merge run out --shard-size -5GB
run 2 merge run out --shard-size 0x5GB
run 2 config
run 2 config --reference file.yaml
run 2 generate run --temperature -1
run 2 generate run
has err "--prompt is missing"
run 2 tokenize text -o out
has err "--tokenizer is missing"

# What cannot be written is a failure, not silence.
if [ -e /dev/full ]; then
    "$sherd" --help >/dev/full 2>err && complain "writing to a full device went well"
    has err "standard output"
fi

# What deepspeed's launcher puts behind the program.
run 2 --local_rank=0 train c.yaml
has err "unknown option '--local_rank=0'; ranks read LOCAL_RANK"
run 2 train c.yaml --local_rank=0
has err "deepspeed leaves the option out with --no_local_rank"
finish
