#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
"""Times a Llama in the shape of configs/llama-1b.yaml or llama-8b.yaml under PyTorch's FSDP2, set up as well as it can be.

    torchrun --nproc-per-node 2 bench/fsdp2.py [--shape 1b] [--batch 8 2] [--attention cudnn flash]

fully_shard on every block (prefetching as it does by itself; the head stays gathered between forward and backward),
torch.compile on every block and on the loss with fixed shapes, weights and activations bf16, gradients reduced in f32
(--reduce bf16: in bf16), masters f32, fused AdamW, clipping at 1.0. Nothing is recomputed; where that needs more memory
than there is, every block is (--recompute none or block: only that). Random tokens, other ones in each step, already on
the GPU. The time of a step is taken between CUDA events, without stopping the host; the median of 20 steps after 5.

Rank 0 prints one line of JSON for each batch and attention kernel: "ms", "tokens_per_second" of one GPU, and, of the
fullest rank, "allocated" and "reserved" (peaks of PyTorch's allocator) and "used" (of the whole GPU, at the end; with
the context, NCCL and libraries), in bytes. A combination that runs out of memory has "error" instead. The line
{"event": "first step"} comes when the very first step has ended on the GPU.

--trial runs a small shape on the CPU with gloo, uncompiled, to try the script itself; its figures mean nothing.
"""
import argparse
import datetime
import gc
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

SHAPES = {
    "1b": dict(vocab=32000, width=2048, layers=22, heads=32, kv_heads=4, mlp_width=5632, seq=2048, theta=1e4),
    "8b": dict(vocab=128256, width=4096, layers=32, heads=32, kv_heads=8, mlp_width=14336, seq=4096, theta=5e5),
}
TRIAL = dict(vocab=512, width=64, layers=2, heads=4, kv_heads=2, mlp_width=160, seq=64)
NORM_EPS = 1e-5


class Block(nn.Module):
    def __init__(self, m, grouped):
        super().__init__()
        width, self.heads, self.kv_heads, self.grouped = m["width"], m["heads"], m["kv_heads"], grouped
        self.size = width // self.heads
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=NORM_EPS), nn.RMSNorm(width, eps=NORM_EPS)
        self.q = nn.Linear(width, self.heads * self.size, bias=False)
        self.k = nn.Linear(width, self.kv_heads * self.size, bias=False)
        self.v = nn.Linear(width, self.kv_heads * self.size, bias=False)
        self.o = nn.Linear(self.heads * self.size, width, bias=False)
        self.gate = nn.Linear(width, m["mlp_width"], bias=False)
        self.up = nn.Linear(width, m["mlp_width"], bias=False)
        self.down = nn.Linear(m["mlp_width"], width, bias=False)

    def rotate(self, x, cosine, sine):
        low, high = x.float().chunk(2, dim=-1)
        return torch.cat((low * cosine - high * sine, high * cosine + low * sine), dim=-1).to(x.dtype)

    def forward(self, x, cosine, sine):
        b, t, _ = x.shape
        n = self.norm1(x)
        q = self.rotate(self.q(n).view(b, t, self.heads, self.size).transpose(1, 2), cosine, sine)
        k = self.rotate(self.k(n).view(b, t, self.kv_heads, self.size).transpose(1, 2), cosine, sine)
        v = self.v(n).view(b, t, self.kv_heads, self.size).transpose(1, 2)
        if not self.grouped:
            k, v = (y.repeat_interleave(self.heads // self.kv_heads, dim=1) for y in (k, v))
        att = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.grouped)
        x = x + self.o(att.transpose(1, 2).reshape(b, t, -1))
        n = self.norm2(x)
        return x + self.down(F.silu(self.gate(n)) * self.up(n))


class Llama(nn.Module):
    def __init__(self, m, grouped):
        super().__init__()
        self.m = m
        self.embed = nn.Embedding(m["vocab"], m["width"])
        self.blocks = nn.ModuleList(Block(m, grouped) for _ in range(m["layers"]))
        self.norm = nn.RMSNorm(m["width"], eps=NORM_EPS)
        self.head = nn.Linear(m["width"], m["vocab"], bias=False)

    def initialize(self, device):
        for p in self.parameters():
            nn.init.normal_(p, std=0.02) if p.dim() > 1 else nn.init.ones_(p)
        pairs = self.m["width"] // self.m["heads"] // 2
        frequency = self.m["theta"] ** (-torch.arange(pairs, dtype=torch.float32, device=device) / pairs)
        angle = torch.arange(self.m["seq"], dtype=torch.float32, device=device)[:, None] * frequency
        self.cosine, self.sine = angle.cos(), angle.sin()

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, self.cosine, self.sine)
        return self.head(self.norm(x))


def loss_of(logits, targets):
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def choose_attention(m, kernel, device):
    """Leaves only this kernel; true if it takes fewer heads of keys and values than of queries as they are."""
    torch.backends.cuda.enable_cudnn_sdp(kernel == "cudnn")
    torch.backends.cuda.enable_flash_sdp(kernel == "flash")
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_math_sdp(device.type == "cpu")
    size = m["width"] // m["heads"]
    q = torch.zeros(1, m["heads"], 128, size, dtype=torch.bfloat16, device=device, requires_grad=True)
    k = torch.zeros(1, m["kv_heads"], 128, size, dtype=torch.bfloat16, device=device, requires_grad=True)
    try:
        F.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True).sum().backward()
        return True
    except RuntimeError:
        return False


def build(a, m, grouped, recompute, device):
    with torch.device("meta"):
        model = Llama(m, grouped)
    # the residual stream is bf16 from the embedding on; the sines are to stay float
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, cast_forward_inputs=False,
                                  reduce_dtype=torch.float32 if a.reduce == "f32" else torch.bfloat16)
    if recompute == "block":
        for i, block in enumerate(model.blocks):
            model.blocks[i] = checkpoint_wrapper(block, preserve_rng_state=False)
    for block in model.blocks:
        if not a.trial:
            block.compile(dynamic=False)
        fully_shard(block, mp_policy=policy)
    fully_shard(model.embed, mp_policy=policy)
    fully_shard([model.norm, model.head], mp_policy=policy, reshard_after_forward=False)
    fully_shard(model, mp_policy=policy)
    model.to_empty(device=device)
    model.initialize(device)
    return model


class Clock:
    """Times of steps on the GPU, read when all are done."""

    def __init__(self, device):
        self.cuda, self.marks = device.type == "cuda", []

    def mark(self):
        if self.cuda:
            self.marks.append(torch.cuda.Event(enable_timing=True))
            self.marks[-1].record()
        else:
            self.marks.append(time.perf_counter())

    def milliseconds(self):
        if self.cuda:
            torch.cuda.synchronize()
            return [x.elapsed_time(y) for x, y in zip(self.marks, self.marks[1:])]
        return [1e3 * (y - x) for x, y in zip(self.marks, self.marks[1:])]


def measure(a, m, batch, kernel, recompute, device, first):
    grouped = choose_attention(m, kernel, device)
    model = build(a, m, grouped, recompute, device)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
                                  lr=4e-4, betas=(0.9, 0.95), eps=1e-8, fused=True)
    loss_function = loss_of if a.trial else torch.compile(loss_of, dynamic=False)
    tokens = torch.randint(m["vocab"], (a.warmup + a.steps, batch, m["seq"] + 1), device=device)
    inputs, targets = tokens[:, :, :-1].contiguous(), tokens[:, :, 1:].contiguous()
    del tokens
    clock = Clock(device)
    for step in range(a.warmup + a.steps):
        if step == a.warmup:
            clock.mark()
        loss = loss_function(model(inputs[step]), targets[step])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if first and step == 0:
            loss.item()
            if device.type == "cuda":
                torch.cuda.synchronize()
            say({"event": "first step"})
        if step >= a.warmup:
            clock.mark()
    ms = statistics.median(clock.milliseconds())
    memory = torch.zeros(3, dtype=torch.int64, device=device)
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info()
        memory += torch.tensor([torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), total - free],
                               device=device)
    times = torch.tensor(ms, dtype=torch.float64, device=device)
    dist.all_reduce(memory, dist.ReduceOp.MAX)
    dist.all_reduce(times, dist.ReduceOp.MAX)
    allocated, reserved, used = memory.tolist()
    return {"ms": times.item(), "tokens_per_second": batch * m["seq"] / times.item() * 1e3, "allocated": allocated,
            "reserved": reserved, "used": used, "grouped": grouped, "loss": loss.item()}


def say(record):
    if dist.get_rank() == 0:
        print(json.dumps(record), flush=True)


def attempt(a, m, batch, kernel, recompute, device, first):
    """Says how it went; false if memory was short."""
    gc.collect()
    torch.compiler.reset()
    if not a.trial:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(1 + dist.get_rank())
    try:
        result = measure(a, m, batch, kernel, recompute, device, first)
    except torch.cuda.OutOfMemoryError as error:
        result = {"error": str(error).split("\n")[0]}
    say(dict({"shape": a.shape, "batch": batch, "attention": kernel, "reduce": a.reduce, "recompute": recompute,
              "torch": torch.__version__}, **result))
    return "error" not in result


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--shape", default="1b", choices=SHAPES)
    p.add_argument("--batch", type=int, nargs="+", default=[8, 2], help="sequences of a GPU")
    p.add_argument("--attention", nargs="+", default=["cudnn", "flash"], choices=("cudnn", "flash"))
    p.add_argument("--reduce", default="f32", choices=("f32", "bf16"), help="type in which gradients are reduced")
    p.add_argument("--recompute", nargs="+", default=["none", "block"], choices=("none", "block"),
                   help="in this order, until one has memory enough")
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--warmup", type=int, default=5)
    p.add_argument("--trial", action="store_true")
    a = p.parse_args()
    device = torch.device("cpu")
    if not a.trial:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    # a rank that alone is out of memory leaves the others waiting: not for ever
    dist.init_process_group("gloo" if a.trial else "nccl", device_id=None if a.trial else device,
                            timeout=datetime.timedelta(seconds=180))
    m = dict(SHAPES[a.shape], **(TRIAL if a.trial else {}))
    first = True
    for batch in a.batch:
        for kernel in a.attention:
            for recompute in a.recompute:
                good = attempt(a, m, batch, kernel, recompute, device, first)
                first = False
                if good:
                    break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
