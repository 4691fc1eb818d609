#!/usr/bin/env python3
"""Draws figures of README.md and docs/ from docs/data and from CMake's list of rooms, the same bytes every time.

    tools/draw_figures.py                        writes docs/img/speed.svg, operations.svg, timeline.svg, rooms.svg and gap.svg
    tools/draw_figures.py --timeline FILE        the same, with a new timeline from what the trainer's --timeline wrote

tools/draw_fp8_figures.py draws those of the tutorial.
"""
import csv
import json
import math
import os
import re
import statistics
import sys

from draw_fp8_figures import IMAGES, Drawing

ROOT = os.path.dirname(os.path.dirname(IMAGES))
STYLE = """
  .ours { fill: #0a5cc0 } .ours2 { fill: #6aa5ec } .peer { fill: #8c959f } .pale { fill: #d1d9e0 }
  .value { font-weight: bold } .faint { fill-opacity: 0.75 } .tiny { font-size: 10px } .thick { stroke: #0a5cc0; stroke-width: 3 } .grid { stroke: #e6eaef } .dashed { stroke: #b35900; stroke-dasharray: 5 4 }
  @media (prefers-color-scheme: dark) {
    .ours { fill: #4493f8 } .ours2 { fill: #245fa8 } .peer { fill: #6e7681 } .pale { fill: #3d444d }
    .thick { stroke: #4493f8 } .grid { stroke: #30363d } .dashed { stroke: #ff9d45 }
  }
"""


def figure(width, height, title):
    drawing = Drawing(width, height, title)
    drawing.parts.append(f"<style>{STYLE}</style>")
    return drawing


def read_rows(name):
    with open(os.path.join(ROOT, "docs", "data", name), encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


# ---- training speed ----

# run, program, precision, label, color
ONE_RUN = [
    ("beside_llm_c", "ours", "fp8", "this engine, FP8", "ours"),
    ("beside_llm_c", "ours", "bf16", "this engine, BF16", "ours2"),
    ("beside_llm_c", "llm.c", "bf16", "llm.c, BF16", "peer"),
]
EARLIER = [
    ("peers", "llm.c", "bf16", "llm.c, BF16", "pale"),
    ("peers", "PyTorch 2.11 compile", "bf16", "PyTorch compile, BF16", "pale"),
    ("peers", "PyTorch 2.11 compile", "fp8", "PyTorch compile, FP8", "pale"),
]


def read_speeds():
    """tokens/s by (run, program, precision, model)."""
    return {(row["run"], row["program"], row["precision"], row["model"]): float(row["tokens_per_s"]) for row in read_rows("speed.csv")}


def draw_speed(model="124M"):
    speeds = read_speeds()
    left, row, most = 190, 32, 1e6
    scale = 400 / most
    drawing = figure(760, 324, f"Training speed of GPT-2 {model} on one H200 in thousands of tokens per second")
    drawing.text(20, 28, f"GPT-2 {model} on one H200: tokens per second", "title")
    baseline, y = speeds["beside_llm_c", "llm.c", "bf16", model], 46
    for title, bars in (("measured in one run on one H200", ONE_RUN), ("measured earlier, on another H200", EARLIER)):
        drawing.text(20, y + 14, title, "small muted")
        drawing.line(left + 60, y + 10, 740, y + 10)
        y += 20
        for run, program, precision, label, color in bars:
            speed = speeds[run, program, precision, model]
            drawing.text(left - 10, y + 21, label, "end")
            drawing.box(left, y + 5, speed * scale, 24, color)
            times = f" = {speed / baseline:.1f} x llm.c" if run == "beside_llm_c" and speed > baseline else ""
            drawing.text(left + speed * scale + 8, y + 21, f"{speed / 1e3:.0f}k{times}", "value")
            y += row
        y += 8
    drawing.text(20, y + 10, "Two H200 differ by up to 6%: compare a pale bar only with pale bars.", "small muted")
    return drawing.svg()


# ---- operations of a micro-step beside their bounds ----

def draw_operations():
    rows = [(row["operation"], float(row["ms"]), float(row["bound_ms"]), row["bound_by"]) for row in read_rows("operations.csv")]
    total, bound = sum(ms for _, ms, _, _ in rows), sum(bound for _, _, bound, _ in rows)
    step = next(float(row["value"]) for row in read_rows("measurements.csv") if row["measurement"] == "step_of_operations")
    rest = [ms for _, ms, _, _ in rows if ms < 0.5]
    rows = [row for row in rows if row[1] >= 0.5]
    left, row, scale = 250, 28, 26
    drawing = figure(800, 132 + row * len(rows), "Time of each operation of a micro-step of GPT-2 124M in FP8, beside its bound")
    drawing.text(20, 28, "Where the time goes: 65,536 tokens of GPT-2 124M in FP8 on one H200, ms", "title")
    for kind, x, label in (("ours", 20, "bound: FLOPs at 1.52 PFLOP/s (attention: 736 TFLOP/s)"), ("peer", 410, "bound: bytes at 4.2 TB/s"), ("pale", 604, "time above the bound")):
        drawing.box(x, 44, 14, 14, kind)
        drawing.text(x + 20, 56, label, "small")
    y = 72
    for name, ms, least, by in rows:
        drawing.text(left - 10, y + 18, name.replace("'", "&#8217;"), "end")
        drawing.box(left, y + 3, ms * scale, 21, "pale")
        drawing.box(left, y + 3, least * scale, 21, "ours" if by == "FLOPs" else "peer")
        drawing.text(left + ms * scale + 8, y + 18, f"{ms:.1f}, bound {least:.1f}; {100 * ms / total:.0f}%", "small")
        y += row
    drawing.line(left, 72, left, y + 2)
    drawing.text(20, y + 24, f"Timed on their own, with a pause before each, they add up to {total:.1f} ms, their bounds to {bound:.1f} ms; {len(rest)} more take {sum(rest):.1f} ms.", "small muted")
    drawing.text(20, y + 42, f"In a CUDA graph the same micro-step takes {step / 8:.1f} ms, an eighth of a step. Percentages are shares of the sum.", "small muted")
    return drawing.svg()


# ---- timeline of a step ----

def read_timeline():
    """(kind, block, begin and end in ms) of the spans of one step; a span that the trace does not have is the LM head's."""
    spans = [(*row["name"].partition(" ")[::2], float(row["begin_ms"]), float(row["begin_ms"]) + float(row["ms"])) for row in read_rows("timeline.csv")]
    heads = [("head", "", forward[3], backward[2]) for forward, backward in zip(spans, spans[1:]) if (forward[0], backward[0]) == ("forward", "backward")]
    return sorted(spans + heads, key=lambda span: span[2])


def record_timeline(trace):
    """docs/data/timeline.csv: the second step of a file of --timeline, with its weights in place."""
    with open(trace, encoding="utf-8") as file:
        entries = [entry for entry in json.load(file) if entry["tid"] == "compute"]
    first = 1 + next(number for number, entry in enumerate(entries) if entry["name"] == "update")
    step = entries[first:1 + next(number for number, entry in enumerate(entries) if entry["name"] == "update" and number > first)]
    with open(os.path.join(ROOT, "docs", "data", "timeline.csv"), "w", encoding="utf-8") as file:
        file.write("name,begin_ms,ms\n")
        file.writelines(f"{entry['name']},{(entry['ts'] - step[0]['ts']) / 1e3:.3f},{entry['dur'] / 1e3:.3f}\n" for entry in step)


def draw_timeline():
    spans = read_timeline()
    colors = {"forward": "e4m3", "head": "fp32", "backward": "e5m2", "update": "ours"}
    names = {"forward": "forward, 12 blocks", "head": "LM head and loss", "backward": "backward, 12 blocks", "update": "update"}
    starts = [begin for kind, block, begin, _ in spans if (kind, block) == ("forward", "0")]
    drawing = figure(800, 312, "Timeline of one training step of GPT-2 124M in FP8 on one H200")
    drawing.text(20, 28, f"One step of GPT-2 124M in FP8 on one H200: {len(starts)} micro-steps of 65,536 tokens", "title")
    for number, (kind, name) in enumerate(names.items()):
        drawing.box(20 + 180 * number, 44, 14, 14, colors[kind])
        drawing.text(40 + 180 * number, 56, name, "small")

    def strip(top, shown, tick, labels):
        low, high = shown[0][2], shown[-1][3]
        place = lambda value: 20 + 760 * (value - low) / (high - low)
        for kind, block, begin, end in shown:
            drawing.box(place(begin), top, max(place(end) - place(begin) - 0.6, 1), 44, colors[kind], 1)
            if labels:
                drawing.text((place(begin) + place(end)) / 2, top + 27, block or f"{end - begin:.1f} ms", "tiny middle")
        for value in range(0, int(high - low) + 1, tick):
            drawing.line(place(low + value), top + 48, place(low + value), top + 53)
            drawing.text(place(low + value), top + 67, f"{value}" + (" ms" if value == 0 else ""), "small middle" if value else "small")

    drawing.text(20, 86, "the whole step", "small muted")
    strip(94, spans, 50, False)
    drawing.text(20, 196, "its second micro-step, by block", "small muted")
    micro_step = [span for span in spans if starts[1] <= span[2] < starts[2]]
    strip(204, micro_step, 10, True)
    sums = {kind: sum(end - begin for what, _, begin, end in micro_step if what == kind) for kind in ("forward", "head", "backward")}
    drawing.text(20, 298, "There: " + ", ".join(f"{names[kind]} {value:.1f} ms" for kind, value in sums.items()) + f". The update takes {spans[-1][3] - spans[-1][2]:.1f} ms.", "small muted")
    return drawing.svg()


# ---- rooms of the code ----

PURPOSES = {
    "base": "errors, JSON, float formats", "system": "files, signals, processes", "network": "sockets, handshake",
    "kernels": "contracts, CPU kernels", "rendezvous": "how ranks meet", "ranks": "process group, collectives",
    "model": "shape, parameters, FP8 recipe", "kernels_cuda": "CUDA kernels, GEMM plans", "kernels_sm90": "Hopper: wgmma, TMA",
    "cpu": "the reference engine", "cuda": "the GPU engine, NCCL", "hdf5": "files with hashes", "data": "shards, loader", "text": "tokenizer, sampling",
    "logging": "metrics, TensorBoard", "checkpoint": "save, find, verify, load", "pretrained": "weights of others", "backend": "device and precision",
    "options": "flags, files, auto", "run": "the training loop",
}


def read_rooms():
    """{name: names of the rooms that it links} of engine/ and kernels/, from the gpt2_room(...) lines of CMake."""
    text = ""
    for name in ("CMakeLists.txt", "cmake/cuda_engine.cmake"):
        with open(os.path.join(ROOT, name), encoding="utf-8") as file:
            text += re.sub(r"#.*", "", file.read())
    calls = [(name, rest) for name, rest in re.findall(r"^gpt2_room\(gpt2_(\w+) SOURCES ([^)]*)\)", text, re.MULTILINE) if not re.search(r"\bTOOLS\b", rest)]
    names = {name for name, _ in calls}
    return {name: [word for word in re.findall(r"gpt2_(\w+)", rest) if word in names] for name, rest in calls}


def levels(rooms):
    """Rooms by the longest chain of rooms below them, lowest first."""
    height = {}

    def of(name):
        if name not in height:
            height[name] = 1 + max(map(of, rooms[name]), default=-1)
        return height[name]

    rows = [[] for _ in range(1 + max(map(of, rooms)))]
    for name in rooms:
        rows[height[name]].append(name)
    return rows


def draw_rooms():
    rooms = read_rooms()
    rows = levels(rooms)
    width, height, row = 204, 52, 62
    path = lambda name: name.replace("kernels_", "kernels/")
    drawing = figure(880, 136 + row * len(rows), "The rooms of the code, each above the rooms that it uses")
    drawing.text(20, 28, "The rooms of the code: each uses only rooms below it", "title")
    y = 46
    drawing.box(20, y, 840, height, "fp32")
    drawing.text(440, y + 21, "train_gpt2_fp8.cu and the programs of tools/", "value middle")
    drawing.text(440, y + 40, "main functions; what only a tool needs is in its folder of tools/", "small middle")
    for names in reversed(rows):
        y += row
        gap = (840 - width * len(names)) / (len(names) + 1)
        for number, name in enumerate(names):
            x = 20 + gap + number * (width + gap)
            drawing.box(x, y, width, height, "e5m2" if name.startswith("kernels") else "e4m3")
            drawing.text(x + width / 2, y + 16, ("" if name.startswith("kernels") else "engine/") + path(name), "value middle")
            drawing.text(x + width / 2, y + 31, PURPOSES[name], "small middle")
            if rooms[name]:
                drawing.text(x + width / 2, y + 46, "on " + ", ".join(map(path, rooms[name])), "small middle faint")
    drawing.text(20, y + 76, "&#8220;on&#8221; names the rooms that a CMake target links; what those link may be used too.", "small muted")
    return drawing.svg()


# ---- the loss gap ----

def last_losses(*names):
    """By (setting, variant, seed, evaluated_in): the loss after 300 steps, the mean over the files."""
    found = {}
    for name in names:
        for row in read_rows(f"{name}.csv"):
            if row["step"] == "300":
                found.setdefault((row["setting"], row["variant"], int(row["seed"]), row["evaluated_in"]), []).append(float(row["val_loss"]))
    return {key: statistics.mean(values) for key, values in found.items()}


def gaps(found, setting, variant="fp8", evaluated_in="fp8"):
    """FP8's loss minus BF16's, seed by seed."""
    seeds = sorted(seed for where, what, seed, how in found if (where, what, how) == (setting, variant, evaluated_in))
    return [found[setting, variant, seed, evaluated_in] - found[setting, "bf16", seed, "bf16"] for seed in seeds]


def resumed_gaps():
    """d6 at 1.2e-3: FP8 resumed BF16's step 30; BF16's own ends are in two other files."""
    fp8 = last_losses("loss_gap_d6_branches")
    bf16 = {int(row["seed"]): float(row["val_loss"]) for row in read_rows("loss_gap_d6_warmup.csv") if (row["max_lr"], row["variant"]) == ("1.2e-3", "bf16")}
    bf16.update({int(row["seed"]): float(row["val_loss"]) for row in read_rows("loss_gap_d6_seeds_13_to_40.csv")
                 if (row["variant"], row["step"]) == ("bf16", "300")})
    return [fp8["lr1.2e-3-from30", "fp8", seed, "fp8"] - loss for seed, loss in sorted(bf16.items())]


def loss_gaps():
    """(model, rate, gaps by seed) of every comparison with several pairs."""
    large, small, slow = last_losses("loss_gap_124M"), last_losses("loss_gap_d6_default"), last_losses("loss_gap_d6_warmup_100")
    return [("124M", "6e-4", gaps(large, "lr6e-4")), ("124M", "1.2e-3", gaps(large, "lr1.2e-3")), ("d6", "6e-4", gaps(small, "lr6e-4")),
            ("d6", "1.2e-3", resumed_gaps()), ("d6, warm-up 100", "1.2e-3", gaps(slow, "lr1.2e-3")), ("d6", "2.4e-3", gaps(small, "lr2.4e-3"))]


def mean_and_error(values):
    return statistics.mean(values), statistics.stdev(values) / math.sqrt(len(values))


def draw_gap():
    rows = loss_gaps()
    left, right, row, top, most = 250, 600, 36, 84, 0.008
    place = lambda value: (left + right) / 2 + value * (right - left) / 2 / most
    bottom = top + row * len(rows)
    drawing = figure(800, bottom + 104, "FP8's validation loss minus BF16's, with its uncertainty")
    drawing.text(20, 28, "FP8&#8217;s validation loss minus BF16&#8217;s after 300 steps, nats per token", "title")
    drawing.text(20, 50, "The loss itself is 5.1 to 5.5. Dot: mean over pairs of runs with equal seed and data. Line: two standard errors.", "small muted")
    drawing.text(left - 10, top - 8, "model, learning rate, pairs", "small muted end")
    for value in (-0.008, -0.004, 0, 0.004, 0.008):
        drawing.line(place(value), top, place(value), bottom, "line" if value == 0 else "grid")
        drawing.text(place(value), bottom + 18, f"{value:+.3f}" if value else "0", "small middle")
    for number, (model, rate, values) in enumerate(rows):
        y, (mean, error) = top + row * (number + 0.5), mean_and_error(values)
        drawing.text(left - 10, y + 5, f"{model}, {rate}, {len(values)} pairs", "end")
        drawing.line(place(mean - 2 * error), y, place(mean + 2 * error), y, "thick")
        drawing.box(place(mean) - 5, y - 5, 10, 10, "ours", 5)
        shown = mean - math.copysign(1e-9, mean)  # +0.00435 is +0.0043, as in the documents
        drawing.text(right + 14, y + 5, f"{shown:+.4f} &#177; {error:.4f}" + (", not zero" if abs(mean) > 3 * error else ""), "small")
    for value in (-0.005, 0.005):
        drawing.line(place(value), top + 2 * row, place(value), bottom, "dashed")
    drawing.text(place(-0.004), bottom + 38, "FP8 is better", "small middle muted")
    drawing.text(place(0.004), bottom + 38, "FP8 is worse", "small middle muted")
    drawing.line(20, bottom + 62, 50, bottom + 62, "dashed")
    drawing.text(58, bottom + 66, "threshold for the mean of d6, a small model of 6 blocks and 384 channels; 124M: the whole line within 0.02", "small")
    drawing.text(20, bottom + 88, "Text: books; 32,768 tokens a step, 124M 65,536; one H200. Right: mean and one standard error.", "small muted")
    return drawing.svg()


FIGURES = {"speed.svg": draw_speed, "operations.svg": draw_operations, "timeline.svg": draw_timeline, "rooms.svg": draw_rooms, "gap.svg": draw_gap}

if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--timeline":
        record_timeline(sys.argv[2])
    os.makedirs(IMAGES, exist_ok=True)
    for name, draw in FIGURES.items():
        with open(os.path.join(IMAGES, name), "w", encoding="utf-8") as file:
            file.write(draw())
