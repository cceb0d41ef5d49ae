"""Text between two stages of the pipeline, with the place of every character in the original text."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

UNIT = "\ufffc"
"""Stands for a replacement. The character is never in text: it is filtered."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """What is spoken instead of the original characters ``[start, end)``; one unit, never split."""

    text: str
    start: int
    end: int
    phonemes: str | None = None


class MappedText:
    """A growing text. Offsets are held for runs of characters that are adjacent in the original text.

    Every stage consumes one: the stage before it appends, the stage reads and then cuts off what is done. A character
    stands for one original character, and offsets increase; ``UNIT`` stands for a replacement, in a run of its own.
    """

    __slots__ = ("_cut_chars", "_shifts", "_starts", "_units", "text")

    def __init__(self) -> None:
        self.text = ""
        self._cut_chars = 0  # characters that were cut off; runs count places from the first character ever
        # of each run: the place of its first character, the shift from places to original offsets, its replacement
        self._starts: list[int] = []
        self._shifts: list[int] = []
        self._units: list[Replacement | None] = []

    def append(self, text: str, start: int, unit: Replacement | None = None) -> None:
        """Append original characters that begin at ``start`` in the original text, or ``UNIT``."""
        place = self._cut_chars + len(self.text)
        units = self._units
        if unit is not None or not units or self._shifts[-1] != start - place or units[-1] is not None:
            self._starts.append(place)
            self._shifts.append(start - place)
            units.append(unit)
        self.text += text

    def append_unit(self, replacement: Replacement) -> None:
        self.append(UNIT, replacement.start, replacement)

    def extend(self, source: MappedText, first: int, last: int) -> None:
        """Append the characters ``[first, last)`` of ``source``."""
        if first < last and len(source._starts) == 1 and source._units[0] is None:
            self.append(source.text[first:last], source._cut_chars + first + source._shifts[0])
            return
        for text, start, unit in source.pieces(first, last):
            self.append(text, start, unit)

    def cut(self, place: int) -> None:
        """Remove the characters before ``place``."""
        self.text = self.text[place:]
        self._cut_chars += place
        done = self._run(0) if self.text else len(self._starts)
        if done:
            del self._starts[:done], self._shifts[:done], self._units[:done]

    def offset(self, place: int) -> int:
        """Return the original offset of the character at ``place``."""
        shifts = self._shifts
        return self._cut_chars + place + (shifts[0] if len(shifts) == 1 else shifts[self._run(place)])

    def end_of(self, place: int) -> int:
        """Return the original offset after the character at ``place``."""
        unit = self._units[self._run(place)]
        return self.offset(place) + 1 if unit is None else unit.end

    def replacement(self, place: int) -> Replacement:
        """Return the replacement that the ``UNIT`` at ``place`` stands for."""
        found = self._units[self._run(place)]
        assert found is not None
        return found

    def pieces(self, first: int, last: int) -> list[tuple[str, int, Replacement | None]]:
        """Divide ``[first, last)`` into runs of adjacent original characters, and replacements."""
        found: list[tuple[str, int, Replacement | None]] = []
        cut = self._cut_chars
        starts = self._starts
        number = self._run(first) if first < last else 0
        while first < last:
            shift = self._shifts[number]
            unit = self._units[number]
            number += 1
            end = min(last, starts[number] - cut) if number < len(starts) else last
            found.append((self.text[first:end], cut + first + shift, unit))
            first = end
        return found

    def _run(self, place: int) -> int:
        return bisect_right(self._starts, self._cut_chars + place) - 1 if len(self._starts) > 1 else 0
