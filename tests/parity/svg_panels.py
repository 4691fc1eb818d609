"""Line plots as SVG, with nothing but the standard library: axes with round numbers, lines, bands, a legend."""
import math
from html import escape
from pathlib import Path

COLORS = ("#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")  # Okabe and Ito's: told apart by everyone


def color_of(index):
    return COLORS[index % len(COLORS)]


def ticks(low, high, count):
    """Round numbers that cover [low, high]."""
    raw = (high - low) / count or 1.0
    unit = 10 ** math.floor(math.log10(raw))
    step = next(unit * m for m in (1, 2, 5, 10) if unit * m >= raw * 0.999)
    return [step * i for i in range(math.floor(low / step), math.ceil(high / step) + 1)]


class Panel:
    """One set of axes, `top` pixels down and `left` pixels in, and the lines within."""

    def __init__(self, top, height, x_range, y_ticks, label, decimals, left=80, width=600):
        self.top, self.height, self.x_range, self.label = top, height, x_range, label
        self.y_ticks, self.decimals, self.left, self.width, self.parts = y_ticks, decimals, left, width, []

    def x(self, value):
        low, high = self.x_range
        return self.left + self.width * (value - low) / ((high - low) or 1)

    def y(self, value):
        low, high = self.y_ticks[0], self.y_ticks[-1]
        return self.top + self.height * (high - value) / (high - low)

    def axes(self, x_label=None):
        right, bottom = self.left + self.width, self.top + self.height
        for value in self.y_ticks:
            y = self.y(value)
            self.parts.append(f'<line x1="{self.left}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#dddddd"/>')
            self.parts.append(f'<text x="{self.left - 8}" y="{y + 4:.1f}" text-anchor="end">{value:.{self.decimals}f}</text>')
        for value in ticks(*self.x_range, self.width / 100):
            if not self.x_range[0] <= value <= self.x_range[1]:
                continue
            x = self.x(value)
            self.parts.append(f'<line x1="{x:.1f}" y1="{bottom}" x2="{x:.1f}" y2="{bottom + 5}" stroke="#333333"/>')
            if x_label:
                self.parts.append(f'<text x="{x:.1f}" y="{bottom + 20}" text-anchor="middle">{value:g}</text>')
        self.parts.append(
            f'<rect x="{self.left}" y="{self.top}" width="{self.width}" height="{self.height}" fill="none" stroke="#333333"/>')
        if x_label:
            self.parts.append(
                f'<text x="{self.left + self.width / 2}" y="{bottom + 42}" text-anchor="middle">{escape(x_label)}</text>')
        middle, beside = self.top + self.height / 2, self.left - 58
        self.parts.append(f'<text x="{beside}" y="{middle}" text-anchor="middle" '
                          f'transform="rotate(-90 {beside} {middle})">{escape(self.label)}</text>')

    def line(self, points, color, dashes="", width=1.8, dots=True):
        """(step, value) pairs, those that are not finite left out."""
        points = [(s, v) for s, v in points if math.isfinite(v)]
        text = " ".join(f"{self.x(s):.1f},{self.y(v):.1f}" for s, v in points)
        self.parts.append(
            f'<polyline points="{text}" fill="none" stroke="{color}" stroke-width="{width}" stroke-dasharray="{dashes}"/>')
        if dots and len(points) <= 20:
            self.parts += [f'<circle cx="{self.x(s):.1f}" cy="{self.y(v):.1f}" r="2.6" fill="{color}"/>' for s, v in points]

    def band(self, edges, color):
        """(step, low, high), those that are not finite left out."""
        edges = [edge for edge in edges if all(map(math.isfinite, edge))]
        outline = [(s, high) for s, _, high in edges] + [(s, low) for s, low, _ in reversed(edges)]
        text = " ".join(f"{self.x(s):.1f},{self.y(v):.1f}" for s, v in outline)
        self.parts.append(f'<polygon points="{text}" fill="{color}" fill-opacity="0.15"/>')


def legend(names, right, top):
    """A box whose upper right corner is there; the n-th name has the n-th color."""
    width = 46 + 7.6 * max(map(len, names))
    left = right - width - 10
    parts = [f'<rect x="{left}" y="{top}" width="{width}" height="{20 * len(names) + 8}" fill="#ffffff" stroke="#bbbbbb"/>']
    for i, name in enumerate(names):
        y = top + 14 + 20 * i
        parts.append(f'<line x1="{left + 8}" y1="{y}" x2="{left + 30}" y2="{y}" stroke="{color_of(i)}" stroke-width="2.4"/>')
        parts.append(f'<text x="{left + 36}" y="{y + 4}">{escape(name)}</text>')
    return parts


DARK = """<style>@media (prefers-color-scheme: dark) {
  rect[fill="#ffffff"] { fill: #0d1117 } svg, text { fill: #f0f6fc } [stroke="#333333"] { stroke: #9198a1 } [stroke="#dddddd"] { stroke: #30363d }
  [stroke="#000000"] { stroke: #f0f6fc } [fill="#000000"] { fill: #f0f6fc } [stroke="#0072b2"] { stroke: #56b4e9 } [fill="#0072b2"] { fill: #56b4e9 }
}</style>
"""


def write_page(path, width, height, title, parts):
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="13" fill="#222222">\n'
        f'{DARK}<rect width="{width}" height="{height}" fill="#ffffff"/>\n'
        f'<text x="{width / 2 + 20}" y="28" text-anchor="middle" font-size="16">{escape(title)}</text>\n'
        + "\n".join(parts) + "\n</svg>\n")
    print(f"drawn: {path}")
