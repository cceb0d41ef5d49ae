"""Telephone numbers: digit by digit, with a pause between their groups."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tts_worker.text.reading.english.grammar import GRAMMAR
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


def _phone(match: re.Match[str]) -> Iterator[Rewrite]:
    if _MIN_DIGITS <= sum(map(str.isdigit, match["part"])) <= _MAX_DIGITS:
        yield from word_by_word(match)


def _letters(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "1-800-FLOWERS" by its word."""
    prefix = [cardinal(group) if group in ("1", "800") else spell(group) for group in match["prefix"].split("-")]
    words = re.sub(r"\d+", lambda digits: f" {spell(digits[0])} ", match["words"].replace("-", " ").title())
    yield *match.span(), ", ".join([*prefix, " ".join(words.split())])


RULES = GRAMMAR.rules(
    r"""
@phone  +  (?!\+\d{1,9}\.\d{1,9}(?!\d|[.-]\d))«\+\d{1,3}(?:[ .-]?\(?\d{1,5}\)?){2,6}»(?![\w%]|[.,]\d)
@phone  10+  (?<![\w.,$-])«(?:1[ .-])?(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}(?:-\d{4})?»(?![\w%])
@letters  3+  (?<![\w.,$/-])(?P<prefix>(?:1-)?8(?:00|88|77|66|55|44|33))-
    (?P<words>(?=[A-Z\d-]*[A-Z]{2})[A-Z\d]{1,9}(?:-[A-Z\d]{1,9}){0,3})(?![\w-])
@phone  7+  \b<call dial phone text tel fax number hotline mobile cell whatsapp>\b[^\d\n.!?]{0,20}
    (?<![\w-])«\d{3}[ .-]?\d{4}|\d{3,5}[ .-]\d{5,8}|\d{3,5}(?:[ -]\d{3,4}){2}|\d{8,15}»(?![\w%]|[.,-]\d)
@phone  7+  (?<![\w.,€£$/-])«\(0\d{1,4}\) ?\d{3,4}(?:[ -]?\d{3,4}){0,2}»(?![\w%]|[.-]\d)
@phone  9+  (?<![\w.,€£$/-])«0\d{1,4}[ -]\d{3,4}[ -]?\d{3,4}|0\d{2,4}[ /-]\d{5,8}|0\d(?:[ .]\d\d){4}|0\d{9,10}»
    (?![\w%]|[.,-]\d)
@phone  10+  (?<![\w.,€£$/-])«1[38]00 \d{3} \d{3}|[6-9]\d{4} \d{5}|04\d\d \d{3} \d{3}»(?![\w%]|[.,-]\d)
@phone  7+  (?<![\w.,$/-])«(?!19|20)[2-9]\d{2}-\d{4}»(?![\w%-]|[.,]\d)
""",
    {"phone": _phone, "letters": _letters},
)
