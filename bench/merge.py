#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
"""Merging sharded weights into safetensors or one file: sherd, DeepSpeed's zero_to_fp32 and torch's DCP.

usage: bench/merge.py BUILD [--gb 4] [--ranks 4] [--turns 3] [--dir FOLDER] [--only NAME]...

Every program gets the same number of f32 weights from the same number of ranks, written here in its own format and
without moments, so that nobody reads what it does not need; all write f32. Each runs in a process of its own after the
files have left the page cache; its time runs until everything it wrote is on the disk. Peak memory is the largest
resident size of the process. sherd takes turns with two copies of the same checkpoint, cp and sync and dd past the
page cache; its share of the disk's rate is that of the faster copy in the same turn, the median of the turns counts.
The others run once. DeepSpeed is left out where it cannot be imported, torch too.
"""
import argparse
import glob
import os
import shutil
import statistics
import subprocess
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("build")
parser.add_argument("--gb", type=float, default=4)
parser.add_argument("--ranks", type=int, default=4)
parser.add_argument("--turns", type=int, default=3)
parser.add_argument("--dir", default="/tmp/sherd-bench-merge")
parser.add_argument("--only", action="append", default=[])
args = parser.parse_args()

MAKE_DEEPSPEED = """
import sys, torch
from collections import OrderedDict
folder, n, ranks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
import os
tag = f"{folder}/global_step1"
os.makedirs(tag)
open(f"{folder}/latest", "w").write("global_step1")
width, rows = 4096, 14336
count = max(1, n // (width * rows))
shapes = OrderedDict((f"model.layers.{i}.mlp.up_proj.weight", torch.Size([rows, width])) for i in range(count))
part = torch.randn(width * rows // ranks)
for r in range(ranks):
    flat = part.repeat(count)
    torch.save({"module": {}, "buffer_names": [], "param_shapes": [shapes], "shared_params": {}, "frozen_param_shapes": None,
                "frozen_param_fragments": None, "ds_version": "0.16.0", "dp_world_size": ranks},
               f"{tag}/zero_pp_rank_{r}_mp_rank_00_model_states.pt")
    torch.save({"optimizer_state_dict": {"zero_stage": 3, "partition_count": ranks, "fp32_flat_groups": [flat],
                                         "optimizer_state_dict": {"state": {}}}},
               f"{tag}/zero_pp_rank_{r}_mp_rank_00_optim_states.pt")
"""
RUN_DEEPSPEED = """
import sys
from deepspeed.utils.zero_to_fp32 import convert_zero_checkpoint_to_fp32_state_dict as merge
merge(sys.argv[1], sys.argv[2], safe_serialization=True)
"""
# One file for each rank, as a run of that many ranks writes it.
MAKE_DCP = """
import sys, os, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
folder, n, ranks, rank = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29531", RANK=str(rank), WORLD_SIZE=str(ranks))
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (ranks,))
width, rows = 4096, 14336
part = torch.randn(rows // ranks, width)
state = {f"model.layers.{i}.mlp.up_proj.weight": DTensor.from_local(part, mesh, [Shard(0)])
         for i in range(max(1, n // (width * rows)))}
dcp.save(state, checkpoint_id=folder)
dist.destroy_process_group()
"""
RUN_DCP = """
import sys
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
dcp_to_torch_save(sys.argv[1], sys.argv[2])
"""


def drop(folder):
    subprocess.run(["sync"], check=True)
    for path in glob.glob(f"{folder}/**/*", recursive=True):
        if os.path.isfile(path):
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def size(folder):
    return sum(os.path.getsize(p) for p in glob.glob(f"{folder}/**/*", recursive=True) if os.path.isfile(p))


def measure(command):
    """Seconds until all is on the disk, and peak resident bytes."""
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(output.decode()[-2000:])
    subprocess.run(["sync"], check=True)
    return time.monotonic() - start, usage.ru_maxrss * 1024


def python(code, *more):
    return [sys.executable, "-c", code, *map(str, more)]


def report(name, seconds, memory, read):
    print(f"{name:24} {seconds:8.1f} s {read / seconds / 1e9:8.2f} GB/s {memory / 1e6:10.0f} MB", flush=True)


def make(name, source, n):
    if name == "sherd":
        subprocess.run([f"{args.build}/bench/make_ckpt", source, str(args.gb), str(args.ranks)], check=True,
                       stderr=subprocess.DEVNULL)
    elif name == "zero_to_fp32":
        subprocess.run(python(MAKE_DEEPSPEED, source, n, args.ranks), check=True)
    else:
        ranks = [subprocess.Popen(python(MAKE_DCP, source, n, args.ranks, r)) for r in range(args.ranks)]
        assert all(p.wait() == 0 for p in ranks)


def command(name, source, target):
    if name == "sherd":
        return [f"{args.build}/tools/sherd", "merge", source, target, "--dtype", "f32"]
    return python(RUN_DEEPSPEED if name == "zero_to_fp32" else RUN_DCP, source, target)


def copy(source, target):
    """The disk's own rate: the seconds of the better of two ways."""
    best = float("inf")
    files = [p for p in glob.glob(f"{source}/**/*", recursive=True) if os.path.isfile(p)]
    direct = "; ".join(f"dd if={p} of={target}/{i} bs=16M iflag=direct oflag=direct status=none"
                       for i, p in enumerate(files))
    for name, text in (("cp", f"cp -r {source}/. {target}"), ("dd, direct", direct)):
        shutil.rmtree(target, ignore_errors=True)
        os.makedirs(target)
        drop(source)
        seconds, memory = measure(["sh", "-c", text])
        report(name, seconds, memory, size(source))
        best = min(best, seconds)
    remove(target)
    return best


def remove(path):
    if os.path.isdir(path):
        shutil.rmtree(path)
    elif os.path.exists(path):
        os.remove(path)


def run(name):
    source, target = f"{args.dir}/source", f"{args.dir}/target"
    remove(source)
    remove(target)
    os.makedirs(args.dir, exist_ok=True)
    make(name, source, int(args.gb * 1e9 / 4))
    taken, shares, read = [], [], size(source)
    for _ in range(args.turns if name == "sherd" else 1):
        plain = copy(source, target) if name == "sherd" else None
        drop(source)
        taken.append(measure(command(name, source, target)))
        report(name, *taken[-1], read)
        if plain:
            shares.append(100 * plain / taken[-1][0])
        remove(target)
    shutil.rmtree(args.dir)
    seconds, memory = statistics.median(t for t, _ in taken), max(m for _, m in taken)
    if shares:
        print(f"{name}: {statistics.median(shares):.1f} % of the faster copy's rate ({min(shares):.1f} to {max(shares):.1f})")
    return seconds, memory


ours = None
for rival, module in (("sherd", None), ("zero_to_fp32", "deepspeed"), ("dcp_to_torch_save", "torch")):
    if args.only and rival not in args.only:
        continue
    if module and subprocess.run(python(f"import {module}"), capture_output=True).returncode:
        print(f"{rival}: {module} cannot be imported, left out")
        continue
    seconds, memory = run(rival)
    if rival == "sherd":
        ours = seconds, memory
    elif ours:
        print(f"{rival}: {seconds / ours[0]:.1f} times the time of sherd, {memory / ours[1]:.1f} times the memory")
