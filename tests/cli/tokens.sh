#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# From text to token files to a model that writes text: tokenize, train on the folder with weights and a held-out
# part, stop and go on, generate; and messages for what does not fit.
tokenizers=$(realpath "$(dirname "$0")")/../golden/tokenizers
. "$(dirname "$0")/lib.sh"

make_tiny
for i in $(seq 1 200); do echo "the unit holds a shard $i of the gradient"; done >one.txt
python3 -c '
import json
for i in range(300): print(json.dumps({"id": i, "body": f"rank {i} reduces the unit\n" * (i % 3)}))' >two.jsonl

# The same files whatever the threads, in as many as asked for.
for threads in 1 3; do
    run 0 tokenize --tokenizer "$tokenizers/qwen.json" -o one$threads --threads $threads --shard 1000 one.txt
    has out "1 document,"
done
diff -r one1 one3 >/dev/null || complain "three threads wrote other files than one"
[ "$(ls one1)" = "$(printf 'tokenizer.json\ntokens-%06d.bin\n' 1 | sort; ls one1 | grep -E 'tokens(-00000[2-9]\.bin|\.json)')" ] ||
    complain "files: $(ls one1)"
[ "$(stat -c %s one1/tokens-000001.bin)" -eq 3024 ] || complain "a shard is not of 1000 tokens"
run 0 tokenize --tokenizer one1 -o two --field body two.jsonl --json
json 'r["documents"] == 200 and r["files"] == 1 and r["vocab"] < 400'
[ -z "$(tail -c 1 two/tokens.json | tr -d '\n')" ] || complain "tokens.json does not end in a newline"

# A folder is its texts, as for training: in the order of their names, below it too, and nothing else.
mkdir -p tree/c tree/bin && cp one.txt tree/b.txt && cp text tree/a.md && cp text tree/c/z.txt && ln -s ../../one.txt tree/c/a.txt
echo no >tree/.hidden && : >tree/empty.txt && printf 'a\0b' >tree/bin/x.dat && ln -s .. tree/c/up && cp -r one1 tree/made
run 0 tokenize --tokenizer "$tokenizers/qwen.json" -o tree/out two.jsonl tree
has err "tokenize: tree: 4 files of text; passed over: 1 hidden, 1 empty, 1 binary, 1 not a file, 1 folder of token files"
has err "tree/made holds token files: passed over"
run 0 tokenize --tokenizer "$tokenizers/qwen.json" -o listed two.jsonl tree/a.md tree/b.txt tree/c/a.txt tree/c/z.txt
diff -r tree/out listed || complain "a folder is not the files in it, in their order"
run 0 train tiny.yaml --set run.dir=tree_run --set data.format=bytes --set data.train=[tree] --set train.steps=1
has err "data.train: 4 files"
mkdir tree/lines && cp two.jsonl tree/lines && run 0 tokenize --tokenizer bytes -o lines --field body tree/lines --json
json 'r["documents"] == 200'
run 1 tokenize --tokenizer bytes -o none tree/bin
has err "tree/bin: no text in it; passed over: 1 binary"
run 2 tokenize --tokenizer bytes -o none tree/made
has err "tree/made holds token files, which are made already; name the text"
run 1 tokenize --tokenizer bytes -o none tree/nothing
has err "tree/nothing: no such file or folder"
[ -e none ] && complain "what was refused has made its folder"
grep -q 'trained on as they stand' err && complain "a warning of training where nothing is trained"
mkdir saved && touch saved/state.json saved/dataset_info.json && run 2 tokenize --tokenizer bytes -o none saved
has err "tokenize: saved is a data set as \`datasets\` saves it"

# A folder with both kinds of files, as others leave it.
mkdir both && cp one1/tokens-000001.bin both/train.bin && cp one1/tokens-000001.bin both/val.bin
run 0 train tiny.yaml --ranks 2 --set run.dir=leak --set data.train=[both] --set data.val=[both/val.bin] --set model.vocab=384 \
    --set train.eval_every=2 --set train.steps=2
has err "data.val: both/val.bin is in data.train too"
once err "is in data.train too"

# Trained on both, with weights, evaluated on what is held out; stopped and gone on from, at another world.
sets=(--set data.train=[one1,two] --set data.weights=[1,0.5] --set data.split=0.1 --set model.vocab=384
    --set train.eval_every=2 --set data.end=0)
run 0 train tiny.yaml "${sets[@]}" --set run.dir=whole --set train.steps=8 --set schedule.steps=8
has err "data.train: two: "
has err "data.split: "
has err "validation loss"
run 0 train tiny.yaml "${sets[@]}" --set run.dir=parts --set train.steps=5 --set schedule.steps=8
run 0 train tiny.yaml "${sets[@]}" --set run.dir=parts --set train.steps=8 --set schedule.steps=8 --resume
run 0 diff whole parts
run 0 generate whole --prompt "the unit" --tokens 6
has out "the unit"
mv out first

# The tokenizer goes along: with the run, its checkpoints and its model, wherever they are and the data is not.
cmp -s "$tokenizers/qwen.json" whole/tokenizer.json || complain "the run has not the tokenizer of its data"
run 0 merge whole model
cmp -s "$tokenizers/qwen.json" model/tokenizer.json || complain "the model has not the tokenizer of its run"

# Text is not trained on byte by byte for a model with a tokenizer, nor evaluated on beside tokens.
run 2 train tiny.yaml --set run.dir=x --set model.from=model
has err "text is text, but the model in model knows the tokens of its tokenizer: run \`sherd tokenize --tokenizer model"
run 2 train tiny.yaml "${sets[@]}" --set run.dir=x --set data.split=0 --set data.val=[text]
has err "data.val: text is read as bytes, but one1 of data.train as token ids"
[ -e x ] && complain "a run that was refused has made its folder"
run 0 train tiny.yaml --set run.dir=as_bytes --set model.from=model --set data.format=bytes --set train.steps=1
mkdir -p away/data && cp -r whole model away && cd away || exit 1
for from in whole whole/step-00000008 model; do
    run 0 generate $from --prompt "the unit" --tokens 6
    cmp -s out ../first || complain "$from: writes another text"
done
(cd whole && timeout 60 "$sherd" generate step-00000008 --prompt "the unit" --tokens 6) >out 2>err
cmp -s out ../first || complain "within the run: another text"
cd ..
cp -r model bare && rm bare/config.json
run 1 generate bare --prompt x
has err "sherd: bare: there is no config.json in it; it says what the weights are of"
grep -q -e '--model' err && complain "an option is named that nobody typed"
cp -r model odd && sed -i 's/"model_type": *"[a-z0-9]*"/"model_type": "bert"/' odd/config.json
run 1 generate odd --prompt x
has err "sherd: odd/config.json: 'model_type' is 'bert'"
rm model/tokenizer.json
run 2 generate model --prompt x
has err "name one with --tokenizer"
run 0 generate model --prompt "the unit" --tokens 6 --tokenizer one1
cmp -s out first || complain "with a tokenizer that is named: another text"
cp -r one1 three && sed -i 's/ignore_merges/ignored_merges/' three/tokenizer.json
run 2 train tiny.yaml "${sets[@]}" --set run.dir=whole --set data.train=[three,two]
cmp -s "$tokenizers/qwen.json" whole/tokenizer.json || complain "a run that was refused has changed the folder"
run 0 train tiny.yaml "${sets[@]}" --set run.dir=mixed --set data.train=[two,three/tokens-000001.bin] --set train.steps=1
has err "two and three have tokenizers that differ"
run 0 train tiny.yaml "${sets[@]}" --set run.dir=other_val --set data.weights=[] --set data.split=0 --set data.train=[two] --set data.val=[three] \
    --set train.steps=1
has err "data.val: the tokenizer in three is not that of data.train, in two"
cmp -s two/tokenizer.json mixed/tokenizer.json || complain "not the first tokenizer"
run 0 train tiny.yaml "${sets[@]}" --set run.dir=single --set data.train=[one1/tokens-000001.bin,two] --set train.steps=1
cmp -s "$tokenizers/qwen.json" single/tokenizer.json || complain "no tokenizer beside a file that was named"

# Held out at random: the same samples for the same seed.
for seed in 0 5 5 6; do
    run 0 train tiny.yaml "${sets[@]}" --set run.dir=held$seed --set train.steps=2 --set data.split_seed=$seed \
        --set optim.lr=0 --set run.resume=never
    grep -h 'validation loss' err | tail -n 1 | sed 's/.*loss //' >>losses
    rm -r held$seed
done
[ "$(sed -n 2p losses)" = "$(sed -n 3p losses)" ] && [ "$(sort -u losses | wc -l)" -eq 3 ] ||
    { complain "samples held out by seeds"; show losses; }
run 2 train tiny.yaml "${sets[@]}" --set run.dir=x --set data.split_seed=5 --set data.shuffle=false
has err "data.shuffle: false"
run 2 train tiny.yaml --set run.dir=x --set data.split_seed=5
has err "nothing is drawn by it"

# What does not fit.
run 2 train tiny.yaml --set data.train=[one1] --set run.dir=x
has err "are of a vocabulary of"
run 2 train tiny.yaml "${sets[@]}" --set data.weights=[1] --set run.dir=x
has err "data.weights: 1 weights for the 2 paths"
run 2 train tiny.yaml "${sets[@]}" --set data.weights=[1,-1] --set run.dir=x
has err "'-1' is no number above 0"
run 2 train tiny.yaml "${sets[@]}" --set data.val=text --set run.dir=x
has err "nothing need be held out"
run 2 train tiny.yaml --set model.freeze='["*"]' --set run.dir=x # only `generate` makes such a model
has err "every parameter is frozen"
run 1 tokenize --tokenizer one1 -o one1 one.txt
has err "one1: the folder is not empty"
printf 'good\nbad \xff here\n' >bad.txt
run 1 tokenize --tokenizer one1 -o bad bad.txt
has err "bad.txt: byte 9: 0xff is not UTF-8"
[ -e bad ] && complain "a failed run left its folder"
run 0 tokenize --tokenizer bytes -o raw bad.txt
# What is passed over is told once, however many ranks read it.
mkdir -p passing/set && cp one.txt passing && ln -s nowhere passing/link && cp one1/* passing/set
run 0 train tiny.yaml --ranks 2 --set data.train=[passing] --set data.format=bytes --set run.dir=passed --set train.steps=1
has err "1 step"
for warning in "passing/set holds token files" "passing/link: cannot be looked at"; do
    once err "$warning"
done
printf '{"body": "a"}\n{"body": 3}\n' >bad.jsonl
run 1 tokenize --tokenizer one1 -o bad --field body bad.jsonl
has err "bad.jsonl:2: the object has no text 'body'"
printf '{"body": "a"}\n{"body": \n' >bad.jsonl
run 1 tokenize --tokenizer one1 -o bad --field body bad.jsonl
has err "bad.jsonl:2:9: not valid JSON: "
printf '{"body": "a"}\n\n[1]\n' >bad.jsonl
run 1 tokenize --tokenizer one1 -o bad --field body bad.jsonl
has err "bad.jsonl:3:1: the JSON text must be one object"
mkdir old && echo '{}' >old/vocab.json
run 1 tokenize --tokenizer old -o bad one.txt
has err "only the older vocab.json"
run 1 tokenize --tokenizer gpt2 -o bad one.txt
has err "gpt2: there is no such file or folder; name a tokenizer.json"
run 2 train tiny.yaml --set data.train=[one1] --set data.format=bytes --set run.dir=x
has err "one1 holds token files, but data.format is bytes"
mkdir other && echo '{"a": "text that somebody wrote, and is no list of token files"}' >other/tokens.json
run 0 train tiny.yaml --set data.train=[other] --set data.format=bytes --set run.dir=other_run --set train.steps=1
run 2 tokenize --tokenizer one1 -o bad --end '<none>' one.txt
has err "no token '<none>'"
truncate -s -2 one1/tokens-000001.bin
run 1 train tiny.yaml "${sets[@]}" --set run.dir=x
has err "one1/tokens-000001.bin: byte 8"
finish
