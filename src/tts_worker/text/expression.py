"""How the spans of a text are spoken: what markup changes, by the original offset at which it does.

Source: SSML 1.1, sections 3.2.2 (emphasis) and 3.2.4 (prosody).
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import replace

from tts_worker.text.tables import rows
from tts_worker.types import NEUTRAL, Expression, Segment

_MAX_DEPTH = 16
_RATES = (0.25, 4.0)
_MAX_DB = 12.0
_MIN_DB = -60.0
_MAX_SEMITONES = 12.0
_NAMED = {(element, attribute, value): float(change) for element, attribute, value, change in rows("expressions")}
_NUMBER = re.compile(r"(?P<sign>[+-]?)(?P<number>\d{1,4}(?:\.\d{1,4})?)(?P<unit>%|db|st|)", re.IGNORECASE)


class ExpressionTrack:
    """Follows the open elements of a text and the changes that they make.

    Attributes:
        is_used: Whether the text has changed its expression.
    """

    def __init__(self) -> None:
        self.is_used = False
        self._open: list[tuple[str, Expression]] = []
        self._changes: deque[tuple[int, Expression]] = deque()  # not in a segment so far
        self._last = NEUTRAL  # of the last segment

    def read_tag(self, name: str, values: Mapping[str, str], at: int, *, is_closing: bool) -> None:
        """Read an opening or closing tag that begins at the offset ``at``; others than those of SSML change nothing.

        A closing tag closes the elements inside of it, too. An element that is not closed lasts to the end.
        """
        if name not in ("prosody", "emphasis"):
            return
        if not is_closing:
            if len(self._open) < _MAX_DEPTH:
                inner = prosody(values) if name == "prosody" else emphasis(values)
                self._open.append((name, bounded(inner.within(self._current))))
        elif (depth := next((d for d in reversed(range(len(self._open))) if self._open[d][0] == name), None)) is None:
            return
        else:
            del self._open[depth:]
        self._changes.append((at, self._current))
        self.is_used = True

    @property
    def _current(self) -> Expression:
        return self._open[-1][1] if self._open else NEUTRAL

    def apply(self, segment: Segment) -> Segment:
        """Return the next segment of the text with the changes in its range."""
        found = {} if self._last == NEUTRAL else {segment.start: self._last}
        while self._changes and self._changes[0][0] < segment.end:
            at, self._last = self._changes.popleft()
            found[at] = self._last
        return replace(segment, expressions=tuple(found.items())) if found else segment


def prosody(values: Mapping[str, str]) -> Expression:
    """Return the expression of ``<prosody>``. An attribute that has no meaning here, such as a pitch in Hz, has none."""
    return Expression(
        _rate(values.get("rate", "")), _volume_db(values.get("volume", "")), _semitones(values.get("pitch", ""))
    )


def emphasis(values: Mapping[str, str]) -> Expression:
    """Return the expression of ``<emphasis>``, whose level is moderate by default."""
    level = values.get("level", "moderate").lower()
    return Expression(
        _NAMED.get(("emphasis", "rate", level), 1.0),
        _NAMED.get(("emphasis", "volume", level), 0.0),
        _NAMED.get(("emphasis", "pitch", level), 0.0),
    )


def bounded(expression: Expression) -> Expression:
    """Return ``expression`` within the limits of a text."""
    slowest, fastest = _RATES
    return expression._replace(
        rate=min(max(expression.rate, slowest), fastest),
        volume_db=min(max(expression.volume_db, _MIN_DB), _MAX_DB),
        pitch_semitones=min(max(expression.pitch_semitones, -_MAX_SEMITONES), _MAX_SEMITONES),
    )


def _rate(written: str) -> float:
    """Return the factor of ``slow``, ``80%``, ``-20%`` or ``0.8``."""
    if (named := _NAMED.get(("prosody", "rate", written.lower()))) is not None:
        return named
    found = _NUMBER.fullmatch(written)
    if found is None or found["unit"].lower() in ("db", "st"):
        return 1.0
    number = float(found["number"]) / (100 if found["unit"] else 1)
    if not found["sign"]:
        return number
    return 1 + number if found["sign"] == "+" else 1 - number


def _volume_db(written: str) -> float:
    """Return the decibels of ``soft``, ``+6dB`` or ``-3``, or of SSML 1.0's ``80`` of 100."""
    if (named := _NAMED.get(("prosody", "volume", written.lower()))) is not None:
        return named
    found = _NUMBER.fullmatch(written)
    if found is None or found["unit"].lower() == "st":
        return 0.0
    number = float(found["number"])
    if found["unit"].lower() == "db":
        return -number if found["sign"] == "-" else number
    factor = number / 100 if not found["sign"] else 1 + (number if found["sign"] == "+" else -number) / 100
    return 20 * math.log10(max(factor, 10 ** (_MIN_DB / 20)))


def _semitones(written: str) -> float:
    """Return the semitones of ``low``, ``+2st`` or ``+10%``."""
    if (named := _NAMED.get(("prosody", "pitch", written.lower()))) is not None:
        return named
    found = _NUMBER.fullmatch(written)
    if found is None or found["unit"].lower() not in ("%", "st") or not found["sign"]:
        return 0.0
    change = float(found["number"]) * (1 if found["sign"] == "+" else -1)
    return change if found["unit"].lower() == "st" else 12 * math.log2(max(1 + change / 100, 0.25))
