#!/usr/bin/env python3
"""The curves of docs/hyperparameters.md: nano on the built-in sample, one setting changed at a time. Half an hour on one core.

    tests/parity/hyperparameter_curves.py [PROGRAM] [--work runs/hyperparameters] [--csv FILE] [--picture FILE]

Runs that are complete in --work are not done again; those that are not there yet are left out with --draw_only.
"""
import argparse
import csv
import json
import math
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from svg_panels import Panel, color_of, legend, ticks, write_page  # noqa: E402

TOKENS = 300 * 2 * 256  # every run sees as many
COMMON = ["--device", "cpu", "--model", "nano", "--threads", "1", "--eval_freq", "20", "--sample_tokens", "0", "--checkpoint_freq", "0",
          "--no-save_best", "--histogram_freq", "0", "--no-use_tensorboard"]


def flags(rate="3e-3", warmup=20, batch=2, schedule="cosine"):
    return ["--max_lr", rate, "--warmup_steps", str(warmup), "--target_batch_size", str(batch), "--batch_size", str(min(batch, 2)),
            "--lr_schedule", schedule, "--max_steps", str(TOKENS // (batch * 256))]


BASE = ("rate_3e-3", flags())
PANELS = {  # title: (name in the legend, name of the run, its flags)
    "peak rate (warm-up 20, batch 2, cosine)": [
        ("3e-4", "rate_3e-4", flags("3e-4")), ("1e-3", "rate_1e-3", flags("1e-3")), ("3e-3", *BASE),
        ("6e-3", "rate_6e-3", flags("6e-3")), ("1.2e-2", "rate_1.2e-2", flags("1.2e-2"))],
    "warm-up at a rate of 6e-3": [
        ("1 step", "warm_1", flags("6e-3", 1)), ("20", "rate_6e-3", flags("6e-3")), ("80", "warm_80", flags("6e-3", 80))],
    "schedule at 3e-3": [
        ("cosine", *BASE), ("linear", "sched_linear", flags(schedule="linear")), ("wsd", "sched_wsd", flags(schedule="wsd")),
        ("constant", "sched_constant", flags(schedule="constant"))],
    "sequences a step at 3e-3, equal tokens": [
        ("1", "batch_1", flags(batch=1)), ("2", *BASE), ("4", "batch_4", flags(batch=4)), ("8", "batch_8", flags(batch=8))],
}


def curve_of(folder):
    """(tokens, validation loss) of a run that has seen all its tokens, else None."""
    try:
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    except OSError:
        return None
    tokens_per_step = lines[0]["tokens_per_step"]
    curve = [(line["step"] * tokens_per_step, line["val_loss"]) for line in lines if line["type"] == "validation"]
    return curve if curve and curve[-1][0] == TOKENS else None


def train(program, work, run, given, seed):
    subprocess.run([program, *COMMON, *given, "--seed", str(seed), "--run_name", f"{run}_s{seed}", "--log_dir", str(work),
                    "--checkpoint_dir", str(work / "checkpoints")], check=True, stdout=subprocess.DEVNULL)


def draw(curves, picture):
    """Four panels; a line for each seed."""
    parts = []
    for place, (title, rows) in enumerate(PANELS.items()):
        left, top = 80 + 480 * (place % 2), 70 + 340 * (place // 2)
        panel = Panel(top, 240, (0, TOKENS / 1000), ticks(0, 8, 4), "validation loss (nats)", 0, left, 290)
        panel.axes("thousand tokens")
        panel.parts.append(f'<text x="{left + 145}" y="{top - 10}" text-anchor="middle">{title}</text>')
        highest = panel.y_ticks[-1]
        for i, (_, run, _) in enumerate(rows):
            for curve in curves.get(run, {}).values():
                panel.line([(tokens / 1000, loss if loss < highest else math.nan) for tokens, loss in curve], color_of(i), dots=False)
        parts += panel.parts + legend([name for name, _, _ in rows], left + 290 + 118, top)  # beside it
    write_page(picture, 1000, 740, "nano on the built-in sample, 153,600 tokens, a line for each seed", parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", nargs="?", default="./train_gpt2_fp8")
    parser.add_argument("--work", default="runs/hyperparameters", type=Path)
    parser.add_argument("--seeds", default=2, type=int)
    parser.add_argument("--draw_only", action="store_true", help="train nothing")
    parser.add_argument("--csv", default="docs/data/hyperparameters_nano.csv", type=Path)
    parser.add_argument("--picture", default="docs/img/hyperparameters.svg")
    given = parser.parse_args()
    runs = {run: settings for rows in PANELS.values() for _, run, settings in rows}
    curves = {}
    for seed in range(1, given.seeds + 1):
        for run, settings in runs.items():
            folder = given.work / f"{run}_s{seed}"
            if curve_of(folder) is None and not given.draw_only:
                train(given.program, given.work, run, settings, seed)
            if curve := curve_of(folder):
                curves.setdefault(run, {})[seed] = curve
                print(f"{run:15} seed {seed}: {curve[-1][1]:.3f}")
    with open(given.csv, "w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["run", "seed", "tokens", "val_loss"])
        rows.writerows([run, seed, tokens, f"{loss:.4f}"] for run, seeds in curves.items() for seed, curve in seeds.items()
                       for tokens, loss in curve)
    draw(curves, given.picture)


if __name__ == "__main__":
    main()
