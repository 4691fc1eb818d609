#!/usr/bin/env python3
"""Compares validation curves of training runs: our metrics.jsonl or train_torch.py's output.

usage: compare_curves.py A.jsonl B.jsonl [--names PyTorch ours] [--tolerance 0.02] [--early 100 0.06] [--svg FILE]
           every point that both have must lie within the tolerance; --early STEP NATS: before STEP within NATS, because
           around the peak of the learning rate two runs of the very same program lie further apart than later on
       compare_curves.py --series BF16 b1.jsonl b2.jsonl --series FP8 f1.jsonl f2.jsonl ... [--tolerance 0.01] [--svg FILE]
           the n-th run of every series has the n-th seed; the last points of each series must lie within the tolerance
           of the first series' on average over the seeds

Exit status: 0 within the tolerance, 1 beyond it, 2 nothing to compare.
"""
import argparse
import json
import math
import sys
from pathlib import Path

from svg_panels import Panel, color_of, legend, ticks, write_page


def fail(message):
    print(message, file=sys.stderr)
    sys.exit(2)


def read_curve(path, key):
    """{step: value}; a value that is not finite (null in our logs) is NaN and fails every comparison."""
    curve = {}
    for number, line in enumerate(Path(path).read_text().splitlines(), 1):
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            fail(f"{path}:{number}: not a line of JSON")
        if key in entry:
            value = entry[key]
            curve[entry["step"]] = math.nan if value is None else float(value)
    if not curve:
        fail(f"{path}: no {key} in it")
    return curve


def mean(values):
    values = list(values)
    return sum(values) / len(values)


class Series:
    def __init__(self, name, paths, key):
        self.name = name
        self.curves = [read_curve(path, key) for path in paths]

    def steps(self):
        return sorted(set.intersection(*(set(curve) for curve in self.curves)))

    def mean(self, step):
        return mean(curve[step] for curve in self.curves)


def common_steps(reference, other):
    steps = sorted(set(reference.steps()) & set(other.steps()))
    if not steps:
        fail(f"{reference.name} and {other.name} have no step in common")
    last = max(max(curve) for curve in reference.curves + other.curves)
    if steps[-1] != last:  # a run that died early must not pass by its first points
        fail(f"{reference.name} and {other.name} do not all end at the same step: {steps[-1]} and {last}")
    return steps


# ---- tables ----


def within(difference, tolerance):
    return abs(difference) <= tolerance  # false for NaN


def compare_points(a, b, tolerance, early):
    """Every point of one run against one other. `early`: (step, what is allowed before it)."""
    width = max(10, len(a.name), len(b.name))
    print(f"{'step':>6}  {a.name:>{width}}  {b.name:>{width}}  difference")
    differences, ok = [], True
    for step in common_steps(a, b):
        difference = b.mean(step) - a.mean(step)
        differences.append(difference)
        allowed = early[1] if step < early[0] else tolerance
        ok = ok and within(difference, allowed)
        mark = "" if within(difference, allowed) else "  BEYOND"
        print(f"{step:>6}  {a.mean(step):>{width}.4f}  {b.mean(step):>{width}.4f}  {difference:+10.4f}{mark}")
    largest = max(differences, key=lambda d: math.inf if math.isnan(d) else abs(d))
    before = f" ({early[1]:g} before step {early[0]:g})" if early[0] else ""
    print(f"largest difference {largest:+.4f}, allowed {tolerance:g}{before}: {'ok' if ok else 'FAILED'}")
    return ok


def compare_means(reference, other, tolerance):
    """Seeds side by side; their mean at the last step decides."""
    if len(reference.curves) != len(other.curves):
        fail(f"{reference.name} has {len(reference.curves)} runs, {other.name} {len(other.curves)}")
    seeds = len(other.curves)
    print(f"{other.name} - {reference.name}")
    print(f"{'step':>6}  {reference.name:>10}" + "".join(f"  {f'run {i + 1}':>8}" for i in range(seeds)) + f"  {'mean':>8}")
    for step in common_steps(reference, other):
        differences = [b[step] - a[step] for a, b in zip(reference.curves, other.curves)]
        difference = mean(differences)
        print(f"{step:>6}  {reference.mean(step):>10.4f}" + "".join(f"  {d:+8.4f}" for d in differences) + f"  {difference:+8.4f}")
    ok = within(difference, tolerance)
    print(f"mean difference at the last step {difference:+.4f}, allowed {tolerance:g}: {'ok' if ok else 'FAILED'}\n")
    return ok


# ---- plot ----


def draw(all_series, tolerance, title, path):
    """Above, the losses; below, what each run lies above the first series' run of the same seed, and the tolerance.
    The untrained model's loss would flatten the rest: step 0 stays out."""
    reference, others = all_series[0], all_series[1:]
    steps = [step for step in common_steps(reference, others[0]) if step > 0]
    values = [v for series in all_series for c in series.curves for s, v in c.items() if s > 0 and math.isfinite(v)]
    differences = [[[(s, c[s] - r[s]) for s in steps if s in c] for r, c in zip(reference.curves, series.curves)]
                   for series in others]
    # The axis shows every difference, and the whole band of the tolerance even where they are all on one side of it.
    shown = [d for runs in differences for run in runs for _, d in run if math.isfinite(d)] + [-1.5 * tolerance, 1.5 * tolerance]
    x_range = (0, steps[-1])
    above = Panel(46, 250, x_range, ticks(min(values), max(values), 6), "validation loss (nats)", 2)
    below = Panel(326, 130, x_range, ticks(min(shown), max(shown), 4), f"difference to {reference.name}", 3)
    above.axes()
    below.axes("step")
    for i, series in enumerate(all_series):
        for curve in series.curves:
            points = sorted((s, v) for s, v in curve.items() if s > 0)
            above.line(points, color_of(i), dashes="" if i == 0 else "6 3")
    for bound in (-tolerance, tolerance):
        below.line([(0, bound), (steps[-1], bound)], "#888888", dashes="6 4", width=1.2, dots=False)
    for i, runs in enumerate(differences, 1):
        for points in runs:
            below.line(points, color_of(i))
    names = legend([series.name for series in all_series], above.left + above.width, 56)
    write_page(path, 720, 510, title, above.parts + names + below.parts)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("curves", nargs="*", metavar="CURVE", help="two runs")
    p.add_argument("--names", nargs=2, metavar="NAME", help="what to call the two")
    p.add_argument("--series", nargs="+", action="append", metavar="NAME|CURVE", help="a name and its runs; the first is the reference")
    p.add_argument("--tolerance", type=float, default=0.02, help="nats")
    p.add_argument("--early", type=float, nargs=2, default=(0, 0), metavar=("STEP", "NATS"), help="allowed before STEP")
    p.add_argument("--key", default="val_loss", help="which value of the lines")
    p.add_argument("--svg", metavar="FILE", help="draw the curves")
    p.add_argument("--title", default="Validation loss")
    args = p.parse_args()
    if args.series and not args.curves and len(args.series) > 1 and all(len(s) > 1 for s in args.series):
        all_series = [Series(name, paths, args.key) for name, *paths in args.series]
        ok = all([compare_means(all_series[0], other, args.tolerance) for other in all_series[1:]])
    elif len(args.curves) == 2 and not args.series:
        names = args.names or [str(Path(curve)) for curve in args.curves]
        all_series = [Series(name, [path], args.key) for name, path in zip(names, args.curves)]
        ok = compare_points(*all_series, args.tolerance, args.early)
    else:
        p.error("give two curves, or two or more --series of at least one run each")
    if args.svg:
        draw(all_series, args.tolerance, args.title, args.svg)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
