#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# What a run looks like: on a terminal, in a file, and drawn.
. "$(dirname "$0")/lib.sh"
make_tiny

run 0 train tiny.yaml --set train.steps=20 --set data.val=text --set train.eval_every=5 --set save.every=10
run 0 train tiny.yaml --set run.dir=other --set optim.lr=1e-4 --ranks 2
run 0 plot run
has out "run/plot.svg"
run 0 plot run other -o both.svg --x tokens
mkdir pipe && mkfifo pipe/metrics.jsonl
run 1 plot pipe
has err "cannot open 'pipe/metrics.jsonl': it is a pipe"
run 0 plot run other -o -
cp out piped.svg
run 0 plot run --json --x seconds -o seconds.svg
json 'r["file"] == "seconds.svg" and r["runs"][0]["steps"] == 20'
json '0 < r["runs"][0]["loss"] < 6 and r["runs"][0]["eval_loss"] > 0 and r["runs"][0]["tokens_per_second"] > 0'
python3 - <<'PY' >verdict 2>&1 || { complain "pictures:"; show verdict; }
import json, re
import xml.etree.ElementTree as tree
ns = "{http://www.w3.org/2000/svg}"
rows = [json.loads(line) for line in open("run/metrics.jsonl")]
loss = [r["loss"] for r in rows if "loss" in r]
root = tree.parse("run/plot.svg").getroot()
paths = [p for p in root.iter(ns + "path") if p.get("fill") == "none"]
assert len(paths) == 5, len(paths)  # steps, mean and validation; steps and mean
points = [tuple(map(float, p)) for p in re.findall(r"[ML]([0-9.]+) ([0-9.]+)", paths[0].get("d"))]
assert len(points) == len(loss) == 20, (len(points), len(loss))
# Straight lines: every point lies where its step and loss say, between the first and the last.
x = lambda i: points[0][0] + (points[-1][0] - points[0][0]) * i / 19
low, high = loss.index(min(loss)), loss.index(max(loss))
scale = (points[low][1] - points[high][1]) / (loss[low] - loss[high])
for i, (px, py) in enumerate(points):
    assert abs(px - x(i)) < 0.11 and abs(py - (points[high][1] + (loss[i] - loss[high]) * scale)) < 0.2, (i, px, py)
assert len(list(root.iter(ns + "circle"))) == 4
both = tree.parse("both.svg").getroot()
texts = [t.text for t in both.iter(ns + "text")]
assert texts.count("run") == texts.count("other") == 2 and "tokens" in texts, texts
tree.parse("piped.svg")
PY

# A gap where a loss is not finite, a line torn by a crash, a run that has not begun, lines that are none.
mkdir odd none bad
{ head -n 4 run/metrics.jsonl; echo '{"step": 4, "loss": null, "tokens": 8, "step_seconds": 0.1}'; printf '{"step": 5, "lo'; } >odd/metrics.jsonl
run 0 plot odd --json
json 'r["runs"][0]["steps"] == 4 and r["runs"][0]["loss"] > 0'
head -n 1 run/metrics.jsonl >none/metrics.jsonl
run 1 plot none
has err "none/metrics.jsonl: no steps in it yet"
printf 'one\n' >bad/metrics.jsonl
run 1 plot bad
has err "bad/metrics.jsonl:1: not a line of JSON"
run 1 plot nowhere
has err "nowhere/metrics.jsonl"
run 2 plot
run 2 plot run --x time
run 2 plot run -o run.PNG
has err "--output: what is drawn is an SVG"
[ -e run.PNG ] && complain "a refused picture was written"
run 1 plot run -o no/such/folder.svg
has err "no/such/folder.svg"

# A terminal gets a line that moves, and colour unless NO_COLOR is set; a file gets neither.
run 0 train tiny.yaml --set run.dir=file
grep -q $'[\r\033]' err && { complain "what is no terminal got control characters"; show err; }
mkdir file/step-00000099
NO_COLOR= FORCE_COLOR=1 run 0 train tiny.yaml --set run.dir=file --set train.steps=20 --resume
grep -qF $'\033[1;33mwarning: \033[0m' err || { complain "no colour though it was asked for"; show err; }
if command -v script >/dev/null; then
    bare() { TERM=xterm script -qec "$1" /dev/null </dev/null >"$2" 2>&1; }
    bare "$sherd train tiny.yaml --set run.dir=seen --set train.steps=40" screen
    grep -q $'\rstep' screen || { complain "no moving line on a terminal"; show screen; }
    mkdir seen/step-00000099 # is no checkpoint, which a warning tells
    bare "$sherd train tiny.yaml --set run.dir=seen --set train.steps=41 --resume" screen
    grep -q 'warning: ' screen || { complain "no warning"; show screen; }
    grep -q $'\033' screen && complain "colour in spite of NO_COLOR"
    mkdir seen/step-00000099 # the first one has another name now
    bare "NO_COLOR= $sherd train tiny.yaml --set run.dir=seen --set train.steps=42 --resume" screen
    grep -qF $'\033[1;33mwarning: \033[0m' screen || { complain "a warning without colour"; show screen; }
    bare "TERM=dumb $sherd train tiny.yaml --set run.dir=dumb" screen
    grep -q $'\rstep' screen && complain "a dumb terminal got a moving line"
fi
finish
