"""Last stage of the filter: spaces and line breaks.

Collapses spaces, removes the space that a dropped character leaves before a comma, keeps words apart, and decides which
line breaks end a paragraph and which only wrap a long line. The look-ahead is one character after a space or after the
break of a long line.
"""

from __future__ import annotations

from typing import Protocol

from tts_worker.text.character_filter import PARAGRAPH, SOFT_SPACE
from tts_worker.text.characters import is_unspaced

WRAP_CHARS = 40
"""A line of this length without a final stop is wrapped, not ended, if the next line begins in lower case."""

_STOPS = frozenset(".!?…:;。！？：；।؟۔)\"'”»")
_CLOSE_UP = frozenset(".,;:!?)。，；：！？、")


class TextSink(Protocol):
    """Takes filtered text: single spaces, and ``"\\n"`` only at the end of a paragraph."""

    def push(self, char: str, index: int) -> None: ...

    def space_follows(self) -> None:
        """Announce that a space or a line break precedes the next letter, before it is known which."""
        ...


class WhitespaceFilter:
    """Pushes text with normalized whitespace to ``out``."""

    def __init__(self, out: TextSink) -> None:
        self._out = out
        self._last_char = "\n"  # the last emitted character
        self._pending = ""  # pending break: SOFT_SPACE < " " < line feed
        self._pending_at = -1
        self._line_chars = 0

    def push(self, char: str, index: int) -> None:
        if char == SOFT_SPACE:
            self._defer(char, index, over=("",))
        elif char == " ":
            self._defer(char, index, over=("", SOFT_SPACE))
        elif char == "\n":
            if self._pending == "\n":  # a second break: an empty line
                self._paragraph(self._pending_at)
            elif self._line_chars < WRAP_CHARS or self._last_char in _STOPS:
                self._paragraph(index)
            else:
                self._defer(char, index, over=("", SOFT_SPACE, " "))
        elif char == PARAGRAPH:
            self._paragraph(self._pending_at if self._pending == "\n" else index)
        else:
            if self._pending:
                self._decide(char, index)
            self._last_char = char
            self._line_chars += 1
            self._out.push(char, index)

    def settle(self) -> None:
        """Emit a pending space with the text before it; more text may follow."""
        if self._pending in (" ", "\n"):
            self._out.push(" ", self._pending_at)
            self._last_char = " "
        self._pending = ""

    def _defer(self, kind: str, index: int, over: tuple[str, ...]) -> None:
        if self._last_char not in " \n" and self._pending in over:
            if self._pending in ("", SOFT_SPACE) and kind != SOFT_SPACE:
                self._out.space_follows()
            self._pending = kind
            self._pending_at = index

    def _paragraph(self, index: int) -> None:
        self._pending = ""
        self._line_chars = 0
        if self._last_char != "\n":
            self._last_char = "\n"
            self._out.push("\n", index)

    def _decide(self, char: str, index: int) -> None:
        kind = self._pending
        place = self._pending_at
        self._pending = ""
        if kind == SOFT_SPACE:
            joins = self._last_char.isalnum() and char.isalnum()
            if joins and not (is_unspaced(self._last_char) and is_unspaced(char)):
                self._out.push(" ", place)
        elif kind == "\n":
            self._line_chars = 0
            self._out.push(" " if char.islower() else "\n", place)
        elif not (char == "," or (char in _CLOSE_UP and index > place + 1)):
            self._line_chars += 1
            self._out.push(" ", place)
