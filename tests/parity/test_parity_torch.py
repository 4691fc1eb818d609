#!/usr/bin/env python3
"""Logits, loss and every accumulated gradient of the CPU engine against PyTorch's autograd in double precision, with
the same weights and a model written here; then the same within documents, with a block-diagonal causal mask.
test_parity_hf.py compares either engine with Hugging Face's.

usage: test_parity_torch.py PATH/TO/dump_gradients

Exit status: 0 they agree, 1 they do not, 77 PyTorch is not installed (ctest counts that as skipped).
"""
import sys
import tempfile

try:
    import numpy as np
    import torch
    import torch.nn.functional as F
    from torch import nn

    from gradient_dump import read_dump, write_dump
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

TOLERANCE = 1e-4  # norm of the difference / norm of PyTorch's, tensor by tensor


class Block(nn.Module):
    """A GPT-2 block with Hugging Face's names; weights are (out, in), as nn.Linear keeps them."""

    def __init__(self, channels, heads):
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(channels, eps=1e-5)
        self.attn = nn.ModuleDict(
            {"c_attn": nn.Linear(channels, 3 * channels), "c_proj": nn.Linear(channels, channels)}
        )
        self.ln_2 = nn.LayerNorm(channels, eps=1e-5)
        self.mlp = nn.ModuleDict(
            {"c_fc": nn.Linear(channels, 4 * channels), "c_proj": nn.Linear(4 * channels, channels)}
        )

    def forward(self, x, hidden):
        x = x + self.attn["c_proj"](self.attention(self.attn["c_attn"](self.ln_1(x)), hidden))
        return x + self.mlp["c_proj"](F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh"))

    def attention(self, qkv, hidden):
        batch, length, width = qkv.shape
        channels = width // 3
        shape = (batch, length, self.heads, channels // self.heads)
        q, k, v = (part.view(shape).transpose(1, 2) for part in qkv.split(channels, dim=2))
        scores = q @ k.transpose(2, 3) / shape[3] ** 0.5
        weights = scores.masked_fill(hidden[:, None], float("-inf")).softmax(dim=-1)
        return (weights @ v).transpose(1, 2).reshape(batch, length, channels)


class GPT2(nn.Module):
    def __init__(self, layers, heads, channels, positions, rows):
        super().__init__()
        self.wte = nn.Embedding(rows, channels)
        self.wpe = nn.Embedding(positions, channels)
        self.h = nn.ModuleList(Block(channels, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(channels, eps=1e-5)

    def forward(self, tokens, separator=None):
        """With a separator, a token attends within its document, and positions restart there."""
        index = torch.arange(tokens.shape[1]).expand_as(tokens)
        begin = torch.zeros_like(tokens) if separator is None else torch.where(tokens == separator, index, 0).cummax(1)[0]
        x = self.wte(tokens) + self.wpe(index - begin)
        hidden = (index[:, None] > index[:, :, None]) | (index[:, None] < begin[:, :, None])  # (batch, query, key)
        for block in self.h:
            x = block(x, hidden)
        return self.ln_f(x) @ self.wte.weight.T


class Comparison:
    def __init__(self):
        self.failures = 0
        self.worst = 0.0

    def check(self, name, ours, theirs, scale=None):
        """Relative to PyTorch's norm, or to `scale` where the true value is zero."""
        ours, theirs = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
        error = np.linalg.norm(ours - theirs) / (scale if scale is not None else np.linalg.norm(theirs))
        self.worst = max(self.worst, error)
        ok = bool(error < TOLERANCE)  # false for NaN
        self.failures += not ok
        if not ok:
            print(f"FAILED  {name}: relative error {error:.2e}")


def compare(command, separator=None):
    with tempfile.TemporaryDirectory() as folder:
        write_dump(command + ([] if separator is None else ["--separator", str(separator)]), folder)
        notes, dump = read_dump(folder)

    torch.set_default_dtype(torch.float64)  # the engine's FP32 is then the only rounding
    weights = {name[len("weight/"):]: torch.tensor(value, dtype=torch.float64)
               for name, value in dump.items() if name.startswith("weight/")}
    layers = sum(name.endswith("ln_1.weight") for name in weights)
    rows, channels = weights["wte.weight"].shape
    model = GPT2(layers, int(notes["heads"]), channels, weights["wpe.weight"].shape[0], rows)
    model.load_state_dict(weights)  # strict: every name and shape must match

    # Micro-batches accumulate what one batch of all their sequences gives.
    inputs, targets = (torch.tensor(dump[name]).long().flatten(0, 1) for name in ("inputs", "targets"))
    positions = [int(name[len("logits/"):]) for name in dump if name.startswith("logits/")]
    vocab = dump[f"logits/{positions[0]}"].shape[0]
    logits = model(inputs)[:, :, :vocab]  # softmax covers the real tokens only; generated text is one document
    trained = logits if separator is None else model(inputs, separator)[:, :, :vocab]
    loss = F.cross_entropy(trained.reshape(-1, vocab), targets.reshape(-1), ignore_index=-1, reduction="sum")
    loss.backward()

    comparison = Comparison()
    comparison.check("loss", dump["loss"][0], loss.item() / (targets >= 0).sum().item())
    for position in positions:
        comparison.check(f"logits of position {position}", dump[f"logits/{position}"], logits[0, position].detach())
    for name, parameter in model.named_parameters():
        ours, theirs = dump["gradient/" + name], parameter.grad.numpy()
        comparison.check("gradient of " + name, ours, theirs)
        if name.endswith("c_attn.bias"):  # softmax does not see a shift of all keys: that gradient is zero
            comparison.check("key part of " + name, ours[channels:2 * channels], theirs[channels:2 * channels],
                             scale=np.linalg.norm(theirs))
    tensors = len(weights)
    documents = "" if separator is None else f", {(inputs == separator).sum().item()} documents"
    print(f"torch {torch.__version__}{documents}: loss, {len(positions)} rows of logits and {tensors} gradients, "
          f"largest relative error {comparison.worst:.1e} (allowed {TOLERANCE:.0e}), {comparison.failures} failures")
    return comparison.failures


def main():
    return 1 if compare(sys.argv[1:]) + compare(sys.argv[1:], separator=3) else 0


if __name__ == "__main__":
    sys.exit(main())
