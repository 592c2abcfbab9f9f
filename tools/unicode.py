#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
"""Writes data/unicode_tables.c: letters, numbers, and what composes to what (NFC).

The tables are those of the `tokenizers` package, whose classes are of a newer Unicode than its NFC, so that the two
always agree: it is asked about every code point. Combining classes are from `unicodedata2` (16 or later), for those
code points that the package's NFD moves. Usage: unicode.py | clang-format-14 > data/unicode_tables.c
"""
import unicodedata2
from tokenizers import Regex, normalizers, pre_tokenizers

POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
HANGUL = range(0xAC00, 0xD7A4)
nfd, nfc = normalizers.NFD().normalize_str, normalizers.NFC().normalize_str


def members(pattern):
    split, rest = pre_tokenizers.Split(Regex(pattern), "removed"), set()
    for at in range(0, len(POINTS), 4096):
        for text, _ in split.pre_tokenize_str("".join(map(chr, POINTS[at:at + 4096]))):
            rest.update(map(ord, text))
    return sorted(set(POINTS) - rest)


def ranges(points, of=lambda c: ()):
    out = []
    for c in points:
        if out and out[-1][1] == c - 1 and out[-1][2:] == list(of(c)):
            out[-1][1] = c
        else:
            out.append([c, c, *of(c)])
    return out


def moves(c):
    """Whether NFD puts c and a mark of another class into order: then its class is not 0."""
    return nfd("a" + chr(c) + "\u0334") == "a\u0334" + chr(c) or nfd("a\u0345" + chr(c)) == "a" + chr(c) + "\u0345"


def table(name, rows, help):
    flat = ", ".join(hex(x) if x > 255 else str(x) for row in rows for x in row)
    print(f"/* {help} */\nconst uint32_t unicode_{name}[] = {{ {flat} }};")
    print(f"const int unicode_{name}_rows = {len(rows)};\n")


def step(c):
    """One step of decomposition: the package gives the last one only."""
    full = [ord(x) for x in nfd(chr(c))]
    if len(full) == 1:
        return full
    one = [int(x, 16) for x in unicodedata2.decomposition(chr(c)).split()]
    assert [ord(x) for x in nfd("".join(map(chr, one)))] == full, hex(c)
    return one


single, pair = [], []
for c in POINTS:
    if c not in HANGUL and nfd(chr(c)) != chr(c):
        one = step(c)
        (single if len(one) == 1 else pair).append((c, *one))
composed = sorted((a, b, i) for i, (c, a, b) in enumerate(pair) if nfc(chr(c)) == chr(c))
marks = [c for c in POINTS if unicodedata2.combining(chr(c)) and moves(c)]

print("""/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The sherd authors
 *
 * Written by tools/unicode.py: facts of Unicode, as the `tokenizers` package knows them. All are sorted.
 */
#include "data/unicode.h"
""")
table("letters", ranges(members(r"\p{L}")), "First and last of every run of letters (L).")
table("numbers", ranges(members(r"\p{N}")), "The same of numbers (N).")
table("marks", ranges(marks, lambda c: (unicodedata2.combining(chr(c)),)), "First, last, combining class.")
table("single", single, "A code point, and the one that takes its place.")
table("pair", pair, "A code point, and the two that it is made of.")
table("composed", [(i,) for _, _, i in composed], "Rows of the table above that compose, by what they are made of.")
