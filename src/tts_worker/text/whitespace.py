"""Last stage of the filter: spaces and line breaks.

Collapses spaces, removes the space that a dropped character leaves before a comma, keeps words apart, and decides which
line breaks end a paragraph and which only wrap a long line. The look-ahead is one character after a space or after the
break of a long line.
"""

from __future__ import annotations

import re
from typing import Protocol

from tts_worker.text.character_filter import BREAK, PARAGRAPH, SOFT_SPACE
from tts_worker.text.characters import is_unspaced

WRAP_CHARS = 40
"""A line of this length without a final stop is wrapped, not ended, if the next line begins in lower case."""

_STOPS = frozenset(".!?…:;。！？：；।؟۔)\"'”»")
_CLOSE_UP = frozenset(".,;:!?)。，；：！？、")
_GAPS = frozenset((" ", "\n", SOFT_SPACE, PARAGRAPH, BREAK))
_NO_SPACE_BEFORE = _GAPS | {","}
# A space between two words needs no decision.
_GAP = re.compile(f" (?=[, \n{SOFT_SPACE}{PARAGRAPH}]|\\Z)|[\n{SOFT_SPACE}{PARAGRAPH}{BREAK}]")


class TextSink(Protocol):
    """Takes filtered text: single spaces, ``"\\n"`` only at the end of a paragraph, and ``BREAK``."""

    def push(self, text: str, start: int) -> None:
        """Take a run of text that begins at ``start`` in the original text."""
        ...

    def push_replacement(self, text: str, start: int, end: int, phonemes: str | None) -> None:
        """Take ``text`` as one unit that replaces the original characters ``[start, end)``."""
        ...

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

    def push(self, text: str, start: int) -> None:
        at = 0
        length = len(text)
        while at < length:
            first = at
            if self._pending:
                if self._pending == " " and self._pending_at == start + at - 1 and text[at] not in _NO_SPACE_BEFORE:
                    self._pending = ""
                    if at:
                        first = at - 1
                    else:  # emit the space with the word after it
                        text = " " + text
                        start -= 1
                        length += 1
                        at = 1
                elif text[at] not in _GAPS:
                    self._decide(text[at], start + at)
            if text[at] in _GAPS:
                self._push_gap(text[at], start + at)
                at += 1
                continue
            gap = _GAP.search(text, at)
            end = gap.start() if gap else length
            self._last_char = text[end - 1]
            self._line_chars += end - first
            self._out.push(text[first:end] if first or end < length else text, start + first)
            at = end
            if at == length - 1 and text[at] == " ":  # the common end of a delta
                self._out.space_follows()
                self._pending = " "
                self._pending_at = start + at
                return

    def push_replacement(self, text: str, start: int, end: int, phonemes: str | None) -> None:
        """Push ``text`` as one unit that replaces the original characters ``[start, end)``."""
        if self._pending:
            self._decide(text[0], start)
        self._last_char = text[-1]
        self._line_chars += len(text)
        self._out.push_replacement(text, start, end, phonemes)

    def settle(self) -> None:
        """Emit a pending space with the text before it; more text may follow."""
        if self._pending in (" ", "\n"):
            self._out.push(" ", self._pending_at)
            self._last_char = " "
        self._pending = ""

    def _push_gap(self, char: str, index: int) -> None:
        if char == SOFT_SPACE:
            self._defer(char, index, over=("",))
        elif char == " ":
            self._defer(char, index, over=("", SOFT_SPACE))
        elif char == BREAK:
            self._pending = ""
            self._line_chars = 0
            self._last_char = "\n"
            self._out.push(char, index)
        elif char == PARAGRAPH:
            self._paragraph(self._pending_at if self._pending == "\n" else index)
        elif self._pending == "\n":  # a second break: an empty line
            self._paragraph(self._pending_at)
        elif self._line_chars < WRAP_CHARS or self._last_char in _STOPS:
            self._paragraph(index)
        else:
            self._defer(char, index, over=("", SOFT_SPACE, " "))

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
