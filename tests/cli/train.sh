#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# From text to a merged model and back: train, resume, inspect, verify, merge, generate.
. "$(dirname "$0")/lib.sh"
make_tiny

run 0 train tiny.yaml
has err " 6/6 | loss"
run 0 inspect run --json
json 'r["step"] == 6 and r["world"] == 1 and r["samples_seen"] == 72 and "width: 24" in r["extra"]["config"]'
cp run/config.yaml config.before
run 2 train tiny.yaml --set optim.lr=0.5
has err "--resume"
# A refusal is that of all ranks: nobody is said to wait for another.
run 2 train tiny.yaml --ranks 2 --set optim.lr=0.5
has err "ranks 0-1 of 2"
grep -q 'wait at' err && complain "a refused start tells of ranks that wait"
run 1 train tiny.yaml --set model.width=48 --resume
cmp -s run/config.yaml config.before || complain "a refused start replaced config.yaml"
cp -r run kept
run 0 train tiny.yaml --resume --set train.steps=9
has err "resumed from"
has err "learning rate: its curve goes over 9 steps now, not 6: 2.05e-04 at step 7, where it was to be 1.00e-04; schedule.steps=6"
run 0 train tiny.yaml --resume --set train.steps=9 --set schedule.steps=6 --set run.dir=kept
grep -qE 'learning rate:|other settings' err && complain "the old curve is told as another one"
rm -r kept/step-*9
run 0 train tiny.yaml --resume --ranks 3 --set train.steps=7 --set schedule.steps=6 --set run.dir=kept --set shard.stage=3 \
    --set run.seed=2 --set data.train='[text, text]' --set optim.beta2=0.5
has err "other settings than it was saved with: run.seed 2, not 3; optim.beta2 0.5, not 0.95; data.train [text, text], not [text]"
run 1 train tiny.yaml --resume --set run.dir=nowhere
has err "--resume=auto begins anew"
has err "nowhere"
run 0 train tiny.yaml --resume=auto --set run.dir=fresh --set train.steps=2

run 0 train tiny.yaml --ranks 2 --set run.dir=evaluated --set train.steps=1 --set data.val=text --set train.eval_batches=0 \
    --set shard.reduce=copy
has err "over 13888 tokens" # all that make whole samples
has err "shard.reduce: copy is for GPUs of one host"

run 0 train tiny.yaml --ranks 3 --set run.dir=wide --set shard.stage=3
grep -qF '[rank' err && { complain "ranks spoke where nothing was wrong"; show err; }
run 0 inspect wide --tensors --files --json
json 'r["step"] == 6 and r["world"] == 3 and r["stage"] == 3'
json 'sum(t["elems"] for t in r["tensors"]) == r["params"]'
json 'all(sum(s["elems"] for s in t["spans"]) == t["elems"] for t in r["tensors"])'
json '{s["rank"] for t in r["tensors"] for s in t["spans"]} == {0, 1, 2}'
json 'all(f["bytes"] > 0 for f in r["files"])'
run 0 inspect wide --tensors --files
has out "written by 3 ranks at stage 3"
has out "model.norm.weight"
has out "1:["
run 0 verify wide
has out "all sums match"

# Another number of ranks and another stage go on from it.
run 0 train tiny.yaml --ranks 2 --resume --set run.dir=wide --set shard.stage=1 --set train.steps=8
run 0 inspect wide --json
json 'r["step"] == 8 and r["world"] == 2 and r["stage"] == 1 and r["samples_seen"] == 96'

run 0 merge wide model --json
json 'r["files"] == 1 and r["bytes"] > 4 * r["params"] and r["params"] > 0'
run 2 inspect model
has err "model is a model, not a checkpoint"
run 0 generate wide --prompt a --tokens 12 --config tiny.yaml
mv out text.wide
run 0 generate model --prompt a --tokens 12
cmp -s out text.wide || complain "the merged model writes another text"
run 1 merge wide model
has err "model"
run 0 merge wide model --overwrite --dtype bf16
has out "parameters in"
grep -qE ' in 1 file, in (under 1ms|[1-9][0-9]{0,2}ms|[1-9][0-9.]*m?s)$' out || { complain "no time that a merge took"; show out; }
run 0 merge wide parts --shard-size 10kB
[ -s parts/model.safetensors.index.json ] || complain "no index of the parts"
# Where there is no room nothing is made.
if unshare -rm true 2>/dev/null; then
    mkdir small
    unshare -rm sh -c 'mount -t tmpfs -o size=4k tmpfs small && "$0" merge wide small/deep/model; echo "$?"; ls -A small' \
        "$sherd" >out 2>err
    [ "$(cat out)" = 1 ] || { complain "a merge without room left something"; show out err; }
    has err "small/deep/model: the merged model needs"
fi
python3 - <<'END' || complain "the merged file is not what its header says"
import json, os, struct
path = "model/model.safetensors"
with open(path, "rb") as f:
    (n,) = struct.unpack("<Q", f.read(8))
    head = json.loads(f.read(n))
head.pop("__metadata__", None)
assert all(t["dtype"] == "BF16" for t in head.values())
assert max(t["data_offsets"][1] for t in head.values()) == os.path.getsize(path) - 8 - n
assert head["model.embed_tokens.weight"]["shape"] == [256, 24]
END

run 0 generate wide --prompt 'ab' --tokens 30 --temperature 1
cp out first
[ "$(head -c 2 out)" = ab ] || complain "the prompt is not there"
has err "the model's context of 16 tokens is full: 14 of 30 tokens written"
run 0 generate wide --prompt 'ab' --tokens 30 --temperature 1
cmp -s out first || complain "the same seed wrote another text"
run 0 generate wide --prompt 'ab' --tokens 10 --temperature 1 --top-p 0 # the likeliest alone
mv out second
run 0 generate wide --prompt 'ab' --tokens 10 --config tiny.yaml
cmp -s out second || complain "top-p 0 is not greedy"
run 2 generate wide --prompt 'this is more than sixteen'
has err "the model's context of 16 leaves no room"
run 2 generate wide --prompt a --config tiny.yaml --set a=b
run 1 generate nowhere/model --prompt a
has err "nowhere/model: no such folder"
has err "nothing is downloaded"
run 1 inspect nowhere
has err "nowhere"

# One changed bit in a file is found and named.
flip() { # FILE BYTE
    python3 - "$1" "$2" <<'END'
import sys
at = int(sys.argv[2])
with open(sys.argv[1], "r+b") as f:
    f.seek(at, 2 if at < 0 else 0)
    was = f.read(1)[0]
    f.seek(at, 2 if at < 0 else 0)
    f.write(bytes([was ^ 1]))
END
}
cp -r run sound && rm -r sound/step-*9
shard=$(ls run/step-*9/weights-*.safetensors | head -1)
flip "$shard" -1
run 1 verify run
has err "$(basename "$shard")"
has out "step-00000006: step 6"
# ... and not merged.
run 1 merge run damaged
has err "$(basename "$shard")"
[ ! -e damaged ] || complain "a damaged checkpoint was merged, or left a folder"
# Nor trained on: the run goes on from the one before, as if the damaged one had never been.
cp -r run hurt
run 0 train tiny.yaml --set run.dir=hurt --set train.steps=12 --resume
has err "skipping checkpoint hurt/step-00000009: "
has err "$(basename "$shard"): bytes"
has err "hurt/step-00000009 is called hurt/damaged-step-00000009 now"
has err "resumed from hurt/step-00000006: step 6"
run 0 train tiny.yaml --set run.dir=sound --set train.steps=12 --resume
same_bits sound/step-00000012 hurt/step-00000012
# What one rank alone reads, a header, and a second time.
for at in -1 20; do
    cp -r wide wide_hurt
    flip wide_hurt/step-00000008/states-00001-of-00002.safetensors $at
    mkdir wide_hurt/damaged-step-00000008
    run 0 train tiny.yaml --ranks 2 --resume --set run.dir=wide_hurt --set train.steps=7 --set save.keep=1
    has err "states-00001-of-00002.safetensors"
    has err "is called wide_hurt/damaged-step-00000008-1 now"
    has err "resumed from wide_hurt/step-00000006"
    run 0 inspect wide_hurt --json
    json 'r["step"] == 7'
    rm -r wide_hurt
done
# With no other it is refused, and stays as it is.
cp -r run only && rm -r only/step-*6
for ranks in 1 2; do
    run 1 train tiny.yaml --ranks $ranks --set run.dir=only --set train.steps=12 --resume=auto
    has err "no checkpoint in only is whole; copy this file back, or start a new run in another run.dir: "
    has err "$(basename "$shard"): bytes"
    [ -d only/step-00000009 ] || complain "the only checkpoint was renamed"
done
truncate -s -1 "only/step-00000009/$(basename "$shard")"
for resume in "" --resume --resume=auto; do
    run 1 train tiny.yaml --set run.dir=only --set train.steps=12 $resume
    has err "none of its 1 checkpoints is complete and finite (the warnings say why); copy one back"
done
# Nor is a number that was changed in the manifest believed.
cp -r run counted
sed -i 's/"samples_seen": /&1/' counted/step-00000009/manifest.json
run 0 train tiny.yaml --set run.dir=counted --set train.steps=12 --resume
has err "skipping checkpoint counted/step-00000009: counted/step-00000009/manifest.json was changed after it was saved"
has err "counted/step-00000009 is called counted/damaged-step-00000009 now"
same_bits sound/step-00000012 counted/step-00000012

# A newest checkpoint that is cut off is passed over by a run, but not when it is asked whether it is sound.
truncate -s -1 "$shard"
run 1 verify run
has err "$(basename "$shard")"
run 0 verify "$(dirname "$(ls run/step-*6/manifest.json)")"
run 0 train tiny.yaml --set run.dir=run --set train.steps=7 --resume
has err "skipping checkpoint run/step-00000009: "
has err "is cut off"
has err "resumed from run/step-00000006"
has err "run/step-00000009 is called run/damaged-step-00000009 now, and may be removed"
# Nothing replaces one that lacks a file: it is mended, called as it was, and gone on from.
cp -r sound lost
mv lost/step-00000012/manifest.json manifest
run 0 train tiny.yaml --set run.dir=lost --set train.steps=12 --set save.keep=1 --resume
has err "no manifest.json"
has err "lost/step-00000012 is called lost/damaged-step-00000012 now"
same_bits sound/step-00000012 lost/step-00000012
mv manifest lost/damaged-step-00000012/manifest.json
rm -r lost/step-00000012 && mv lost/damaged-step-00000012 lost/step-00000012
run 0 train tiny.yaml --set run.dir=lost --set train.steps=12 --resume
has err "resumed from lost/step-00000012"
# Nor one with values that are no numbers: it is not gone on from by itself, but stays.
cp -r sound infinite
sed -i 's/"finite": true/"finite": false/; s/"sum": /"Sum": /' infinite/step-00000012/manifest.json
run 0 train tiny.yaml --set run.dir=infinite --set train.steps=12 --set save.keep=1 --resume
has err "skipping checkpoint infinite/step-00000012: it holds values that are infinite or not a number"
has err "infinite/step-00000012 is called infinite/damaged-step-00000012 now, and may be removed"
has err "resumed from infinite/step-00000006"
same_bits sound/step-00000012 infinite/step-00000012
same_bits sound/step-00000012 infinite/damaged-step-00000012
run 1 verify tiny.yaml

# Where files may not grow, saving fails with a text, not by a signal without one.
(ulimit -f 10; run 1 train tiny.yaml --set run.dir=limited; [ "$faults" -eq 0 ]) || complain "no text at a limit of file sizes"
has err "File too large"

# One rank of a world that something else started.
RANK=0 WORLD_SIZE=1 run 0 train tiny.yaml --set run.dir=env1 --set train.steps=1
RANK=0 run 2 train tiny.yaml --set run.dir=env2
has err "WORLD_SIZE"
RANK=3 WORLD_SIZE=2 run 2 train tiny.yaml --set run.dir=env2
RANK=0 WORLD_SIZE=2 run 2 train tiny.yaml --set run.dir=env2 --ranks 3
has err "--ranks 3"
export WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=1 SHERD_JOB="cli-$$"
RANK=1 LOCAL_RANK=1 "$sherd" train tiny.yaml --set run.dir=env3 2>err1 &
RANK=0 LOCAL_RANK=0 run 0 train tiny.yaml --set run.dir=env3
wait $! || { complain "rank 1 of a world of two failed"; show err1; }
unset WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT SHERD_JOB
run 0 inspect env3 --json
json 'r["world"] == 2'

# Files of others under the names that a run writes.
mkdir own && cp tiny.yaml own/config.yaml
run 2 train own/config.yaml --set run.dir=own
has err "run.dir: own/config.yaml was not written by a run"
cmp -s tiny.yaml own/config.yaml || complain "a config of the user's was written over"
[ "$(ls -A own)" = config.yaml ] || complain "a refused run left something: $(ls -A own)"
mkdir deepspeed && echo global_step500 >deepspeed/latest
run 2 train tiny.yaml --set run.dir=deepspeed
has err "run.dir: deepspeed/latest is that of another program ('global_step500')"
mkdir model && echo '{}' >model/tokenizer.json && touch model/model.safetensors
run 2 train tiny.yaml --set run.dir=model
has err "run.dir: model is the folder of a model"
finish
