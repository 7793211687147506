"""A training step of GPT-2 124M in PyTorch on the CPU. scripts/compare_training starts it.

    torch_step.py eager|compile float|bfloat16 MICRO_BATCH SEQUENCE THREADS

Runs a step for every character read, and prints its seconds: `step TOTAL FORWARD BACKWARD OPTIMIZER`, then its loss.
The model is plain: learned positions, norms before the blocks, GELU by tanh, a tied head, no dropout, attention by
scaled_dot_product_attention, cross-entropy over the vocabulary with its padding. AdamW has the hyperparameters of
`shardmark run training_speed`, with the gradient clipped to norm 1; only matrices decay. bfloat16 is autocast over
float weights. compile is torch.compile of the model with its loss; the first step compiles.
"""
import sys
import time

import torch
from torch import nn
from torch.nn import functional

TOKENS, ROWS, HIDDEN, LAYERS, HEADS, POSITIONS = 50257, 50304, 768, 12, 12, 1024


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.qkv, self.projection = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.wide, self.narrow = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x):
        batch, sequence, _ = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(batch, sequence, 3, HEADS, HIDDEN // HEADS).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(batch, sequence, HIDDEN))
        return x + self.narrow(functional.gelu(self.wide(self.norm_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(ROWS, HIDDEN), nn.Embedding(POSITIONS, HIDDEN)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(HIDDEN)
        for part in self.modules():
            if isinstance(part, (nn.Linear, nn.Embedding)):
                nn.init.normal_(part.weight, std=0.02)
            if isinstance(part, nn.Linear):
                nn.init.zeros_(part.bias)

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions.weight[:tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = functional.linear(self.norm(x), self.tokens.weight)
        return functional.cross_entropy(logits.view(-1, ROWS), targets.reshape(-1))


def adamw(parameters):
    groups = [{"params": [one for one in parameters if one.dim() > 1], "weight_decay": 0.01},
              {"params": [one for one in parameters if one.dim() == 1], "weight_decay": 0}]
    options = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8}
    try:
        return torch.optim.AdamW(groups, **options, fused=True)
    except RuntimeError:  # before PyTorch 2.4 only on GPUs
        return torch.optim.AdamW(groups, **options, foreach=True)


def main():
    mode, dtype, batch, sequence, threads = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
    torch.set_num_threads(threads)
    torch.manual_seed(1234)
    model = Gpt2()
    parameters = list(model.parameters())
    optimizer = adamw(parameters)
    loss_of = torch.compile(model) if mode == "compile" else model
    while sys.stdin.read(1):
        drawn = torch.randint(TOKENS, (batch, sequence + 1))
        begin = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            loss = loss_of(drawn[:, :-1], drawn[:, 1:])
        forward = time.perf_counter()
        loss.backward()
        backward = time.perf_counter()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        end = time.perf_counter()
        print("step", f"{end - begin:.6f} {forward - begin:.6f} {backward - forward:.6f} {end - backward:.6f}",
              f"{loss.item():.6f}", flush=True)


main()
