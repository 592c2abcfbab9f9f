# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
"""Called by transformers.sh with the program and the folder of golden models; works in the current folder."""
import glob
import json
import struct
import subprocess
import sys

import torch
import transformers as tf
from safetensors import safe_open

SHERD, MODELS = sys.argv[1:3]
STEPS, SEQ, GLOBAL, LR = 5, 8, 6, 1e-3
TOKENS = [(i * i + i // 7) % 61 for i in range(400)]
CONFIG = f"""
batch: {{seq: {SEQ}, global: {GLOBAL}, micro: 1}}
train: {{steps: {STEPS}}}
optim: {{lr: {LR}, weight_decay: 0.1, clip: 1.0, eps: 1e-6}}
schedule: {{kind: constant}}
data: {{train: [tokens], format: u16, shuffle: false}}
"""


def sherd(*args):
    result = subprocess.run([SHERD, *args], capture_output=True, text=True)
    assert result.returncode == 0, (args, result.stdout, result.stderr)
    return result


def batch(step):
    rows = [(step * GLOBAL + i) * SEQ for i in range(GLOBAL)]
    return (torch.tensor([TOKENS[r:r + SEQ] for r in rows]), torch.tensor([TOKENS[r + 1:r + SEQ + 1] for r in rows]))


def train(model):
    decay = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    optimizer, losses = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.95), eps=1e-6), []
    for step in range(STEPS):
        tokens, targets = batch(step)
        loss = torch.nn.functional.cross_entropy(model(tokens).logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def load(folder, **more):
    model, info = tf.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, attn_implementation="eager",
                                                          **more)
    assert not info["unexpected_keys"] and not info["mismatched_keys"], info
    assert set(info["missing_keys"]) <= {"lm_head.weight"}, info
    return model


def check(name, stage, ranks):
    source, run = f"{MODELS}/{name}", f"{name}-run"
    sherd("train", "c.yaml", "--ranks", str(ranks), "--set", f"shard.stage={stage}", "--set", f"run.dir={run}", "--set",
          f"model.from={source}")
    model = load(source, dtype=torch.float64).train()
    for p in model.modules():
        if isinstance(p, torch.nn.Dropout):
            p.p = 0.0
    want = train(model)
    lines = [json.loads(line) for line in open(f"{run}/metrics.jsonl")]
    got = [line["loss"] for line in lines if "loss" in line]
    off = max(abs(a - b) / b for a, b in zip(got, want, strict=True))
    assert off < 1e-5, (name, got, want)
    sherd("merge", run, f"{name}-32", "--dtype", "f32", "--shard-size", "30kB")
    merged = load(f"{name}-32", dtype=torch.float64)
    state = model.state_dict()
    worst = max((merged.state_dict()[k] - v).abs().max().item() for k, v in state.items())
    assert worst < 1e-5, (name, worst)
    tokens, _ = batch(STEPS)
    with torch.no_grad():
        a, b = model.eval()(tokens).logits, merged.eval()(tokens).logits
    error = ((a - b).norm() / a.norm()).item()
    assert error < 1e-4, (name, error)
    # in half precision: the dtype stands in config.json, values are those of a rounded model
    sherd("merge", run, f"{name}-16", "--dtype", "bf16")
    half = load(f"{name}-16")
    assert half.dtype == torch.bfloat16, half.dtype
    for k, v in load(f"{name}-32").to(torch.bfloat16).state_dict().items():
        assert torch.equal(v, half.state_dict()[k]), (name, k)
    # what transformers saves of it comes back
    half.save_pretrained(f"{name}-again")
    result = sherd("diff", f"{name}-16", f"{name}-again", "--json")
    assert json.loads(result.stdout)["equal"]
    # every file of a checkpoint opens in the safetensors library
    for path in glob.glob(f"{run}/step-*/*.safetensors"):
        with safe_open(path, "pt") as f:
            assert f.metadata()["format"] == "pt" and all(f.get_tensor(k).isfinite().all() for k in f.keys())
    print(f"{name}: losses within {off:.1e}, weights within {worst:.1e}, logits within {error:.1e}")


open("tokens", "wb").write(b"".join(struct.pack("<H", t) for t in TOKENS))
open("c.yaml", "w").write(CONFIG)
for number, model_name in enumerate(["gpt2", "llama", "qwen2", "qwen3"]):
    check(model_name, stage=number, ranks=1 + number % 3)
