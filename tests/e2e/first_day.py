#!/usr/bin/env python3
"""Plays a newcomer's first day in a terminal of 80 and of 120 columns. Usage: first_day.py TRAINER"""
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import unittest

from terminal import Terminal

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TRAINER = os.path.abspath(sys.argv.pop(1))
SMALL = ["--layers", "1", "--heads", "1", "--channels", "8", "--seq_len", "8", "--sample_tokens", "4"]
CTRL_C = b"\x03"
LAUNCHERS = ("OMPI_", "PMI_", "SLURM_", "WORLD_SIZE", "RANK")


class FirstDay:
    """Each method is one thing that is typed; `columns` comes from the classes below."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="first_day_")
        self.addCleanup(shutil.rmtree, self.folder)
        shutil.copytree(os.path.join(ROOT, "configs"), os.path.join(self.folder, "configs"))
        os.symlink(TRAINER, os.path.join(self.folder, "train_gpt2_fp8"))

    def type(self, *arguments):
        environment = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)}
        environment.update(TERM="xterm-256color", CUDA_VISIBLE_DEVICES="", ASAN_OPTIONS="detect_leaks=0")
        # One thread: two that wait for each other on a busy machine take twenty times as long.
        return Terminal(["./train_gpt2_fp8", *arguments, "--threads", "1"], self.folder, environment, self.columns)

    def steps(self, terminal):
        return [int(number) for number in re.findall(r"^step +(\d+) \| epoch", "\n".join(terminal.lines()), re.MULTILINE)]

    def fail_with(self, code, *arguments, says):
        terminal = self.type(*arguments)
        self.assertEqual(terminal.end(), code, terminal.text)
        for words in says:
            self.assertIn(words, terminal.text)
        self.assertEqual(len([line for line in terminal.lines() if line]), 1, terminal.text)

    def test_the_first_run(self):
        terminal = self.type("--config", "configs/nano.toml", "--max_steps", "30")
        self.assertEqual(terminal.end(), 0, terminal.text)
        self.assertEqual(self.steps(terminal), list(range(1, 31)))
        losses = [float(loss) for loss in re.findall(r"\| loss: (\d+\.\d+)", terminal.text)]
        self.assertLess(losses[-1], losses[0] - 2)
        for words in ("no --train_data: training on the built-in sample", "val loss", "done: 30 steps"):
            self.assertIn(words, terminal.text)

    def test_ctrl_c_and_going_on(self):
        terminal = self.type("--config", "configs/nano.toml", *SMALL, "--max_steps", "1000000")
        terminal.wait_for(r"step +3 \|")
        terminal.press(CTRL_C)
        self.assertEqual(terminal.end(), 75, terminal.text)
        stopped = int(re.search(r"stopped at step (\d+) of 1000000, saved", terminal.text).group(1))
        self.assertIn("--resume latest", terminal.lines()[-2])

        terminal = self.type("--resume", "latest", "--max_steps", str(stopped + 2))
        self.assertEqual(terminal.end(), 0, terminal.text)
        self.assertEqual(self.steps(terminal), [stopped + 1, stopped + 2])

    def test_ctrl_c_twice_ends_at_once(self):
        # A step that takes minutes: the second Ctrl-C must not wait for it.
        terminal = self.type("--config", "configs/nano.toml", *SMALL, "--target_batch_size", "200000")
        terminal.wait_for(r"  seed ")
        terminal.press(CTRL_C)
        time.sleep(0.5)  # two signals at once would be one
        terminal.press(CTRL_C)
        self.assertEqual(terminal.end(seconds=30), -signal.SIGINT, terminal.text)

    def test_a_wrong_flag(self):
        self.fail_with(2, "--max_ler", "1", says=["unknown flag --max_ler", "did you mean --max_lr?"])

    def test_missing_data(self):
        self.fail_with(3, "--config", "configs/gpt2_124m.toml", "--model", "nano", says=["data/fineweb_edu/train_*.bin"])
        self.fail_with(3, "--train_data", "nowhere/*.bin", says=["nowhere/*.bin"])

    def test_nothing_to_resume(self):
        self.fail_with(4, "--resume", "latest", says=["checkpoints_fp8"])


class FirstDayAt80Columns(FirstDay, unittest.TestCase):
    columns = 80


class FirstDayAt120Columns(FirstDay, unittest.TestCase):
    columns = 120


if __name__ == "__main__":
    unittest.main(verbosity=1)
