# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
"""Reads what bench/common.sh left of a run, and prints rows of a table; for the comparisons on GPUs.

Time of sherd: the median of step_seconds in metrics.jsonl after the steps to warm up; "exposed" is that of exposed_share,
of steps that have a line. Memory, in GiB of the fullest GPU:
"GPU" is what the driver says is in use at most, less what was in use before: weights, activations, and also the CUDA
context, NCCL and libraries; by nvidia-smi, five times a second. "own" is what the program itself accounts for.
"""
import json
import os
import re
import statistics

GIB = 2.0 ** 30
UNITS = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
ROW = "%-56s %10s %13s %9s %9s %9s"


def lines(*path):
    path = os.path.join(*path)
    if not os.path.exists(path):
        return []
    with open(path) as f:
        return [x for x in f.read().split("\n") if x.strip()]


def idle(out):
    return [int(x) for x in lines(out, "idle.txt")]


def first(out, name):
    """Seconds from the start of the command to the end of its first step."""
    text = lines(out, name + ".first")
    return float(text[0]) if text else 0


def gpu_memory(out, name):
    """nvidia-smi goes through the GPUs in turn, in MiB."""
    before = idle(out)
    seen = [int(x) for x in lines(out, name + ".used") if x.strip().isdigit()]
    return max((x - before[i % len(before)] for i, x in enumerate(seen)), default=0) / 1024 if before else 0


def sherd(out, name, warmup, tokens):
    """Of a run by sherd_train, with so many tokens a GPU and step; None if it has no step after those to warm up."""
    records = [r for r in map(json.loads, lines(out, name + ".jsonl")) if "step_seconds" in r][warmup:]
    if not records:
        return None
    ms = 1e3 * statistics.median(r["step_seconds"] for r in records)
    exposed = [r["exposed_share"] for r in records if r.get("exposed_share") is not None]
    said = re.search(r"memory of one rank: ([0-9.]+) ([kMGT]?B)", "\n".join(lines(out, name + ".log")))
    return {"ms": ms, "rate": tokens / ms * 1e3, "gpu": gpu_memory(out, name),
            "own": float(said[1]) * UNITS[said[2]] / GIB if said else 0, "first": first(out, name),
            "exposed": statistics.median(exposed) if exposed else None}


def forecast(out, name, stage):
    """The row of this stage in what `sherd plan --device --json` left in NAME; None without it."""
    text = "\n".join(lines(out, name))
    told = json.loads(text)["forecast"] if text else {"rows": []}
    return next((r for r in told["rows"] if r["stage"] == stage and r["recompute"] == told["recompute"]), None)


def peers(out, name, batch):
    """What bench/fsdp2.py said of this batch, one for each attention kernel; "error" is in those that failed."""
    before = idle(out)
    all_of_it = [json.loads(x) for x in lines(out, name + ".log") if x.startswith("{")]
    for p in (p for p in all_of_it if p.get("batch") == batch):
        p["name"] = "FSDP2, %s attention%s" % (
            p["attention"], "" if p["recompute"] == "none" else ", blocks recomputed")
        if "error" not in p:
            p.update(rate=p["tokens_per_second"], own=p["allocated"] / GIB, reserved=p["reserved"] / GIB,
                     gpu=p["used"] / GIB - min(before) / 1024 if before else 0)
        yield p


def show(x, form="%.2f"):
    return form % x if x else "-"


def ratio(x, y):
    return "%.3f" % (x / y) if x and y else "-"


def head():
    print(ROW % ("", "ms a step", "tokens/s/GPU", "GPU GiB", "own GiB", "reserved"))


def row(name, r):
    print(ROW % (name, "%.1f" % r["ms"], "%.0f" % r["rate"], show(r["gpu"]), show(r["own"]), show(r.get("reserved"))))


def ratios(name, ours, peer):
    print(ROW % (name, *(ratio(ours[k], peer[k]) for k in ("ms", "rate", "gpu", "own")), ""))


def text(name, words):
    print("%-56s %s" % (name, words))
