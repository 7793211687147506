#!/usr/bin/env python3
"""Times PyTorch on one GPU: matrix products, memory, attention, fused AdamW and a step of GPT-2 124M.

Needs PyTorch with CUDA, and transformers. Prints medians by CUDA's events as JSON.
"""
import json

import torch
from torch.nn import functional


def seconds_of(call, calls=20, warm_ups=5):
    for _ in range(warm_ups):
        call()
    torch.cuda.synchronize()
    begin, end, times = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True), []
    for _ in range(calls):
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return sorted(times)[len(times) // 2]


def products(rows):
    for dtype in (torch.bfloat16, torch.float32):
        for m, n, k in ((8192, 8192, 8192), (4096, 4096, 4096), (4096, 12288, 4096), (1024, 1024, 1024)):
            x = torch.randn(m, k, device="cuda", dtype=dtype)
            w = torch.randn(n, k, device="cuda", dtype=dtype)
            rows[f"linear {dtype} {m}x{n}x{k} TFLOP/s"] = 2 * m * n * k / seconds_of(lambda x=x, w=w: functional.linear(x, w)) / 1e12


def memory(rows):
    a = torch.empty(1 << 28, device="cuda")
    b, c = torch.empty_like(a), torch.empty_like(a)
    rows["copy 1 GiB GB/s"] = 8 * a.numel() / seconds_of(lambda: b.copy_(a)) / 1e9
    rows["add 1 GiB GB/s"] = 12 * a.numel() / seconds_of(lambda: torch.add(a, b, out=c)) / 1e9


def optimizer(rows):
    values = torch.nn.Parameter(torch.randn(1 << 25, device="cuda"))
    values.grad = torch.randn_like(values)
    rows["fused AdamW of 32 Mi floats ns/element"] = seconds_of(torch.optim.AdamW([values], fused=True).step) / values.numel() * 1e9


def attention(rows):
    for sequence, heads, dim, batch in ((1024, 12, 64, 8), (4096, 32, 128, 1)):
        q, k, v = (torch.randn(batch, heads, sequence, dim, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
        gradient = torch.randn_like(q)

        def forward(q=q, k=k, v=v):
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

        def both(q=q, k=k, v=v, gradient=gradient, forward=forward):
            torch.autograd.grad(forward(), (q, k, v), gradient)

        shape, flop = f"{batch}x{heads}x{sequence}x{dim}", batch * heads * sequence * sequence * dim
        rows[f"causal attention {shape} forward TFLOP/s"] = 2 * flop / seconds_of(forward) / 1e12
        rows[f"causal attention {shape} both passes TFLOP/s"] = 7 * flop / seconds_of(both) / 1e12


def gpt2(rows):
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(attn_pdrop=0, embd_pdrop=0, resid_pdrop=0, vocab_size=50304)).to("cuda")
    model.config._attn_implementation = "sdpa"
    adamw = torch.optim.AdamW(model.parameters(), fused=True)
    for batch, sequence in ((4, 256), (8, 1024)):
        tokens = torch.randint(0, 50257, (batch, sequence), device="cuda")

        def step(tokens=tokens):
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(tokens, labels=tokens).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            adamw.step()
            adamw.zero_grad()

        rows[f"GPT-2 124M, autocast to bfloat16, {batch} x {sequence} tokens/s"] = batch * sequence / seconds_of(step, 10, 3)


def main():
    torch.backends.cuda.matmul.allow_tf32 = False
    rows = {"torch": torch.__version__, "gpu": torch.cuda.get_device_name()}
    for part in (products, memory, optimizer, attention, gpt2):
        part(rows)
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
