#!/usr/bin/env python3
"""The figures of speed come from one file, docs/data/speed.csv: tables of README.md and docs/benchmarks.md, the picture, the
speed model. And the pages that a newcomer reads first keep their length.
"""
import csv
import os
import re
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tools"))
sys.dont_write_bytecode = True
import draw_speed_bars as bars  # noqa: E402
import scaling_model as model  # noqa: E402

WORDS = {"README.md": 700, "docs/benchmarks.md": 900, "docs/scaling.md": 1000}  # at most, without tables and code
SIZES = ("124M", "355M", "774M", "1558M")
PEAK = {"fp8": 1979e12, "bf16": 989e12}  # dense, as tests/bench/bench_gpt2.cpp has them


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def speed_rows():
    with open(bars.DATA, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def table_rows(path):
    return [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in read(path).splitlines() if line.startswith("|")]


def thousands(cell):
    """"971k" and "91.9k" with the number of digits that they show: 971e3, 0; 91.9e3, 1."""
    digits = cell.removesuffix("k")
    return float(digits) * 1e3, len(digits.partition(".")[2])


class Speed(unittest.TestCase):
    def setUp(self):
        self.speeds = bars.read_speeds()

    def assert_shown(self, cell, speed):
        shown, decimals = thousands(cell)
        self.assertEqual(f"{speed / 1e3:.{decimals}f}", f"{shown / 1e3:.{decimals}f}")

    def assert_row(self, path, title, run, program, precision):
        row = next(cells for cells in table_rows(path) if cells[0] == title)
        for size, cell in zip(SIZES, row[1:]):
            if cell:
                self.assert_shown(cell, self.speeds[run, program, precision, size])
            else:
                self.assertNotIn((run, program, precision, size), self.speeds)

    def test_readme(self):
        self.assert_row("README.md", "tokens/s, FP8", "four_sizes", "ours", "fp8")
        self.assert_row("README.md", "tokens/s, BF16", "four_sizes", "ours", "bf16")
        for precision in ("fp8", "bf16"):
            row = next(cells for cells in table_rows("README.md") if cells[0] == f"GPU memory, {precision.upper()}, GB")
            self.assertEqual(row[1:], [entry["gb_used"] for entry in speed_rows() if entry["run"] == "four_sizes" and entry["precision"] == precision])

    def test_readme_step(self):
        tokens_per_s, step = re.search(r"At (\d+)k tokens/s a step of 524,288 tokens takes (\d+) ms", read("README.md")).groups()
        self.assertEqual(int(tokens_per_s) * 1000, self.speeds["beside_llm_c", "ours", "fp8", "124M"])
        self.assertEqual(f"{524288 / int(tokens_per_s):.0f}", step)
        tokens = 512  # of a step of nano
        for milliseconds, speed in re.findall(r"dt: ([\d.]+)ms \| tok/sec: ([\d.]+)", read("README.md")):
            self.assertAlmostEqual(tokens / float(milliseconds) * 1e3, float(speed), delta=0.01)

    def test_four_sizes(self):
        shown = [cells for cells in table_rows("docs/benchmarks.md") if len(cells) == 7 and cells[1] in ("FP8", "BF16")]
        rows = [row for row in speed_rows() if row["run"] == "four_sizes"]
        self.assertEqual(shown, [[row["model"], row["precision"].upper(), row["micro_batch"], f"{int(row['tokens_per_s']):,}",
                                  f"{1e3 * int(row['step_tokens']) / int(row['tokens_per_s']):.1f}", row["mfu_percent"] + "%", row["gb_used"]]
                                 for row in rows])

    def test_beside_llm_c(self):
        for size in ("124M", "355M"):
            row = next(cells for cells in table_rows("docs/benchmarks.md") if cells[0] == size and len(cells) == 6)
            speeds = [self.speeds.get(("beside_llm_c", *key, size)) for key in (("ours", "fp8"), ("ours", "bf16"), ("llm.c", "bf16"))]
            for cell, speed in zip(row[1:4], speeds):
                if cell:
                    self.assert_shown(cell, speed)
                else:
                    self.assertIsNone(speed)
            for cell, other in zip(row[4:], speeds[1:]):
                if cell:
                    self.assertEqual(cell, f"{speeds[0] / other:.{len(cell.partition('.')[2])}f}")

    def test_peers(self):
        self.assert_row("docs/benchmarks.md", "llm.c, BF16, cuDNN", "peers", "llm.c", "bf16")
        self.assert_row("docs/benchmarks.md", "PyTorch 2.11 compile, BF16", "peers", "PyTorch 2.11 compile", "bf16")
        self.assert_row("docs/benchmarks.md", "PyTorch 2.11 compile, FP8", "peers", "PyTorch 2.11 compile", "fp8")
        self.assertIn(f"at {self.speeds['trainer', 'ours', 'fp8', '124M'] / 1e3:.0f}k tokens/s with 262,144 tokens a step", read("docs/benchmarks.md"))

    def test_the_speed_model_has_the_same(self):
        for size in SIZES:
            for precision in ("fp8", "bf16"):
                self.assertEqual(model.SIZES[size].tokens_per_s[precision], self.speeds["four_sizes", "ours", precision, size])

    def test_mfu_is_what_the_page_defines(self):
        for row in filter(lambda row: row["mfu_percent"], speed_rows()):
            size = model.SIZES[row["model"]]
            parameters = model.parameters(size, model.parse([]))
            flops = 6 * (parameters - 1024 * size.channels) + 12 * size.layers * size.channels * 1024
            self.assertEqual(f"{100 * float(row['tokens_per_s']) * flops / PEAK[row['precision']]:.1f}", row["mfu_percent"])

    def test_no_row_twice(self):
        self.assertEqual(len(self.speeds), len(speed_rows()))


class Pages(unittest.TestCase):
    def test_the_picture_is_the_scripts(self):
        for name, draw in bars.FIGURES.items():
            self.assertEqual(read(f"docs/img/{name}"), draw(), f"run tools/draw_speed_bars.py: docs/img/{name} is another picture")

    def test_they_keep_their_length(self):
        for path, most in WORDS.items():
            prose = re.sub(r"(?ms)^```.*?^```$", "", read(path))
            words = [word for line in prose.splitlines() if not line.startswith(("|", "    ")) for word in line.split()]
            self.assertLessEqual(len(words), most, path)


if __name__ == "__main__":
    unittest.main(verbosity=1)
