#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
"""Makes the tokenizers that tests use, small ones of each family, and what the `tokenizers` package does with texts.

Usage: gold_tokenizers.py make DIR         writes DIR/gpt2.json, llama3.json, qwen.json and cases.json
       gold_tokenizers.py check DIR SHERD  compares `sherd tokenize` with the package on many random texts
"""
import json
import random
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace("{1,3}", "")
KINDS = ["gpt2", "llama3", "qwen"]
CORPUS = ("The rank holds a shard of the unit, and the unit's gradient is reduced before the update. " * 3 +
          "don't we'll they've I'm 1234567 int main(void) { return 0; }\n\n\tfor each of them: http://example.org/a?b=1\n" +
          "Gr\u00f6\u00dfe na\u00efve caf\u00e9 \u65e5\u672c\u8a9e \u3053\u3093 \uc548\ub155 \u041f\u0440\u0438\u0432\u0435\u0442 \U0001f642 ") * 4
PIECES = ["'s", "'S", "'\u017f", "'ll", "'LL", "'Ve", "'", "''", " ", " ", "  ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u3000",
          "\u2028", "\x85", "a", "Z", "\u00e9", "e\u0301", "\u0301", "\u0323\u0302", "\ufb01", "\u212a", "\u2126", "\uac00",
          "\u1100\u1161\u11a8", "\u65e5", "\u672c", "\u306e", "1", "23", "4567", "\u00bd", "\u0663", "\u2167", "\u4e00", "!", "?!",
          "...", "\u2014", "\U0001f642", "\U0001f469\u200d\U0001f467", "\u200d", "\ufeff", "hello", "world", "don't", "unit", " the",
          "ing", "<|endoftext|>", "<|im_start|>", "<tool>", "<caf\u00e9>", "<cafe\u0301>", "<l>", "<r>", "<|begin_of_text|>",
          "<|end_of_text|>", "<|", "|>", "_", "#", "{", "}", "https://x.y/z?q=1", "\u0b92\u0bd7", "\u09c7\u09be", "\u1025\u102e",
          "\ufb1d", "\uf900", "\U0001d15e", "\u0958", "\u0f73", "\u0344", "\U0001d4b3", "\x7f", "\x02", "\u1e9b\u0323"]


def build(kind):
    t = Tokenizer(models.BPE(ignore_merges=kind == "llama3"))
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind == "gpt2")
    if kind == "gpt2":
        t.pre_tokenizer = level
    else:
        split = pre_tokenizers.Split(Regex(LLAMA3 if kind == "llama3" else QWEN), "isolated")
        t.pre_tokenizer = pre_tokenizers.Sequence([split, level])
    if kind == "qwen":
        t.normalizer = normalizers.NFC()
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator([CORPUS], trainers.BpeTrainer(
        vocab_size=360, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
        special_tokens=[] if kind == "llama3" else ["<|endoftext|>"]))
    if kind == "llama3":
        t.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>"])
        t.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|> $B",
                                          special_tokens=[("<|begin_of_text|>", t.token_to_id("<|begin_of_text|>"))])])
    if kind == "qwen":
        t.add_special_tokens(["<|im_start|>"])
        t.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("<caf\u00e9>", normalized=True),
                      AddedToken("<l>", lstrip=True, normalized=False), AddedToken("<r>", rstrip=True, normalized=False)])
    return t


def text(rng):
    if rng.random() < 0.8:
        return "".join(rng.choice(PIECES) for _ in range(rng.randrange(1, 25)))
    points = [rng.choice([rng.randrange(2, 0x300), rng.randrange(0x300, 0xD800), rng.randrange(0xE000, 0x20000)])
              for _ in range(20)]
    return "".join(map(chr, points))


def make(to):
    rng, cases = random.Random(7), {}
    for kind in KINDS:
        t = build(kind)
        (to / f"{kind}.json").write_text(json.dumps(json.loads(t.to_str()), separators=(",", ":")) + "\n")
        texts = PIECES + [text(rng) for _ in range(120)] + ["a" * 3000 + " " * 300 + "\n" * 40]
        cases[kind] = [[s, t.encode(s, add_special_tokens=False).ids] for s in texts]
    (to / "cases.json").write_text(json.dumps(cases, separators=(",", ":")).replace("]],", "]],\n") + "\n")


def read(folder):
    names = json.loads((folder / "tokens.json").read_text())["files"]
    ids = b"".join((folder / n["name"]).read_bytes()[1024:] for n in names)
    return list(struct.unpack(f"<{len(ids) // 2}H", ids))


def check(kind, tokenizer, sherd, work):
    rng, t = random.Random(11), Tokenizer.from_file(str(tokenizer))
    end = t.token_to_id("<|end_of_text|>" if kind == "llama3" else "<|endoftext|>")
    texts = [text(rng) for _ in range(4000)]
    lines = "".join(json.dumps({"n": i, "text": s}, ensure_ascii=bool(i % 2)) + "\n" for i, s in enumerate(texts))
    long = "".join(s + ("\n" if rng.random() < 0.3 else "") for s in (text(rng) for _ in range(40000)))
    (work / "lines").write_text(lines, encoding="utf-8")
    (work / "long").write_bytes(long.encode())
    for name, docs, extra in (("lines", texts, ["--field", "text"]), ("long", [long], [])):
        out = work / f"{kind}-{name}"
        subprocess.run([sherd, "tokenize", "--tokenizer", tokenizer, "-o", out, work / name, *extra], check=True,
                       stdout=subprocess.DEVNULL)
        want = []
        for ids in (t.encode(s).ids for s in docs):
            want += ids if ids[-1] == end else ids + [end]
        got = read(out)
        at = next((i for i, (a, b) in enumerate(zip(want, got)) if a != b), min(len(want), len(got)))
        assert want == got, f"{kind} {name}: token {at} of {len(want)}: {want[at:at + 8]}, sherd has {got[at:at + 8]}"
        print(f"{kind} {name}: {len(got)} tokens alike")


if __name__ == "__main__":
    folder = Path(sys.argv[2])
    if sys.argv[1] == "make":
        make(folder)
    else:
        with tempfile.TemporaryDirectory() as place:
            for k in KINDS:
                check(k, folder / f"{k}.json", sys.argv[3], Path(place))
