"""The benchmark of the text pipeline."""

from __future__ import annotations

from pathlib import Path

import tts_worker
from tools.bench.text import compare_text


def test_versions_of_the_text_pipeline_are_compared() -> None:
    source = str(Path(tts_worker.__file__).parents[1])
    figures = compare_text(500, 1, {"this": source, "baseline": source})
    assert figures["this"].keys() == figures["baseline"].keys()
    assert all(0 < value < 1000 for runs in figures.values() for value in runs.values())
