#!/usr/bin/env python3
"""bin/lr_schedule from outside. Usage: test_lr_schedule.py LR_SCHEDULE"""
import os
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

TOOL = os.path.abspath(sys.argv.pop(1))


class Schedule(unittest.TestCase):
    def draw(self, *arguments, code=0):
        with tempfile.TemporaryDirectory(prefix="test_lr_schedule_") as folder:
            done = subprocess.run([TOOL, *arguments], cwd=folder, capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, code, done.stdout + done.stderr)
            self.svg = None
            if os.path.exists(os.path.join(folder, "curve.svg")):
                self.svg = xml.etree.ElementTree.parse(os.path.join(folder, "curve.svg")).getroot()
        return done.stdout if code == 0 else done.stderr

    def test_phases_and_curves(self):
        out = self.draw("--model", "gpt2", "--max_steps", "1000", "--warmup_steps", "100", "--max_lr", "6e-4", "--lr_schedule", "wsd",
                        "--svg", "curve.svg")
        self.assertRegex(out, r"warm-up +steps 1 to 100 +6e-06 to 0\.0006\n")
        self.assertRegex(out, r"constant +steps 101 to 800 +0\.0006 to 0\.0006\n")
        self.assertRegex(out, r"linear decay +steps 801 to 1000 +0\.000597\d to 6e-05\n")
        self.assertLessEqual(max(map(len, out.splitlines())), 80)
        rows = [line.split("│")[1] for line in out.splitlines() if "│" in line]
        self.assertEqual(rows[0].count("⠉"), max(row.count("⠉") for row in rows))  # most of it at the peak
        points = self.svg.find("{http://www.w3.org/2000/svg}polyline").get("points").split()
        ys = [float(point.split(",")[1]) for point in points]
        self.assertEqual(len(points), 1000)
        self.assertEqual(ys.index(min(ys)), 99)  # the first step at the peak
        words = [text.text for text in self.svg.iter("{http://www.w3.org/2000/svg}text")]
        self.assertIn("constant to 800", words)

    def test_a_file_of_others_stays(self):
        with tempfile.TemporaryDirectory(prefix="test_lr_schedule_") as folder:
            path = os.path.join(folder, "thesis.txt")
            with open(path, "w") as file:
                file.write("mine")
            command = ["--model", "gpt2", "--total_steps", "5", "--svg", path]  # another trainer's word for --max_steps
            self.assertIn("thesis.txt exists, and it is not a curve", self.draw(*command, code=2))
            with open(path) as file:
                self.assertEqual(file.read(), "mine")
            self.draw(*command, "--overwrite")
            self.draw(*command)  # its own

    def test_the_trainers_defaults(self):
        out = self.draw("--device", "cpu")
        steps, warmup = (int(number) for number in re.search(r"cosine, (\d+) steps[^$]*warm-up +steps 1 to (\d+)", out).groups())
        self.assertGreater(steps, warmup)
        self.assertIn(f"steps {warmup + 1} to {steps}", out)

    def test_wrong_usage(self):
        for arguments, code, says in ((["--max_lrr", "1"], 2, "did you mean"), (["--svg"], 2, "--svg needs a value"),
                                      (["--max_steps", "5", "--svg", ""], 2, "--svg needs a value"),
                                      (["--svg=", "--max_steps", "5"], 2, "--svg needs a value"),
                                      (["--max_steps", "5", "--svg", "--overwrite"], 2, "--svg needs a value"),
                                      (["--max_steps", "5", "--svg", "a.svg", "--svg", "b.svg"], 2, "--svg is given more than once"),
                                      (["--resume", "latest"], 2, "a new run"), (["--train_data", "nowhere/*.bin"], 3, "nowhere"),
                                      (["--max_steps", "5", "--svg", "nowhere/x.svg"], 8, "nowhere")):
            error = self.draw(*arguments, code=code)
            self.assertRegex(error, r"\Aerror: [^\n]+\n\Z")
            self.assertIn(says, error)


if __name__ == "__main__":
    unittest.main()
