"""The text that is read, as it grows: spaces and line breaks.

Collapses spaces, removes the space that a dropped character leaves before a comma, keeps words apart, and decides which
line breaks end a paragraph and which only wrap a long line. The look-ahead is one character after a space or after the
break of a long line.
"""

from __future__ import annotations

from collections.abc import Callable

from tts_worker.text.character_filter import BREAK, PARAGRAPH, SOFT_SPACE
from tts_worker.text.characters import is_unspaced
from tts_worker.text.mapped_text import MappedText
from tts_worker.text.markup import CLOSE_UP
from tts_worker.types import Span

WRAP_CHARS = 40
"""A line of this length without a final stop is wrapped, not ended, if the next line begins in lower case."""

_STOPS = frozenset(".!?…:;。！？：；।؟۔)\"'”»")
_NONE = -1


class ReadableText(MappedText):
    """Text with single spaces, ``"\\n"`` only at the end of a paragraph, and ``BREAK``."""

    def __init__(self) -> None:
        super().__init__()
        self.space_follows: Callable[[], None] = lambda: None
        """Called when a space or line break precedes the next letter, before it is known which."""
        self._last_char = "\n"
        self._line_begin = 0
        # What the next character decides, and its offset: "\n" may only wrap a long line; SOFT_SPACE stands for dropped
        # characters, in whose place a space may be needed. Of several the first, but a stronger one wins.
        self._blank = ""
        self._blank_at = 0

    @property
    def holds_space(self) -> bool:
        """Whether a space or a line break precedes the next letter."""
        return self._blank in (" ", "\n")

    @property
    def undecided(self) -> str | None:
        """The space that the next character may drop; None if it decides more."""
        if self._blank == "\n" or (self._blank == SOFT_SPACE and self._last_char not in " \n"):
            return None
        return self._blank.strip(SOFT_SPACE)

    def run(self, text: str, start: int) -> None:
        """Take ``text`` of adjacent characters, where spaces are the first, the last, or single ones between words."""
        if text[0] == " " and (self._blank or self._last_char in " \n"):
            self.space(start)
            start += 1
            text = text[1:]
        ends_with_space = text[-1:] == " "
        if ends_with_space:
            text = text[:-1]
        if text:
            if self._blank:
                self._decide(text[0], start)
            self.append(text, start)
            self._last_char = text[-1]
        if ends_with_space:
            self.space(start + len(text))

    def unit(self, replacement: Span) -> None:
        if self._blank:
            self._decide(replacement.text[0], replacement.start)
        self.append_unit(replacement)
        self._last_char = replacement.text[-1]

    def silence(self, offset: int) -> None:
        """Take a ``BREAK``, which drops the blanks before it."""
        self._end_line(BREAK, offset)

    def space(self, offset: int) -> None:
        if self._blank in ("", SOFT_SPACE):
            self._hold(" ", offset)

    def gap(self, offset: int) -> None:
        """Take the place of dropped characters."""
        if not self._blank:
            self._blank = SOFT_SPACE
            self._blank_at = offset

    def line_end(self, char: str, offset: int) -> None:
        """Take a line feed, or the end of a ``PARAGRAPH``."""
        if self._last_char == "\n":
            self._blank = ""
        elif self._blank == "\n":
            self._end_line("\n", self._blank_at)
        elif char == PARAGRAPH or self._last_char in _STOPS or self.length - self._line_begin < WRAP_CHARS:
            self._end_line("\n", offset)
        else:
            self._hold("\n", offset)

    def flush(self) -> None:
        """Decide the blanks as if the text ended here."""
        if self._last_char not in " \n" and self.holds_space:
            self._append_blank(" ")
        self._blank = ""

    def _end_line(self, char: str, offset: int) -> None:
        self.append(char, offset)
        self._last_char = "\n"
        self._line_begin = self.length
        self._blank = ""

    def _hold(self, blank: str, offset: int) -> None:
        self._blank = blank
        self._blank_at = offset
        if self._last_char not in " \n":
            self.space_follows()

    def _decide(self, following: str, offset: int) -> None:
        """Decide the blanks before the character ``following`` at ``offset``."""
        last = self._last_char
        if last in " \n":
            pass
        elif self._blank == " ":
            # A space is dropped before a comma, or before a mark that lost the text before it.
            if following not in CLOSE_UP or (following != "," and offset == self._blank_at + 1):
                self.append(" ", self._blank_at)
        elif self._blank == "\n":
            self._append_blank(" " if following.islower() else "\n")
        elif last.isalnum() and following.isalnum() and not (is_unspaced(last) and is_unspaced(following)):
            self.append(" ", self._blank_at)
        self._blank = ""

    def _append_blank(self, char: str) -> None:
        self.append(char, self._blank_at)
        self._last_char = char
        if self._blank == "\n":
            self._line_begin = self.length
