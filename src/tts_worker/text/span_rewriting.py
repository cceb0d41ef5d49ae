"""Replaces ranges of a segment's text and keeps the source range of every word."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import groupby

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


def rewrite_spans(spans: Sequence[Span], rewrites: Iterable[Rewrite]) -> list[Span]:
    """Return ``spans`` with ranges of their joined text replaced.

    A range over several spans puts its text into the first. Spans with phonemes stay unchanged.

    Args:
        spans: The spans of a segment, or some of them.
        rewrites: Disjoint, not empty, in order.
    """
    waiting = list(rewrites)[::-1]
    result: list[Span] = []
    first = 0  # of the current span
    for span in spans:
        last = first + len(span.text)
        parts: list[Span] = []
        done = first
        while waiting and waiting[-1][0] < last:
            start, end, text = waiting.pop()
            if end > last:
                waiting.append((last, end, ""))
                end = last
            parts += [
                Span(span.text[done - first : start - first], span.start + done - first, span.start + start - first),
                Span(text, span.start + start - first, span.start + end - first),
            ]
            done = end
        if span.phonemes is not None or not parts:
            result.append(span)
        else:
            parts.append(Span(span.text[done - first :], span.start + done - first, span.end))
            result += parts if is_plain(span) else [Span("".join(part.text for part in parts), span.start, span.end)]
        first = last
    return _merge_plain(span for span in result if span.text)


def _merge_plain(spans: Iterable[Span]) -> list[Span]:
    """Merge neighboring plain spans."""
    joined: list[Span] = []
    for span in spans:
        last = joined[-1] if joined else None
        if last is not None and is_plain(last) and is_plain(span) and last.end == span.start:
            joined[-1] = Span(last.text + span.text, last.start, span.end)
        else:
            joined.append(span)
    return joined
