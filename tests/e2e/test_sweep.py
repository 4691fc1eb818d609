#!/usr/bin/env python3
"""bin/sweep from outside: what it runs, skips, resumes, reports. Usage: test_sweep.py TRAIN_GPT2_FP8 SWEEP"""
import glob
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

SWEEP = os.path.abspath(sys.argv.pop(2))
PROGRAM = os.path.abspath(sys.argv.pop(1))
TINY = """
device = "cpu"
model = "nano"
layers = 1
heads = 1
channels = 16
seq_len = 16
threads = 1
batch_size = 2
target_batch_size = 2
eval_sequences = 4
use_tensorboard = false
sample_tokens = 0
"""


class Sweep(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="test_sweep_")
        self.addCleanup(shutil.rmtree, self.folder)

    def write(self, text, name="tiny.toml"):
        with open(os.path.join(self.folder, name), "w") as file:
            file.write(TINY + text)

    def sweep(self, *arguments, code=0):
        done = subprocess.run([SWEEP, *arguments], cwd=self.folder, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.errors = done.stderr
        return done.stdout

    def steps(self, run, folder="runs/tiny"):
        with open(os.path.join(self.folder, folder, run, "metrics.jsonl")) as file:
            return [line["step"] for line in map(json.loads, file) if line["type"] == "step"]

    def fails(self, text, says):
        self.write(text)
        self.sweep("tiny.toml", code=2)
        self.assertRegex(self.errors, r"\Aerror: [^\n]+\n\Z")
        self.assertIn(says, self.errors)
        self.assertFalse(os.path.exists(os.path.join(self.folder, "runs")))

    def test_a_grid_and_a_list_with_one_that_fails(self):
        self.write('max_steps = 20\neval_freq = 10\n[grid]\nmax_lr = [1e-3, 1e-2]  # slow, fast\n'
                   '[[run]]\nname = "plain"\n[[run]]\nname = "lost"\ntrain_data = "nowhere/*.bin"\n')
        names = ["plain-max_lr_1e-3", "plain-max_lr_1e-2", "lost-max_lr_1e-3", "lost-max_lr_1e-2"]
        listed = self.sweep("tiny.toml", "--list")
        self.assertEqual([line.split() for line in listed.splitlines()], [[str(i + 1), n, "not", "started"] for i, n in enumerate(names)])
        self.assertFalse(os.path.exists(os.path.join(self.folder, "runs")))

        output = self.sweep("tiny.toml", code=3)
        self.assertEqual(self.errors.count("failed with exit code 3"), 2, self.errors)
        self.assertIn("nowhere", self.errors)
        table = output[output.index("val loss"):].splitlines()[1:3]
        self.assertEqual([line.split()[0] for line in table], [names[1], names[0]])  # the better one first
        self.assertLessEqual(max(map(len, output.splitlines())), 80)
        with open(os.path.join(self.folder, "runs/tiny/report.html")) as file:
            page = file.read()
        self.assertIn(names[0], page)
        self.assertNotRegex(page, r"(src|href)=[\"']?(https?:)?//")

        again = self.sweep("tiny.toml", code=3)
        self.assertIn(f"[1/4] {names[0]}: done, 20 steps", again)
        self.assertIn(f"[3/4] {names[2]}: starting", again)
        script = self.sweep("tiny.toml", "--submit", "--dry_run")
        self.assertIn("#SBATCH --array=3,4\n", script)
        self.assertIn("tiny.toml --only", script)
        self.assertEqual(subprocess.run(["bash", "-n"], input=script, text=True).returncode, 0)

        self.write('max_steps = 30\neval_freq = 10\n[grid]\nmax_lr = [1e-3, 1e-2]\n[[run]]\nname = "plain"\n')  # another sweep
        self.sweep("tiny.toml", code=2)
        self.assertIn("was trained with max_steps 20, not 30", self.errors)

    def test_what_was_left_out_or_counted_in_epochs_is_another_sweep_too(self):
        grid = "eval_freq = 0\n[grid]\nseed = [1]\n"
        self.write("num_epochs = 0.001\ngrad_clip = 2\n" + grid)
        self.sweep("tiny.toml")
        self.assertIn("seed_1: done", self.sweep("tiny.toml"))
        for now, says in (("num_epochs = 0.002\ngrad_clip = 2\n", "num_epochs 0.001, not 0.002"), ("num_epochs = 0.001\n", "grad_clip 2, not 1")):
            self.write(now + grid)
            self.sweep("tiny.toml", code=2)
            self.assertIn("runs/tiny/seed_1 was trained with " + says, self.errors)

    def test_one_that_diverged_or_cannot_be_read_fails_each_time_and_the_others_are_shown(self):
        self.write("max_steps = 20\neval_freq = 10\n[grid]\nmax_lr = [1e-3, 1e-2, 1e30]\n")
        for _ in range(2):
            output = self.sweep("tiny.toml", code=5)
            self.assertIn("max_lr_1e30 failed with exit code 5", self.errors)
        self.assertIn("[3/3] max_lr_1e30: diverged at step", output)
        with open(os.path.join(self.folder, "runs/tiny/max_lr_1e-2/metrics.jsonl"), "a") as file:
            file.write("no line\n")
        os.remove(os.path.join(self.folder, "runs/tiny/report.html"))
        output = self.sweep("tiny.toml", code=3)
        self.assertEqual(self.errors.count("max_lr_1e-2 failed with exit code 3"), 1, self.errors)
        table = output[output.index("val loss"):].splitlines()[1:3]
        self.assertEqual([line.split()[0] for line in table], ["max_lr_1e-3", "max_lr_1e30"])
        self.assertTrue(os.path.exists(os.path.join(self.folder, "runs/tiny/report.html")))

    def test_interrupted_it_goes_on_where_it_stopped(self):
        self.write('max_steps = 400\neval_freq = 0\ncheckpoint_freq = 0\n[grid]\nseed = [1, 2]\n')
        process = subprocess.Popen([SWEEP, "tiny.toml"], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        deadline = time.monotonic() + 60
        while not glob.glob(os.path.join(self.folder, "runs/tiny/seed_1/metrics.jsonl")) or len(self.steps("seed_1")) < 3:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        output = process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 75, output)
        stopped = self.steps("seed_1")[-1]
        self.assertIn(f"[1/2] seed_1: stopped at step {stopped} of 400", output)
        self.assertNotIn("seed_2", output)
        self.assertTrue(os.path.isdir(os.path.join(self.folder, f"runs/tiny/seed_1/step_{stopped:08}")))
        self.assertIn("seed_2  not started", self.sweep("tiny.toml", "--list"))

        output = self.sweep("tiny.toml", "--only", "1")
        self.assertIn(f"stopped at step {stopped} of 400, resuming", output)
        self.assertEqual(self.steps("seed_1"), list(range(1, 401)))
        with open(os.path.join(self.folder, "runs/tiny/seed_1/console.log")) as file:
            self.assertIn(f"at step {stopped}", file.read())

    def test_a_script_for_slurm_with_blanks_in_every_path(self):
        place = os.path.join(self.folder, "my sweeps, 100% 'mine'")
        os.makedirs(place)
        os.symlink(PROGRAM, os.path.join(place, "my trainer"))
        self.write("max_steps = 2\neval_freq = 0\n[grid]\nseed = [1, 2]\n", os.path.join(place, "two words.toml"))
        flags = [os.path.join(place, "two words.toml"), "--dir", os.path.join(place, "the runs"), "--program", os.path.join(place, "my trainer")]
        script = self.sweep(*flags, "--submit", "--dry_run")
        output = re.search(r"^#SBATCH --output=(.*)$", script, re.MULTILINE)[1]
        self.assertEqual(shlex.split(output), [os.path.join(place, "the runs/slurm-%A_%a.log").replace("100%", "100%%")])
        done = subprocess.run(["bash", "-s"], input=script, text=True, capture_output=True, timeout=120,
                              env={**os.environ, "SLURM_SUBMIT_DIR": self.folder, "SLURM_ARRAY_TASK_ID": "2"})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(self.steps("seed_2", os.path.join(place, "the runs")), [1, 2])
        self.assertFalse(os.path.exists(os.path.join(place, "the runs/seed_1")))

    def test_a_page_of_others_stays_and_nothing_is_trained(self):
        self.write("[grid]\nseed = [1]\n")
        os.makedirs(os.path.join(self.folder, "runs/tiny"))
        page = os.path.join(self.folder, "runs/tiny/report.html")
        with open(page, "w") as file:
            file.write("mine")
        self.sweep("tiny.toml", code=2)
        self.assertIn("report.html exists, and it is not a page", self.errors)
        self.assertEqual(os.listdir(os.path.join(self.folder, "runs/tiny")), ["report.html"])
        with open(page) as file:
            self.assertEqual(file.read(), "mine")

    def test_wrong_files(self):
        self.fails("max_lrr = 1\n[grid]\nseed = [1]\n", "tiny.toml:14: unknown option max_lrr (did you mean max_lr?)")
        self.fails("[grid]\nseed = [1, 2\n", "tiny.toml:15: a list is not closed")
        self.fails("[grid]\nseed = [1, x]\n", "tiny.toml:15: put text in quotes")
        self.fails("seed = [1, 2]\n", "put lists into [grid]")
        self.fails("[gird]\nseed = [1]\n", "unknown section gird")
        self.fails("seed = 1\n", "has neither a [grid] nor a [[run]]")
        self.fails("[grid]\nseed = [1, 1]\n", "two runs are named seed_1")
        self.fails('[[run]]\nname = "..."\nseed = 2\n', "has no letter or digit")
        self.fails("[grid]\nseed = [1, 2]\n[[run]]\nseed = 3\n", "seed is in [grid] and in a [[run]]")
        self.fails("[grid]\nmax_lr = [1, -1]\n", "tiny.toml, run max_lr_-1: --max_lr")
        self.fails('[[run]]\nrun_name = "mine"\n', "--run_name is set for each run by this tool")
        self.write("[grid]\nseed = [1]\n")
        self.sweep("grid.yaml", code=2)
        self.assertIn("a sweep file is TOML, and grid.yaml is YAML", self.errors)
        for arguments, code in ((["nothing.toml"], 2), ([], 2), (["tiny.toml", "--only", "2"], 2), (["tiny.toml", "--dry_run"], 2),
                                (["tiny.toml", "--program", "nothing"], 2)):
            self.sweep(*arguments, code=code)
            self.assertRegex(self.errors, r"\Aerror: [^\n]+\n\Z")


if __name__ == "__main__":
    unittest.main()
