"""Text that may not go on yet because a ``[`` is open: was it a link, an image, a footnote, or just a bracket?

Owns the bounded buffer between the inline filter and its output. It decides nothing about Markdown: it is told to keep
the brackets, to drop them, or to drop all that they hold, and gives up by itself when too much text waits.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from tts_worker.text.cleaning import Push

LIMIT_CHARS = 200
"""A bracket that is not closed after so many original characters is a bracket and nothing else."""

_DEPTH = 4


@dataclass
class _Open:
    position: int  # of its first character, counted over all that was ever held
    index: int
    image: bool
    fresh: bool  # it began its line


class Holdback:
    """Passes characters to ``out`` unless brackets are open. Memory and work per character are bounded."""

    def __init__(self, out: Push) -> None:
        self._out = out
        self._held: deque[tuple[str, int]] = deque()
        self._gone = 0  # how many held characters have been passed on
        self._open: deque[_Open] = deque()

    @property
    def is_open(self) -> bool:
        return bool(self._open)

    @property
    def is_image(self) -> bool:
        return self._open[-1].image

    @property
    def is_fresh(self) -> bool:
        return self._open[-1].fresh

    def push(self, char: str, index: int) -> None:
        if not self._open:
            self._out(char, index)
            return
        self._held.append((char, index))
        while self._open and index - self._open[0].index > LIMIT_CHARS:
            self._give_up_oldest()

    def open(self, marks: list[tuple[str, int]], *, image: bool, fresh: bool) -> None:
        """Hold back from ``marks`` (``[`` or ``![``) on."""
        if len(self._open) == _DEPTH:
            self._give_up_oldest()
        self._open.append(_Open(self._gone + len(self._held), marks[0][1], image, fresh))
        self._held.extend(marks)

    def content(self) -> str:
        """What the innermost bracket holds, brackets not included."""
        first = self._open[-1].position - self._gone + (2 if self._open[-1].image else 1)
        return "".join(self._held[place][0] for place in range(first, len(self._held)))

    def keep(self) -> None:
        """The innermost bracket was only a bracket."""
        self._open.pop()
        self._pass_on()

    def unwrap(self) -> None:
        """Drop the innermost opening bracket, keep what it holds."""
        opened = self._open.pop()
        self._held[opened.position - self._gone] = ("", -1)
        self._pass_on()

    def drop(self) -> None:
        """Drop the innermost bracket and what it holds."""
        opened = self._open.pop()
        while self._gone + len(self._held) > opened.position:
            self._held.pop()
        self._pass_on()

    def give_up(self) -> None:
        """All open brackets were only brackets."""
        self._open.clear()
        self._pass_on()

    def _give_up_oldest(self) -> None:
        self._open.popleft()
        self._pass_on()

    def _pass_on(self) -> None:
        until = self._open[0].position if self._open else self._gone + len(self._held)
        while self._gone < until:
            char, index = self._held.popleft()
            self._gone += 1
            if char:
                self._out(char, index)
