#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
"""The table of bench/scaling.sh, from what it left in its folder: scaling_table.py DIR WARMUP GPUS. Exit status 1 if a work has no row."""
import collections
import json
import sys

import beside

COLUMNS = ("work", "GPUs", "ms a step", "tokens/s a GPU", "efficiency", "exposed", "GPU, GiB", "own, GiB",
           "forecast, ms", "off", "by own rates, ms", "off", "planned, GiB")
Work = collections.namedtuple("Work", "part name shape ranks stage sequences seq")


def works(out):
    for line in beside.lines(out, "works.txt"):
        part, name, shape, *numbers = line.split()
        yield Work(part, name, shape, *map(int, numbers))


def row(*cells):
    print("| " + " | ".join(str(c) for c in cells) + " |")


def label(w):
    if w.part == "strong":
        return "%s, strong, %d x %d in all" % (w.shape, w.sequences, w.seq)
    what = "weak" if w.part == "weak" else "stage %d" % w.stage
    return "%s, %s, %d x %d" % (w.shape, what, w.sequences // w.ranks, w.seq)


def off(forecast, ms):
    return ("%.1f" % forecast, "%+.1f %%" % (100 * (forecast / ms - 1))) if forecast else ("-", "-")


def work_row(out, w, ours, base):
    plans = [beside.forecast(out, "%s.plan-%s" % (w.name, which), w.stage) for which in ("shipped", "own")]
    told = [x for p in plans for x in off(p and 1e3 * p["step_seconds"], ours["ms"])]
    planned = next((p["memory"] / beside.GIB for p in plans if p), 0)
    row(label(w), w.ranks, "%.1f" % ours["ms"], "{:,.0f}".format(ours["rate"]),
        "%.1f %%" % (100 * ours["rate"] / base) if base else "-",
        "-" if ours["exposed"] is None else "%.1f %%" % (100 * ours["exposed"]),
        beside.show(ours["gpu"]), beside.show(ours["own"]), *told, beside.show(planned))


def peer_rows(out, shape, batch, seq, gpus, ours):
    """FSDP2 on all GPUs, and how many times as fast, and as full, the run of sherd is."""
    good = []
    for p in beside.peers(out, "fsdp2-f32-" + shape, batch):
        name = "%s, %s, %d x %d" % (shape, p["name"], batch, seq)
        if "error" in p:
            row(name, gpus, "failed: " + p["error"], *[""] * 10)
            continue
        row(name, gpus, "%.1f" % p["ms"], "{:,.0f}".format(p["rate"]), "", "", beside.show(p["gpu"]),
            beside.show(p["own"]), *[""] * 5)
        good.append(p)
    if good and ours:
        best = max(good, key=lambda p: p["rate"])
        row("sherd / FSDP2", "", *(beside.ratio(ours[k], best[k]) for k in ("ms", "rate")), "", "",
            *(beside.ratio(ours[k], best[k]) for k in ("gpu", "own")), *[""] * 5)


def bandwidth(out, gpus):
    text = "\n".join(beside.lines(out, "bench.log"))
    try:
        told = json.loads(text)["collectives"] if text else []
    except ValueError:
        return
    for c in told:
        best = c["results"][-1]
        print("%s, %d ranks, %d bytes: %.1f GB/s busbw, in place %.1f; %d wrong values" % (
            c["name"], gpus, best["size"], best["out_of_place"]["bus_bw"], best["in_place"]["bus_bw"],
            c["out_of_bounds"]["count"]))


def main():
    out, warmup, gpus = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    first = 2 if gpus > 2 else 1
    asked = list(works(out))
    ours = {w.name: beside.sherd(out, w.name, warmup, w.sequences // w.ranks * w.seq) for w in asked}
    base = {w.part: ours[w.name]["rate"] for w in asked if w.ranks == first and ours[w.name]}
    row(*COLUMNS)
    row(*["---"] * len(COLUMNS))
    for w in asked:
        if ours[w.name]:
            work_row(out, w, ours[w.name], base.get(w.part))
        else:
            row(label(w), w.ranks, "failed", *[""] * 10)
    for shape, batch in ("1b", 8), ("8b", 2):
        w = next((w for w in asked if (w.shape, w.ranks, w.stage, w.sequences) == (shape, gpus, 3, batch * gpus)), None)
        if w:
            peer_rows(out, shape, batch, w.seq, gpus, ours[w.name])
    bandwidth(out, gpus)
    return 0 if all(ours.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
