"""Text that waits for a decision, with the place of every character in the original text."""

from __future__ import annotations

from bisect import bisect_left

from tts_worker.types import Span

UNIT = "\ufffc"
"""Stands for a replacement. The character is never in text: it is filtered."""
_NOT_ADJACENT = -2
_new = tuple.__new__  # makes a span in half the time


class MappedText:
    """A growing text. Offsets are held for runs of characters that are adjacent in the original text.

    Its reader cuts off what is done. A character stands for one original character, and offsets increase; ``UNIT``
    stands for a replacement, in a separate run.
    """

    def __init__(self) -> None:
        self.text = ""
        self._cut_chars = 0
        # Of every run the place and the original offset of its first character, and the replacement. Places count from
        # the first character ever, so that a cut changes none.
        self._runs: list[tuple[int, int, Span | None]] = []
        self._end = _NOT_ADJACENT  # original offset at which text continues the last run

    def append(self, text: str, start: int) -> None:
        """Append original characters that begin at ``start`` in the original text."""
        if not text:
            return
        if start != self._end:
            self._runs.append((self._cut_chars + len(self.text), start, None))
        self._end = start + len(text)
        self.text += text

    def append_unit(self, replacement: Span) -> None:
        self._runs.append((self._cut_chars + len(self.text), replacement.start, replacement))
        self._end = _NOT_ADJACENT
        self.text += UNIT

    def extend(self, source: MappedText, first: int, last: int) -> None:
        """Append the characters ``[first, last)`` of ``source``."""
        for span in source.spans(first, last):
            if source.text[first] == UNIT:
                self.append_unit(span)
                first += 1
            else:
                self.append(span.text, span.start)
                first += len(span.text)

    def cut(self, length: int) -> int:
        """Remove the first ``length`` characters, at least one; return the original offset after them."""
        runs = self._runs
        self._cut_chars = end = self._cut_chars + length
        self.text = self.text[length:]
        if self.text and len(runs) == 1:  # as for most text
            return end + runs[0][1] - runs[0][0]
        count = bisect_left(runs, (end,)) if self.text else len(runs)  # runs that begin before
        place, start, unit = runs[count - 1]
        if not self.text:
            self._end = _NOT_ADJACENT
        elif count == len(runs) or runs[count][0] > end:
            count -= 1  # the last of these runs goes on
        del runs[:count]
        return start + end - place if unit is None else unit.end

    @property
    def shift(self) -> int | None:
        """From places to original offsets; None if not all characters are adjacent."""
        runs = self._runs
        return runs[0][1] - runs[0][0] + self._cut_chars if len(runs) == 1 else None

    def offset(self, place: int) -> int:
        """Return the original offset of the character at ``place``."""
        return self.span_at(place).start

    def span_at(self, place: int) -> Span:
        """Return the character at ``place``, or the replacement that a ``UNIT`` there stands for."""
        return self.spans(place, place + 1)[0]

    def spans(self, first: int, last: int) -> list[Span]:
        """Divide ``[first, last)``, at least one character, into runs of adjacent characters, and replacements."""
        text = self.text
        cut = self._cut_chars
        runs = self._runs
        number = bisect_left(runs, (cut + first + 1,)) if first else 1
        found: list[Span] = []
        while first < last:
            place, start, unit = runs[number - 1]
            end = min(last, runs[number][0] - cut) if number < len(runs) else last
            start += cut + first - place
            found.append(unit or _new(Span, (text[first:end], start, start + end - first, None)))
            first = end
            number += 1
        return found
