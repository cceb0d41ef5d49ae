"""Text between two stages of the pipeline, with the place of every character in the original text."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

UNIT = "\ufffc"
"""Stands for a replacement. The character is never in text: it is filtered."""

_AFTER_ANY = float("inf")


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

    __slots__ = ("_cut_chars", "_runs", "text")

    def __init__(self) -> None:
        self.text = ""
        self._cut_chars = 0  # characters that were cut off; runs count places from the first character ever
        # place of the first character, shift from there to original offsets, replacement
        self._runs: list[tuple[int, int, Replacement | None]] = []

    @property
    def total(self) -> int:
        """Characters so far, with those that were cut off."""
        return self._cut_chars + len(self.text)

    def append(self, text: str, start: int) -> None:
        """Append a run of original characters that begins at ``start`` in the original text."""
        runs = self._runs
        place = self._cut_chars + len(self.text)
        if not runs or runs[-1][1] != start - place or runs[-1][2] is not None:
            runs.append((place, start - place, None))
        self.text += text

    def append_unit(self, replacement: Replacement) -> None:
        place = self._cut_chars + len(self.text)
        self._runs.append((place, replacement.start - place, replacement))
        self.text += UNIT

    def extend(self, source: MappedText, first: int, last: int) -> None:
        """Append the characters ``[first, last)`` of ``source``."""
        if first >= last:
            return
        runs = source._runs
        begin = source._cut_chars + first
        move = self._cut_chars + len(self.text) - begin  # from a place there to the place here
        number = bisect_right(runs, (begin, _AFTER_ANY)) - 1 if len(runs) > 1 else 0
        _, shift, unit = runs[number]
        if not self._runs or self._runs[-1][1] != shift - move or unit is not None or self._runs[-1][2] is not None:
            self._runs.append((begin + move, shift - move, unit))
        end = source._cut_chars + last
        for place, shift, unit in runs[number + 1 :]:
            if place >= end:
                break
            self._runs.append((place + move, shift - move, unit))
        self.text += source.text[first:last]

    def cut(self, place: int) -> None:
        """Remove the characters before ``place``."""
        self.text = self.text[place:]
        self._cut_chars += place
        if not self.text:
            self._runs.clear()
        elif len(self._runs) > 1:
            del self._runs[: self._run(0)]

    def offset(self, place: int) -> int:
        """Return the original offset of the character at ``place``."""
        return self._cut_chars + place + self._runs[self._run(place)][1]

    def end_of(self, place: int) -> int:
        """Return the original offset after the character at ``place``."""
        _, shift, unit = self._runs[self._run(place)]
        return self._cut_chars + place + shift + 1 if unit is None else unit.end

    def replacement(self, place: int) -> Replacement:
        """Return the replacement that the ``UNIT`` at ``place`` stands for."""
        found = self._runs[self._run(place)][2]
        assert found is not None
        return found

    def pieces(self, first: int, last: int) -> list[tuple[str, int, Replacement | None]]:
        """Divide ``[first, last)`` into runs of adjacent original characters, and replacements."""
        found: list[tuple[str, int, Replacement | None]] = []
        number = self._run(first)
        while first < last:
            _, shift, unit = self._runs[number]
            number += 1
            end = min(last, self._runs[number][0] - self._cut_chars) if number < len(self._runs) else last
            found.append((self.text[first:end], self._cut_chars + first + shift, unit))
            first = end
        return found

    def _run(self, place: int) -> int:
        return bisect_right(self._runs, (self._cut_chars + place, _AFTER_ANY)) - 1 if len(self._runs) > 1 else 0
