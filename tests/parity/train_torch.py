#!/usr/bin/env python3
"""Trains GPT-2 in plain PyTorch exactly as ./train_gpt2_fp8 does: same initial weights, same data in the same order,
same schedule, same AdamW, same validation sequences. What differs is the arithmetic, so the curves must agree.

usage: train_torch.py --train SHARD.bin --val SHARD.bin --out curve.jsonl [options]

Writes one JSON object a line, with the keys of metrics.jsonl of our runs: {"step":1,"loss":..,"lr":..}, {"step":50,"val_loss":..}.
"""
import argparse
import json
import math
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

VOCAB, PADDED_VOCAB = 50257, 50304
SHAPES = {  # layers, heads, channels
    "nano": (4, 4, 64),
    "gpt2": (12, 12, 768),
    "gpt2-medium": (24, 16, 1024),
    "gpt2-large": (36, 20, 1280),
    "gpt2-xl": (48, 25, 1600),
}


# ---- random numbers: engine/base/rng.h ----

MASK = (1 << 64) - 1


def mix64(x):
    """splitmix64's finaliser, on an int or on an array of uint64."""
    if isinstance(x, int):
        x = (x + 0x9E3779B97F4A7C15) & MASK
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
        return x ^ (x >> 31)
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def rng_key(seed, stream):
    return mix64((seed ^ mix64(stream)) & MASK)


def uniform(key, index):
    bits = mix64(np.uint64(key) ^ mix64(index))
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def normal(key, begin, end):
    """Standard normals number begin..end-1 of a stream, by Box-Muller."""
    index = np.arange(begin, end, dtype=np.uint64) * np.uint64(2)
    u = 1.0 - uniform(key, index)
    v = uniform(key, index + np.uint64(1))
    return np.sqrt(-2.0 * np.log(u)) * np.cos(6.283185307179586 * v)


# ---- data: engine/data/{shard_bin,permutation,dataset,loader}.cpp ----


def read_shard(path):
    header = np.fromfile(path, dtype="<i4", count=256)
    if len(header) < 256 or header[0] != 20240520 or header[1] != 1:
        raise SystemExit(f"{path} is not an llm.c token shard; unpack it first if it is compressed")
    return np.memmap(path, dtype="<u2", mode="r", offset=1024, shape=(int(header[2]),))


def permutation(size, seed):
    """The Feistel network with cycle walking, applied to 0..size-1."""
    half = np.uint64((max(size - 1, 1).bit_length() + 1) // 2)
    mask = (np.uint64(1) << half) - np.uint64(1)
    seed = mix64(seed)
    keys = [np.uint64(mix64((seed + turn) & MASK)) for turn in range(6)]

    def once(index):
        left, right = index >> half, index & mask
        for key in keys:
            left, right = right, left ^ (mix64(right ^ key) & mask)
        return left << half | right

    result = once(np.arange(size, dtype=np.uint64))
    while (outside := result >= size).any():
        result[outside] = once(result[outside])
    return result.astype(np.int64)


class Sequences:
    """A shard cut into sequences of T + 1 tokens, stride T."""

    def __init__(self, path, seq_len):
        self.tokens, self.seq_len = read_shard(path), seq_len
        self.count = (len(self.tokens) - 1) // seq_len
        if self.count < 1:
            raise SystemExit(f"{path} holds no sequence of {seq_len} + 1 tokens")

    def batch(self, numbers, device):
        rows = np.stack([self.tokens[n * self.seq_len : n * self.seq_len + self.seq_len + 1] for n in numbers])
        rows = torch.from_numpy(rows.astype(np.int64))
        if device.type == "cuda":
            rows = rows.pin_memory().to(device, non_blocking=True)
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


class Order:
    """Which sequence is sample number n of a run: every epoch a new permutation."""

    def __init__(self, count, seed):
        self.count, self.seed, self.epochs = count, seed, {}

    def __getitem__(self, sample):
        epoch, index = divmod(sample, self.count)
        if epoch not in self.epochs:
            epoch_seed = mix64(rng_key(self.seed, epoch) ^ mix64(0))
            self.epochs[epoch] = permutation(self.count, epoch_seed)
        return int(self.epochs[epoch][index])


# ---- model ----


HAS_SDPA = hasattr(F, "scaled_dot_product_attention")


def attention(q, k, v):
    if HAS_SDPA:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[3])  # PyTorch before 2.0
    future = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(future, float("-inf")).softmax(dim=-1) @ v


class Block(nn.Module):
    def __init__(self, heads, channels):
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(channels)
        self.attn = nn.ModuleDict({"c_attn": nn.Linear(channels, 3 * channels), "c_proj": nn.Linear(channels, channels)})
        self.ln_2 = nn.LayerNorm(channels)
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(channels, 4 * channels), "c_proj": nn.Linear(4 * channels, channels)})

    def forward(self, x):
        B, T, C = x.shape
        qkv = self.attn["c_attn"](self.ln_1(x)).view(B, T, 3, self.heads, C // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (B, NH, T, HS) each
        x = x + self.attn["c_proj"](attention(q, k, v).transpose(1, 2).reshape(B, T, C))
        return x + self.mlp["c_proj"](F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    """Its parameters have our names and shapes and come in our order; weights are (out, in)."""

    def __init__(self, layers, heads, channels, seq_len):
        super().__init__()
        self.wte = nn.Embedding(PADDED_VOCAB, channels)
        self.wpe = nn.Embedding(seq_len, channels)
        self.h = nn.ModuleList(Block(heads, channels) for _ in range(layers))
        self.ln_f = nn.LayerNorm(channels)

    def forward(self, inputs, targets):
        """The sum of the losses, in nats."""
        x = self.wte(inputs) + self.wpe(torch.arange(inputs.shape[1], device=inputs.device))
        for block in self.h:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)[..., :VOCAB].float()  # padding takes no part in the softmax
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


def initial_value(name, shape, stream, layers, seed):
    """engine/model/parameters.cpp: one stream of random numbers a tensor, one index an element."""
    values = np.zeros(shape, dtype=np.float32)
    if len(shape) == 1:
        values.fill(1 if name.endswith(".weight") else 0)
        return values
    deviation = float(np.float32(0.02 / math.sqrt(2.0 * layers) if name.endswith("c_proj.weight") else 0.02))
    count = (VOCAB if name == "wte.weight" else shape[0]) * shape[1]
    flat, key, chunk = values.reshape(-1), rng_key(seed, stream), 1 << 18

    def fill(begin):
        end = min(begin + chunk, count)
        flat[begin:end] = deviation * normal(key, begin, end)

    with ThreadPoolExecutor() as pool:  # NumPy lets go of the interpreter's lock
        list(pool.map(fill, range(0, count, chunk)))
    return values


@torch.no_grad()
def initialize(model, seed):
    for stream, (name, parameter) in enumerate(model.named_parameters()):
        parameter.copy_(torch.from_numpy(initial_value(name, tuple(parameter.shape), stream, len(model.h), seed)))


# ---- training ----


def learning_rate(step, max_lr, min_lr_ratio, warmup, steps):
    """engine/options/lr_schedule.cpp, cosine; `step` counts from 0."""
    max_lr, low = float(np.float32(max_lr)), float(np.float32(min_lr_ratio))
    if step < warmup:
        return max_lr * (step + 1) / warmup
    last = steps - 1
    progress = 1.0 if step >= last else (step - warmup) / (last - warmup)
    return max_lr * (low + (1 - low) * 0.5 * (1 + math.cos(math.pi * progress)))


def make_optimizer(model, device):
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    fused = {"fused": True} if device.type == "cuda" else {}
    return torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95), eps=1e-8, **fused)


class Trainer:
    def __init__(self, args):
        self.args = args
        self.device = torch.device(args.device)
        layers, heads, channels = SHAPES[args.model]
        layers, heads, channels = args.layers or layers, args.heads or heads, args.channels or channels
        self.model = GPT2(layers, heads, channels, args.seq_len)
        initialize(self.model, args.seed)
        self.model.to(self.device)
        self.optimizer = make_optimizer(self.model, self.device)
        self.train, self.val = Sequences(args.train, args.seq_len), Sequences(args.val, args.seq_len)
        self.order = Order(self.train.count, args.seed)
        self.accumulation, rest = divmod(args.target_batch_size, args.batch_size)
        if rest:
            raise SystemExit("--target_batch_size must be a multiple of --batch_size")
        self.loss_sum = self.compiled() if args.compile else self.model

    def compiled(self):
        """The compiled model, once it has run forward and backward; where that fails, the model itself."""
        loss_sum = torch.compile(self.model)
        begin = time.perf_counter()
        try:
            with self.precision():
                loss = loss_sum(*self.train.batch(range(self.args.batch_size), self.device))
            loss.backward()
        except Exception as error:  # whatever the compiler's many parts may raise
            print(f"torch.compile failed, training goes on uncompiled: {type(error).__name__}", flush=True)
            loss_sum = self.model
        self.optimizer.zero_grad(set_to_none=True)
        print(f"torch.compile: {time.perf_counter() - begin:.0f} s", flush=True)
        return loss_sum

    def precision(self):
        return torch.autocast(self.device.type, torch.bfloat16) if self.args.precision == "bf16" else nullcontext()

    def step(self, number):
        """One optimizer step on the mean over its tokens; returns loss, gradient norm and learning rate."""
        args = self.args
        total = torch.zeros((), device=self.device)
        for i in range(self.accumulation):
            first = number * args.target_batch_size + i * args.batch_size
            inputs, targets = self.train.batch([self.order[first + row] for row in range(args.batch_size)], self.device)
            with self.precision():
                loss = self.loss_sum(inputs, targets) / (args.target_batch_size * args.seq_len)
            loss.backward()
            total += loss.detach()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        lr = learning_rate(number, args.max_lr, args.min_lr_ratio, args.warmup, args.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return total.item(), norm.item(), lr

    @torch.no_grad()
    def evaluate(self):
        """The first sequences of the set in order. Not compiled: a second graph would cost more than it saves."""
        count = min(self.args.eval_sequences, self.val.count)
        total = 0.0
        for first in range(0, count, self.args.batch_size):
            numbers = range(first, min(first + self.args.batch_size, count))
            with self.precision():
                total += self.model(*self.val.batch(numbers, self.device)).item()
        return total / (count * self.args.seq_len)

    def run(self):
        args = self.args
        with open(args.out, "w") as out:

            def write(**values):
                print(json.dumps(values), file=out, flush=True)

            def evaluate(step):
                val_loss = self.evaluate()
                write(step=step, val_loss=val_loss)
                print(f"step {step} | val loss: {val_loss:.6f}", flush=True)

            evaluate(0)
            for number in range(args.steps):
                begin = time.perf_counter()
                loss, norm, lr = self.step(number)
                speed = args.target_batch_size * args.seq_len / (time.perf_counter() - begin)
                write(step=number + 1, loss=loss, grad_norm=norm, lr=lr, tokens_per_sec=speed)
                done = number + 1
                if done % 10 == 0 or done == 1:
                    print(f"step {done}/{args.steps} | loss: {loss:.6f} | norm: {norm:.4f} | {speed:,.0f} tok/s", flush=True)
                if done % args.eval_every == 0 or done == args.steps:
                    evaluate(done)


def parse_arguments():
    cuda = torch.cuda.is_available()
    p = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument("--train", required=True, help="training shard (.bin)")
    p.add_argument("--val", required=True, help="validation shard (.bin)")
    p.add_argument("--out", required=True, help="the curve, JSON lines")
    p.add_argument("--model", choices=SHAPES, default="gpt2", help="shape")
    for name in ("layers", "heads", "channels"):
        p.add_argument("--" + name, type=int, default=0, help="instead of the model's")
    p.add_argument("--seq_len", type=int, default=1024)
    p.add_argument("--batch_size", type=int, default=64, help="sequences per micro-batch")
    p.add_argument("--target_batch_size", type=int, default=256, help="sequences per optimizer step")
    p.add_argument("--steps", type=int, default=300)
    p.add_argument("--max_lr", type=float, default=6e-4)
    p.add_argument("--warmup", type=int, default=30, help="steps of linear warm-up")
    p.add_argument("--min_lr_ratio", type=float, default=0.1)
    p.add_argument("--eval_every", type=int, default=50)
    p.add_argument("--eval_sequences", type=int, default=256)
    p.add_argument("--seed", type=int, default=1337)
    p.add_argument("--device", default="cuda" if cuda else "cpu")
    p.add_argument("--precision", choices=("bf16", "fp32"), default="bf16" if cuda else "fp32")
    p.add_argument("--compile", action=argparse.BooleanOptionalAction, default=cuda, help="torch.compile")
    return p.parse_args()


if __name__ == "__main__":
    Trainer(parse_arguments()).run()
