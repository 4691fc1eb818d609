#!/usr/bin/env python3
"""What a checkpoint costs a run: steps with a save every ten against steps without. Usage: bench_saves.py PROGRAM [FLAG...]

Both runs are the same but for the saves, on the built-in sample, one after the other. The stall of a save is the time that
ten steps and their save take beyond ten steps, in milliseconds and in shares of a step; the first ten steps of each run are
left out. Flags go to the trainer: by default 124M in FP8 with 0.5M tokens a step on a GPU.
"""
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from datetime import datetime

EVERY, TENS = 10, 6
GPU = ["--model", "gpt2", "--seq_len", "1024", "--target_batch_size", "512", "--use_fp8"]


def seconds_of_tens(program, flags, folder, name, every):
    """Between the lines of steps 10, 20, ..."""
    command = [program, *flags, "--run_name", name, "--log_dir", folder + "/runs", "--checkpoint_dir", folder + "/checkpoints",
               "--max_steps", str(EVERY * (TENS + 1)), "--warmup_steps", "2", "--checkpoint_freq", str(every), "--no-save_best",
               "--eval_freq", "0", "--histogram_freq", "0", "--sample_tokens", "0", "--keep_checkpoints", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"bench_saves: {' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")
    with open(f"{folder}/runs/{name}/metrics.jsonl") as file:
        lines = [json.loads(line) for line in file]
    at = {line["step"]: datetime.fromisoformat(line["timestamp"].replace("Z", "+00:00")) for line in lines if line["type"] == "step"}
    saved = sum(line["type"] == "event" and line.get("event") == "save" for line in lines)
    return [(at[EVERY * (i + 2)] - at[EVERY * (i + 1)]).total_seconds() for i in range(TENS)], saved


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    program, flags = sys.argv[1], sys.argv[2:] or GPU
    folder = tempfile.mkdtemp(prefix="bench_saves_", dir=".")
    try:
        without, _ = seconds_of_tens(program, flags, folder, "without", 0)
        with_saves, saved = seconds_of_tens(program, flags, folder, "with", EVERY)
    finally:
        shutil.rmtree(folder)
    step = statistics.median(without) / EVERY
    stalls = [ten - EVERY * step for ten in with_saves]
    noise = max(abs(ten - EVERY * step) for ten in without)
    print(f"{'step':>10} {'stall a save':>14} {'of a step':>10} {'largest':>10} {'noise':>10}   saves")
    print(f"{1e3 * step:8.1f} ms {1e3 * statistics.median(stalls):11.1f} ms {100 * statistics.median(stalls) / step:8.1f} % "
          f"{1e3 * max(stalls):7.1f} ms {1e3 * noise:7.1f} ms   {saved}")


if __name__ == "__main__":
    main()
