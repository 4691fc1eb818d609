"""What loss_gap.py concludes from finished curves: gaps paired by seed, standard errors, verdicts, a table, a picture.

A curve is a small CSV, written once its run is complete:

    # flags: --precision fp8 --max_lr 0.0012 ...      what it was trained with; more facts follow in lines like this
    step,evaluated_in,val_loss
    50,fp8,5.875
    ...
    300,fp8,4.924                                     the last point in the precision of the training
    300,bf16,4.921                                    and once more in the baseline's
"""
import csv
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from svg_panels import Panel, color_of, legend, ticks, write_page


# ---- curves ----


@dataclass
class Curve:
    precision: str  # of the training
    losses: dict  # (step, evaluated in): nats, NaN where it was not finite
    facts: dict = field(default_factory=dict)

    def own(self):
        """{step: loss} in the precision of the training."""
        return {step: loss for (step, precision), loss in self.losses.items() if precision == self.precision}

    def last_step(self):
        return max(step for step, _ in self.losses)

    def last(self, precision):
        return self.losses.get((self.last_step(), precision), math.nan)


def write_curve(path, curve):
    """All of it or nothing: what is there counts as done."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    with open(part, "w", newline="") as file:
        for name, value in {**curve.facts, "precision": curve.precision}.items():
            print(f"# {name}: {value}", file=file)
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("step", "evaluated_in", "val_loss"))
        for (step, precision), loss in curve.losses.items():
            writer.writerow((step, precision, f"{loss:.6f}"))
    os.replace(part, path)


def read_curve(path):
    lines = Path(path).read_text().splitlines()
    facts = dict(line[2:].split(": ", 1) for line in lines if line.startswith("# "))
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    losses = {(int(row["step"]), row["evaluated_in"]): float(row["val_loss"]) for row in rows}
    return Curve(facts.pop("precision"), losses, facts)


COLUMNS = "setting", "branched_at", "variant", "seed", "step", "evaluated_in", "val_loss"


def read_table(path):
    """{(setting, variant, seed): Curve}: many curves in one file, without most of their facts."""
    curves = {}
    with open(path, newline="") as file:
        rows = csv.DictReader(file)
        if lacking := [name for name in COLUMNS if name not in (rows.fieldnames or ())]:
            raise ValueError(f"no table of curves: there is no column {', '.join(lacking)}")
        for row in rows:
            if None in row.values():
                raise ValueError(f"line {rows.line_num} is not complete")
            key, point = (row["setting"], row["variant"], int(row["seed"])), (int(row["step"]), row["evaluated_in"])
            curve = curves.setdefault(key, Curve(row["evaluated_in"], {}))  # the first is in the precision of the training
            if point in curve.losses:
                raise ValueError(f"line {rows.line_num}: {', '.join(map(str, key + point))} is there twice")
            if row["branched_at"] != "0":
                curve.facts["branched_at"] = row["branched_at"]
            curve.losses[point] = float(row["val_loss"])
    return curves


def write_table(path, curves):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for (setting, variant, seed), curve in sorted(curves.items()):
            for (step, precision), loss in curve.losses.items():
                writer.writerow((setting, curve.facts.get("branched_at", 0), variant, seed, step, precision, f"{loss:.6f}"))


def same_losses(a, b):
    """As far as files keep them."""
    return {key: f"{loss:.6f}" for key, loss in a.losses.items()} == {key: f"{loss:.6f}" for key, loss in b.losses.items()}


# ---- statistics ----


@dataclass
class Estimate:
    mean: float
    error: float  # standard error of the mean; NaN of fewer than two values
    count: int

    def __str__(self):
        return f"{self.mean:+.4f} ± {self.error:.4f}" if self.count > 1 else f"{self.mean:+.4f}" if self.count else "-"


def estimate(values):
    values = list(values)
    count = len(values)
    mean = sum(values) / count if count else math.nan
    if count < 2:
        return Estimate(mean, math.nan, count)
    variance = sum((value - mean) ** 2 for value in values) / (count - 1)
    return Estimate(mean, math.sqrt(variance / count), count)


def difference_of_means(ours, theirs):
    """Of independent values, as many as there are of each."""
    a, b = estimate(ours), estimate(theirs)
    return Estimate(a.mean - b.mean, math.hypot(a.error, b.error), min(a.count, b.count))


@dataclass
class Gap:
    """What one run lies above the baseline's run of the same seed, nats."""

    early: float  # mean over the evaluations in the first third of its own steps
    late: float  # at the last evaluation, each in the precision of its training
    trained: float  # the same, both evaluated in the baseline's precision: what training damaged

    @property
    def rounding(self):
        return self.late - self.trained  # what evaluation in low precision adds


def gap_of(curve, baseline):
    ours, theirs = curve.own(), baseline.own()
    branch = int(curve.facts.get("branched_at", 0))  # until there it is the baseline
    steps = sorted(step for step in set(ours) | set(theirs) if step > branch)
    # One that diverged lacks some: not finite, and so is the gap.
    difference = {step: ours.get(step, math.nan) - theirs.get(step, math.nan) for step in steps}
    early = [step for step in steps if step - branch <= (steps[-1] - branch) / 3] or steps[:1]
    return Gap(early=estimate(difference[step] for step in early).mean,
               late=difference[steps[-1]],
               trained=curve.last(baseline.precision) - baseline.last(baseline.precision))


# ---- bars ----


@dataclass
class Bars:
    """Either |mean| <= `mean` with a standard error of at most `error`, or |mean| + 2 standard errors <= `bound`."""

    mean: float = math.inf
    error: float = math.inf
    bound: float = math.inf
    proof: bool = True  # False: only a gap that is surely beyond the bar fails; few seeds prove no more

    def __str__(self):
        limit = min(self.mean, self.bound)
        if not self.proof:
            return f"|mean gap| - 2 standard errors at most {limit:g} nats"
        if self.bound < math.inf:
            return f"|mean gap| + 2 standard errors at most {self.bound:g} nats"
        return f"|mean gap| at most {self.mean:g} nats, standard error at most {self.error:g}"

    def verdict(self, late):
        """(passes, why)"""
        if late.count == 0:
            return False, "FAIL: no pair"
        if not math.isfinite(late.mean):
            return False, "FAIL: a loss is not finite"
        if late.count < 2:
            return False, "FAIL: one pair proves nothing"
        if not self.proof:
            beyond = abs(late.mean) - 2 * late.error > min(self.mean, self.bound)
            return not beyond, "FAIL: beyond the bar" if beyond else "pass"
        if abs(late.mean) > self.mean:
            return False, "FAIL: beyond the bar"
        if late.error > self.error:
            return False, f"FAIL: not proven, about {math.ceil(late.count * (late.error / self.error) ** 2)} seeds would do"
        if abs(late.mean) + 2 * late.error > self.bound:
            return False, "FAIL: beyond the bar"
        return True, "pass"


# ---- the report ----


@dataclass
class Comparison:
    """One variant under one setting."""

    setting: str
    variant: str
    gaps: dict  # by seed
    skipped: Optional[int] = 0  # steps, over all seeds; None: a curve of a table does not tell
    baseline_loss: float = math.nan  # mean over the same seeds
    unpaired: Estimate = field(default_factory=lambda: estimate([]))  # late, of all runs there are, whatever their seeds

    def of(self, name):
        return estimate(getattr(gap, name) for gap in self.gaps.values())


def ranges(numbers):
    """'1, 2, 5 to 7' of 1, 2, 5, 6, 7"""
    runs = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def in_all(counts):
    """Their sum; None: one of them is not known."""
    counts = list(counts)
    return None if None in counts else sum(map(int, counts))


def compare(curves, baseline, variants, settings, seeds):
    """curves: {(setting, variant, seed): Curve}. Returns the comparisons and the names of pairs that are not complete."""
    comparisons, missing = [], []
    for setting in settings:
        for variant in variants:
            comparison = Comparison(setting, variant, {})
            theirs, incomplete = [], {}  # {"bf16 and fp8": [7, 8]}
            for seed in seeds:
                curve, reference = curves.get((setting, variant, seed)), curves.get((setting, baseline, seed))
                if curve and reference:
                    comparison.gaps[seed] = gap_of(curve, reference)
                    comparison.skipped = in_all((comparison.skipped, curve.facts.get("skipped")))
                    theirs.append(reference.last(reference.precision))
                    continue
                absent = " and ".join(name for name, there in ((baseline, reference), (variant, curve)) if not there)
                incomplete.setdefault(absent, []).append(seed)
            for absent, of_seeds in incomplete.items():
                missing.append(f"{setting} seed{'s' if len(of_seeds) > 1 else ''} {ranges(of_seeds)}: no {absent}")
            comparison.baseline_loss = estimate(theirs).mean
            last = lambda name: [c.last(c.precision) for (of, side, _), c in curves.items() if (of, side) == (setting, name)]
            comparison.unpaired = difference_of_means(last(variant), last(baseline))
            comparisons.append(comparison)
    return comparisons, missing


def over_settings(comparisons):
    """One row more for a variant with several settings: a seed's gap is its mean over all of them. Seeds that are not
    complete stay out, so that the seeds remain independent and equal."""
    rows = []
    for variant in dict.fromkeys(c.variant for c in comparisons):
        own = [c for c in comparisons if c.variant == variant]
        if len(own) < 2:
            continue
        complete = [seed for seed in own[0].gaps if all(seed in c.gaps for c in own)]
        mean = lambda seed, name: estimate(getattr(c.gaps[seed], name) for c in own).mean
        gaps = {seed: Gap(mean(seed, "early"), mean(seed, "late"), mean(seed, "trained")) for seed in complete}
        rows.append(Comparison("all", variant, gaps, in_all(c.skipped for c in own), estimate(c.baseline_loss for c in own).mean))
    return rows


def print_report(comparisons, missing, bars, baseline):
    """A table in Markdown, fit for docs/fp8.md. True if every row is within the bars."""
    passes = True
    print(f"\nGap to {baseline}, nats, mean ± standard error over seeds (paired). Bar: {bars}.\n")
    print(f"| setting | variant | seeds | {baseline}'s loss | early | late | late, unpaired | late, evaluated in {baseline} "
          "| rounding in evaluation | skipped steps | verdict |")
    print("|" + "---|" * 11)
    for row in comparisons + over_settings(comparisons):
        ok, why = bars.verdict(row.of("late"))
        passes = passes and ok
        print(f"| {row.setting} | {row.variant} | {len(row.gaps)} | {row.baseline_loss:.4f} | {row.of('early')} | {row.of('late')} "
              f"| {row.unpaired} | {row.of('trained')} | {row.of('rounding')} | {'-' if row.skipped is None else row.skipped} | {why} |")
    print("\nearly: mean over the evaluations in the first third of the steps, from where they branch off; late: at the last one;\n"
          "unpaired: difference of the means of all runs, whatever their seeds. Where its error is no larger, runs of a seed have\n"
          "nothing in common, and more of either side help.")
    for line in missing:
        print(f"left out: {line}")
    return passes


# ---- the picture ----


def draw(path, title, curves, baseline, variants, settings, bars):
    """A column for each setting: above, the mean loss with a band from the lowest to the highest seed; below, the mean gap
    with a band of two standard errors, and the bar."""
    column, width, left = 400, 310, 80
    names = [baseline, *variants]
    series = {(setting, name): {seed: c.own() for (s, n, seed), c in sorted(curves.items()) if (s, n) == (setting, name)}
              for setting in settings for name in names}
    bar = min(bars.mean, bars.bound)

    def losses_at(setting, name):
        runs = series[setting, name].values()
        for step in sorted(set().union(*runs)):
            yield step, [run[step] for run in runs if step in run and math.isfinite(run[step])]

    def gaps_at(setting, name):
        ours, theirs = series[setting, name], series[setting, baseline]
        for step in sorted(set().union(*ours.values())):
            values = [ours[seed][step] - theirs[seed][step] for seed in ours if step in theirs.get(seed, {})]
            found = estimate(value for value in values if math.isfinite(value))
            if found.count:
                yield step, found.mean, 0.0 if math.isnan(found.error) else 2 * found.error

    losses = [value for key in series for _, values in losses_at(*key) for value in values]
    if not losses:
        return print("not drawn: no curve")
    gaps = [edge for s in settings for v in variants for _, mean, band in gaps_at(s, v) for edge in (mean - band, mean + band)]
    last = max(step for runs in series.values() for run in runs.values() for step in run)
    loss_ticks = ticks(min(losses), max(losses), 6)
    gap_ticks = ticks(min(gaps + [-1.5 * bar]), max(gaps + [1.5 * bar]), 5)
    parts = []
    for index, setting in enumerate(settings):
        at = left + index * column
        above = Panel(66, 250, (0, last), loss_ticks, "validation loss (nats)", 2, at, width)
        below = Panel(346, 170, (0, last), gap_ticks, f"gap to {baseline} (nats)", 3, at, width)
        above.axes()
        below.axes("step")
        pairs = ", ".join(f"{name} {len(series[setting, name].keys() & series[setting, baseline])}" for name in variants)
        parts.append(f'<text x="{at + width / 2}" y="56" text-anchor="middle">{setting}; pairs: {pairs}</text>')
        for color, name in enumerate(names):
            points = [(step, values) for step, values in losses_at(setting, name) if values]
            above.band([(step, min(values), max(values)) for step, values in points], color_of(color))
            above.line([(step, estimate(values).mean) for step, values in points], color_of(color), dots=False)
        for edge in (-bar, bar):
            below.line([(0, edge), (last, edge)], "#888888", dashes="6 4", width=1.2, dots=False)
        for color, name in enumerate(variants, 1):
            points = list(gaps_at(setting, name))
            below.band([(step, mean - band, mean + band) for step, mean, band in points], color_of(color))
            below.line([(step, mean) for step, mean, _ in points], color_of(color))
        parts += above.parts + below.parts
        if index == 0:
            parts += legend(names, at + width, 76)
    write_page(path, left + column * (len(settings) - 1) + width + 40, 580, title, parts)
