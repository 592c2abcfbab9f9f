#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
"""Loss curves of sherd and PyTorch from the same initial weights on the same batches.

    tests/gpu/curves.py --sherd build/tools/sherd --dtype f32 [--ranks 2]            20 steps
    tests/gpu/curves.py --sherd build/tools/sherd --dtype bf16 [--ranks 2]           200 steps
    tests/gpu/curves.py --sherd build/tools/sherd --device cpu --model tiny --dtype f32

1. sherd trains one step at a rate of 0 and merges the checkpoint in f32: the initial weights.
2. PyTorch loads them into the Llama written below and trains with AdamW: betas, eps, decay of matrices only, clipping
   and schedule as in the settings. It reads the token file that sherd reads; with data.shuffle=false sample j of step s
   is window s * batch + j. Always one process, whatever --ranks says.
3. sherd trains with the same settings; its losses come from metrics.jsonl.

f32: TF32 is off on both sides. First the gradients of step 1, tensor by tensor (sherd takes one step of plain SGD at a
rate so large that the new weights are the gradient): distances relative to the 2-norm. Then the losses. PyTorch runs
twice with its plain attention: "math" with the batch whole, "pieces" with its sequences one by one, so that products have
other shapes and sums another order; how far these two part is the yardstick, printed beside each figure. Bounds: for every tensor sherd to torch <= the
larger of 1e-5 and twice torch to torch; at every step |sherd - torch| <= 1e-5 * torch.
The rate rises over --warmup steps (100), as at the start of a real training: Adam divides by the root of squares that are
tiny at first, which makes much of last bits. With --warmup 2 the yardstick says how far PyTorch's own runs part then.
bf16: PyTorch keeps float masters and casts them to bf16 for each step, activations are bf16, norms, rotary positions
and the loss are float inside: as sherd does. It runs twice, with two attention kernels, which shows how far two correct
runs part. Every curve is smoothed (mean of the last 10 steps); the distance of two curves is the mean absolute
difference over the last 50 steps. Bound: sherd's distance to each PyTorch run <= max(2 * distance of the two
PyTorch runs, 0.01). All three distances are printed.

Tokens are made here from a seed: the classes of the last two tokens select eight likely followers, one token in ten is
any. Prints a table and exits with 1 if the bound is broken. Needs torch, numpy and safetensors; no network.
"""
import argparse
import glob
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time

import numpy
import safetensors.torch
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

# batch, seq: sequences of a step over all ranks, and their tokens
MODELS = {
    "100m": dict(vocab=32000, width=768, layers=12, heads=12, kv_heads=4, mlp_width=2048, batch=8, seq=512, lr=6e-4),
    "tiny": dict(vocab=512, width=64, layers=2, heads=4, kv_heads=2, mlp_width=160, batch=8, seq=64, lr=3e-3),
}
BETA1, BETA2, EPS, DECAY, CLIP, MIN_LR = 0.9, 0.95, 1e-8, 0.1, 1.0, 0.1
NORM_EPS, THETA = 1e-5, 10000.0
F32_BOUND, BF16_BOUND, SMOOTH, LAST = 1e-5, 0.01, 10, 50
STRIDE = 524288.0
KERNELS = {"math": SDPBackend.MATH, "flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


def write_tokens(path, vocab, count, lanes=64, classes=16):
    rng = numpy.random.default_rng(1)
    followers = rng.integers(0, vocab, (classes, classes, 8))
    length = -(-count // lanes)
    choice = numpy.minimum(rng.geometric(0.4, (length, lanes)) - 1, 7)
    other, is_other = rng.integers(0, vocab, (length, lanes)), rng.random((length, lanes)) < 0.1
    out = numpy.empty((length, lanes), dtype=numpy.uint16)
    a, b = other[0], other[-1]
    for i in range(length):
        a, b = b, numpy.where(is_other[i], other[i], followers[a % classes, b % classes, choice[i]])
        out[i] = b
    out.T.reshape(-1)[:count].tofile(path)


# ---- sherd ----

def sherd(program, command, *arguments):
    done = subprocess.run([program, command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit("sherd %s ended with status %d:\n%s" % (command, done.returncode, done.stdout[-4000:]))


def schedule_steps(a):
    return max(a.steps, 10 * a.warmup)


def train(a, m, folder, name, ranks, extra):
    settings = {
        "run.dir": os.path.join(folder, name), "run.device": a.device, "model.family": "llama",
        "model.context": m["seq"], "model.tied": "false", "model.norm_eps": NORM_EPS, "model.rope_theta": THETA,
        "shard.stage": a.stage, "dtype.param": a.dtype, "batch.global": m["batch"], "batch.seq": m["seq"],
        "optim.lr": m["lr"], "optim.beta1": BETA1, "optim.beta2": BETA2, "optim.eps": EPS,
        "optim.weight_decay": DECAY, "optim.clip": CLIP, "schedule.kind": "cosine", "schedule.warmup": a.warmup,
        "schedule.steps": schedule_steps(a),
        "schedule.min_lr": MIN_LR, "train.steps": a.steps, "data.train": "[%s]" % os.path.join(folder, "tokens.bin"),
        "data.format": "u16", "data.shuffle": "false", "save.every": 0, "log.every": a.steps,
    }
    settings.update({"model." + k: m[k] for k in ("vocab", "width", "layers", "heads", "kv_heads", "mlp_width")})
    settings.update(extra)
    config = os.path.join(folder, "empty.yaml")
    open(config, "w").close()
    arguments = [config, "--ranks", str(ranks)]
    for key, value in settings.items():
        arguments += ["--set", "%s=%s" % (key, value)]
    sherd(a.sherd, "train", *arguments)
    return settings["run.dir"]


def initial_weights(a, m, folder):
    # plain SGD, as it has no states to save; a rate of 0 leaves the weights as they were drawn
    run = train(a, m, folder, "initial", 1, {"train.steps": 1, "optim.lr": 0, "optim.name": "sgd", "optim.momentum": 0,
                                             "schedule.warmup": 0, "schedule.steps": 0, "batch.global": 1,
                                             "batch.seq": 16})
    return merged(a, run, os.path.join(folder, "model"))


def merged(a, run, to):
    sherd(a.sherd, "merge", run, to, "--dtype", "f32")
    shutil.rmtree(run)
    weights = {}
    for path in sorted(glob.glob(os.path.join(to, "*.safetensors"))):
        weights.update(safetensors.torch.load_file(path))
    shutil.rmtree(to)
    return weights


def sherd_gradients(a, m, folder, weights):
    # the update is so large that rounding the new weight loses nothing of it
    run = train(a, m, folder, "gradients", a.ranks, {
        "batch.micro": m["batch"] // a.ranks, "train.steps": 1, "optim.lr": STRIDE, "optim.name": "sgd",
        "optim.momentum": 0, "optim.weight_decay": 0, "optim.clip": 0, "schedule.kind": "constant",
        "schedule.warmup": 0, "schedule.steps": 0})
    after = merged(a, run, os.path.join(folder, "after"))
    return {k: (w.double() - after[k].double()) / STRIDE for k, w in weights.items()}


def sherd_losses(a, m, folder):
    run = train(a, m, folder, "run", a.ranks, {"batch.micro": m["batch"] // a.ranks})
    with open(os.path.join(run, "metrics.jsonl")) as lines:
        records = [json.loads(line) for line in lines]
    records = [r for r in records if "loss" in r]
    if [r["step"] for r in records] != list(range(1, a.steps + 1)):
        sys.exit("metrics.jsonl does not have the steps 1 to %d" % a.steps)
    return [r["loss"] for r in records], [r["lr"] for r in records]


# ---- PyTorch ----

def rate(a, m, step):
    w = a.warmup
    if step <= w:
        return m["lr"] * step / w
    p = min((step - w) / max(schedule_steps(a) - w, 1), 1.0)
    return m["lr"] * (MIN_LR + (1 - MIN_LR) * 0.5 * (1 + math.cos(math.pi * p)))


def norm(x, w):
    y = x.float()
    return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + NORM_EPS) * w.float()).to(x.dtype)


def rotate(x, cosine, sine):
    low, high = x.float().chunk(2, dim=-1)
    return torch.cat((low * cosine - high * sine, high * cosine + low * sine), dim=-1).to(x.dtype)


def loss_of(p, m, inputs, targets, cosine, sine):
    """Mean cross-entropy of a Llama; p: parameters by name, in the type to compute in."""
    x = F.embedding(inputs, p["model.embed_tokens.weight"])
    rows, seq, width = x.shape
    heads, kv = m["heads"], m["kv_heads"]
    for i in range(m["layers"]):
        at = "model.layers.%d." % i
        n = norm(x, p[at + "input_layernorm.weight"])
        q, k, v = (F.linear(n, p["%sself_attn.%s_proj.weight" % (at, c)]).view(rows, seq, -1, width // heads)
                   .transpose(1, 2) for c in "qkv")
        q, k = rotate(q, cosine, sine), rotate(k, cosine, sine)
        k, v = (t.repeat_interleave(heads // kv, dim=1) for t in (k, v))
        att = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + F.linear(att.transpose(1, 2).reshape(rows, seq, width), p[at + "self_attn.o_proj.weight"])
        n = norm(x, p[at + "post_attention_layernorm.weight"])
        gate, up = F.linear(n, p[at + "mlp.gate_proj.weight"]), F.linear(n, p[at + "mlp.up_proj.weight"])
        x = x + F.linear((F.silu(gate.float()) * up.float()).to(x.dtype), p[at + "mlp.down_proj.weight"])
    logits = F.linear(norm(x, p["model.norm.weight"]), p["lm_head.weight"])
    return F.cross_entropy(logits.float().view(rows * seq, -1), targets.reshape(-1))


class Trial:
    """What is the same in all PyTorch runs: rotary tables and the windows of a step."""

    def __init__(self, a, m, tokens):
        self.a, self.m, self.tokens = a, m, tokens
        pairs = m["width"] // m["heads"] // 2
        frequency = torch.tensor([THETA ** (-i / pairs) for i in range(pairs)], dtype=torch.float32).double()
        angle = torch.arange(m["seq"], dtype=torch.float64)[:, None] * frequency
        self.cosine, self.sine = angle.cos().float().to(a.device), angle.sin().float().to(a.device)

    def backward(self, p, step, kernel, pieces):
        """The mean loss of a step, its gradients added to those of p; the batch in so many pieces."""
        batch, seq = self.m["batch"], self.m["seq"]
        first = (step - 1) * batch * seq
        window = self.tokens[first:first + batch * seq + 1].to(self.a.device)
        inputs, targets = window[:-1].view(pieces, -1, seq), window[1:].view(pieces, -1, seq)
        total = 0.0
        with sdpa_kernel(KERNELS[kernel]):
            for i in range(pieces):
                loss = loss_of(p(), self.m, inputs[i], targets[i], self.cosine, self.sine) / pieces
                loss.backward()
                total = total + loss.detach().double()
        return total


def torch_gradients(trial, weights, kernel, pieces):
    p = {k: v.to(trial.a.device, torch.float32, copy=True).requires_grad_() for k, v in weights.items()}
    trial.backward(lambda: p, 1, kernel, pieces)
    return {k: v.grad.cpu().double() for k, v in p.items()}


def torch_losses(trial, weights, kernel, pieces=1):
    a, m = trial.a, trial.m
    torch.manual_seed(1)
    masters = {k: v.to(a.device, torch.float32, copy=True).requires_grad_() for k, v in weights.items()}
    groups = [{"params": [v for v in masters.values() if v.dim() > 1], "weight_decay": DECAY},
              {"params": [v for v in masters.values() if v.dim() == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=m["lr"], betas=(BETA1, BETA2), eps=EPS)
    dtype, losses = torch.bfloat16 if a.dtype == "bf16" else torch.float32, []
    for step in range(1, a.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = rate(a, m, step)
        loss = trial.backward(lambda: {k: v.to(dtype) for k, v in masters.items()}, step, kernel, pieces)
        torch.nn.utils.clip_grad_norm_(list(masters.values()), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss)
    return [float(x) for x in losses]


def attention_kernels(a):
    """Two for bf16. On GPUs cuDNN's is taken where it runs on these shapes, else the plain one."""
    if a.device == "cpu":
        return ["flash", "math"]
    x = torch.zeros(1, 2, 64, 64, dtype=torch.bfloat16, device=a.device, requires_grad=True)
    try:
        with sdpa_kernel(KERNELS["cudnn"]):
            F.scaled_dot_product_attention(x, x, x, is_causal=True).sum().backward()
        return ["flash", "cudnn"]
    except RuntimeError as error:
        print("cuDNN attention does not run here, the plain one is taken: %s" % str(error).split("\n")[0])
        return ["flash", "math"]


# ---- comparison ----

def smooth(losses):
    return [sum(losses[max(0, i + 1 - SMOOTH):i + 1]) / len(losses[max(0, i + 1 - SMOOTH):i + 1])
            for i in range(len(losses))]


def distance(x, y):
    pairs = list(zip(smooth(x), smooth(y)))[-LAST:]
    return sum(abs(u - v) for u, v in pairs) / len(pairs)


def show(ours, theirs):
    steps = len(ours)
    print("  step       sherd" + "".join("%14s" % ("torch " + k) for k in theirs))
    for s in sorted({1, 2, steps} | {max(1, round(steps * i / 10)) for i in range(1, 10)}):
        print("%6d %11.6f" % (s, ours[s - 1]) + "".join("%14.6f" % x[s - 1] for x in theirs.values()))


def apart(x, y):
    """Largest relative difference of two curves, and its step."""
    return max((abs(u - v) / abs(v), i + 1) for i, (u, v) in enumerate(zip(x, y)))


def compare_f32(ours, theirs):
    one, two = theirs.values()
    (worst, step), (spread, spread_step) = apart(ours, one), apart(two, one)
    print("  step   sherd to torch   torch to torch")
    for s, (x, y, z) in enumerate(zip(ours, one, two), 1):
        print("%6d %16.2e %16.2e" % (s, abs(x - y) / abs(y), abs(z - y) / abs(y)))
    print("largest relative difference: sherd to torch %.2e at step %d, bound %.0e; torch to torch %.2e at step %d" % (
        worst, step, F32_BOUND, spread, spread_step))
    return worst <= F32_BOUND


def compare_gradients(trial, weights, folder):
    """Gradients of step 1, tensor by tensor; the worst are shown."""
    ours = sherd_gradients(trial.a, trial.m, folder, weights)
    one = torch_gradients(trial, weights, "math", 1)
    two = torch_gradients(trial, weights, "math", trial.m["batch"])
    rows = []
    for k, g in one.items():
        size = g.norm().item() or 1.0
        to_torch, spread = (ours[k] - g).norm().item() / size, (two[k] - g).norm().item() / size
        rows.append((to_torch / max(F32_BOUND, 2 * spread), to_torch, spread, k))
    rows.sort(reverse=True)
    print("gradients of step 1, relative distances: sherd to torch, torch to torch; the worst of %d" % len(rows))
    for _, to_torch, spread, k in rows[:8]:
        print("%14.2e %14.2e  %s" % (to_torch, spread, k))
    return rows[0][0] <= 1


def compare_bf16(ours, theirs):
    (one, x), (two, y) = theirs.items()
    to_one, to_two, spread = distance(ours, x), distance(ours, y), distance(x, y)
    bound = max(2 * spread, BF16_BOUND)
    print("distance (smoothed over %d steps, mean of the last %d): sherd to torch %s %.5f, sherd to torch %s %.5f, "
          "torch %s to torch %s %.5f; bound %.5f" % (SMOOTH, min(LAST, len(x)), one, to_one, two, to_two, one, two,
                                                     spread, bound))
    return max(to_one, to_two) <= bound


def compare(a, m, folder):
    start = time.monotonic()
    path = os.path.join(folder, "tokens.bin")
    write_tokens(path, m["vocab"], a.steps * m["batch"] * m["seq"] + 1)
    tokens = torch.from_numpy(numpy.fromfile(path, dtype=numpy.uint16).astype(numpy.int64))
    weights = initial_weights(a, m, folder)
    took = {"initial weights": time.monotonic() - start}
    start = time.monotonic()
    ours, rates = sherd_losses(a, m, folder)
    took["sherd"] = time.monotonic() - start
    for step, lr in enumerate(rates, 1):
        if abs(lr - rate(a, m, step)) > 1e-6 * m["lr"]:
            sys.exit("step %d: sherd's rate is %g, the one expected is %g" % (step, lr, rate(a, m, step)))
    trial, theirs = Trial(a, m, tokens), {}
    good = compare_gradients(trial, weights, folder) if a.dtype == "f32" else True
    forms = {"math": ("math", 1), "pieces": ("math", m["batch"])} if a.dtype == "f32" else {
        kernel: (kernel, 1) for kernel in attention_kernels(a)}
    for name, (kernel, pieces) in forms.items():
        start = time.monotonic()
        theirs[name] = torch_losses(trial, weights, kernel, pieces)
        took["torch " + name] = time.monotonic() - start
    print("%s, %s, %s: %d parameters, %d steps of %d x %d tokens; sherd: stage %d, %d rank%s; torch %s" % (
        a.model, a.dtype, a.device, sum(v.numel() for v in weights.values()), a.steps, m["batch"], m["seq"], a.stage,
        a.ranks, "" if a.ranks == 1 else "s", torch.__version__))
    show(ours, theirs)
    fall = 0.1 if a.dtype == "bf16" else 0.0  # the rate has only begun to rise there
    if not all(math.isfinite(x) for x in ours + sum(theirs.values(), [])) or ours[-1] > ours[0] - fall:
        sys.exit("a loss is not finite or did not fall: nothing can be compared")
    good = (compare_f32 if a.dtype == "f32" else compare_bf16)(ours, theirs) and good
    print("seconds: " + ", ".join("%s %.1f" % item for item in took.items()))
    print("within the bound" if good else "OUTSIDE THE BOUND")
    return good


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sherd", default="build/tools/sherd", help="the program (default %(default)s)")
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    p.add_argument("--dtype", choices=("f32", "bf16"), default="f32")
    p.add_argument("--model", choices=tuple(MODELS), default="100m")
    p.add_argument("--steps", type=int, help="default 20 for f32, 200 for bf16")
    p.add_argument("--warmup", type=int, help="steps of rising rate; default 100 for f32, 20 for bf16")
    p.add_argument("--ranks", type=int, default=1, help="ranks of sherd; 1, 2, 4 or 8")
    p.add_argument("--stage", type=int, default=3, help="stage of sherd (default 3)")
    p.add_argument("--scratch", help="folder for 4 GB of files (default: /dev/shm if that has room)")
    a = p.parse_args()
    a.steps = a.steps or (20 if a.dtype == "f32" else 200)
    a.warmup = a.warmup or (100 if a.dtype == "f32" else 20)
    m = MODELS[a.model]
    if m["batch"] % a.ranks:
        p.error("--ranks %d does not divide the batch of %d" % (a.ranks, m["batch"]))
    a.sherd = os.path.abspath(a.sherd)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    if not a.scratch and os.path.isdir("/dev/shm") and shutil.disk_usage("/dev/shm").free > 8 << 30:
        a.scratch = "/dev/shm"
    with tempfile.TemporaryDirectory(prefix="sherd-curves-", dir=a.scratch) as folder:
        return 0 if compare(a, m, folder) else 1


if __name__ == "__main__":
    sys.exit(main())
