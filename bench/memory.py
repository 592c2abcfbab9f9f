#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
"""Measures the memory of a rank under every stage: a model of 59 million parameters trained for two steps on the
CPU with 1, 2 and 4 ranks; the peak resident memory of the fullest rank process beside what `sherd plan` says.

    bench/memory.py [--sherd build/tools/sherd]

"state" is what ZeRO shards: parameters, masters, optimizer state, gradients, and the buffers that units are gathered
into and reduced from. "peak" is the whole process: state, activations, and the program itself.
"""
import argparse
import json
import os
import subprocess
import tempfile

SETTINGS = {
    "model.family": "llama", "model.vocab": 8192, "model.width": 512, "model.layers": 12, "model.heads": 8,
    "model.mlp_width": 2048, "model.context": 32, "model.tied": "false", "batch.micro": 1, "batch.accum": 1,
    "batch.seq": 32, "schedule.warmup": 1, "train.steps": 2, "run.threads": 1, "data.format": "bytes",
}
STATE = ("param", "master", "state", "grad", "slot", "partial")


def arguments(extra):
    result = []
    for key, value in dict(SETTINGS, **extra).items():
        result += ["--set", "%s=%s" % (key, value)]
    return result


def plan(program, config, world):
    """Bytes of every region, for each of the four stages."""
    text = subprocess.run([program, "plan", config, "--ranks", str(world), "--json"] + arguments({}), check=True,
                          stdout=subprocess.PIPE).stdout
    return [stage["memory"] for stage in json.loads(text)["stages"]]


def peak(program, config, folder, stage, world):
    """Starts the ranks as a launcher would and returns the largest peak resident memory of one, in bytes."""
    extra = {"shard.stage": stage, "run.dir": os.path.join(folder, "run-%d-%d" % (stage, world)),
             "data.train": "[%s]" % os.path.join(folder, "text")}
    pids = []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank),
                              LOCAL_WORLD_SIZE=str(world), SHERD_JOB="memory-%d" % os.getppid())
            os.execv(program, [program, "train", config] + arguments(extra))
        pids.append(pid)
    largest = 0
    for pid in pids:
        _, status, usage = os.wait4(pid, 0)
        if status:
            raise SystemExit("stage %d, world %d: a rank ended with status %d" % (stage, world, status))
        largest = max(largest, 1024 * usage.ru_maxrss)
    return largest


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sherd", default="build/tools/sherd")
    a = p.parse_args()
    program = os.path.abspath(a.sherd)
    with tempfile.TemporaryDirectory(prefix="sherd-memory-") as folder:
        config = os.path.join(folder, "empty.yaml")
        open(config, "w").close()
        with open(os.path.join(folder, "text"), "w") as text:
            text.write("the quick brown fox jumps over the lazy dog. " * 200)
        print("MB of the fullest rank | planned state | planned in all | measured peak")
        for world in (1, 2, 4):
            for stage, memory in enumerate(plan(program, config, world)):
                state, total = sum(memory[k] for k in STATE), memory["total"]
                print("world %d stage %d        | %13.1f | %14.1f | %13.1f" %
                      (world, stage, state / 1e6, total / 1e6, peak(program, config, folder, stage, world) / 1e6),
                      flush=True)


main()
