"""What the text filter knows of Markdown, tags and URLs; the patterns are in ``data/patterns.txt``."""

from __future__ import annotations

import html
import re
from collections.abc import Collection, Mapping
from functools import cache

from tts_worker.text.character_filter import SOFT_SPACE, is_filtered
from tts_worker.text.tables import PATTERNS, words

ESCAPABLE = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
SPACES = frozenset(" \n")
_TAGS = words("tags")
BREAKING_TAGS, SPACED_TAGS = _TAGS["breaking"], _TAGS["spaced"]
BRACKET_LIMIT = 203
"""A bracket still open after this many characters is plain text."""
TAG_LIMIT = 301
TARGET_LIMIT = 500
MAX_BREAK_MS = 10_000
_MAX_PHONEMES = 100
_SPELLED_AS = ("characters", "spell-out", "digits", "telephone")

# -- where plain text ends --------------------------------------------------------------------------------------------

CLOSE_UP = ".,;:!?)。，；：！？、"
"""Marks that follow a word without a space."""
LINE_MARKS = rf"\n{SOFT_SPACE}"
TEXT_MARKS = r"\\\[<|*_~`!&#$^"
CODE_MARKS = r"<|`"
TAIL = ".,;:!?'*_~("
"""Punctuation that belongs to the sentence at the end of a URL."""
URL_LETTERS = "hHfFwWmM"


@cache
def marks(chars: str, *, urls: bool) -> re.Pattern[str]:
    """Return the pattern of one of ``chars``, a mark after a space, or the first letter of what may be a URL."""
    letters, url = (URL_LETTERS, "|" + PATTERNS["URL_START"].pattern) if urls else ("", "")
    close_up = re.escape(CLOSE_UP)
    # The class comes first, because the search for a class is fast.
    return re.compile(rf"[{chars}{close_up}{letters}](?:(?<=[{chars}])|(?<= [{close_up}]){url})")


# -- within a line ----------------------------------------------------------------------------------------------------


def _closing(name: str) -> str:
    """Return a pattern of the closing tag of ``name``, or its beginning; the group "whole" is set for a whole tag."""
    tag = f"</{name}"
    return "(?:" + "(?:".join(map(re.escape, tag)) + r" {0,8}(?P<whole>>)?" + ")?" * len(tag)


CLOSING_SPELLED = {name: re.compile(_closing(name), re.IGNORECASE) for name in ("spell", "say-as", "expr")}
REPLACED = {
    name: re.compile(r"(?P<content>[^<\n]{1,100})" + _closing(name), re.IGNORECASE) for name in ("phoneme", "sub")
}
"""The content and the closing tag of what is spoken otherwise."""


def target_end(text: str, start: int) -> tuple[int, int]:
    """Read the target of a link, from the ``(`` at ``start``: a target without spaces and an optional quoted title.

    Returns:
        The end, and the number of open parentheses there: 0 if the target is whole, otherwise the text ends in it. The
        end is -1 if this is no target.
    """
    depth = 0
    limit = start + 1 + TARGET_LIMIT
    for match in PATTERNS["TARGET_MARK"].finditer(text, start, limit):
        char = match.group()
        if char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
            if not depth:
                return match.end(), 0
        elif char == " " and depth == 1:
            titled = PATTERNS["TITLE"].match(text, match.start(), limit)
            if titled:
                return titled.end(), 0
            is_cut = len(text) < limit and PATTERNS["CUT_TITLE"].match(text, match.start())
            return (len(text), 1) if is_cut else (-1, 0)
        else:
            return -1, 0
    return min(len(text), limit), depth


def values_of(attributes: str | None) -> dict[str, str]:
    """Return the values of a tag's attributes by lower-case name."""
    return {name.lower(): "".join(value) for name, *value in PATTERNS["VALUE"].findall(attributes or "")}


def break_ms(values: Mapping[str, str]) -> int | None:
    """Return the length of a break: ``time="300ms"``, ``time="1.5s"``, at most 10 s. None without a valid length."""
    found = PATTERNS["BREAK_TIME"].fullmatch(values.get("time", ""))
    if found is None:
        return None
    return min(MAX_BREAK_MS, round(float(found[1]) * (1000 if found[2].lower() == "s" else 1)))


def phonemes_of(values: Mapping[str, str], alphabets: Collection[str]) -> str | None:
    """Return the phonemes of a ``<phoneme>`` tag; None if it has none, or in an alphabet not among ``alphabets``."""
    phonemes = " ".join(values.get("ph", "").split())
    alphabet = values.get("alphabet", "").lower()
    return phonemes if 0 < len(phonemes) <= _MAX_PHONEMES and (not alphabet or alphabet in alphabets) else None


def alias_of(values: Mapping[str, str]) -> str | None:
    """Return what is spoken instead of the content of a ``<sub>`` tag; None if nothing can be spoken."""
    alias = " ".join(PATTERNS["ENTITY"].sub(_entity_text, values.get("alias", "")).split())
    return alias if any(map(str.isalnum, alias)) else None


def _entity_text(entity: re.Match[str]) -> str:
    char = entity_char(entity.group())
    return entity.group() if char is None else char


def ends_sentence(tag: re.Match[str]) -> bool:
    """Return whether a tag is ``</s>`` after text without a stop."""
    return tag["closed"] in ("s", "S") and tag.string[tag.start() - 1] not in ".!?…"


def is_spelled(name: str, values: Mapping[str, str]) -> bool:
    """Return whether the content of an opening tag is read character by character."""
    if name == "expr":
        return values.get("type") == "spell"
    return name == "spell" or (name == "say-as" and values.get("interpret-as", "").lower() in _SPELLED_AS)


def letter_name(char: str) -> str:
    """Return how a spelled character is written, so that no engine reads "A" as the article."""
    return "A," if char in "Aa" else char.upper()


def entity_char(written: str) -> str | None:
    """Return the character that an entity stands for, "" for one that is not read; None if it stands for none."""
    meant = html.unescape(written)
    if meant == written or len(meant) != 1:
        return None
    if meant.isspace():
        return " "
    return "" if is_filtered(meant) else meant
