#!/usr/bin/env python3
"""Conversions to and from Hugging Face's folders, compared with a second implementation of both models.

The reference is plain numpy in double, written after transformers' modeling_llama.py and modeling_gpt2.py. It reads
and writes the files with Hugging Face's own package `safetensors`. The data is a text of one sequence, so every
sequence of a training is known."""

import json
import os
import sys
import unittest

from process import NO_FIGURES, TemporaryFolder, read_run, shardmark

try:
    import numpy as np
    from safetensors.numpy import load_file, save_file
except ImportError:
    print("skipped: numpy and safetensors are not installed")
    sys.exit(77)

SEQUENCE = 32
TEXT = b"Every rank of a group owns a part"  # one more than a sequence
RUN = ["--reference", "none", "--dtype", "double", "--no-limits", "--max-seconds", "0.01", "--global-batch-size", "4"]


def norm(x, weight, epsilon, bias=None):
    if bias is None:  # RMSNorm
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight + bias


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def attend(q, k, v):
    """[heads, sequence, head]; causal."""
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
    scores[:, np.triu(np.ones(scores.shape[1:], bool), 1)] = -np.inf
    return (softmax(scores) @ v).transpose(1, 0, 2).reshape(q.shape[1], -1)


def split(x, heads):
    return x.reshape(x.shape[0], heads, -1).transpose(1, 0, 2)


def rotated(x, base):
    half = x.shape[-1] // 2
    angle = np.arange(x.shape[1])[:, None] * base ** (-np.arange(half) / half)
    cos, sin = np.tile(np.cos(angle), 2), np.tile(np.sin(angle), 2)
    return x * cos + np.concatenate([-x[..., half:], x[..., :half]], -1) * sin


def llama_logits(tensors, config, tokens):
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    base, epsilon = config["rope_theta"], config["rms_norm_eps"]
    x = tensors["model.embed_tokens.weight"][tokens]
    for layer in range(config["num_hidden_layers"]):
        def weight(name, at=f"model.layers.{layer}."):
            return tensors[at + name + ".weight"]
        y = norm(x, weight("input_layernorm"), epsilon)
        q = rotated(split(y @ weight("self_attn.q_proj").T, heads), base)
        k = rotated(split(y @ weight("self_attn.k_proj").T, groups), base).repeat(heads // groups, 0)
        v = split(y @ weight("self_attn.v_proj").T, groups).repeat(heads // groups, 0)
        x = x + attend(q, k, v) @ weight("self_attn.o_proj").T
        y = norm(x, weight("post_attention_layernorm"), epsilon)
        gate = y @ weight("mlp.gate_proj").T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ weight("mlp.up_proj").T)) @ weight("mlp.down_proj").T
    head = "model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"
    return norm(x, tensors["model.norm.weight"], epsilon) @ tensors[head].T


def gpt2_logits(tensors, config, tokens):
    epsilon = config["layer_norm_epsilon"]
    def linear(x, name):
        return x @ tensors[f"transformer.{name}.weight"] + tensors[f"transformer.{name}.bias"]
    def normed(x, name):
        return norm(x, tensors[f"transformer.{name}.weight"], epsilon, tensors[f"transformer.{name}.bias"])
    x = tensors["transformer.wte.weight"][tokens] + tensors["transformer.wpe.weight"][:len(tokens)]
    for layer in range(config["n_layer"]):
        q, k, v = np.split(linear(normed(x, f"h.{layer}.ln_1"), f"h.{layer}.attn.c_attn"), 3, -1)
        heads = config["n_head"]
        x = x + linear(attend(split(q, heads), split(k, heads), split(v, heads)), f"h.{layer}.attn.c_proj")
        y = linear(normed(x, f"h.{layer}.ln_2"), f"h.{layer}.mlp.c_fc")
        y = 0.5 * y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
        x = x + linear(y, f"h.{layer}.mlp.c_proj")
    return normed(x, "ln_f") @ tensors["transformer.wte.weight"].T


def loss_of(folder):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    tensors = load_file(os.path.join(folder, "model.safetensors"))
    text = np.frombuffer(TEXT, np.uint8).astype(int)
    logits = (llama_logits if config["model_type"] == "llama" else gpt2_logits)(tensors, config, text[:-1])
    return -np.log(softmax(logits)[np.arange(SEQUENCE), text[1:]]).mean()


class HuggingFace(TemporaryFolder):
    def setUp(self):
        super().setUp()
        with open(self.path("text"), "wb") as file:
            file.write(TEXT)

    def accepted(self, *words):
        done = shardmark(*words, env=NO_FIGURES)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def losses(self, unit, *words):
        self.accepted("run", unit, *RUN, "--data", self.path("text"), *words, "--out", self.path("run"))
        return read_run(self.path("run"))["benchmarks"][0]["losses"]

    def check(self, unit, model, *grid):
        words = [unit, "--model", model[0], "--model-args", model[1]]
        self.losses(*words, *grid, "--save", self.path("ck"), "--train-iters", "3")
        self.accepted("checkpoint", "convert", self.path("ck"), self.path("theirs"))
        following = self.losses(*words, "--load", self.path("ck"), "--train-iters", "4")[0]
        self.assertAlmostEqual(loss_of(self.path("theirs")) / following, 1, delta=1e-12)
        # Other values than any that we made.
        tensors = load_file(self.path("theirs/model.safetensors"))
        random = np.random.default_rng(7)
        tensors = {name: 0.1 * random.standard_normal(tensor.shape) + (tensor.ndim == 1) for name, tensor in tensors.items()}
        save_file(tensors, self.path("theirs/model.safetensors"))
        self.accepted("checkpoint", "convert", self.path("theirs"), self.path("ours"))
        first = self.losses(*words, *grid, "--load", self.path("ours"), "--train-iters", "1")[0]
        self.assertAlmostEqual(loss_of(self.path("theirs")) / first, 1, delta=1e-12)
        self.accepted("checkpoint", "convert", self.path("ours"), self.path("back"))
        for name, tensor in load_file(self.path("back/model.safetensors")).items():
            self.assertTrue((tensor == tensors[name]).all(), name)

    def test_llama(self):
        self.check("llama_step", ("llama_tiny", "--vocab-size 200 --make-vocab-size-divisible-by 64"), "--tp", "2", "--pp", "2")

    def test_gpt2(self):
        self.check("gpt_step", ("tiny", "--vocab-size 200 --make-vocab-size-divisible-by 64"), "--tp", "2", "--dp", "2",
                   "--zero-stage", "3")


if __name__ == "__main__":
    unittest.main()
