"""Text that waits for a decision, with the place of every character in the original text."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from tts_worker.types import Span

UNIT = "\ufffc"
"""Stands for a replacement. The character is never in text: it is filtered."""
_NOT_ADJACENT = -2


class MappedText:
    """A growing text. Offsets are held for runs of characters that are adjacent in the original text.

    Its reader cuts off what is done. A character stands for one original character, and offsets increase; ``UNIT``
    stands for a replacement, in a run of its own.
    """

    def __init__(self) -> None:
        self.text = ""
        self._cut_chars = 0
        # Of every run the place and the original offset of its first character, and the replacement. Places count from
        # the first character ever, so that a cut changes none.
        self._places: list[int] = []
        self._starts: list[int] = []
        self._units: list[Span | None] = []
        self._end = _NOT_ADJACENT  # original offset at which text continues the last run

    @property
    def length(self) -> int:
        """Number of characters ever appended."""
        return self._cut_chars + len(self.text)

    def append(self, text: str, start: int) -> None:
        """Append original characters that begin at ``start`` in the original text."""
        if start != self._end:
            self._places.append(self._cut_chars + len(self.text))
            self._starts.append(start)
            self._units.append(None)
        self._end = start + len(text)
        self.text += text

    def append_unit(self, replacement: Span) -> None:
        self._end = _NOT_ADJACENT
        self.append(UNIT, replacement.start)
        self._units[-1] = replacement
        self._end = _NOT_ADJACENT

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
        places = self._places
        end = self._cut_chars + length
        count = bisect_left(places, end)  # runs that begin before
        unit = self._units[count - 1]
        offset = self._starts[count - 1] + end - places[count - 1] if unit is None else unit.end
        self._cut_chars = end
        self.text = self.text[length:]
        if not self.text:
            self._end = _NOT_ADJACENT
        elif count == len(places) or places[count] > end:
            count -= 1  # the last of these runs goes on
        del places[:count], self._starts[:count], self._units[:count]
        return offset

    def offset(self, place: int) -> int:
        """Return the original offset of the character at ``place``."""
        return self.spans(place, place + 1)[0].start

    def end_of(self, place: int) -> int:
        """Return the original offset after the character at ``place``."""
        return self.spans(place, place + 1)[0].end

    def replacement(self, place: int) -> Span:
        """Return the replacement that the ``UNIT`` at ``place`` stands for."""
        unit = self._units[bisect_right(self._places, self._cut_chars + place) - 1]
        assert unit is not None
        return unit

    def spans(self, first: int, last: int) -> list[Span]:
        """Divide ``[first, last)``, at least one character, into runs of adjacent characters, and replacements."""
        text = self.text
        cut = self._cut_chars
        places = self._places
        number = bisect_right(places, cut + first) if first else 1
        count = bisect_left(places, cut + last)
        start = self._starts[number - 1] + cut + first - places[number - 1]
        if number == count and self._units[number - 1] is None:
            return [Span(text[first:last], start, start + last - first)]
        begins = [first, *[place - cut for place in places[number:count]]]
        starts = [start, *self._starts[number:count]]
        runs = zip(begins, [*begins[1:], last], starts, self._units[number - 1 : count], strict=True)
        return [unit or Span(text[begin:end], start, start + end - begin) for begin, end, start, unit in runs]
