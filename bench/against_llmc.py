#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
"""Times one rank of sherd on the CPU against llm.c's train_gpt2 (its C program with OpenMP) on the same shapes:
a GPT-2 of about 30 million parameters, 4 sequences of 64 tokens a step, the same token file, AdamW in float32.

    bench/against_llmc.py --llmc PATH/train_gpt2 --sherd build/tools/sherd [--threads 2]

Runs them in turns, three times each, and prints the median milliseconds of a step. llm.c's program reads fixed file
names from the folder it runs in and always takes 4 x 64 tokens and 40 steps; this script writes those files (a
checkpoint of random weights in llm.c's format 3, and token files) into a scratch folder.
"""
import argparse
import json
import os
import random
import re
import statistics
import struct
import subprocess
import tempfile
from array import array

VOCAB, WIDTH, LAYERS, HEADS, CONTEXT = 50257, 384, 6, 6, 1024
TOKENS = "dev/data/tinyshakespeare/tiny_shakespeare_%s.bin"


def write_checkpoint(path):
    c, n, padded = WIDTH, LAYERS, (VOCAB + 127) // 128 * 128
    rng = random.Random(1)
    noise = array("f", (rng.gauss(0, 0.02) for _ in range(1 << 16)))
    # (elements, value); None is noise: the tensors of a GPT-2 in llm.c's order
    tensors = ((padded * c, None), (CONTEXT * c, None), (n * c, 1.0), (n * c, 0.0), (n * 3 * c * c, None),
               (n * 3 * c, 0.0), (n * c * c, None), (n * c, 0.0), (n * c, 1.0), (n * c, 0.0), (n * 4 * c * c, None),
               (n * 4 * c, 0.0), (n * 4 * c * c, None), (n * c, 0.0), (c, 1.0), (c, 0.0))
    with open(path, "wb") as out:
        header = [20240326, 3, CONTEXT, VOCAB, n, HEADS, c, padded]
        out.write(struct.pack("<256i", *header, *([0] * 248)))
        for elems, value in tensors:
            if value is not None:
                array("f", [value] * elems).tofile(out)
                continue
            for _ in range(elems // len(noise)):
                noise.tofile(out)
            noise[:elems % len(noise)].tofile(out)


def write_tokens(path, count):
    rng = random.Random(2)
    with open(path, "wb") as out:
        out.write(struct.pack("<256i", 20240520, 1, count, *([0] * 253)))
        array("H", (rng.randrange(VOCAB) for _ in range(count))).tofile(out)


def run_llmc(program, folder, threads):
    env = dict(os.environ, OMP_NUM_THREADS=str(threads))
    text = subprocess.run([program], cwd=folder, env=env, check=True, stdout=subprocess.PIPE).stdout
    times = [float(t) for t in re.findall(rb"train loss [0-9.]+ \(took ([0-9.]+) ms\)", text)]
    return statistics.median(times[1:])


def run_sherd(program, folder, threads, turn):
    run = os.path.join(folder, "run%d" % turn)
    settings = {
        "run.dir": run, "run.threads": threads, "model.family": "gpt2", "model.vocab": VOCAB, "model.width": WIDTH,
        "model.layers": LAYERS, "model.heads": HEADS, "model.context": CONTEXT, "model.tied": "true",
        "batch.micro": 4, "batch.accum": 1, "batch.seq": 64, "optim.lr": 1e-4, "optim.clip": 0,
        "optim.weight_decay": 0, "schedule.kind": "constant", "schedule.warmup": 0, "train.steps": 40,
        "data.train": "[%s]" % os.path.join(folder, TOKENS % "train"), "data.format": "llmc", "log.every": 40,
        "log.jsonl": "true",
    }
    config = os.path.join(folder, "empty.yaml")
    open(config, "w").close()
    command = [program, "train", config]
    for key, value in settings.items():
        command += ["--set", "%s=%s" % (key, value)]
    subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    with open(os.path.join(run, "metrics.jsonl")) as lines:
        records = [json.loads(line) for line in lines]
    times = [1e3 * r["step_seconds"] for r in records if "step_seconds" in r]
    return statistics.median(times[1:])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--llmc", required=True)
    p.add_argument("--sherd", default="build/tools/sherd")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    a = p.parse_args()
    with tempfile.TemporaryDirectory(prefix="sherd-bench-") as folder:
        os.makedirs(os.path.dirname(os.path.join(folder, TOKENS)))
        write_checkpoint(os.path.join(folder, "gpt2_124M.bin"))
        write_tokens(os.path.join(folder, TOKENS % "train"), 400000)
        write_tokens(os.path.join(folder, TOKENS % "val"), 70000)
        llmc, sherd = [], []
        for turn in range(3):
            llmc.append(run_llmc(os.path.abspath(a.llmc), folder, a.threads))
            sherd.append(run_sherd(os.path.abspath(a.sherd), folder, a.threads, turn))
            print("turn %d: llm.c %.1f ms, sherd %.1f ms a step" % (turn + 1, llmc[-1], sherd[-1]), flush=True)
    x, y = statistics.median(llmc), statistics.median(sherd)
    print("tokens/s: llm.c %.0f, sherd %.0f, ratio %.2f" % (256e3 / x, 256e3 / y, x / y))


main()
