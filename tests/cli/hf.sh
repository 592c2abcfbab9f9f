#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# From a Hugging Face model folder to training and back: settings from config.json, weights alone in checkpoints,
# merged models that say what they were, and messages for what does not fit.
models=$(realpath "$(dirname "$0")/../golden/hf")
. "$(dirname "$0")/lib.sh"

python3 - <<'END'
import struct
open("tokens", "wb").write(b"".join(struct.pack("<H", (i * i + i // 7) % 61) for i in range(400)))
END
cat >tiny.yaml <<'END'
batch:
  seq: 8
  global: 6
  micro: 2
train:
  steps: 3
optim:
  lr: 1e-3
data:
  train: [tokens]
  format: u16
END

for name in gpt2 llama qwen2 qwen3; do
    run 0 train tiny.yaml --ranks 3 --set shard.stage=3 --set run.dir=$name --set model.from="$models/$name" \
        --set optim.lr=0 --set optim.weight_decay=0
    has err "weights of $models/$name: "
    run 0 merge $name $name-model --dtype f32
    run 0 verify $name-model
    has out "all tensors that config.json asks for"
    run 0 diff "$models/$name" $name-model # a rate of 0 changes nothing
    has out "equal: "
    run 0 diff $name $name-model --json
    json 'r["equal"] and r["elems"] > 10000'
done
run 0 verify "$models/gpt2"
empty err # what a model asks for in training is told in training, once
run 0 train tiny.yaml --ranks 3 --set run.dir=dropout --set model.from="$models/gpt2" --set train.steps=1
once err "resid_pdrop 0.1, embd_pdrop 0.1, attn_pdrop 0.1); it is trained without"
run 0 config tiny.yaml --set model.from="$models/qwen3"
has out "head_dim: 10"
has out "qwen3/config.json"
grep -q '"eos_token_id": 2' qwen3-model/config.json || complain "config.json is not that of the model"
grep -q '"rms_norm_eps": 1e-6' qwen3-model/config.json || complain "a number of config.json is not as short as it was"

# A run that learns goes on from its own checkpoint, not from the folder.
run 0 train tiny.yaml --set run.dir=learn --set model.from="$models/qwen3"
run 1 diff learn "$models/qwen3" --json
json 'not r["equal"] and r["different"] == r["compared"]'
run 0 train tiny.yaml --set run.dir=learn --set model.from="$models/qwen3" --set train.steps=5 --resume
has err "resumed from"
grep -q "weights of" err && complain "the weights were imported once more"

# What was merged to fewer bits differs by rounding, and diff says so; what was trained on differs by more.
run 0 merge learn rounded --dtype bf16
run 1 diff learn rounded
has out "each by no more than its rounding to 16 bits"
run 1 diff rounded "$models/qwen3"
grep -q "no more than its rounding" out && complain "training is taken for rounding"

# Weights alone: no states in the folder, and nothing to resume from.
run 0 train tiny.yaml --set run.dir=light --set model.from="$models/qwen3" --set save.what=weights
ls light/step-00000003/states-* 2>/dev/null && complain "states were saved"
run 0 verify light
run 0 merge light light-model
run 0 train tiny.yaml --set run.dir=second --set model.from=light-model
run 1 train tiny.yaml --set run.dir=light --set model.from="$models/qwen3" --set train.steps=5 --resume
has err "weights and no optimizer states"

# What lies beside the weights goes along with the run; another folder may be named.
cp -r "$models/qwen3" own && echo '{"b": 1}' >own/tokenizer.json && echo '{}' >own/chat_template.jinja
run 0 train tiny.yaml --set run.dir=beside --set model.from=own
run 0 merge beside beside-model
for name in tokenizer.json chat_template.jinja; do
    cmp -s own/$name beside-model/$name || complain "$name did not go along"
done
[ -e beside-model/generation_config.json ] && complain "a file from nowhere"
mkdir made && cp tokens made/tokens.bin && echo '{"b": 2}' >made/tokenizer.json
run 0 train tiny.yaml --set run.dir=foreign --set model.from=own --set data.train=[made]
has err "the tokenizer in made is not that of model.from, own"
cmp -s made/tokenizer.json foreign/tokenizer.json || complain "not the tokenizer of the data"
[ -e foreign/chat_template.jinja ] && complain "a template of another tokenizer"
# A folder whose tokenizer is another is told once, not for each of its files and not at every save.
mkdir else && cp tokens else/1.bin && cp tokens else/2.bin && cp tokens else/3.bin && cp tokens else/4.bin
echo '{"b": 3}' >else/tokenizer.json
run 0 train tiny.yaml --set run.dir=once --set model.from=own --set save.every=1 --set train.eval_every=1 \
    --set data.train=[made/tokens.bin,else/1.bin,made/tokens.bin,else/2.bin] --set data.val=[else/3.bin,else/4.bin]
once err "the tokenizer in made is not that of model.from, own"
once err "made and else have tokenizers that differ"
once err "the tokenizer in else is not that of data.train, in made"
cp -r "$models/qwen3" from && echo '{"a": 1}' >from/tokenizer.json && echo '{}' >from/generation_config.json
run 0 merge learn with --with from
cmp -s from/tokenizer.json with/tokenizer.json || complain "the tokenizer was not copied"
echo '{"a": 2}' >from/tokenizer.json
run 0 merge learn with --with from --overwrite
cmp -s from/tokenizer.json with/tokenizer.json || complain "the tokenizer was not replaced"
run 1 merge learn without --with "$models/qwen3"
has err "neither tokenizer nor generation_config.json"

# What does not fit.
cp -r "$models/qwen3" torn && echo '{"model_type": ' >torn/config.json
run 1 verify torn
has err "torn/config.json:"
rm torn/config.json
run 0 verify torn
has out "sound headers"
run 2 train tiny.yaml --set run.dir=x --set model.from="$models/qwen3" --set model.width=32
has err "model.width: 32, but $models/qwen3/config.json says 24"
run 2 train tiny.yaml --set run.dir=x --set model.from=nowhere
has err "model.from: nowhere: there is no such folder; name one with"

# Folders of others are told by what they are, with what makes a model folder of them.
mkdir -p theirs/{trainer/checkpoint-90,trainer/checkpoint-500,ds/global_step5,step,dcp,fsdp/pytorch_model_fsdp_0,bin,lora,meta,gguf,llmc,none}
touch theirs/ds/{latest,zero_to_fp32.py} theirs/step/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt \
    theirs/dcp/{.metadata,__0_0.distcp} theirs/bin/pytorch_model.bin theirs/lora/adapter_model.safetensors \
    theirs/meta/consolidated.00.pth theirs/gguf/m.gguf theirs/llmc/DONE_00000100 theirs/trainer/checkpoint-none
while read -r name says; do
    run 2 train tiny.yaml --set run.dir=x --set model.from=theirs/$name
    has err "model.from: theirs/$name: there is no config.json in it; $says"
    run 1 merge theirs/$name x
    has err "theirs/$name: no checkpoint (looked for theirs/$name/step-*/manifest.json); $says"
done <<'END'
trainer it holds checkpoints of Hugging Face's Trainer, each a model folder: name theirs/trainer/checkpoint-500
ds it is a checkpoint of DeepSpeed; `python zero_to_fp32.py
step it is a checkpoint of DeepSpeed; `python zero_to_fp32.py
dcp it is a distributed checkpoint of PyTorch; `accelerate merge-weights
fsdp it is a distributed checkpoint of PyTorch; `accelerate merge-weights
bin it holds pytorch_model.bin, which can run code
lora it is an adapter alone
meta it holds Llama's weights as Meta packs them
gguf it holds weights for llama.cpp
llmc it is a checkpoint of llm.c, whose dev/eval/export_hf.py
END
run 2 train tiny.yaml --set run.dir=x --set model.from=theirs/none
has err "theirs/none: there is no config.json in it"
cp "$models/qwen3/model.safetensors" theirs/none
run 2 train tiny.yaml --set run.dir=x --set model.from=theirs/none
has err "copy that of their model beside them"
run 1 generate theirs/none --prompt a
has err "sherd: theirs/none: there is no config.json in it; it says what the weights are of"
run 1 merge "$models/qwen3" x
has err "it is a model folder of Hugging Face"
cp "$models/qwen3/config.json" theirs/ds
run 1 train tiny.yaml --set run.dir=x --set model.from=theirs/ds
has err "theirs/ds: neither model.safetensors nor model.safetensors.index.json; it is a checkpoint of DeepSpeed"
rm -rf x

run 2 train tiny.yaml --set run.dir=x --model owner/name
has err "--model: owner/name: no such file or folder; name a .yaml file with a section model, or the folder of a Hugging Face model"
run 2 diff learn nowhere
has err "nowhere"
run 2 diff learn
mkdir sub && cp -r qwen3-model sub/m && mkdir sub/m/original
run 1 merge learn sub/m --overwrite
has err "original: a folder that holds folders is not replaced"
rmdir sub/m/original && echo '{}' >sub/m/tokenizer.json
run 0 merge learn sub/m --overwrite
[ "$(ls -A sub)" = m ] || complain "something was left beside the model: $(ls -A sub)"
[ -s sub/m/tokenizer.json ] || complain "the tokenizer is gone"
run 0 diff learn sub/m

# A pipe among the files of a model keeps nobody waiting.
cp -r "$models/qwen3" pipes && mkfifo pipes/generation_config.json
run 1 generate pipes --prompt a --tokenizer bytes
has err "cannot open 'pipes/generation_config.json': it is a pipe"
rm pipes/config.json && mkfifo pipes/config.json
run 1 verify pipes
has err "cannot open 'pipes/config.json': it is a pipe"
finish
