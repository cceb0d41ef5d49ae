"""Reads a text in every way it can be cut in two, for tests of the pipeline."""

from __future__ import annotations

from itertools import pairwise

from tts_worker.text.options import TextOptions
from tts_worker.text.pipeline import TextPipeline
from tts_worker.types import Boundary, Segment


def read(text: str, options: TextOptions | None = None, size: int = 0) -> list[Segment]:
    """Return the segments of ``text`` in deltas of ``size`` characters; 0 takes it whole."""
    pipeline = TextPipeline(options)
    deltas = [text[place : place + size] for place in range(0, len(text), size)] if size else [text]
    segments = [segment for delta in deltas for segment in pipeline.feed(delta)] + pipeline.end()
    assert pipeline.source == text
    return segments


def read_cut_anywhere(text: str, options: TextOptions | None = None) -> list[Segment]:
    """Return the segments of ``text``; a cut at any character must not change them, and their ranges tile it."""
    whole = read(text, options)
    assert read(text, options, size=1) == whole
    for place in range(1, len(text)):
        pipeline = TextPipeline(options)
        assert pipeline.feed(text[:place]) + pipeline.feed(text[place:]) + pipeline.end() == whole
    assert [segment.start for segment in whole] == [0, *(segment.end for segment in whole)][: len(whole)]
    for segment in whole:
        assert all(segment.start <= span.start < span.end <= segment.end for span in segment.spans)
        assert all(one.end <= two.start for one, two in pairwise(segment.spans))
    if whole and whole[-1].boundary is Boundary.END:
        assert whole[-1].end == len(text)
    return whole


def spoken(text: str, options: TextOptions | None = None) -> str:
    """Return what is read of ``text``, its segments separated by "|"."""
    return "|".join(segment.text for segment in read_cut_anywhere(text, options))
