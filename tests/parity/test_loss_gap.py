#!/usr/bin/env python3
"""The loss-gap bench: its statistics on made-up curves, and tiny runs of the CPU engine through all of it.

usage: test_loss_gap.py TRAINER
"""
import contextlib
import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from loss_gap_plan import Choice, Failure, flags_by_name, make_runs, read_options
from loss_gap_report import (COLUMNS, Bars, Curve, compare, difference_of_means, estimate, over_settings, print_report,
                             ranges, read_curve, read_table, write_curve, write_table)

BENCH = Path(__file__).resolve().parent / "loss_gap.py"
TRAINER = None
SEEDS = (1, 2, 3, 4)
NOTHING = "false"  # a trainer that fails whenever it is called


def curve(precision, early, late, in_bf16=None, **facts):
    losses = {(100, precision): early, (200, precision): 4.5, (300, precision): late}
    if in_bf16 is not None:
        losses[300, "bf16"] = in_bf16
    return Curve(precision, losses, facts)


def pairs(late_gaps, early_gap=0.03, rounding=0.001):
    """Curves of BF16, each seed its own loss, and FP8 that lies above by late_gaps."""
    curves = {}
    for seed, gap in enumerate(late_gaps, 1):
        base = 4.0 + 0.1 * seed
        curves["lr", "bf16", seed] = curve("bf16", 5.0 + base, base)
        curves["lr", "fp8", seed] = curve("fp8", 5.0 + base + early_gap, base + gap, base + gap - rounding, skipped="1")
    return curves


def verdict(late_gaps, bars):
    return bars.verdict(estimate(late_gaps))


class Statistics(unittest.TestCase):
    def test_mean_and_standard_error(self):
        found = estimate([0.01, 0.02, 0.03, 0.04])
        self.assertAlmostEqual(found.mean, 0.025)
        self.assertAlmostEqual(found.error, math.sqrt(5e-4 / 3) / 2)  # deviations +-0.015, +-0.005
        self.assertTrue(math.isnan(estimate([0.01]).error))

    def test_gaps_are_paired_by_seed(self):
        (row,), missing = compare(pairs([0.01, 0.02, 0.03, 0.04]), "bf16", ["fp8"], ["lr"], SEEDS)
        self.assertEqual(missing, [])
        self.assertEqual(str(row.of("late")), "+0.0250 ± 0.0065")  # the seeds' own losses are 0.1 apart
        self.assertAlmostEqual(row.of("early").mean, 0.03)  # step 100 alone: the first third
        self.assertAlmostEqual(row.of("trained").mean, 0.024)
        self.assertAlmostEqual(row.of("rounding").mean, 0.001)
        self.assertEqual(row.skipped, 4)
        self.assertAlmostEqual(row.baseline_loss, 4.25)

    def test_missing_pairs_are_named_and_left_out(self):
        curves = pairs([0.01, 0.5, 0.03, 0.04])
        del curves["lr", "bf16", 2], curves["lr", "fp8", 4]
        (row,), missing = compare(curves, "bf16", ["fp8"], ["lr"], SEEDS)
        self.assertEqual(sorted(row.gaps), [1, 3])
        self.assertAlmostEqual(row.of("late").mean, 0.02)
        self.assertEqual(missing, ["lr seed 2: no bf16", "lr seed 4: no fp8"])
        self.assertEqual(ranges([1, 2, 5, 6, 7, 9]), "1, 2, 5 to 7, 9")

    def test_unpaired_all_runs_count(self):
        curves = pairs([0.01, 0.02, 0.03, 0.04])
        del curves["lr", "fp8", 4]
        (row,), _ = compare(curves, "bf16", ["fp8"], ["lr"], SEEDS)
        theirs = [curves["lr", "bf16", seed].last("bf16") for seed in SEEDS]
        ours = [curves["lr", "fp8", seed].last("fp8") for seed in SEEDS[:3]]
        self.assertAlmostEqual(row.unpaired.mean, sum(ours) / 3 - sum(theirs) / 4)
        self.assertAlmostEqual(row.unpaired.error, math.sqrt(estimate(ours).error ** 2 + estimate(theirs).error ** 2))
        self.assertEqual(row.unpaired.count, 3)
        self.assertEqual(str(difference_of_means([0.01], [])), "-")

    def test_over_all_settings_a_seed_counts_once(self):
        curves = pairs([0.01, 0.02, 0.03])
        for (_, name, seed), c in list(curves.items()):
            if (name, seed) != ("fp8", 3):
                curves["lr2", name, seed] = c
        rows, _ = compare(curves, "bf16", ["fp8"], ["lr", "lr2"], SEEDS)
        (row,) = over_settings(rows)
        self.assertEqual(sorted(row.gaps), [1, 2])  # seed 3 is not complete
        self.assertAlmostEqual(row.of("late").mean, 0.015)

    def test_a_diverged_run_fails(self):
        curves = pairs([0.0, 0.0])
        curves["lr", "fp8", 2] = Curve("fp8", {(100, "fp8"): 5.0, (300, "fp8"): math.nan, (300, "bf16"): math.nan})
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            passes = print_report(*compare(curves, "bf16", ["fp8"], ["lr"], (1, 2)), Bars(mean=1), "bf16")
        self.assertFalse(passes)
        self.assertIn("FAIL: a loss is not finite", printed.getvalue())

    def test_a_curve_survives_its_file(self):
        with tempfile.TemporaryDirectory() as folder:
            written = curve("fp8", 5.25, math.nan, 4.125, flags="--a b --c", build="1")
            write_curve(Path(folder) / "x" / "y.csv", written)
            read = read_curve(Path(folder) / "x" / "y.csv")
        self.assertEqual((read.precision, read.facts), (written.precision, written.facts))
        self.assertEqual(list(read.losses), list(written.losses))
        self.assertTrue(math.isnan(read.last("fp8")))
        self.assertEqual(read.last("bf16"), 4.125)

    def test_curves_survive_a_table(self):
        with tempfile.TemporaryDirectory() as folder:
            table = Path(folder) / "table.csv"
            written = {("warm", "fp8", 2): curve("fp8", 5.25, math.nan, 4.125, branched_at=30),
                       ("warm", "bf16", 2): curve("bf16", 5.0, 4.0)}
            write_table(table, written)
            read = read_table(table)
            self.assertEqual({key: (c.precision, list(c.losses)) for key, c in read.items()},
                             {key: (c.precision, list(c.losses)) for key, c in written.items()})
            self.assertEqual(read["warm", "fp8", 2].facts, {"branched_at": "30"})
            self.assertEqual(read["warm", "fp8", 2].last("bf16"), 4.125)
            table.write_text(table.read_text() + table.read_text().splitlines()[-1])
            with self.assertRaisesRegex(ValueError, "twice"):
                read_table(table)
            table.write_text(",".join(COLUMNS) + "\nlr1e-3,0,fp8,1,50")
            with self.assertRaisesRegex(ValueError, "line 2 is not complete"):
                read_table(table)
            table.write_text("max_lr,seed\n1,2\n")
            with self.assertRaisesRegex(ValueError, "no column setting, branched_at, variant, step"):
                read_table(table)


class Verdicts(unittest.TestCase):
    def test_small_model_both_sides_of_each_bar(self):
        bars = Bars(mean=0.005, error=0.003)
        self.assertEqual(verdict([0.003, 0.006], bars), (True, "pass"))  # 0.0045 +- 0.0015
        self.assertEqual(verdict([-0.003, -0.006], bars), (True, "pass"))
        self.assertEqual(verdict([0.004, 0.007], bars), (False, "FAIL: beyond the bar"))  # 0.0055
        passes, why = verdict([-0.004, 0.004], bars)  # 0 +- 0.004
        self.assertFalse(passes)
        self.assertIn("about 4 seeds", why)  # 2 (4/3)^2

    def test_full_model_both_sides_of_the_bar(self):
        bars = Bars(bound=0.02)
        self.assertTrue(verdict([0.006, 0.014], bars)[0])  # 0.010 + 2 x 0.004
        self.assertFalse(verdict([0.009, 0.017], bars)[0])  # 0.013 + 2 x 0.004
        self.assertFalse(verdict([-0.009, -0.017], bars)[0])

    def test_few_seeds_refute_and_do_not_prove(self):
        bars = Bars(mean=0.005, error=0.003, proof=False)
        self.assertTrue(verdict([0.0, 0.02], bars)[0])  # 0.01 +- 0.01
        self.assertFalse(verdict([0.009, 0.011], bars)[0])  # 0.010 +- 0.001
        self.assertFalse(verdict([], bars)[0])


class Plans(unittest.TestCase):
    def test_later_flags_win(self):
        self.assertEqual(flags_by_name("--a 1 --b --c x", "--no-b --a 2"), {"a": ["--a", "2"], "b": ["--no-b"], "c": ["--c", "x"]})

    def test_baselines_run_once_for_all_variants_and_first(self):
        options = read_options(["--seeds", "2", "--variant", "fp8=", "--variant", "head=--no-fp8_lm_head", "--rates", "1e-3,2e-3"])
        runs = make_runs(options)
        self.assertEqual([(r.seed, r.setting, r.variant) for r in runs[:6]],
                         [(1, lr, v) for lr in ("lr1e-3", "lr2e-3") for v in ("bf16", "fp8", "head")])
        self.assertEqual(len(runs), 12)
        self.assertEqual([r.precision for r in runs[:3]], ["bf16", "fp8", "fp8"])
        self.assertIn("--no-fp8_lm_head", runs[2].flags)
        self.assertEqual(runs[0].flags[runs[0].flags.index("--target_batch_size") + 1], "64")

    def test_fp8_begins_where_it_branches_off(self):
        plan = ["--branch_at", "10", "--seeds", "1", "--rates", "1e-3", "--variant", "fp8=", "--variant", "late=--fp8_bf16_steps 20"]
        begins = lambda run: run.flags[run.flags.index("--fp8_bf16_steps") + 1] if "--fp8_bf16_steps" in run.flags else None
        self.assertEqual([begins(run) for run in make_runs(read_options(plan))], [None, "0", "20"])
        self.assertIsNone(begins(make_runs(read_options([*plan, "--baseline", "all=--precision fp8"]))[0]))
        self.assertIsNone(begins(make_runs(read_options(plan[2:]))[1]))

    def test_a_plan_file_holds_options_and_the_command_line_wins(self):
        with tempfile.TemporaryDirectory() as folder:
            plan = Path(folder) / "plan.json"
            plan.write_text(json.dumps({"seeds": 3, "model": "gpt2", "jobs": 2, "variant": {"current": "--fp8_recipe current"}}))
            options = read_options(["--plan", str(plan), "--seeds", "5"])
            self.assertEqual((options.seeds, options.jobs, options.seq_len), (5, 2, 1024))
            self.assertEqual(options.variants, [Choice("current", "--fp8_recipe current")])
            self.assertEqual(options.bars.bound, 0.02)
            plan.write_text(json.dumps({"sedes": 3}))
            with self.assertRaisesRegex(Failure, "no option sedes"):
                read_options(["--plan", str(plan)])


class Bench(unittest.TestCase):
    """nano's smallest relative, FP32 against emulated FP8."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="test_loss_gap_")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def command(self, *more, trainer=None, steps=6, out="out"):
        return [sys.executable, str(BENCH), trainer or TRAINER, "--device", "cpu", "--model", "nano",
                "--baseline", "fp32=--precision fp32", "--flags", "--layers 1 --heads 1 --channels 16", "--seq_len", "16",
                "--tokens_per_step", "32", "--steps", str(steps), "--warmup_steps", "2", "--eval_freq", "2",
                "--eval_sequences", "4", "--seeds", "2", "--rates", "3e-3", "--jobs", "2", "--bar_mean", "1",
                "--bar_error", "1", "--out", str(self.folder / out), "--work", str(self.folder / "work"), *more]

    def bench(self, *more, status=0, **options):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        done = subprocess.run(self.command(*more, **options), capture_output=True, text=True, timeout=300, env=environment)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def csv(self, variant, seed, out="out", setting="lr3e-3"):
        return self.folder / out / "nano" / setting / f"{variant}-seed{seed}.csv"

    def test_the_whole_pipeline_and_that_nothing_runs_twice(self):
        picture, table = self.folder / "gap.svg", self.folder / "table.csv"
        output = self.bench("--picture", str(picture), "--write_table", str(table))
        self.assertIn("4 of 4 runs done", output)
        self.assertIn("| lr3e-3 | fp8 | 2 |", output)
        self.assertTrue(picture.read_text().startswith("<svg"))
        self.assertEqual([p.name for p in (self.folder / "work/nano").iterdir() if p.is_dir() and any(p.iterdir())], [])
        fp8, fp32 = read_curve(self.csv("fp8", 1)), read_curve(self.csv("fp32", 1))
        self.assertEqual(list(fp8.losses), [(2, "fp8"), (4, "fp8"), (6, "fp8"), (6, "fp32")])
        self.assertEqual(list(fp32.losses), [(2, "fp32"), (4, "fp32"), (6, "fp32")])
        self.assertNotEqual(fp8.last("fp8"), fp8.last("fp32"))
        self.assertLess(abs(fp8.last("fp8") - fp8.last("fp32")), 0.01)
        self.assertNotEqual(fp8.last("fp32"), fp32.last("fp32"))

        row = lambda text: re.search(r"^\| lr3e-3 \| fp8 \| 2 .*$", text, re.M).group().split("|")
        again = row(self.bench("--table", str(table), "--picture", str(picture), out="none", trainer=NOTHING))
        self.assertEqual(again[-3], " - ")  # a table does not tell what was skipped
        self.assertEqual(again[:-3] + again[-2:], row(output)[:-3] + row(output)[-2:])

        self.assertIn("0 of 4 runs to do", self.bench(trainer=NOTHING))
        self.csv("fp8", 2).unlink()
        self.assertIn("left out: lr3e-3 seed 2: no fp8", self.bench("--report", trainer=NOTHING, status=1))
        before = self.csv("fp32", 2).stat().st_mtime_ns
        self.assertIn("1 of 4 runs to do", self.bench())
        self.assertEqual(self.csv("fp32", 2).stat().st_mtime_ns, before)

        self.assertIn("has other flags", self.bench(steps=8, status=2))  # not taken for curves of 8 steps
        self.assertIn("FAIL: beyond the bar", self.bench("--bar_mean", "0", trainer=NOTHING, status=1))

    def test_what_was_stopped_goes_on_bit_for_bit(self):
        steps = 300  # so many that it is still at it when it is stopped, on a busy machine too
        process = subprocess.Popen(self.command("--seeds", "1", "--variant", "fp8=", steps=steps), stdout=subprocess.PIPE,
                                   text=True)
        log = self.folder / "work/nano/lr3e-3/fp8-seed1/log.txt"
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (log.exists() and "val loss" in log.read_text()):
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
        self.assertNotIn("2 of 2 runs done", output)
        self.assertTrue((log.parent / "checkpoints/latest").exists(), output)
        self.bench("--seeds", "1", "--judge", "refute", status=1, steps=steps)  # one pair proves nothing
        self.bench("--seeds", "1", status=1, steps=steps, out="straight")
        self.assertEqual(read_curve(self.csv("fp8", 1)).losses, read_curve(self.csv("fp8", 1, "straight")).losses)

    def test_variants_that_branch_off_from_the_baseline(self):
        variants = ("--variant", "fp8=", "--variant", "again=--precision fp32")
        output = self.bench("--branch_at", "3", *variants)
        self.assertIn("6 of 6 runs done", output)
        self.assertIn("| lr3e-3-from3 | again | 2 |", output)
        self.bench(*variants, out="whole")
        self.assertEqual(list(self.folder.glob("work/nano/*/*")), [])  # stems too are gone
        for seed in (1, 2):
            baseline, fp8, again = (read_curve(self.csv(name, seed, setting="lr3e-3-from3")) for name in ("fp32", "fp8", "again"))
            self.assertEqual(baseline.losses, read_curve(self.csv("fp32", seed, "whole")).losses)
            self.assertEqual(again.losses, {key: loss for key, loss in baseline.losses.items() if key[0] > 3})  # bit for bit
            self.assertEqual(list(fp8.losses), [(4, "fp8"), (6, "fp8"), (6, "fp32")])
            self.assertNotEqual(fp8.losses, read_curve(self.csv("fp8", seed, "whole")).losses)

        self.csv("fp8", 2, setting="lr3e-3-from3").unlink()  # its stem is gone: the baseline makes it again
        output = self.bench("--branch_at", "3", *variants)
        self.assertEqual(output.count("seed 2: "), 2, output)
        self.assertEqual(output.count("seed 1: "), 0, output)
        self.assertIn("1 baselines run once more", output)
        self.csv("fp8", 2, setting="lr3e-3-from3").unlink()
        path = self.csv("fp32", 2, setting="lr3e-3-from3")  # as if of another build
        path.write_text(path.read_text().replace("\n6,fp32,", "\n6,fp32,1"))
        self.assertIn("it ends elsewhere", self.bench("--branch_at", "3", *variants, status=1))

        self.bench("--branch_at", "6", status=2)
        self.bench("--branch_at", "3", "--checkpoint_freq", "2", status=2)
        self.assertIn("would go on with the baseline's --weight_decay",
                      self.bench("--branch_at", "3", "--baseline", "fp32=--precision fp32 --weight_decay 5", status=2))

    def wrapper(self, text):
        path = self.folder / "trainer"
        path.write_text(f'#!/bin/sh\n{text}\nexec {TRAINER} "$@"\n')
        path.chmod(0o755)
        return str(path)

    def test_branches_whose_baseline_is_of_another_plan_or_fails(self):
        self.bench("--branch_at", "3")
        stem = self.folder / "work/nano/lr3e-3-from3/seed1.stem"
        (stem / "step_00000003").mkdir(parents=True)
        (stem / "of").write_text("other flags")
        self.bench("--branch_at", "3", out="again")  # it is not taken
        self.assertEqual(*(read_curve(self.csv("fp8", 1, out, "lr3e-3-from3")).losses for out in ("out", "again")))

        diverges = self.wrapper('case "$*" in *"--seed 2 "*"--precision fp32 "*) '
                                f'case "$*" in *eval_only*|*warm-up*) ;; *) {TRAINER} "$@" --max_steps 2; exit 5;; esac;; esac')
        for _ in range(2):  # a restart too
            output = self.bench("--branch_at", "3", "--seeds", "3", out="diverged", trainer=diverges)
            self.assertIn("left out: lr3e-3-from3 seed 2: no fp8", output)
            self.assertIn("5 of 6 runs done", output)
        ends_without_a_word = self.wrapper('case "$*" in *warm-up*) ;; *) exit 0;; esac')
        self.bench("--branch_at", "3", out="silent", trainer=ends_without_a_word, status=1)  # and waits for nobody

    def test_a_budget_starts_nothing_that_would_end_later(self):
        output = self.bench("--budget", "20", "--tokens_per_second", "1", status=1)
        self.assertIn("0 of 4 runs done", output)
        output = self.bench("--dry_run", "--tokens_per_second", "64", trainer=NOTHING)
        self.assertIn("4 of 4 runs to do", output)
        self.assertIn("12 s", output)  # 4 x 6 x 32 tokens

    def test_what_is_not_here_and_what_is_wrong(self):
        self.bench("--train_data", str(self.folder / "no*.bin"), "--val_data", "none.bin", status=77)
        self.bench("--variant", "x=--no_such_flag", status=2)
        self.bench("--variant", "a b=", status=2)
        self.bench("--table", str(self.folder / "none.csv"), status=2)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    TRAINER = os.path.abspath(sys.argv.pop())
    unittest.main(verbosity=1)
