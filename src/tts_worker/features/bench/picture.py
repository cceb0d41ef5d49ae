"""A picture of a capacity: audible first audio over the load, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from tts_worker.features.bench.capacity import Capacity, TrialResult

_WIDTH, _HEIGHT = 420, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 44, 48
_CEILING = 3
"""Of the bound: what is higher is drawn at the upper edge."""

_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#444}.title{font-weight:600;fill:#111}.axis{stroke:#bbb}"
    ".bound{stroke:#c2410c;stroke-dasharray:5 4}.pass{fill:#2563eb}.fail{fill:#fff;stroke:#c2410c;stroke-width:1.5}"
)


def draw(panels: Sequence[tuple[str, str, Capacity]], bound_ms: float) -> str:
    """Return an SVG document.

    Args:
        panels: Title, unit of the load, and the capacity.
        bound_ms: Limit of the 95th percentile, drawn as a line.
    """
    drawn = [_panel(index * _WIDTH, *panel, bound_ms) for index, panel in enumerate(panels)]
    width = _WIDTH * len(panels)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {_HEIGHT}" width="{width}" height="{_HEIGHT}" '
        f'role="img" aria-label="Audible first audio over the load"><style>{_STYLE}</style>'
        f'<rect width="{width}" height="{_HEIGHT}" fill="#fff"/>{"".join(drawn)}</svg>\n'
    )


def _panel(left: int, title: str, unit: str, capacity: Capacity, bound_ms: float) -> str:
    x0, x1, y0, y1 = left + _LEFT, left + _WIDTH - _RIGHT, _HEIGHT - _BOTTOM, _TOP
    most = max((trial.load for trial in capacity.trials), default=1.0)

    def y_of(milliseconds: float) -> float:
        return y0 - (y0 - y1) * min(milliseconds / (_CEILING * bound_ms), 1.0)

    def point(trial: TrialResult) -> str:
        high_ms = _CEILING * bound_ms if trial.first_audible_p95_ms is None else trial.first_audible_p95_ms
        state = "pass" if trial.problem is None else "fail"
        told = f"{trial.load:g} {unit}: {trial.problem or f'p95 {high_ms:.0f} ms'}"
        at = f'cx="{x0 + (x1 - x0) * trial.load / most:.1f}" cy="{y_of(high_ms):.1f}"'
        return f'<circle class="{state}" {at} r="4"><title>{escape(told)}</title></circle>'

    labels = [f'<text x="{x0 - 8}" y="{y_of(ms) + 4:.1f}" text-anchor="end">{ms:g}</text>' for ms in (0, bound_ms)]
    labels += [
        f'<text x="{x0 + (x1 - x0) * share:.1f}" y="{y0 + 18}" text-anchor="middle">{share * most:g}</text>'
        for share in (0.0, 0.5, 1.0)
    ]
    return (
        f'<text class="title" x="{x0}" y="20">{escape(title)}</text>'
        f'<text x="{x0}" y="36">audible first audio p95, ms; hollow: failed</text>'
        f'<path class="axis" fill="none" d="M{x0} {y1}V{y0}H{x1}"/>'
        f'<path class="bound" d="M{x0} {y_of(bound_ms):.1f}H{x1}"/>'
        f"{''.join(map(point, capacity.trials))}{''.join(labels)}"
        f'<text x="{x1}" y="{y0 + 36}" text-anchor="end">{escape(unit)}</text>'
    )
