#!/usr/bin/env python3
"""How far FP8's loss lies from BF16's, with honest noise: seeds x settings x variants of the real trainer, side by side.

    loss_gap.py [PROGRAM] --train_data 'data/train_*.bin' --val_data data/val.bin --seeds 24
        the default recipe beside BF16: d6 with T = 512, 300 steps of 32,768 tokens, three rates
    loss_gap.py --variant fp8= --variant current="--fp8_recipe current" --variant bf16_head="--no-fp8_lm_head"
        parts of the recipe one at a time, all beside the same BF16 runs, which run once
    loss_gap.py --branch_at 100 --variant ...
        variants go on from BF16's checkpoint of step 100, so that pairs have the first steps in common, from which much of the
        scatter between runs comes: what they do afterwards
    loss_gap.py --plan plan.toml --dry_run --tokens_per_second 2e6
        the table of runs and how long it takes, before the first one
    loss_gap.py --table docs/data/loss_gap_124M.csv --model gpt2 --tokens_per_step 65536 --seeds 10 --picture gap.svg
        what curves of earlier plans say: nothing runs

A plan file, TOML or JSON, holds options by name: seeds = 24, jobs = 6, and tables [setting] and [variant] with NAME = "FLAGS".
Options on the command line win; --setting and --variant there add to the plan's.

Every finished run is a CSV in OUT/MODEL/SETTING/VARIANT-seedN.csv and never runs again; what was stopped goes on where it
was (Ctrl-C, SIGTERM and the end of --budget save it in WORK). Runs are ordered by seed, so that a bench that ends early has
whole pairs. During training each side is evaluated in its own precision; at the end FP8 is evaluated in BF16 too
(--eval_only), so that damage in training and rounding in evaluation are told apart.

Exit status: 0 within the bars, 1 beyond them or not proven, 2 usage, 77 no GPU or no data.
"""
import hashlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

from loss_gap_plan import NOT_HERE, USAGE, Failure, Run, check_data, data_names, make_runs, read_options
from loss_gap_report import (Curve, compare, draw, print_report, read_curve, read_table, same_losses, write_curve,
                             write_table)

WARM_UP = "warm-up"  # in place of a setting
TRAINER_USAGE, TRAINER_DATA, TRAINER_NUMERICS, TRAINER_DEVICE, TRAINER_STOPPED = 2, 3, 5, 6, 75  # docs/troubleshooting.md

# ---- one run ----


def build_of(program):
    """Twelve digits that tell builds apart; the engine is a library beside the program."""
    files = (program, program.parent / "lib/libgpt2.so")
    return hashlib.sha256(b"".join(file.read_bytes() for file in files if file.exists())).hexdigest()[:12]


class Stopped(Exception):
    """On request: what runs has saved itself."""


class Stems:
    """--branch_at: the baselines' checkpoints of that step, from which the others of their setting and seed go on."""

    def __init__(self, options, runs, build):
        self.step, self.work = options.branch_at, options.work
        self.data, self.build = data_names(options), build
        self.baselines = {self.group(run): run for run in runs if run.variant == options.baseline.name}
        self.lost = set()  # groups whose baseline diverged before that step

    @staticmethod
    def group(run):
        return run.setting, run.seed

    def is_baseline(self, run):
        return run == self.baselines.get(self.group(run))

    def folder(self, run):
        return self.work / run.setting / f"seed{run.seed}.stem"

    def path(self, run):
        return self.folder(run) / f"step_{self.step:08d}"

    def origin(self, run):
        return "\n".join((" ".join(self.baselines[self.group(run)].flags), self.data, self.build))

    def ready(self, run):
        """One that another plan or another build left is none."""
        of = self.folder(run) / "of"
        return of.exists() and of.read_text() == self.origin(run)

    def waits(self, run):
        """For the baseline's run."""
        return bool(self.step) and not self.is_baseline(run) and not self.ready(run)

    def keep(self, run, checkpoints):
        """Of a baseline that has ended, before its curve is written: a curve without a stem would run again."""
        if self.ready(run):
            return
        saved = checkpoints / "run" / f"step_{self.step:08d}"
        if not saved.exists():
            self.lost.add(self.group(run))
            return
        self.drop(run)
        self.folder(run).mkdir()
        saved.rename(self.path(run))
        (self.folder(run) / "of").write_text(self.origin(run))

    def drop(self, run):
        shutil.rmtree(self.folder(run), ignore_errors=True)  # two workers may see that nobody needs it any more


class Trainer:
    """Starts the program, knows what runs, and ends it all on request."""

    def __init__(self, options, runs):
        self.options, self.baseline_precision = options, runs[0].precision
        self.build = build_of(options.program)
        self.stems = Stems(options, runs, self.build)
        self.stopping = threading.Event()
        self.processes, self.lock = set(), threading.Lock()
        # What is wanted of a run is its curve: one checkpoint at the end, for the second evaluation, and nothing else.
        self.quiet = ["--no-save_best", "--no-use_tensorboard", "--sample_tokens", "0", "--histogram_freq", "0",
                      "--log_freq", "50", "--checkpoint_freq", str(options.checkpoint_freq), "--device", options.device]
        if options.device == "cpu":
            self.quiet += ["--threads", "1"]
        else:  # one file for all, so that nobody tunes beside others who compute
            self.quiet += ["--plan_cache", str(options.work / "plans.txt")]
        self.data = [word for name in ("train_data", "val_data") if getattr(options, name)
                     for word in (f"--{name}", getattr(options, name))]

    def call(self, words, log):
        """The program's exit code; its output goes to the log. Its session is its own: Ctrl-C reaches it through us."""
        with self.lock:
            if self.stopping.is_set():
                return TRAINER_STOPPED
            with open(log, "a") as output:
                process = subprocess.Popen([str(self.options.program), *words], stdout=output, stderr=subprocess.STDOUT,
                                           stdin=subprocess.DEVNULL, start_new_session=True)
            self.processes.add(process)
        try:
            return process.wait()
        finally:
            with self.lock:
                self.processes.discard(process)

    def stop(self):
        with self.lock:
            if self.stopping.is_set():
                return
            self.stopping.set()
            for process in self.processes:
                process.terminate()

    def folders(self, run):
        folder = self.options.work / run.setting / f"{run.variant}-seed{run.seed}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder, folder / "checkpoints", folder / "log.txt"

    def train(self, run, more=()):
        folder, checkpoints, log = self.folders(run)
        if log.exists() and log.stat().st_size and (folder / "flags").read_text() != " ".join(run.flags):
            shutil.rmtree(folder)  # begun by another plan
            folder.mkdir(parents=True)
        (folder / "flags").write_text(" ".join(run.flags))
        resume = ["--resume", "latest"] if (checkpoints / "latest").exists() else []
        if self.stems.step and run.setting != WARM_UP:
            if self.stems.is_baseline(run):
                more = [*more, "--checkpoint_freq", str(self.options.checkpoint_freq or self.stems.step), "--keep_checkpoints", "0"]
            elif not resume:
                resume = ["--resume", str(self.stems.path(run))]
        return self.call([*run.flags, *self.quiet, *self.data, "--log_dir", str(folder), "--run_name", "run",
                          "--checkpoint_dir", str(checkpoints), *resume, *more], log)

    def evaluate(self, run, precision):
        folder, checkpoints, _ = self.folders(run)
        log = folder / f"{precision}.txt"
        log.unlink(missing_ok=True)
        code = self.call(["--eval_only", "--resume", "latest", "--checkpoint_dir", str(checkpoints),
                          "--precision", precision], log)
        if code == 0:
            return float(re.search(r"val loss: (\S+)", log.read_text()).group(1))
        raise Stopped() if self.stopping.is_set() else self.failure(run, code, log)

    def failure(self, run, code, log):
        """A wrong flag or lacking data would fail every run alike; anything else is a defect."""
        status = {TRAINER_USAGE: USAGE, TRAINER_DATA: NOT_HERE}.get(code, 1)
        tail = "\n".join(log.read_text().splitlines()[-8:])
        return Failure(status, f"{run}: the trainer ended with exit code {code}; {log} ends with\n{tail}")

    def warm_up(self, run):
        """A step before FP8 begins, one after it, and evaluations, alone on the device: tunes what all runs of this variant
        will look up."""
        marker = self.options.work / f"{run.variant}-{self.build}.warm"
        if marker.exists():
            return
        begin = time.monotonic()
        warm = Run(WARM_UP, run.variant, run.seed, run.flags, run.precision)
        folder, _, log = self.folders(warm)
        begins_later = ["--fp8_bf16_steps", "1"] if run.precision == "fp8" else []
        code = self.train(warm, ["--max_steps", "2", "--warmup_steps", "1", "--eval_freq", "1", *begins_later])
        if code == TRAINER_DEVICE:
            raise Failure(NOT_HERE, f"no GPU to compute on: {log.read_text().strip().splitlines()[-1]}")
        if code != 0:
            raise Stopped() if self.stopping.is_set() else self.failure(warm, code, log)
        shutil.rmtree(folder)
        marker.touch()
        print(f"warmed up {run.variant}: {time.monotonic() - begin:.1f} s", flush=True)

    def finish(self, run):
        """From wherever it is to its CSV."""
        begin = time.monotonic()
        code = self.train(run)
        folder, checkpoints, log = self.folders(run)
        if code not in (0, TRAINER_NUMERICS):
            raise Stopped() if self.stopping.is_set() else self.failure(run, code, log)
        curve = self.read_metrics(run, folder / "run" / "metrics.jsonl", diverged=code == TRAINER_NUMERICS)
        if run.precision != self.baseline_precision:
            last = curve.last_step()
            curve.losses[last, self.baseline_precision] = (
                float("nan") if code else self.evaluate(run, self.baseline_precision))
        curve.facts["seconds"] = f"{time.monotonic() - begin:.1f}"
        if self.stems.step and self.stems.is_baseline(run):
            self.check_repeated(run, curve)
            self.stems.keep(run, checkpoints)
        elif self.stems.step:
            curve.facts["branched_at"] = self.stems.step
        write_curve(run.csv(self.options.curves), curve)
        shutil.rmtree(folder)
        return curve

    def check_repeated(self, run, curve):
        """A baseline that ran once more for its checkpoint: what has branched off before must be of the same run."""
        path = run.csv(self.options.curves)
        if path.exists() and not same_losses(read_curve(path), curve):
            raise Failure(1, f"{run}: run once more for its checkpoint it ends elsewhere than {path}\n"
                             "another build, or products timed otherwise: choose another --out")

    def read_metrics(self, run, path, diverged):
        """A run that the trainer gave up is a curve whose last point is not finite: it must not be forgotten."""
        entries = [json.loads(line) for line in path.read_text().splitlines()]
        losses = {(entry["step"], run.precision): float("nan") if entry["val_loss"] is None else entry["val_loss"]
                  for entry in entries if entry["type"] == "validation"}
        if diverged:
            losses[self.options.steps, run.precision] = float("nan")
        first = entries[0]
        events = [entry["event"] for entry in entries if entry["type"] == "event"]
        speeds = sorted(entry["tokens_per_sec"] for entry in entries if entry["type"] == "step")
        return Curve(run.precision, losses, {
            "flags": " ".join(run.flags), "data": data_names(self.options), "version": first["version"], "build": self.build,
            "device": first["device"], "skipped": events.count("skip"), "fallbacks": events.count("fallback"),
            "tokens_per_second": f"{speeds[len(speeds) // 2]:.0f}"})


# ---- all runs ----


def read_finished(options, runs):
    """{run: its curve}; what another plan left under the same name is an error, not a result."""
    finished = {}
    for run in runs:
        path = run.csv(options.curves)
        if not path.exists():
            continue
        curve = read_curve(path)
        for name, wanted in (("flags", " ".join(run.flags)), ("data", data_names(options))):
            if curve.facts.get(name) != wanted:
                raise Failure(USAGE, f"{path} has other {name}:\n  there  {curve.facts.get(name)}\n  wanted {wanted}\n"
                                     "choose another --out or another name for the setting or the variant")
        finished[run] = curve
    return finished


class Clock:
    """How long a run takes, as far as is known, and whether one more fits."""

    def __init__(self, options):
        self.begin, self.budget = time.monotonic(), options.budget
        tokens = options.steps * options.tokens_per_step
        # Those that run at once share the device.
        self.expected = tokens * options.jobs / options.tokens_per_second if options.tokens_per_second else 0.0
        self.measured = []

    def elapsed(self):
        return time.monotonic() - self.begin

    def run_seconds(self):
        return max(self.measured[-8:], default=self.expected)

    def fits(self):
        return not self.budget or self.elapsed() + self.run_seconds() <= self.budget


def run_all(options, trainer, runs, finished):
    """Works off the list with options.jobs runs at a time. The first failure ends the bench."""
    stems = trainer.stems
    todo = [run for run in runs if run not in finished]
    if stems.step:
        missing = [run for run in (stems.baselines[group] for group in {stems.group(run): None for run in todo})
                   if run in finished and not stems.ready(run)]
        stems.lost.update(stems.group(run) for run in missing if not math.isfinite(finished[run].last(run.precision)))
        again = [run for run in missing if stems.group(run) not in stems.lost]
        if again:
            print(f"{len(again)} baselines run once more: their checkpoints of step {stems.step} are not here")
        todo = again + todo
    clock, failures, waiting, lock = Clock(options), [], list(todo), threading.Lock()

    def next_run():
        """The first that waits for no other; none: there is nothing left."""
        while not trainer.stopping.is_set() and clock.fits():
            with lock:
                waiting[:] = [run for run in waiting if stems.group(run) not in stems.lost]
                if not waiting:
                    return None
                ready = next((run for run in waiting if not stems.waits(run)), None)
                if ready:
                    waiting.remove(ready)
                    return ready
            time.sleep(0.05)
        return None

    def work():
        while run := next_run():
            try:
                begin = clock.elapsed()
                curve = trainer.finish(run)
            except Stopped:
                return
            except Exception as error:  # whatever it is: others may wait for this run
                failures.append(error if isinstance(error, Failure) else Failure(1, f"{run}: {error!r}"))
                trainer.stop()
                return
            clock.measured.append(clock.elapsed() - begin)
            finished[run] = curve
            if stems.step and all(other in finished for other in runs if stems.group(other) == stems.group(run)):
                stems.drop(run)
            other = "".join(f", in {precision} {loss:.4f}" for (step, precision), loss in curve.losses.items()
                            if step == curve.last_step() and precision != run.precision)
            print(f"[{len(finished)}/{len(runs)}] {run}: {curve.last(run.precision):.4f}{other}; {clock.measured[-1]:.1f} s, "
                  f"{float(curve.facts['tokens_per_second']):,.0f} tokens/s", flush=True)

    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, lambda *_: threading.Thread(target=trainer.stop).start())
    for run in {run.variant: run for run in reversed(todo)}.values():
        try:
            trainer.warm_up(run)
        except Stopped:
            return
    workers = [threading.Thread(target=work) for _ in range(options.jobs)]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        time.sleep(0.05)
        if options.budget and clock.elapsed() > options.budget:
            trainer.stop()
    if failures:
        raise failures[0]


# ---- main ----


def print_plan(options, runs, finished):
    print("| setting | variant | precision | seeds | done | flags |\n|---|---|---|---|---|---|")
    for setting in options.settings:
        for variant in (options.baseline, *options.variants):
            own = [run for run in runs if (run.setting, run.variant) == (setting.name, variant.name)]
            done = sum(run in finished for run in own)
            print(f"| {setting.name} | {variant.name} | {own[0].precision} | {own[0].seed} to {own[-1].seed} | {done} "
                  f"| {setting.flags} {variant.flags} |")
    todo = len(runs) - len(finished)
    tokens = options.tokens_per_step * sum(options.steps - (options.branch_at if run.variant != options.baseline.name else 0)
                                           for run in runs if run not in finished)
    print(f"{options.model}, T = {options.seq_len}, {options.steps} steps of {options.tokens_per_step:,} tokens, warm-up "
          f"{options.warmup_steps}: {todo} of {len(runs)} runs to do, {tokens / 1e6:,.1f}M tokens")
    if options.tokens_per_second:
        print(f"at {options.tokens_per_second:,.0f} tokens/s in all: {tokens / options.tokens_per_second:,.0f} s, and the "
              f"start of each of {todo} processes, {options.jobs} at a time")


def report(options, curves):
    """curves: {(setting, variant, seed): Curve}"""
    builds = {curve.facts.get("build", "unknown") for curve in curves.values()}
    if len(builds) > 1:
        print(f"note: the curves are of {len(builds)} builds: {', '.join(sorted(builds))}")
    names = [variant.name for variant in options.variants]
    settings = [setting.name for setting in options.settings]
    comparisons, missing = compare(curves, options.baseline.name, names, settings, options.all_seeds)
    passes = print_report(comparisons, missing, options.bars, options.baseline.name)
    if options.picture:
        title = f"{options.model}, {options.steps} steps of {options.tokens_per_step:,} tokens"
        draw(options.picture, title, curves, options.baseline.name, names, settings, options.bars)
    if options.write_table:
        write_table(options.write_table, curves)
    return 0 if passes else 1


def read_tables(paths):
    curves = {}
    for path in paths:
        try:
            curves.update(read_table(path))
        except (OSError, ValueError) as error:
            raise Failure(USAGE, f"{path}: {error}") from error
    return curves


def main(arguments):
    options = read_options(arguments, __doc__)
    if options.table:
        return report(options, read_tables(options.table))
    runs = make_runs(options)
    finished = read_finished(options, runs)
    print_plan(options, runs, finished)
    if options.dry_run:
        return 0
    if len(finished) < len(runs) and not options.report:
        check_data(options)
        if not os.access(options.program, os.X_OK):
            raise Failure(USAGE, f"{options.program} is no program: build it (make), or name it")
        options.work.mkdir(parents=True, exist_ok=True)
        trainer = Trainer(options, runs)
        run_all(options, trainer, runs, finished)
    print(f"\n{len(finished)} of {len(runs)} runs done")
    return report(options, {(run.setting, run.variant, run.seed): curve for run, curve in finished.items()})


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Failure as failure:
        print(f"loss_gap.py: {failure}", file=sys.stderr)
        sys.exit(failure.status)
