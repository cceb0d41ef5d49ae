"""Digits and serials: codes, accounts, numbers of orders, rooms and flights; sign by sign or in pairs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tts_worker.text.reading.english.telephone import word_by_word
from tts_worker.text.reading.english.words import digit_groups, pairs, spell
from tts_worker.text.reading.rules import reads_part
from tts_worker.text.span_rewriting import Rewrite


def _code(written: str) -> str:
    code = written.lstrip("#")
    if sum(map(str.isdigit, code)) < 3 and len(code) < 5:
        return ""
    return digit_groups(code) if code.isdigit() else spell(code)


def read_bank_account(match: re.Match[str]) -> Iterator[Rewrite]:
    if " " in match.group():
        yield from _spelled_words(match)
    else:
        yield *match.span(), ", ".join(map(spell, re.findall(".{1,4}", match.group())))


def _spelled_words(match: re.Match[str]) -> Iterator[Rewrite]:
    for word in re.finditer(r"\S+", match.group()):
        is_last = word.end() == len(match.group())
        yield match.start() + word.start(), match.start() + word.end(), spell(word.group()) + "," * (not is_last)


def read_short_numbers(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "call 911, not 411"."""
    for code in re.finditer(r"(?<![\w.,:-])(?:[2-9]11|112|999|988)\b(?![.,:-]\d| (?:people|[a-z]+s)\b)", match.group()):
        yield match.start() + code.start(), match.start() + code.end(), spell(code.group())


read_words = word_by_word
read_code = reads_part(_code)
read_spelled = reads_part(spell)
read_pairs = reads_part(pairs)
read_units = reads_part(lambda written: ", ".join(pairs(part) for part in written.split("-")))
