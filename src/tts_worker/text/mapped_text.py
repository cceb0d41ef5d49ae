"""Text between two stages of the pipeline, with the place of every character in the original text."""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter

from tts_worker.types import Span

UNIT = "\ufffc"
"""Stands for a replacement. The character is never in text: it is filtered."""
_NOT_ADJACENT = -2
_BEGIN = itemgetter(0)


class MappedText:
    """A growing text. Offsets are held for runs of characters that are adjacent in the original text.

    Every stage consumes one: the stage before it appends, the stage reads and then cuts off what is done. A character
    stands for one original character, and offsets increase; ``UNIT`` stands for a replacement, in a run of its own.
    """

    __slots__ = ("_cut_chars", "_end", "_runs", "_shift", "text")

    def __init__(self) -> None:
        self.text = ""
        self._end = _NOT_ADJACENT  # original offset at which text continues the last run
        self._shift = 0  # from places to original offsets, if all text is one run
        # If not: of each run the place of its first character, its shift, its replacement. These places count from the
        # first character ever, so that a cut changes none.
        self._runs: list[tuple[int, int, Span | None]] = []
        self._cut_chars = 0

    def append(self, text: str, start: int) -> None:
        """Append original characters that begin at ``start`` in the original text."""
        if start != self._end:
            if self.text:
                self._begin_run(start)
            else:
                self._shift = start
        self._end = start + len(text)
        self.text += text

    def append_unit(self, replacement: Span) -> None:
        self._begin_run(replacement.start, replacement)
        self._end = _NOT_ADJACENT
        self.text += UNIT

    def _begin_run(self, start: int, unit: Span | None = None) -> None:
        cut = self._cut_chars
        if self.text and not self._runs:
            self._runs.append((cut, self._shift - cut, None))
        place = cut + len(self.text)
        self._runs.append((place, start - place, unit))

    @property
    def length(self) -> int:
        """Number of characters ever appended."""
        return self._cut_chars + len(self.text)

    def extend(self, source: MappedText, first: int, last: int) -> None:
        """Append the characters ``[first, last)`` of ``source``."""
        if not source._runs:
            self.append(source.text[first:last], first + source._shift)
            return
        for text, start, unit in source.pieces(first, last):
            if unit is None:
                self.append(text, start)
            else:
                self.append_unit(unit)

    def cut(self, place: int) -> None:
        """Remove the characters before ``place``."""
        self.text = self.text[place:]
        self._cut_chars += place
        self._shift += place
        if self._runs:
            del self._runs[: self._run(0)]
            _, shift, unit = self._runs[0]
            if len(self._runs) == 1 and (unit is None or not self.text):
                self._shift = self._cut_chars + shift
                self._runs.clear()

    def offset(self, place: int) -> int:
        """Return the original offset of the character at ``place``."""
        return place + (self._cut_chars + self._runs[self._run(place)][1] if self._runs else self._shift)

    def end_of(self, place: int) -> int:
        """Return the original offset after the character at ``place``."""
        unit = self._runs[self._run(place)][2] if self._runs else None
        return self.offset(place) + 1 if unit is None else unit.end

    def replacement(self, place: int) -> Span:
        """Return the replacement that the ``UNIT`` at ``place`` stands for."""
        unit = self._runs[self._run(place)][2]
        assert unit is not None
        return unit

    def pieces(self, first: int, last: int) -> list[tuple[str, int, Span | None]]:
        """Divide ``[first, last)`` into runs of adjacent original characters, and replacements."""
        text = self.text
        if not self._runs:
            return [(text[first:last], first + self._shift, None)] if first < last else []
        found: list[tuple[str, int, Span | None]] = []
        cut = self._cut_chars
        number = self._run(first)
        while first < last:
            _, shift, unit = self._runs[number]
            number += 1
            end = min(last, self._runs[number][0] - cut) if number < len(self._runs) else last
            found.append((text[first:end], cut + first + shift, unit))
            first = end
        return found

    def _run(self, place: int) -> int:
        return bisect_right(self._runs, self._cut_chars + place, key=_BEGIN) - 1
