#!/usr/bin/env python3
"""Ten steps of the CPU engine under Muon against a plain PyTorch version in double precision, on the same gradients:
every weight after every step, with both of Muon's iterations.

usage: test_muon_torch.py PATH/TO/dump_gradients

Exit status: 0 they agree, 1 they do not, 77 PyTorch is not installed (ctest counts that as skipped).
"""
import os
import sys
import tempfile

os.environ["OMP_NUM_THREADS"] = "1"  # matrices are small: threads would wait for each other
try:
    import numpy as np
    import torch

    from gradient_dump import read_dump, write_dump
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

TOLERANCE = 1e-4  # norm of the difference / norm of the change since the first weights, tensor by tensor
STEPS = 10
BETA1, BETA2, EPS = 0.9, 0.95, 1e-8
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def orthogonalize(u):
    x = u.T if u.shape[0] > u.shape[1] else u
    x = x / (x.norm() + 1e-7)
    a, b, c = NEWTON_SCHULZ
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if u.shape[0] > u.shape[1] else x


class Reference:
    def __init__(self, weights, settings):
        self.weights = weights
        self.settings = settings
        self.m = {name: torch.zeros_like(w) for name, w in weights.items()}
        self.v = {name: torch.zeros_like(w) for name, w in weights.items()}
        self.applied = 0

    def step(self, gradients, tokens):
        s, squares = self.settings, {True: 0.0, False: 0.0}
        self.applied += 1
        norm = torch.sqrt(sum((g ** 2).sum() for g in gradients.values())) / tokens
        scale = min(1.0, (s["grad_clip"] / norm).item()) / tokens
        for name, w in self.weights.items():
            muon = name.startswith("h.") and w.dim() == 2
            update, lr = (self.muon if muon else self.adamw)(name, scale * gradients[name])
            squares[muon] += ((lr * update) ** 2).sum().item()
            w -= lr * (update + (s["weight_decay"] * w if w.dim() == 2 else 0))
        return squares[True] ** 0.5, squares[False] ** 0.5

    def muon(self, name, g):
        s = self.settings
        mu = 0.85 + (s["momentum"] - 0.85) * min(1.0, (self.applied - 1) / s["momentum_warmup"])
        self.m[name].lerp_(g, 1 - mu)
        parts = g.lerp(self.m[name], mu).chunk(3 if name.endswith("c_attn.weight") else 1)
        x = torch.cat([0.2 * max(part.shape) ** 0.5 * orthogonalize(part) for part in parts])
        return x, s["lr"]

    def adamw(self, name, g):
        m, v = self.m[name], self.v[name]
        m.lerp_(g, 1 - BETA1)
        v.lerp_(g * g, 1 - BETA2)
        m, v = m / (1 - BETA1 ** self.applied), v / (1 - BETA2 ** self.applied)
        return m / (v.sqrt() + EPS), self.settings["adamw_lr"]


def compare(program):
    with tempfile.TemporaryDirectory() as folder:
        write_dump([program, "--muon_steps", str(STEPS)], folder)
        notes, dump = read_dump(folder)
    read = lambda prefix: {name[len(prefix):]: torch.tensor(np.array(value), dtype=torch.float64)
                           for name, value in dump.items() if name.startswith(prefix)}
    names = ("lr", "adamw_lr", "momentum", "weight_decay", "grad_clip")
    settings = {name: float(dump[name][0]) for name in names} | {"momentum_warmup": int(notes["momentum_warmup"])}
    first = read("0/weight/")
    reference = Reference({name: w.clone() for name, w in first.items()}, settings)
    failures, worst = 0, 0.0
    for step in range(1, STEPS + 1):
        norms = reference.step(read(f"{step}/gradient/"), float(dump[f"{step}/tokens"][0]))
        for name, norm in zip(("update_norm", "adamw_update_norm"), norms):
            failures += abs(float(dump[f"{step}/{name}"][0]) / norm - 1) > 1e-4
        for name, ours in read(f"{step}/weight/").items():
            theirs = reference.weights[name]
            if name.endswith("c_attn.bias"):  # the keys' gradient is rounding alone, which Adam scales up
                third = ours.shape[0] // 3
                ours[third:2 * third] = theirs[third:2 * third]
            change = (theirs - first[name]).norm()
            error = ((ours - theirs).norm() / change).item() if change > 0 else ours.sub(theirs).abs().max().item()
            worst = max(worst, error)
            if not error < TOLERANCE:
                failures += 1
                print(f"FAILED  step {step}, {name}: {error:.2e} of its change")
    print(f"torch {torch.__version__}: {STEPS} steps of "
          f"{len(first)} tensors, largest error {worst:.1e} (allowed {TOLERANCE:.0e}), {failures} failures")
    return failures


if __name__ == "__main__":
    sys.exit(1 if compare(sys.argv[1]) else 0)
