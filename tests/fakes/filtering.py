"""Filters a whole text, for tests of the filter by itself."""

from __future__ import annotations

from tts_worker.text.expression import ExpressionTrack
from tts_worker.text.filter import TextFilter
from tts_worker.text.options import TextOptions
from tts_worker.text.readable import ReadableText
from tts_worker.types import UrlMode


def filter_text(text: str, *, markdown: bool = True, urls: UrlMode = UrlMode.DROP) -> list[tuple[str, int]]:
    """Filter a whole text; return the characters that are read, each with its offset in ``text``."""
    out = ReadableText()
    stage = TextFilter(out, TextOptions(markdown=markdown, urls=urls), {}, ExpressionTrack())
    if text:
        stage.push(text, 0)
    stage.settle()
    return [(span.text, span.start) for span in map(out.span_at, range(len(out.text)))]
