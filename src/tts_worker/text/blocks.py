"""Blocks of a text that are not read: reasoning and tool text, fenced code, comments, URLs, long targets of links.

``KINDS`` has how each ends. A block is skipped while it arrives, so its length costs no memory; only what may be the
beginning of its end is kept. Without an end it goes on to the end of the utterance, unless its kind has a limit:
reasoning is often longer than any limit, and half of it read aloud is worse than a silent rest of a turn.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache

from tts_worker.text import markup
from tts_worker.text.character_filter import SOFT_SPACE

_CUT_CHARS = 128
"""Length of the longest end of a block."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How a kind of blocks ends.

    Attributes:
        end: Pattern of what ends it; NAME stands for what is known from its opening. What matches the group "open" is
            one more opening within, "stop" ends all of them, and "cut" does so only where the text ends. The groups
            "channel", "role" and "message" are those of the harmony format.
        cut: Pattern of what may be the beginning of an end where the text has arrived so far.
        marks: See ``Block``, as ``is_paragraph`` and ``ends_with_text``.
        limit: Characters after which it ends in any case.
    """

    end: str
    cut: re.Pattern[str] = re.compile(r"[<\[][^<\[]{0,63}\Z")
    marks: re.Pattern[str] = re.compile(r"[>\]\n]")
    limit: int | None = None
    is_paragraph: bool = False
    ends_with_text: bool = False


PREFIX = r"(?:[a-z]{1,12}:|[|｜]DSML[|｜])?"
REASONING = (
    r"think(?:ing)?|thoughts?|reasoning|reflection|(?:reasoning_)?scratch_?pad|analysis|chain_of_thought|cot"
    r"|inner_monologue|antthinking"
)
_LINE_BEGIN = rf"(?<=\n)[ {SOFT_SPACE}>]{{0,32}}"

KINDS = {
    # Reasoning and tool text: the groups of the openings in ``reasoning``.
    "from_start": Kind(rf"(?i:</{PREFIX}(?:{REASONING})[ ]{{0,8}}>)|\[/THINK\]|<\|END_THINKING\|>"),
    "tag": Kind(rf"(?i:(?<!`)<(?P<open>){PREFIX}NAME(?:[ ][^<>/]{{0,16}})?>|</{PREFIX}NAME[ ]{{0,8}}>)"),
    "function": Kind(r"(?i:</function[ ]{0,8}>)"),
    "details": Kind(r"(?i:<(?P<open>)details\b|</details[ ]{0,8}>)"),
    "begun": Kind(r"<[|｜]NAME[_▁](?:end|stop)[|｜]>"),
    "start": Kind(r"<\|END_NAME\|>"),
    "half": Kind(r"<NAME\|>"),
    "role": Kind(r"\n"),
    "header": Kind(r"<\|end_header_id\|>"),
    "bracket": Kind(r"\[/NAME\]"),
    "channel": Kind(
        r"<\|(?:channel\|>\s{0,3}(?P<channel>\w{1,12})(?=\W)|start\|>\s{0,3}(?P<role>\w{1,12})(?=\W)"
        r"|(?P<message>message)\|>|(?:end|return|call)\|>)"
    ),
    # Markdown. The last line of fenced code has nothing but the mark; text may follow after a space.
    "fence": Kind(
        rf"{_LINE_BEGIN}NAME(?:[ {SOFT_SPACE}\n]|(?P<cut>\Z))",
        re.compile(rf"{_LINE_BEGIN}[`~]{{0,64}}\Z"),
        re.compile(r"[\n]"),
        is_paragraph=True,
    ),
    "comment": Kind("-->", re.compile(r"--?\Z"), re.compile("[>]"), limit=2000),
    "target": Kind(
        r"(?P<open>\()|\)|(?P<stop>)(?=[\[\]< \n])",
        re.compile("(?!)"),
        re.compile(r"[()\[\]< \n]"),
        ends_with_text=True,
    ),
}


@lru_cache(maxsize=256)
def _end_of(kind: str, name: str) -> re.Pattern[str]:
    return re.compile(KINDS[kind].end.replace("NAME", name))


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
        name: One of ``KINDS``.
        of: What its end repeats.
        depth: How many openings it has.
    """

    def __init__(self, name: str, of: str = "", depth: int = 1) -> None:
        kind = KINDS[name]
        self.marks, self.is_paragraph, self.ends_with_text = kind.marks, kind.is_paragraph, kind.ends_with_text
        self._end = _end_of(name, of)
        self._cut = kind.cut
        self._depth = depth
        self._is_spoken = False  # whether the channel of the harmony format is
        self._left = kind.limit

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
        while mark := (_IN_STRING if self._in_string else _IN_JSON).search(text, at):
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


_IN_STRING = re.compile(r'\\.?|"|(?<=\n)\n', re.DOTALL)
_IN_JSON = re.compile(r'["\[\]{}]|(?<=\n)\n')


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
        chars = markup.URL_CHARS.match(text, at)
        at = chars.end() if chars else at
        if at == len(text):
            return at
        if text[at] == ")" and self._depth:
            self._depth -= 1
            return at + 1
        if tail := markup.URL_TAIL.match(text, at):
            end, depth = tail.end(), self._depth + tail.group().count("(")
            if end == len(text) and not is_final:
                return at
            following = text[end : end + 1]
            if following and (
                (following == ")" and depth) or following in markup.TAIL or markup.URL_CHAR.match(following)
            ):
                self._depth = depth
                return end
        self.is_done = True
        return at + 1 if text[at] == ">" and self._in_angle_brackets else at
