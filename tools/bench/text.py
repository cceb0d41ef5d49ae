"""Cost of the text pipeline: processor time per character, for whole texts and for deltas of four characters.

Also of reading, which writes numbers and signs in words, of the rules for Chinese and English of CosyVoice's front end,
and of wetext, if it is installed, on text with numbers.

Another version of the package is measured in turn with this one, each in processes of its own. The processors of a
machine do not always run at the same speed, so only figures of the same run are comparable.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

from tts_worker.errors import MissingExtra

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
_NUMBERS = (
    "Flight UA1187 leaves at 6:05 a.m. PST on 11/23/2026, and the ticket is $1,249.99 plus 8.25% tax. Take .5 mg "
    "every 6-8 hrs; call +1 (415) 555-2671 if it is above 38,5 °C. Version 2.10.3 is 2/3 done, and 12 * 8 = 96. "
)
_CHINESE = (
    "你好！今天是2024年5月1日，气温23.5℃，湿度60%。我们10:30出发（大约3小时），走了3,500米——很远。"
    "他的iPhone 15花了9999元，请拨打400-800-8888。第3章讲的是GPU，面积是50m²，明天下午2点见。"
)
NUMBERS = {"english": ("en", _PROSE), "chinese": ("zh", _CHINESE)}
WETEXT_CHARS = 2_000
"""Longer text makes wetext slow and shows no more."""

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
    return figures | _measure_reading(chars) | _measure_front_end(chars)


def _measure_reading(chars: int) -> dict[str, float]:
    """Return microseconds per character that it takes to write the segments of a text in words, English and Chinese."""
    from tts_worker.text.pipeline import TextPipeline

    figures: dict[str, float] = {}
    for name, sample in {**TEXTS, "numbers": _NUMBERS, "chinese": _CHINESE}.items():
        pipeline = TextPipeline()
        segments = [*pipeline.feed(sample * max(1, chars // len(sample))), *pipeline.end()]
        verbalize = _verbalizer(["zh"] if name == "chinese" else ["en"])
        if verbalize is None:
            continue
        began_s = process_time()
        for segment in segments:
            verbalize(segment)
        figures[f"{name}_reading_us_per_char"] = 1e6 * (process_time() - began_s) / segments[-1].end
    return figures


def _verbalizer(languages: list[str]) -> Callable[[Any], Any] | None:
    """Return what reads segments; None for a version of the package that reads no such language."""
    try:
        from tts_worker.text.reading.verbalizer import Verbalizer
    except ImportError:  # a version with rules for English only
        try:
            forms = import_module("tts_worker.text.spoken_forms").spoken_forms(languages, None)
        except ImportError:
            return None
        return None if forms is None else forms.apply
    return Verbalizer(languages).apply


def _measure_front_end(chars: int) -> dict[str, float]:
    """Return microseconds per character of the segments; nothing for a version without these rules."""
    try:
        from tts_worker.front_end.normalizer import load_normalizer, normalize_segment
        from tts_worker.front_end.rules import FrontEnd
        from tts_worker.text.pipeline import TextPipeline
    except ImportError:
        return {}
    figures: dict[str, float] = {}
    for name, (language, sample) in NUMBERS.items():
        pipeline = TextPipeline()
        segments = [*pipeline.feed(sample * max(1, chars // len(sample))), *pipeline.end()]
        front_end = FrontEnd(("zh", "en"))
        began_s = process_time()
        for segment in segments:
            front_end.apply(segment, front_end.detect(segment.text))
        figures[f"{name}_rules_us_per_char"] = 1e6 * (process_time() - began_s) / segments[-1].end
        try:
            normalize = load_normalizer()
        except MissingExtra:
            continue
        normalize("1", language)  # loads the rules
        few = [segment for segment in segments if segment.end <= max(WETEXT_CHARS, segments[0].end)]
        began_s = process_time()
        for segment in few:
            normalize_segment(segment, normalize, language)
        figures[f"{name}_wetext_us_per_char"] = 1e6 * (process_time() - began_s) / few[-1].end
    return figures


def compare_text(
    chars: int, repeats: int, sources: dict[str, str], track: Callable[[range], Iterable[int]] = iter
) -> dict[str, dict[str, float]]:
    """Measure several versions in turn and return the medians of each.

    Args:
        chars: Length of a text.
        repeats: Measurements of each version.
        sources: Name of a version -> folder that contains its package.
        track: Yields the repeats, and may show how many are done.
    """
    found: dict[str, list[dict[str, float]]] = {name: [] for name in sources}
    for _ in track(range(repeats)):
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
