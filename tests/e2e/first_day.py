#!/usr/bin/env python3
"""Plays a newcomer's first day in a terminal of 80 and of 120 columns. Usage: first_day.py TRAINER"""
import os
import re
import shlex
import shutil
import subprocess
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

    def type(self, *arguments, **variables):
        environment = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)}
        environment.pop("NO_COLOR", None)
        environment.update({"TERM": "xterm-256color", "CUDA_VISIBLE_DEVICES": "", "ASAN_OPTIONS": "detect_leaks=0",
                            **variables})
        # One thread: two that wait for each other on a busy machine take twenty times as long.
        return Terminal(["./train_gpt2_fp8", *arguments, "--threads", "1"], self.folder, environment, self.columns)

    def steps(self, terminal):
        return [int(number) for number in re.findall(r"^step +(\d+)(?: !)? \|.* lr:", "\n".join(terminal.lines()),
                                                     re.MULTILINE)]

    def assert_fits(self, terminal):
        """But for commands to paste, which stay one line."""
        lines = [line for line in terminal.lines() if not re.match(r"  \S*(bin/\w+|train_gpt2_fp8) ", line)]
        self.assertLessEqual(max(map(len, lines)), self.columns, terminal.text)

    def fail_with(self, code, *arguments, says):
        terminal = self.type(*arguments)
        self.assertEqual(terminal.end(), code, terminal.text)
        self.assert_fits(terminal)
        self.assertRegex(terminal.text, r"\A\x1b\[31merror: [^\x1b]*\x1b\[0m\r\n\Z")  # red, and wrapped with an indent
        self.assertEqual({line[:4] for line in terminal.lines()[1:] if line} - {"    "}, set(), terminal.text)
        for words in says:
            self.assertIn(words, " ".join(" ".join(terminal.lines()).split()))

    def test_the_first_run(self):
        wide = self.columns == 120
        count = 6 if wide else 30  # to learn takes 30 steps, which are slow under sanitizers
        terminal = self.type("--config", "configs/nano.toml", "--max_steps", str(count))
        self.assertEqual(terminal.end(), 0, terminal.text)
        steps = self.steps(terminal)  # all of them on a slow machine
        self.assertEqual(steps[:10], list(range(1, count + 1))[:10])
        self.assertEqual(steps[-1], count)
        self.assert_fits(terminal)
        self.assertRegex(terminal.text, r"(?m)^note: no --train_data")  # plain: only warnings and errors have colors
        self.assertNotIn("epoch 0", terminal.text)
        if wide:
            self.assertEqual({line.split()[-1] for line in terminal.lines() if "| lr:" in line}, {"FP32"})
            self.assertRegex(terminal.text, r"\r\[=+ *\] +\d+%  step \d+/6  eta \S+(?: \d+s)?  loss \d+\.\d+  \S+ tok/s\x1b")
        else:
            losses = [float(loss) for loss in re.findall(r"\| loss: (\d+\.\d+)", terminal.text)]
            self.assertLess(losses[-1], losses[0] - 2)
        for words in ("no --train_data: training on the built-in sample", "val loss"):
            self.assertIn(words, terminal.text)
        self.assertRegex(terminal.text, rf"done: {count} steps, \S+ tokens; \S+.*, \S+ tokens/s on average")
        self.assertRegex(terminal.text, r"val loss \d+\.\d+, best \d+\.\d+")
        commands = [line.strip() for line in terminal.lines()[-4:-1]]
        self.assertEqual([re.search(r"generate|--eval_only|report", command).group() for command in commands],
                         ["generate", "--eval_only", "report"], terminal.text)
        if not wide and os.path.exists(os.path.join(os.path.dirname(TRAINER), "bin/report")):
            for command in commands:
                done = subprocess.run(["bash", "-c", command], cwd=self.folder, capture_output=True, text=True, timeout=120,
                                      env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"})
                self.assertEqual(done.returncode, 0, command + done.stdout + done.stderr)

    def test_ctrl_c_and_going_on(self):
        terminal = self.type("--config", "configs/nano.toml", *SMALL, "--max_steps", "1000000")
        terminal.wait_for(r"step +3 \|")
        terminal.press(CTRL_C)
        terminal.wait_for("stopping; Ctrl-C again to quit now", seconds=30)
        self.assertEqual(terminal.end(), 75, terminal.text)
        self.assert_fits(terminal)
        stopped = int(re.search(r"stopped at step (\d+) of 1000000, saved", terminal.text).group(1))
        command = terminal.lines()[-2].split()
        self.assertEqual(command[:2], ["./train_gpt2_fp8", "--resume"])
        self.assertRegex(command[2], r"^checkpoints_fp32/1x8-fp32-\d{8}-\d{6}$")

        terminal = self.type(*command[1:], "--max_steps", str(stopped + 2))
        self.assertEqual(terminal.end(), 0, terminal.text)
        self.assertEqual(self.steps(terminal), [stopped + 1, stopped + 2])

    def test_no_color(self):
        terminal = self.type("--config", "configs/nano.toml", *SMALL, "--max_steps", "3", NO_COLOR="1")
        self.assertEqual(terminal.end(), 0, terminal.text)
        self.assertNotRegex(terminal.text, r"\x1b\[\d*m")
        self.assert_fits(terminal)

    def test_a_wrong_flag(self):
        self.fail_with(2, "--max_ler", "1", says=["unknown flag --max_ler", "did you mean --max_lr?"])

    def test_missing_data(self):
        self.fail_with(3, "--config", "configs/gpt2_124m.toml", "--model", "nano", says=["data/fineweb-edu/train_*.bin", "bin/prepare_data --dataset fineweb-edu"])
        self.fail_with(3, "--train_data", "nowhere/*.bin", says=["nowhere/*.bin"])

    def test_nothing_to_resume(self):
        self.fail_with(4, "--resume", "latest", says=["checkpoints_fp32"])


class FirstDayAt80Columns(FirstDay, unittest.TestCase):
    """Also what does not depend on the width."""
    columns = 80

    def test_the_closing_command_names_another_folder(self):
        terminal = self.type("--config", "configs/nano.toml", *SMALL, "--checkpoint_dir", "my runs", "--max_steps", "1000000")
        terminal.wait_for(r"step +3 \|")
        terminal.press(CTRL_C)
        self.assertEqual(terminal.end(), 75, terminal.text)
        command = shlex.split(terminal.lines()[-2])
        self.assertEqual(command[:2], ["./train_gpt2_fp8", "--resume"])
        self.assertRegex(command[2], r"^my runs/1x8-fp32-")
        terminal = self.type(*command[1:])
        terminal.wait_for(r"resumed my runs/1x8-fp32-\S+/step_")
        terminal.press(CTRL_C)
        self.assertEqual(terminal.end(), 75, terminal.text)

    def test_a_dumb_terminal_is_a_file(self):
        terminal = self.type("--config", "configs/nano.toml", *SMALL, "--max_steps", "30", TERM="dumb")
        self.assertEqual(terminal.end(), 0, terminal.text)
        self.assertNotIn("\x1b", terminal.text)
        self.assertEqual(self.steps(terminal), list(range(1, 31)))

    def test_ctrl_c_twice_ends_at_once(self):
        # A micro-batch that takes long: the second Ctrl-C must not wait for it.
        terminal = self.type("--config", "configs/nano.toml", *SMALL, "--target_batch_size", "40000", "--batch_size", "40000")
        terminal.wait_for(r"  seed ")
        time.sleep(1)  # into the first step: before it there is nothing to save, and one is enough
        terminal.press(CTRL_C)
        terminal.wait_for("again to quit now", seconds=30)
        time.sleep(0.5)  # two within an instant are one: launchers send them so
        terminal.press(CTRL_C)
        self.assertEqual(terminal.end(seconds=30), 75, terminal.text)

    def test_ctrl_c_within_a_step(self):
        terminal = self.type("--config", "configs/nano.toml", *SMALL, "--target_batch_size", "200000", "--batch_size", "2")
        found = terminal.wait_for(r"step 1/\d+  micro-batch (\d+)/100000\x1b")
        self.assertGreater(int(found.group(1)), 0)
        terminal.press(CTRL_C)
        self.assertEqual(terminal.end(seconds=30), 75, terminal.text)
        self.assertIn("stopped before the first step: nothing to save", terminal.text)
        self.assertEqual(sorted(os.listdir(self.folder)), ["configs", "train_gpt2_fp8"])


class FirstDayAt120Columns(FirstDay, unittest.TestCase):
    columns = 120


if __name__ == "__main__":
    unittest.main(verbosity=1)
