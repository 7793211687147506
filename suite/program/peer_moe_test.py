#!/usr/bin/env python3
"""The reference of a mixture of experts (suite/reference/moe_reference.h), compared with PyTorch.

The router is that of Megatron-Core (megatron/core/transformer/moe/moe_utils.py: topk_softmax_with_capacity,
switch_load_balancing_loss_func, z_loss_func), the gradients are autograd's. Both sides compute in double."""

import os
import subprocess
import sys
import unittest

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    print("skipped: torch is not installed")
    sys.exit(77)

RANKS, TOKENS, HIDDEN, FFN, SHARED, EXPERTS = 2, 9, 6, 10, 5, 4
LOSS_FACTOR, AUX, Z = 0.75, 2, 0.5
# The longest sums have some hundred terms, each rounded once as a product and once as part of the sum.
BOUND = 300 * 2.0**-53


def values_of(*options):
    words = [os.environ["SHARDMARK_MOE_VALUES"], *map(str, options)]
    lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    return {line.split()[0]: torch.tensor([float(word) for word in line.split()[1:]]) for line in lines}


def perceptron(values, name, ffn, swiglu):
    shapes = {"weight1": (2 * ffn if swiglu else ffn, HIDDEN), "weight2": (HIDDEN, ffn)}
    parts = {key: values[f"{name}.{key}"].view(shape) for key, shape in shapes.items()}
    if not swiglu:
        parts.update({key: values[f"{name}.{key}"] for key in ("bias1", "bias2")})
    return {key: value.clone().requires_grad_() for key, value in parts.items()}


def apply(p, x, swiglu):
    inner = F.linear(x, p["weight1"], p.get("bias1"))
    if swiglu:
        gate, up = inner.chunk(2, -1)
        active = F.silu(gate) * up
    else:
        active = F.gelu(inner, approximate="tanh")
    return F.linear(active, p["weight2"], p.get("bias2"))


def route(logits, topk, softmax_over_all, capacity):
    """Returns the weights [tokens, experts] after drops, and the choices of each expert before them."""
    if softmax_over_all:
        weights, chosen = torch.topk(torch.softmax(logits, -1), topk, -1)
    else:
        largest, chosen = torch.topk(logits, topk, -1)
        weights = torch.softmax(largest, -1)
    gates = torch.zeros_like(logits).scatter(1, chosen, weights)
    routed = torch.zeros_like(logits).scatter(1, chosen, 1.0)
    if capacity:
        _, kept = torch.topk(gates, capacity, 0)
        gates = gates * torch.zeros_like(logits).scatter(0, kept, 1.0) * routed
    return gates, routed.sum(0)


class PeerMoe(unittest.TestCase):
    def expect(self, name, got, want):
        self.assertGreater(want.norm().item(), 0, name)
        self.assertLessEqual((got.detach().flatten() - want).norm().item(), BOUND * want.norm().item(), name)

    def test_the_reference_equals_autograd(self):
        torch.set_default_dtype(torch.float64)
        for topk, swiglu, over_all, capacity in ((1, 0, 1, 0), (2, 0, 0, 0), (2, 1, 1, 0), (2, 1, 0, 3), (3, 0, 1, 5)):
            with self.subTest(topk=topk, swiglu=swiglu, over_all=over_all, capacity=capacity):
                self.compare(topk, swiglu, over_all, capacity)

    def compare(self, topk, swiglu, over_all, capacity):
        values = values_of(topk, swiglu, over_all, capacity)
        x = values["x"].view(-1, HIDDEN).clone().requires_grad_()
        router = values["router"].view(EXPERTS, HIDDEN).clone().requires_grad_()
        experts = [perceptron(values, f"expert{e}", FFN, swiglu) for e in range(EXPERTS)]
        shared = perceptron(values, "shared", SHARED, swiglu)
        outputs, aux, z = [], [], []
        for own in x.chunk(RANKS):  # a rank's tokens
            logits = own @ router.T
            gates, load = route(logits, topk, over_all, capacity)
            outputs.append(sum(gates[:, e:e + 1] * apply(experts[e], own, swiglu) for e in range(EXPERTS))
                           + apply(shared, own, swiglu))
            p = torch.softmax(logits, -1)
            aux.append(AUX * EXPERTS / (topk * TOKENS * TOKENS) * torch.sum(p.sum(0) * load))
            z.append(Z * torch.mean(torch.logsumexp(logits, -1) ** 2))
        y = torch.cat(outputs)
        loss = (y.flatten() * values["d_y"]).sum() + LOSS_FACTOR * (sum(aux) + sum(z))
        loss.backward()
        for name, got in (("y", y), ("d_x", x.grad), ("d_router", router.grad), ("aux_loss", torch.stack(aux)),
                          ("z_loss", torch.stack(z))):
            self.expect(name, got, values[name])
        for name, p in [("shared", shared)] + [(f"expert{e}", experts[e]) for e in range(EXPERTS)]:
            for key, value in p.items():
                self.expect(f"d_{name}.{key}", value.grad, values[f"d_{name}.{key}"])


if __name__ == "__main__":
    unittest.main()
