"""A text source with one segment per word."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tts_worker.types import Boundary, Segment, Span


class WordText:
    """Splits segments at spaces. Their ranges tile the text; text without letters gives no segment."""

    def __init__(self) -> None:
        self.source = ""
        self._done = 0
        self._index = 0

    def feed(self, delta: str | bytes) -> list[Segment]:
        self.source += delta if isinstance(delta, str) else delta.decode()
        return self._cut(r"\w+\s+")

    def abandon(self, rest: Iterable[str | bytes]) -> None:
        for delta in rest:
            self.source += delta if isinstance(delta, str) else delta.decode()

    def flush(self) -> list[Segment]:
        return self._cut(r"\w+\s*")

    def flush_words(self) -> list[Segment]:
        return self._cut(r"\w+\s+")

    def end(self) -> list[Segment]:
        return self._cut(r"\w+\s*")

    def _cut(self, pattern: str) -> list[Segment]:
        segments = []
        for match in re.compile(pattern).finditer(self.source, self._done):
            word = match.group().rstrip()
            span = Span(word, match.start(), match.start() + len(word))
            segments.append(Segment(self._index, (span,), self._done, match.end(), Boundary.WORD))
            self._done = match.end()
            self._index += 1
        return segments
