"""Leaves out of a segment what its voice cannot speak, and names it.

That are the letters of scripts in which none of the voice's languages is written. Digits and marks beside them stay, as
do Latin letters, which every voice reads, and what the lexicon gives phonemes for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from tts_worker.text.language import foreign_runs
from tts_worker.text.span_rewriting import Rewrite, clipped, is_plain, rewrite_spans
from tts_worker.types import Segment, Skipped, Span, omissions


def skip_foreign(segment: Segment, languages: Sequence[str]) -> Segment:
    """Return ``segment`` without the text that a voice cannot speak; without spans if nothing is left to speak.

    Args:
        segment: The segment, with numbers and signs written out.
        languages: Languages that the voice reads; "mul" or none means any.
    """
    text = "".join(span.text if span.phonemes is None else "x" * len(span.text) for span in segment.spans)
    runs = foreign_runs(text, languages)
    if not runs:
        return segment
    spans = rewrite_spans(segment.spans, omissions(text, runs))
    has_speech = any(span.phonemes is not None or any(map(str.isalnum, span.text)) for span in spans)
    skipped = tuple(Skipped(start, end) for start, end in _source_ranges(segment.spans, [(*run, "") for run in runs]))
    return replace(segment, spans=tuple(spans) if has_speech else (), skipped=skipped)


def _source_ranges(spans: Iterable[Span], left_out: Sequence[Rewrite]) -> Iterator[tuple[int, int]]:
    """Yield the original characters of what is left out; of a replacement, if no other letters stand for them."""
    for span, inside in clipped(spans, left_out):
        if not is_plain(span):
            if inside and sum(end - start for start, end, _ in inside) >= sum(map(str.isalnum, span.text)):
                yield span.start, span.end
            continue
        for start, end, _ in inside:
            part = span.text[start:end]
            start += len(part) - len(part.lstrip())
            end -= len(part) - len(part.rstrip())
            if start < end:
                yield span.start + start, span.start + end
