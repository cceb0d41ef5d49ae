"""What the rules of spoken English are made of: a pattern, what is spoken, and what a text must have."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from tts_worker.text import english_tables as tables
from tts_worker.text.english_numbers import number_words
from tts_worker.text.markup import letter_name
from tts_worker.text.span_rewriting import Rewrite

Speak = Callable[[re.Match[str]], Iterator[Rewrite]]
"""Yields what is spoken for ranges of a match."""

Rule = tuple[str, Speak, str]
"""A pattern, what is spoken, and what the text of every match has one of: words in small letters, signs, or as many
digits as "3+" says. Most segments have little of it, so that few patterns are searched for."""


def spell(text: str) -> str:
    """Return ``text`` letter by letter and digit by digit; other characters make a pause."""
    groups = re.findall(r"[^\W_]+", text)
    return ", ".join(" ".join(map(_spelled, group)).rstrip(",") for group in groups)


def _spelled(char: str) -> str:
    return number_words(char) if char.isdecimal() and char.isascii() else letter_name(char)


def spoken_number(digits: str) -> str:
    """Return up to four digits as a number, more of them one by one."""
    return number_words(digits) if len(digits) <= 4 else spell(digits)


def reads(spoken: str) -> Speak:
    """Return a rule that reads its group "part" as ``spoken``, or all that it matches without such a group."""

    def read(match: re.Match[str]) -> Iterator[Rewrite]:
        part = "part" if "part" in match.groupdict() else 0
        yield match.start(part), match.end(part), spoken

    return read


def reads_apart(spoken: str) -> Speak:
    """Return a rule that reads what it matches as ``spoken``, after a space."""

    def read(match: re.Match[str]) -> Iterator[Rewrite]:
        follows = match.start() and not match.string[match.start() - 1].isspace()
        yield match.start(), match.end(), " " * follows + spoken

    return read


def alternatives(words: Iterable[str]) -> str:
    """Return a pattern of one of ``words``, the longest first."""
    return "(?:" + "|".join(sorted(map(re.escape, words), key=len, reverse=True)) + ")"


STATE_CODES = alternatives({**tables.STATES, **tables.OTHER_STATES})


def looks_up(table: Mapping[str, str], spoken: str = "{}") -> Speak:
    """Return a rule that reads its group "part" as what ``table`` has for its group "name"."""

    def read(match: re.Match[str]) -> Iterator[Rewrite]:
        name = match["name"]
        yield match.start("part"), match.end("part"), spoken.format(table.get(name) or table[name.rstrip(".")])

    return read


def cased(words: str) -> str:
    """Return a pattern of one of ``words``, which may begin with a capital."""
    return "(?:" + "|".join(f"[{word[0].upper()}{word[0]}]{word[1:]}" for word in words.split()) + ")"


def first_words(names: Iterable[str]) -> str:
    """Return the first word of each name in small letters, as what a text of a rule has one of."""
    return " ".join(re.findall("[a-z]+", name.lower())[0] for name in names)
