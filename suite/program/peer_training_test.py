#!/usr/bin/env python3
"""Ten steps of training equal those of PyTorch: the losses of BERT's and GPT-2's shape at mixed degrees.

PyTorch computes the model, its gradients and AdamW in double. Initial values, sequences and masks are drawn here again,
after the comments of machine/device/random.h, layers/parameter.h and suite/trainer/masked_tokens.h. Without PyTorch the
test is skipped."""

import math
import sys
import unittest

from process import NO_FIGURES, TemporaryFolder, read_run, shardmark

try:
    import numpy as np
    import torch
    from torch.nn.functional import cross_entropy, embedding, gelu, layer_norm, linear, scaled_dot_product_attention
except ImportError:
    print("skipped: numpy and torch are not installed")
    sys.exit(77)

SEED, STEPS, SEQUENCES, SEQUENCE = 1234, 10, 8, 32
TEXT = b"Every rank of a group owns a part"  # one more than a sequence, so every sequence is known
LAYERS, HIDDEN, HEADS = 2, 32, 4
# All axes that slices vary, so that one case runs.
CASE = ["--reference", "none", "--no-limits", "--max-seconds", "0.01", "--dtype", "float", "--transport", "shared_memory",
        "--optimizer", "adamw", "--model-args", "none", "--micro-batch-size", "1", "--uneven-tokens", "off",
        "--recompute-granularity", "none", "--use-flash-attn", "off", "--schedule", "1f1b", "--offload_optimizer", "none",
        "--offload_param", "none", "--grad-accum-dtype", "default", "--communication-data-type", "default"]
WORD = (1 << 64) - 1


def philox(key, indices):
    """Philox 4x32-10 (Salmon et al. 2011): the four words of each index."""
    mask = np.uint64(0xFFFFFFFF)
    index = np.asarray(indices, np.uint64)
    counter = [index & mask, index >> np.uint64(32), np.zeros_like(index), np.zeros_like(index)]
    low, high = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        first, second = np.uint64(0xD2511F53) * counter[0], np.uint64(0xCD9E8D57) * counter[2]
        counter = [(second >> np.uint64(32)) ^ counter[1] ^ np.uint64(low), second & mask,
                   (first >> np.uint64(32)) ^ counter[3] ^ np.uint64(high), first & mask]
        low, high = (low + 0x9E3779B9) & 0xFFFFFFFF, (high + 0xBB67AE85) & 0xFFFFFFFF
    return counter


def random_key(name):
    value = 0xCBF29CE484222325
    for letter in name.encode():
        value = (value ^ letter) * 0x100000001B3 & WORD
    value = (value + SEED * 0x9E3779B97F4A7C15) & WORD
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        value = (value ^ (value >> shift)) * factor & WORD
    return value ^ (value >> 31)


def uniform(name, index):
    return float(philox(random_key(name), [index])[0][0]) / 2**32


def normal(name, shape, mean, deviation):
    words = philox(random_key(name), np.arange(math.prod(shape)))
    radius = np.sqrt(-2 * np.log((words[0].astype(float) + 1) / 2**32))
    drawn = radius * np.cos(2 * np.pi * words[1].astype(float) / 2**32)
    return torch.tensor(mean + deviation * drawn.reshape(shape), requires_grad=True)


def parameters(encoder, vocabulary):
    shapes = {"embedding.token.weight": (vocabulary, HIDDEN), "embedding.position.weight": (SEQUENCE, HIDDEN)}
    norms = ["head.norm"]
    linears = {}
    for block in (f"blocks.{i}." for i in range(LAYERS)):
        norms += [block + "norm1", block + "norm2"]
        linears.update({block + "attention.qkv": (3 * HIDDEN, HIDDEN), block + "attention.projection": (HIDDEN, HIDDEN),
                        block + "mlp.fc1": (4 * HIDDEN, HIDDEN), block + "mlp.fc2": (HIDDEN, 4 * HIDDEN)})
    if encoder:
        shapes.update({"embedding.type.weight": (2, HIDDEN), "head.output.bias": (vocabulary,)})
        norms.append("head.transform.norm")
        linears["head.transform"] = (HIDDEN, HIDDEN)
    for name, shape in linears.items():
        shapes.update({name + ".weight": shape, name + ".bias": shape[:1]})
    for name in norms:
        shapes.update({name + ".gain": (HIDDEN,), name + ".bias": (HIDDEN,)})

    def made(name, shape):
        if len(shape) == 1:
            return normal(name, shape, 1 if name.endswith("gain") else 0, 0.1)
        residual = name.endswith(("projection.weight", "fc2.weight"))
        return normal(name, shape, 0, 0.02 / math.sqrt(2 * LAYERS) if residual else 0.02)

    return {name: made(name, shape) for name, shape in shapes.items()}


def sequences(step, encoder, vocabulary):
    """Returns tokens, targets, types and lengths of a step."""
    rows = []
    for index in range(step * SEQUENCES, (step + 1) * SEQUENCES):
        tokens, targets, types, length = list(TEXT[:-1]), list(TEXT[1:]), [0] * SEQUENCE, SEQUENCE
        if encoder:
            length = SEQUENCE - int(uniform("masked.length", index) * ((SEQUENCE + 1) // 2))
            second = length - int(uniform("masked.segment", index) * length)
            types = [int(second <= i < length) for i in range(SEQUENCE)]
            tokens[length:] = [0] * (SEQUENCE - length)
            targets = [-100] * SEQUENCE
            for i in range(length):
                at = index * SEQUENCE + i
                if i > 0 and uniform("masked.position", at) >= 0.15:
                    continue
                targets[i] = tokens[i]
                way = uniform("masked.token", at)
                if way < 0.8:
                    tokens[i] = vocabulary - 1
                elif way < 0.9:
                    tokens[i] = int(uniform("masked.random", at) * vocabulary)
        rows.append((tokens, targets, types, length))
    return [torch.tensor(column) for column in zip(*rows)]


def logits(values, encoder, tokens, types, lengths):
    def normed(x, name):
        return layer_norm(x, (HIDDEN,), values[name + ".gain"], values[name + ".bias"], 1e-5)

    def dense(x, name):
        return linear(x, values[name + ".weight"], values[name + ".bias"])

    table = values["embedding.token.weight"]
    x = embedding(tokens, table) + values["embedding.position.weight"]
    if encoder:
        x = x + embedding(types, values["embedding.type.weight"])
    seen = torch.arange(SEQUENCE)[None, None, None, :] < lengths[:, None, None, None] if encoder else None
    for block in (f"blocks.{i}." for i in range(LAYERS)):
        qkv = dense(normed(x, block + "norm1"), block + "attention.qkv")
        q, k, v = qkv.view(SEQUENCES, SEQUENCE, HEADS, 3, -1).permute(3, 0, 2, 1, 4)
        attended = scaled_dot_product_attention(q, k, v, attn_mask=seen, is_causal=not encoder)
        x = x + dense(attended.transpose(1, 2).reshape(x.shape), block + "attention.projection")
        inner = dense(normed(x, block + "norm2"), block + "mlp.fc1")
        x = x + dense(gelu(inner, approximate="tanh"), block + "mlp.fc2")
    x = normed(x, "head.norm")
    if encoder:
        x = normed(gelu(dense(x, "head.transform"), approximate="tanh"), "head.transform.norm")
        return linear(x, table, values["head.output.bias"])
    return x @ table.T


def losses(encoder, vocabulary):
    values = parameters(encoder, vocabulary)
    groups = [{"params": [value for value in values.values() if (value.dim() > 1) == decays], "weight_decay": decay}
              for decays, decay in ((True, 0.01), (False, 0))]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.999), eps=1e-8)
    result = []
    for step in range(STEPS):
        tokens, targets, types, lengths = sequences(step, encoder, vocabulary)
        optimizer.zero_grad()
        loss = cross_entropy(logits(values, encoder, tokens, types, lengths).flatten(0, 1), targets.flatten())
        loss.backward()
        size = math.sqrt(sum(float((value.grad**2).sum()) for value in values.values()))
        if size > 1:
            for value in values.values():
                value.grad /= size
        optimizer.step()
        result.append(loss.item())
    return result


class Losses(TemporaryFolder):
    def compare(self, model, encoder, vocabulary, *words):
        with open(self.path("text"), "wb") as file:
            file.write(TEXT)
        done = shardmark("run", "gpt_step", "--model", model, "--data", self.path("text"), "--seed", str(SEED),
                         "--global-batch-size", str(SEQUENCES), "--out", self.path("run"), *CASE, *words, env=NO_FIGURES)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        want = losses(encoder, vocabulary)
        record, = read_run(self.path("run"))["benchmarks"]
        for step, (mine, theirs) in enumerate(zip(record["losses"], want, strict=True), 1):
            print(f"{model}, step {step}: {mine}, relative difference {mine / theirs - 1:.1e}")
            self.assertLess(abs(mine / theirs - 1), 1e-6, f"step {step}: {mine}, PyTorch {theirs}")

    def test_bert(self):
        self.compare("bert_tiny", True, 384, "--ranks", "8", "--tensor-model-parallel-size", "2",
                     "--pipeline-model-parallel-size", "2", "--data-parallel-size", "2", "--sequence-parallel", "on",
                     "--zero-stage", "1")

    def test_gpt2(self):
        self.compare("tiny", False, 256, "--ranks", "4", "--tensor-model-parallel-size", "2",
                     "--data-parallel-size", "2", "--sequence-parallel", "off", "--zero-stage", "2")


if __name__ == "__main__":
    unittest.main()
