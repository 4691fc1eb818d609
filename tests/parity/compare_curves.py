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
from html import escape
from pathlib import Path

COLOURS = ("#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")  # Okabe and Ito's: told apart by everyone


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


def ticks(low, high, count):
    """Round numbers that cover [low, high]."""
    raw = (high - low) / count or 1.0
    unit = 10 ** math.floor(math.log10(raw))
    step = next(unit * m for m in (1, 2, 5, 10) if unit * m >= raw * 0.999)
    return [step * i for i in range(math.floor(low / step), math.ceil(high / step) + 1)]


class Panel:
    """One set of axes, `top` pixels down, and the lines within."""

    LEFT, WIDTH = 80, 600

    def __init__(self, top, height, x_range, y_ticks, label, decimals):
        self.top, self.height, self.x_range, self.label = top, height, x_range, label
        self.y_ticks, self.decimals, self.parts = y_ticks, decimals, []

    def x(self, value):
        low, high = self.x_range
        return self.LEFT + self.WIDTH * (value - low) / ((high - low) or 1)

    def y(self, value):
        low, high = self.y_ticks[0], self.y_ticks[-1]
        return self.top + self.height * (high - value) / (high - low)

    def axes(self, x_label=None):
        right, bottom = self.LEFT + self.WIDTH, self.top + self.height
        for value in self.y_ticks:
            y = self.y(value)
            self.parts.append(f'<line x1="{self.LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#dddddd"/>')
            self.parts.append(f'<text x="{self.LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:.{self.decimals}f}</text>')
        for value in ticks(*self.x_range, 6):
            if not self.x_range[0] <= value <= self.x_range[1]:
                continue
            x = self.x(value)
            self.parts.append(f'<line x1="{x:.1f}" y1="{bottom}" x2="{x:.1f}" y2="{bottom + 5}" stroke="#333333"/>')
            if x_label:
                self.parts.append(f'<text x="{x:.1f}" y="{bottom + 20}" text-anchor="middle">{value:g}</text>')
        self.parts.append(
            f'<rect x="{self.LEFT}" y="{self.top}" width="{self.WIDTH}" height="{self.height}" fill="none" stroke="#333333"/>')
        if x_label:
            self.parts.append(
                f'<text x="{self.LEFT + self.WIDTH / 2}" y="{bottom + 42}" text-anchor="middle">{escape(x_label)}</text>')
        middle = self.top + self.height / 2
        self.parts.append(
            f'<text x="22" y="{middle}" text-anchor="middle" transform="rotate(-90 22 {middle})">{escape(self.label)}</text>')

    def line(self, points, colour, dashes="", width=1.8, dots=True):
        """(step, value) pairs, those that are not finite left out."""
        points = [(s, v) for s, v in points if math.isfinite(v)]
        text = " ".join(f"{self.x(s):.1f},{self.y(v):.1f}" for s, v in points)
        self.parts.append(
            f'<polyline points="{text}" fill="none" stroke="{colour}" stroke-width="{width}" stroke-dasharray="{dashes}"/>')
        if dots and len(points) <= 20:
            self.parts += [f'<circle cx="{self.x(s):.1f}" cy="{self.y(v):.1f}" r="2.6" fill="{colour}"/>' for s, v in points]


def legend(all_series, right, top):
    width = 46 + 7.6 * max(len(series.name) for series in all_series)
    left = right - width - 10
    parts = [f'<rect x="{left}" y="{top}" width="{width}" height="{20 * len(all_series) + 8}" fill="#ffffff" stroke="#bbbbbb"/>']
    for i, series in enumerate(all_series):
        y = top + 14 + 20 * i
        parts.append(f'<line x1="{left + 8}" y1="{y}" x2="{left + 30}" y2="{y}" stroke="{COLOURS[i % len(COLOURS)]}" stroke-width="2.4"/>')
        parts.append(f'<text x="{left + 36}" y="{y + 4}">{escape(series.name)}</text>')
    return parts


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
            above.line(points, COLOURS[i % len(COLOURS)], dashes="" if i == 0 else "6 3")
    for bound in (-tolerance, tolerance):
        below.line([(0, bound), (steps[-1], bound)], "#888888", dashes="6 4", width=1.2, dots=False)
    for i, runs in enumerate(differences, 1):
        for points in runs:
            below.line(points, COLOURS[i % len(COLOURS)])
    body = above.parts + legend(all_series, Panel.LEFT + Panel.WIDTH, 56) + below.parts
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" width="720" height="510" viewBox="0 0 720 510" '
        'font-family="Helvetica, Arial, sans-serif" font-size="13" fill="#222222">\n'
        '<rect width="720" height="510" fill="#ffffff"/>\n'
        f'<text x="{Panel.LEFT + Panel.WIDTH / 2}" y="28" text-anchor="middle" font-size="16">{escape(title)}</text>\n'
        + "\n".join(body) + "\n</svg>\n")
    print(f"drawn: {path}")


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
