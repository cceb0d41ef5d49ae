"""Text that may not go on yet because a ``[`` is open: was it a link, an image, a footnote, or just a bracket?

Owns the bounded buffer between the inline filter and its output. It decides nothing about Markdown: it is told to keep
the brackets, to drop them, or to drop all that they hold, and gives up by itself when too much text waits.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from tts_worker.text.character_filter import Push

LIMIT_CHARS = 200
"""A bracket that is not closed after so many original characters is a bracket and nothing else."""

_DEPTH = 4


@dataclass
class _OpenBracket:
    offset: int  # of its first character, counted over all that was ever held
    index: int
    is_image: bool
    is_at_line_start: bool  # it began its line


class BracketBuffer:
    """Passes characters to ``out`` unless brackets are open. Memory and work per character are bounded."""

    def __init__(self, out: Push) -> None:
        self._out = out
        self._pending: deque[tuple[str, int]] = deque()
        self._released = 0  # how many held characters have been passed on
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
        """Hold back from ``marks`` (``[`` or ``![``) on."""
        if len(self._open) == _DEPTH:
            self._give_up_oldest()
        self._open.append(_OpenBracket(self._released + len(self._pending), marks[0][1], image, at_line_start))
        self._pending.extend(marks)

    def content(self) -> str:
        """What the innermost bracket holds, brackets not included."""
        first = self._open[-1].offset - self._released + (2 if self._open[-1].is_image else 1)
        return "".join(self._pending[place][0] for place in range(first, len(self._pending)))

    def keep(self) -> None:
        """The innermost bracket was only a bracket."""
        self._open.pop()
        self._release()

    def unwrap(self) -> None:
        """Drop the innermost opening bracket, keep what it holds."""
        opened = self._open.pop()
        self._pending[opened.offset - self._released] = ("", -1)
        self._release()

    def drop(self) -> None:
        """Drop the innermost bracket and what it holds."""
        opened = self._open.pop()
        while self._released + len(self._pending) > opened.offset:
            self._pending.pop()
        self._release()

    def give_up(self) -> None:
        """All open brackets were only brackets."""
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
