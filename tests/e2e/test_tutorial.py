#!/usr/bin/env python3
"""docs/tutorial.md says what is: quoted code, outputs, figures, tables and the exercises' results.

    tests/e2e/test_tutorial.py TRAINER

test_documents.py runs all its commands with a tiny model, and checks its links.
"""
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools"))
sys.dont_write_bytecode = True
import draw_fp8_figures as figures  # noqa: E402
from draw_figures import gaps, last_losses, loss_gaps, mean_and_error  # noqa: E402
import fp8_by_hand as by_hand  # noqa: E402

TRAINER = os.path.abspath(sys.argv.pop(1))
LAUNCHERS = ("OMPI_", "PMI_", "SLURM_", "WORLD_SIZE", "RANK")


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


TUTORIAL = read("docs/tutorial.md")


def bare(code, comment):
    """Without comments and white space: the formatter may break lines elsewhere, and comments are shortened."""
    return re.sub(r"\s+", "", re.sub(comment + r"[^\n]*", "", code))


def table_rows(text):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


class Text(unittest.TestCase):
    def test_it_has_ten_sections(self):
        self.assertEqual(re.findall(r"(?m)^## (\d+)\.", TUTORIAL), [str(number) for number in range(1, 11)])

    def test_quoted_code_is_in_the_named_file(self):
        blocks = re.findall(r"(?ms)^```(cpp|python)\n(.*?)^```$", TUTORIAL)
        named = re.findall(r"(?ms)`([\w./]+)`:\n\n```(cpp|python)\n(.*?)^```$", TUTORIAL)
        self.assertGreater(len(blocks), 9)
        self.assertEqual(len(named), len(blocks), "a block of code without a file above it")
        for path, language, code in named:
            comment = "//" if language == "cpp" else "#"
            source, at = bare(read(path), comment), 0
            for piece in re.split(r"(?m)^\s*\.\.\.$", code):
                found = source.find(bare(piece, comment), at)
                self.assertGreaterEqual(found, 0, f"{path} no longer has:\n{piece}")
                at = found + len(bare(piece, comment))

    def test_outputs_are_those_of_the_commands(self):
        shown = re.findall(r"(?ms)^```sh\n(tools/[^\n]*)\n```\n\n```text\n(.*?)^```$", TUTORIAL)
        self.assertEqual(len(shown), TUTORIAL.count("```text"))
        for command, output in shown:
            done = subprocess.run([sys.executable, *command.split()], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
            self.assertEqual(done.stdout, output, command)

    def test_every_exercise_has_an_answer(self):
        exercises = re.findall(r"(?m)^\*\*Exercise (\d+)\.\*\*", TUTORIAL)
        answers = re.findall(r"(?m)^(\d+)\. ", TUTORIAL.split("## Answers")[1])
        self.assertEqual(exercises, [str(number) for number in range(1, 11)])
        self.assertEqual(answers, exercises)


class Figures(unittest.TestCase):
    def test_the_script_draws_the_pictures_that_are_here(self):
        for name, draw in figures.FIGURES.items():
            self.assertEqual(draw(), read(f"docs/img/{name}"), "run tools/draw_fp8_figures.py")
            self.assertIn(f"(img/{name})", TUTORIAL)

    def test_bytes_add_up(self):
        self.assertIn(f"keeps {figures.kept_bytes()} bytes per channel and token", TUTORIAL)
        part = TUTORIAL.split("## 7.")[1].split("## 8.")[0]
        *rows, total = [[int(re.match(r"\d+", cell).group()) for cell in row[1:4]] for row in table_rows(part)[2:]]
        self.assertEqual([sum(column) for column in zip(*rows)], total)
        elements, naive, here = total
        self.assertEqual(naive, 9 * elements)
        moved = (naive - here) * 12 * 65536 * 768
        self.assertIn(f"The {naive - here} bytes between both sums are then {moved / 1e9:.0f} GB, or {moved / 4.2e9:.0f} ms", part)


class Tables(unittest.TestCase):
    """Section 9 shows what docs/data has."""

    def same(self, shown, values):
        mean, error = re.fullmatch(r"([+-]\d\.\d+) ± (\d\.\d+)", shown).groups()
        for figure, exact in zip((mean, error), mean_and_error(values)):
            half_a_digit = 0.5 * 10.0 ** -len(figure.split(".")[1])
            self.assertLessEqual(abs(float(figure) - exact), half_a_digit + 1e-9, shown)  # a tie may go either way

    def setUp(self):
        section = TUTORIAL.split("## 9.")[1].split("## 10.")[0]
        runs, parts = re.findall(r"(?m)(?:^\|.*\n)+", section)
        self.runs, self.parts = table_rows(runs)[2:], table_rows(parts)[2:]

    def test_whole_runs(self):
        measured = {(model, rate): values for model, rate, values in loss_gaps()}
        self.assertEqual(len(self.runs), 5)
        for model, rate, pairs, shown in self.runs:
            values = measured[model, rate.split(",")[0]]
            self.assertEqual(len(values), int(pairs), (model, rate))
            self.same(shown, values)

    def test_parts(self):
        variants = {"default": "fp8", "no promotion": "no_promotion", "promotion everywhere": "all_promoted", "dlogits": "nearest",
                    "all gradients": "dither_all", "margin 0": "margin0", "margin 2": "margin2", "history": "history1", "current": "current",
                    "E4M3": "e4m3", "E5M2": "e5m2", "LM head in": "bf16_head", "LM head, first": "bf16_head_and_ends"}
        found = last_losses("loss_gap_d6_parts", "loss_gap_d6_parts_again")
        self.assertEqual(len(self.parts), len(variants))
        for (name, *shown), (start, variant) in zip(self.parts, variants.items()):
            self.assertTrue(name.startswith(start), name)
            for cell, evaluated_in in zip(shown, ("fp8", "bf16")):
                self.same(cell, gaps(found, "lr1.2e-3-from200", variant, evaluated_in))


class ByHand(unittest.TestCase):
    """tools/fp8_by_hand.py rounds as the formats' definition says."""

    def test_the_ends_of_the_formats(self):
        self.assertEqual([by_hand.E4M3.max, by_hand.E4M3.decode(1), by_hand.E4M3.decode(8)], [448, 2.0**-9, 2.0**-6])
        self.assertEqual([by_hand.E5M2.max, by_hand.E5M2.decode(1), by_hand.E5M2.decode(4)], [57344, 2.0**-16, 2.0**-14])

    def test_nearest_and_ties_to_even(self):
        for kind in by_hand.FORMATS.values():
            values = kind.values()
            for byte, (low, high) in enumerate(zip(values, values[1:])):
                middle, even = (low + high) / 2, byte + byte % 2
                for sign, bit in ((1, 0), (-1, 0x80)):
                    self.assertEqual(kind.encode(sign * low), bit | byte if low or sign > 0 else kind.encode(-0.0))
                    self.assertEqual(kind.encode(sign * middle), bit | even)
                    self.assertEqual(kind.encode(sign * math.nextafter(middle, 0)), bit | byte)
                    self.assertEqual(kind.encode(sign * math.nextafter(middle, 1e9)), bit | byte + 1)
            self.assertEqual(kind.round(1e9), kind.max)

    def test_stochastic_rounding_is_right_on_average(self):
        for value in (15892.5, 14336.0, 700.25, 2.0**-15):
            rounded = [by_hand.round_up_or_down(value, byte) for byte in range(256)]
            self.assertLessEqual(len(set(rounded)), 2)
            self.assertTrue(all(by_hand.E5M2.round(one) == one for one in rounded))
            self.assertAlmostEqual(statistics.mean(rounded) / value, 1, delta=2.0**-11)


class Exercises(unittest.TestCase):
    """Those that train show what their answers say."""

    def train(self, name):
        command = re.search(rf"(?m)^\./train_gpt2_fp8 (.*--run_name {name}\b.*)$", TUTORIAL).group(1)
        environment = {key: value for key, value in os.environ.items() if not key.startswith(LAUNCHERS)}
        environment.update(CUDA_VISIBLE_DEVICES="")
        with tempfile.TemporaryDirectory(prefix="test_tutorial_") as folder:
            os.symlink(os.path.join(ROOT, "configs"), os.path.join(folder, "configs"))
            done = subprocess.run([TRAINER, *command.split()], cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout + done.stderr

    def test_a_large_margin_flushes_small_values(self):
        shares = re.findall(r"(?m)^ (\S+/\S+) +(E\dM\d) .*?([\d.]+)% +([\d.]+)% +\d+$", self.train("margin"))
        self.assertEqual(len(shares), 14)
        self.assertTrue(all(float(saturated) == 0 for _, _, saturated, _ in shares))
        flushed = {kind: float(share) for kind, form, _, share in shares if form == "E4M3"}
        self.assertGreater(max(flushed.values()), 0.2)
        self.assertLess(max(flushed.values()), 0.6)  # percent

    def test_a_scale_that_lags_is_reported_and_its_blocks_leave_fp8(self):
        output = self.train("lag")
        self.assertRegex(output, r"warning: the scale of proj/act lags: .*--fp8_interval 1")
        for block in (0, 1):
            self.assertIn(f"block {block} stays in BF16 from step 31 on", output)


if __name__ == "__main__":
    unittest.main(verbosity=1)
