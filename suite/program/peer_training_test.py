#!/usr/bin/env python3
"""Ten steps of training equal those of PyTorch: the losses of BERT's, T5's, GPT-2's and Llama's shape, of sparse attention,
and of experts. Of the last two the first gradients are compared, too.

PyTorch computes the model, its gradients and AdamW in double. Initial values, sequences and masks are drawn here again,
after the comments of machine/device/random.h, layers/parameter.h and suite/trainer/tokens/encoder_examples.h. Without PyTorch the
test is skipped."""

import json
import math
import os
import sys
import unittest
from unittest import mock

from process import NO_FIGURES, TemporaryFolder, one_case, read_run, shardmark

try:
    import numpy as np
    import torch
    from torch.nn.functional import cross_entropy, embedding, gelu, layer_norm, linear, rms_norm, scaled_dot_product_attention, silu
except ImportError:
    print("skipped: numpy and torch are not installed")
    sys.exit(77)

SEED, STEPS, SEQUENCES, SEQUENCE = 1234, 10, 8, 32
# A file has one more token than a sequence, or than those of both stacks, so every sequence is known.
TEXT = b"Every rank of a group owns a part of each tensor, and sends it to others."
HIDDEN, HEADS, BUCKETS = 32, 4, 32
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


class Model:
    """GPT-2's shape: norms first, learned positions. Subclasses have other parts."""
    layers, vocabulary, biases = 2, 256, True

    def __init__(self):
        self.norms, self.linears = ["head.norm"], {}
        self.shapes = {"embedding.token.weight": (self.vocabulary, HIDDEN)}
        for index, block in enumerate(self.blocks()):
            self.add_block(index, block)
        self.add_ends()
        for name, shape in self.linears.items():
            self.shapes[name + ".weight"] = shape
            if self.biases:
                self.shapes[name + ".bias"] = shape[:1]
        for name in self.norms:
            self.shapes[name + ".gain"] = (HIDDEN,)
            if self.biases:
                self.shapes[name + ".bias"] = (HIDDEN,)
        self.values = {name: self.drawn(name, shape) for name, shape in self.shapes.items()}

    def blocks(self):
        return [f"blocks.{i}." for i in range(self.layers)]

    def add_block(self, _, block):
        self.norms += [block + "norm1", block + "norm2"]
        self.linears.update({
            block + "attention.qkv": (3 * HIDDEN, HIDDEN), block + "attention.projection": (HIDDEN, HIDDEN),
            block + "mlp.fc1": (4 * HIDDEN, HIDDEN), block + "mlp.fc2": (HIDDEN, 4 * HIDDEN)})

    def add_ends(self):
        self.shapes["embedding.position.weight"] = (SEQUENCE, HIDDEN)

    def drawn(self, name, shape):
        if len(shape) == 1:
            return normal(name, shape, 1 if name.endswith("gain") else 0, 0.1)
        residual = name.endswith(("projection.weight", "fc2.weight"))
        return normal(name, shape, 0, 0.02 / math.sqrt(2 * self.layers) if residual else 0.02)

    def normed(self, x, name):
        gain = self.values[name + ".gain"]
        if not self.biases:
            return rms_norm(x, (HIDDEN,), gain, 1e-5)
        return layer_norm(x, (HIDDEN,), gain, self.values[name + ".bias"], 1e-5)

    def dense(self, x, name):
        return linear(x, self.values[name + ".weight"], self.values.get(name + ".bias"))

    def attention(self, x, block, **options):
        qkv = self.dense(self.normed(x, block + "norm1"), block + "attention.qkv")
        q, k, v = qkv.view(SEQUENCES, SEQUENCE, HEADS, 3, -1).permute(3, 0, 2, 1, 4)
        return self.dense(joined(scaled_dot_product_attention(q, k, v, **options)), block + "attention.projection")

    def perceptron(self, x, block):
        inner = self.dense(self.normed(x, block + "norm2"), block + "mlp.fc1")
        return self.dense(gelu(inner, approximate="tanh"), block + "mlp.fc2")

    def embedded(self, tokens):
        return embedding(tokens, self.values["embedding.token.weight"])

    def logits(self, tokens, *_):
        x = self.embedded(tokens) + self.values["embedding.position.weight"]
        for block in self.blocks():
            x = x + self.attention(x, block, is_causal=True)
            x = x + self.perceptron(x, block)
        return self.normed(x, "head.norm") @ self.values["embedding.token.weight"].T

    def auxiliary(self):
        """Returns the part of the loss that is not of the logits."""
        return 0

    def sequence(self, _):
        """Returns tokens, targets, the decoder's tokens or the types, and the length."""
        return list(TEXT[:SEQUENCE]), list(TEXT[1:SEQUENCE + 1]), [0] * SEQUENCE, SEQUENCE


class Sparse(Model):
    """Attention over blocks of 16 in DeepSpeed's mode fixed (sparsity_config.py, FixedSparsityConfig): windows of two blocks,
    of which every later query sees the last one in even heads, and the first one in odd heads."""

    def attention(self, x, block, **_):
        position = torch.arange(SEQUENCE)
        query, key = position[:, None] // 16, position[None, :] // 16
        heads = [(query // 2 == key // 2) | (key % 2 == 1 - head % 2) for head in range(HEADS)]
        return super().attention(x, block, attn_mask=torch.stack(heads) & (position[:, None] >= position[None, :]))


class Bert(Model):
    vocabulary = 384

    def add_ends(self):
        super().add_ends()
        self.shapes.update({"embedding.type.weight": (2, HIDDEN), "head.output.bias": (self.vocabulary,)})
        self.norms.append("head.transform.norm")
        self.linears["head.transform"] = (HIDDEN, HIDDEN)

    def logits(self, tokens, types, lengths):
        x = self.embedded(tokens) + self.values["embedding.position.weight"]
        x = x + embedding(types, self.values["embedding.type.weight"])
        for block in self.blocks():
            x = x + self.attention(x, block, attn_mask=seen_keys(lengths))
            x = x + self.perceptron(x, block)
        x = self.dense(self.normed(x, "head.norm"), "head.transform")
        x = self.normed(gelu(x, approximate="tanh"), "head.transform.norm")
        return linear(x, self.values["embedding.token.weight"], self.values["head.output.bias"])

    def sequence(self, index):
        tokens, length = list(TEXT[:SEQUENCE]), prefix_length(index)
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
                tokens[i] = self.vocabulary - 1
            elif way < 0.9:
                tokens[i] = int(uniform("masked.random", at) * self.vocabulary)
        return tokens, targets, types, length


class T5(Model):
    layers, biases = 4, False

    def add_block(self, index, block):
        super().add_block(index, block)
        if 2 * index >= self.layers:
            self.norms.append(block + "cross_norm")
            self.linears.update({block + "cross.q": (HIDDEN, HIDDEN), block + "cross.kv": (2 * HIDDEN, HIDDEN),
                                 block + "cross.projection": (HIDDEN, HIDDEN)})

    def add_ends(self):
        self.norms.append(self.blocks()[self.layers // 2 - 1] + "end")
        self.shapes.update({f"embedding.{stack}_bias.weight": (HEADS, BUCKETS) for stack in ("encoder", "decoder")})

    def bias(self, stack):
        """Returns [heads, queries, keys], with the buckets of transformers' T5Attention."""
        position = torch.arange(SEQUENCE)
        behind = position[:, None] - position[None, :]  # of the key
        count = BUCKETS // 2 if stack == "encoder" else BUCKETS
        bucket = torch.zeros_like(behind)
        if stack == "encoder":
            bucket += (behind < 0) * count
            behind = behind.abs()
        else:
            behind = behind.clamp(min=0)
        exact = count // 2
        large = exact + (torch.log2(behind.double().clamp(min=1) / exact) / math.log2(128 / exact) * (count - exact)).long()
        bucket += torch.where(behind < exact, behind, large.clamp(max=count - 1))
        return self.values[f"embedding.{stack}_bias.weight"][:, bucket]

    def cross(self, x, encoded, block, seen):
        q = self.dense(self.normed(x, block + "cross_norm"), block + "cross.q").view(SEQUENCES, SEQUENCE, HEADS, -1)
        k, v = self.dense(encoded, block + "cross.kv").view(SEQUENCES, SEQUENCE, 2, HEADS, -1).permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(q.transpose(1, 2), k, v, attn_mask=seen, scale=1)
        return self.dense(joined(attended), block + "cross.projection")

    def logits(self, tokens, decoder_tokens, lengths):
        seen, encoded, half = seen_keys(lengths), self.embedded(tokens), self.layers // 2
        padding = torch.where(seen, 0.0, -math.inf)
        for block in self.blocks()[:half]:
            encoded = encoded + self.attention(encoded, block, attn_mask=self.bias("encoder") + padding, scale=1)
            encoded = encoded + self.perceptron(encoded, block)
        encoded = self.normed(encoded, self.blocks()[half - 1] + "end")
        x = self.embedded(decoder_tokens)
        later = torch.full((SEQUENCE, SEQUENCE), -math.inf, dtype=x.dtype).triu(1)
        for block in self.blocks()[half:]:
            x = x + self.attention(x, block, attn_mask=self.bias("decoder") + later, scale=1)
            x = x + self.cross(x, encoded, block, seen)
            x = x + self.perceptron(x, block)
        return self.normed(x, "head.norm") @ self.values["embedding.token.weight"].T

    def sequence(self, index):
        length = prefix_length(index)
        tokens = list(TEXT[:length]) + [0] * (SEQUENCE - length)
        both = 2 * SEQUENCE
        return tokens, list(TEXT[SEQUENCE + 1:both + 1]), list(TEXT[SEQUENCE:both]), length


class Llama(Model):
    """RMSNorm, SwiGLU, rotary positions in halves as in GPT-NeoX, two heads of queries for each of keys, no biases, and
    an output weight of its own."""
    biases, heads, groups, inner = False, 8, 4, 96

    def add_block(self, index, block):
        super().add_block(index, block)
        head = HIDDEN // self.heads
        self.linears.update({block + "attention.qkv": ((self.heads + 2 * self.groups) * head, HIDDEN),
                             block + "mlp.fc1": (2 * self.inner, HIDDEN), block + "mlp.fc2": (HIDDEN, self.inner)})

    def add_ends(self):
        self.shapes["head.output.weight"] = (self.vocabulary, HIDDEN)

    def turned(self, x):
        half = x.shape[-1] // 2
        angle = torch.arange(SEQUENCE).double()[:, None] * 10000.0 ** (-torch.arange(half).double() / half)
        first, second = x[..., :half], x[..., half:]
        return torch.cat((first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()), -1)

    def attention(self, x, block, **options):
        shared = self.heads // self.groups
        rows = self.dense(self.normed(x, block + "norm1"), block + "attention.qkv")
        rows = rows.view(SEQUENCES, SEQUENCE, self.groups, shared + 2, -1).transpose(1, 2)
        q = self.turned(rows[..., :shared, :].permute(0, 1, 3, 2, 4).flatten(1, 2))
        k = self.turned(rows[..., shared, :]).repeat_interleave(shared, 1)
        v = rows[..., shared + 1, :].repeat_interleave(shared, 1)
        return self.dense(joined(scaled_dot_product_attention(q, k, v, **options)), block + "attention.projection")

    def perceptron(self, x, block):
        gate, up = self.dense(self.normed(x, block + "norm2"), block + "mlp.fc1").chunk(2, -1)
        return self.dense(silu(gate) * up, block + "mlp.fc2")

    def logits(self, tokens, *_):
        x = self.embedded(tokens)
        for block in self.blocks():
            x = x + self.attention(x, block, is_causal=True)
            x = x + self.perceptron(x, block)
        return linear(self.normed(x, "head.norm"), self.values["head.output.weight"])


class Experts(Model):
    """A mixture of experts after Megatron-Core's router (topk_softmax_with_capacity, switch_load_balancing_loss_func,
    z_loss_func). A sequence is a micro-batch, whose losses are means over its tokens. `parts` ranks of tp route a part of
    it each, with a capacity for each expert (0: none)."""
    experts, topk, aux_coefficient, z_coefficient = 4, 2, 0.01, 0.001

    def __init__(self, parts=1, capacity=0):
        super().__init__()
        self.parts, self.capacity, self.dropped = parts, capacity, 0

    def add_block(self, index, block):
        super().add_block(index, block)
        perceptron = [self.linears.pop(block + f"mlp.{part}") for part in ("fc1", "fc2")]
        self.shapes[block + "moe.router.weight"] = (self.experts, HIDDEN)
        for expert in range(self.experts):
            for part, shape in zip(("fc1", "fc2"), perceptron, strict=True):
                self.linears[f"{block}moe.experts.{expert}.{part}"] = shape

    def perceptron(self, x, block):
        x = self.normed(x, block + "norm2")
        logits = linear(x, self.values[block + "moe.router.weight"])
        largest, chosen = torch.topk(logits, self.topk, -1)
        routed = torch.zeros_like(logits).scatter(-1, chosen, 1.0)
        gates = self.kept(torch.zeros_like(logits).scatter(-1, chosen, torch.softmax(largest, -1)))
        load = routed.sum(1) / (self.topk * SEQUENCE)
        aux = self.experts * (load * torch.softmax(logits, -1).mean(1)).sum(-1)
        z = torch.logsumexp(logits, -1).square().mean(1)
        self.losses.append((self.aux_coefficient * aux + self.z_coefficient * z).mean())
        out = 0
        for expert in range(self.experts):
            name = f"{block}moe.experts.{expert}."
            active = gelu(self.dense(x, name + "fc1"), approximate="tanh")
            out = out + gates[..., expert, None] * self.dense(active, name + "fc2")
        return out

    def kept(self, gates):
        """Drops the least probable tokens of each expert beyond its capacity."""
        if not self.capacity:
            return gates
        of_parts = gates.detach().view(SEQUENCES, self.parts, SEQUENCE // self.parts, self.experts)
        kept = torch.zeros_like(of_parts).scatter(2, torch.topk(of_parts, self.capacity, 2).indices, 1.0)
        self.dropped += int(((of_parts > 0) & (kept == 0)).sum())
        return gates * kept.view_as(gates)

    def logits(self, tokens, *others):
        self.losses = []
        return super().logits(tokens, *others)

    def auxiliary(self):
        return sum(self.losses)


def prefix_length(index):
    return SEQUENCE - int(uniform("masked.length", index) * ((SEQUENCE + 1) // 2))


def seen_keys(lengths):
    return torch.arange(SEQUENCE)[None, None, None, :] < lengths[:, None, None, None]


def joined(heads):
    return heads.transpose(1, 2).reshape(SEQUENCES, SEQUENCE, HIDDEN)


def losses(model, steps=STEPS):
    values = list(model.values.values())
    groups = [{"params": [value for value in values if (value.dim() > 1) == decays], "weight_decay": decay}
              for decays, decay in ((True, 0.01), (False, 0))]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.999), eps=1e-8)
    result = []
    for step in range(steps):
        columns = zip(*(model.sequence(step * SEQUENCES + i) for i in range(SEQUENCES)))
        tokens, targets, third, lengths = (torch.tensor(column) for column in columns)
        optimizer.zero_grad()
        loss = cross_entropy(model.logits(tokens, third, lengths).flatten(0, 1), targets.flatten())
        loss = loss + model.auxiliary()
        loss.backward()
        size = math.sqrt(sum(float((value.grad**2).sum()) for value in values))
        if size > 1:
            for value in values:
                value.grad /= size
        optimizer.step()
        result.append(loss.item())
    return result


def stored(folder, state):
    """Returns a state of all parameters from a checkpoint (zero/checkpoint/checkpoint.h): a piece is a range of the elements
    of a box of its tensor."""
    with open(os.path.join(folder, "index.json"), encoding="utf-8") as file:
        index = json.loads(file.read().rpartition("crc32c ")[0])
    tensors = {}
    for rank, part in enumerate(index["parts"]):
        with open(os.path.join(folder, f"{index['save']}-rank-{rank}-of-{len(index['parts'])}.part"), "rb") as file:
            written = file.read()
        for piece in part["pieces"]:
            name, _, of = piece["name"].rpartition("/")
            if of != state:
                continue
            tensor = tensors.setdefault(name, np.full(piece["global"], np.nan))
            places = tuple(slice(begin, begin + extent) for begin, extent in zip(piece["begin"], piece["extent"], strict=True))
            box, (first, last) = np.array(tensor[places], order="C"), piece["range"]
            box.reshape(-1)[first:last] = np.frombuffer(written, np.float32, last - first, piece["offset"])
            tensor[places] = box
    return tensors


class Losses(TemporaryFolder):
    def run_step(self, model, length, *words):
        with open(self.path("text"), "wb") as file:
            file.write(TEXT[:length + 1])
        case = one_case("gpt_step", ["--model", model, "--global-batch-size", str(SEQUENCES), *words])
        done = shardmark("run", "gpt_step", *case, "--data", self.path("text"), "--seed", str(SEED), "--reference", "none",
                         "--max-seconds", "0.01", "--no-limits", "--out", self.path("run"), env=NO_FIGURES)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def compare_gradients(self, model, theirs, length, *words):
        """Adam's first moment after a step is a tenth of the gradient. The bound is that of suite/training_step/reference.h:
        a relative error in the 2-norm of 4 1.03^(blocks passed) (2 + sqrt(n)) u, with sums of at most n terms."""
        self.run_step(model, length, *words, "--train-iters", "1", "--save", self.path("saved"))
        losses(theirs, 1)
        moments, terms = stored(self.path("saved"), "first_moment"), max(4 * HIDDEN, SEQUENCES * SEQUENCE)
        self.assertEqual(sorted(moments), sorted(theirs.values))
        worst = 0
        for name, value in theirs.values.items():
            layer = int(name.split(".")[1]) + 1 if name.startswith("blocks.") else theirs.layers + 1 if "head" in name else 0
            bound = 4 * 1.03**(theirs.layers + 1 - layer) * (2 + math.sqrt(terms)) * 2**-24
            want = value.grad.numpy()
            error, size = np.linalg.norm(moments[name] * 10 - want), np.linalg.norm(want)
            self.assertLessEqual(error, bound * size, name)  # an expert without tokens has no gradient
            worst = max(worst, error / bound / size if size else 0)
        print(f"{model}: {len(moments)} gradients, the worst at {worst:.2f} of its bound")

    def compare(self, model, theirs, length, *words):
        self.run_step(model, length, *words)
        want = losses(theirs)
        record, = read_run(self.path("run"))["benchmarks"]
        for step, (mine, exact) in enumerate(zip(record["losses"], want, strict=True), 1):
            print(f"{model}, step {step}: {mine}, relative difference {mine / exact - 1:.1e}")
            self.assertLess(abs(mine / exact - 1), 1e-6, f"step {step}: {mine}, PyTorch {exact}")

    def test_bert(self):
        self.compare("bert_tiny", Bert(), SEQUENCE, "--ranks", "8", "--tensor-model-parallel-size", "2",
                     "--pipeline-model-parallel-size", "2", "--data-parallel-size", "2", "--sequence-parallel", "on",
                     "--zero-stage", "1")

    def test_t5(self):
        self.compare("t5_tiny", T5(), 2 * SEQUENCE, "--ranks", "8", "--tensor-model-parallel-size", "2",
                     "--pipeline-model-parallel-size", "2", "--data-parallel-size", "2", "--sequence-parallel", "on",
                     "--zero-stage", "1")

    def test_gpt2(self):
        self.compare("tiny", Model(), SEQUENCE, "--ranks", "4", "--tensor-model-parallel-size", "2",
                     "--data-parallel-size", "2", "--sequence-parallel", "off", "--zero-stage", "2")

    def test_sparse_attention(self):
        words = ["--seq-length", "64", "--sparse-attention", "fixed", "--model-args=--sparse-attention-num-local-blocks 2 "
                 "--sparse-attention-different-layout-per-head --sparse-attention-num-different-global-patterns 2",
                 "--ranks", "4", "--tensor-model-parallel-size", "4", "--sequence-parallel", "on", "--zero-stage", "1"]
        with mock.patch.object(sys.modules[__name__], "SEQUENCE", 64):
            self.compare("tiny", Sparse(), SEQUENCE, *words)
            self.compare_gradients("tiny", Sparse(), SEQUENCE, *words)

    def test_llama(self):
        self.compare("llama_tiny", Llama(), SEQUENCE, "--ranks", "8", "--tensor-model-parallel-size", "2",
                     "--pipeline-model-parallel-size", "2", "--data-parallel-size", "2", "--sequence-parallel", "on",
                     "--zero-stage", "3")

    def test_experts(self):
        self.compare("moe_tiny", Experts(), SEQUENCE, "--ranks", "4", "--pipeline-model-parallel-size", "2",
                     "--data-parallel-size", "2", "--expert-model-parallel-size", "2", "--zero-stage", "1")

    def test_experts_over_tp(self):
        for capacity, arguments, etp in ((0, "none", "2"), (6, "--moe-expert-capacity-factor 0.75", "2"),
                                         (6, "--moe-expert-capacity-factor 0.75", "1")):
            with self.subTest(capacity=capacity, etp=etp):
                words = ["--ranks", "8", "--tensor-model-parallel-size", "2", "--data-parallel-size", "4",
                         "--expert-model-parallel-size", "4", "--expert-tensor-parallel-size", etp, "--sequence-parallel",
                         "on", "--zero-stage", "1", "--model-args=" + arguments]
                theirs = Experts(parts=2, capacity=capacity)
                self.compare("moe_tiny", theirs, SEQUENCE, *words)
                self.assertEqual(theirs.dropped > 0, capacity > 0)
                self.compare_gradients("moe_tiny", Experts(parts=2, capacity=capacity), SEQUENCE, *words)

    def test_experts_over_cp(self):
        self.compare_gradients("moe_tiny", Experts(), SEQUENCE, "--ranks", "4", "--context-parallel-size", "2",
                               "--cp-comm-type", "p2p", "--cp-placement", "zigzag", "--data-parallel-size", "2",
                               "--expert-model-parallel-size", "4", "--use-flash-attn", "on", "--zero-stage", "3")


if __name__ == "__main__":
    unittest.main()
