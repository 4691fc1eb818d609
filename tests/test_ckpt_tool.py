#!/usr/bin/env python3
"""bin/ckpt from outside. Usage: test_ckpt_tool.py TRAIN_GPT2_FP8 CKPT"""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

CKPT = os.path.abspath(sys.argv.pop(2))
PROGRAM = os.path.abspath(sys.argv.pop(1))
TINY = ["--device", "cpu", "--model", "nano", "--layers", "1", "--heads", "1", "--channels", "8", "--seq_len", "8",
        "--batch_size", "2", "--target_batch_size", "4", "--eval_sequences", "4", "--sample_tokens", "0", "--threads", "1",
        "--no-use_tensorboard"]


class Ckpt(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.trained = tempfile.mkdtemp(prefix="test_ckpt_")
        for run, flags in {"one": ["--eval_freq", "2"], "two": ["--eval_freq", "0", "--max_lr", "1e-3"]}.items():
            subprocess.run([PROGRAM, *TINY, "--max_steps", "4", "--checkpoint_freq", "1", "--run_name", run, *flags],
                           cwd=cls.trained, check=True, stdout=subprocess.DEVNULL)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.trained)

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="test_ckpt_")
        self.addCleanup(shutil.rmtree, self.folder)
        shutil.copytree(self.trained, self.folder, dirs_exist_ok=True)

    def ckpt(self, *arguments, code=0):
        done = subprocess.run([CKPT, *arguments], cwd=self.folder, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout if code in (0, 1) else done.stderr

    def fail_with(self, code, *arguments, says):
        error = self.ckpt(*arguments, code=code)
        self.assertRegex(error, r"\Aerror: [^\n]+\n\Z")
        for words in says:
            self.assertIn(words, error)

    def damage(self, path):
        with open(os.path.join(self.folder, path, "state.h5"), "r+b") as file:
            file.seek(5000)
            byte = file.read(1)
            file.seek(5000)
            file.write(bytes([byte[0] ^ 1]))

    def test_help(self):
        for action in ([], ["list"], ["runs"], ["show"], ["verify"], ["diff"], ["prune"]):
            self.assertIn("--help", self.ckpt(*action, "--help"))
        self.fail_with(2, says=["missing command: list, runs, show, verify, diff or prune", "see --help"])
        self.fail_with(2, "lsit", "one", says=["unexpected argument 'lsit'", "did you mean list?"])
        self.fail_with(2, "remove", says=["unexpected argument 'remove'", "see --help"])
        self.fail_with(2, "prune", "one", "--keeep=2", says=["unknown flag --keeep", "did you mean --keep?"])
        self.fail_with(2, "prune", "one", says=["--keep"])
        self.fail_with(2, "prune", "one", "--keep", "0", says=["--keep"])

    def test_list(self):
        table = self.ckpt("list")
        self.assertIn("checkpoints_fp32/one: 1x8\n", table)
        self.assertEqual(table.count(" valid"), 8)
        self.assertRegex(table, r"(?m)^ +4 +\d+\.\d{4}  20\d\d-\d\d-\d\dT\d\d:\d\d +[\d.]+ .B fp32 +1  valid, latest, best$")
        self.assertLessEqual(max(map(len, table.splitlines())), 80)
        self.assertNotIn(" valid", self.ckpt("list", "--quick"))
        self.assertRegex(self.ckpt("runs"), r"(?m)^run one \| 1x8\nstep        1 \| .* \| checkpoints_fp32/one/step_00000001")
        self.assertEqual(self.ckpt("runs", "nowhere"), "no checkpoints in nowhere\n")
        self.damage("checkpoints_fp32/two/step_00000003")
        table = self.ckpt("list")
        self.assertEqual(table.count(" valid"), 7)
        self.assertIn("state.h5 is damaged: bytes 0 to", table)
        os.mkdir(self.folder + "/elsewhere")
        self.assertIn("no checkpoints", self.ckpt("list", "elsewhere"))
        self.fail_with(4, "list", "nowhere", says=["no folder or run nowhere"])
        self.assertEqual(self.ckpt("list", "one"), self.ckpt("list", "checkpoints_fp32/one"))

    def test_show(self):
        text = self.ckpt("show", "one/2")
        for words in ("checkpoints_fp32/one/step_00000002\n", "train/step = 2\n", "config/layers = 1\n",
                      "model/adam_step = 2\n", "max_steps = 4\n", "50304 x 8", "params/wte.weight", "adam_v/wpe.weight"):
            self.assertIn(words, text)
        self.fail_with(4, "show", "three", says=["three"])

    def test_verify(self):
        self.assertEqual(self.ckpt("verify").count(": valid\n"), 8)
        self.assertEqual(self.ckpt("verify", "checkpoints_fp32/one", "two/1").count(": valid\n"), 5)
        self.assertEqual(self.ckpt("verify", "one"), self.ckpt("verify", "checkpoints_fp32/one"))  # all of a run
        self.damage("checkpoints_fp32/one/step_00000002")
        self.fail_with(4, "verify", says=["1 of 8 checkpoints is not valid"])
        self.ckpt("verify", "checkpoints_fp32/two")

    def test_diff(self):
        self.assertEqual(self.ckpt("diff", "one/2", "checkpoints_fp32/one/step_00000002"), "no difference\n")
        text = self.ckpt("diff", "one/2", "one/3", code=1)
        self.assertIn("train/step: 2 | 3\n", text)
        self.assertRegex(text, r"(?m)^params/wte\.weight +\d+ +402432 +\d\.\d{3}e-\d\d +\d\.\d{3}e-\d\d$")
        text = self.ckpt("diff", "one/2", "two/2", code=1)
        self.assertIn("train/run_name: one | two\n", text)
        self.assertIn("train/options_toml: max_lr = ", text)

    def test_prune(self):
        would = self.ckpt("prune", "two", "--keep", "1", "--keep_every", "2", "--dry-run")
        self.assertEqual(would, "would remove checkpoints_fp32/two/step_00000001\nwould remove checkpoints_fp32/two/step_00000003\n")
        self.assertEqual(self.ckpt("list", "--quick").count("not verified"), 8)
        self.assertEqual(self.ckpt("prune", "two", "--keep", "1", "--keep_every", "2"), would.replace("would remove", "removed"))
        self.assertEqual(self.ckpt("list", "--quick").count("not verified"), 6)
        self.assertIn("nothing to remove", self.ckpt("prune", "checkpoints_fp32/two", "--keep", "2"))
        self.damage("checkpoints_fp32/one/step_00000004")
        self.fail_with(4, "prune", "one", "--keep", "1", says=["newest one is not valid", "step_00000004"])
        self.assertEqual(len(os.listdir(os.path.join(self.folder, "checkpoints_fp32/one"))), 6)


if __name__ == "__main__":
    unittest.main(verbosity=1)
