#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
"""The table of bench/compare_fsdp2.sh, from the logs it left: fsdp2_table.py DIR WARMUP WORKS REDUCES [--first] [--trial]"""
import sys

import beside

SEQ = {"1b": 2048, "8b": 4096}


def peers(out, reduce, shape, batch):
    """Of each attention kernel; what failed is named and left out."""
    good = []
    for p in beside.peers(out, "fsdp2-%s-%s" % (reduce, shape), batch):
        if "error" in p:
            beside.text("  " + p["name"], "failed: " + p["error"])
            continue
        beside.row("  " + p["name"], p)
        good.append(p)
    return good


def work_rows(out, warmup, name, work, reduce, trial):
    """The rows of one work; false if a side of it has none."""
    shape, batch, settings = (work + "::").split(":")[:3]
    batch, seq = int(batch), 64 if trial else SEQ[shape]
    beside.text("%s, %d x %d%s" % (shape, batch, seq, ", reduced in bf16" if reduce == "bf16" else ""), "")
    ours = beside.sherd(out, name, warmup, batch * seq)
    if ours:
        beside.row("  sherd" + (" " + settings if settings else ""), ours)
    good = peers(out, reduce, shape, batch)
    if ours and good:
        beside.ratios("  sherd / FSDP2", ours, max(good, key=lambda p: p["rate"]))
    return bool(ours and good)


def first_rows(out, works):
    cold = beside.first(out, "sherd-cold"), beside.first(out, "fsdp2-cold")
    warm = beside.first(out, "sherd-f32-0"), beside.first(out, "fsdp2-f32-" + works[0].split(":")[0])
    print("\nseconds to the end of the first step, %s%24s%9s%16s" % (works[0], "sherd", "FSDP2", "FSDP2 / sherd"))
    for name, (ours, peer) in (("cold", cold), ("warm", warm)):
        print("%-46s%18s%9s%16s" % ("  " + name, beside.show(ours), beside.show(peer), beside.ratio(peer, ours)))


def main():
    out, warmup, works, reduces = sys.argv[1], int(sys.argv[2]), sys.argv[3].split(), sys.argv[4].split()
    trial = "--trial" in sys.argv
    whole = True
    beside.head()
    for reduce in reduces:
        for i, work in enumerate(works):
            whole &= work_rows(out, warmup, "sherd-%s-%d" % (reduce, i), work, reduce, trial)
    if "--first" in sys.argv:
        first_rows(out, works)
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
