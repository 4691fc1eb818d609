#!/usr/bin/env python3
"""hyperparameter_curves.py on runs that are there already: only whole ones count, and numbers and picture are written."""
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).with_name("hyperparameter_curves.py")


class Curves(unittest.TestCase):
    def test_whole_runs_are_drawn(self):
        with tempfile.TemporaryDirectory(prefix="test_curves_") as folder:
            work, table, picture = Path(folder), Path(folder, "table.csv"), Path(folder, "picture.svg")
            for name, steps in (("rate_3e-3_s1", 300), ("rate_1e-3_s1", 200)):
                work.joinpath(name).mkdir()
                lines = [{"type": "run", "step": 0, "tokens_per_step": 512}, {"type": "step", "step": 100, "loss": 3.0}]
                lines += [{"type": "validation", "step": step, "val_loss": 5 - step / 100} for step in range(20, steps + 1, 20)]
                work.joinpath(name, "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
            done = subprocess.run([sys.executable, SCRIPT, "--draw_only", "--work", work, "--csv", table, "--picture", picture],
                                  capture_output=True, text=True, check=True, timeout=60)
            self.assertIn("seed 1: 2.000", done.stdout)
            rows = table.read_text().splitlines()
            self.assertEqual([len(rows), rows[1], rows[-1]], [16, "rate_3e-3,1,10240,4.8000", "rate_3e-3,1,153600,2.0000"])
            self.assertEqual(picture.read_text().count("<polyline"), 3)  # it stands in three panels


if __name__ == "__main__":
    unittest.main()
