#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
"""Makes tests/golden/hf: tiny model folders as transformers saves them, each with logits of its own.

Needs PyTorch and transformers; not needed to build or test sherd. Weights are drawn large enough that every part
of the model matters. expect.safetensors holds tokens I32 [batch, seq] and logits F32 [batch, seq, vocab], which
are computed in float64 from the weights as they are stored.

usage: tools/gold_hf.py [folder]
"""
import os
import shutil
import sys

import torch
import transformers as tf
from safetensors.torch import load_file, save_file

LLAMA = dict(vocab_size=61, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             intermediate_size=40, max_position_embeddings=32, bos_token_id=1, eos_token_id=2)
THETA = {"rope_type": "default", "rope_theta": 1000.0}
MODELS = {
    # a bare model: names without "transformer."
    "gpt2": (tf.GPT2Config(vocab_size=61, n_positions=16, n_embd=24, n_layer=2, n_head=3, bos_token_id=1,
                           eos_token_id=2), "float32", "5GB"),
    # several files
    "llama": (tf.LlamaConfig(**LLAMA, tie_word_embeddings=False, rope_parameters={
        "rope_type": "llama3", "rope_theta": 100.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16}), "bfloat16", "10KB"),
    "qwen2": (tf.Qwen2Config(**LLAMA, tie_word_embeddings=True, rope_parameters=THETA), "float16", "5GB"),
    "qwen3": (tf.Qwen3Config(**LLAMA, head_dim=10, tie_word_embeddings=True, rope_parameters=THETA), "bfloat16", "5GB"),
}


def make(name, folder):
    config, dtype, shard = MODELS[name]
    torch.manual_seed(sum(map(ord, name)))
    config._attn_implementation = "eager"
    model = tf.AutoModelForCausalLM.from_config(config)
    for key, p in model.named_parameters():
        p.data.normal_(std=0.2 if p.dim() == 1 or "emb" in key or "wte" in key or "wpe" in key else p.shape[-1] ** -0.5)
        if p.dim() == 1 and not key.endswith("bias"):
            p.data += 1
    model = model.to(getattr(torch, dtype))
    shutil.rmtree(folder, ignore_errors=True)
    (model.transformer if name == "gpt2" else model).save_pretrained(folder, max_shard_size=shard)
    os.path.exists(f"{folder}/generation_config.json") and os.remove(f"{folder}/generation_config.json")
    tokens = torch.randint(61, (2, 12), dtype=torch.int32)
    # Read anew: angles in half precision stay behind in a model that was converted.
    model = tf.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()
    with torch.no_grad():
        logits = model(tokens.long()).logits
    save_file({"tokens": tokens, "logits": logits.float()}, f"{folder}/expect.safetensors")
    print(folder, sorted(os.listdir(folder)), sum(os.path.getsize(f"{folder}/{f}") for f in os.listdir(folder)))


for model in MODELS:
    make(model, (sys.argv[1] if len(sys.argv) > 1 else "tests/golden/hf") + "/" + model)
