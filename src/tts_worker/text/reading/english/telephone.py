"""Telephone numbers: digit by digit, with a pause between their groups."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tts_worker.text.reading.english.words import cardinal, digit_groups, spell
from tts_worker.text.reading.rules import part_span
from tts_worker.text.span_rewriting import Rewrite

_MIN_DIGITS, _MAX_DIGITS = 7, 15


def word_by_word(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read each word of the part sign by sign; all but the last end with a pause."""
    words = list(re.compile(r"\S+").finditer(match.string, *part_span(match)))
    for word in words:
        yield *word.span(), _word(word.group()) + ("" if word is words[-1] else ",")


def _word(word: str) -> str:
    if word.startswith("+1") and len(word) == 12:
        return f"plus one, {_word(word[2:])}"
    if word.isdigit() and len(word) == 10:
        return ", ".join((spell(word[:3]), spell(word[3:6]), spell(word[6:])))
    if re.fullmatch(r"\+[2-9]\d", word):
        return f"plus {cardinal(word[1:])}"
    return ("plus " if word[0] == "+" else "") + (digit_groups(word) if word.isdigit() else spell(word))


def read_phone(match: re.Match[str]) -> Iterator[Rewrite]:
    if _MIN_DIGITS <= sum(map(str.isdigit, match["part"])) <= _MAX_DIGITS:
        yield from word_by_word(match)


def read_letters(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "1-800-FLOWERS" by its word."""
    prefix = [cardinal(group) if group in ("1", "800") else spell(group) for group in match["prefix"].split("-")]
    words = re.sub(r"\d+", lambda digits: f" {spell(digits[0])} ", match["words"].replace("-", " ").title())
    yield *match.span(), ", ".join([*prefix, " ".join(words.split())])
