#!/usr/bin/env python3
"""Does nano train without a spike, whatever the seed?

    tests/e2e/nano_seeds.py PROGRAM [--seeds N] [--first_seed K] [--steps S] [--jobs J] [--largest_val_loss L] [-- FLAG...]

Runs PROGRAM --config configs/nano.toml --seed K ... K + N - 1, each on one thread, J at a time, with the FLAGs added, and prints
a table: where the loss spiked and by how much, the last losses. Exit 1 if a run spiked, failed, or ended above L.

A spike is a training loss more than 1.0 above the lowest mean of ten successive losses so far, at any step after the
tenth. --steps S stops a run after S steps of its schedule, as Ctrl-C would: it shows what those steps do in a whole run,
but has no last validation loss. Without it runs are as long as nano's default.
"""
import argparse
import concurrent.futures
import json
import os
import re
import signal
import subprocess
import sys
import tempfile

WINDOW = 10         # losses
SPIKE = 1.0         # nats
STOPPED_EARLY = 75  # exit code
AT_THE_END = 10**6  # steps between evaluations: the last step always has one
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def largest_jump(losses):
    """(height, step): the furthest that a loss stands above the lowest mean of WINDOW losses before it."""
    lowest = float("inf")
    largest = (float("-inf"), 0)
    for index in range(WINDOW, len(losses)):
        lowest = min(lowest, sum(losses[index - WINDOW:index]) / WINDOW)
        largest = max(largest, (losses[index] - lowest, index + 1))
    return largest


def read_metrics(path):
    """The training losses, one a step, and the last validation loss."""
    losses, validation = [], None
    with open(path) as lines:
        for entry in map(json.loads, lines):
            if entry["type"] == "validation":
                validation = entry["val_loss"]
            elif entry["type"] == "step":
                losses.append(entry["loss"])
    return losses, validation


def train(program, seed, steps, flags):
    """One run in a folder of its own; a dictionary, or the text of a failure."""
    with tempfile.TemporaryDirectory(prefix="nano_seeds_") as folder:
        command = [program, "--config", os.path.join(ROOT, "configs/nano.toml"), "--device", "cpu", "--threads", "1",
                   "--seed", str(seed), "--run_name", "run", "--checkpoint_freq", "0", "--no-save_best",
                   "--no-use_tensorboard", "--sample_tokens", "0", "--eval_freq", str(AT_THE_END)]
        one_thread = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        with subprocess.Popen(command + flags, cwd=folder, env=one_thread, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) as process:
            output = ""
            for line in process.stdout:
                output += line
                if steps and (step := re.match(r"step +(\d+) \| epoch", line)) and int(step.group(1)) == steps:
                    process.send_signal(signal.SIGINT)
            error = process.stderr.read()
        if process.returncode != (STOPPED_EARLY if steps else 0):
            return f"exit code {process.returncode}: {error.strip()}"
        losses, validation = read_metrics(os.path.join(folder, "runs/run/metrics.jsonl"))
        entropy = re.search(r"entropy is (\d+\.\d+)", output)
    jump, step = largest_jump(losses)
    return {"jump": jump, "step": step, "train": sum(losses[-WINDOW:]) / WINDOW, "val": validation,
            "entropy": float(entropy.group(1)) if entropy else None}


def main():
    arguments = sys.argv[1:]
    flags = []
    if "--" in arguments:
        at = arguments.index("--")
        arguments, flags = arguments[:at], arguments[at + 1:]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--seeds", type=int, default=20, metavar="N")
    parser.add_argument("--first_seed", type=int, default=1, metavar="K")
    parser.add_argument("--steps", type=int, default=0, metavar="S")
    parser.add_argument("--jobs", type=int, default=1, metavar="J")
    parser.add_argument("--largest_val_loss", type=float, default=float("inf"), metavar="L")
    options = parser.parse_args(arguments)
    if 0 < options.steps <= WINDOW:
        parser.error(f"--steps {options.steps}: a spike is only seen after step {WINDOW}")
    program = os.path.abspath(options.program)

    print("seed | spike    | largest jump | train loss | val loss", flush=True)
    results = []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        seeds = range(options.first_seed, options.first_seed + options.seeds)
        for seed, result in zip(seeds, pool.map(lambda seed: train(program, seed, options.steps, flags), seeds)):
            if isinstance(result, str):
                print(f"{seed:4} | {result}", flush=True)
                continue
            results.append(result)
            spike = f"step {result['step']}" if result["jump"] > SPIKE else "no"
            val = f"{result['val']:8.4f}" if result["val"] is not None else "       -"
            print(f"{seed:4} | {spike:8} | {result['jump']:+12.2f} | {result['train']:10.4f} | {val}", flush=True)

    failed = options.seeds - len(results)
    spikes = sum(result["jump"] > SPIKE for result in results)
    verdict = f"{options.seeds} seeds: {spikes} with a spike, {failed} failed"
    vals = [result["val"] for result in results if result["val"] is not None]
    if vals:
        verdict += f"; val loss {sum(vals) / len(vals):.4f} on average, at most {max(vals):.4f}"
        if results[0]["entropy"] is not None:
            verdict += f" (the grammar's entropy: {results[0]['entropy']:.3f})"
    above = sum(val > options.largest_val_loss for val in vals)
    if above:
        verdict += f"; {above} above {options.largest_val_loss}"
    print(verdict)
    sys.exit(1 if spikes or failed or above else 0)


if __name__ == "__main__":
    main()
