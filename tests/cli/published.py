#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
"""Compares `sherd tokenize` with the `tokenizers` package, id by id, for tokenizers that others have published.

Usage: published.py SHERD FILE...
A FILE is a tokenizer.json; or GPT-2's encoder.json, beside its vocab.bpe; or Qwen's table qwen.tiktoken: of these two the
tokenizer.json is built first, with the expressions and settings that transformers has for them. A tokenizer that sherd
refuses is told with its reason. Ends with 1 if any id differs.
"""
import base64
import json
import random
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import gold_tokenizers as gold
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

HERE = Path(__file__).resolve().parents[2]
# First and last code points of scripts, each with letters, marks and digits of its own.
SCRIPTS = [(0x41, 0x7A), (0xC0, 0x24F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x52F), (0x530, 0x58F), (0x590, 0x5FF),
           (0x600, 0x6FF), (0x900, 0x97F), (0x980, 0x9FF), (0xB80, 0xBFF), (0xE00, 0xE7F), (0xF00, 0xFFF),
           (0x1000, 0x109F), (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1200, 0x137F), (0x1780, 0x17FF), (0x1E00, 0x1FFF),
           (0x2000, 0x206F), (0x2100, 0x214F), (0x2200, 0x22FF), (0x3000, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3),
           (0xFB00, 0xFDFF), (0xFF00, 0xFFEF), (0x10400, 0x1044F), (0x1D400, 0x1D7FF), (0x1F300, 0x1FAFF),
           (0x20000, 0x2A6DF)]


def letters(ranks):
    """Ranks of byte strings as the vocabulary and merges of a tokenizer.json: every way to cut a token in two known ones."""
    names = sorted(pre_tokenizers.ByteLevel.alphabet())
    own = [b for b in range(256) if 33 <= b <= 126 or (b >= 161 and b != 173)]
    name = {b: chr(b) for b in own}
    name.update(zip((b for b in range(256) if b not in own), (chr(256 + i) for i in range(256))))
    assert sorted(name.values()) == names
    spell = lambda token: "".join(name[b] for b in token)
    merges = []
    for token, rank in ranks.items():
        cuts = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
        merges += [(rank, ranks[a], ranks[b], spell(a), spell(b)) for a, b in cuts]
    return {spell(t): r for t, r in ranks.items()}, [m[3:] for m in sorted(merges)]


def build(path):
    """A tokenizer.json as it is, or built of an older form."""
    if path.name == "encoder.json":
        lines = (path.parent / "vocab.bpe").read_text(encoding="utf-8").split("\n")[1:]
        t = Tokenizer(models.BPE(json.loads(path.read_text()), [tuple(m.split(" ")) for m in lines if m]))
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        t.add_special_tokens(["<|endoftext|>"])
    elif path.suffix == ".tiktoken":
        pairs = (line.split() for line in path.read_bytes().splitlines())
        t = Tokenizer(models.BPE(*letters({base64.b64decode(p[0]): int(p[1]) for p in pairs if p})))
        t.normalizer = normalizers.NFC()
        split = pre_tokenizers.Split(Regex(gold.QWEN), "isolated")
        t.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
        t.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    else:
        return Tokenizer.from_file(str(path)), path
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    return t, None


def words(rng):
    """Words of a script or two, with the spaces and punctuation that text has."""
    first, last = rng.choice(SCRIPTS)
    out = ""
    for _ in range(rng.randrange(1, 30)):
        out += "".join(chr(rng.randrange(first, last + 1)) for _ in range(rng.randrange(1, 9)))
        out += rng.choice([" ", " ", " ", "  ", ", ", ". ", "\n", "\r\n\t", "", " 2026 ", "-"])
        if rng.random() < 0.1:
            first, last = rng.choice(SCRIPTS)
    return out


def texts(added):
    rng = random.Random(17)
    some = [gold.text(rng) for _ in range(1500)] + [words(rng) for _ in range(1500)]
    for _ in range(1000):  # tokens by their names, in the midst of text
        some.append(gold.text(rng) + rng.choice(added) + rng.choice([" ", "", "\n", "  "]) + rng.choice(added) + words(rng))
    for pattern in ("*.md", "docs/*.md", "runtime/*.c", "tools/*.py", "tests/cli/*.sh", "meson.build", "configs/*.yaml"):
        some += [f.read_text(encoding="utf-8") for f in sorted(HERE.glob(pattern))]
    return some


def read(folder, vocab):
    ids = b"".join((folder / f["name"]).read_bytes()[1024:] for f in json.loads((folder / "tokens.json").read_text())["files"])
    wide = vocab > 65536
    return list(struct.unpack(f"<{len(ids) // (4 if wide else 2)}{'i' if wide else 'H'}", ids))


def compare(path, sherd, work):
    t, file = build(path)
    if not file:
        file = work / "tokenizer.json"
        t.save(str(file))
    docs = texts([a.content for a in t.get_added_tokens_decoder().values()] or ["x"])
    lines, out = work / "lines", work / "out"
    lines.write_text("".join(json.dumps({"text": s}) + "\n" for s in docs))
    run = subprocess.run([sherd, "tokenize", "--tokenizer", file, "-o", out, lines, "--field", "text", "--end", "none"],
                         capture_output=True, text=True)
    name = f"{path.parent.name}/{path.name}"
    if "is not known here" in run.stderr:
        print(f"{name}: refused: {run.stderr.strip()}")
        return True
    assert run.returncode == 0, run.stderr
    vocab = json.loads((out / "tokens.json").read_text())["vocab"]
    want, got, at = [t.encode(s).ids for s in docs], read(out, vocab), 0
    for s, ids in zip(docs, want):
        if got[at:at + len(ids)] != ids:
            k = next((k for k, (a, b) in enumerate(zip(ids, got[at:])) if a != b), len(got) - at)
            print(f"{name}: token {k} of a text: {ids[k:k + 8]}, sherd has {got[at + k:at + k + 8]}; text {s[:300]!r}")
            return False
        at += len(ids)
    assert at == len(got), f"{name}: {len(got) - at} tokens too many"
    print(f"{name}: {at} tokens of {len(docs)} texts alike, vocabulary {vocab}")
    return True


if __name__ == "__main__":
    fine = True
    for file in sys.argv[2:]:
        with tempfile.TemporaryDirectory() as place:
            fine = compare(Path(file), sys.argv[1], Path(place)) and fine
    sys.exit(0 if fine else 1)
