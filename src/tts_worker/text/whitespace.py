"""The last stage of the filter: spaces and line breaks.

Owns that spaces come singly, that no space is left where something was dropped before a comma, that two words do not
grow together, and which line breaks are paragraphs and which merely wrap a long line. It knows nothing of markup or
segments. One character of look-ahead after a space or after the break of a long line.
"""

from __future__ import annotations

from typing import Protocol

from tts_worker.text.character_filter import PARAGRAPH, SOFT_SPACE
from tts_worker.text.characters import is_unspaced

WRAP_CHARS = 40
"""A line this long that ends without a stop, before a line that begins in lower case, was wrapped, not ended."""

_STOPS = frozenset(".!?…:;。！？：；।؟۔)\"'”»")
_CLOSE_UP = frozenset(".,;:!?)。，；：！？、")


class TextSink(Protocol):
    """Takes filtered text: single spaces, ``"\\n"`` only where a paragraph ends."""

    def push(self, char: str, index: int) -> None: ...

    def space_follows(self) -> None:
        """A space or line break will come before the next letter, though it is not decided yet which."""
        ...


class WhitespaceFilter:
    """Pushes tidy text to ``out``."""

    def __init__(self, out: TextSink) -> None:
        self._out = out
        self._last_char = "\n"  # the last character passed on; nothing precedes the first line
        self._pending = ""  # SOFT_SPACE < " " < "\n": the break between it and what comes
        self._pending_at = -1
        self._line_chars = 0

    def push(self, char: str, index: int) -> None:
        if char == SOFT_SPACE:
            self._defer(char, index, over=("",))
        elif char == " ":
            self._defer(char, index, over=("", SOFT_SPACE))
        elif char == "\n":
            if self._pending == "\n":  # a second one: an empty line
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
        """The text is spoken up to here, more may come: a space that waits goes with what came before it."""
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
