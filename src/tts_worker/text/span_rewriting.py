"""Replaces ranges of a segment's text and keeps the source range of every word."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

from tts_worker.text.mapped_text import MappedText
from tts_worker.types import Span

Rewrite = tuple[int, int, str]
"""Range of the text and what is spoken instead."""


def is_plain(span: Span) -> bool:
    """Return whether ``span`` is original text, one offset per character."""
    return span.phonemes is None and len(span.text) == span.end - span.start


def rewrite_plain(spans: Iterable[Span], find: Callable[[str], list[Rewrite]]) -> tuple[Span, ...]:
    """Return spans with their original text rewritten; replacements, as of the lexicon, stay unchanged.

    Args:
        spans: The spans of a segment.
        find: Returns the rewrites of a text between replacements.
    """
    result: list[Span] = []
    for plain, group in groupby(spans, is_plain):
        alike = list(group)
        rewrites = find("".join(span.text for span in alike)) if plain else []
        result += rewrite_spans(alike, rewrites) if rewrites else alike
    return tuple(result)


def rewrite_spans(spans: Iterable[Span], rewrites: Iterable[Rewrite]) -> list[Span]:
    """Return ``spans`` with ranges of their joined text replaced. Spans with phonemes stay unchanged.

    Args:
        spans: The spans of a segment, or some of them.
        rewrites: Disjoint, not empty, in order.
    """
    result = MappedText()
    for span, inside in clipped(spans, list(rewrites)):
        if not inside or span.phonemes is not None:
            _add(result, span)
        elif is_plain(span):
            _add_rewritten(result, span, inside)
        else:
            parts = MappedText()
            _add_rewritten(parts, span, inside)
            _add(result, span._replace(text="".join(part.text for part in parts.spans(0, len(parts.text)))))
    return result.spans(0, len(result.text))


def clipped(spans: Iterable[Span], rewrites: Sequence[Rewrite]) -> Iterator[tuple[Span, Sequence[Rewrite]]]:
    """Yield each span with the rewrites of its text. One over several spans puts what is spoken into the first."""
    first = 0
    for span in spans:
        last = first + len(span.text)
        inside = rewrites
        if first or (rewrites and rewrites[-1][1] > last):  # not all are, as in most segments
            inside = [
                (max(start, first) - first, min(end, last) - first, spoken if start >= first else "")
                for start, end, spoken in rewrites
                if start < last and end > first
            ]
        yield span, inside
        first = last


def _add_rewritten(out: MappedText, span: Span, rewrites: Iterable[Rewrite]) -> None:
    """Append what is rewritten of a span, and what is not."""
    text, start = span.text, span.start
    done = 0
    for first, last, spoken in rewrites:
        out.append(text[done:first], start + done)
        _add(out, Span(spoken, start + first, start + last))
        done = last
    out.append(text[done:], start + done)


def _add(out: MappedText, span: Span) -> None:
    if is_plain(span):
        out.append(span.text, span.start)
    elif span.text:
        out.append_unit(span)
