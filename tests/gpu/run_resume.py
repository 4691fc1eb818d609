#!/usr/bin/env python3
"""A run on a GPU that is stopped and resumed at random steps ends with the bits of one that was not, in BF16 and FP8.

Usage: run_resume.py PROGRAM [--steps 200] [--cuts 4]. Exit status: 0, 1 something differs, 77 there is no GPU or no h5py here.

With --deterministic, saving every ten steps beside training: what is compared is the last checkpoint, tensor by tensor, and
the loss and the norm of every step. Stops are SIGTERM at a random step, each followed by --resume latest.
"""
import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

try:
    import h5py
    import numpy
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "e2e"))
from gpu import skip_without_gpu  # noqa: E402

COMMON = ["--device", "cuda", "--deterministic", "--layers", "4", "--heads", "4", "--channels", "256", "--seq_len", "256",
          "--batch_size", "8", "--target_batch_size", "16", "--max_lr", "1e-3", "--warmup_steps", "20", "--eval_freq", "50",
          "--eval_sequences", "16", "--checkpoint_freq", "10", "--keep_checkpoints", "2", "--sample_tokens", "0", "--log_freq", "1"]
STOPPED = 75


class Run:
    def __init__(self, program, folder, precision, steps):
        self.folder = folder
        os.makedirs(folder)
        self.start = [program, *COMMON, "--precision", precision, "--max_steps", str(steps), "--run_name", "run", "--log_dir", "runs",
                      "--checkpoint_dir", "checkpoints"]
        self.resume = [program, "--resume", "checkpoints/run/latest", "--deterministic"]
        self.metrics = os.path.join(folder, "runs", "run", "metrics.jsonl")
        self.last = os.path.join(folder, "checkpoints", "run", f"step_{steps:08d}")

    def lines(self):
        if not os.path.exists(self.metrics):
            return []
        for _ in range(100):  # a resume cuts the file, maybe while it is read
            try:
                with open(self.metrics) as file:
                    return [json.loads(line) for line in file if line.endswith("\n")]
            except json.JSONDecodeError:
                time.sleep(0.01)
        sys.exit(f"run_resume: {self.metrics} has a line that is not JSON")

    def steps(self):
        return {line["step"]: (line["loss"], line["grad_norm"]) for line in self.lines() if line["type"] == "step"}

    def go(self, command, stop_at=None):
        """Until its end, or until it has logged `stop_at` and was asked to stop."""
        with open(os.path.join(self.folder, "output"), "a") as output:
            process = subprocess.Popen(command, cwd=self.folder, stdout=output, stderr=subprocess.STDOUT)
            while stop_at is not None and process.poll() is None and max(self.steps(), default=0) < stop_at:
                time.sleep(0.005)
            if stop_at is not None:
                process.send_signal(signal.SIGTERM)
            return process.wait()


def tensors(checkpoint):
    found = {}

    def take(name, item):
        if isinstance(item, h5py.Dataset):
            found[name] = item[()]

    for name in sorted(os.listdir(checkpoint)):
        if name.endswith(".h5"):
            with h5py.File(os.path.join(checkpoint, name)) as file:
                file.visititems(take)
    return found


def differences(one, other):
    """Names of the model's state whose bytes differ; plans carry times."""
    a, b = tensors(one), tensors(other)
    names = [name for name in a if name.startswith("model/") and name != "model/matmul_plans"]
    if not any(name.startswith("model/params/") for name in names):
        return ["no weights found"]
    return [name for name in names if name not in b or numpy.asarray(a[name]).tobytes() != numpy.asarray(b[name]).tobytes()]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--cuts", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    skip_without_gpu()
    choose, failed = random.Random(args.seed), False
    with tempfile.TemporaryDirectory() as folder:
        for precision in ("bf16", "fp8"):
            whole = Run(os.path.abspath(args.program), f"{folder}/{precision}", precision, args.steps)
            if whole.go(whole.start) != 0:
                with open(whole.folder + "/output") as output:
                    sys.exit(f"the run without a stop failed: {output.read()[-2000:]}")
            cut = Run(os.path.abspath(args.program), f"{folder}/{precision}-cut", precision, args.steps)
            command = cut.start
            stops = sorted(choose.sample(range(1, args.steps - 5), args.cuts))
            for stop in stops:
                status = cut.go(command, stop)
                if status != STOPPED:
                    print(f"{precision}: stopped at step {stop}, ended with {status}, not {STOPPED}")
                    failed = True
                command = cut.resume
            status = cut.go(command)
            differ = differences(whole.last, cut.last) if status == 0 else [f"ended with {status}"]
            ours, theirs = whole.steps(), cut.steps()
            other_losses = [step for step in ours if theirs.get(step) != ours[step]]
            print(f"{precision}: {args.steps} steps against stops after {', '.join(map(str, stops))}: "
                  f"{'all bits equal' if not differ and not other_losses else 'DIFFERENT: ' + ', '.join(differ[:5])}"
                  f"{f'; losses from step {other_losses[0]} on' if other_losses else ''}", flush=True)
            failed = failed or bool(differ or other_losses)
    sys.exit(failed)


if __name__ == "__main__":
    main()
