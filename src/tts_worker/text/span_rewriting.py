"""Replaces ranges of a segment's text and keeps the source range of every word."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from tts_worker.text.mapped_text import MappedText
from tts_worker.types import Segment, Span

Rewrite = tuple[int, int, str]
"""Range of the text and what is spoken instead."""


def is_plain(span: Span) -> bool:
    """Return whether ``span`` is original text, one offset per character."""
    return span.phonemes is None and len(span.text) == span.end - span.start


def rewrite_plain(segment: Segment, find: Callable[[str], list[Rewrite]]) -> Segment:
    """Return ``segment`` with its original text rewritten; replacements, as of the lexicon, stay unchanged.

    Args:
        segment: The segment.
        find: Returns the rewrites of a text between replacements.
    """
    result: list[Span] = []
    for plain, group in groupby(segment.spans, is_plain):
        spans = list(group)
        rewrites = find("".join(span.text for span in spans)) if plain else []
        result += rewrite_spans(spans, rewrites) if rewrites else spans
    return replace(segment, spans=tuple(result))


def rewrite_spans(spans: Iterable[Span], rewrites: Iterable[Rewrite]) -> list[Span]:
    """Return ``spans`` with ranges of their joined text replaced. Spans with phonemes stay unchanged.

    Args:
        spans: The spans of a segment, or some of them.
        rewrites: Disjoint, not empty, in order.
    """
    result = MappedText()
    for span, inside in clipped(spans, list(rewrites)):
        parts = _rewritten(span, inside) if span.phonemes is None else [span]
        if not is_plain(span):
            parts = [span._replace(text="".join(part.text for part in parts))]
        for part in parts:
            if is_plain(part):
                result.append(part.text, part.start)
            elif part.text:
                result.append_unit(part)
    return result.spans(0, len(result.text))


def clipped(spans: Iterable[Span], rewrites: Sequence[Rewrite]) -> Iterator[tuple[Span, list[Rewrite]]]:
    """Yield each span with the rewrites of its text. One over several spans puts what is spoken into the first."""
    first = 0
    for span in spans:
        last = first + len(span.text)
        yield (
            span,
            [
                (max(start, first) - first, min(end, last) - first, spoken if start >= first else "")
                for start, end, spoken in rewrites
                if start < last and end > first
            ],
        )
        first = last


def _rewritten(span: Span, rewrites: Iterable[Rewrite]) -> list[Span]:
    """Divide a span into what is rewritten and what is not."""
    text, start, end, _ = span
    parts: list[Span] = []
    done = 0
    for first, last, spoken in rewrites:
        parts += [Span(text[done:first], start + done, start + first), Span(spoken, start + first, start + last)]
        done = last
    return [*parts, Span(text[done:], start + done, end)]
