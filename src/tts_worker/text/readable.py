"""The text that is read, as it grows: spaces and line breaks.

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
from tts_worker.text.markup import CLOSE_UP
from tts_worker.types import Span

WRAP_CHARS = 40
"""A line of this length without a final stop is wrapped, not ended, if the next line begins in lower case."""

_TAIL_CHARS = 60

_STOPS = frozenset(".!?…:;。！？：；।؟۔)\"'”»")


class ReadableText(MappedText):
    """Text with single spaces, ``"\\n"`` only at the end of a paragraph, and ``BREAK``."""

    def __init__(self) -> None:
        super().__init__()
        self.space_follows: Callable[[], None] = lambda: None
        """Called when a space or line break precedes the next letter, before it is known which."""
        self.after_letters = True
        """Whether ``space_follows`` is called after letters too."""
        self._last_char = "\n"
        self._last_cut = ""  # the last characters that were cut off
        self._line_begin = 0
        # What the next character decides, and its offset: "\n" may only wrap a long line; SOFT_SPACE stands for dropped
        # characters, in whose place a space may be needed. Of several the first, but a stronger one wins.
        self._blank = ""
        self._blank_at = 0

    @property
    def tail(self) -> str:
        """The last characters, whether they were cut off or not."""
        return (self._last_cut + self.text)[-_TAIL_CHARS:]

    @property
    def holds_space(self) -> bool:
        """Whether a space or a line break precedes the next letter."""
        return self._blank in (" ", "\n")

    @property
    def is_undecided(self) -> bool:
        """Whether the next character decides more than whether a space is dropped."""
        return self._blank == "\n" or (self._blank == SOFT_SPACE and self._last_char not in " \n")

    @property
    def ends_sentence(self) -> bool:
        """Whether a sentence or a line ends here."""
        return self._last_char == "\n" or self._last_char in _STOPS

    def run(self, text: str, start: int) -> None:
        """Take ``text`` of adjacent characters."""
        if "  " in text:
            for part in re.split("(?<= )(?= )", text):
                self.run(part, start)
                start += len(part)
            return
        if text[0] == " " and (self._blank or self._last_char in " \n"):
            self.space(start)
            start += 1
            text = text[1:]
        kept = text[:-1] if text[-1:] == " " else text
        if kept:
            if self._blank:
                self._decide(kept[0], start)
            if start != self._end:
                self._runs.append((self._cut_chars + len(self.text), start, None))
            self._end = start + len(kept)
            self.text += kept
            self._last_char = kept[-1]
        if kept != text:
            self.space(start + len(kept))

    def cut(self, length: int) -> int:
        self._last_cut = (self._last_cut + self.text[:length])[-_TAIL_CHARS:]
        return super().cut(length)

    def unit(self, replacement: Span) -> None:
        if self._blank:
            self._decide(replacement.text[0], replacement.start)
        self.append_unit(replacement)
        self._last_char = replacement.text[-1]

    def space(self, offset: int) -> None:
        if self._blank in ("", SOFT_SPACE):
            self._hold(" ", offset)

    def gap(self, offset: int) -> None:
        """Take the place of dropped characters."""
        if not self._blank:
            self._blank = SOFT_SPACE
            self._blank_at = offset

    def end_line(self, char: str, offset: int) -> None:
        """Take a line feed, the end of a ``PARAGRAPH``, or a ``BREAK``, which drops the blanks before it."""
        last = self._last_char
        if char == BREAK:
            self.append(BREAK, offset)
        elif last == "\n":
            self._blank = ""
            return
        elif self._blank == "\n":
            self.append("\n", self._blank_at)
        elif char == PARAGRAPH or last in _STOPS or self._cut_chars + len(self.text) - self._line_begin < WRAP_CHARS:
            self.append("\n", offset)
        else:
            self._hold("\n", offset)
            return
        self._last_char = "\n"
        self._line_begin = self._cut_chars + len(self.text)
        self._blank = ""

    def flush(self) -> None:
        """Decide the blanks as if the text ended here."""
        if self._last_char not in " \n" and self.holds_space:
            self._append_blank(" ")
        self._blank = ""

    def _hold(self, blank: str, offset: int) -> None:
        self._blank = blank
        self._blank_at = offset
        last = self._last_char
        if last not in " \n" and (self.after_letters or not last.isalnum()):
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
            self._line_begin = self._cut_chars + len(self.text)
