#!/usr/bin/env python3
"""--batch_ramp and longer wsd runs from outside, bit for bit. Usage: test_recipe.py TRAIN_GPT2_FP8 CKPT"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

TRAIN, CKPT = (os.path.abspath(path) for path in sys.argv[1:3])
del sys.argv[1:3]
TINY = ["--device", "cpu", "--model", "nano", "--layers", "1", "--heads", "2", "--channels", "16", "--seq_len", "16",
        "--batch_size", "2", "--eval_freq", "0", "--sample_tokens", "0", "--threads", "1", "--optimizer", "muon"]
WSD = ["--lr_schedule", "wsd", "--wsd_decay_ratio", "0.5", "--min_lr_ratio", "0", "--warmup_steps", "2"]


class Recipe(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="test_recipe_")
        self.addCleanup(self.folder.cleanup)

    def run_tool(self, *command, code=0):
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "ASAN_OPTIONS": "detect_leaks=0"}
        done = subprocess.run(command, cwd=self.folder.name, env=environment, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def train(self, *arguments, code=0):
        return self.run_tool(TRAIN, *arguments, code=code)

    def lines(self, run, kind):
        with open(os.path.join(self.folder.name, "runs", run, "metrics.jsonl")) as file:
            return [line for line in map(json.loads, file) if line["type"] == kind]

    def checkpoints(self, run):
        names = os.listdir(os.path.join(self.folder.name, "checkpoints_fp32", run))
        return sorted(int(name[len("step_"):]) for name in names if name.startswith("step_"))

    def assert_same_bits(self, a, b, *also_different):
        out = self.run_tool(CKPT, "diff", f"checkpoints_fp32/{a}", f"checkpoints_fp32/{b}", code=1)
        differences = [line.split(": ")[0] for line in out.splitlines()[2:] if line]
        self.assertEqual(differences, ["train/options_toml", "train/run_name", *also_different], out)

    # ---- batch ramp ----

    def test_a_ramp_has_the_bits_of_runs_that_resume_each_other(self):
        rate = ["--lr_schedule", "constant", "--warmup_steps", "0", "--max_lr", "1e-3", "--checkpoint_freq", "1",
                "--keep_checkpoints", "all"]
        out = self.train(*TINY, *rate, "--batch_ramp", "2@0,4@3,8@5", "--max_steps", "8", "--run_name", "ramp")
        self.assertIn("2 sequences, 4 from step 4, 8 from step 6; 8 = 2 per micro-batch", out)
        self.assertEqual([step["tokens"] // 16 for step in self.lines("ramp", "step")], [2, 4, 6, 10, 14, 22, 30, 38])
        self.assertIn("steps 8 = 608 tokens", " ".join(out.replace(":", " ").split()))
        self.train(*TINY, *rate, "--target_batch_size", "2", "--max_steps", "3", "--run_name", "a")
        self.train("--resume", "a", "--target_batch_size", "4", "--max_steps", "5")
        self.train("--resume", "a", "--target_batch_size", "8", "--max_steps", "8")
        self.assert_same_bits("ramp/step_00000008", "a/step_00000008")
        # stopped within the ramp, and where a phase begins
        for step in (3, 4):
            self.train("--resume", f"ramp/{step}", "--run_name", f"again{step}")
            self.assert_same_bits("ramp/step_00000008", f"again{step}/step_00000008")

    def test_the_rate_grows_with_the_root_of_the_batch_on_request(self):
        flags = [*TINY, "--lr_schedule", "constant", "--warmup_steps", "0", "--max_lr", "1e-3", "--max_steps", "3",
                 "--batch_ramp", "2@0,8@1", "--checkpoint_freq", "0"]
        self.train(*flags, "--run_name", "same")
        self.train(*flags, "--run_name", "scaled", "--batch_ramp_lr")
        for run, first in (("same", 1e-3), ("scaled", 5e-4)):
            rates = [step["lr"] for step in self.lines(run, "step")]
            for found, expected in zip(rates, (first, 1e-3, 1e-3)):
                self.assertAlmostEqual(found, expected, places=8)
        plan = json.loads(self.train(*flags, "--batch_ramp_lr", "--plan", "--json").splitlines()[-1])
        self.assertEqual(plan["tokens"], (2 + 8 + 8) * 16)
        self.assertAlmostEqual(plan["lr"]["peak"], 1e-3, places=8)

    def test_refused_ramps(self):
        for ramp, words in (("128", "'128' is not SEQUENCES@STEP"), ("4@2", "it must begin at step 0"),
                            ("4@0,8@0", "must begin after step 0"), ("4@0,-8@5", "is not SEQUENCES@STEP"),
                            ("4@0,5@2", "--batch_ramp: 5@2 is not a multiple of --batch_size 2")):
            self.assertIn(words, self.train(*TINY, "--max_steps", "3", "--batch_ramp", ramp, code=2))
        both = self.train(*TINY, "--max_steps", "3", "--batch_ramp", "2@0,4@1", "--target_batch_size", "8", code=2)
        self.assertIn("--batch_ramp and --target_batch_size both give the size of a step", both)

    # ---- longer wsd runs ----

    def test_a_longer_wsd_run_equals_one_that_had_its_length_from_the_start(self):
        flags = [*TINY, *WSD, "--target_batch_size", "4", "--checkpoint_freq", "4", "--keep_checkpoints", "1"]
        self.train(*flags, "--max_steps", "10", "--run_name", "short")
        self.assertEqual(self.checkpoints("short"), [5, 10])  # 5: the cooldown begins
        self.run_tool(CKPT, "prune", "checkpoints_fp32/short", "--keep", "1")
        self.assertEqual(self.checkpoints("short"), [5, 10])
        self.train(*flags, "--max_steps", "16", "--run_name", "long")
        out = self.train("--resume", "short", "--max_steps", "16")
        self.assertIn("note: a longer wsd run: it starts from step 5, before the cooldown, not from step 10\n", out)
        self.assertIn("branches off as short-from-5", out)
        self.assertNotIn("rises again", out)
        self.assert_same_bits("long/step_00000016", "short-from-5/step_00000016")
        self.assertEqual(self.checkpoints("short"), [5, 10])  # left as it is

        for step in self.checkpoints("short-from-5")[1:]:  # as if it had been killed: the same command continues it
            shutil.rmtree(os.path.join(self.folder.name, f"checkpoints_fp32/short-from-5/step_{step:08d}"))
        out = self.train("--resume", "short", "--max_steps", "16")
        self.assertIn("note: continues the longer wsd run short-from-5\n", out)
        self.assert_same_bits("long/step_00000016", "short-from-5/step_00000016")
        self.assertIn("evaluated checkpoints_fp32/short/step_00000010", self.train("--resume", "short", "--max_steps", "16", "--eval_only"))

    def test_only_a_longer_run_of_the_newest_step_goes_back(self):
        flags = [*TINY, *WSD, "--target_batch_size", "4", "--checkpoint_freq", "4", "--max_steps", "10"]
        self.train(*flags, "--run_name", "a")
        self.assertIn("nothing left to train", self.train("--resume", "a"))
        self.assertIn("rises again", self.train("--resume", "a/10", "--max_steps", "12", "--run_name", "named"))


if __name__ == "__main__":
    unittest.main()
