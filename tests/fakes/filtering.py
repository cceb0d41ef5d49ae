"""Filters a whole text, for tests of the filter by itself."""

from __future__ import annotations

from tts_worker.text.filter import TextFilter
from tts_worker.text.mapped_text import MappedText
from tts_worker.types import UrlMode


def filter_text(text: str, *, markdown: bool = True, urls: UrlMode = UrlMode.DROP) -> list[tuple[str, int]]:
    """Filter a whole text; return the characters that are read, each with its offset in ``text``."""
    out = MappedText()
    stage = TextFilter(out, markdown=markdown, urls=urls)
    if text:
        stage.push(text, 0)
    stage.settle()
    return [
        (replacement.text if replacement else char, index)
        for run, start, replacement in out.pieces(0, len(out.text))
        for index, char in enumerate(run, start)
    ]
