#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# sherd eval tells the very loss that training told at that step, with as many ranks, and writes nothing.
models=$(realpath "$(dirname "$0")/../golden/hf")
tokenizers=$(realpath "$(dirname "$0")/../golden/tokenizers")
. "$(dirname "$0")/lib.sh"
export HOME=$work/home
unset XDG_CACHE_HOME

make_tiny
seq 3001 3400 >val
cat >>tiny.yaml <<'END'
save: {every: 3, keep: 0}
END
sed -i 's/steps: 6/steps: 6\n  eval_every: 3/; s/train: \[text\]/train: [text]\n  val: [val]/' tiny.yaml

same() { # DIR STEP: the value in the file out is what that run told after that step, to the last bit
    python3 - "$1/metrics.jsonl" "$2" <<'END' || complain "line ${BASH_LINENO[0]}: not the loss of $1 at step $2"
import json, math, sys
told = [r for r in map(json.loads, open(sys.argv[1])) if "eval_loss" in r and r["step"] == int(sys.argv[2])][0]
got = json.load(open("out"))
assert got["loss"] == told["eval_loss"] and got["tokens"] == told["eval_tokens"], (got, told)
assert got["step"] in (told["step"], None) and got["perplexity"] == math.exp(got["loss"]), got
END
}

# Every stage, alone and with others, in both types; what concerns training alone changes nothing.
for stage in 0 1 2 3; do
    for ranks in 1 3; do
        for type in f32 bf16; do
            dir=s$stage-$ranks-$type more=()
            case $stage-$type in
            0-bf16) more=(--set train.recompute=block) ;;
            1-f32) more=(--set train.eval_batches=0) ;; # more than are in memory at a time
            1-bf16) more=(--set dtype.master=split --set dtype.state=bf16) ;;
            2-bf16) more=(--set batch.micro=1 --set data.end=10) ;;
            3-bf16) [ $ranks -eq 1 ] && more=(--set dtype.param=f16) ;;
            3-f32) more=(--set model.freeze='["*.mlp.*"]' --set optim.name=sgd) ;;
            esac
            sets=(--ranks $ranks --set run.dir=$dir --set shard.stage=$stage --set dtype.param=$type "${more[@]}")
            run 0 train tiny.yaml "${sets[@]}"
            find $dir -type f -exec cksum {} + | sort >before
            run 0 eval tiny.yaml "${sets[@]}" --json
            empty err
            same $dir 6
            json "r['from'] == '$dir/step-00000006' and r['ranks'] == $ranks and r['samples_there'] == 124"
            run 0 eval tiny.yaml "${sets[@]}" --json --checkpoint step-3
            same $dir 3
            find $dir -type f -exec cksum {} + | sort | cmp -s - before || complain "$dir: an evaluation has changed it"
        done
    done
done
[ -e home ] && complain "an evaluation has written below the home folder"

# The same by other ways; what is not read may be gone, and another optimizer reads no states.
run 0 eval tiny.yaml --set run.dir=s0-1-f32
has out "s0-1-f32/step-00000006: loss 5."
has out " over 640 tokens (the first 40 of 124 samples; --set train.eval_batches=0 takes all)"
mv out want
for args in "s0-1-f32/config.yaml" "tiny.yaml --checkpoint s0-1-f32" "tiny.yaml --checkpoint s0-1-f32/step-00000006/" \
    "tiny.yaml --checkpoint latest --set run.dir=s0-1-f32" "tiny.yaml --set run.dir=s0-1-f32 --set optim.name=sgd" \
    "tiny.yaml --set run.dir=s0-1-f32 --set data.train=[gone]"; do
    # shellcheck disable=SC2086
    run 0 eval $args
    cmp -s out want || { complain "eval $args tells something else"; show out err; }
done

# The number of ranks and the stage may be others, and then the loss over all of the data is nearly the same.
for ranks in 1 2 5; do
    run 0 eval tiny.yaml --ranks $ranks --set run.dir=s0-1-f32 --set train.eval_batches=0 --set shard.stage=$((ranks % 4)) --json
    json "5.4 < r['loss'] < 5.6 and r['tokens'] == 1984 and r['samples'] == r['samples_there'] == 124"
    python3 -c 'import json; print("%.5f" % json.load(open("out"))["loss"])' >>losses
done
[ "$(sort -u losses | wc -l)" -eq 1 ] || { complain "numbers of ranks are far apart"; show losses; }

# All of what is named, whatever training would take.
run 0 eval tiny.yaml --set run.dir=s0-1-f32 --data val --json
json "r['tokens'] == 1984"
run 0 eval tiny.yaml --set run.dir=s0-1-f32 --data val --data text --set train.eval_batches=3 --json
json "r['tokens'] == 96 and r['samples_there'] == 993"

# What is held out.
held=(--ranks 2 --set run.dir=held --set data.val=[] --set data.split=0.1 --set data.split_seed=7)
run 0 train tiny.yaml "${held[@]}"
run 0 eval tiny.yaml "${held[@]}" --json
empty err
same held 6
run 2 eval tiny.yaml "${held[@]}" --data val
has err "--data says what is evaluated on, and so does --set data.val=[]: leave out one of them"
run 0 eval held/config.yaml --ranks 2 --data val --json
empty err
json "r['from'] == 'held/step-00000006' and r['tokens'] == 1984"
run 0 eval tiny.yaml "${held[@]}" --set data.split_seed=8
has err "warning: held/step-00000006: other settings than it was saved with: data.split_seed 8, not 7"

# Masters half-way between two bf16, all of them: they become the weights that training makes of them.
run 0 merge s0-1-f32 half
python3 - <<'END'
import struct
data = bytearray(open("half/model.safetensors", "rb").read())
for at in range(8 + struct.unpack("<Q", data[:8])[0], len(data), 4):
    data[at:at + 2] = b"\x00\x80"
open("half/model.safetensors", "wb").write(data)
END
run 0 train tiny.yaml --model half --set run.dir=ties --set dtype.param=bf16 --set optim.lr=0
run 0 eval tiny.yaml --model half --set run.dir=ties --set dtype.param=bf16 --json
same ties 6
run 0 eval tiny.yaml --checkpoint half --set dtype.param=bf16 --json
same ties 6

# Models of others: the folder says what they are.
python3 -c 'import struct; open("ids.bin", "wb").write(b"".join(struct.pack("<H", (i * i + i // 7) % 61) for i in range(400)))'
cat >ids.yaml <<'END'
batch: {seq: 8, micro: 2}
train: {steps: 1, eval_every: 1}
optim: {lr: 0}
data: {train: [ids.bin], val: [ids.bin], format: u16}
END
for name in gpt2 llama qwen2 qwen3; do
    run 0 train ids.yaml --model "$models/$name" --ranks 2 --set run.dir=$name
    run 0 eval ids.yaml --checkpoint "$models/$name" --ranks 2 --set shard.stage=3 --json
    same $name 1
    json "r['from'] == '$models/$name' and r['step'] is None"
    run 0 eval ids.yaml --model "$models/$name" --ranks 2 --set run.dir=$name --json
    same $name 1
done
# The section `model` of a config gives way to no other model.
run 2 eval tiny.yaml --checkpoint "$models/qwen3"
has err "model.family: llama, but $models/qwen3/config.json says qwen3: remove the line"

# Text for a model that knows tokens, and tokens of another tokenizer.
run 0 tokenize --tokenizer "$tokenizers/qwen.json" -o tokens text
sets=(--set run.dir=learnt --set model.vocab=384)
run 0 train tiny.yaml "${sets[@]}" --data tokens --val tokens
run 0 eval tiny.yaml "${sets[@]}" --data tokens
empty err
run 2 eval tiny.yaml "${sets[@]}" --data val
has err "data.val: val is text, but the model in learnt knows the tokens of its tokenizer: run \`sherd tokenize"
has err "data.format: bytes evaluates on the bytes of the text"
run 0 eval tiny.yaml "${sets[@]}" --data val --set data.format=bytes
cp -r tokens others && sed -i 's/ignore_merges/ignored_merges/' others/tokenizer.json
run 0 eval tiny.yaml "${sets[@]}" --data others
has err "warning: data.val: the tokenizer in others is not that of the model, in learnt: the validation loss is of other"
run 0 merge learnt model
run 2 eval tiny.yaml --checkpoint model --data val
has err "data.val: val is text, but the model in model knows"

# Where all is asked for, what is not read is told.
mkdir mixed && cp val mixed/ && cp val mixed/.hidden && head -c 100 /dev/zero >mixed/zeros && : >none
run 0 eval tiny.yaml --set run.dir=s0-1-f32 --ranks 2 --data mixed --data none
once err "warning: data.val: 1 file, 2,000 tokens (bytes); passed over: 1 hidden, 1 empty, 1 binary"
run 0 eval tiny.yaml --set run.dir=s0-1-f32 --data mixed/val
empty err

# What does not fit.
run 2 eval tiny.yaml --set data.val=[]
has err "data.val: there is nothing to evaluate on: name files or folders, as data.val: [PATH] or --data PATH"
run 2 eval tiny.yaml --set data.val=[] --set data.train=[] --set data.split=0.1
has err "data.split: it holds out a part of data.train, and that is empty"
run 2 eval tiny.yaml --set run.dir=gone
has err "run.dir: there is no folder gone, and so no checkpoint in it (paths count from where the program was started)"
[ -e gone ] && complain "a folder was made for nothing"
run 1 eval tiny.yaml --set run.dir=held --checkpoint step-5
has err "held/step-00000005: there is no such folder"
run 1 eval tiny.yaml --set run.dir=held --checkpoint step-99999999999999999999
has err "step-99999999999999999999: there is no such folder"
mkdir nothing
run 1 eval tiny.yaml --checkpoint nothing
has err "nothing: no checkpoint"
run 1 eval tiny.yaml --ranks 2 --set run.dir=held --set model.layers=3
has err "held/step-00000006: tensor 'model.layers.2."
run 0 eval tiny.yaml --set run.dir=s0-1-f32 --set batch.seq=8
has err "warning: s0-1-f32/step-00000006: other settings than it was saved with: batch.seq 8, not 16"
head -c 200 /dev/zero | tr '\0' '\n' >ends
run 2 eval tiny.yaml --set run.dir=s0-1-f32 --data ends --set data.end=10
has err "data.end: there is no loss: all that is evaluated on follows this token"
run 2 eval tiny.yaml --val val
has err "unknown option '--val' of 'sherd eval'; here it is --data"
run 2 eval tiny.yaml --resume
has err "here it is --checkpoint"
cp -r s0-1-f32 torn # the newest is asked for, so that no older one is taken in its place
python3 - <<'END'
path = "torn/step-00000006/weights-00000-of-00001.safetensors"
data = bytearray(open(path, "rb").read())
data[-9] ^= 1
open(path, "wb").write(data)
END
run 1 eval tiny.yaml --ranks 2 --set run.dir=torn
has err "torn/step-00000006/weights-00000-of-00001.safetensors"
[ -d torn/step-00000006 ] || complain "a damaged checkpoint was put aside"
finish
