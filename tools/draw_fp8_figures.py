#!/usr/bin/env python3
"""Draws the figures of docs/tutorial.md into docs/img, the same bytes every time.

    tools/draw_fp8_figures.py            writes docs/img/fp8_formats.svg and docs/img/fp8_block.svg
"""
import argparse
import math
import os
import re

from fp8_by_hand import E4M3, E5M2

IMAGES = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "docs", "img")
STYLE = """
  text { font: 13px Helvetica, Arial, sans-serif; fill: #1f2328 }
  .muted { fill: #59636e } .small { font-size: 12px } .raised { font-size: 9px } .title { font-size: 15px; font-weight: bold }
  .middle { text-anchor: middle } .end { text-anchor: end } .line { stroke: #59636e; fill: none }
  .page { fill: #ffffff } .sign { fill: #d1d9e0 } .e4m3 { fill: #b6d7ff } .e5m2 { fill: #ffd0a6 } .bf16 { fill: #e6eaef } .fp32 { fill: #cdebc9 }
  .mantissa { fill: #c9efc4 } .tick4 { stroke: #0a5cc0 } .tick5 { stroke: #b35900 } .kept { stroke: #1f2328; stroke-width: 2 }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc } .muted { fill: #9198a1 } .line { stroke: #9198a1 }
    .page { fill: #0d1117 } .sign { fill: #3d444d } .e4m3 { fill: #0f4a94 } .e5m2 { fill: #7a3d00 } .bf16 { fill: #30363d } .fp32 { fill: #1c5a26 }
    .mantissa { fill: #1c5a26 } .tick4 { stroke: #6cb2ff } .tick5 { stroke: #ff9d45 } .kept { stroke: #f0f6fc }
  }
"""


class Drawing:
    def __init__(self, width, height, title):
        self.parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img">',
                      f"<title>{title}</title>", f"<style>{STYLE}</style>", f'<rect class="page" width="{width}" height="{height}"/>']

    def text(self, x, y, words, kind=""):
        before, *rest = re.split(r"\^(T|-?\d+)", words)  # x^T, 2^-9: raised
        for raised, after in zip(rest[::2], rest[1::2]):
            before += f'<tspan dy="-4" class="raised">{raised}</tspan>' + (f'<tspan dy="4">{after}</tspan>' if after else "")
        self.parts.append(f'<text x="{x:g}" y="{y:g}" class="{kind}">{before}</text>')

    def box(self, x, y, width, height, kind, radius=3):
        self.parts.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius}" class="{kind}"/>')

    def line(self, x1, y1, x2, y2, kind="line"):
        self.parts.append(f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" class="{kind}"/>')

    def arrow(self, x, y1, y2):
        tip = 5 if y2 > y1 else -5
        self.parts.append(f'<path class="line" d="M{x:g} {y1:g}V{y2:g}M{x - 4:g} {y2 - tip:g}L{x:g} {y2:g}L{x + 4:g} {y2 - tip:g}"/>')

    def svg(self):
        return "\n".join(self.parts + ["</svg>", ""])


# ---- bits and values ----

def draw_formats():
    drawing = Drawing(760, 366, "The bits of E4M3 and E5M2 and the values that they reach")
    for number, (kind, tick) in enumerate(((E4M3, "tick4"), (E5M2, "tick5"))):
        top, exponent_bits = 20 + 66 * number, 7 - kind.mantissa_bits
        drawing.text(20, top + 25, kind.name, "title")
        fields = [("s", "sign")] + [("e", kind.name.lower())] * exponent_bits + [("m", "mantissa")] * kind.mantissa_bits
        for bit, (letter, color) in enumerate(fields):
            drawing.box(90 + 34 * bit, top + 4, 32, 32, color)
            drawing.text(106 + 34 * bit, top + 25, letter, "middle")
        drawing.text(380, top + 16, f"bias {kind.bias}; largest value {kind.max:g}; {'no infinity, one NaN' if kind is E4M3 else 'infinity and NaNs'}", "small")
        normal, smallest = 2.0 ** (1 - kind.bias), kind.decode(1)
        drawing.text(380, top + 35, f"smallest normal 2^{math.log2(normal):g}, smallest subnormal 2^{math.log2(smallest):g}", "small muted")

    left, octave = 56, 19  # of the axis: log2 of the value
    place = lambda value: left + octave * (math.log2(value) + 17)
    drawing.text(20, 176, "Every positive value, on a logarithmic axis", "title")
    for number, (kind, tick) in enumerate(((E4M3, "tick4"), (E5M2, "tick5"))):
        top = 192 + 46 * number
        drawing.text(20, top + 16, kind.name)
        positive = kind.values()[1:]
        drawing.box(place(positive[0]) - 2, top, place(positive[-1]) - place(positive[0]) + 4, 24, kind.name.lower())
        for value in positive:
            drawing.line(place(value), top + 2, place(value), top + 22, tick)
        drawing.text(place(positive[-1]) + 8, top + 16, f"{positive[-1]:g}", "small")
        drawing.text(place(positive[0]) - 6, top + 16, f"2^{math.log2(positive[0]):g}" if kind is E4M3 else "", "small end")
    axis = 288
    drawing.line(place(2.0**-16), axis, place(2.0**16), axis)
    for power in range(-16, 17, 4):
        drawing.line(place(2.0**power), axis, place(2.0**power), axis + 5)
        drawing.text(place(2.0**power), axis + 19, f"2^{power}" if power else "1", "small middle muted")
    drawing.text(20, 334, "E4M3 has 8 values per power of two, E5M2 has 4: a rounding error of at most 1/16 and 1/8 of the value.", "small")
    drawing.text(20, 353, "At the left end the subnormals thin out: 7 of E4M3 below 2^-6, 3 of E5M2 below 2^-14.", "small muted")
    return drawing.svg()


# ---- data flow of a block: bytes per channel and token ----

KEPT = True
# forward: the operation, then the tensors that it writes (name, format, bytes per channel and token, kept for backward)
FORWARD = [
    (None, [("x", "bf16", 2, KEPT)]),
    ("LayerNorm 1", [("h1", "e4m3", 1, False)]),
    ("GEMM qkv", [("qkv", "bf16", 6, KEPT)]),
    ("attention", [("o", "bf16", 2, KEPT)]),
    ("cast", [("o", "e4m3", 1, False)]),
    ("GEMM proj + x", [("x_mid", "bf16", 2, KEPT)]),
    ("LayerNorm 2", [("h2", "e4m3", 1, False)]),
    ("GEMM fc, GELU", [("gelu", "e4m3", 4, KEPT), ("gelu'", "8 bits", 4, KEPT)]),
    ("GEMM fcproj", [("branch", "bf16", 2, False)]),
]
# backward, in the same rows: the operation, what it writes (it runs upwards), and the weight gradient that follows
BACKWARD = [
    ("LayerNorm 1 backward", [("dx", "bf16", 2), ("dx, dx^T", "e5m2", 2), ("h1^T", "e4m3", 1)], "dWqkv += dqkv^T h1"),
    ("GEMM qkv, dgrad", [("dh1", "bf16", 2)], None),
    ("cast", [("dqkv, dqkv^T", "e5m2", 6)], None),
    ("attention backward", [("dqkv", "bf16", 6)], None),
    ("GEMM proj, dgrad; cast of o", [("do", "bf16", 2), ("o^T", "e4m3", 1)], "dWproj += dx^T o"),
    ("LayerNorm 2 backward", [("dx", "bf16", 2), ("dx, dx^T", "e5m2", 2), ("h2^T", "e4m3", 1)], "dWfc += dpre^T h2"),
    ("GEMM fc, dgrad", [("dh2", "bf16", 2)], None),
    ("GEMM fcproj, dgrad, times gelu'", [("dpre, dpre^T", "e5m2", 8), ("gelu^T", "e4m3", 4)], "dWfcproj += dx^T gelu"),
    (None, [("dx", "bf16", 2), ("dx, dx^T", "e5m2", 2)], None),
]
NAMES = {"bf16": "BF16", "e4m3": "E4M3", "e5m2": "E5M2", "8 bits": "8 bits"}
COLORS = {"bf16": "bf16", "e4m3": "e4m3", "e5m2": "e5m2", "8 bits": "mantissa"}


def kept_bytes():
    return sum(size for _, tensors in FORWARD for _, _, size, kept in tensors if kept)


def draw_tensors(drawing, centre, y, tensors):
    labels = [f"{name} {NAMES[kind]} {size}" for name, kind, size, *_ in tensors]
    widths = [24 + 6.8 * len(label.replace("^", "")) for label in labels]
    x = centre - (sum(widths) + 6 * (len(widths) - 1)) / 2
    for label, width, (_, kind, _, *kept) in zip(labels, widths, tensors):
        drawing.box(x, y, width, 24, COLORS[kind] + (" kept" if kept == [KEPT] else ""), 12)
        drawing.text(x + width / 2, y + 16, label, "small middle")
        x += width + 6


def draw_block():
    drawing = Drawing(880, 672, "FP8 data flow of a block: formats and bytes per channel and token")
    forward, backward, gradients, row, top = 150, 484, 776, 62, 58
    drawing.text(forward, 26, "forward, downwards", "title middle")
    drawing.text(backward, 26, "backward, upwards", "title middle")
    drawing.text(gradients, 26, "weight gradients", "title middle")
    drawing.text(gradients, 44, "FP32, promoted sums", "small middle muted")
    for number, (operation, tensors) in enumerate(FORWARD):
        y = top + row * number
        if operation:
            drawing.arrow(forward, y - 37, y - 29)
            drawing.text(forward, y - 15, operation, "middle")
            drawing.arrow(forward, y - 10, y - 2)
        draw_tensors(drawing, forward, y, tensors)
    for number, (operation, tensors, gradient) in enumerate(BACKWARD):
        y = top + row * number
        draw_tensors(drawing, backward, y, tensors)
        if operation:
            drawing.arrow(backward, y + 34, y + 26)
            drawing.text(backward, y + 47, operation, "middle")
            drawing.arrow(backward, y + 61, y + 53)
        if gradient:
            drawing.box(gradients - 84, y - 1, 168, 26, "fp32")
            drawing.text(gradients, y + 16, gradient, "small middle")
    y = top + row * 8 + 42
    drawing.text(forward, y, "The next LayerNorm adds branch to x_mid.", "small middle muted")
    drawing.text(backward, y, "dx comes from the block above.", "small middle muted")
    drawing.line(20, y + 14, 860, y + 14)
    for number, kind in enumerate(("bf16", "e4m3", "e5m2")):
        drawing.box(20 + 84 * number, y + 28, 76, 22, COLORS[kind], 11)
        drawing.text(58 + 84 * number, y + 43, NAMES[kind], "small middle")
    drawing.box(272, y + 28, 76, 22, "page kept", 11)
    drawing.text(310, y + 43, "kept", "small middle")
    drawing.text(362, y + 43, "A number is bytes per channel and token. Outlined tensors are kept for backward:", "small")
    drawing.text(362, y + 61, f"{kept_bytes()} bytes, or {kept_bytes() * 768:,} bytes per token and block at C = 768. BF16 keeps 32.", "small")
    return drawing.svg()


FIGURES = {"fp8_formats.svg": draw_formats, "fp8_block.svg": draw_block}

if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for name, draw in FIGURES.items():
        with open(os.path.join(IMAGES, name), "w", encoding="utf-8") as file:
            file.write(draw())
