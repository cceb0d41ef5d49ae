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
from tts_worker.text.mapped_text import UNIT, MappedText

WRAP_CHARS = 40
"""A line of this length without a final stop is wrapped, not ended, if the next line begins in lower case."""

_STOPS = frozenset(".!?…:;。！？：；।؟۔)\"'”»")
_CLOSE_UP = ".,;:!?)。，；：！？、"
_GAPS = f" \n{SOFT_SPACE}{PARAGRAPH}"
# A single space between two words needs no decision.
_GAP = re.compile(
    f"[{_GAPS}{BREAK}](?:(?<={BREAK})"
    f"|(?:(?<! )|(?<=\\A )|(?<={BREAK} )|(?=[{re.escape(_CLOSE_UP)}{_GAPS}{BREAK}]|\\Z))[{_GAPS}]*)"
)
_LINE_END = re.compile(f"[\n{PARAGRAPH}]")


class WhitespaceFilter:
    """Passes ``source`` to ``out`` with normalized whitespace.

    ``out`` gets single spaces, ``"\\n"`` only at the end of a paragraph, and ``BREAK``.

    Args:
        out: The source of the next stage.
        space_follows: Called when a space or line break precedes the next letter, before it is known which.
    """

    def __init__(self, out: MappedText, space_follows: Callable[[], None]) -> None:
        self.source = MappedText()
        self._out = out
        self._space_follows = space_follows
        self._last_char = "\n"  # the last one passed on
        self._line_chars = 0

    def push_plain(self, text: str, start: int) -> None:
        """Take text without gaps but single spaces."""
        begins_gap = text[0] == " " and (self.source.text != "" or self._last_char in " \n")
        if begins_gap or self.source.text not in ("", " ") or (self.source.text and text[0] in _CLOSE_UP):
            self.source.append(text, start)
            self.run()
            return
        if self.source.text:
            if self._last_char not in " \n":
                self._emit(" ", 0)
            self.source.cut(1)
        ends_with_space = text[-1] == " "
        if ends_with_space:
            text = text[:-1]
        if text:
            self._out.append(text, start)
            self._last_char = text[-1]
        self._line_chars += len(text)
        if ends_with_space:
            self.source.append(" ", start + len(text))
            self._space_follows()

    def run(self, *, is_final: bool = False) -> None:
        """Pass on what is decided; with ``is_final`` as if the text ended here."""
        text = self.source.text
        at = 0
        for gap in _GAP.finditer(text):
            first, last = gap.span()
            if at < first:
                self._pass_on(at, first)
            at = last
            if text[first] == BREAK:
                self._emit(BREAK, first)
                self._last_char = "\n"
                self._line_chars = 0
            elif not self._resolve(first, last, is_final=is_final):
                at = first
                break
        else:
            if at < len(text):
                self._pass_on(at, len(text))
                at = len(text)
        self.source.cut(at)

    def _pass_on(self, first: int, last: int) -> None:
        self._out.extend(self.source, first, last)
        char = self.source.text[last - 1]
        self._last_char = self.source.replacement(last - 1).text[-1] if char == UNIT else char
        self._line_chars += last - first

    def _emit(self, char: str, place: int) -> None:
        self._out.append(char, self.source.offset(place))
        self._last_char = char
        self._line_chars += 1

    def _resolve(self, first: int, last: int, *, is_final: bool) -> bool:
        """Pass on what the gap ``[first, last)`` becomes, or return False if the text after it must arrive first."""
        text = self.source.text
        gap = text[first:last]
        begins_line = self._last_char in " \n"
        line_end = _LINE_END.search(gap)
        has_space = " " in (gap[: line_end.start()] if line_end else gap)
        may_wrap = (
            line_end is not None
            and line_end.group() == "\n"
            and self._line_chars >= WRAP_CHARS
            and self._last_char not in _STOPS
        )
        if (has_space or may_wrap) and not begins_line:
            self._space_follows()
        if line_end is not None and not (may_wrap and not _LINE_END.search(gap, line_end.end())):
            if self._last_char != "\n":
                self._emit("\n", first + line_end.start())
            self._line_chars = 0
            return True
        following = text[last : last + 1]
        if not following and not is_final:
            return False
        if begins_line or following == BREAK:
            return True
        if line_end is not None:
            self._emit(" " if not following or following.islower() else "\n", first + line_end.start())
            self._line_chars = 0
        elif has_space:
            place = first + gap.index(" ")
            if not self._closes_up(following, place, last):
                self._emit(" ", place)
        elif self._joins(following, last):
            self._emit(" ", first)
        return True

    def _closes_up(self, following: str, place: int, last: int) -> bool:
        """Return whether the space at ``place`` is dropped before a comma, or a mark that lost the text before it."""
        if not following or following not in _CLOSE_UP:
            return False
        return following == "," or self.source.offset(last) > self.source.offset(place) + 1

    def _joins(self, following: str, last: int) -> bool:
        """Return whether dropped characters leave two words without a space between them."""
        if following == UNIT:
            following = self.source.replacement(last).text[0]
        if not (self._last_char.isalnum() and following.isalnum()):
            return False
        return not (is_unspaced(self._last_char) and is_unspaced(following))
