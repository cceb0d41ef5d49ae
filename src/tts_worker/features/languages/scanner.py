"""Reads a text from left to right by rules that are tried in order where a token may begin."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tts_worker.text.reading.rules import template
from tts_worker.text.tables import filled


def compiled(pattern: str, named: Mapping[str, str]) -> re.Pattern[str]:
    """Compile a pattern in which ``<UNIT>`` stands for what ``named`` has, and that for itself."""
    return re.compile(filled(pattern, named))


class Scanner:
    """Rules that are tried in order at each place where a token may begin.

    Args:
        start: Pattern of where one may begin.
        rules: Pattern and words of each rule; "@x" leaves a match to the function ``read_x``.
        named: The patterns that ``<NAME>`` in them stands for.
        readings: The functions that they name.
    """

    def __init__(
        self, start: str, rules: Iterable[tuple[str, str]], named: Mapping[str, str], readings: Mapping[str, Any]
    ) -> None:
        self._start = compiled(start, named)
        self._rules = [(compiled(pattern, named), self._reading(spoken, readings)) for pattern, spoken in rules]

    @staticmethod
    def _reading(spoken: str, readings: Mapping[str, Any]) -> Callable[[re.Match[str]], str | None]:
        if spoken[:1] == "@":
            read: Callable[[re.Match[str]], str | None] = readings[f"read_{spoken[1:]}"]
            return read
        fill = template(spoken, readings)
        return lambda match: fill(match, match.span())

    def tokens(self, text: str, first: int) -> Iterator[tuple[int, int, str | None]]:
        """Yield the tokens from ``first`` on: their ranges, and what is spoken; None where no rule applies."""
        end = first
        while start := self._start.search(text, end):
            place, end, spoken = start.start(), start.start() + 1, None
            for pattern, read in self._rules:
                match = pattern.match(text, place)
                if match and match.end() > place and (spoken := read(match)) is not None:
                    end = match.end()
                    break
            yield place, end, spoken
