#!/usr/bin/env python3
"""compare_curves.py: what it lets pass, and where it draws it. Needs neither a GPU nor PyTorch."""
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "compare_curves.py")


class Comparison(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="test_compare_curves_")
        self.addCleanup(self.folder.cleanup)

    def curve(self, name, values):
        """A run with these losses at steps 1, 2, ...; None: not finite."""
        path = os.path.join(self.folder.name, name)
        with open(path, "w") as file:
            for step, value in enumerate(values, 1):
                print(json.dumps({"step": step, "val_loss": value}), file=file)
        return path

    def status(self, *arguments):
        done = subprocess.run([sys.executable, PROGRAM, *arguments], capture_output=True, text=True, timeout=60)
        self.assertIn(done.returncode, (0, 1, 2), done.stderr)
        return done.returncode

    def apart(self, *differences, options=()):
        """The status for two runs that lie so far apart."""
        below, above = [4.0] * len(differences), [None if d is None else 4 + d for d in differences]
        return self.status(self.curve("a", below), self.curve("b", above), "--tolerance", "0.02", *options)

    def test_every_point_counts(self):
        self.assertEqual(self.apart(0.01, -0.01, 0.019), 0)
        self.assertEqual(self.apart(0.01, -0.03, 0.0), 1)
        self.assertEqual(self.apart(0.0, None, 0.0), 1)

    def test_early_points_have_a_tolerance_of_their_own(self):
        early = ("--early", "2", "0.05")
        self.assertEqual(self.apart(0.04, 0.01, 0.0, options=early), 0)
        self.assertEqual(self.apart(0.06, 0.01, 0.0, options=early), 1)
        self.assertEqual(self.apart(0.0, 0.04, 0.0, options=early), 1)
        self.assertEqual(self.apart(None, 0.0, 0.0, options=early), 1)

    def test_series_are_judged_by_the_mean_of_their_last_points(self):
        reference = [self.curve("a1", [5, 4]), self.curve("a2", [5, 4.2])]
        near = [self.curve("b1", [5, 4.03]), self.curve("b2", [6, 4.19])]  # +0.03 and -0.01
        far = [self.curve("c1", [5, 4.05]), self.curve("c2", [5, 4.2])]
        self.assertEqual(self.status("--series", "A", *reference, "--series", "B", *near, "--tolerance", "0.02"), 0)
        self.assertEqual(self.status("--series", "A", *reference, "--series", "C", *far, "--tolerance", "0.02"), 1)

    def test_a_run_that_ended_early_is_not_compared(self):
        self.assertEqual(self.status(self.curve("a", [5, 4, 3]), self.curve("b", [5, 4])), 2)


class Plot(Comparison):
    def draw(self, *differences):
        """The heights of the dots in the lower panel."""
        svg = os.path.join(self.folder.name, "plot.svg")
        self.apart(*differences, options=("--svg", svg))
        with open(svg) as file:
            text = file.read()
        self.panel = [float(n) for n in re.findall(r'<rect x="80" y="([\d.]+)" width="600" height="([\d.]+)"', text)[1]]
        heights = [float(y) for y in re.findall(r'<circle cx="[\d.]+" cy="(-?[\d.]+)"', text)]
        return [y for y in heights if y > 310]  # below the losses

    def test_the_axis_of_differences_fits_them(self):
        for differences in ((0.5, 0.25, 0.125, 0.06), (-0.5, -0.3, 0.02, 0.1), (0.001, -0.002, 0.0, 0.003)):
            with self.subTest(differences):
                heights = self.draw(*differences)
                top, height = self.panel
                self.assertEqual(len(heights), len(differences))
                self.assertTrue(all(top <= y <= top + height for y in heights))
                scale = (heights[0] - heights[1]) / (differences[1] - differences[0])  # pixels a nat
                self.assertGreater(scale, 0)
                for y, difference in zip(heights, differences):  # each where it belongs, none cut at the edge
                    self.assertAlmostEqual(heights[0] - y, scale * (difference - differences[0]), delta=0.5)

    def test_a_loss_that_is_not_finite_is_left_out(self):
        self.assertEqual(len(self.draw(0.5, None, 0.2)), 2)


if __name__ == "__main__":
    unittest.main(verbosity=1)
