"""Cardinals, ordinals and decimals: every number that no other class has read."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tts_worker.text.reading.english.electronic import word
from tts_worker.text.reading.english.words import cardinal, number, ordinal, plural, spell
from tts_worker.text.reading.rules import reads_part
from tts_worker.text.span_rewriting import Rewrite

_SUFFIXES = {"1": "st", "2": "nd", "3": "rd"}


def read_ordinal(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read "21st" and "1,000th"; a suffix that does not fit stays: "1th"."""
    digits = match["digits"].replace(",", "")
    suffix = "th" if digits[-2:-1] == "1" else _SUFFIXES.get(digits[-1], "th")
    if match["suffix"].lower() == suffix and digits.strip("0"):
        yield *match.span(), ordinal(digits)


def read_plural(match: re.Match[str]) -> Iterator[Rewrite]:
    digits = match["digits"]
    words = number(digits)
    if len(digits) == 3 and digits[0] == digits[2]:  # "747s"
        words = f"{cardinal(digits[0])} {cardinal(digits[1:])}"
    yield *match.span(), plural(words)


def read_any(match: re.Match[str]) -> Iterator[Rewrite]:
    """Read what looks like no number, part by part: "1.2.3.4.5"."""
    for part in re.finditer(r"\d+|[.,:]", match.group()):
        written = part.group()
        words = number(written[:30]) if written.isdecimal() else {".": " point "}.get(written, ", ")
        yield match.start() + part.start(), match.start() + part.end(), words if len(written) <= 30 else spell(written)


read_letters = reads_part(word)
read_number = reads_part(number)
read_grouped = reads_part(lambda written: cardinal(written.replace(" ", "")))
