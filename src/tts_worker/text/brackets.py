"""Bounded buffer for text after an open ``[``, which may be a link, an image, a footnote or a plain bracket.

The inline filter decides whether to keep the brackets, to drop them, or to drop their content. A bracket that stays
open for ``LIMIT_CHARS`` is released as plain text.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from tts_worker.text.character_filter import Push

LIMIT_CHARS = 200
"""A bracket still open after this many original characters is plain text."""

_DEPTH = 4


@dataclass
class _OpenBracket:
    offset: int  # of the first character, counted over all buffered characters
    index: int
    is_image: bool
    is_at_line_start: bool


class BracketBuffer:
    """Passes characters to ``out``, except while brackets are open. Memory and work per character are bounded."""

    def __init__(self, out: Push) -> None:
        self._out = out
        self._pending: deque[tuple[str, int]] = deque()
        self._released = 0  # buffered characters that were passed on
        self._open: deque[_OpenBracket] = deque()

    @property
    def is_open(self) -> bool:
        return bool(self._open)

    @property
    def is_image(self) -> bool:
        return self._open[-1].is_image

    @property
    def is_at_line_start(self) -> bool:
        return self._open[-1].is_at_line_start

    def push(self, char: str, index: int) -> None:
        if not self._open:
            self._out(char, index)
            return
        self._pending.append((char, index))
        while self._open and index - self._open[0].index > LIMIT_CHARS:
            self._give_up_oldest()

    def open(self, marks: list[tuple[str, int]], *, image: bool, at_line_start: bool) -> None:
        """Start buffering with ``marks`` (``[`` or ``![``)."""
        if len(self._open) == _DEPTH:
            self._give_up_oldest()
        self._open.append(_OpenBracket(self._released + len(self._pending), marks[0][1], image, at_line_start))
        self._pending.extend(marks)

    def content(self) -> str:
        """Return the text inside the innermost bracket."""
        first = self._open[-1].offset - self._released + (2 if self._open[-1].is_image else 1)
        return "".join(self._pending[place][0] for place in range(first, len(self._pending)))

    def keep(self) -> None:
        """Treat the innermost bracket as plain text."""
        self._open.pop()
        self._release()

    def unwrap(self) -> None:
        """Drop the innermost opening bracket and keep its content."""
        opened = self._open.pop()
        self._pending[opened.offset - self._released] = ("", -1)
        self._release()

    def drop(self) -> None:
        """Drop the innermost bracket and its content."""
        opened = self._open.pop()
        while self._released + len(self._pending) > opened.offset:
            self._pending.pop()
        self._release()

    def give_up(self) -> None:
        """Treat all open brackets as plain text."""
        self._open.clear()
        self._release()

    def _give_up_oldest(self) -> None:
        self._open.popleft()
        self._release()

    def _release(self) -> None:
        until = self._open[0].offset if self._open else self._released + len(self._pending)
        while self._released < until:
            char, index = self._pending.popleft()
            self._released += 1
            if char:
                self._out(char, index)
