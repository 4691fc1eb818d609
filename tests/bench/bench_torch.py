#!/usr/bin/env python3
"""Tokens per second of GPT-2 in PyTorch, to stand beside bench_gpt2 of the same run on the same GPU.

usage: bench_torch.py [--models gpt2,gpt2-medium] [--precisions bf16,fp8] [--batch 64] [--step_tokens 524288] [--steps 3]

torch.compile, autocast to BF16, a residual stream in BF16, FlashAttention, fused AdamW, clipping: what a PyTorch user
gets without kernels of one's own. fp8: the linear layers of the blocks call torch._scaled_mm with dynamic scales, one
a tensor: E4M3 forward, E5M2 gradients. The tokens are bench_gpt2's. Exit status 77: no torch, or no GPU for it.
"""
import argparse
import os
import statistics
import sys
import time

try:
    import numpy as np
    import torch
except ImportError:
    print("skipped: no torch")
    sys.exit(77)

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "parity"))
from train_torch import GPT2, SHAPES, VOCAB, make_optimizer, rng_key, uniform  # noqa: E402

SEQ_LEN = 1024


def to_fp8(x, dtype):
    """x in FP8 and the factor that takes it back: its largest absolute value becomes the format's."""
    scale = torch.finfo(dtype).max / x.abs().amax().float().clamp(min=1e-12)
    return (x.float() * scale).to(dtype), scale.reciprocal()


def matmul_fp8(a, b):
    """a (M, K) times the transpose of b (N, K), both quantized and row-major: the only layout of the tensor cores."""
    return torch._scaled_mm(a[0], b[0].t(), scale_a=a[1], scale_b=b[1], out_dtype=torch.bfloat16, use_fast_accum=True)


def transposed(x):
    return x[0].t().contiguous(), x[1]


class LinearFp8(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        x, weight = to_fp8(x, torch.float8_e4m3fn), to_fp8(weight, torch.float8_e4m3fn)
        ctx.save_for_backward(*x, *weight)
        return matmul_fp8(x, weight)

    @staticmethod
    def backward(ctx, grad):
        x, x_scale, weight, weight_scale = ctx.saved_tensors
        grad = to_fp8(grad, torch.float8_e5m2)
        return (matmul_fp8(grad, transposed((weight, weight_scale))),
                matmul_fp8(transposed(grad), transposed((x, x_scale))).float())


class Fp8Linear(torch.nn.Linear):
    def forward(self, x):
        out = LinearFp8.apply(x.reshape(-1, self.in_features).bfloat16(), self.weight)
        return out.view(*x.shape[:-1], self.out_features) + self.bias.to(out.dtype)


class BenchGPT2(GPT2):
    """The mean loss. On a GPU the residual stream is in BF16: there, LayerNorm takes it."""

    def forward(self, inputs, targets):
        x = self.wte(inputs) + self.wpe.weight[: inputs.shape[1]]
        if x.is_cuda:
            x = x.bfloat16()
        for block in self.h:
            x = block(x)
        logits = torch.nn.functional.linear(self.ln_f(x), self.wte.weight)[..., :VOCAB]
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def use_fp8(model):
    for block in model.h:
        for part in (block.attn, block.mlp):
            for name, old in part.items():
                part[name] = Fp8Linear(old.in_features, old.out_features)


def draw_tokens(rows, seq_len, device):
    """bench_gpt2's: frequencies fall off as in text."""
    u = uniform(rng_key(7, 0), np.arange(2 * rows * seq_len, dtype=np.uint64))
    tokens = torch.from_numpy((VOCAB * u**3).astype(np.int64)).view(2, rows, seq_len).to(device)
    return tokens[0], tokens[1]


def bench(args, name, precision):
    device = torch.device(args.device)
    torch.manual_seed(1)
    model = BenchGPT2(*SHAPES[name], args.seq_len)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.02)
    if precision == "fp8":
        use_fp8(model)
    model.to(device)
    optimizer = make_optimizer(model, device)
    for group in optimizer.param_groups:
        group["lr"] = 1e-4
    inputs, targets = draw_tokens(args.batch, args.seq_len, device)
    loss_of = torch.compile(model) if args.compile else model

    def step(micro_steps):
        begin = time.perf_counter()
        for _ in range(micro_steps):
            with torch.autocast(device.type, torch.bfloat16):
                loss = loss_of(inputs, targets) / micro_steps
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss = loss.item() * micro_steps  # waits for the device
        return time.perf_counter() - begin, loss

    step(1)
    step(2)
    micro_steps = max(1, args.step_tokens // (args.batch * args.seq_len))
    seconds, losses = zip(*(step(micro_steps) for _ in range(args.steps)))
    tokens = micro_steps * args.batch * args.seq_len
    used = torch.cuda.max_memory_reserved() / 1e9 if device.type == "cuda" else 0
    print(f"{name:12s} {precision:5s} {args.batch:5d} {tokens / min(seconds):11.0f} {tokens / statistics.median(seconds):11.0f} "
          f"{1e3 * min(seconds):9.1f} {used:9.2f} {losses[-1]:9.4f}", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--models", default="gpt2")
    p.add_argument("--precisions", default="bf16,fp8")
    p.add_argument("--batch", type=int, default=64, help="sequences a micro-batch")
    p.add_argument("--seq_len", type=int, default=SEQ_LEN)
    p.add_argument("--step_tokens", type=int, default=524288)
    p.add_argument("--steps", type=int, default=3)
    p.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    p.add_argument("--no_compile", dest="compile", action="store_false")
    args = p.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        print("skipped: no GPU")
        return 77
    torch.backends.cuda.matmul.allow_tf32 = True
    where = torch.cuda.get_device_name() if args.device == "cuda" else "CPU"
    print(f"{where}, PyTorch {torch.__version__}, T={args.seq_len}, {args.step_tokens} tokens a step")
    print(f"{'model':12s} {'':5s} {'batch':>5s} {'tokens/s':>11s} {'median':>11s} {'ms/step':>9s} {'GB used':>9s} {'loss':>9s}")
    for model in args.models.split(","):
        for precision in args.precisions.split(","):
            bench(args, model, precision)
    return 0


if __name__ == "__main__":
    sys.exit(main())
