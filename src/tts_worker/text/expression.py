"""How the spans of a text are spoken: what markup changes, by the original offset at which it does.

Elements change their content. A control, such as ``[slow]`` or ``<speed ratio="0.8"/>``, changes what follows, up to
the next control of its kind. Sources: SSML 1.1, sections 3.2.2 (emphasis) and 3.2.4 (prosody); Cartesia's tags;
LiveKit's ``<expr>``; the audio tags of ``directions``.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tts_worker.text.tables import rows, words
from tts_worker.types import NEUTRAL, Expression, Segment

_MAX_DEPTH = 16
_RATES = (0.25, 4.0)
_MAX_DB = 12.0
_MIN_DB = -60.0
_MAX_SEMITONES = 12.0
_MAX_STYLE_CHARS = 64
_NAMED = {
    (element, attribute, value): float(change)
    for element, attribute, values, change in rows("expressions")
    for value in values.split()
}
_NO_STYLE = words("directions")["other"].union(value for element, _, value in _NAMED if element == "delivery")
_NUMBER = re.compile(r"(?P<sign>[+-]?)(?P<number>\d{1,4}(?:\.\d{1,4})?)(?P<unit>%|db|st|)", re.IGNORECASE)


class ExpressionTrack:
    """Follows the open elements and the controls of a text.

    Attributes:
        is_used: Whether the text has changed its expression.
    """

    def __init__(self) -> None:
        self.is_used = False
        self._controls = NEUTRAL
        self._open: list[tuple[str, Expression]] = []  # each within those around it
        self._changes: deque[tuple[int, Expression]] = deque()  # not in a segment so far
        self._last = NEUTRAL  # of the last segment
        self._style = ""
        self._style_changes = False

    def read_tag(self, name: str, values: Mapping[str, str], at: int, *, is_empty: bool) -> None:
        """Read an opening tag at the offset ``at``, or an empty one; others than those of expression change nothing."""
        if name in ("speed", "volume", "emotion", "expression"):
            self._control(_control_of(name, values), at)
        elif name == "expr" and values.get("type") in ("expression", "prosody", "emphasis"):
            expression = delivery(values.get("label", "emphasis"))
            if is_empty:
                self._control(expression, at)
            else:
                self.open(name, expression, at)
        elif name in ("prosody", "emphasis") and not is_empty:
            self.open(name, prosody(values) if name == "prosody" else emphasis(values), at)

    def read_direction(self, content: str, at: int) -> None:
        """Read the words of a direction that is no vocalization: ``slowly``; ``/slow`` ends all of them."""
        if content[0] == "/":
            self._controls = NEUTRAL
            self._note(at)
        else:
            self._control(delivery(content), at)

    def open(self, name: str, expression: Expression, at: int) -> None:
        """Begin an element. One that is not closed lasts to the end."""
        if len(self._open) < _MAX_DEPTH:
            outer = self._open[-1][1] if self._open else NEUTRAL
            self._open.append((name, bounded(expression.within(outer))))
            self._note(at)

    def close(self, name: str, at: int) -> None:
        """End an element, and those inside of it; without an open one nothing changes."""
        if any(each == name for each, _ in self._open):
            while self._open.pop()[0] != name:
                pass
            self._note(at)

    def _control(self, expression: Expression, at: int) -> None:
        """Change what follows, in what ``expression`` says."""
        changed = {field: value for field, value in expression._asdict().items() if value != getattr(NEUTRAL, field)}
        self._controls = self._controls._replace(**changed)
        self._note(at)

    def _note(self, at: int) -> None:
        inner = self._open[-1][1] if self._open else NEUTRAL
        current = bounded(inner.within(self._controls))
        self._style_changes = self._style_changes or current.style != self._style
        self._style = current.style
        self._changes.append((at, current))
        self.is_used = True

    def take_style_change(self) -> bool:
        """Return whether the style has changed since the last call."""
        changes, self._style_changes = self._style_changes, False
        return changes

    def apply(self, segment: Segment) -> Segment:
        """Return the next segment of the text with the changes in its range."""
        found = {} if self._last == NEUTRAL else {segment.start: self._last}
        while self._changes and self._changes[0][0] < segment.end:
            at, self._last = self._changes.popleft()
            found[at] = self._last
        return replace(segment, expressions=tuple(found.items())) if found else segment


def delivery(label: str) -> Expression:
    """Return what the words of a direction or a label ask for. What a rate, volume or pitch says is no style."""
    found = re.findall("[a-z]+", label.lower())
    is_style = any(word.startswith("whisper") or word not in _NO_STYLE for word in found)
    return _named("delivery", found)._replace(style=label.lower().strip()[:_MAX_STYLE_CHARS] if is_style else "")


def _named(element: str, found: Sequence[str]) -> Expression:
    """Return what the first known word says of each attribute."""
    rate, volume_db, pitch = (
        next((_NAMED[key] for word in found if (key := (element, attribute, word)) in _NAMED), neutral)
        for attribute, neutral in (("rate", 1.0), ("volume", 0.0), ("pitch", 0.0))
    )
    return Expression(rate, volume_db, pitch)


def _control_of(name: str, values: Mapping[str, str]) -> Expression:
    """Return the expression of ``<speed ratio="0.8"/>``, ``<volume ratio=.../>``, ``<emotion value="sad"/>``."""
    written = values.get("ratio", values.get("value", ""))
    if name == "speed":
        return Expression(rate=_rate(written))
    if name == "volume":
        found = _NUMBER.fullmatch(written)
        return Expression(volume_db=_volume_db(f"{100 * float(found['number']):g}") if found else 0.0)
    return delivery(written)


def prosody(values: Mapping[str, str]) -> Expression:
    """Return the expression of ``<prosody>``. An attribute without a meaning here, such as a pitch in Hz, has none."""
    return Expression(
        _rate(values.get("rate", "")), _volume_db(values.get("volume", "")), _semitones(values.get("pitch", ""))
    )


def emphasis(values: Mapping[str, str]) -> Expression:
    """Return the expression of ``<emphasis>``, whose level is moderate by default."""
    return _named("emphasis", [values.get("level", "moderate").lower()])


def bounded(expression: Expression) -> Expression:
    """Return ``expression`` within the limits of a text."""
    slowest, fastest = _RATES
    return expression._replace(
        rate=min(max(expression.rate, slowest), fastest),
        volume_db=min(max(expression.volume_db, _MIN_DB), _MAX_DB),
        pitch_semitones=min(max(expression.pitch_semitones, -_MAX_SEMITONES), _MAX_SEMITONES),
    )


def _value(attribute: str, written: str, neutral: float, value: Callable[[float, str, bool], float | None]) -> float:
    """Return what an attribute of ``<prosody>`` asks for.

    Args:
        attribute: Its name in ``data/expressions.tsv``.
        written: Its value.
        neutral: What a value without a meaning asks for.
        value: Takes a number, its unit in small letters, and whether it has a sign; returns None for no meaning.
    """
    named = _NAMED.get(("prosody", attribute, written.lower()))
    found = _NUMBER.fullmatch(written) if named is None else None
    if found is not None:
        named = value(float(found["sign"] + found["number"]), found["unit"].lower(), found["sign"] != "")
    return neutral if named is None else named


def _rate(written: str) -> float:
    """Return the factor of ``slow``, ``80%``, ``-20%`` or ``0.8``."""

    def factor(number: float, unit: str, is_change: bool) -> float | None:
        return None if unit in ("db", "st") else is_change + number / (100 if unit else 1)

    return _value("rate", written, 1.0, factor)


def _volume_db(written: str) -> float:
    """Return the decibels of ``soft``, ``+6dB`` or ``-3``, or of SSML 1.0's ``80`` of 100."""

    def decibels(number: float, unit: str, is_change: bool) -> float | None:
        if unit in ("db", "st"):
            return number if unit == "db" else None
        return 20 * math.log10(max(is_change + number / 100, 10 ** (_MIN_DB / 20)))

    return _value("volume", written, 0.0, decibels)


def _semitones(written: str) -> float:
    """Return the semitones of ``low``, ``+2st`` or ``+10%``."""

    def semitones(number: float, unit: str, is_change: bool) -> float | None:
        if not is_change or unit not in ("%", "st"):
            return None
        return number if unit == "st" else 12 * math.log2(max(1 + number / 100, 0.25))

    return _value("pitch", written, 0.0, semitones)
