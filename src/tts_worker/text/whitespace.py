"""Last stage of the filter: spaces and line breaks.

Collapses spaces, removes the space that a dropped character leaves before a comma, keeps words apart, and decides which
line breaks end a paragraph and which only wrap a long line. The look-ahead is one character after a space or after the
break of a long line.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from tts_worker.text.character_filter import BREAK, PARAGRAPH, SOFT_SPACE
from tts_worker.text.characters import is_unspaced
from tts_worker.text.mapped_text import MappedText
from tts_worker.types import Span

WRAP_CHARS = 40
"""A line of this length without a final stop is wrapped, not ended, if the next line begins in lower case."""

_STOPS = frozenset(".!?…:;。！？：；।؟۔)\"'”»")
_CLOSE_UP = ".,;:!?)。，；：！？、"
BLANKS = f" \n{SOFT_SPACE}"
# Within a run. A single space between two words needs no decision.
_UNDECIDED_SPACE = re.compile(rf" (?:(?=[{re.escape(_CLOSE_UP)} ])|\Z) *")
_NONE = -1


class WhitespaceFilter:
    """Passes text to ``out`` with single spaces, ``"\\n"`` only at the end of a paragraph, and ``BREAK``.

    Args:
        out: The source of the next stage.
        space_follows: Called when a space or line break precedes the next letter, before it is known which.
    """

    def __init__(self, out: MappedText, space_follows: Callable[[], None]) -> None:
        self._out = out
        self._space_follows = space_follows
        self._last_char = "\n"  # the last one passed on
        self._line_begin = out.length
        self._holds_blanks = False  # whether blanks follow it, of which these are the first, by offset
        self._space = _NONE
        self._dropped = _NONE  # characters in whose place a space may be needed
        self._wrap = _NONE  # a line break that may only wrap a long line

    @property
    def holds_space(self) -> bool:
        """Whether a space or a line break precedes the next letter."""
        return self._space != _NONE or self._wrap != _NONE

    @property
    def undecided(self) -> str | None:
        """The space that the next character may drop; None if it decides more."""
        if not self._holds_blanks:
            return ""
        if self._wrap != _NONE or (self._dropped != _NONE and self._space == _NONE and self._last_char not in " \n"):
            return None
        return "" if self._space == _NONE else " "

    def run(self, source: MappedText, first: int, last: int) -> None:
        """Take the characters ``[first, last)`` of ``source``: text and spaces."""
        text = source.text
        if text[first] == " " and (self._holds_blanks or self._last_char in " \n"):
            self.blank(" ", source.offset(first))
            while first < last and text[first] == " ":
                first += 1
        while first < last:
            space = _UNDECIDED_SPACE.search(text, first, last)
            end = space.start() if space else last
            if end > first:
                if self._holds_blanks:
                    self._decide_blanks(text[first], source.offset(first))
                self._out.extend(source, first, end)
                self._last_char = text[end - 1]
            if space is None:
                return
            self.blank(" ", source.offset(end))
            first = space.end()

    def char(self, char: str, offset: int) -> None:
        """Take ``char``, which stands for the character at ``offset``."""
        if self._holds_blanks:
            self._decide_blanks(char, offset)
        self._out.append(char, offset)
        self._last_char = char

    def unit(self, replacement: Span) -> None:
        if self._holds_blanks:
            self._decide_blanks(replacement.text[0], replacement.start)
        self._out.append_unit(replacement)
        self._last_char = replacement.text[-1]

    def silence(self, offset: int) -> None:
        """Take a ``BREAK``, which drops the blanks before it."""
        self._forget_blanks()
        self._out.append(BREAK, offset)
        self._last_char = "\n"
        self._line_begin = self._out.length

    def blank(self, char: str, offset: int) -> None:
        """Take a space, a line feed, or ``SOFT_SPACE``."""
        if char == "\n":
            self.line_end(char, offset)
            return
        self._holds_blanks = True
        if char == SOFT_SPACE:
            if self._dropped == _NONE:
                self._dropped = offset
        elif self._space == self._wrap == _NONE:
            self._space = offset
            if self._last_char not in " \n":
                self._space_follows()

    def line_end(self, char: str, offset: int) -> None:
        """Take a line feed, or the end of a ``PARAGRAPH``."""
        if self._wrap != _NONE:
            offset = self._wrap
        elif char != PARAGRAPH and self._last_char not in _STOPS and self._out.length - self._line_begin >= WRAP_CHARS:
            self._wrap = offset
            self._holds_blanks = True
            if self._last_char not in " \n":
                self._space_follows()
            return
        if self._last_char != "\n":
            self._out.append("\n", offset)
            self._last_char = "\n"
        self._line_begin = self._out.length
        if self._holds_blanks:
            self._forget_blanks()

    def flush(self) -> None:
        """Decide the blanks as if the text ended here."""
        if self._last_char not in " \n" and self.holds_space:
            self._append_blank(" ", self._space if self._wrap == _NONE else self._wrap)
        self._forget_blanks()

    def _decide_blanks(self, following: str, offset: int) -> None:
        """Decide the blanks before the character ``following`` at ``offset``."""
        last = self._last_char
        if last in " \n":
            pass
        elif self._wrap != _NONE:
            self._append_blank(" " if following.islower() else "\n", self._wrap)
        elif self._space != _NONE:
            # A space is dropped before a comma, or before a mark that lost the text before it.
            if following not in _CLOSE_UP or (following != "," and offset == self._space + 1):
                self._append_blank(" ", self._space)
        elif last.isalnum() and following.isalnum() and not (is_unspaced(last) and is_unspaced(following)):
            self._append_blank(" ", self._dropped)
        self._forget_blanks()

    def _forget_blanks(self) -> None:
        self._holds_blanks = False
        self._space = self._dropped = self._wrap = _NONE

    def _append_blank(self, char: str, offset: int) -> None:
        self._out.append(char, offset)
        self._last_char = char
        if self._wrap != _NONE:
            self._line_begin = self._out.length
