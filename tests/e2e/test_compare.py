#!/usr/bin/env python3
"""bin/compare from outside: its numbers against numpy's, its page in a real browser. Usage: test_compare.py TRAIN_GPT2_FP8 COMPARE

Without a Chromium the browser's part is skipped. REPORT_SCREENSHOTS=FOLDER keeps pictures of what it saw."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from browser import Browser, find_browser  # noqa: E402

try:
    import numpy as np
except ImportError:
    print("skipped: no numpy")
    sys.exit(77)

COMPARE = os.path.abspath(sys.argv.pop(2))
PROGRAM = os.path.abspath(sys.argv.pop(1))
TINY = ["--device", "cpu", "--model", "nano", "--layers", "1", "--heads", "1", "--channels", "16", "--seq_len", "16", "--threads", "1",
        "--batch_size", "2", "--target_batch_size", "2", "--eval_sequences", "4", "--no-use_tensorboard", "--sample_tokens", "0"]
STEPS, EVERY, TOKENS = 400, 50, 1000


def noise(seed):
    return np.random.default_rng(seed)


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="test_compare_")
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def compare(self, *arguments, code=0):
        done = subprocess.run([COMPARE, *arguments], cwd=self.folder, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout if code == 0 else done.stderr

    def numbers(self, *arguments):
        return json.loads(self.compare(*arguments, "--json").splitlines()[-1])

    def run_of(self, name, seed, precision="bf16", gap=0.0, pace=0.1, memory=20.0, steps=STEPS, validations=True, every=EVERY, ruined_from=None):
        """A run by hand: {"val": [[step, tokens, seconds, loss], ...]} as it stands in the file."""
        start = {"type": "run", "step": 0, "timestamp": "2026-11-15T11:42:18.125Z", "seconds": 0, "event": "start", "run_name": name,
                 "version": "0.1.0", "host": "here", "cpu_threads": 2, "device": "GPU", "precision": precision.upper(), "parameters": 1000,
                 "max_steps": STEPS, "tokens_per_step": TOKENS,
                 "options": {"seed": seed, "run_name": name, "precision": precision, "max_lr": 0.001, "max_skipped": 10}}
        lines, val = [start], []
        for step in range(1, steps + 1):
            at = {"step": step, "timestamp": start["timestamp"], "seconds": round(pace * step, 3)}
            data = noise(1000 * seed + step).normal(0, 0.1)  # of the batch, which the pair shares
            loss = 3 + 8 * np.exp(-step / 40) + data
            lines.append({"type": "step", **at, "loss": float(loss + gap), "lr": 0.001, "grad_norm": 1.0, "verdict": "applied",
                          "tokens_per_sec": TOKENS / pace, "tokens": TOKENS * step})
            if step % 10 == 0:
                lines.append({"type": "device", **at, "gpu_memory_gb": memory})
            if step % every == 0 and validations:
                loss = float(3 + 8 * np.exp(-step / 40) + noise(seed).normal(0, 0.02) + gap)
                written = None if ruined_from and step >= ruined_from else loss
                lines.append({"type": "validation", **at, "val_loss": written, "best": True})
                val.append([step, TOKENS * step, at["seconds"], loss])
        os.makedirs(self.path("runs", name))
        with open(self.path("runs", name, "metrics.jsonl"), "w") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        return np.array(val)

    def last_validation(self, name):
        with open(self.path("runs", name, "metrics.jsonl")) as file:
            return [line["val_loss"] for line in map(json.loads, file) if line["type"] == "validation"][-1]

    def groups(self, gaps, pace=0.08, **more):
        """bf16 and fp8 with these gaps, a seed each; what they hold."""
        pairs = [(self.run_of(f"a{seed}", seed), self.run_of(f"b{seed}", seed, "fp8", gap, pace, 15.0, **more)) for seed, gap in enumerate(gaps)]
        self.names = [f"{letter}{seed}" for seed in range(len(gaps)) for letter in "ab"]
        return pairs


class Statistics(Folder):
    def test_gaps_are_those_of_numpy(self):
        gaps = [0.002, 0.004, 0.003, 0.001]
        pairs = self.groups(gaps)
        result = self.numbers(*self.names)
        first, other = result["groups"]
        self.assertEqual((first["name"], other["name"], other["seeds"]), ("bf16", "fp8", [0, 1, 2, 3]))
        self.assertEqual((result["step"], result["loss"]), (STEPS, "validation"))
        for group, column in ((first, 0), (other, 1)):
            losses = [pair[column][-1, 3] for pair in pairs]
            self.check(group["loss"], losses)
        self.check(other["gaps"]["step"], [b[-1, 3] - a[-1, 3] for a, b in pairs])
        self.check(other["gaps"]["tokens"], [b[-1, 3] - a[-1, 3] for a, b in pairs])
        end = [min(a[-1, 2], b[-1, 2]) for a, b in pairs]  # the faster one's end
        self.check(other["gaps"]["seconds"], [np.interp(t, b[:, 2], b[:, 3]) - np.interp(t, a[:, 2], a[:, 3]) for t, (a, b) in zip(end, pairs)])
        self.assertAlmostEqual(other["gaps"]["seconds"]["at"], np.mean(end), places=3)
        self.assertLess(other["gaps"]["seconds"]["mean"], 0)
        self.assertAlmostEqual(other["speed_ratio"], 0.1 / 0.08, places=4)
        self.assertEqual(other["memory_gb"]["mean"], 15)
        curve = other["train"]["step"]  # the batch's noise is the same in both: what remains is the gap
        self.assertEqual(len(curve["x"]), 200)
        np.testing.assert_allclose(curve["mean"], np.mean(gaps), atol=1e-5)
        np.testing.assert_allclose(np.subtract(curve["high"], curve["mean"]), 2 * np.std(gaps, ddof=1) / 2, atol=1e-5)

    def check(self, estimate, values):
        self.assertEqual(estimate["count"], len(values))
        self.assertAlmostEqual(estimate["mean"], np.mean(values), delta=2e-5)
        self.assertAlmostEqual(estimate["error"], np.std(values, ddof=1) / np.sqrt(len(values)), delta=2e-5)

    def outcome(self, gaps, *arguments):
        shutil.rmtree(self.path("runs"), ignore_errors=True)
        self.groups(gaps)
        return self.numbers(*self.names, *arguments)["groups"][1]

    def test_verdicts(self):
        within = self.outcome([0.002, 0.004, 0.003])
        self.assertEqual(within["outcome"], "within")
        self.assertIn("fp8 is within 0.01 nats of bf16: +0.0030 nats, standard error 0.0006, 3 seeds", within["verdict"])
        t = np.linspace(-2, 2, 20001)  # Student's t, two degrees of freedom
        self.assertIn(f"{100 * np.trapz((2 + t * t) ** -1.5, t):.0f} % confidence", within["verdict"])
        self.assertEqual(self.outcome([0.002, 0.004, 0.003], "--margin", "0.001")["outcome"], "worse")
        self.assertIn("worse than bf16 by 0.0300", self.outcome([0.029, 0.031, 0.030])["verdict"])
        self.assertIn("better than bf16 by 0.0300", self.outcome([-0.029, -0.031, -0.030])["verdict"])
        gaps = [-0.02, 0.02, 0.0032, 0.0]
        unclear = self.outcome(gaps)
        self.assertEqual(unclear["outcome"], "unclear")
        needed = np.ceil((2 * np.std(gaps, ddof=1) / (0.01 - np.mean(gaps))) ** 2)
        self.assertEqual(unclear["seeds_needed"], needed)
        self.assertIn(f"4 seeds cannot decide whether fp8 is within 0.01 nats of bf16: +0.0008 nats, standard error 0.0082, 4 seeds. About {needed:.0f} seeds are needed", unclear["verdict"])
        one = self.outcome([0.001])
        self.assertEqual(one["outcome"], "one_seed")
        self.assertIn("no conclusion", one["verdict"])

    def test_seeds_that_do_not_match_and_runs_without_validation(self):
        self.groups([0.05, 0.05])
        self.run_of("c7", 7, "fp8", 0.0)
        result = self.numbers("old=a0,a1", "new=b1,c7")["groups"][1]
        self.assertEqual(result["gaps"]["step"]["count"], 1)  # one seed in common
        c8 = self.run_of("c8", 8, "fp8", 0.05)
        self.assertFalse((result := self.numbers("old=a0,a1", "new=c7,c8")["groups"][1])["paired"])
        self.assertIn("not paired", result["verdict"])
        last = [self.last_validation(name) for name in ("a0", "a1", "c7", "c8")]
        self.assertEqual(last[3], c8[-1, 3])
        self.assertAlmostEqual(result["gaps"]["step"]["mean"], np.mean(last[2:]) - np.mean(last[:2]), delta=1e-5)
        self.assertAlmostEqual(result["gaps"]["step"]["error"], np.hypot(np.std(last[2:], ddof=1), np.std(last[:2], ddof=1)) / np.sqrt(2), delta=1e-5)

        self.run_of("d0", 0, "fp8", 0.02, steps=300, validations=False)
        result = self.numbers("a0", "d0")
        self.assertEqual((result["loss"], result["step"]), ("training", 300))
        self.assertIn("1 failed", result["groups"][1]["trouble"])
        self.assertAlmostEqual(result["groups"][1]["gaps"]["step"]["mean"], 0.02, delta=1e-5)

    def test_a_gap_is_taken_where_all_were_validated(self):
        self.groups([0.0, 0.0, 0.0], every=150)  # 150, 300 against 50, 100, ..., 400: a line between two would be far above the curve
        result = self.numbers(*self.names)
        self.assertEqual(result["step"], 300)
        for axis, place in (("step", 300), ("tokens", 300 * TOKENS)):
            self.assertEqual(result["groups"][1]["gaps"][axis]["at"], place)
            self.assertAlmostEqual(result["groups"][1]["gaps"][axis]["mean"], 0, delta=1e-5)

    def test_one_run_that_was_lost_or_cut_does_not_move_the_others(self):
        self.groups([0.0, 0.0, 0.0])
        self.run_of("other", 0, "fp32", 0.0)
        for name, more in (("ruined", {"ruined_from": 100}), ("cut", {"steps": 120}), ("begun", {"steps": 20})):
            self.run_of(name, 1, "fp32", **more)
            result = self.numbers(*self.names, "other", name)
            fp8, third = result["groups"][1:]
            self.assertEqual(fp8["gaps"]["step"]["at"], STEPS, name)
            self.assertEqual((fp8["gap_loss"], fp8["outcome"]), ("validation", "within"), name)
            self.assertEqual([note for note in result["notes"] if "between fp8 and bf16 is of the validation loss at step 400" in note] != [], name != "ruined")
            self.assertEqual((result["step"], third["gaps"]["step"]["at"], third["gap_loss"]),
                             {"ruined": (STEPS, STEPS, "validation"), "cut": (100, 100, "validation"), "begun": (20, 20, "training")}[name])
        self.assertRegex(self.compare(*self.names, "other", "cut"), r"fp8 at equal step .* step 400\n(.*\n){2}fp32 at equal step .* step 100\n")
        result = self.numbers(*self.names, "other", "ruined")["groups"][2]
        self.assertEqual((result["outcome"], result["gaps"]["step"]["by_seed"][1]), ("diverged", None))  # its seed keeps its place
        self.assertAlmostEqual(result["gaps"]["step"]["by_seed"][0], 0, delta=1e-5)

    def test_a_step_that_was_validated_twice_counts_once(self):
        self.groups([0.0, 0.0])
        with open(self.path("runs", "b0", "metrics.jsonl"), "a") as file:
            file.write(json.dumps({"type": "validation", "step": STEPS, "timestamp": "", "seconds": 32.5, "val_loss": 5.0, "best": False}) + "\n")
        result = self.numbers(*self.names)
        self.assertEqual(result["step"], STEPS)
        self.assertAlmostEqual(result["groups"][1]["gaps"]["step"]["by_seed"][0], 5.0 - self.last_validation("a0"), delta=1e-4)  # the last one

    def test_a_run_that_ends_without_a_loss_has_no_verdict(self):
        self.groups([0.0, 0.0, 0.0])
        self.run_of("ruined", 3, "fp8", ruined_from=200)
        self.run_of("a3", 3)
        result = self.numbers(*self.names, "a3", "ruined")["groups"][1]
        self.assertEqual(result["outcome"], "diverged")
        self.assertIn("fp8: 1 diverged", result["verdict"])

    def test_a_file_of_others_stays(self):
        self.groups([0.0, 0.1])
        log = self.path("runs", self.names[0], "metrics.jsonl")
        with open(log) as file:
            before = file.read()
        self.assertIn("--overwrite", self.compare(*self.names, "-o", log, code=2))
        with open(log) as file:
            self.assertEqual(file.read(), before)
        for more in ([], [], ["--overwrite"]):
            self.compare(*self.names, "-o", "page.html", *more)

    def test_wrong_usage(self):
        self.groups([0.0, 0.0])
        self.run_of("twin", 0)
        for arguments, code, says in (
                (["a0", "a1"], 2, "differ only in their seeds"), (["a0", "b9"], 3, "there is no run 'b9'"),
                (["a0", "b0", "twin"], 2, "the same seed as another run"), (["x=a0", "b0"], 2, "NAME=RUN"), (["a0", "x=b0"], 2, "NAME=RUN"), (["x=a0"], 2, "give two or more"),
                (["x=a0,a0", "y=b0"], 2, "the same seed as another run"), (["x=a0", "x=b0"], 2, "two groups are named x"),
                (["--dir", "", "--", *TINY], 2, "--dir"), (["--seeds", "2000"], 2, "exceeds 1000"), (["--", "--plan"], 2, "every run must train"),
                (["a0", "b0", "--list"], 2, "finished runs take"), (["a0", "b0", "--margin", "0"], 2, "--margin"),
                (["a0", "b0", "-o", "nowhere/page.html"], 8, "nowhere"), (["--seeds", "x"], 2, "is not a seed"), (["--seeds", "1,1"], 2, "repeated seed"),
                (["--set", "fp8 --use_fp8"], 2, "NAME: FLAGS"), (["--set", "a: --use_fp8"], 2, "two or more"),
                (["--set", "a: --tokenizer 'my tables"], 2, "a ' is not closed"), (["--set", "a: --use_fp8", "--set", "a: "], 2, "named a"),
                (["--", "--use_fp8"], 2, "--use_fp8 distinguishes"), (["--", "--max_lrr", "1"], 2, "did you mean --max_lr?"),
                (["--", "--seed", "3"], 2, "--seeds"), (["--", "--log_dir", "x"], 2, "--log_dir is set")):
            error = self.compare(*arguments, code=code)
            self.assertRegex(error, r"\Aerror: [^\n]+\n\Z")
            self.assertIn(says, error)
        self.assertFalse(os.path.exists(self.path("runs/compare")))


class Trained(Folder):
    def test_the_usual_two_sets_and_again(self):
        flags = ["--seeds", "2", "--", *TINY, "--max_steps", "20", "--eval_freq", "10"]
        self.assertEqual(self.compare("--list", *flags).count("not started"), 4)
        quoted = ["--set", "a: --tokenizer 'my tables'", "--set", 'b: --tokenizer "my "tables --prompt two\\ words']
        self.assertEqual(self.compare("--list", *quoted, *flags).count("not started"), 4)
        output = self.compare(*flags)
        self.assertRegex(output, r"fp8 at equal step +[+-]0\.\d{4} \+- 0\.\d{4} +step 20\n")
        self.assertRegex(output, r"verdict: .*fp8 ")
        self.assertLessEqual(max(map(len, output.splitlines())), 80)
        page = os.stat(self.path("runs/compare/compare.html"))
        self.assertLess(page.st_size, 2e6)
        again = self.compare(*flags)
        self.assertEqual(again.count(": done, 20 steps"), 4)
        self.assertEqual(output[output.index("gap to"):], again[again.index("gap to"):])
        sets = ["--set", "slow: --max_lr 1e-3", "--set", "fast: --max_lr 1e-2 --lr_schedule constant", "--dir", "rates"]
        output = self.compare(*sets, "--", *TINY, "--max_steps", "10", "--eval_freq", "5")
        self.assertIn("no conclusion", output)
        self.assertTrue(os.path.exists(self.path("rates/fast-seed1/metrics.jsonl")))

    def test_runs_of_other_options_are_refused_and_unreadable_ones_left_out(self):
        flags = ["--seeds", "2", "--", *TINY, "--max_steps", "10", "--eval_freq", "5"]
        more = ["--weight_decay", "0", "--max_lr", "0.01"]
        self.compare(*flags, *more)
        for now, says in ((more[:2], "max_lr 0.01, not auto"), (more[2:], "weight_decay 0, not 0.1"),
                          (more + ["--beta1", "0.8"], "beta1 0.9, not 0.8")):
            error = self.compare(*flags, *now, code=2)
            self.assertRegex(error, r"\Aerror: [^\n]+\n\Z")
            self.assertIn("runs/compare/fp32-seed1 was trained with " + says, error)
        self.assertEqual(self.compare(*flags, *more).count(": done, 10 steps"), 4)
        os.remove(self.path("runs/compare/fp32-seed1/asked.toml"))  # as an older version left it: what is given is compared, no more
        self.assertIn("beta1 0.9, not 0.8", self.compare(*flags, *more, "--beta1", "0.8", code=2))
        self.assertIn("runs/compare/fp8-seed1 was trained with", self.compare(*flags, *more[:2], code=2))

        with open(self.path("runs/compare/fp8-seed2/metrics.jsonl"), "a") as file:
            file.write("no line\n")
        os.remove(self.path("runs/compare/compare.html"))
        done = subprocess.run([COMPARE, *flags, *more], cwd=self.folder, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 3, done.stdout + done.stderr)
        self.assertRegex(done.stderr, r"\Awarning: fp8-seed2 failed with exit code 3: [^\n]+ is not a line of metrics[^\n]+\n\Z")
        self.assertRegex(done.stdout, r"\nfp32 +2 .*\nfp8 +1 ")
        self.assertTrue(os.path.exists(self.path("runs/compare/compare.html")))


@unittest.skipUnless(find_browser(), "no Chromium here (tools/install_deps.sh test)")
class InABrowser(Folder):
    def test_the_page(self):
        self.groups([0.002, 0.004, 0.003, 0.001])
        self.compare(*self.names, "-o", "page.html")
        numbers = self.numbers(*self.names)["groups"][1]
        browser = Browser()
        self.addCleanup(browser.close)
        for width, dark in ((1280, False), (1280, True), (390, False)):
            page = browser.page("file://" + self.path("page.html"), width=width, dark=dark)
            if os.environ.get("REPORT_SCREENSHOTS"):
                with open(os.path.join(os.environ["REPORT_SCREENSHOTS"], f"compare_{width}{'_dark' * dark}.png"), "wb") as file:
                    file.write(page.picture())
            self.assertEqual(page.requests(), ["file://" + self.path("page.html")])
            self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), width)
            self.assertIn("fp8 is within 0.01 nats", page.evaluate("document.querySelector('.verdict').textContent.toLowerCase()"))
            cells = page.evaluate("[...document.querySelectorAll('[data-cell^=gap]')].slice(-3).map((c) => c.textContent)")
            for cell, axis in zip(cells, ("step", "tokens", "seconds")):
                mean, error = (float(text) for text in cell.replace("−", "-").split(" ± "))
                self.assertAlmostEqual(mean, numbers["gaps"][axis]["mean"], delta=1e-4)
                self.assertAlmostEqual(error, numbers["gaps"][axis]["error"], delta=1e-4)
            for axis in ("tokens", "seconds", "step"):  # the gap's curve follows the axis
                page.evaluate(f"document.querySelector('input[value={axis}]').click()")
                told = page.evaluate("view.panels.find((p) => p.node.id === 'gap').tooltip(1e9).content[0].textContent")
                self.assertIn({"step": "at equal step: step 400", "tokens": "at equal tokens: 400K", "seconds": "at equal time: 32"}[axis], told)
            self.assertEqual(page.problems(), [])
            page.close()


if __name__ == "__main__":
    unittest.main()
