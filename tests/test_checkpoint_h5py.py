#!/usr/bin/env python3
"""Reads the demo checkpoints of test_checkpoint and test_checkpoint_ranks with h5py.

    test_checkpoint_h5py.py path/to/test_checkpoint path/to/test_checkpoint_ranks

Exit 77: h5py is not installed.
"""
import os
import re
import subprocess
import sys
import tempfile

try:
    import h5py
    import numpy
except ImportError as error:
    print(f"skipped: {error} (apt install python3-h5py)")
    sys.exit(77)

DOCUMENT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "docs", "checkpoint_format.md")


def check(found, expected, what):
    if found != expected:
        sys.exit(f"{what}: found {found!r}, expected {expected!r}")


def text(dataset):
    return dataset.asstr()[()]


def check_file(file):
    check(set(file), {"config", "model", "train"}, "groups")
    check(file.attrs["format"].decode(), "GPT-2 training checkpoint", "format")
    check(int(file.attrs["format_version"]), 3, "format version")
    check({name: int(file["config"][name][()]) for name in ("layers", "heads", "channels", "seq_len", "vocab")},
          {"layers": 2, "heads": 2, "channels": 16, "seq_len": 8, "vocab": 50257}, "config")

    weights = file["model/params/wte.weight"]
    check((weights.shape, weights.dtype), ((2000, 16), numpy.dtype("<f4")), "wte.weight")
    check((weights.chunks, weights.compression), (None, None), "layout of wte.weight")
    values = weights[:].ravel()
    check(list(values[:4].view("<u4")), [1, 0x80000000, 0x7F7FFFFF, 0xFF7FFFFF], "denormal, -0, the largest and the lowest")
    check(bool(0.95 < values[4:].std() < 1.05), True, "spread of the rest, N(0, 1)")
    check(list(file["model/params/ln_f.bias"][:]), [1.0, 2.0, 3.0], "ln_f.bias")
    check(int(file["model/adam_step"][()]), 5, "adam_step")
    check(text(file["model/fp8/recipe"]), "hybrid \u00e4", "recipe")
    check(text(file["model/fp8/empty"]), "", "empty text")

    train = file["train"]
    check(int(train["step"][()]), 1234, "step")
    check(int(train["loader_position"][()]), 123456789012345, "loader position")
    check(float(train["last_val_loss"][()]), 2.5, "validation loss")
    check(int(train["last_val_step"][()]), 1227, "its step")
    check(float(train["best_val_loss"][()]), 3.25 + 1e-15, "best validation loss, a double")
    check(int(train["seed"][()]) % 2**64, 0xFEDCBA9876543210, "seed")
    check(text(train["run_name"]), "test-run", "run name")
    check(text(train["options_toml"]), '[model]\nmodel = "small"\n', "options")


def documented(name):
    """A function out of docs/checkpoint_format.md."""
    with open(DOCUMENT, encoding="utf-8") as file:
        block = re.search(r"^```python\n(.*?)^```$", file.read(), re.MULTILINE | re.DOTALL).group(1)
    names = {}
    exec(block, names)
    return names[name]


def check_ranks(folder):
    read_tensor = documented("read_tensor")
    names = ["state.h5", "rank_00001.h5", "rank_00002.h5"]
    files = [h5py.File(os.path.join(folder, name), "r") for name in names]
    check([int(file.attrs["ranks"]) for file in files], [3, 3, 3], "ranks")
    check([int(file.attrs["format_version"]) for file in files], [3, 3, 3], "format version")
    check([int(file.attrs["rank"]) for file in files[1:]], [1, 2], "rank")
    check([int(file.attrs["step"]) for file in files[1:]], [1000, 1000], "step")
    check(["train" in file for file in files], [True, False, False], "files with the loop's state")
    piece = files[1]["model/params/wte.weight"]
    check((piece.ndim, piece.dtype, piece.chunks), (1, numpy.dtype("<f4"), None), "a piece")
    check((piece.attrs["shape"].tolist(), piece.attrs["begin"].shape), ([512, 24], ()), "its attributes")
    for name, shape in {"params/wte.weight": (512, 24), "adam_v/h.1.mlp.c_proj.weight": (24, 96),
                        "adam_m/ln_f.bias": (24,)}.items():
        tensor = read_tensor(folder, name)
        check((tensor.shape, bool(numpy.isfinite(tensor).all())), (shape, True), name)
        steps = numpy.diff(tensor.ravel().astype("f8")) * 65536  # its elements are a constant + element / 65536
        check(bool((abs(steps - 1) < 64).all()), True, "order of " + name)
    for file in files:
        file.close()


def main():
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.argv[1], "--test-case=the demo checkpoint"], check=True,
                       env={**os.environ, "GPT2_CHECKPOINT_OUT": folder})
        for marker in ("latest", "best"):
            with open(os.path.join(folder, marker), encoding="utf-8") as file:
                check(file.read(), "test-run/step_00001234\n", marker)
        with h5py.File(os.path.join(folder, "test-run", "step_00001234", "state.h5"), "r") as file:
            check_file(file)
        whole = documented("read_tensor")(os.path.join(folder, "test-run", "step_00001234"), "params/wte.weight")
        check(whole.shape, (2000, 16), "a tensor of one file")
        subprocess.run([sys.argv[2], "--test-case=the demo checkpoint of three ranks"], check=True,
                       env={**os.environ, "GPT2_CHECKPOINT_OUT": folder})
        check_ranks(os.path.join(folder, "step_00001000"))
    print("h5py reads the demo checkpoints")


if __name__ == "__main__":
    main()
