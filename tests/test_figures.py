#!/usr/bin/env python3
"""The figures of README.md, docs/benchmarks.md and docs/fp8.md come from files in docs/data: tables, pictures, the speed model.
And the pages keep their length.
"""
import glob
import os
import re
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tools"))
sys.dont_write_bytecode = True
import draw_figures as figures  # noqa: E402
import draw_fp8_figures as fp8_figures  # noqa: E402
import scaling_model as model  # noqa: E402
import test_rooms  # noqa: E402

# at most, without tables and code
WORDS = {"README.md": 700, "docs/benchmarks.md": 900, "docs/scaling.md": 1000, "docs/fp8.md": 1500, "docs/security.md": 500,
         "docs/reliability.md": 400, "docs/checkpoints.md": 900, "docs/checkpoint_format.md": 1400, "docs/tools.md": 2500,
         "docs/decisions.md": 1500, "docs/tutorial.md": 4000, "CHANGELOG.md": 700}
README_WORDS = 900  # of all kinds, as wc counts
SIZES = ("124M", "355M", "774M", "1558M")
PEAK = {"fp8": 1979e12, "bf16": 989e12}  # dense, as tests/bench/bench_gpt2.cpp has them


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def speed_rows():
    return figures.read_rows("speed.csv")


def table_rows(path):
    return [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in read(path).splitlines() if line.startswith("|")]


def thousands(cell):
    """"971k" and "91.9k" with the number of digits that they show: 971e3, 0; 91.9e3, 1."""
    digits = cell.removesuffix("k")
    return float(digits) * 1e3, len(digits.partition(".")[2])


def flowing(path):
    """With its line breaks as spaces."""
    return read(path).replace("\n", " ")


def prose(path):
    """Without tables and code."""
    text = re.sub(r"(?ms)^```.*?^```$", "", read(path))
    return "\n".join(line for line in text.splitlines() if not line.startswith(("|", "    ")))


class Speed(unittest.TestCase):
    def setUp(self):
        self.speeds = figures.read_speeds()

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
        self.assert_row("README.md", "tokens/s", "four_sizes", "ours", "fp8")
        row = next(cells for cells in table_rows("README.md") if cells[0] == "GPU memory, GB")
        self.assertEqual(row[1:], [entry["gb_used"] for entry in speed_rows() if entry["run"] == "four_sizes" and entry["precision"] == "fp8"])

    def test_readme_steps(self):
        page, nano = read("README.md"), 512  # tokens of a step of nano
        milliseconds, speed = map(float, re.search(r"dt: (\d+)ms \| tok/s: ([\d.]+)K", page).groups())
        self.assertAlmostEqual(nano / milliseconds, speed, delta=0.05)
        steps, tokens, minutes, seconds, speed = map(float, re.search(
            r"done: (\d+) steps, ([\d.]+)K tokens; (\d+)m (\d+)s, ([\d.]+)K tokens/s", page).groups())
        self.assertEqual(steps * nano, tokens * 1e3)
        self.assertAlmostEqual(tokens / (60 * minutes + seconds), speed, delta=0.05)
        speed, hours, minutes, milliseconds = map(float, re.search(
            r"speed +([\d.]+)K tokens/s.*\n +time +(\d+)h (\d+)m, (\d+)ms a step", page).groups())
        self.assertAlmostEqual(speed * 1e3 / self.speeds["four_sizes", "ours", "fp8", "124M"], 1, delta=1e-3)
        self.assertAlmostEqual(524288 / speed, milliseconds, delta=1)
        self.assertAlmostEqual(19073 * milliseconds / 60e3, 60 * hours + minutes, delta=2)

    def test_readme_hours_and_checkpoints(self):
        rows = {cells[0]: cells[1:] for cells in table_rows("README.md")}
        tokens = {}
        for size, hours, gigabytes in zip(SIZES, rows["recipe, hours"], rows["checkpoint, GB"]):
            recipe = dict(re.findall(r"(?m)^(\w+) = (\d+)", read(f"configs/gpt2_{size.lower()}.toml")))
            tokens[size] = 1024 * int(recipe["target_batch_size"]) * int(recipe["max_steps"])
            seconds = tokens[size] / self.speeds["four_sizes", "ours", "fp8", size]
            self.assertEqual(f"{seconds / 3600:.{len(hours.partition('.')[2])}f}", hours, size)
            self.assertEqual(f"{12 * model.parameters(model.SIZES[size], model.parse([])) / 1e9:.1f}", gigabytes, size)  # master, two moments
        self.assertEqual(len({tokens[size] for size in SIZES[:3]}), 1)
        self.assertIn(f"Recipes train {tokens['124M'] / 1e9:.0f}B tokens (1558M: {tokens['1558M'] / 1e9:.1f}B)", flowing("README.md"))

    def test_readme_efficiency(self):
        header, row = (next(cells for cells in table_rows("docs/scaling.md") if cells[0].startswith(start)) for start in ("", "FP8, ZeRO"))
        self.assertEqual(header[1], "124M x 8")
        default = next(cells for cells in table_rows("docs/scaling.md") if cells[:2] == ["124M", "8"])
        minutes = 19073 * float(default[8]) / 60e3
        self.assertIn(f"predicts {row[1]} efficiency at 124M: {minutes:.0f} minutes for the recipe", flowing("README.md"))

    def test_fp8_over_bf16(self):
        ratios = [self.speeds["four_sizes", "ours", "fp8", size] / self.speeds["four_sizes", "ours", "bf16", size] for size in SIZES]
        self.assertIn("FP8 is {:.2f}, {:.2f}, {:.2f} and {:.2f} times as fast as BF16".format(*ratios), flowing("docs/benchmarks.md"))
        self.assertIn("{:.2f} times as fast in FP8 as in BF16 at 124M, and {:.2f} times as fast at 1558M".format(ratios[0], ratios[3]), flowing("docs/tutorial.md"))

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
        self.assertIn(f"at {self.speeds['trainer', 'ours', 'fp8', '124M'] / 1e3:.0f}k tokens/s with 262,144 tokens a step", flowing("docs/benchmarks.md"))

    def test_pair(self):
        fp8, bf16 = (self.speeds["pair", "ours", precision, "124M"] for precision in ("fp8", "bf16"))
        page = flowing("docs/benchmarks.md")
        self.assertIn(f"was {fp8 / 1e3:.0f}k tokens/s in FP8", page)
        self.assertIn(f"and {bf16 / 1e3:.0f}k tokens/s in BF16", page)
        self.assertIn(f"FP8 is {fp8 / bf16:.2f} times as fast:", flowing("README.md"))

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


class Measurements(unittest.TestCase):
    def test_the_page_shows_them(self):
        page = flowing("docs/benchmarks.md")
        for row in figures.read_rows("measurements.csv"):
            value, unit = float(row["value"]), row["unit"]
            shown = [f"{row['value']} {unit}", f"{value:g} {unit}", f"{value:,.0f} {unit}", f"{value / 1e3:.0f}k {unit}", f"{value:g} and "]
            self.assertTrue(any(text in page for text in shown), row)
            self.assertTrue(row["command"] and row["machine"], row)

    def test_losses_beside_pytorch(self):
        rows = {cells[0]: cells[1:] for cells in table_rows("docs/benchmarks.md")}
        for place, row in enumerate(figures.read_rows("torch_loss.csv")):
            torch, ours = row["torch_val_loss"], row["ours_val_loss"]
            self.assertEqual([rows[name][place] for name in ("step", "PyTorch", "ours")], [row["step"], torch, ours])
            self.assertAlmostEqual(float(rows["difference"][place]), float(ours) - float(torch), delta=1.1e-4)

    def test_muon(self):
        def losses(optimizer, batch, steps):
            return [float(row["val_loss"]) for row in figures.read_rows("muon_seeds.csv") if row["step"] == row["steps"] == str(steps)
                    and (row["optimizer"], row["batch"]) == (optimizer, str(batch)) and row["seed"] in ("1", "2", "3")]
        page = flowing("docs/hyperparameters.md").replace("**", "")
        adamw, muon = losses("adamw", 16, 2400), losses("muon", 16, 1200)
        self.assertEqual((len(adamw), len(muon)), (3, 3))
        for values in (adamw, muon, losses("muon", 32, 720)):
            self.assertIn("{:.3f} ± {:.3f}".format(*figures.mean_and_error(values)), page)
        (low, error), (high, other) = figures.mean_and_error(muon), figures.mean_and_error(adamw)
        saving = f"{high - low:.3f} ± {(error**2 + other**2) ** 0.5:.3f}"
        self.assertIn(f"half of the tokens Muon ends {saving} below AdamW", page)
        self.assertIn(f"half of the tokens, 124M ends {saving} nats below tuned AdamW", flowing("README.md"))

    def test_loss_gaps(self):
        rows = [cells for cells in table_rows("docs/fp8.md") if len(cells) == 9]
        for name, rate, values in figures.loss_gaps():
            row = next(cells for cells in rows if (cells[0], cells[2]) == (name, rate))
            self.assertEqual(int(row[3]), len(values))
            for shown, exact in zip(row[5].split(" ± "), figures.mean_and_error(values)):
                self.assertLessEqual(abs(float(shown) - exact), 0.5e-4 + 1e-9, row)
            if (name, rate) in (("124M", "6e-4"), ("d6", "1.2e-3")):
                self.assertIn(row[5], flowing("README.md"))


    def test_every_file_has_its_command(self):
        listed = re.findall(r"`(\w+\.csv)`", "".join(line for line in read("docs/data/README.md").splitlines(True) if line.startswith("|")))
        self.assertEqual(sorted(listed), sorted(os.path.basename(path) for path in glob.glob("docs/data/*.csv", root_dir=ROOT)))
        self.assertTrue(all(cells[2] for cells in table_rows("docs/data/README.md")))


    def test_operations_and_timeline_are_of_one_step(self):
        operations = figures.read_rows("operations.csv")
        self.assertTrue(all(float(row["bound_ms"]) <= float(row["ms"]) for row in operations))
        spans = figures.read_timeline()
        self.assertEqual([sum(kind == what for kind, *_ in spans) for what in ("forward", "head", "backward", "update")], [48, 4, 48, 1])
        self.assertTrue(all(first[3] <= second[2] + 1e-6 for first, second in zip(spans, spans[1:])), "spans overlap")


class Pictures(unittest.TestCase):
    def test_they_are_the_scripts(self):
        for script, drawn in (("draw_figures", figures.FIGURES), ("draw_fp8_figures", fp8_figures.FIGURES)):
            for name, draw in drawn.items():
                self.assertEqual(read(f"docs/img/{name}"), draw(), f"run tools/{script}.py: docs/img/{name} is another picture")

    def test_all_have_a_dark_form(self):
        for path in glob.glob("docs/img/*.svg", root_dir=ROOT):
            self.assertIn("@media (prefers-color-scheme: dark)", read(path), path)

    def test_every_picture_is_on_a_page(self):
        pages = "".join(read(path) for path in ["README.md", *glob.glob("docs/**/*.md", root_dir=ROOT, recursive=True)])
        for name in os.listdir(os.path.join(ROOT, "docs/img")):
            self.assertIn(f"img/{name})", pages)

    def test_rooms_are_those_of_the_build(self):
        built = {name.removeprefix("gpt2_"): room for name, room in test_rooms.read_rooms(ROOT).items()
                 if any(pattern.startswith(("engine/", "kernels/")) for pattern in room.patterns)}
        rooms = figures.read_rooms()
        self.assertEqual({name: set(links) for name, links in rooms.items()},
                         {name: {link.removeprefix("gpt2_") for link in room.links} for name, room in built.items()})
        self.assertEqual(sorted(rooms), sorted(figures.PURPOSES), "tools/draw_figures.py: PURPOSES")
        height = {name: number for number, names in enumerate(figures.levels(rooms)) for name in names}
        self.assertTrue(all(height[link] < height[name] for name, links in rooms.items() for link in links))


class Pages(unittest.TestCase):
    def test_readme_is_short_with_its_tables(self):
        self.assertLessEqual(len(read("README.md").split()), README_WORDS)

    def test_they_keep_their_length(self):
        for path, most in WORDS.items():
            self.assertLessEqual(len(prose(path).split()), most, path)

    def test_history_is_in_the_notes(self):
        for path in ["README.md", *glob.glob("docs/*.md", root_dir=ROOT)]:
            history = re.findall(r"\b20\d\d-\d\d-\d\d\b|\b\d\d:\d\d UTC\b|\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{7}\b", prose(path))
            self.assertEqual(history, [], f"{path}: dates and commits belong in docs/notes")


if __name__ == "__main__":
    unittest.main(verbosity=1)
