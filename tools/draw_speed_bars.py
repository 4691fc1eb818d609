#!/usr/bin/env python3
"""Draws the speed bars of README.md and docs/benchmarks.md from docs/data/speed.csv, the same bytes every time.

    tools/draw_speed_bars.py             writes docs/img/speed.svg
"""
import csv
import os

from draw_fp8_figures import IMAGES, Drawing

DATA = os.path.join(os.path.dirname(IMAGES), "data", "speed.csv")
STYLE = """
  .ours { fill: #0a5cc0 } .ours2 { fill: #6aa5ec } .peer { fill: #8c959f } .pale { fill: #d1d9e0 }
  .value { font-weight: bold }
  @media (prefers-color-scheme: dark) { .ours { fill: #4493f8 } .ours2 { fill: #245fa8 } .peer { fill: #6e7681 } .pale { fill: #3d444d } }
"""
# run, program, precision, label, colour
ONE_RUN = [
    ("beside_llm_c", "ours", "fp8", "this engine, FP8", "ours"),
    ("beside_llm_c", "ours", "bf16", "this engine, BF16", "ours2"),
    ("beside_llm_c", "llm.c", "bf16", "llm.c, BF16", "peer"),
]
ANOTHER_RUN = [
    ("peers", "PyTorch 2.11 compile", "bf16", "PyTorch compile, BF16", "pale"),
    ("peers", "PyTorch 2.11 compile", "fp8", "PyTorch compile, FP8", "pale"),
]


def read_speeds(path=DATA):
    """tokens/s by (run, program, precision, model)."""
    with open(path, encoding="utf-8", newline="") as file:
        return {(row["run"], row["program"], row["precision"], row["model"]): float(row["tokens_per_s"]) for row in csv.DictReader(file)}


def draw_speed(model="124M"):
    speeds = read_speeds()
    left, row, most = 190, 32, 1e6
    scale = 400 / most
    drawing = Drawing(760, 292, f"Training speed of GPT-2 {model} on one H200 in thousands of tokens per second")
    drawing.parts.append(f"<style>{STYLE}</style>")
    drawing.text(20, 28, f"GPT-2 {model} on one H200: tokens per second", "title")
    baseline, y = speeds["beside_llm_c", "llm.c", "bf16", model], 46
    for title, bars in (("one run", ONE_RUN), ("an earlier run", ANOTHER_RUN)):
        drawing.text(20, y + 14, title, "small muted")
        drawing.line(left, y + 10, 740, y + 10)
        y += 20
        for run, program, precision, label, colour in bars:
            speed = speeds[run, program, precision, model]
            drawing.text(left - 10, y + 21, label, "end")
            drawing.box(left, y + 5, speed * scale, 24, colour)
            times = f" = {speed / baseline:.1f} x llm.c" if run == "beside_llm_c" and speed > baseline else ""
            drawing.text(left + speed * scale + 8, y + 21, f"{speed / 1e3:.0f}k{times}", "value")
            y += row
        y += 8
    drawing.text(20, y + 10, "Pale bars come from another H200. Machines differ by up to 6%, so compare speeds within one run.", "small muted")
    return drawing.svg()


FIGURES = {"speed.svg": draw_speed}

if __name__ == "__main__":
    os.makedirs(IMAGES, exist_ok=True)
    for name, draw in FIGURES.items():
        with open(os.path.join(IMAGES, name), "w", encoding="utf-8") as file:
            file.write(draw())
