"""Cardinals, ordinals and decimals: every number that no other class has read."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tts_worker.text.reading.english.electronic import word
from tts_worker.text.reading.english.grammar import GRAMMAR
from tts_worker.text.reading.english.words import cardinal, number, ordinal, plural, spell
from tts_worker.text.reading.rules import reads_part
from tts_worker.text.span_rewriting import Rewrite

_SUFFIXES = {"1": "st", "2": "nd", "3": "rd"}


def _number(match: re.Match[str]) -> Iterator[Rewrite]:
    yield *match.span(), number(match.group())


def _grouped(match: re.Match[str]) -> Iterator[Rewrite]:
    yield *match.span(), cardinal(match.group().replace(" ", ""))


def _ordinal(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "21st" and "1,000th"; a suffix that does not fit stays: "1th"."""
    digits = match["digits"].replace(",", "")
    suffix = "th" if digits[-2:-1] == "1" else _SUFFIXES.get(digits[-1], "th")
    if match["suffix"].lower() == suffix and digits.strip("0"):
        yield *match.span(), ordinal(digits)


def _plural(match: re.Match[str]) -> Iterator[Rewrite]:
    digits = match["digits"]
    words = number(digits)
    if len(digits) == 3 and digits[0] == digits[2]:  # "747s"
        words = f"{cardinal(digits[0])} {cardinal(digits[1:])}"
    yield *match.span(), plural(words)


def _any(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read what looks like no number, part by part: "1.2.3.4.5"."""
    for part in re.finditer(r"\d+|[.,:]", match.group()):
        written = part.group()
        words = number(written[:30]) if written.isdecimal() else {".": " point "}.get(written, ", ")
        yield match.start() + part.start(), match.start() + part.end(), words if len(written) <= 30 else spell(written)


RULES = GRAMMAR.rules(
    r"""
@letters  1+  (?<![\w.-])[a-z]{2}(?=\d)
@ordinal  1+  (?<![\w.,])(?P<digits>\d{1,3}(?:,\d{3}){1,6}|\d{1,15})[ ]?(?P<suffix>st|nd|rd|th|ST|ND|RD|TH)\b
@plural  s  (?<![\w.,])(?<!iPhone )(?P<digits>\d{1,4})['’]?s\b
@grouped  4+  (?<![\w.,])(?<!\d )[1-9]\d{0,2}(?:(?: \d{3}){2,5}| 000| \d{3}(?= ?(?:[€%]|(?:<UNITS>|people|[a-z]{2,}
    (?<!i)s)\b)))(?![\w-]| \d|[.,]\d)
@number  1+  (?<![\w.,])(?:\d{1,3}(?:,\d{3}){1,8}(?:\.\d{1,18})?|[1-9]\d?(?:,\d\d){1,6},\d{3}(?:\.\d{1,18})?
    |\d{1,3}(?:\.\d{3}){1,6},\d{1,18}|\d{1,3}(?:\.\d{3}){2,6}|\d{1,18}(?:[.,]\d{1,18})?|\.\d{1,18})(?!\d|[.,]\d)
@number  1+  (?<=[^\W\d])\d{1,18}(?:\.\d{1,18})?(?!\d|[.,]\d)
@any  1+  \d(?:[.,:]?\d)*
""",
    {
        "grouped": _grouped,
        "ordinal": _ordinal,
        "plural": _plural,
        "number": _number,
        "any": _any,
        "letters": reads_part(word),
    },
)
