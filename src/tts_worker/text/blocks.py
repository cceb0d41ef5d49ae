"""Blocks of a text that are not read: reasoning and tool text, fenced code, comments, URLs, long targets of links.

``data/blocks.tsv`` has how each ends. A block is skipped while it arrives, so its length costs no memory; only what may
be the beginning of its end is kept. Without an end it goes on to the end of the utterance, except for comments:
reasoning is often longer than any limit, and half of it read aloud is worse than a silent rest of a turn.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from functools import cache, lru_cache

from tts_worker.text.tables import NAMED, PATTERNS, filled, rows

_CUT_CHARS = 128
"""Length of the longest end of a block."""
_COMMENT_LIMIT = 2000
_CUT_AND_MARKS = r"[<\[][^<\[]{0,63}\Z", r"[>\]\n]"
"""Of reasoning and tool text: what may become an end, and what every end has."""


@cache
def block_kinds() -> tuple[tuple[str, ...], ...]:
    """Return the lines of the table: kind, opening, end, and for some what may become an end and what every end has."""
    return tuple(tuple(filled(field, NAMED) for field in row) for row in rows("blocks"))


@lru_cache(maxsize=256)
def _ending(kind: str, name: str) -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    """Return the pattern of the end of a block, of what may become one, and of what every end has."""
    _, _, end, *others = next(row for row in block_kinds() if row[0] == kind)
    cut, marks = others or _CUT_AND_MARKS
    return re.compile(end.replace("NAME", name)), re.compile(cut), re.compile(marks)


class Block(ABC):
    """A block that is being skipped.

    Attributes:
        marks: Characters of which every end has one.
        is_paragraph: Whether a paragraph ends where the block does.
        ends_with_text: Whether it ends where the text is flushed.
        is_done: Whether its end was found.
    """

    marks: re.Pattern[str]
    is_paragraph = False
    ends_with_text = False
    is_done = False

    @abstractmethod
    def skip(self, text: str, at: int, *, is_final: bool) -> int:
        """Return the place up to which ``text`` can be skipped; the rest may be the beginning of an end."""


class EnclosedBlock(Block):
    """A block between an opening and an end.

    Args:
        name: A kind of the table.
        of: What its end repeats.
        depth: How many openings it has.
    """

    def __init__(self, name: str, of: str = "", depth: int = 1) -> None:
        self._end, self._cut, self.marks = _ending(name, of)
        self.is_paragraph, self.ends_with_text = name == "fence", name == "target"
        self._depth = depth
        self._is_spoken = False  # whether the channel of the harmony format is
        self._left = _COMMENT_LIMIT if name == "comment" else None

    def skip(self, text: str, at: int, *, is_final: bool) -> int:
        first, limit = at, len(text) if self._left is None else min(len(text), at + self._left)
        for match in self._end.finditer(text, at, limit):
            if match.lastgroup == "cut" and not is_final:
                return match.start()
            at = match.end()
            self.is_done = self._ends(match)
            if self.is_done:
                return at
        cut = self._cut.search(text, max(at, limit - _CUT_CHARS), limit)
        end = cut.start() if cut else limit
        if self._left is not None:
            self.is_done = limit == first + self._left
            end = limit if self.is_done else end
            self._left -= end - first
        return end

    def _ends(self, mark: re.Match[str]) -> bool:
        """Return whether the end of one opening ends the block. Of the channels only "final" is for the user."""
        group = mark.lastgroup
        if group in ("channel", "role"):
            self._is_spoken = mark[group] in ("final", "assistant")
            return False
        if group == "message":
            return self._is_spoken
        self._depth += 1 if group == "open" else -1
        return not self._depth or group in ("stop", "cut")


class JsonValue(Block):
    """A call in JSON that is being skipped. A blank line ends it too, should a bracket be missing."""

    marks = re.compile(r"[\]}\n]")

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False

    def skip(self, text: str, at: int, *, is_final: bool) -> int:
        while mark := PATTERNS["IN_STRING" if self._in_string else "IN_JSON"].search(text, at):
            char = mark.group()
            if char == "\\" and mark.end() == len(text):
                return mark.start()
            at = mark.end()
            if char == '"':
                self._in_string = not self._in_string
            elif char in ("[", "{"):
                self._depth += 1
            elif char in ("]", "}"):
                self._depth -= 1
            self.is_done = char == "\n" or (not self._depth and char in ("]", "}"))
            if self.is_done:
                return at
        return len(text)


class Url(Block):
    """A URL that is being skipped. Punctuation at its end belongs to the sentence.

    Args:
        in_angle_brackets: Whether it is: then it has the closing one.
    """

    marks = re.compile("[^!-~]")
    ends_with_text = True

    def __init__(self, *, in_angle_brackets: bool) -> None:
        self._in_angle_brackets = in_angle_brackets
        self._depth = 0  # open parentheses

    def skip(self, text: str, at: int, *, is_final: bool) -> int:
        chars = PATTERNS["URL_CHARS"].match(text, at)
        at = chars.end() if chars else at
        if at == len(text):
            return at
        if text[at] == ")" and self._depth:
            self._depth -= 1
            return at + 1
        if tail := PATTERNS["URL_TAIL"].match(text, at):
            end, depth = tail.end(), self._depth + tail.group().count("(")
            if end == len(text) and not is_final:
                return at
            if PATTERNS["URL_GOES_ON"].match(text, end) or (depth and text[end : end + 1] == ")"):
                self._depth = depth
                return end
        self.is_done = True
        return at + 1 if text[at] == ">" and self._in_angle_brackets else at
