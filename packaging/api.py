#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# docs/api.md on standard output: the public headers as a page. A comment becomes text, what stands below it code; the
# order is that of the headers. Run in the source folder.

import re
import sys
from pathlib import Path

HEADERS = "base device comm ops model config data engine forecast ckpt".split()
DROP = re.compile(r'^(#ifndef SHERD_\w+_H|#define SHERD_\w+_H|#include .*|#ifdef __cplusplus|extern "C" \{|\}|#endif)$')


def blocks(text):
    """Runs of lines without an empty one between them, a comment or a pair of braces never cut."""
    block, depth, comment = [], 0, False
    for line in text.split("\n"):
        ends = not line.strip() or line.startswith("/*")
        if ends and depth == 0 and not comment:
            if block:
                yield block
            block = []
            if not line:
                continue
        block.append(line)
        bare = re.sub(r"/\*.*?\*/", "", line)
        comment = ("/*" in bare or comment) and "*/" not in bare
        if not comment:
            depth += bare.count("{") - bare.count("}")
    if block:
        yield block


def prose(comment):
    text = "\n".join(re.sub(r"^\s*(/\*+|\*/|\*)\s?", "", line).replace("*/", "").rstrip() for line in comment).strip("\n")
    return text.replace("<sherd/", "`sherd/").replace(".h>", ".h`")


def split_comment(block):
    if not block[0].startswith("/*"):
        return [], block
    end = next(i for i, line in enumerate(block) if "*/" in line)
    return block[: end + 1], block[end + 1 :]


def page(header):
    lines = Path(f"include/sherd/{header}.h").read_text().split("\n")
    text = "\n".join(line for line in lines if not DROP.match(line))
    out, first = [f"## sherd/{header}.h", ""], True
    for block in blocks(text):
        comment, code = split_comment(block)
        if first:
            comment = [line for line in comment if "SPDX" not in line]
            first = False
        if comment:
            out += [*prose(comment).strip().split("\n"), ""]
        if code:
            out += ["```c", *code, "```", ""]
    return out


def main():
    listed = {p.stem for p in Path("include/sherd").glob("*.h")} - {"sherd"}
    if listed != set(HEADERS):
        sys.exit(f"packaging/api.py lists other headers than include/sherd has: {sorted(listed ^ set(HEADERS))}")
    out = ["# The library", "",
           "Written by packaging/api.py from include/sherd; change it there. `#include <sherd/sherd.h>` is all of it; compile with",
           "`$(pkg-config --cflags --libs sherd)`. Beside this: [model.md](model.md), a model of your own, and [errors.md](errors.md).",
           ""]
    for header in HEADERS:
        out += page(header)
    print("\n".join(out).rstrip("\n"))


main()
