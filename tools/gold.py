#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
"""Makes tests/golden/*.safetensors: tiny models with logits, loss, gradients and ten optimizer steps.

Needs PyTorch; where transformers is installed, the models written here are first compared with its own.
Everything is computed in float64 and rounded once. Not needed to build or test sherd.

A file holds, beside its settings in __metadata__:
  tokens, targets   I32 [steps, batch, seq]; a target of -1 is ignored
  loss, norm        F64 [steps]; mean loss and gradient norm before clipping, of each step
  logits            F32 [batch, seq, vocab], of the first batch with the initial weights
  w/NAME            BF16, initial weights (exact: they are drawn so)
  g/NAME            F32, gradient of the first step, before clipping
  d/NAME            F16, final weight minus initial weight

usage: tools/gold.py [folder [model...]]
"""
import json
import math
import struct
import sys

import torch
import torch.nn.functional as F

STEPS, BATCH, SEQ = 10, 2, 10
ADAMW = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-6, "weight_decay": 0.1, "clip": 1.0}
COMMON = {"width": 24, "context": 16, "norm_eps": 1e-5}
MODELS = {
    "gpt2": {"family": "gpt2", "vocab": 101, "layers": 2, "heads": 3, "mlp_width": 48, "tied": 1},
    "llama": {"family": "llama", "vocab": 101, "layers": 2, "heads": 4, "kv_heads": 2, "mlp_width": 40, "tied": 0,
              "rope_theta": 10000.0},
    "llama-tied": {"family": "llama", "vocab": 53, "layers": 1, "heads": 4, "kv_heads": 2, "mlp_width": 24,
                   "tied": 1, "rope_theta": 500.0},
    "llama3": {"family": "llama", "vocab": 53, "layers": 1, "heads": 4, "kv_heads": 2, "head_dim": 8, "mlp_width": 24,
               "tied": 1, "rope_theta": 100.0, "rope_scaling": 2, "rope_factor": 8.0, "rope_low_freq": 1.0,
               "rope_high_freq": 4.0, "rope_context": 32},
    "linear": {"family": "llama", "vocab": 53, "layers": 1, "heads": 3, "kv_heads": 1, "mlp_width": 24, "tied": 1,
               "rope_theta": 100.0, "rope_scaling": 1, "rope_factor": 2.0},
    "qwen2": {"family": "qwen2", "vocab": 53, "layers": 1, "heads": 4, "kv_heads": 2, "mlp_width": 24, "tied": 0,
              "rope_theta": 10000.0, "norm_eps": 1e-6},
    "qwen3": {"family": "qwen3", "vocab": 53, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 10, "mlp_width": 24,
              "tied": 1, "rope_theta": 1000.0, "norm_eps": 1e-6},
}
SCALING = {0: "default", 1: "linear", 2: "llama3"}


def head_dim(c):
    return c.get("head_dim", c["width"] // c["heads"])


def gpt2_shapes(c):
    C, M = c["width"], c["mlp_width"]
    shapes = {"transformer.wte.weight": (c["vocab"], C), "transformer.wpe.weight": (c["context"], C)}
    for i in range(c["layers"]):
        h = f"transformer.h.{i}."
        shapes |= {h + "ln_1.weight": (C,), h + "ln_1.bias": (C,),
                   h + "attn.c_attn.weight": (C, 3 * C), h + "attn.c_attn.bias": (3 * C,),
                   h + "attn.c_proj.weight": (C, C), h + "attn.c_proj.bias": (C,),
                   h + "ln_2.weight": (C,), h + "ln_2.bias": (C,),
                   h + "mlp.c_fc.weight": (C, M), h + "mlp.c_fc.bias": (M,),
                   h + "mlp.c_proj.weight": (M, C), h + "mlp.c_proj.bias": (C,)}
    return shapes | {"transformer.ln_f.weight": (C,), "transformer.ln_f.bias": (C,)}


def llama_shapes(c):
    C, M, D = c["width"], c["mlp_width"], head_dim(c)
    shapes = {"model.embed_tokens.weight": (c["vocab"], C)}
    for i in range(c["layers"]):
        h = f"model.layers.{i}."
        shapes |= {h + "input_layernorm.weight": (C,),
                   h + "self_attn.q_proj.weight": (c["heads"] * D, C),
                   h + "self_attn.k_proj.weight": (c["kv_heads"] * D, C),
                   h + "self_attn.v_proj.weight": (c["kv_heads"] * D, C),
                   h + "self_attn.o_proj.weight": (C, c["heads"] * D),
                   h + "post_attention_layernorm.weight": (C,),
                   h + "mlp.gate_proj.weight": (M, C), h + "mlp.up_proj.weight": (M, C),
                   h + "mlp.down_proj.weight": (C, M)}
        if c["family"] == "qwen2":
            shapes |= {h + "self_attn.q_proj.bias": (c["heads"] * D,), h + "self_attn.k_proj.bias": (c["kv_heads"] * D,),
                       h + "self_attn.v_proj.bias": (c["kv_heads"] * D,)}
        if c["family"] == "qwen3":
            shapes |= {h + "self_attn.q_norm.weight": (D,), h + "self_attn.k_norm.weight": (D,)}
    shapes["model.norm.weight"] = (C,)
    if not c["tied"]:
        shapes["lm_head.weight"] = (c["vocab"], C)
    return shapes


def attention(q, k, v):
    """[B, heads, T, D] each; causal."""
    T, D = q.shape[-2:]
    scores = q @ k.transpose(-1, -2) / math.sqrt(D)
    hidden = torch.ones(T, T, dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, -math.inf).softmax(-1) @ v


def heads_of(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def gpt2(c, w, tokens):
    def norm(name, x):
        return F.layer_norm(x, x.shape[-1:], w[name + ".weight"], w[name + ".bias"], c["norm_eps"])

    def dense(name, x):
        return x @ w[name + ".weight"] + w[name + ".bias"]

    x = w["transformer.wte.weight"][tokens] + w["transformer.wpe.weight"][: tokens.shape[1]]
    for i in range(c["layers"]):
        h = f"transformer.h.{i}."
        q, k, v = (heads_of(t, c["heads"]) for t in dense(h + "attn.c_attn", norm(h + "ln_1", x)).chunk(3, -1))
        x = x + dense(h + "attn.c_proj", attention(q, k, v).transpose(1, 2).flatten(2))
        u = dense(h + "mlp.c_fc", norm(h + "ln_2", x))
        x = x + dense(h + "mlp.c_proj", F.gelu(u, approximate="tanh"))
    return norm("transformer.ln_f", x) @ w["transformer.wte.weight"].T


def frequencies(c):
    D = head_dim(c)
    f = c["rope_theta"] ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
    scaling = c.get("rope_scaling", 0)
    if scaling == 1:
        return f / c["rope_factor"]
    if scaling == 0:
        return f
    turns = c["rope_context"] * f / (2 * math.pi)
    blend = ((turns - c["rope_low_freq"]) / (c["rope_high_freq"] - c["rope_low_freq"])).clamp(0, 1)
    return (1 - blend) * f / c["rope_factor"] + blend * f


def rope(x, freq):
    D = x.shape[-1]
    angle = torch.outer(torch.arange(x.shape[-2], dtype=x.dtype), freq)
    cos, sin = angle.cos(), angle.sin()
    a, b = x[..., : D // 2], x[..., D // 2:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def llama(c, w, tokens):
    freq = frequencies(c)

    def norm(name, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + c["norm_eps"]) * w[name]

    def heads(h, what, n, x):
        y = x @ w[f"{h}self_attn.{what}_proj.weight"].T
        if c["family"] == "qwen2":
            y = y + w[f"{h}self_attn.{what}_proj.bias"]
        y = heads_of(y, n)
        if c["family"] == "qwen3" and what != "v":
            y = norm(f"{h}self_attn.{what}_norm.weight", y)
        return y if what == "v" else rope(y, freq)

    x = w["model.embed_tokens.weight"][tokens]
    for i in range(c["layers"]):
        h = f"model.layers.{i}."
        n = norm(h + "input_layernorm.weight", x)
        q, k, v = (heads(h, what, c["heads" if what == "q" else "kv_heads"], n) for what in "qkv")
        k, v = (t.repeat_interleave(c["heads"] // c["kv_heads"], 1) for t in (k, v))
        x = x + attention(q, k, v).transpose(1, 2).flatten(2) @ w[h + "self_attn.o_proj.weight"].T
        n = norm(h + "post_attention_layernorm.weight", x)
        gate, up = n @ w[h + "mlp.gate_proj.weight"].T, n @ w[h + "mlp.up_proj.weight"].T
        x = x + (F.silu(gate) * up) @ w[h + "mlp.down_proj.weight"].T
    head = w["model.embed_tokens.weight" if c["tied"] else "lm_head.weight"]
    return norm("model.norm.weight", x) @ head.T


FAMILIES = {"gpt2": (gpt2_shapes, gpt2)} | {name: (llama_shapes, llama) for name in ("llama", "qwen2", "qwen3")}


def draw(shapes, gen):
    """Weights large enough that every part of the model matters; exact in bfloat16."""
    weights = {}
    for name, shape in shapes.items():
        w = torch.randn(shape, generator=gen, dtype=torch.float64)
        if len(shape) == 2:
            w *= 0.2 if "wte" in name or "wpe" in name or "embed" in name else 1 / math.sqrt(shape[1])
        else:
            w = 0.1 * w + (0 if name.endswith("bias") else 1)
        weights[name] = w.to(torch.bfloat16).to(torch.float64)
    return weights


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten().long(), ignore_index=-1)


def compare_with_transformers(c, weights, tokens, logits):
    try:
        import transformers as tf
    except ImportError:
        print("  transformers is not installed: not compared with it")
        return
    if c["family"] == "gpt2":
        model = tf.GPT2LMHeadModel(tf.GPT2Config(
            vocab_size=c["vocab"], n_positions=c["context"], n_embd=c["width"], n_layer=c["layers"],
            n_head=c["heads"], n_inner=c["mlp_width"], layer_norm_epsilon=c["norm_eps"], resid_pdrop=0,
            embd_pdrop=0, attn_pdrop=0, bos_token_id=None, eos_token_id=None, attn_implementation="eager"))
    else:
        name = c["family"].capitalize()
        scaling = {"rope_type": SCALING[c.get("rope_scaling", 0)], "rope_theta": c["rope_theta"]}
        if c.get("rope_scaling"):
            scaling["factor"] = c["rope_factor"]
        if c.get("rope_scaling") == 2:
            scaling |= {"low_freq_factor": c["rope_low_freq"], "high_freq_factor": c["rope_high_freq"],
                        "original_max_position_embeddings": c["rope_context"]}
        model = getattr(tf, name + "ForCausalLM")(getattr(tf, name + "Config")(
            vocab_size=c["vocab"], max_position_embeddings=c["context"], hidden_size=c["width"],
            num_hidden_layers=c["layers"], num_attention_heads=c["heads"], num_key_value_heads=c["kv_heads"],
            head_dim=head_dim(c), intermediate_size=c["mlp_width"], rms_norm_eps=c["norm_eps"],
            tie_word_embeddings=bool(c["tied"]), rope_parameters=scaling, bos_token_id=None, eos_token_id=None,
            attn_implementation="eager"))
    model = model.double().eval()
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    with torch.no_grad():
        theirs = model(tokens.long()).logits
    error = ((theirs - logits).norm() / logits.norm()).item()
    print(f"  transformers {tf.__version__}: logits differ by {error:.1e}")
    # It computes norms and rotary angles in float32.
    assert error < 1e-6


def train(c, weights, tokens, targets):
    """Losses, norms, first gradients and final weights."""
    forward = FAMILIES[c["family"]][1]
    w = {name: t.clone().requires_grad_() for name, t in weights.items()}
    decay = [t for t in w.values() if t.dim() > 1]
    plain = [t for t in w.values() if t.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": ADAMW["weight_decay"]},
                                   {"params": plain, "weight_decay": 0.0}],
                                  lr=ADAMW["lr"], betas=(ADAMW["beta1"], ADAMW["beta2"]), eps=ADAMW["eps"])
    losses, norms, first = [], [], None
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(forward(c, w, tokens[step].long()), targets[step])
        loss.backward()
        first = first or {name: t.grad.clone() for name, t in w.items()}
        norms.append(torch.nn.utils.clip_grad_norm_(list(w.values()), ADAMW["clip"]).item())
        losses.append(loss.item())
        optimizer.step()
    return losses, norms, first, {name: t.detach() for name, t in w.items()}


TYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int32: "I32"}


def write(path, tensors, metadata):
    header, blobs, at = {"__metadata__": {k: str(v) for k, v in metadata.items()}}, [], 0
    for name, t in tensors.items():
        blob = t.contiguous().flatten().view(torch.uint8).numpy().tobytes()
        header[name] = {"dtype": TYPES[t.dtype], "shape": list(t.shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))
    print(f"  {path}: {8 + len(text) + at} bytes")


def make(name, folder):
    c = COMMON | MODELS[name]
    shapes, forward = FAMILIES[c["family"]]
    gen = torch.Generator().manual_seed(sum(map(ord, name)))
    weights = draw(shapes(c), gen)
    tokens = torch.randint(c["vocab"], (STEPS, BATCH, SEQ), generator=gen, dtype=torch.int32)
    targets = torch.randint(c["vocab"], (STEPS, BATCH, SEQ), generator=gen, dtype=torch.int32)
    targets[torch.rand(targets.shape, generator=gen) < 0.2] = -1
    print(name)
    logits = forward(c, weights, tokens[0].long())
    compare_with_transformers(c, weights, tokens[0], logits)
    losses, norms, first, final = train(c, weights, tokens, targets)
    print("  loss", " ".join(f"{x:.6f}" for x in losses))
    print("  norm", " ".join(f"{x:.6f}" for x in norms))
    tensors = {"loss": torch.tensor(losses, dtype=torch.float64), "norm": torch.tensor(norms, dtype=torch.float64),
               "tokens": tokens, "targets": targets, "logits": logits.float()}
    tensors |= {"g/" + n: t.float() for n, t in first.items()}
    tensors |= {"w/" + n: t.to(torch.bfloat16) for n, t in weights.items()}
    tensors |= {"d/" + n: (final[n] - t).half() for n, t in weights.items()}
    write(f"{folder}/{name}.safetensors", tensors, c | ADAMW)


if __name__ == "__main__":
    torch.manual_seed(0)
    for model in sys.argv[2:] or MODELS:
        make(model, sys.argv[1] if len(sys.argv) > 1 else "tests/golden")
