"""Draws learning curves as SVG: one panel for each metric, points of held-out data over the line of training."""

from __future__ import annotations

import json
import math
from html import escape
from pathlib import Path

_PANEL = (360, 150)  # pixels
_MARGIN = (52, 26)  # left and right, top and bottom
_COLUMNS = 3
_LOG_RATIO = 5  # of the largest to the smallest value: on a linear scale only the first steps would show
_HELD_OUT = "held_out_"
_NOT_METRICS = ("step", "cpu_s")

Point = tuple[float, float]


def read_curves(path: Path) -> dict[str, list[Point]]:
    """Points (step, value) by metric, from the JSON lines of a stage."""
    curves: dict[str, list[Point]] = {}
    for line in path.read_text("utf-8").splitlines():
        entry = json.loads(line)
        for name, value in entry.items():
            if name not in _NOT_METRICS:
                curves.setdefault(name, []).append((float(entry["step"]), float(value)))
    return curves


def draw(curves: dict[str, list[Point]], title: str) -> str:
    """An SVG image."""
    names = sorted({name.removeprefix(_HELD_OUT) for name in curves})
    columns = min(_COLUMNS, max(1, len(names)))
    rows = -(-len(names) // columns)
    width, height = _PANEL
    panels = []
    for i, name in enumerate(names):
        training, held_out = curves.get(name, []), curves.get(_HELD_OUT + name, [])
        place = f"translate({i % columns * width} {i // columns * height + 24})"
        panels.append(f'<g transform="{place}">{_panel(name, training, held_out)}</g>')
    size = f'width="{columns * width}" height="{rows * height + 24}"'
    style = "<style>text{font:12px sans-serif;fill:#333}path{fill:none;stroke:#36c}circle{fill:#c33}</style>"
    heading = f'<text x="8" y="17">{escape(title)}: training (line), held out (points), by step</text>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{style}{heading}{"".join(panels)}</svg>\n'


def _panel(name: str, training: list[Point], held_out: list[Point]) -> str:
    values = [value for _, value in training + held_out]
    is_log = min(values) > 0 and max(values) > _LOG_RATIO * min(values)
    if is_log:
        name = f"{name} (log)"
        training, held_out = ([(step, math.log(value)) for step, value in curve] for curve in (training, held_out))
    points = training + held_out
    width, height = _PANEL
    left, top = _MARGIN
    lows = [min(point[axis] for point in points) for axis in (0, 1)]
    spans = [max(point[axis] for point in points) - lows[axis] or 1.0 for axis in (0, 1)]

    def at(point: Point) -> Point:
        x = left + (point[0] - lows[0]) / spans[0] * (width - 2 * left)
        return x, height - top - (point[1] - lows[1]) / spans[1] * (height - 2 * top)

    line = " ".join(f"{'L' if i else 'M'}{x:.1f} {y:.1f}" for i, (x, y) in enumerate(map(at, training)))
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in map(at, held_out))
    axes = f'<path d="M{left} {top}V{height - top}H{width - left}" style="stroke:#999"/>'
    labels = (
        f'<text x="{left}" y="{top - 6}">{escape(name)}</text>'
        f'<text x="4" y="{top + 8}">{max(values):.3g}</text><text x="4" y="{height - top}">{min(values):.3g}</text>'
        f'<text x="{width - left}" y="{height - top + 14}" text-anchor="end">{lows[0] + spans[0]:.0f}</text>'
    )
    return f'{axes}<path d="{line}"/>{dots}{labels}'
