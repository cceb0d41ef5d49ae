"""Cost of the text pipeline: processor time per character, for whole texts and for deltas of four characters.

Another version of the package is measured in turn with this one, each in processes of its own. The processors of a
machine do not always run at the same speed, so only figures of the same run are comparable.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import process_time

DELTA_CHARS = 4
"""A delta of this size is about one token of a language model."""

_PROSE = (
    "The morning train was late again, so we walked along the river and talked about the summer. Your order has been "
    "shipped, and it should arrive on Thursday; probably before noon. Dr. Smith paid $12.50 at 10:30 a.m. for two "
    "books (a gift), didn't he? I checked three hotels near the station, and the smallest one still has a room. "
)
_MARKDOWN = (
    "## Three hotels\n\nHere is **what I found** near the station, see [the map](https://example.com/map?x=1):\n\n"
    "- *Hotel Astra*: a quiet place, 120 euros a night\n- `Boxhotel`: cheap, but small\n1. The rest is full.\n\n"
    "| Name | Price |\n|---|---|\n| Astra | 120 |\n\nShould I **book** one? \U0001f60a Visit www.example.org & ask.\n"
)
TEXTS = {"prose": _PROSE, "markdown": _MARKDOWN}


def measure_text(chars: int) -> dict[str, float]:
    """Return microseconds per character of each text, whole and in deltas; texts have about ``chars`` characters."""
    from tts_worker.text.pipeline import TextPipeline

    figures: dict[str, float] = {}
    for name, sample in TEXTS.items():
        text = sample * max(1, chars // len(sample))
        for way, size in (("whole", len(text)), (f"deltas_of_{DELTA_CHARS}", DELTA_CHARS)):
            deltas = [text[place : place + size] for place in range(0, len(text), size)]
            pipeline = TextPipeline()
            began_s = process_time()
            for delta in deltas:
                pipeline.feed(delta)
            pipeline.end()
            figures[f"{name}_{way}_us_per_char"] = 1e6 * (process_time() - began_s) / len(text)
    return figures


def compare_text(chars: int, repeats: int, sources: dict[str, str]) -> dict[str, dict[str, float]]:
    """Measure several versions in turn and return the medians of each.

    Args:
        chars: Length of a text.
        repeats: Measurements of each version.
        sources: Name of a version -> folder that contains its package.
    """
    found: dict[str, list[dict[str, float]]] = {name: [] for name in sources}
    for _ in range(repeats):
        for name, source in sources.items():
            found[name].append(_measure_source(source, chars))
    return {name: {key: round(median(run[key] for run in runs), 2) for key in runs[0]} for name, runs in found.items()}


def _measure_source(source: str, chars: int) -> dict[str, float]:
    code = (
        "import json, runpy, sys; sys.path.insert(0, sys.argv[1]); "
        "print(json.dumps(runpy.run_path(sys.argv[2])['measure_text'](int(sys.argv[3]))))"
    )
    command = [sys.executable, "-c", code, source, str(Path(__file__)), str(chars)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures
